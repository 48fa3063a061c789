//! A join in memory under a budget: the inputs, each engine's plan, and one measured run. The bench
//! `join_budget` uses it too.
//!
//! The build side has a key, a number and a text of 24 characters in each row, the probe side as
//! well; the join is inner, with one partition. What differs:
//!
//! | shape | build keys | pairs |
//! |---|---|---|
//! | uniform | each key once, all over the range of 64 bits | one a probe row |
//! | skewed | a power law: the first of `rows / 2` keys has 4 % of the rows at a million | two a probe row, on average |
//!
//! The size of the build is the peak of the pool when the same join has read its build side and has
//! no probe rows.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use arrow::compute::SortOptions;
use datafusion::common::{JoinType, NullEquality};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::error::Result;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{
    FairSpillPool, MemoryPool, PeakRecordingPool, UnboundedMemoryPool,
};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{LexOrdering, PhysicalExprRef, PhysicalSortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExecBuilder, PartitionMode, SortMergeJoinExec};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use grace_hash_join::GraceHashJoinExec;
use grace_hash_join::testing::Rng;

/// Rows of an input batch: DataFusion's default.
const BATCH_ROWS: usize = 8192;

/// DataFusion reserves 10 MB for merging sorted runs, whatever the pool; with a budget of less than
/// some ten times that a sort would fail for its default alone.
const SORT_RESERVATION_PART: usize = 10;

/// DataFusion's default of that reservation.
const MOST_SORT_RESERVATION: usize = 10 << 20;

/// What the inputs look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each build key once.
    Uniform,
    /// Few keys have many build rows.
    Skewed,
}

impl Shape {
    /// The name in ids and tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Skewed => "skewed",
        }
    }
}

/// Who joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// This crate.
    Grace,
    /// DataFusion's hash join, which cannot spill.
    Hash,
    /// DataFusion's sort-merge join, with the sorts that it needs.
    SortMerge,
}

impl Engine {
    /// The name in ids and tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Grace => "grace",
            Self::Hash => "hash",
            Self::SortMerge => "sort_merge",
        }
    }
}

/// Both inputs.
pub(crate) struct Tables {
    build: Vec<RecordBatch>,
    probe: Vec<RecordBatch>,
    /// The pairs that the join must give, counted from the keys.
    pub(crate) pairs: usize,
}

impl Tables {
    /// The inputs of a shape, from a fixed seed.
    ///
    /// # Errors
    /// Only if arrow refuses the arrays.
    pub(crate) fn new(shape: Shape, build_rows: usize, probe_rows: usize) -> Result<Self> {
        let mut rng = Rng::new(42);
        let keys = match shape {
            Shape::Uniform => build_rows,
            Shape::Skewed => (build_rows / 2).max(1),
        };
        let mut build: Vec<usize> = match shape {
            Shape::Uniform => (0..keys).collect(),
            Shape::Skewed => (0..build_rows).map(|_| skewed(&mut rng, keys)).collect(),
        };
        shuffle(&mut build, &mut rng);
        let mut rows_of = vec![0_usize; keys];
        for key in &build {
            rows_of[*key] += 1;
        }
        let probe: Vec<usize> = (0..probe_rows).map(|_| below(&mut rng, keys)).collect();
        let pairs = probe.iter().map(|key| rows_of[*key]).sum();
        Ok(Self {
            build: batches(&build, "b")?,
            probe: batches(&probe, "p")?,
            pairs,
        })
    }

    /// The bytes of the build: the pool's peak when the build side is read and there is no probe
    /// side.
    ///
    /// # Errors
    /// If the join fails.
    pub(crate) async fn build_bytes(&self) -> Result<usize> {
        let no_probe = Self {
            build: self.build.clone(),
            probe: vec![RecordBatch::new_empty(self.probe[0].schema())],
            pairs: 0,
        };
        let measured = no_probe.run(Engine::Grace, None).await?;
        Ok(measured.pool_peak)
    }

