//! Hash quality, recursion and skew: no distribution of keys ends in an error, in work that does not
//! help, or in a bucket that gets everything.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, StringArray};
use arrow::datatypes::Int64Type;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};
use datafusion_common::JoinType::{self, Full, Inner, Left, LeftAnti, LeftMark, RightMark};
use datafusion_execution::TaskContext;
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{
    Case, Environment, JOIN_TYPES, KeyKind, Outcome, Pressure, Shape, Spills, Table, collect,
};
use grace_hash_join::{GraceHashJoinConfig, JoinStats, SpillPolicy};

use super::{Written, cut, numbers, table};
use crate::run;

/// Rows of an Int64 key and a wide word, in batches of 500.
fn wide(keys: impl IntoIterator<Item = i64>, width: usize) -> Table {
    let keys = Int64Array::from_iter_values(keys);
    let words = keys.values().iter().map(|key| format!("{key:0width$}"));
    let words: ArrayRef = Arc::new(StringArray::from_iter_values(words));
    let keys: ArrayRef = Arc::new(keys);
    cut(table(1, vec![("k", keys), ("w", words)]), 500)
}

/// Runs a join in a greedy pool, and counts rows: the input is too large for the oracle. Each output
/// row of a pair must have the same key and the same word on both sides.
fn in_pool(written: &Written, pool: usize, config: GraceHashJoinConfig) -> (usize, JoinStats) {
    let written = written.clone();
    run(&written.case(), move || async move {
        let environment = Environment::greedy(pool, 1000).unwrap();
        let stream = written.setting(config).start(&environment).unwrap();
        let outcome = collect(stream).await.unwrap();
        outcome.end.as_ref().unwrap();
        let rows = rows_of_equal_keys(&outcome);
        assert_eq!(outcome.stats.output_rows, rows as u64);
        let most = pool as u64 + outcome.stats.largest_batch_bytes;
        assert!(outcome.stats.peak_bytes <= most, "{:?}", outcome.stats);
        let stats = outcome.stats;
        drop(outcome);
        environment.becomes_clean().await.unwrap();
        (rows, stats)
    })
}

fn rows_of_equal_keys(outcome: &Outcome) -> usize {
    let mut rows = 0;
    for batch in &outcome.batches {
        rows += batch.num_rows();
        if let [build, build_word, probe, probe_word] = batch.columns() {
            let (build, probe) = (
                build.as_primitive::<Int64Type>(),
                probe.as_primitive::<Int64Type>(),
            );
            let both = build
                .iter()
                .zip(probe)
                .filter(|(b, p)| b.is_some() && p.is_some());
            assert!(both.into_iter().all(|(b, p)| b == p));
            let words = build_word
                .as_string::<i32>()
                .iter()
                .zip(probe_word.as_string::<i32>());
            let mut words = words.filter(|(b, p)| b.is_some() && p.is_some());
            assert!(words.all(|(b, p)| b == p));
        }
    }
    rows
}

fn few_buckets(max_level: u8) -> GraceHashJoinConfig {
    GraceHashJoinConfig::builder()
        .with_fan_out(2)
        .with_max_level(max_level)
        .build()
        .unwrap()
}

/// databend#20512: nobody had tried the second level.
#[test]
fn a_pool_far_too_small_splits_three_times_and_more() {
    let side = wide(0..20_000, 200);
    let written = Written::new(Inner, &side, &side);
    let (rows, stats) = in_pool(&written, 600 << 10, few_buckets(6));
    assert_eq!(rows, 20_000);
    assert!(stats.max_level >= 3, "{stats:?}");
    // As deep as it may, and then in chunks.
    let (rows, stats) = in_pool(&written, 600 << 10, few_buckets(1));
    assert_eq!(rows, 20_000);
    assert!(stats.max_level == 2 && stats.pairs_chunked > 0, "{stats:?}");
    let anti = Written::new(LeftAnti, &side, &wide(10_000..30_000, 200));
    let (rows, stats) = in_pool(&anti, 600 << 10, few_buckets(6));
    assert_eq!(rows, 10_000);
    assert!(stats.max_level >= 2, "{stats:?}");
}

/// `AsterixDB`: after the second round the table was no better than a nested loop.
#[test]
fn a_table_of_rows_that_were_split_twice_compares_few_keys() {
    let side = wide(0..10_000, 8);
    let written = Written::new(Inner, &side, &side);
    let config = GraceHashJoinConfig::builder()
        .with_fan_out(8)
        .with_spill(SpillPolicy::Split(2))
        .build()
        .unwrap();
    let (rows, stats) = in_pool(&written, 64 << 20, config);
    assert_eq!(rows, 10_000);
    assert!(
        stats.max_level >= 2 && stats.candidates <= 30_000,
        "{stats:?}"
    );
}

