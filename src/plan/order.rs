//! Who relies on the order in which a join puts out its rows.
//!
//! Job: where the rule is, and, after enforcement, whether a plan still keeps every promise of
//! order that it kept before. Not its job: repairing it.

use std::sync::Arc;

use datafusion_common::Result;
use datafusion_physical_optimizer::output_requirements::OutputRequirementExec;
use datafusion_physical_plan::limit::GlobalLimitExec;
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

/// Whether `new` keeps the order that `old` promises, and gives each node the order that it needs.
/// The two differ by joins that were replaced, and by nothing else.
pub(crate) fn is_kept(old: &Arc<dyn ExecutionPlan>, new: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    // The query's own ORDER BY left no node behind.
    Ok(is_as_ordered(old, new)? && is_kept_below(old, new)?)
}

fn is_kept_below(old: &Arc<dyn ExecutionPlan>, new: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    if Arc::ptr_eq(old, new) || old.name() != new.name() {
        return Ok(true);
    }
    let required = new.required_input_ordering();
    // Which rows pass a limit depends on the order in which they come.
    let is_limit = new.fetch().is_some() || new.is::<GlobalLimitExec>();
    let (olds, news) = (old.children(), new.children());
    for (index, (old, new)) in olds.into_iter().zip(news).enumerate() {
        let properties = new.equivalence_properties();
        if let Some(Some(required)) = required.get(index)
            && !properties.ordering_satisfy_requirement(required.clone().into_single())?
        {
            return Ok(false);
        }
        if is_limit && !is_as_ordered(old, new)? {
            return Ok(false);
        }
        if !is_kept_below(old, new)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_as_ordered(old: &Arc<dyn ExecutionPlan>, new: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    match old.output_ordering() {
        Some(ordering) => new
            .equivalence_properties()
            .ordering_satisfy(ordering.clone()),
        None => Ok(true),
    }
}
