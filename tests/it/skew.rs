//! Holds the promise that no distribution of keys defeats the join: however often buckets are
//! split or their pairs cut into chunks, whatever the cap on levels, the answer is right.

use datafusion_common::JoinType;
use grace_hash_join::testing::{
    Case, FilterKind, JOIN_TYPES, KeyKind, NULL_EQUALITIES, Pressure, Rows, Shape, Spills,
};
use grace_hash_join::{GraceHashJoinConfig, JoinStats, SpillPolicy};

use crate::run;

/// Runs a case with another configuration.
fn configured(case: Case, expected: &Rows, config: GraceHashJoinConfig) -> JoinStats {
    let expected = expected.clone();
    let what = format!("{config:?}");
    let result = run(&case, move || async move {
        let setting = case.setting_with(|join| join.with_config(config)).unwrap();
        let environment = case.environment().unwrap();
        setting.check(&environment, &expected, Spills::May).await
    });
    result
        .unwrap_or_else(|reason| panic!("{case}, {what}: {reason}"))
        .stats
}

fn config(fan_out: usize, spill: SpillPolicy) -> GraceHashJoinConfig {
    let config = GraceHashJoinConfig::builder();
    config
        .with_fan_out(fan_out)
        .with_spill(spill)
        .build()
        .unwrap()
}

/// Each join type on each of the shapes that differ in skew; null equality and filter take turns.
fn skewed_cases() -> impl Iterator<Item = Case> {
    let shapes = [Shape::Unique, Shape::Mixed, Shape::Skewed, Shape::OneKey];
    shapes.into_iter().enumerate().flat_map(|(turn, shape)| {
        JOIN_TYPES
            .into_iter()
            .enumerate()
            .map(move |(index, join_type)| Case {
                shape,
                null_equality: NULL_EQUALITIES[(turn + index) % 2],
                filter: FilterKind::ALL[(turn * 3 + index) % 4],
                batch_size: 50,
                ..Case::new(join_type)
            })
    })
}

#[test]
fn the_answer_does_not_depend_on_how_many_buckets_there_are() {
    for case in skewed_cases() {
        let expected = case.expected().unwrap();
        for fan_out in [2, 8, 16, 64] {
            for spill in [SpillPolicy::Half, SpillPolicy::All] {
                configured(case, &expected, config(fan_out, spill));
            }
        }
    }
}

#[test]
fn any_one_bucket_can_go_to_disk_alone() {
    for case in skewed_cases() {
        let expected = case.expected().unwrap();
        let mut spilled_rows = 0;
        for bucket in 0..4 {
            let stats = configured(case, &expected, config(4, SpillPolicy::Bucket(bucket)));
            assert!(
                stats.spilled_buckets <= 1,
                "{case}, bucket {bucket}: {stats:?}"
            );
            spilled_rows += stats.spilled_rows;
        }
        // Each build row with a key was in one of them, once.
        assert!(spilled_rows > 0, "{case}");
    }
}

#[test]
fn the_answer_does_not_depend_on_how_often_buckets_are_split() {
    for case in skewed_cases() {
        let expected = case.expected().unwrap();
        for times in 1..=5 {
            let stats = configured(case, &expected, config(2, SpillPolicy::Split(times)));
            if matches!(case.shape, Shape::Unique) {
                assert!(
                    stats.max_level >= u64::from(times),
                    "{case}, {times} times: {stats:?}"
                );
            }
        }
    }
}

#[test]
fn the_answer_does_not_depend_on_the_size_of_chunks() {
    for case in skewed_cases() {
        let expected = case.expected().unwrap();
        for rows in [1, 2, 7, 1000] {
            let stats = configured(case, &expected, config(2, SpillPolicy::Chunks(rows)));
            if case.shape == Shape::OneKey && rows < 7 {
                assert!(stats.chunks > 5, "{case}, {rows} rows: {stats:?}");
            }
        }
    }
}

#[test]
fn one_key_larger_than_the_pool_joins_whatever_the_cap_on_levels() {
    for shape in [Shape::WideOneKey, Shape::LargeSkewed] {
        for (turn, join_type) in JOIN_TYPES.into_iter().enumerate() {
            let case = Case {
                shape,
                key: KeyKind::Wide,
                pressure: Pressure::SmallPool,
                filter: FilterKind::ALL[turn % 4],
                ..Case::new(join_type)
            };
            let expected = case.expected().unwrap();
            for max_level in [0, 1, 6] {
                let config = GraceHashJoinConfig::builder()
                    .with_max_level(max_level)
                    .build();
                let stats = configured(case, &expected, config.unwrap());
                assert!(stats.spilled_rows > 0, "{case}: {stats:?}");
                let most = u64::from(max_level) + 1;
                assert!(stats.max_level <= most, "{case}, {most} levels: {stats:?}");
            }
        }
    }
}

/// Splitting one key's rows again and again would write them all at each level.
#[test]
fn one_hot_key_is_not_written_again_at_every_level() {
    for join_type in [JoinType::Inner, JoinType::Full, JoinType::LeftAnti] {
        let case = Case {
            shape: Shape::WideOneKey,
            key: KeyKind::Wide,
            pressure: Pressure::SmallPool,
            ..Case::new(join_type)
        };
        let expected = case.expected().unwrap();
        let stats = configured(case, &expected, GraceHashJoinConfig::default());
        let (build, probe) = case.tables().unwrap();
        let input = (build.bytes().unwrap() + probe.bytes().unwrap()) as u64;
        assert!(
            stats.spilled_bytes <= 2 * input,
            "{input} bytes came in, {stats:?}"
        );
    }
}
