//! Holds the promise that memory decides what goes to disk and nothing else: what fits opens no
//! file, what doesn't is spilled and still joined, more memory never means more spilling, and the
//! counters say what happened.

use std::sync::Arc;

use datafusion_common::{DataFusionError, JoinType};
use datafusion_execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool, UnboundedMemoryPool,
};
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{
    Case, Environment, FaultyFiles, FileFault, FilterKind, JOIN_TYPES, KeyKind, NULL_EQUALITIES,
    Outcome, Pressure, Rows, Shape, Spills, collect,
};
use grace_hash_join::{GraceHashJoinConfig, SpillCodec, SpillPolicy};

use crate::run;

/// The build side of `Shape::Large`, about.
const BUILD_BYTES: usize = 2 << 20;

/// Where nothing but the keys of the build side is kept, those are wide.
fn large(join_type: JoinType) -> Case {
    let probe_only = [
        JoinType::RightSemi,
        JoinType::RightAnti,
        JoinType::RightMark,
    ];
    let is_wide = probe_only.contains(&join_type);
    Case {
        shape: Shape::Large,
        key: if is_wide {
            KeyKind::Wide
        } else {
            KeyKind::Int64
        },
        ..Case::new(join_type)
    }
}

fn fair(bytes: usize) -> Arc<dyn MemoryPool> {
    Arc::new(FairSpillPool::new(bytes))
}

fn greedy(bytes: usize) -> Arc<dyn MemoryPool> {
    Arc::new(GreedyMemoryPool::new(bytes))
}

/// Runs a case as it is in a pool of one's own.
fn in_pool(case: Case, pool: Arc<dyn MemoryPool>, expected: &Rows, spills: Spills) -> Outcome {
    let expected = expected.clone();
    let what = format!("{pool}");
    let result = run(&case, move || async move {
        let environment = Environment::new(pool, case.batch_size).unwrap();
        case.setting()
            .unwrap()
            .check(&environment, &expected, spills)
            .await
    });
    result.unwrap_or_else(|reason| panic!("{case} in {what}: {reason}"))
}

#[test]
fn a_build_side_that_does_not_fit_is_joined_under_any_pool() {
    for (turn, join_type) in JOIN_TYPES.into_iter().enumerate() {
        let case = Case {
            null_equality: NULL_EQUALITIES[turn % 2],
            filter: FilterKind::ALL[turn % 4],
            ..large(join_type)
        };
        let expected = case.expected().unwrap();
        for part in [2, 3] {
            for pool in [fair, greedy] {
                in_pool(case, pool(BUILD_BYTES / part), &expected, Spills::Must);
            }
        }
    }
}

#[test]
fn a_build_side_that_fits_opens_no_file() {
    for join_type in JOIN_TYPES {
        let case = large(join_type);
        let expected = case.expected().unwrap();
        for pool in [fair, greedy] {
            in_pool(case, pool(4 * BUILD_BYTES), &expected, Spills::MustNot);
        }
    }
}

/// A join that is alone may use nine tenths of the pool.
#[test]
fn a_build_side_of_nine_tenths_of_the_pool_opens_no_file() {
    let case = large(JoinType::Inner);
    let expected = case.expected().unwrap();
    let unlimited: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let peak = in_pool(case, unlimited, &expected, Spills::MustNot)
        .stats
        .peak_bytes;
    let limit = usize::try_from(peak).unwrap() * 10 / 9 + 1;
    for pool in [fair, greedy] {
        in_pool(case, pool(limit), &expected, Spills::MustNot);
    }
}

