//! What all benches share: shapes by name, engines by name, a run that counts its rows, and runs of
//! several engines in turn.
//!
//! A shape makes both inputs from a fixed seed and knows, from the keys alone, how many rows each
//! join type gives. All engines read the same batches in the same runtime, one partition each:
//! threads would measure the scheduler.

#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each bench uses its part of this file"
)]

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{
    ArrayRef, Decimal128Array, DictionaryArray, Int32Array, Int64Array, RecordBatch, StringArray,
    StringViewArray,
};
use arrow::datatypes::{Int32Type, SchemaRef};
use datafusion::common::{JoinType, Result};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::expressions::Column;
use datafusion::physical_plan::joins::{HashJoinExec, HashJoinExecBuilder, PartitionMode};
use futures::StreamExt;
use grace_hash_join::GraceHashJoinExec;
use grace_hash_join::testing::Rng;

/// Rows of an input batch: DataFusion's default.
const BATCH_ROWS: usize = 8192;

/// An odd factor is a bijection of 64 bits: distinct keys stay distinct.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a join key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// 64-bit keys 0, 1, 2, ...: `HashJoinExec` has an index of its own for them.
    Dense,
    /// 32-bit keys all over their range.
    Int32,
    /// 64-bit keys all over their range: the ordinary case.
    Int64,
    /// Text of 24 bytes.
    Text,
    /// The same, as views.
    Utf8View,
    /// A 64-bit key and a 32-bit one.
    TwoColumns,
    /// A decimal of 128 bits.
    Decimal,
    /// Text of 24 bytes, one of its kind in each batch's dictionary.
    Dictionary,
}

impl Key {
    pub(crate) const ALL: [Self; 8] = [
        Self::Dense,
        Self::Int32,
        Self::Int64,
        Self::Text,
        Self::Utf8View,
        Self::TwoColumns,
        Self::Decimal,
        Self::Dictionary,
    ];

    /// The key columns' arrays for key numbers.
    pub(crate) fn columns(self, numbers: &[u64]) -> Vec<ArrayRef> {
        let spread = |number: &u64| number.wrapping_mul(SPREAD).cast_signed();
        let low = |number: &u64| u32::try_from(*number & u64::from(u32::MAX)).unwrap_or(0);
        let spread_low = |number: &u64| low(&low(number).wrapping_mul(0x9e37_79b1).into());
        let texts = || numbers.iter().map(|number| format!("{number:024}"));
        let one: ArrayRef = match self {
            Self::Dense => Arc::new(Int64Array::from_iter_values(
                numbers.iter().map(|number| number.cast_signed()),
            )),
            Self::Int32 => Arc::new(Int32Array::from_iter_values(
                numbers
                    .iter()
                    .map(|number| spread_low(number).cast_signed()),
            )),
            Self::Int64 => Arc::new(Int64Array::from_iter_values(numbers.iter().map(spread))),
            Self::Text => Arc::new(StringArray::from_iter_values(texts())),
            Self::Utf8View => Arc::new(StringViewArray::from_iter_values(texts())),
            Self::TwoColumns => {
                // Neither column alone tells two keys apart.
                let high = Int64Array::from_iter_values(numbers.iter().map(|n| spread(&(n / 7))));
                let low = Int32Array::from_iter_values(
                    numbers
                        .iter()
                        .map(|number| low(&(number % 7)).cast_signed()),
                );
                return vec![Arc::new(high), Arc::new(low)];
            }
            Self::Decimal => Arc::new(Decimal128Array::from_iter_values(
                numbers
                    .iter()
                    .map(|number| i128::from(spread(number)) * 100),
            )),
            Self::Dictionary => {
                let texts: Vec<String> = texts().collect();
                let dictionary: DictionaryArray<Int32Type> =
                    texts.iter().map(String::as_str).collect();
                Arc::new(dictionary)
            }
        };
        vec![one]
    }
}

