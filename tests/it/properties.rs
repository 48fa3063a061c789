//! Holds the promise that how a join is run does not show in its answer: whatever the type, keys,
//! filter, shape and seed, the rows are the oracle's for any pressure, fan-out and batch size, however
//! the inputs are cut into batches and partitions and in whatever order those come; a limit gives
//! that many of them; and in memory they come in probe order, and for a probe row in build order.

use std::fmt::Debug;

use arrow::array::{Array, AsArray, RecordBatch, UInt32Array};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::Int64Type;
use datafusion_common::JoinType;
use grace_hash_join::testing::cases::BATCH_SIZES;
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{
    Case, FilterKind, KeyKind, NULL_EQUALITIES, Outcome, Pressure, Rng, Rows, Shape, Table, check,
    collect, render,
};
use grace_hash_join::{GraceHashJoinConfig, SpillPolicy};
use proptest::prelude::*;
use proptest::sample::select;

use crate::run;

fn any_of<T: Clone + Debug + 'static>(values: &'static [T]) -> impl Strategy<Value = T> {
    select(values)
}

/// Any valid case of small data.
fn cases() -> impl Strategy<Value = Case> {
    let question = (
        select(Case::of_each_type()),
        any_of(&NULL_EQUALITIES),
        any_of(&FilterKind::ALL),
        any_of(&KeyKind::ALL),
    );
    let surroundings = (
        any_of(&Pressure::ALL),
        any_of(&Shape::ALL),
        any_of(&BATCH_SIZES),
        any::<u64>(),
    );
    (question, surroundings)
        .prop_map(|(question, surroundings)| {
            let (join, null_equality, filter, key) = question;
            let (pressure, shape, batch_size, seed) = surroundings;
            Case {
                null_equality,
                filter,
                pressure,
                key,
                shape,
                batch_size,
                seed,
                ..join
            }
        })
        .prop_filter("small data in a valid combination", |case| {
            case.is_valid() && !case.shape.is_large() && case.shape != Shape::WideOneKey
        })
}

/// The same rows in batches of other sizes, which come in another order.
fn shuffled(table: &Table, rng: &mut Rng) -> Table {
    let whole = concat_batches(&table.schema, &table.batches).unwrap();
    let mut batches = Vec::new();
    let mut from = 0;
    while from < whole.num_rows() {
        let rows = usize::from(rng.below(30)).min(whole.num_rows() - from);
        batches.push(whole.slice(from, rows));
        from += rows;
    }
    for last in (1..batches.len()).rev() {
        let other = rng.below(u16::try_from(last + 1).unwrap());
        batches.swap(last, usize::from(other));
    }
    Table {
        batches,
        ..table.clone()
    }
}

/// The rows of a table by their key, so that equal keys are in one part.
fn parts(table: &Table, count: usize) -> Vec<Table> {
    let whole = concat_batches(&table.schema, &table.batches).unwrap();
    let mut rows = vec![Vec::new(); count];
    for row in 0..whole.num_rows() {
        let keys = whole.columns()[..table.v].iter();
        let words = keys.map(|key| render::value(key, row).unwrap());
        let bytes = words.flat_map(String::into_bytes);
        let part = bytes.fold(7, |sum: usize, byte| sum * 31 % 10_007 + usize::from(byte));
        rows[part % count].push(u32::try_from(row).unwrap());
    }
    let part = |rows| Table {
        batches: vec![take_record_batch(&whole, &UInt32Array::from(rows)).unwrap()],
        ..table.clone()
    };
    rows.into_iter().map(part).collect()
}

/// Runs a case with a configuration of one's own, on other inputs if there are any.
fn outcome(case: Case, config: GraceHashJoinConfig, inputs: Option<(Table, Table)>) -> Outcome {
    run(&case, move || async move {
        let setting = case.setting_with(|join| join.with_config(config)).unwrap();
        let setting = match inputs {
            Some((build, probe)) => Setting {
                build,
                probe,
                ..setting
            },
            None => setting,
        };
        let environment = case.environment().unwrap();
        let outcome = collect(setting.start(&environment).unwrap()).await.unwrap();
        outcome.end.as_ref().unwrap();
        environment.becomes_clean().await.unwrap();
        outcome
    })
}

fn any_spill() -> impl Strategy<Value = SpillPolicy> {
    prop_oneof![
        Just(SpillPolicy::Pressure),
        Just(SpillPolicy::Half),
        Just(SpillPolicy::All),
        (0_usize..4).prop_map(SpillPolicy::Bucket),
        (1_u8..4).prop_map(SpillPolicy::Split),
        (1_usize..20).prop_map(SpillPolicy::Chunks),
    ]
}

fn config_of(spill: SpillPolicy, fan_out: u32) -> GraceHashJoinConfig {
    let config = GraceHashJoinConfig::builder().with_spill(spill);
    config.with_fan_out(1 << fan_out).build().unwrap()
}