/// `PostgreSQL`'s batch explosion, duckdb#15114, Impala's error codes: one key larger than memory.
#[test]
fn one_key_of_eight_times_the_memory_is_neither_an_error_nor_split() {
    let build = wide(std::iter::repeat_n(7, 100_000), 40);
    let probe = wide([7], 40);
    let bytes = build.bytes().unwrap();
    let written = Written::new(Inner, &build, &probe);
    let (rows, stats) = in_pool(&written, bytes / 8, GraceHashJoinConfig::default());
    assert_eq!(rows, 100_000);
    assert_eq!(stats.pairs_split, 0, "{stats:?}");
    assert!(stats.spill_count <= 32, "{stats:?}");
    assert!(stats.spilled_bytes <= 2 * bytes as u64, "{stats:?}");
    // The probe side is as large: neither side can be loaded.
    let probe = wide(std::iter::repeat_n(7, 100), 40 << 10);
    let build = wide(std::iter::repeat_n(7, 100), 40 << 10);
    let written = Written::new(Full, &build, &probe);
    let (rows, stats) = in_pool(&written, 1 << 20, GraceHashJoinConfig::default());
    assert_eq!(rows, 10_000);
    assert_eq!(stats.pairs_split, 0, "{stats:?}");
    assert!(stats.pairs_chunked == 1, "{stats:?}");
}

/// clickhouse#110527: nine tenths of the rows have one key.
#[test]
fn only_the_bucket_of_the_hot_key_is_split_again() {
    let hot = |from: i64| (0..10_000).map(move |row| if row % 10 == 0 { from + row } else { 7 });
    let (build, probe) = (wide(hot(10_000), 800), wide(10_000..20_000, 800));
    let bytes = build.bytes().unwrap();
    for (join_type, rows) in [(Inner, 1000), (Left, 10_000), (Full, 19_000)] {
        let written = Written::new(join_type, &build, &probe);
        let (got, stats) = in_pool(&written, bytes / 8, GraceHashJoinConfig::default());
        assert_eq!(got, rows);
        assert!(
            stats.spilled_rows > 0 && stats.pairs_split <= 6,
            "{stats:?}"
        );
        assert!(stats.spilled_bytes <= 4 * bytes as u64, "{stats:?}");
    }
}

/// Hashes that all collide, or that have one bit, with keys that differ: nothing can be split.
#[test]
fn different_keys_of_one_hash_are_joined_in_chunks() {
    let (build, probe) = (wide(0..800, 2500), wide(400..1200, 2500));
    for mask in [0, 1, 1 << 63] {
        for (join_type, rows) in [(Inner, 400), (Full, 1200), (LeftMark, 800)] {
            let written = Written::new(join_type, &build, &probe);
            let config = GraceHashJoinConfig::default().with_hash_mask(mask);
            let (got, stats) = in_pool(&written, 700 << 10, config);
            assert_eq!(got, rows, "{join_type:?}, {mask:x}");
            assert!(stats.pairs_split <= 8, "{stats:?}");
            assert!(stats.spilled_rows > 0, "{stats:?}");
        }
    }
}

/// IMPALA-2314: all children of a split but one are empty.
#[test]
fn a_split_that_leaves_all_children_but_one_empty_is_no_special_case() {
    for join_type in JOIN_TYPES {
        let case = Case {
            shape: Shape::OneKey,
            pressure: Pressure::SplitAgain,
            ..Case::new(join_type)
        };
        let expected = case.expected().unwrap();
        run(&case, move || async move {
            let config = GraceHashJoinConfig::builder()
                .with_fan_out(16)
                .with_spill(SpillPolicy::Split(3))
                .build()
                .unwrap();
            let setting = case.setting_with(|join| join.with_config(config)).unwrap();
            let environment = case.environment().unwrap();
            let stats = setting.check(&environment, &expected, Spills::Must).await;
            let stats = stats.unwrap().stats;
            assert!(stats.max_level >= 3, "{stats:?}");
            assert!(stats.spill_count <= 2 * 3, "{stats:?}");
        });
    }
}

