//! Sessions, tables and plans for the tests of the node and the rule.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test binary uses a part of it"
)]

use std::cell::RefCell;
use std::sync::{Arc, Once};

use arrow::array::{ArrayRef, Float64Array, Int64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::MemTable;
use datafusion::common::Result;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::streaming::{PartitionStream, StreamingTableExec};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use grace_hash_join::{GraceHashJoinOptions, SpillableJoinSelection, physical_optimizer_rules};

/// Where the rule stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// DataFusion's rules alone.
    Nowhere,
    /// Right after join selection.
    Early,
    /// After all others.
    Appended,
}

/// A session with the tables `l`, `r` and `s`, each with the columns `k`, `v` (`Int64`) and `f`
/// (`Float64`).
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) place: Place,
    pub(crate) options: Vec<(&'static str, &'static str)>,
    pub(crate) memory: usize,
    pub(crate) partitions: usize,
    /// Whether small builds are partitioned as large ones are.
    pub(crate) is_partitioned: bool,
    /// Whether the planner prefers sort-merge joins.
    pub(crate) is_merging: bool,
}

impl Session {
    pub(crate) fn new(place: Place, options: &[(&'static str, &'static str)]) -> Self {
        Self {
            place,
            options: options.to_vec(),
            memory: 64 << 20,
            partitions: 2,
            is_partitioned: true,
            is_merging: false,
        }
    }

    pub(crate) fn runtime(&self) -> Result<Arc<RuntimeEnv>> {
        let builder = RuntimeEnvBuilder::new();
        match self.memory {
            0 => builder.build_arc(),
            bytes => builder
                .with_memory_pool(Arc::new(GreedyMemoryPool::new(bytes)))
                .build_arc(),
        }
    }

    pub(crate) fn open(&self) -> Result<SessionContext> {
        self.open_with(self.runtime()?)
    }

    pub(crate) fn open_with(&self, runtime: Arc<RuntimeEnv>) -> Result<SessionContext> {
        let mut options = GraceHashJoinOptions::default();
        for (key, value) in &self.options {
            options = options.with(key, value)?;
        }
        let mut config = SessionConfig::new()
            .with_target_partitions(self.partitions)
            .with_option_extension(options);
        if self.is_partitioned {
            let optimizer = &mut config.options_mut().optimizer;
            optimizer.hash_join_single_partition_threshold = 0;
            optimizer.hash_join_single_partition_threshold_rows = 0;
        }
        config.options_mut().optimizer.prefer_hash_join = !self.is_merging;
        let builder = SessionStateBuilder::new().with_config(config);
        let builder = match self.place {
            Place::Nowhere => builder,
            Place::Early => {
                builder.with_physical_optimizer_rules(physical_optimizer_rules(&runtime))
            }
            Place::Appended => builder.with_physical_optimizer_rule(Arc::new(
                SpillableJoinSelection::for_runtime(&runtime),
            )),
        };
        let state = builder.with_runtime_env(runtime).with_default_features();
        let ctx = SessionContext::new_with_state(state.build());
        for (name, rows, step) in [("l", 100, 2), ("r", 1000, 3), ("s", 400, 1)] {
            ctx.register_table(name, Arc::new(table(rows, step, self.partitions)?))?;
        }
        Ok(ctx)
    }
}

pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("k", DataType::Int64, true),
        Field::new("v", DataType::Int64, true),
        Field::new("f", DataType::Float64, true),
    ]))
}

/// `rows` rows with the keys 0, step, 2 step, ...; one key in ten is NULL.
pub(crate) fn batch(rows: i64, step: i64) -> Result<RecordBatch> {
    let keys = (0..rows).map(|i| (i % 10 != 7).then_some(i * step));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(keys.collect::<Int64Array>()),
        Arc::new((0..rows).map(|i| i % 13).collect::<Int64Array>()),
        Arc::new(
            (0..rows)
                .map(|i| i32::try_from(i).ok().map(f64::from))
                .collect::<Float64Array>(),
        ),
    ];
    Ok(RecordBatch::try_new(schema(), columns)?)
}

pub(crate) fn table(rows: i64, step: i64, partitions: usize) -> Result<MemTable> {
    let batch = batch(rows, step)?;
    let size = batch.num_rows().div_ceil(partitions);
    let part = |p: usize| {
        let start = p * size;
        vec![batch.slice(start, size.min(batch.num_rows() - start))]
    };
    MemTable::try_new(schema(), (0..partitions).map(part).collect())
}

pub(crate) async fn plan(ctx: &SessionContext, sql: &str) -> Result<Arc<dyn ExecutionPlan>> {
    ctx.sql(sql).await?.create_physical_plan().await
}

pub(crate) fn text(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(false).to_string()
}

/// How many nodes of a plan have this name.
pub(crate) fn count(plan: &str, name: &str) -> usize {
    let names = plan
        .lines()
        .filter_map(|l| l.trim_start().split([':', ' ']).next());
    names.filter(|n| *n == name).count()
}

/// The rows of a query, sorted, as text.
pub(crate) async fn rows(ctx: &SessionContext, sql: &str) -> Result<Vec<String>> {
    let mut rows = rows_in_order(ctx, sql).await?;
    rows.sort();
    Ok(rows)
}

pub(crate) async fn rows_in_order(ctx: &SessionContext, sql: &str) -> Result<Vec<String>> {
    let batches = ctx.sql(sql).await?.collect().await?;
    let text = pretty_format_batches(&batches)?.to_string();
    Ok(text.lines().map(str::to_string).collect())
}

thread_local! {
    static LINES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.target().starts_with("grace_hash_join::plan::rule") {
            LINES.with_borrow_mut(|lines| lines.push(record.args().to_string()));
        }
    }

    fn flush(&self) {}
}

/// What the rule says while `work` plans, on a runtime of one thread.
pub(crate) fn decisions<T>(work: impl Future<Output = Result<T>>) -> Result<(T, Vec<String>)> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Logger).unwrap();
        log::set_max_level(log::LevelFilter::Debug);
    });
    LINES.take();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let result = runtime.block_on(work)?;
    Ok((result, LINES.take()))
}

/// A source about which nothing is known.
pub(crate) fn unknown(partitions: usize) -> Result<Arc<dyn ExecutionPlan>> {
    streaming(partitions, false)
}

/// A source about which nothing is known but whether it has an end.
pub(crate) fn streaming(partitions: usize, is_endless: bool) -> Result<Arc<dyn ExecutionPlan>> {
    #[derive(Debug)]
    struct Part(SchemaRef);
    impl PartitionStream for Part {
        fn schema(&self) -> &SchemaRef {
            &self.0
        }
        fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
            Box::pin(datafusion::physical_plan::EmptyRecordBatchStream::new(
                Arc::clone(&self.0),
            ))
        }
    }
    let part = || Arc::new(Part(schema())) as Arc<dyn PartitionStream>;
    let parts = (0..partitions).map(|_| part()).collect();
    let source = StreamingTableExec::try_new(schema(), parts, None, vec![], is_endless, None)?;
    Ok(Arc::new(source))
}
