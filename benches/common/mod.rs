//! What all benches share: shapes by name, engines by name, and a run that counts its rows.
//!
//! A shape makes both inputs from a fixed seed and knows, from the keys alone, how many rows each
//! join type gives. All engines read the same batches in the same runtime, one partition each:
//! threads would measure the scheduler.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
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

/// What the two inputs look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each build key once, keys 0, 1, 2, ...; each probe row has one match. `HashJoinExec` has an
    /// index of its own for such keys.
    Dense,
    /// The same with keys all over the range of 64 bits: the ordinary case.
    Sparse,
    /// As `Sparse`, but one probe row in ten has a match.
    Selective,
    /// Ten build rows a key; each probe row has ten matches.
    Repeated,
    /// As `Sparse`, with text keys of 24 bytes.
    Text,
}

impl Shape {
    /// The name in a bench's id.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Sparse => "sparse",
            Self::Selective => "selective",
            Self::Repeated => "repeated",
            Self::Text => "text",
        }
    }

    /// Build rows of one key.
    fn rows_per_key(self) -> u64 {
        if self == Self::Repeated { 10 } else { 1 }
    }

    /// How many times as many keys the probe side draws from.
    fn strangers(self) -> u64 {
        if self == Self::Selective { 10 } else { 1 }
    }

    /// The key column's array for key numbers.
    fn keys(self, numbers: &[u64]) -> ArrayRef {
        // An odd factor is a bijection of 64 bits: distinct keys stay distinct.
        let spread = |number: &u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).cast_signed();
        match self {
            Self::Dense => Arc::new(Int64Array::from_iter_values(
                numbers.iter().map(|number| number.cast_signed()),
            )),
            Self::Text => Arc::new(StringArray::from_iter_values(
                numbers.iter().map(|number| format!("{number:024}")),
            )),
            _ => Arc::new(Int64Array::from_iter_values(numbers.iter().map(spread))),
        }
    }

    /// Both inputs of this shape.
    ///
    /// # Errors
    /// Only if arrow refuses the arrays.
    pub(crate) fn inputs(self, build_rows: u64, probe_rows: u64) -> Result<Inputs> {
        let keys = build_rows / self.rows_per_key();
        let mut rng = Rng::new(42);
        let mut build: Vec<u64> = (0..build_rows).map(|row| row % keys).collect();
        shuffle(&mut build, &mut rng);
        let probe: Vec<u64> = (0..probe_rows)
            .map(|_| rng.bits() % (keys * self.strangers()))
            .collect();
        let hits = probe.iter().filter(|key| **key < keys).count();
        Ok(Inputs {
            build: batches(self, &build, "b")?,
            probe: batches(self, &probe, "p")?,
            facts: Facts {
                hits,
                probe: probe.len(),
                build_hit: hit_rows(&build, &probe, keys),
                build: build.len(),
                rows_per_key: build.len() / usize::try_from(keys).unwrap_or(usize::MAX),
            },
        })
    }
}

/// The batches of both inputs, and what must come out.
pub(crate) struct Inputs {
    build: Vec<RecordBatch>,
    probe: Vec<RecordBatch>,
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

fn hash_join(inputs: &Inputs, join_type: JoinType) -> Result<HashJoinExec> {
    let (build, probe) = (source(&inputs.build)?, source(&inputs.probe)?);
    let on = vec![(
        Arc::new(Column::new("b_key", 0)) as _,
        Arc::new(Column::new("p_key", 0)) as _,
    )];
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

/// Batches of a key, a number and a text of 16 bytes.
fn batches(shape: Shape, keys: &[u64], prefix: &str) -> Result<Vec<RecordBatch>> {
    let batch = |keys: &[u64]| {
        let numbers = Int64Array::from_iter_values(keys.iter().map(|key| key.cast_signed()));
        let texts = StringArray::from_iter_values(keys.iter().map(|key| format!("{key:016}")));
        let columns: [(String, ArrayRef); 3] = [
            (format!("{prefix}_key"), shape.keys(keys)),
            (format!("{prefix}_number"), Arc::new(numbers)),
            (format!("{prefix}_text"), Arc::new(texts)),
        ];
        Ok(RecordBatch::try_from_iter(columns)?)
    };
    keys.chunks(BATCH_ROWS).map(batch).collect()
}

fn shuffle(values: &mut [u64], rng: &mut Rng) {
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
