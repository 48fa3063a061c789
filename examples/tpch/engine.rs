//! How a session of each engine is set up. [`with_grace_options`] and
//! [`grace_rules`] are what using this crate takes.

use std::fmt;
use std::sync::Arc;

use clap::ValueEnum;
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryPool, PeakRecordingPool, UnboundedMemoryPool,
};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use grace_hash_join::{GraceHashJoinOptions, physical_optimizer_rules};

use crate::Result;
use crate::args::{Args, Memory, Pool};
use crate::data;

/// A way to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Engine {
    /// DataFusion's hash join without a memory limit, whose answer is the right one.
    Reference,
    /// DataFusion as it is: hash joins.
    Hash,
    /// DataFusion told to prefer sort-merge joins. With one partition it plans hash joins anyway.
    SortMerge,
    /// This crate.
    Grace,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reference => "reference",
            Self::Hash => "hash",
            Self::SortMerge => "sort_merge",
            Self::Grace => "grace",
        })
    }
}

impl Engine {
    /// The options that make the difference between the engines, before `--set`.
    fn settings(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Reference | Self::Hash => &[],
            Self::SortMerge => &[("datafusion.optimizer.prefer_hash_join", "false")],
            Self::Grace => &[
                ("grace_hash_join.algorithm", "grace"),
                ("grace_hash_join.select", "capped"),
            ],
        }
    }

    /// Whether an option given with `--set` holds for this engine.
    fn obeys(self, key: &str) -> bool {
        self != Self::Reference || !key.starts_with("datafusion.runtime.")
    }

    /// The pool that the command line asks for.
    fn pool(self, args: &Args) -> Arc<dyn MemoryPool> {
        match (self, args.memory(), args.pool) {
            (Self::Reference, ..) | (_, Memory(None), _) => {
                Arc::new(UnboundedMemoryPool::default())
            }
            (_, Memory(Some(bytes)), Pool::Fair) => Arc::new(FairSpillPool::new(bytes)),
            (_, Memory(Some(bytes)), Pool::Greedy) => Arc::new(GreedyMemoryPool::new(bytes)),
        }
    }
}

/// A session with the eight tables.
pub(crate) struct Session {
    /// The session.
    pub(crate) context: SessionContext,
    /// Its memory pool, which remembers its peak.
    pub(crate) pool: Arc<PeakRecordingPool>,
}

impl Session {
    /// Sets up a session of an engine as the command line asks for.
    pub(crate) async fn start(engine: Engine, args: &Args) -> Result<Self> {
        let context = configure(engine, args).await?;
        let session = Self::finish(engine, &context)?;
        let directory = data::directory(args);
        for table in data::TABLES {
            let path = data::file(&directory, table);
            let path = path.to_str().ok_or("the data's path is not UTF-8")?;
            let options = ParquetReadOptions::default();
            session
                .context
                .register_parquet(table, path, options)
                .await?;
        }
        Ok(session)
    }

    /// Wraps the pool, once `SET datafusion.runtime.memory_limit` cannot replace it any more, and
    /// installs the rules, which want to know that pool.
    fn finish(engine: Engine, context: &SessionContext) -> Result<Self> {
        let runtime = context.runtime_env();
        let pool = Arc::new(PeakRecordingPool::new(Arc::clone(&runtime.memory_pool)));
        let runtime = RuntimeEnvBuilder::from_runtime_env(&runtime)
            .with_memory_pool(Arc::clone(&pool) as Arc<dyn MemoryPool>)
            .build_arc()?;
        let state = SessionStateBuilder::new_from_existing(context.state());
        let state = match engine {
            Engine::Grace => grace_rules(state, &runtime),
            _ => state,
        };
        let state = state.with_runtime_env(runtime).build();
        let context = SessionContext::new_with_state(state);
        Ok(Self { context, pool })
    }
}

/// A context with the pool and the options that the command line asks for.
pub(crate) async fn configure(engine: Engine, args: &Args) -> Result<SessionContext> {
    let config = SessionConfig::new().with_target_partitions(args.partitions.get());
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(engine.pool(args))
        .build_arc()?;
    let context = SessionContext::new_with_config_rt(with_grace_options(config), runtime);
    // DataFusion 55.2 can wait for ever where two tasks spill into one partition of an exchange,
    // unless a spill file is closed after each batch.
    set(
        &context,
        "datafusion.execution.max_spill_file_size_bytes",
        "1",
    )
    .await?;
    for (key, value) in engine.settings() {
        set(&context, key, value).await?;
    }
    if args.compare {
        set(&context, "grace_hash_join.select", "always").await?;
    }
    for setting in args.set.iter().filter(|setting| engine.obeys(&setting.key)) {
        set(&context, &setting.key, &setting.value).await?;
    }
    Ok(context)
}

/// Makes the options of this crate known to `SET`.
fn with_grace_options(config: SessionConfig) -> SessionConfig {
    config.with_option_extension(GraceHashJoinOptions::default())
}

/// DataFusion's optimizer rules with the one of this crate among them.
fn grace_rules(state: SessionStateBuilder, runtime: &RuntimeEnv) -> SessionStateBuilder {
    state.with_physical_optimizer_rules(physical_optimizer_rules(runtime))
}

async fn set(context: &SessionContext, key: &str, value: &str) -> Result<()> {
    let value = value.replace('\'', "''");
    context.sql(&format!("SET {key} = '{value}'")).await?;
    Ok(())
}
