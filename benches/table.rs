//! Finding matches, without copying any row: keys are hashed, looked up, and compared. Ids are
//! `table/{build,probe}/{keys}/{engine}`.
//!
//! | axis | values | why |
//! |---|---|---|
//! | keys | dense, int64, text, twocolumns | a direct index is possible; one word; bytes; two passes |
//! | build rows of a key | 1, 10, 100 | chains of one; longer chains |
//! | hits | all, 10% | most lookups end at the directory |
//! | engine | table, direct, joinhashmap, hashbrown | ours by hash; ours by key, for dense keys; what `HashJoinExec` uses; a plain map from hash to the list of rows |
//!
//! A million build rows, far beyond the caches of a core; probed in batches of 8,192 rows. All
//! engines compare the keys of what their map gives in the same way, and each run asserts how many
//! pairs there are.

#![expect(
    clippy::expect_used,
    reason = "a bench that cannot go on ends by panicking"
)]

mod common;

use std::hint::black_box;

use ahash::RandomState;
use arrow::array::{ArrayRef, UInt32Array, UInt64Array};
use arrow::compute::kernels::cmp::eq;
use arrow::compute::{and, take};
use common::{Key, shuffle};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use datafusion::common::hash_utils::{RandomState as DataFusionState, create_hashes};
use datafusion::physical_plan::joins::join_hash_map::{JoinHashMapType, JoinHashMapU32};
use grace_hash_join::testing::Rng;
use grace_hash_join::testing::parts::Lookup;
use hashbrown::HashMap;

const ROWS: u64 = 1_000_000;

/// Rows of a batch of keys.
const BATCH_ROWS: usize = 8192;

/// A map from keys to rows.
trait Map: Sized {
    const NAME: &'static str;
    fn build(keys: &[ArrayRef]) -> Option<Self>;
    /// How many pairs a batch of keys has.
    fn pairs(&self, keys: &[ArrayRef]) -> usize;
}

struct Table(Lookup);

impl Map for Table {
    const NAME: &'static str = "table";
    fn build(keys: &[ArrayRef]) -> Option<Self> {
        Some(Self(Lookup::by_hash(keys.to_vec()).expect("a table")))
    }
    fn pairs(&self, keys: &[ArrayRef]) -> usize {
        self.0.pairs(keys).expect("a lookup")
    }
}

struct Direct(Lookup);

impl Map for Direct {
    const NAME: &'static str = "direct";
    fn build(keys: &[ArrayRef]) -> Option<Self> {
        Some(Self(Lookup::by_key(keys.to_vec())?))
    }
    fn pairs(&self, keys: &[ArrayRef]) -> usize {
        self.0.pairs(keys).expect("a lookup")
    }
}

struct DataFusion {
    map: JoinHashMapU32,
    keys: Vec<ArrayRef>,
}

fn hashes(keys: &[ArrayRef]) -> Vec<u64> {
    let rows = keys.first().map_or(0, |column| column.len());
    let mut hashes = vec![0; rows];
    create_hashes(keys, &DataFusionState::with_seed(0), &mut hashes).expect("hashes");
    hashes
}

/// How many of the candidate pairs have equal keys: gathered and compared column by column.
fn equal(loaded: &[ArrayRef], build: Vec<u64>, keys: &[ArrayRef], probe: Vec<u32>) -> usize {
    let (build, probe) = (UInt64Array::from(build), UInt32Array::from(probe));
    let columns = loaded.iter().zip(keys).map(|(loaded, keys)| {
        let loaded = take(loaded, &build, None).expect("rows");
        let keys = take(keys, &probe, None).expect("rows");
        eq(&loaded, &keys).expect("a comparison")
    });
    let all = columns.reduce(|a, b| and(&a, &b).expect("a conjunction"));
    all.map_or(0, |all| all.true_count())
}

impl Map for DataFusion {
    const NAME: &'static str = "joinhashmap";
    fn build(keys: &[ArrayRef]) -> Option<Self> {
        let hashes = hashes(keys);
        let mut map = JoinHashMapU32::with_capacity(hashes.len());
        map.update_from_iter(Box::new(hashes.iter().enumerate().rev()), 0);
        let keys = keys.to_vec();
        Some(Self { map, keys })
    }
    fn pairs(&self, keys: &[ArrayRef]) -> usize {
        let hashes = hashes(keys);
        let (mut next, mut pairs) = (Some((0, None)), 0);
        while let Some(from) = next {
            let (mut probe, mut build) = (Vec::new(), Vec::new());
            next = self.map.get_matched_indices_with_limit_offset(
                &hashes, None, BATCH_ROWS, from, &mut probe, &mut build,
            );
            pairs += equal(&self.keys, build, keys, probe);
        }
        pairs
    }
}

