//! The rule where a plan has travelled to the process that executes it.
//!
//! Job: make the joins of a decoded task spillable. Planning is over there: nothing that looks for
//! a hash join is still to come, exchanges and sorts are in place, and the task's own memory pool
//! is the one that each node will ask.
//!
//! Not its job: which engine calls it, and from where; `docs/distributed.md` says that.

use std::sync::Arc;

use datafusion_common::Result;
use datafusion_common::config::ConfigOptions;
use datafusion_physical_plan::ExecutionPlan;
use datafusion_physical_plan::execution_plan::replace_children_if_necessary;

use super::options::{Algorithm, GraceHashJoinOptions, Select};
use super::rule::SpillableJoinSelection;

/// `plan` with each hash join that can spill as a [`GraceHashJoinExec`](crate::GraceHashJoinExec),
/// for engines that decode a plan where it runs: call it on the decoded plan, with the task's
/// configuration, before the plan is executed.
///
/// * One node for one node: the tree keeps its shape, so that metrics of tasks add up, and its top
///   keeps its schema, partitioning and order. A node that is no hash join is never replaced.
/// * Sizes are not looked at: statistics seldom travel, and the operator costs nothing while the
///   build side fits. Each node asks its own task's memory pool as it runs. So of
///   [`GraceHashJoinOptions`], `enabled` counts and what concerns running; `algorithm`, `select`,
///   `build_bytes` and `repartition_collect_left` do not.
/// * Left alone are joins with one build side for several probe partitions (`CollectLeft`), joins
///   whose order somebody above relies on, in this task or in one that reads its rows, and joins
///   with keys that cannot be computed again; each is one line of the log at level `debug`, with the
///   reason.
///
/// ```
/// # use std::sync::Arc;
/// # use datafusion::physical_plan::ExecutionPlan;
/// # use datafusion::prelude::SessionConfig;
/// # use grace_hash_join::rewrite_task_plan;
/// # fn before_it_runs(
/// #     decoded: Arc<dyn ExecutionPlan>,
/// #     config: &SessionConfig,
/// # ) -> datafusion_common::Result<Arc<dyn ExecutionPlan>> {
/// let plan = rewrite_task_plan(decoded, config.options())?;
/// # Ok(plan)
/// # }
/// ```
///
/// # Errors
/// A configuration error for a bad `SPILL_JOIN_BUILD_BYTES`, as where the plan was made; otherwise
/// whatever DataFusion says when a node takes a new child, which for a plan that was valid is a bug.
pub fn rewrite_task_plan(
    plan: Arc<dyn ExecutionPlan>,
    config: &ConfigOptions,
) -> Result<Arc<dyn ExecutionPlan>> {
    let options = GraceHashJoinOptions {
        algorithm: Algorithm::GraceAlone,
        select: Select::Always,
        repartitions_collect_left: false,
        ..GraceHashJoinOptions::of(config)
    };
    let rule = SpillableJoinSelection::new();
    // The top of a stage may be an engine's own node, which hands its input's rows on to tasks that
    // rely on their order, and declares none itself. So the order of its input is kept.
    let input = match plan.children().as_slice() {
        [input] => Arc::clone(input),
        _ => return rule.select(plan, config, options, None),
    };
    let input = rule.select(input, config, options, None)?;
    replace_children_if_necessary(plan, vec![input])
}
