//! The optimizer rule: which joins are replaced, and by what.
//!
//! Job: look at each `HashJoinExec` by itself, never at the session as a whole, and go through
//! three gates, each of which was paid for:
//!
//! 1. **No cap, no change.** Without a finite memory pool there is nothing to be too large for.
//! 2. **Unknown sizes keep the hash join** (`select = estimated`).
//! 3. **The mode must be convertible**: `Partitioned`, or `CollectLeft` with one partition on both
//!    sides when the rule looks.
//!
//! Then the estimated build side per partition is compared with a share of the pool, and the builds
//! that stay hash joins must fit *together*: the smallest stay.
//!
//! With `algorithm = grace` the planner's own sort-merge joins are looked at as well: those whose
//! sorts exist for them alone are replaced, whatever their size.
//!
//! Not its job: going through a plan (`pass`), and the gates themselves (`eligibility`, `estimate`,
//! `order`).
//!
//! Invariants: a plan in which nothing is replaced is returned as it came; a second run changes
//! nothing; the plan is right wherever the rule stands, right after join selection or at the end.

use std::sync::Arc;

use datafusion_common::Result;
use datafusion_common::config::ConfigOptions;
use datafusion_execution::memory_pool::MemoryLimit;
use datafusion_execution::runtime_env::RuntimeEnv;
use datafusion_physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion_physical_optimizer::{PhysicalOptimizerContext, PhysicalOptimizerRule};
use datafusion_physical_plan::ExecutionPlan;
use datafusion_physical_plan::operator_statistics::StatisticsRegistry;

use super::estimate::Estimator;
use super::options::GraceHashJoinOptions;
use super::order::Placement;
use super::pass::Pass;
use crate::error;

/// The environment variable that says how many bytes a hash join's build side may have per
/// partition. It wins over the option `build_bytes` and over what follows from the memory pool.
/// Read once, when the rule is made; a value that is no number is an error when the rule is used.
pub const SPILL_JOIN_BUILD_BYTES_ENV: &str = "SPILL_JOIN_BUILD_BYTES";

/// DataFusion's physical optimizer rules with [`SpillableJoinSelection`] at its right place, right
/// after join selection, knowing the memory pool of `runtime`.
///
/// ```
/// # use std::sync::Arc;
/// use datafusion::execution::memory_pool::FairSpillPool;
/// use datafusion::execution::runtime_env::RuntimeEnvBuilder;
/// use datafusion::execution::session_state::SessionStateBuilder;
/// use datafusion::prelude::{SessionConfig, SessionContext};
/// use grace_hash_join::{GraceHashJoinOptions, physical_optimizer_rules};
/// # fn main() -> datafusion_common::Result<()> {
/// let pool = Arc::new(FairSpillPool::new(64 << 20));
/// let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?;
/// let options = GraceHashJoinOptions::default().with("algorithm", "grace")?;
/// let state = SessionStateBuilder::new()
///     .with_config(SessionConfig::new().with_option_extension(options))
///     .with_physical_optimizer_rules(physical_optimizer_rules(&runtime))
///     .with_runtime_env(runtime)
///     .with_default_features()
///     .build();
/// let ctx = SessionContext::new_with_state(state);
/// # let _ = ctx;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn physical_optimizer_rules(
    runtime: &RuntimeEnv,
) -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules = PhysicalOptimizer::new().rules;
    let selection = rules.iter().position(|r| r.name() == "join_selection");
    let rule = SpillableJoinSelection::for_runtime(runtime);
    rules.insert(selection.map_or(0, |i| i + 1), Arc::new(rule));
    rules
}

/// The rule that replaces hash joins whose build side does not fit.
///
/// Its options are [`GraceHashJoinOptions`]. A rule of DataFusion 55 does not see the runtime, so
/// the limit that it compares with is said when it is made; a later
/// `SET datafusion.runtime.memory_limit` does not reach it. Running joins always ask their own
/// task's memory pool.
///
/// Each decision is one line of the log at level `debug`.
#[derive(Clone, Debug)]
pub struct SpillableJoinSelection {
    /// `None` if it is not known, or if there is none.
    limit: Option<usize>,
    can_spill: bool,
    env: Env,
}

/// What [`SPILL_JOIN_BUILD_BYTES_ENV`] said when the rule was made.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Env {
    Unset,
    Bytes(usize),
    Bad(String),
}

impl Env {
    fn read() -> Self {
        match std::env::var(SPILL_JOIN_BUILD_BYTES_ENV) {
            Err(std::env::VarError::NotPresent) => Self::Unset,
            Err(std::env::VarError::NotUnicode(value)) => {
                Self::Bad(value.to_string_lossy().into_owned())
            }
            Ok(value) => match value.trim().parse() {
                Ok(bytes) => Self::Bytes(bytes),
                Err(_) => Self::Bad(value),
            },
        }
    }
}

impl Default for SpillableJoinSelection {
    fn default() -> Self {
        Self::new()
    }
}

impl SpillableJoinSelection {
    /// A rule that knows of no memory limit: it changes nothing, unless a threshold is given or
    /// `select = always`.
    #[must_use]
    pub fn new() -> Self {
        Self {
            limit: None,
            can_spill: true,
            env: Env::read(),
        }
    }

    /// A rule for sessions with this runtime: its memory pool's limit as of now, and whether its
    /// disk manager allows temporary files.
    #[must_use]
    pub fn for_runtime(runtime: &RuntimeEnv) -> Self {
        let limit = match runtime.memory_pool.memory_limit() {
            MemoryLimit::Finite(bytes) => Some(bytes),
            MemoryLimit::Infinite | MemoryLimit::Unknown => None,
        };
        Self {
            limit,
            can_spill: runtime.disk_manager.tmp_files_enabled(),
            ..Self::new()
        }
    }

    /// A rule for tasks with a memory pool of `bytes`, where the pool is not known when planning.
    #[must_use]
    pub fn with_memory_limit(bytes: usize) -> Self {
        Self {
            limit: Some(bytes),
            ..Self::new()
        }
    }

    /// One run over `plan`, with other options than the session's, where asked for.
    pub(super) fn select(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
        options: GraceHashJoinOptions,
        registry: Option<&StatisticsRegistry>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if !options.is_enabled {
            return Ok(plan);
        }
        let explicit = match &self.env {
            Env::Bad(value) => {
                let good = "a number of bytes";
                return Err(error::bad_option(SPILL_JOIN_BUILD_BYTES_ENV, value, good));
            }
            Env::Bytes(bytes) => Some(*bytes),
            Env::Unset => Some(options.build_bytes).filter(|b| *b > 0),
        };
        let pass = Pass {
            limit: self.limit,
            can_spill: self.can_spill,
            session: config,
            placement: Placement::of(&plan),
            estimator: Estimator { registry },
            config: options.resolve(config)?,
            options,
            explicit,
        };
        pass.run(&plan)
    }
}

impl PhysicalOptimizerRule for SpillableJoinSelection {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.select(plan, config, GraceHashJoinOptions::of(config), None)
    }

    fn optimize_with_context(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: &dyn PhysicalOptimizerContext,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let config = context.config_options();
        let registry = context.statistics_registry();
        let registry = registry.filter(|_| config.optimizer.use_statistics_registry);
        self.select(plan, config, GraceHashJoinOptions::of(config), registry)
    }

    fn name(&self) -> &'static str {
        "spillable_join_selection"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
