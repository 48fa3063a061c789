//! Who relies on the order in which a join puts out its rows.
//!
//! Job: where the rule is, and, after enforcement, whether a plan still keeps every promise of
//! order that it kept before. Not its job: repairing it.

use std::sync::Arc;

use datafusion_common::Result;
use datafusion_physical_expr::{LexOrdering, LexRequirement, OrderingRequirements};
use datafusion_physical_optimizer::output_requirements::OutputRequirementExec;
use datafusion_physical_plan::aggregates::AggregateExec;
use datafusion_physical_plan::empty::EmptyExec;
use datafusion_physical_plan::limit::GlobalLimitExec;
use datafusion_physical_plan::sorts::partial_sort::PartialSortExec;
use datafusion_physical_plan::sorts::sort::SortExec;
use datafusion_physical_plan::{ExecutionPlan, ExecutionPlanProperties};

/// Whether DataFusion's enforcement of sorts and exchanges is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Right after join selection: what our nodes require will be added.
    BeforeEnforcement,
    /// Appended: the plan must be right as the rule leaves it.
    AfterEnforcement,
}

impl Placement {
    /// DataFusion brackets enforcement with a node that carries the query's own requirements: it
    /// is on top of the plan before, and gone after. A plan that never had one is treated as
    /// enforced, which is right in both cases.
    pub(crate) fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let mut plan = plan;
        loop {
            if plan.is::<OutputRequirementExec>() {
                return Self::BeforeEnforcement;
            }
            match plan.children().as_slice() {
                [only] => plan = only,
                _ => return Self::AfterEnforcement,
            }
        }
    }
}

/// Whether `new` keeps the order that `old` promises, and gives each node the order that it needs
/// and had. The two differ by one join that was replaced, and by nothing else.
pub(crate) fn is_kept(
    old: &Arc<dyn ExecutionPlan>,
    new: &Arc<dyn ExecutionPlan>,
    placement: Placement,
) -> Result<bool> {
    // After enforcement the query's own ORDER BY left no node behind.
    let is_top_kept = placement == Placement::BeforeEnforcement || is_as_ordered(old, new)?;
    Ok(is_top_kept && is_kept_below(old, new, placement)?)
}

fn is_kept_below(
    old: &Arc<dyn ExecutionPlan>,
    new: &Arc<dyn ExecutionPlan>,
    placement: Placement,
) -> Result<bool> {
    if Arc::ptr_eq(old, new) || old.name() != new.name() {
        return Ok(true);
    }
    let required = required_of_inputs(new, placement);
    let is_as_planned =
        placement == Placement::AfterEnforcement && (sees_the_order(new) || is_torn_union(old));
    let (olds, news) = (old.children(), new.children());
    for (index, (old, new)) in olds.into_iter().zip(news).enumerate() {
        if let Some(Some(required)) = required.get(index) {
            let is_met = |plan: &Arc<dyn ExecutionPlan>| {
                let properties = plan.equivalence_properties();
                properties.ordering_satisfy_requirement(required.clone())
            };
            if is_met(old)? && !is_met(new)? {
                return Ok(false);
            }
        }
        if is_as_planned && !is_as_ordered(old, new)? {
            return Ok(false);
        }
        if !is_kept_below(old, new, placement)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether what a node gives depends on the order in which rows come, once that was planned, without
/// its saying so.
fn sees_the_order(plan: &Arc<dyn ExecutionPlan>) -> bool {
    // Which rows pass a limit. One that sorts by itself does not look.
    let is_limit =
        !plan.is::<SortExec>() && (plan.fetch().is_some() || plan.is::<GlobalLimitExec>());
    // `first_value(.. ORDER BY ..)` and its like take what they find where they were told that rows
    // come in their order; only the first such order, if any, is a requirement of the node's.
    let is_ordered_aggregate = plan
        .downcast_ref::<AggregateExec>()
        .is_some_and(|aggregate| {
            let mut functions = aggregate.aggr_expr().iter();
            functions.any(|function| !function.order_bys().is_empty())
        });
    is_limit || is_ordered_aggregate
}

/// Whether `plan` is what a task has of a union whose other inputs run in other tasks: those are empty
/// here. The union says no order any more, since an empty input says none; yet where it was planned
/// it did, if its inputs did, and those who read all tasks may rely on it.
fn is_torn_union(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let inputs = plan.children();
    let is_alike =
        |input: &&Arc<dyn ExecutionPlan>| input.schema().fields() == plan.schema().fields();
    inputs.len() > 1
        && inputs.iter().any(|input| input.is::<EmptyExec>())
        && inputs.iter().all(is_alike)
}

/// The orders that a node needs, or that would spare it its work.
fn required_of_inputs(
    plan: &Arc<dyn ExecutionPlan>,
    placement: Placement,
) -> Vec<Option<LexRequirement>> {
    if let Some(sort) = plan.downcast_ref::<PartialSortExec>() {
        // It needs a part of the order, and does not say so.
        let prefix = sort.expr().iter().take(sort.common_prefix_length());
        let prefix = LexOrdering::new(prefix.cloned());
        return vec![prefix.map(LexRequirement::from)];
    }
    match plan.downcast_ref::<SortExec>() {
        // Enforcement takes a sort away that has nothing to do.
        Some(sort) if placement == Placement::BeforeEnforcement => {
            vec![Some(sort.expr().clone().into())]
        }
        _ => {
            let required = plan.required_input_ordering().into_iter();
            required
                .map(|r| r.map(OrderingRequirements::into_single))
                .collect()
        }
    }
}

fn is_as_ordered(old: &Arc<dyn ExecutionPlan>, new: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    match old.output_ordering() {
        Some(ordering) => new
            .equivalence_properties()
            .ordering_satisfy(ordering.clone()),
        None => Ok(true),
    }
}
