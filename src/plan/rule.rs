//! The optimizer rule: which hash joins are replaced, and by what.
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
//! Not its job: the gates themselves (`eligibility`, `estimate`, `order`).
//!
//! Invariants: a plan in which nothing is replaced is returned as it came; a second run changes
//! nothing; the plan is right wherever the rule stands, right after join selection or at the end.

use std::sync::Arc;

use datafusion_common::Result;
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_execution::memory_pool::MemoryLimit;
use datafusion_execution::runtime_env::RuntimeEnv;
use datafusion_physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion_physical_optimizer::{PhysicalOptimizerContext, PhysicalOptimizerRule};
use datafusion_physical_plan::execution_plan::replace_children_if_necessary;
use datafusion_physical_plan::joins::HashJoinExec;
use datafusion_physical_plan::operator_statistics::StatisticsRegistry;
use datafusion_physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};
use log::debug;

use super::eligibility::{self, Refusal, Replacement};
use super::estimate::{self, Estimate, Estimator};
use super::exec::GraceHashJoinExec;
use super::options::{GraceHashJoinOptions, Select};
use super::order::{self, Placement};
use super::sort_merge;
use crate::config::GraceHashJoinConfig;
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
    limit: MemoryCap,
    can_spill: bool,
    env: Env,
}