/// How many rows of the two sides have one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pairing {
    /// One build row, one probe row: half as many probe rows as elsewhere.
    OneToOne,
    /// One build row, two probe rows in the mean.
    OneToMany,
    /// Ten build rows.
    TenToMany,
    /// A hundred build rows.
    ManyToMany,
}

impl Pairing {
    /// Build rows of one key.
    fn rows_per_key(self) -> u64 {
        match self {
            Self::OneToOne | Self::OneToMany => 1,
            Self::TenToMany => 10,
            Self::ManyToMany => 100,
        }
    }
}

/// What comes with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// A number.
    Narrow,
    /// A number and a text of 16 bytes.
    Mixed,
    /// Four numbers and texts of 16 and 40 bytes.
    Wide,
}

/// What the two inputs look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) key: Key,
    pub(crate) pairing: Pairing,
    /// Of how many probe rows one has a match.
    pub(crate) one_hit_in: u64,
    pub(crate) payload: Payload,
}

impl Shape {
    /// Each build key once, keys 0, 1, 2, ...; each probe row has one match.
    pub(crate) const DENSE: Self = Self {
        key: Key::Dense,
        ..Self::SPARSE
    };
    /// The same with keys all over the range of 64 bits: the ordinary case.
    pub(crate) const SPARSE: Self = Self {
        key: Key::Int64,
        pairing: Pairing::OneToMany,
        one_hit_in: 1,
        payload: Payload::Mixed,
    };
    /// As `SPARSE`, but one probe row in ten has a match.
    pub(crate) const SELECTIVE: Self = Self {
        one_hit_in: 10,
        ..Self::SPARSE
    };
    /// Ten build rows a key; each probe row has ten matches.
    pub(crate) const REPEATED: Self = Self {
        pairing: Pairing::TenToMany,
        ..Self::SPARSE
    };
    /// As `SPARSE`, with text keys of 24 bytes.
    pub(crate) const TEXT: Self = Self {
        key: Key::Text,
        ..Self::SPARSE
    };

    /// Both inputs of this shape.
    ///
    /// # Errors
    /// Only if arrow refuses the arrays.
    pub(crate) fn inputs(self, build_rows: u64, probe_rows: u64) -> Result<Inputs> {
        let keys = build_rows / self.pairing.rows_per_key();
        let mut rng = Rng::new(42);
        let mut build: Vec<u64> = (0..build_rows).map(|row| row % keys).collect();
        shuffle(&mut build, &mut rng);
        let probe = self.probe_keys(keys, probe_rows, &mut rng);
        let hits = probe.iter().filter(|key| **key < keys).count();
        Ok(Inputs {
            build: batches(self, &build, "b")?,
            probe: batches(self, &probe, "p")?,
            key_columns: self.key.columns(&[]).len(),
            facts: Facts {
                hits,
                probe: probe.len(),
                build_hit: hit_rows(&build, &probe, keys),
                build: build.len(),
                rows_per_key: build.len() / usize::try_from(keys).unwrap_or(usize::MAX),
            },
        })
    }

    /// Key numbers below `keys` have matches, the others have none.
    fn probe_keys(self, keys: u64, rows: u64, rng: &mut Rng) -> Vec<u64> {
        if self.pairing == Pairing::OneToOne {
            let mut probe: Vec<u64> = (0..keys).map(|key| key * self.one_hit_in).collect();
            shuffle(&mut probe, rng);
            return probe;
        }
        let draw = |_| rng.bits() % (keys * self.one_hit_in);
        (0..rows).map(draw).collect()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairing = match self.pairing {
            Pairing::OneToOne => "1:1",
            Pairing::OneToMany => "1:n",
            Pairing::TenToMany => "10:n",
            Pairing::ManyToMany => "100:n",
        };
        let hits = match self.one_hit_in {
            1 => "all",
            10 => "10%",
            _ => "0.1%",
        };
        let (key, payload) = (self.key, self.payload);
        let name = format!("{key:?}-{pairing}-{hits}-{payload:?}");
        f.write_str(&name.to_lowercase())
    }
}

