//! Memory: what grows is reserved first, what is large comes in parts, and a refusal at any moment
//! costs time and no row.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion_common::JoinType::{
    Full, Inner, Left, LeftAnti, LeftSemi, Right, RightAnti, RightMark, RightSemi,
};
use datafusion_common::{JoinSide, NullEquality};
use datafusion_execution::memory_pool::{
    GreedyMemoryPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
    UnboundedMemoryPool,
};
use grace_hash_join::testing::faults::Refusal;
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{
    Case, Environment, FaultyInput, FilterKind, JOIN_TYPES, KeyKind, Question, RefusingPool, Shape,
    Spills, Table, collect,
};
use grace_hash_join::{GraceHashJoin, GraceHashJoinConfig, SpillPolicy};

use super::{Rule, Written, cut, keys, numbers, table};
use crate::run;

/// IMPALA-1655, gluten#9674: memory is refused just when a table is built.
#[test]
fn a_refusal_while_a_table_is_built_costs_no_row() {
    let side = numbers(0..64);
    let written = Written::new(Inner, &side, &side);
    let expected = written.oracle();
    assert_eq!(expected.len(), 64);
    run(&written.case(), move || async move {
        for spill in [SpillPolicy::Pressure, SpillPolicy::Half, SpillPolicy::All] {
            let config = GraceHashJoinConfig::builder()
                .with_spill(spill)
                .with_fan_out(4);
            let setting = written.setting(config.build().unwrap());
            for refusal in [Refusal::Once, Refusal::From] {
                let mut right = 0;
                for n in 0.. {
                    let inner: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
                    let pool = Arc::new(RefusingPool::new(inner, refusal(n)));
                    let around = Environment::new(Arc::<RefusingPool>::clone(&pool), 8).unwrap();
                    let stream = setting.start(&around);
                    let survived = Setting::survives(stream, &around, &expected).await;
                    right += usize::from(survived.unwrap());
                    if pool.calls() <= n {
                        break;
                    }
                }
                assert!(right > 0, "{spill:?}");
            }
        }
    });
}

/// matrixone#26924: the batches would have fitted, the table beside them did not.
#[test]
fn the_table_is_part_of_what_has_to_fit() {
    let rows = 250_000;
    let key = |factor: i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values((0..rows).map(|i| i * factor)))
    };
    let build = cut(table(2, vec![("a", key(1)), ("b", key(7))]), 8192);
    let ends: ArrayRef = Arc::new(Int64Array::from_iter_values([0, rows - 1]));
    let sevens: ArrayRef = Arc::new(Int64Array::from_iter_values([0, (rows - 1) * 7]));
    let probe = table(2, vec![("a", ends), ("b", sevens)]);
    let limit: usize = 8 << 20;
    assert!(build.bytes().unwrap() < limit);
    let written = Written::new(Inner, &build, &probe);
    run(&written.case(), move || async move {
        let around = Environment::greedy(limit, 8192).unwrap();
        let setting = written.setting(GraceHashJoinConfig::default());
        let outcome = collect(setting.start(&around).unwrap()).await.unwrap();
        outcome.end.unwrap();
        let rows: usize = outcome.batches.iter().map(RecordBatch::num_rows).sum();
        assert_eq!(rows, 2);
        let stats = outcome.stats;
        assert!(stats.spilled_rows > 0, "{stats:?}");
        assert!(
            stats.peak_bytes <= limit as u64 + stats.largest_batch_bytes,
            "{stats:?}"
        );
    });
}

/// starrocks#56491: everything on disk took more memory than nothing on disk.
#[test]
fn spilling_everything_takes_no_more_memory_than_spilling_nothing() {
    for join_type in [Full, RightSemi] {
        let case = Case {
            shape: Shape::Large,
            key: KeyKind::Wide,
            ..Case::new(join_type)
        };
        let expected = case.expected().unwrap();
        run(&case, move || async move {
            let mut peaks = Vec::new();
            for spill in [SpillPolicy::Pressure, SpillPolicy::All] {
                let fan_out = 16;
                let config = GraceHashJoinConfig::builder()
                    .with_spill(spill)
                    .with_fan_out(fan_out);
                let config = config.build().unwrap();
                let setting = case.setting_with(|join| join.with_config(config)).unwrap();
                let around = Environment::unlimited(1000).unwrap();
                let outcome = setting
                    .check(&around, &expected, Spills::May)
                    .await
                    .unwrap();
                peaks.push(outcome.stats.peak_bytes);
            }
            let buffers = 16 * (256 << 10);
            assert!(peaks[1] <= peaks[0] + buffers, "{peaks:?}");
        });
    }
}