/// velox#5528, datafusion#16434: numbers of rows that do not fit their type. The cap stands for 2^32.
#[test]
fn more_rows_than_a_table_can_number_do_not_fit_whatever_memory_says() {
    let side = numbers(0..300);
    let one_key = numbers([7; 300]);
    let few = numbers([7, 8, 7]);
    for cap in [1, 2, 255, 256, 299, 300] {
        for spill in [SpillPolicy::Pressure, SpillPolicy::All] {
            for (join_type, build, probe, rows) in [
                (Inner, &side, &side, 300),
                (Full, &one_key, &few, 601),
                (RightMark, &one_key, &one_key, 300),
                (LeftAnti, &side, &few, 298),
            ] {
                let written = Written::new(join_type, build, probe);
                let expected = written.oracle();
                assert_eq!(expected.len(), rows);
                run(&written.case(), move || async move {
                    let config = GraceHashJoinConfig::builder()
                        .with_spill(spill)
                        .with_fan_out(4);
                    let config = config.build().unwrap().with_max_rows(cap);
                    let environment = Environment::unlimited(50).unwrap();
                    let setting: Setting = written.setting(config);
                    let spills = match spill {
                        SpillPolicy::Pressure if cap < 300 => Spills::Must,
                        SpillPolicy::Pressure => Spills::MustNot,
                        _ => Spills::Must,
                    };
                    let checked = setting.check(&environment, &expected, spills).await;
                    checked.unwrap_or_else(|why| panic!("{join_type:?}, at most {cap}: {why}"));
                });
            }
        }
    }
}

/// How many build rows with a key each of 16 buckets gets.
fn rows_by_bucket(build: &Table) -> Vec<u64> {
    let empty = Table {
        schema: Arc::clone(&build.schema),
        batches: Vec::new(),
        v: build.v,
    };
    let count = |bucket| {
        let written = Written::new(Inner, build, &empty).columns(&[]);
        run(&written.case(), move || async move {
            let config = GraceHashJoinConfig::builder()
                .with_fan_out(16)
                .with_spill(SpillPolicy::Bucket(bucket))
                .build();
            let environment = Environment::unlimited(8192).unwrap();
            let stream = written
                .setting(config.unwrap())
                .start(&environment)
                .unwrap();
            let outcome = collect(stream).await.unwrap();
            outcome.end.unwrap();
            outcome.stats.spilled_rows
        })
    };
    (0..16).map(count).collect()
}

fn assert_even(build: &Table, what: &str) {
    let counts = rows_by_bucket(build);
    let (total, most) = (counts.iter().sum::<u64>(), *counts.iter().max().unwrap());
    assert!(total >= 500, "{what}: {counts:?}");
    // Of 1,000 different keys in 16 buckets: half as much again is four standard deviations.
    assert!(most * 16 < total * 2, "{what}: {counts:?}");
}

/// ASTERIXDB-2783: the rows of one of an exchange's partitions agree on a part of their hash. (That
/// the buckets of every type of key are even at every level is a test of `src/keys/hash.rs`.)
#[test]
fn keys_below_an_exchange_fill_all_buckets() {
    for (kind, partitions) in [
        (KeyKind::Int64, 8),
        (KeyKind::Pair, 13),
        (KeyKind::Dictionary, 2),
    ] {
        let codes: Vec<_> = (0..1000 * partitions).map(Some).collect();
        let arrays = kind.arrays(&codes).unwrap();
        let columns = arrays.len();
        let whole = table(
            columns,
            arrays.into_iter().map(|array| ("k", array)).collect(),
        );
        let part = run(&Case::new(Inner), move || {
            exchanged(whole, usize::from(partitions))
        });
        assert_even(&part, &format!("{kind:?} below {partitions} partitions"));
    }
}

/// The rows that DataFusion's own exchange sends to its second partition.
async fn exchanged(whole: Table, partitions: usize) -> Table {
    use datafusion::datasource::memory::MemorySourceConfig;
    let schema = Arc::clone(&whole.schema);
    let source = MemorySourceConfig::try_new_exec(
        std::slice::from_ref(&whole.batches),
        Arc::clone(&schema),
        None,
    );
    let by = (0..whole.v)
        .map(|i| Arc::new(Column::new("k", i)) as _)
        .collect();
    let exchange = RepartitionExec::try_new(source.unwrap(), Partitioning::Hash(by, partitions));
    let stream = exchange
        .unwrap()
        .execute(1, Arc::new(TaskContext::default()));
    let batches = datafusion::physical_plan::common::collect(stream.unwrap()).await;
    Table {
        schema,
        batches: batches.unwrap(),
        v: whole.v,
    }
}

/// What comes in by bucket of another join of ours is even in the next one's buckets too: same bits.
#[test]
fn rows_that_one_join_hands_out_bucket_by_bucket_are_spread_by_the_next() {
    let side = cut(numbers(0..2000), 500);
    let written = Written::new(JoinType::LeftSemi, &side, &side);
    let config = GraceHashJoinConfig::builder()
        .with_spill(SpillPolicy::All)
        .with_fan_out(16)
        .build()
        .unwrap();
    let batches = run(&written.case(), move || async move {
        let environment = Environment::unlimited(100).unwrap();
        let stream = written.setting(config).start(&environment).unwrap();
        collect(stream).await.unwrap().batches
    });
    let handed_out = Table {
        schema: batches[0].schema(),
        batches,
        v: 1,
    };
    assert_eq!(handed_out.rows(), 2000);
    assert_even(&handed_out, "handed out");
}