/// (probe id, build id) of each row of pairs, in order; `None` is NULL.
fn ids(case: &Case, batches: &[RecordBatch]) -> Vec<(Option<i64>, Option<i64>)> {
    // Keys, `v`, `id`, `s` and `w` on either side.
    let keys = case.key.data_types().unwrap().len();
    let columns = [keys + 4 + keys + 1, keys + 1];
    let mut all = Vec::new();
    for batch in batches {
        let [probe, build] = columns.map(|c| batch.column(c).as_primitive::<Int64Type>());
        all.extend(probe.iter().zip(build.iter()));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn the_answer_does_not_depend_on_how_the_inputs_are_cut_or_in_which_order_they_come(
        case in cases(),
        spill in any_spill(),
        fan_out in 1_u32..7,
        seed in any::<u64>(),
    ) {
        let expected = case.expected().map_err(|e| TestCaseError::fail(e.to_string()))?;
        let (build, probe) = case.tables().unwrap();
        let mut rng = Rng::new(seed);
        let inputs = (shuffled(&build, &mut rng), shuffled(&probe, &mut rng));
        let outcome = outcome(case, config_of(spill, fan_out), Some(inputs));
        let rows = Rows::of(&outcome.batches).unwrap();
        prop_assert_eq!(expected.difference(&rows), None);
    }

    #[test]
    fn the_answer_is_that_of_all_partitions_together(
        case in cases(),
        key in select(vec![KeyKind::Int64, KeyKind::Utf8View, KeyKind::Pair, KeyKind::Dictionary]),
        spill in any_spill(),
        count in 1_usize..6,
    ) {
        // The answer of NOT IN is of the whole probe side.
        let case = Case { key, ..case };
        prop_assume!(case.is_valid() && !case.null_aware);
        let expected = case.expected().map_err(|e| TestCaseError::fail(e.to_string()))?;
        let (build, probe) = case.tables().unwrap();
        let mut batches = Vec::new();
        for inputs in parts(&build, count).into_iter().zip(parts(&probe, count)) {
            batches.extend(outcome(case, config_of(spill, 2), Some(inputs)).batches);
        }
        let rows = Rows::of(&batches).unwrap();
        prop_assert_eq!(expected.difference(&rows), None);
    }

    #[test]
    fn in_memory_rows_come_in_probe_order_and_then_in_build_order(
        case in cases(),
        join_type in select(vec![JoinType::Inner, JoinType::Left, JoinType::Right, JoinType::Full]),
        unique in any::<bool>(),
    ) {
        let shape = if unique { Shape::Unique } else { case.shape };
        let pressure = Pressure::Fits;
        let case = Case { shape, pressure, join_type, null_aware: false, ..case };
        prop_assume!(case.is_valid());
        let config = GraceHashJoinConfig::default();
        let outcome = outcome(case, config, None);
        prop_assert_eq!(outcome.stats.spill_count, 0);
        let ids = ids(&case, &outcome.batches);
        // Build rows without a match come last.
        let place = |(probe, build): &(Option<i64>, Option<i64>)| match probe {
            Some(probe) => (*probe, *build),
            None => (i64::MAX, None),
        };
        prop_assert!(ids.iter().map(place).is_sorted(), "{:?}", ids);
        if matches!(join_type, JoinType::Right | JoinType::Full) {
            let mut probe: Vec<_> = ids.iter().filter_map(|(probe, _)| *probe).collect();
            probe.dedup();
            let (_, table) = case.tables().unwrap();
            let rows = i64::try_from(table.rows()).unwrap();
            prop_assert!(probe.into_iter().eq(0..rows), "every probe row once, in its place");
        }
    }

    #[test]
    fn in_memory_probe_rows_that_come_out_singly_keep_their_order(
        case in cases(),
        join_type in select(vec![JoinType::RightSemi, JoinType::RightAnti, JoinType::RightMark]),
    ) {
        let pressure = Pressure::Fits;
        let case = Case { pressure, join_type, null_aware: false, ..case };
        let config = GraceHashJoinConfig::default();
        let outcome = outcome(case, config, None);
        let id = case.key.data_types().unwrap().len() + 1;
        let columns = outcome.batches.iter().map(|batch| batch.column(id));
        let mut ids: Vec<i64> = Vec::new();
        for column in columns {
            prop_assert_eq!(column.null_count(), 0);
            ids.extend(column.as_primitive::<Int64Type>().values());
        }
        prop_assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", ids);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn the_answer_is_the_oracle_s_however_the_join_is_run(case in cases()) {
        let expected = case.expected().map_err(|e| TestCaseError::fail(e.to_string()))?;
        check(&case, &expected).map_err(|e| TestCaseError::fail(e.to_string()))?;
    }

    #[test]
    fn a_limit_gives_that_many_of_the_rows(case in cases(), limit in 0_usize..40, fan_out in 1_u32..7) {
        let expected = case.expected().map_err(|e| TestCaseError::fail(e.to_string()))?;
        let config = GraceHashJoinConfig::builder()
            .with_fan_out(1 << fan_out)
            .with_spill(if limit % 2 == 0 { SpillPolicy::All } else { SpillPolicy::Half })
            .build()
            .unwrap();
        let wanted = expected.len().min(limit);
        let outcome = run(&case, move || async move {
            let setting = case
                .setting_with(|join| join.with_config(config).with_limit(Some(limit)))
                .unwrap();
            let environment = case.environment().unwrap();
            let outcome = collect(setting.start(&environment).unwrap())
                .await
                .unwrap();
            environment.becomes_clean().await.unwrap();
            outcome
        });
        prop_assert!(outcome.end.is_ok());
        let rows = Rows::of(&outcome.batches).unwrap();
        prop_assert_eq!(rows.len(), wanted);
        prop_assert!(expected.contains(&rows));
    }
}