/// datafusion#7931, spiceai#4216, datafusion#23032: long strings, one row that matches many.
#[test]
fn output_of_long_strings_comes_in_batches_of_bounded_bytes() {
    let mib = 1 << 20;
    let word = "x".repeat(mib);
    let long: ArrayRef = Arc::new(StringArray::from_iter_values(std::iter::repeat_n(
        &word, 40,
    )));
    let keys: ArrayRef = Arc::new(Int32Array::from(vec![7; 40]));
    let many = table(1, vec![("k", keys), ("w", long)]);
    let one = numbers([7]);
    for (join_type, build, probe) in [
        (Inner, &many, &one),
        (Inner, &one, &many),
        (Left, &many, &one),
        (Left, &many, &numbers([8])),
        (Full, &one, &many),
        (Right, &numbers([8]), &many),
        (LeftSemi, &many, &one),
        (RightSemi, &one, &many),
    ] {
        for spill in [SpillPolicy::Pressure, SpillPolicy::All] {
            let written = Written::new(join_type, build, probe);
            run(&written.case(), move || async move {
                let config = GraceHashJoinConfig::builder()
                    .with_spill(spill)
                    .with_fan_out(2);
                let setting = written.setting(config.build().unwrap());
                let around = Environment::greedy(64 * mib, 8192).unwrap();
                let outcome = collect(setting.start(&around).unwrap()).await.unwrap();
                outcome.end.unwrap();
                let bytes = |batch: &RecordBatch| {
                    let text = batch
                        .columns()
                        .iter()
                        .filter_map(|c| c.as_string_opt::<i32>());
                    text.flat_map(|text| text.iter().flatten().map(str::len))
                        .sum::<usize>()
                };
                let sizes: Vec<_> = outcome.batches.iter().map(bytes).collect();
                let rows: usize = outcome.batches.iter().map(RecordBatch::num_rows).sum();
                assert!(
                    rows >= 40 && sizes.iter().sum::<usize>() == 40 * mib,
                    "{sizes:?}"
                );
                let what = format!("{join_type:?}, {spill:?}: {sizes:?}");
                assert!(
                    sizes.len() >= 5 && sizes.iter().all(|s| *s <= 9 * mib),
                    "{what}"
                );
            });
        }
    }
}

/// datafusion#7931 again: a column that is too long for one array stays in pieces.
#[test]
fn a_column_that_is_too_long_for_one_array_stays_in_pieces() {
    let words = StringArray::from_iter_values((0..100).map(|i| format!("{i:030}")));
    let keys: ArrayRef = Arc::new(Int32Array::from_iter_values((0..100).map(|i| i % 30)));
    let build = cut(
        table(1, vec![("k", keys), ("w", Arc::new(words) as ArrayRef)]),
        7,
    );
    assert!(build.bytes().unwrap() > 3 << 10);
    let probe = cut(numbers(10..50), 9);
    for join_type in JOIN_TYPES {
        for spill in [SpillPolicy::Pressure, SpillPolicy::Half, SpillPolicy::All] {
            let written = Written::new(join_type, &build, &probe);
            let expected = written.oracle();
            run(&written.case(), move || async move {
                for most in [0, 1 << 10, usize::MAX] {
                    let config = GraceHashJoinConfig::builder()
                        .with_spill(spill)
                        .with_fan_out(2);
                    let config = config.build().unwrap().with_max_merged_bytes(most);
                    let around = Environment::unlimited(10).unwrap();
                    let setting = written.setting(config);
                    let checked = setting.check(&around, &expected, Spills::May).await;
                    checked.unwrap_or_else(|why| panic!("{join_type:?}, {most} bytes: {why}"));
                }
            });
        }
    }
}

/// A pool that notes what registers with it.
#[derive(Debug)]
struct Witness {
    inner: GreedyMemoryPool,
    consumers: std::sync::Mutex<Vec<(String, bool)>>,
}

impl std::fmt::Display for Witness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "witness({})", self.inner)
    }
}