/// What is known of the memory pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryCap {
    Unknown,
    Finite(usize),
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
            limit: MemoryCap::Unknown,
            can_spill: true,
            env: Env::read(),
        }
    }

    /// A rule for sessions with this runtime: its memory pool's limit as of now, and whether its
    /// disk manager allows temporary files.
    #[must_use]
    pub fn for_runtime(runtime: &RuntimeEnv) -> Self {
        let limit = match runtime.memory_pool.memory_limit() {
            MemoryLimit::Finite(bytes) => MemoryCap::Finite(bytes),
            MemoryLimit::Infinite | MemoryLimit::Unknown => MemoryCap::Unknown,
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
            limit: MemoryCap::Finite(bytes),
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
            rule: self,
            placement: Placement::of(&plan),
            target_partitions: config.execution.target_partitions,
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

/// What becomes of a hash join.
type Choice = Result<Replacement, Refusal>;

/// A hash join that may be replaced, and what is known of it.
struct Candidate {
    replacement: Replacement,
    /// Bytes of the build side per partition.
    estimate: Estimate,
    /// What they may be; `None` without a cap.
    threshold: Option<usize>,
}

/// One run of the rule over one plan.
struct Pass<'a> {
    rule: &'a SpillableJoinSelection,
    options: GraceHashJoinOptions,
    config: GraceHashJoinConfig,
    placement: Placement,
    target_partitions: usize,
    estimator: Estimator<'a>,
    /// The threshold per partition, if somebody said one.
    explicit: Option<usize>,
}

impl Pass<'_> {
    fn run(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut joins = Vec::new();
        plan.apply(|node| {
            if node.is::<HashJoinExec>() {
                joins.push(Arc::clone(node));
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        let joins: Vec<&HashJoinExec> = joins.iter().filter_map(|j| j.downcast_ref()).collect();
        let mut choices = self.choose(&joins);
        if self.placement == Placement::AfterEnforcement {
            self.keep_what_is_relied_on(plan, &joins, &mut choices)?;
        }
        for (join, choice) in joins.iter().zip(&choices) {
            log_choice(join, choice);
        }
        self.rebuild(plan, &mut choices.iter())
    }

    /// What becomes of each join, going by its shape and its size.
    fn choose(&self, joins: &[&HashJoinExec]) -> Vec<Choice> {
        if self.explicit.is_none()
            && self.rule.limit == MemoryCap::Unknown
            && self.options.select != Select::Always
        {
            return vec![Err(Refusal::NoCap); joins.len()];
        }
        if !self.rule.can_spill {
            return vec![Err(Refusal::SpillingDisabled); joins.len()];
        }
        let candidates = joins.iter().map(|join| self.candidate(join));
        match self.options.select {
            Select::Always | Select::Capped => candidates.map(|c| Ok(c?.replacement)).collect(),
            Select::Estimated => keep_the_smallest(candidates),
        }
    }

    fn candidate(&self, join: &HashJoinExec) -> Result<Candidate, Refusal> {
        let partitions = estimate::partitions(join, self.placement, self.target_partitions);
        let share = match self.rule.limit {
            MemoryCap::Finite(limit) => Some(limit / partitions.max(1) / 2),
            MemoryCap::Unknown => None,
        };
        Ok(Candidate {
            replacement: eligibility::replacement(join, self.options.algorithm, self.placement)?,
            estimate: self.estimator.build_bytes(join, partitions),
            threshold: self.explicit.or(share),
        })
    }

    /// Takes back the choices that would break an order which somebody relies on.
    fn keep_what_is_relied_on(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        joins: &[&HashJoinExec],
        choices: &mut [Choice],
    ) -> Result<()> {
        let mut accepted: Vec<Choice> = vec![Err(Refusal::OrderReliedOn); choices.len()];
        for (index, (join, choice)) in joins.iter().zip(choices.iter_mut()).enumerate() {
            let Some(slot) = accepted.get_mut(index) else {
                continue;
            };
            let unconverted = std::mem::replace(slot, choice.clone());
            let orderings = join.properties().equivalence_properties().oeq_class();
            if choice.is_err() || orderings.is_empty() {
                continue;
            }
            let new = self.rebuild(plan, &mut accepted.iter())?;
            if let Some(slot) = accepted.get_mut(index) {
                *slot = unconverted;
            }
            let old = self.rebuild(plan, &mut accepted.iter())?;
            if order::is_kept(&old, &new)? {
                if let Some(slot) = accepted.get_mut(index) {
                    slot.clone_from(choice);
                }
            } else {
                *choice = Err(Refusal::OrderReliedOn);
            }
        }
        Ok(())
    }

    /// `plan` with its hash joins replaced as `choices` say, in the order of a walk from the top.
    /// What does not change stays the same node.
    fn rebuild<'c>(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        choices: &mut impl Iterator<Item = &'c Choice>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let choice = if plan.is::<HashJoinExec>() {
            choices.next()
        } else {
            None
        };
        let children = plan.children().into_iter();
        let children = children.map(|child| self.rebuild(child, choices));
        let children = children.collect::<Result<Vec<_>>>()?;
        let plan = replace_children_if_necessary(Arc::clone(plan), children)?;
        let (Some(Ok(replacement)), Some(join)) = (choice, plan.downcast_ref::<HashJoinExec>())
        else {
            return Ok(plan);
        };
        match replacement {
            Replacement::SortMerge => sort_merge::replace(join, self.placement),
            Replacement::Grace => {
                let node = GraceHashJoinExec::try_from_hash_join(join)?;
                Ok(Arc::new(node.with_config(&self.config)?))
            }
        }
    }
}

/// Of those that fit by themselves, the smallest stay, as long as they fit together.
fn keep_the_smallest(candidates: impl Iterator<Item = Result<Candidate, Refusal>>) -> Vec<Choice> {
    let mut choices: Vec<Choice> = Vec::new();
    let mut fitting = Vec::new();
    for (index, candidate) in candidates.enumerate() {
        choices.push(candidate.and_then(|c| match (c.estimate, c.threshold) {
            (Err(why), _) => Err(Refusal::UnknownSize(why)),
            (Ok(_), None) => Err(Refusal::NoCap),
            (Ok(bytes), Some(threshold)) => {
                if bytes <= threshold {
                    fitting.push((index, bytes, threshold));
                }
                Ok(c.replacement)
            }
        }));
    }
    fitting.sort_by_key(|(index, bytes, _)| (*bytes, *index));
    // In parts of the threshold, since joins differ in how many partitions share the pool.
    let mut taken = 0.0;
    for (index, bytes, threshold) in fitting {
        #[expect(clippy::cast_precision_loss, reason = "an estimate of an estimate")]
        let part = bytes as f64 / threshold.max(1) as f64;
        taken += part;
        if taken > 1.0 {
            break;
        }
        if let Some(choice) = choices.get_mut(index) {
            *choice = Err(Refusal::Fits { bytes, threshold });
        }
    }
    choices
}

fn log_choice(join: &HashJoinExec, choice: &Choice) {
    struct Line<'a>(&'a HashJoinExec);
    impl std::fmt::Display for Line<'_> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.fmt_as(DisplayFormatType::Default, f)
        }
    }
    match choice {
        Ok(Replacement::Grace) => debug!("replaced by GraceHashJoinExec: {}", Line(join)),
        Ok(Replacement::SortMerge) => debug!("replaced by SortMergeJoinExec: {}", Line(join)),
        Err(refusal) => debug!("kept, {refusal}: {}", Line(join)),
    }
}