#[test]
fn more_memory_never_means_failing_or_spilling_more() {
    for pool in [fair, greedy] {
        let case = large(JoinType::Full);
        let expected = case.expected().unwrap();
        let mut before: Option<u64> = None;
        for bytes in (14..25).map(|bits| 1_usize << bits) {
            let expected = expected.clone();
            let spilled = run(&case, move || async move {
                let environment = Environment::new(pool(bytes), case.batch_size).unwrap();
                let outcome = collect(case.setting().unwrap().start(&environment).unwrap()).await;
                let outcome = outcome.unwrap();
                let stats = outcome.stats;
                let spilled = match &outcome.end {
                    Ok(()) => {
                        outcome.keeps_its_word(&expected, &environment).unwrap();
                        Some(stats.spilled_bytes)
                    }
                    Err(DataFusionError::ResourcesExhausted(_)) => None,
                    Err(other) => panic!("{bytes} bytes: {other}"),
                };
                drop(outcome);
                environment.becomes_clean().await.unwrap();
                spilled
            });
            if let Some(before) = before {
                let spilled = spilled.expect("less memory was enough");
                assert!(
                    spilled <= before + before / 10,
                    "{bytes} bytes: {spilled} > {before}"
                );
            }
            assert!(
                spilled.is_some() || bytes < (1 << 19),
                "{bytes} bytes are not enough"
            );
            before = spilled.or(before);
        }
        assert_eq!(before, Some(0), "the largest pool was too small");
    }
}

#[test]
fn the_same_pool_serves_join_after_join() {
    let case = large(JoinType::Left);
    let expected = case.expected().unwrap();
    run(&case, move || async move {
        let environment = Environment::new(fair(BUILD_BYTES / 2), case.batch_size).unwrap();
        let setting = case.setting().unwrap();
        let mut peaks = Vec::new();
        for _ in 0..4 {
            let outcome = setting
                .check(&environment, &expected, Spills::Must)
                .await
                .unwrap();
            peaks.push(outcome.stats.spilled_rows);
        }
        assert_eq!(peaks.iter().min(), peaks.iter().max(), "{peaks:?}");
    });
}

#[test]
fn a_join_beside_a_neighbour_makes_do_with_the_rest() {
    for pool in [fair, greedy] {
        let case = large(JoinType::Full);
        let expected = case.expected().unwrap();
        run(&case, move || async move {
            let pool = pool(BUILD_BYTES);
            let neighbour = MemoryConsumer::new("neighbour").register(&pool);
            neighbour.try_grow(BUILD_BYTES / 2).unwrap();
            let environment = Environment::new(pool, case.batch_size).unwrap();
            let stream = case.setting().unwrap().start(&environment).unwrap();
            let outcome = collect(stream).await.unwrap();
            outcome.end.as_ref().unwrap();
            outcome.keeps_its_word(&expected, &environment).unwrap();
            outcome.spilled_as(Spills::Must).unwrap();
            drop(neighbour);
            environment.becomes_clean().await.unwrap();
        });
    }
}

#[test]
fn forced_spilling_writes_and_a_join_that_fits_does_not() {
    for join_type in JOIN_TYPES {
        for pressure in Pressure::FORCED {
            let case = Case {
                pressure,
                ..Case::new(join_type)
            };
            let expected = case.expected().unwrap();
            let outcome = grace_hash_join::testing::check(&case, &expected).unwrap();
            let stats = outcome.stats;
            assert_eq!((stats.build_rows, stats.probe_rows), (51, 61), "{case}");
            assert_eq!((stats.build_batches, stats.probe_batches), (3, 4), "{case}");
            assert_eq!(stats.output_batches, outcome.batches.len() as u64, "{case}");
            assert_eq!(
                stats.spilled_buckets > 0,
                pressure != Pressure::Fits,
                "{case}"
            );
            assert_eq!(stats.max_level > 0, pressure != Pressure::Fits, "{case}");
            assert!(stats.read_bytes <= stats.spilled_bytes || pressure == Pressure::Chunked);
        }
    }
}

#[test]
fn the_counters_agree_with_the_files() {
    for pressure in [
        Pressure::Half,
        Pressure::All,
        Pressure::SplitAgain,
        Pressure::Chunked,
    ] {
        for join_type in JOIN_TYPES {
            let case = Case {
                pressure,
                ..Case::new(join_type)
            };
            let expected = case.expected().unwrap();
            run(&case, move || async move {
                let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
                let files = FaultyFiles::new(FileFault::Never).unwrap();
                let environment = Environment::with_files(pool, 50, &files).unwrap();
                let setting = case.setting().unwrap();
                let outcome = setting
                    .check(&environment, &expected, Spills::Must)
                    .await
                    .unwrap();
                let stats = outcome.stats;
                assert_eq!(stats.spilled_bytes, files.written_bytes() as u64, "{case}");
                assert_eq!(stats.spill_count, files.created() as u64, "{case}");
            });
        }
    }
}