impl MemoryPool for Witness {
    fn name(&self) -> &'static str {
        "witness"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        let seen = (consumer.name().to_string(), consumer.can_spill());
        self.consumers.lock().unwrap().push(seen);
        self.inner.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.inner.unregister(consumer);
        self.consumers
            .lock()
            .unwrap()
            .retain(|(name, _)| name != consumer.name());
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.inner.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.inner.shrink(reservation, shrink);
    }

    fn try_grow(
        &self,
        reservation: &MemoryReservation,
        additional: usize,
    ) -> datafusion_common::Result<()> {
        self.inner.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.inner.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.inner.memory_limit()
    }
}

/// datafusion#25250, datafusion#22036: one consumer a partition, which can spill, while it runs.
#[test]
fn a_partition_is_one_consumer_that_can_spill_and_only_while_it_runs() {
    let side = numbers(0..100);
    for spill in [SpillPolicy::Pressure, SpillPolicy::All] {
        let written = Written::new(Full, &side, &side);
        run(&written.case(), move || async move {
            use futures::StreamExt;
            let pool = Arc::new(Witness {
                inner: GreedyMemoryPool::new(64 << 20),
                consumers: std::sync::Mutex::default(),
            });
            let registered = || pool.consumers.lock().unwrap().clone();
            let around = Environment::new(Arc::<Witness>::clone(&pool), 10).unwrap();
            let config = GraceHashJoinConfig::builder().with_spill(spill).build();
            let mut stream = written.setting(config.unwrap()).start(&around).unwrap();
            assert!(registered().is_empty(), "before the first poll");
            stream.next().await.unwrap().unwrap();
            let now = registered();
            assert!(matches!(now.as_slice(), [(_, true)]), "{now:?}");
            while stream.next().await.is_some() {}
            drop(stream);
            around.becomes_clean().await.unwrap();
            assert!(registered().is_empty(), "after the end");
        });
    }
}

/// A build batch that is larger than the pool, and one of many rows that are not wide.
#[test]
fn a_batch_that_is_larger_than_the_memory_is_joined() {
    let rows: Vec<i32> = (0..60_000).collect();
    let words = StringArray::from_iter_values(rows.iter().map(|i| format!("{i:020}")));
    let keys: ArrayRef = Arc::new(Int32Array::from(rows));
    let build: Table = table(1, vec![("k", keys), ("w", Arc::new(words) as ArrayRef)]);
    let probe = numbers(59_990..60_010);
    for (join_type, rows) in [(Inner, 10), (Right, 20), (LeftSemi, 10), (RightSemi, 10)] {
        for (build, probe) in [(&build, &probe), (&probe, &build)] {
            let written = Written::new(join_type, build, probe).filter(FilterKind::None);
            run(&written.case(), move || async move {
                let setting = written.setting(GraceHashJoinConfig::default());
                let around = Environment::greedy(1 << 20, 8192).unwrap();
                let outcome = collect(setting.start(&around).unwrap()).await.unwrap();
                outcome.end.unwrap();
                let got: usize = outcome.batches.iter().map(RecordBatch::num_rows).sum();
                let expected = match join_type {
                    Right => written.probe.rows().max(rows),
                    _ => rows,
                };
                assert_eq!(got, expected, "{join_type:?}");
            });
        }
    }
}

/// What went to disk comes back before the first probe row if there is room again by then.
#[test]
fn buckets_come_back_when_a_neighbour_gives_its_memory_back_in_time() {
    for join_type in [Full, LeftSemi] {
        let case = Case {
            shape: Shape::Large,
            key: KeyKind::Wide,
            ..Case::new(join_type)
        };
        let expected = case.expected().unwrap();
        run(&case, move || async move {
            let mib = 1 << 20;
            let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(20 * mib));
            let neighbour = MemoryConsumer::new("neighbour").register(&pool);
            neighbour.try_grow(17 * mib).unwrap();
            let around = Environment::new(pool, 100).unwrap();
            let setting = case.setting().unwrap();
            let schema = Arc::clone(&setting.build.schema);
            let last = RecordBatch::new_empty(Arc::clone(&schema));
            let batches = setting.build.batches.clone().into_iter();
            let batches = batches.map(Ok).chain(std::iter::once_with(move || {
                drop(neighbour);
                Ok(last)
            }));
            let build = RecordBatchStreamAdapter::new(schema, futures::stream::iter(batches));
            let probe = FaultyInput::new(
                Arc::clone(&setting.probe.schema),
                setting.probe.batches.clone(),
            );
            let stream = setting.start_with(&around, Box::pin(build), Box::pin(probe));
            let outcome = collect(stream.unwrap()).await.unwrap();
            outcome.end.as_ref().unwrap();
            outcome.is_right(&expected, &around).unwrap();
            let stats = outcome.stats;
            assert!(
                stats.spilled_rows > 0 && stats.reloaded_buckets > 0,
                "{join_type:?}: {stats:?}"
            );
            drop(outcome);
            around.becomes_clean().await.unwrap();
        });
    }
}