struct Hashbrown {
    map: HashMap<u64, Vec<u32>, RandomState>,
    keys: Vec<ArrayRef>,
}

impl Map for Hashbrown {
    const NAME: &'static str = "hashbrown";
    fn build(keys: &[ArrayRef]) -> Option<Self> {
        let state = RandomState::with_seeds(1, 2, 3, 4);
        let mut map: HashMap<u64, Vec<u32>, RandomState> = HashMap::with_hasher(state);
        for (row, hash) in (0..).zip(hashes(keys)) {
            map.entry(hash).or_default().push(row);
        }
        let keys = keys.to_vec();
        Some(Self { map, keys })
    }
    fn pairs(&self, keys: &[ArrayRef]) -> usize {
        let (mut probe, mut build) = (Vec::new(), Vec::new());
        for (row, hash) in (0..).zip(hashes(keys)) {
            for loaded in self.map.get(&hash).into_iter().flatten() {
                probe.push(row);
                build.push(u64::from(*loaded));
            }
        }
        equal(&self.keys, build, keys, probe)
    }
}

/// Keys to build from, batches of keys to look up, and how many pairs there are.
struct Case {
    key: Key,
    rows_per_key: u64,
    one_hit_in: u64,
    build: Vec<ArrayRef>,
    probe: Vec<Vec<ArrayRef>>,
    pairs: usize,
}

impl Case {
    fn new(key: Key, rows_per_key: u64, one_hit_in: u64) -> Self {
        let keys = ROWS / rows_per_key;
        let mut rng = Rng::new(7);
        let mut build: Vec<u64> = (0..ROWS).map(|row| row % keys).collect();
        shuffle(&mut build, &mut rng);
        let draw = |_| rng.bits() % (keys * one_hit_in);
        let probe: Vec<u64> = (0..ROWS / rows_per_key).map(draw).collect();
        let hits = probe.iter().filter(|key| **key < keys).count();
        let rows_per = usize::try_from(rows_per_key).unwrap_or_default();
        Self {
            key,
            rows_per_key,
            one_hit_in,
            build: key.columns(&build),
            probe: probe
                .chunks(BATCH_ROWS)
                .map(|keys| key.columns(keys))
                .collect(),
            pairs: hits * rows_per,
        }
    }

    fn measure<M: Map>(&self, criterion: &mut Criterion) {
        let Some(map) = M::build(&self.build) else {
            return;
        };
        let name = format!("{:?}-{}", self.key, self.rows_per_key).to_lowercase();
        if self.one_hit_in == 1 {
            let mut group = criterion.benchmark_group(format!("table/build/{name}"));
            group.sample_size(10).throughput(Throughput::Elements(ROWS));
            group.bench_function(BenchmarkId::from_parameter(M::NAME), |bencher| {
                bencher.iter_with_large_drop(|| M::build(black_box(&self.build)));
            });
            group.finish();
        }
        let hits = if self.one_hit_in == 1 { "all" } else { "10%" };
        let mut group = criterion.benchmark_group(format!("table/probe/{name}-{hits}"));
        let rows: usize = self
            .probe
            .iter()
            .filter_map(|keys| keys.first())
            .map(|k| k.len())
            .sum();
        group
            .sample_size(10)
            .throughput(Throughput::Elements(rows as u64));
        group.bench_function(BenchmarkId::from_parameter(M::NAME), |bencher| {
            bencher.iter(|| {
                let pairs: usize = self.probe.iter().map(|keys| map.pairs(keys)).sum();
                assert_eq!(pairs, self.pairs);
            });
        });
        group.finish();
    }
}

fn table(criterion: &mut Criterion) {
    for key in [Key::Dense, Key::Int64, Key::Text, Key::TwoColumns] {
        for rows_per_key in [1, 10, 100] {
            for one_hit_in in [1, 10] {
                let case = Case::new(key, rows_per_key, one_hit_in);
                case.measure::<Table>(criterion);
                if key == Key::Dense {
                    case.measure::<Direct>(criterion);
                }
                case.measure::<DataFusion>(criterion);
                case.measure::<Hashbrown>(criterion);
            }
        }
    }
}

criterion_group!(benches, table);
criterion_main!(benches);