#[test]
fn every_codec_gives_the_same_rows() {
    let codecs = [
        SpillCodec::Inherit,
        SpillCodec::Uncompressed,
        SpillCodec::Lz4Frame,
        SpillCodec::Zstd,
    ];
    for key in [
        KeyKind::Utf8View,
        KeyKind::Dictionary,
        KeyKind::Struct,
        KeyKind::List,
    ] {
        for codec in codecs {
            let case = Case {
                key,
                ..Case::new(JoinType::Full)
            };
            let expected = case.expected().unwrap();
            run(&case, move || async move {
                let config = GraceHashJoinConfig::builder()
                    .with_codec(codec)
                    .with_spill(SpillPolicy::All)
                    .build()
                    .unwrap();
                let setting = case.setting_with(|join| join.with_config(config)).unwrap();
                let environment = case.environment().unwrap();
                setting
                    .check(&environment, &expected, Spills::Must)
                    .await
                    .unwrap();
            });
        }
    }
}

/// A view's buffers are shared by all its slices; only a row's own bytes may be written.
#[test]
fn a_spill_writes_a_views_own_bytes_only() {
    for key in [KeyKind::Utf8View, KeyKind::BinaryView] {
        let case = Case {
            key,
            shape: Shape::Large,
            ..Case::new(JoinType::Inner)
        };
        let expected = case.expected().unwrap();
        run(&case, move || async move {
            let config = GraceHashJoinConfig::builder()
                .with_spill(SpillPolicy::All)
                .build();
            let config = config.unwrap();
            let setting = case.setting_with(|join| join.with_config(config)).unwrap();
            let environment = case.environment().unwrap();
            let outcome = setting
                .check(&environment, &expected, Spills::Must)
                .await
                .unwrap();
            let input = setting.build.bytes().unwrap() + setting.probe.bytes().unwrap();
            let (written, most) = (outcome.stats.spilled_bytes, (input + input / 2) as u64);
            assert!(written <= most, "{written} bytes written of {input} bytes");
        });
    }
}

/// IMPALA-3524's kind: no probe rows, so nothing of the build side needs to be read again.
#[test]
fn a_spilled_build_side_without_probe_rows_is_read_only_if_its_rows_come_out() {
    for join_type in JOIN_TYPES {
        let case = Case {
            pressure: Pressure::All,
            shape: Shape::EmptyProbe,
            ..Case::new(join_type)
        };
        let expected = case.expected().unwrap();
        let outcome = grace_hash_join::testing::check(&case, &expected).unwrap();
        let stats = outcome.stats;
        if expected.is_empty() {
            assert_eq!(stats.read_bytes, 0, "{case}: {stats:?}");
        } else {
            assert_eq!(expected.len(), 51, "{case}");
        }
    }
}

#[test]
fn a_join_without_a_disk_works_until_it_needs_one() {
    use datafusion_execution::TaskContext;
    use datafusion_execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
    use datafusion_execution::runtime_env::RuntimeEnvBuilder;
    let case = large(JoinType::Inner);
    let expected = case.expected().unwrap();
    run(&case, move || async move {
        for (bytes, fits) in [(4 * BUILD_BYTES, true), (BUILD_BYTES / 4, false)] {
            let pool = greedy(bytes);
            let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
            let runtime = RuntimeEnvBuilder::new()
                .with_memory_pool(Arc::clone(&pool))
                .with_disk_manager_builder(disk)
                .build_arc()
                .unwrap();
            let mut environment = Environment::new(pool, 8192).unwrap();
            environment.context = Arc::new(TaskContext::default().with_runtime(runtime));
            let stream = case.setting().unwrap().start(&environment);
            let survived = Setting::survives(stream, &environment, &expected).await;
            assert_eq!(survived.unwrap(), fits, "{bytes} bytes");
        }
    });
}