/// (w, v, k) and (k, v): keys and values have other places on the other side.
fn unlike_sides() -> (Table, Table) {
    let wide = StringArray::from_iter_values((0..400).map(|i| format!("{i:08192}")));
    let number = |rows: i32, modulo: i32| -> ArrayRef {
        Arc::new(Int32Array::from_iter_values((0..rows).map(|i| i % modulo)))
    };
    let (wide, v, k): (ArrayRef, _, _) = (Arc::new(wide), number(400, 7), number(400, 50));
    let build = cut(table(2, vec![("w", wide), ("v", v), ("k", k)]), 20);
    let probe = cut(
        table(0, vec![("k", number(60, 60)), ("v", number(60, 11))]),
        9,
    );
    (build, probe)
}

/// The smaller probe side is loaded instead, with its keys in another place than the build side's.
#[test]
fn sides_that_swap_their_roles_keep_their_own_keys_and_columns() {
    let (build, probe) = unlike_sides();
    let rule = Rule::over(&[(JoinSide::Right, 1), (JoinSide::Left, 1)], |v| {
        Some(v[1]? < v[0]?)
    });
    for join_type in JOIN_TYPES {
        for filter in [None, Some(&rule)] {
            let join = GraceHashJoin::builder(Arc::clone(&build.schema), Arc::clone(&probe.schema))
                .with_on(vec![(2, 0)])
                .with_join_type(join_type)
                .with_filter(filter.cloned())
                .with_config(
                    GraceHashJoinConfig::builder()
                        .with_fan_out(2)
                        .build()
                        .unwrap(),
                )
                .build();
            let setting = Setting {
                join: join.unwrap(),
                build: build.clone(),
                probe: probe.clone(),
            };
            let question = Question {
                build_schema: &build.schema,
                probe_schema: &probe.schema,
                build: &build.batches,
                probe: &probe.batches,
                on: &[(2, 0)],
                join_type,
                null_equality: NullEquality::NullEqualsNothing,
                null_aware: false,
                filter: filter.map(AsRef::as_ref),
                projection: None,
            };
            let expected = question.answer().unwrap();
            run(&Case::new(join_type), move || async move {
                let around = Environment::greedy(1 << 20, 8192).unwrap();
                let outcome = setting
                    .check(&around, &expected, Spills::May)
                    .await
                    .unwrap();
                let stats = outcome.stats;
                // Of the others, nothing wide is kept of the build side.
                let is_wide = !matches!(join_type, RightSemi | RightAnti | RightMark);
                assert!(
                    !is_wide || stats.pairs_swapped > 0,
                    "{join_type:?}: {stats:?}"
                );
            });
        }
    }
}

/// Rows whose keys are NULL are decided where they come in, and never written.
#[test]
fn rows_with_null_keys_are_not_written() {
    // Enough keys for each bucket to be on disk, that of a NULL's hash too.
    let build: Vec<_> = (1..=40).map(Some).chain([None, None]).collect();
    let build = keys(&build);
    let probe = keys(&[None, None, Some(1), None, None, None]);
    for (join_type, rows) in [(Inner, 1), (Full, 47), (LeftAnti, 41), (RightMark, 6)] {
        let written = Written::new(join_type, &build, &probe);
        let expected = written.oracle();
        assert_eq!(expected.len(), rows);
        run(&written.case(), move || async move {
            let config = GraceHashJoinConfig::builder()
                .with_spill(SpillPolicy::All)
                .with_fan_out(4);
            let setting = written.setting(config.build().unwrap());
            let around = Environment::unlimited(8192).unwrap();
            let outcome = setting
                .check(&around, &expected, Spills::Must)
                .await
                .unwrap();
            // The forty of the build side, and the 1 of the other.
            assert_eq!(outcome.stats.spilled_rows, 41, "{join_type:?}");
            // Those with NULL keys did not have to be told from them by the Bloom filter.
            assert_eq!(outcome.stats.bloom_misses, 0, "{join_type:?}");
        });
    }
}