    /// One run of an engine with a limit of so many bytes, or none.
    ///
    /// # Errors
    /// Whatever the join fails with.
    pub(crate) async fn run(&self, engine: Engine, limit: Option<usize>) -> Result<Measured> {
        let plan = self.plan(engine)?;
        let inner: Arc<dyn MemoryPool> = match limit {
            None => Arc::new(UnboundedMemoryPool::default()),
            Some(bytes) => Arc::new(FairSpillPool::new(bytes)),
        };
        let pool = Arc::new(PeakRecordingPool::new(inner));
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::clone(&pool) as Arc<dyn MemoryPool>)
            .build_arc()?;
        let mut config = SessionConfig::new();
        let reservation = limit.map_or(usize::MAX, |bytes| bytes / SORT_RESERVATION_PART);
        config.options_mut().execution.sort_spill_reservation_bytes =
            reservation.min(MOST_SORT_RESERVATION);
        let context = TaskContext::default()
            .with_session_config(config)
            .with_runtime(runtime);
        let start = Instant::now();
        let mut stream = plan.execute(0, Arc::new(context))?;
        let mut rows = 0;
        while let Some(batch) = stream.next().await {
            rows += batch?.num_rows();
        }
        let seconds = start.elapsed().as_secs_f64();
        drop(stream);
        let (spilled_bytes, files) = spills(plan.as_ref());
        Ok(Measured {
            seconds,
            rows,
            pool_peak: pool.max_reserved(),
            spilled_bytes,
            files,
        })
    }

    fn plan(&self, engine: Engine) -> Result<Arc<dyn ExecutionPlan>> {
        let (build, probe) = (source(&self.build)?, source(&self.probe)?);
        let (left, right) = (column("b_key"), column("p_key"));
        let on = vec![(Arc::clone(&left), Arc::clone(&right))];
        if engine == Engine::SortMerge {
            let options = vec![SortOptions::default()];
            return Ok(Arc::new(SortMergeJoinExec::try_new(
                sorted(build, left),
                sorted(probe, right),
                on,
                None,
                JoinType::Inner,
                options,
                NullEquality::NullEqualsNothing,
            )?));
        }
        let hash = HashJoinExecBuilder::new(build, probe, on, JoinType::Inner)
            .with_partition_mode(PartitionMode::Partitioned)
            .build()?;
        Ok(match engine {
            Engine::Grace => Arc::new(GraceHashJoinExec::try_from_hash_join(&hash)?),
            _ => Arc::new(hash),
        })
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// From the first poll to the last row.
    pub(crate) seconds: f64,
    /// Rows that came out.
    pub(crate) rows: usize,
    /// The most that was reserved at a time.
    pub(crate) pool_peak: usize,
    /// Bytes written to disk.
    pub(crate) spilled_bytes: usize,
    /// Files written.
    pub(crate) files: usize,
}

/// Bytes and files that a plan has written.
pub(crate) fn spills(plan: &dyn ExecutionPlan) -> (usize, usize) {
    let metrics = plan.metrics().unwrap_or_default();
    let own = (
        metrics.spilled_bytes().unwrap_or(0),
        metrics.spill_count().unwrap_or(0),
    );
    let children = plan
        .children()
        .into_iter()
        .map(|child| spills(child.as_ref()));
    children.fold(own, |sum, child| (sum.0 + child.0, sum.1 + child.1))
}

fn column(name: &str) -> PhysicalExprRef {
    Arc::new(Column::new(name, 0))
}

fn sorted(input: Arc<dyn ExecutionPlan>, key: PhysicalExprRef) -> Arc<dyn ExecutionPlan> {
    let by = PhysicalSortExpr::new(key, SortOptions::default());
    match LexOrdering::new([by]) {
        Some(ordering) => Arc::new(SortExec::new(ordering, input)),
        None => input,
    }
}

fn source(batches: &[RecordBatch]) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = batches[0].schema();
    Ok(MemorySourceConfig::try_new_exec(
        &[batches.to_vec()],
        schema,
        None,
    )?)
}

fn batches(keys: &[usize], prefix: &str) -> Result<Vec<RecordBatch>> {
    // An odd factor is a bijection of 64 bits: distinct keys stay distinct.
    let spread = |key: &usize| {
        (*key as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .cast_signed()
    };
    let batch = |keys: &[usize]| {
        let numbers = keys.iter().map(|key| (*key as u64).cast_signed());
        let columns: [(String, ArrayRef); 3] = [
            (
                format!("{prefix}_key"),
                Arc::new(Int64Array::from_iter_values(keys.iter().map(spread))),
            ),
            (
                format!("{prefix}_number"),
                Arc::new(Int64Array::from_iter_values(numbers)),
            ),
            (
                format!("{prefix}_text"),
                Arc::new(StringViewArray::from_iter_values(
                    keys.iter().map(|key| format!("{key:024}")),
                )),
            ),
        ];
        Ok(RecordBatch::try_from_iter(columns)?)
    };
    if keys.is_empty() {
        return Ok(vec![batch(&[])?]);
    }
    keys.chunks(BATCH_ROWS).map(batch).collect()
}

fn below(rng: &mut Rng, most: usize) -> usize {
    usize::try_from(rng.bits() % most.max(1) as u64).unwrap_or(0)
}

/// A key by a power law: the fourth power of a uniform number.
fn skewed(rng: &mut Rng, keys: usize) -> usize {
    // 16 bits to the fourth power are 64.
    let uniform = u128::from(rng.bits() >> 32);
    let fourth = (uniform * uniform) >> 32;
    let fourth = (fourth * fourth) >> 32;
    usize::try_from((fourth * keys as u128) >> 32).unwrap_or(0)
}

fn shuffle(values: &mut [usize], rng: &mut Rng) {
    for last in (1..values.len()).rev() {
        values.swap(last, below(rng, last + 1));
    }
}