/// The batches of both inputs, and what must come out.
pub(crate) struct Inputs {
    build: Vec<RecordBatch>,
    probe: Vec<RecordBatch>,
    /// The first columns of both sides.
    key_columns: usize,
    facts: Facts,
}

/// Counted from the key numbers, without any join.
struct Facts {
    /// Probe rows that have a match.
    hits: usize,
    probe: usize,
    /// Build rows that have a match.
    build_hit: usize,
    build: usize,
    rows_per_key: usize,
}

impl Inputs {
    /// How many rows the join gives.
    pub(crate) fn expected(&self, join_type: JoinType) -> usize {
        let facts = &self.facts;
        let pairs = facts.hits * facts.rows_per_key;
        match join_type {
            JoinType::Inner => pairs,
            JoinType::Left => pairs + facts.build - facts.build_hit,
            JoinType::Right => pairs + facts.probe - facts.hits,
            JoinType::Full => pairs + facts.build - facts.build_hit + facts.probe - facts.hits,
            JoinType::LeftSemi => facts.build_hit,
            JoinType::LeftAnti => facts.build - facts.build_hit,
            JoinType::LeftMark => facts.build,
            JoinType::RightSemi => facts.hits,
            JoinType::RightAnti => facts.probe - facts.hits,
            JoinType::RightMark => facts.probe,
        }
    }

    /// The batches of the build side.
    pub(crate) fn build(&self) -> &[RecordBatch] {
        &self.build
    }

    /// Probe rows, the measure of throughput.
    pub(crate) fn probe_rows(&self) -> u64 {
        self.facts.probe as u64
    }
}

/// Who joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// This crate.
    Grace,
    /// DataFusion's hash join.
    Hash,
}

impl Engine {
    /// The name in a bench's id.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Grace => "grace",
            Self::Hash => "hash",
        }
    }

    /// The join as a plan that can be executed any number of times: in `Partitioned` mode
    /// `HashJoinExec` keeps no build side from one time to the next.
    ///
    /// # Errors
    /// If the plan is refused.
    pub(crate) fn plan(
        self,
        inputs: &Inputs,
        join_type: JoinType,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let hash = hash_join(inputs, join_type)?;
        Ok(match self {
            Self::Grace => Arc::new(GraceHashJoinExec::try_from_hash_join(&hash)?),
            Self::Hash => Arc::new(hash),
        })
    }
}

/// Runs a plan's one partition and counts its rows.
///
/// # Errors
/// Whatever the plan fails with.
pub(crate) async fn rows(plan: &Arc<dyn ExecutionPlan>, task: &Arc<TaskContext>) -> Result<usize> {
    let mut stream = plan.execute(0, Arc::clone(task))?;
    let mut rows = 0;
    while let Some(batch) = stream.next().await {
        rows += batch?.num_rows();
    }
    Ok(rows)
}

/// The least time of what is timed: shorter runs are repeated, and the mean taken.
const LEAST: Duration = Duration::from_millis(100);

/// The time that this thread has had a processor, where the system tells (Linux does, to a
/// millisecond); else what the clock says. One thread does all the work of a run, and what else the
/// machine does is not its fault.
fn thread_time(since: Instant) -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = told.and_then(|text| text.split_whitespace().next()?.parse().ok());
    nanos.map_or_else(|| since.elapsed(), Duration::from_nanos)
}

/// Runs two things in turn, `rounds` times after one for warmth, each first in half of the rounds;
/// the median times, and the median of the rounds' ratios.
pub(crate) fn in_turn(
    rounds: usize,
    mut first: impl FnMut(),
    mut second: impl FnMut(),
) -> ([Duration; 2], f64) {
    let since = Instant::now();
    let timed = |run: &mut dyn FnMut(), times: u32| {
        let start = thread_time(since);
        (0..times).for_each(|_| run());
        thread_time(since).saturating_sub(start) / times
    };
    let warm = timed(&mut first, 1).min(timed(&mut second, 1));
    let runs = LEAST
        .div_duration_f64(warm.max(Duration::from_micros(100)))
        .ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most 1,000"
    )]
    let runs = runs as u32;
    let (mut firsts, mut seconds, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        let (a, b) = if round % 2 == 0 {
            let a = timed(&mut first, runs);
            (a, timed(&mut second, runs))
        } else {
            let b = timed(&mut second, runs);
            (timed(&mut first, runs), b)
        };
        firsts.push(a);
        seconds.push(b);
        ratios.push(a.as_secs_f64() / b.as_secs_f64());
    }
    firsts.sort();
    seconds.sort();
    ratios.sort_by(f64::total_cmp);
    let middle = rounds / 2;
    let at = |times: &[Duration]| times.get(middle).copied().unwrap_or_default();
    let ratio = ratios.get(middle).copied().unwrap_or(f64::NAN);
    ([at(&firsts), at(&seconds)], ratio)
}

fn hash_join(inputs: &Inputs, join_type: JoinType) -> Result<HashJoinExec> {
    let (build, probe) = (source(&inputs.build)?, source(&inputs.probe)?);
    let key = |index: usize| {
        (
            Arc::new(Column::new(&format!("b_key{index}"), index)) as _,
            Arc::new(Column::new(&format!("p_key{index}"), index)) as _,
        )
    };
    let on = (0..inputs.key_columns).map(key).collect();
    HashJoinExecBuilder::new(build, probe, on, join_type)
        .with_partition_mode(PartitionMode::Partitioned)
        .build()
}

fn source(batches: &[RecordBatch]) -> Result<Arc<dyn ExecutionPlan>> {
    let schema: SchemaRef = batches.first().map_or_else(
        || Arc::new(arrow::datatypes::Schema::empty()),
        RecordBatch::schema,
    );
    Ok(MemorySourceConfig::try_new_exec(
        &[batches.to_vec()],
        schema,
        None,
    )?)
}

/// Batches of keys and what comes with them.
fn batches(shape: Shape, keys: &[u64], prefix: &str) -> Result<Vec<RecordBatch>> {
    let (numbers, texts): (u64, &[usize]) = match shape.payload {
        Payload::Narrow => (1, &[]),
        Payload::Mixed => (1, &[16]),
        Payload::Wide => (4, &[16, 40]),
    };
    let batch = |keys: &[u64]| {
        let mut columns: Vec<(String, ArrayRef)> = Vec::new();
        for (index, column) in shape.key.columns(keys).into_iter().enumerate() {
            columns.push((format!("{prefix}_key{index}"), column));
        }
        for index in 0..numbers {
            let numbers = keys.iter().map(|key| (key + index).cast_signed());
            let column = Arc::new(Int64Array::from_iter_values(numbers));
            columns.push((format!("{prefix}_number{index}"), column));
        }
        for width in texts {
            let texts = keys.iter().map(|key| format!("{key:0width$}"));
            let column = Arc::new(StringArray::from_iter_values(texts));
            columns.push((format!("{prefix}_text{width}"), column));
        }
        Ok(RecordBatch::try_from_iter(columns)?)
    };
    keys.chunks(BATCH_ROWS).map(batch).collect()
}

/// A random order.
pub(crate) fn shuffle(values: &mut [u64], rng: &mut Rng) {
    for last in (1..values.len()).rev() {
        let other = rng.bits() % (last as u64 + 1);
        values.swap(last, usize::try_from(other).unwrap_or(last));
    }
}

/// How many rows of `build` have a key that is in `probe`.
fn hit_rows(build: &[u64], probe: &[u64], keys: u64) -> usize {
    let mut is_hit = vec![false; usize::try_from(keys).unwrap_or_default()];
    let index = |key: &u64| usize::try_from(*key).unwrap_or(usize::MAX);
    for key in probe {
        if let Some(hit) = is_hit.get_mut(index(key)) {
            *hit = true;
        }
    }
    let is_hit = |key: &&u64| is_hit.get(index(key)).copied().unwrap_or_default();
    build.iter().filter(is_hit).count()
}
