//! A sort-merge join as the grace hash join that gives the same rows.
//!
//! Job: which of the sorts beneath exist for the join alone, and the join without them. Not its
//! job: whether somebody above needs the order of its output; that is `order`'s.
//!
//! A sort is the join's own if nothing on the way up to the join needs it. An input that is sorted
//! by nature, or for another operator below the join, is not: where both are, sort-merge join needs
//! no memory and stays.

use std::sync::Arc;

use datafusion_common::{DataFusionError, Result};
use datafusion_physical_expr::OrderingRequirements;
use datafusion_physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion_physical_plan::execution_plan::replace_children_if_necessary;
use datafusion_physical_plan::filter::FilterExec;
use datafusion_physical_plan::joins::{
    HashJoinExec, HashJoinExecBuilder, PartitionMode, SortMergeJoinExec,
};
use datafusion_physical_plan::projection::ProjectionExec;
use datafusion_physical_plan::sorts::sort::SortExec;
use datafusion_physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion_physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::eligibility::{self, Refusal};
use super::exec::GraceHashJoinExec;
use super::order::Placement;
use crate::config::GraceHashJoinConfig;

/// Whether the grace hash join gives the same rows, and spares sorts.
pub(crate) fn check(join: &SortMergeJoinExec, placement: Placement) -> Result<(), Refusal> {
    let keys = |e: DataFusionError| Refusal::Keys(e.message().into_owned());
    eligibility::check_bounded([&join.left, &join.right])?;
    if !has_own_sorts(join, placement) {
        return Err(Refusal::AlreadySorted);
    }
    let (left, right) = (&join.left, &join.right);
    let count = |side: &Arc<dyn ExecutionPlan>| side.output_partitioning().partition_count();
    if placement == Placement::AfterEnforcement && count(left) != count(right) {
        let (build, probe) = (count(left), count(right));
        return Err(Refusal::PartitionCounts { build, probe });
    }
    let hash = as_hash_join(join, Arc::clone(left), Arc::clone(right)).map_err(keys)?;
    GraceHashJoinExec::try_from_hash_join(&hash).map_err(keys)?;
    Ok(())
}

/// The grace hash join in the place of `join`. With `is_swapped` the right side is the build side.
pub(crate) fn replace(
    join: &SortMergeJoinExec,
    placement: Placement,
    is_swapped: bool,
    config: &GraceHashJoinConfig,
) -> Result<Arc<dyn ExecutionPlan>> {
    let (mut left, mut right) = (Arc::clone(&join.left), Arc::clone(&join.right));
    if placement == Placement::AfterEnforcement {
        left = without_own_sort(&left)?.unwrap_or(left);
        right = without_own_sort(&right)?.unwrap_or(right);
    }
    let hash = as_hash_join(join, left, right)?;
    if !is_swapped {
        let node = GraceHashJoinExec::try_from_hash_join(&hash)?;
        return Ok(Arc::new(node.with_config(config)?));
    }
    let swapped = hash.swap_inputs(PartitionMode::Partitioned)?;
    GraceHashJoinExec::replace_in(&swapped, config)
}

/// The hash join over these inputs that gives the rows of `join`.
fn as_hash_join(
    join: &SortMergeJoinExec,
    left: Arc<dyn ExecutionPlan>,
    right: Arc<dyn ExecutionPlan>,
) -> Result<HashJoinExec> {
    HashJoinExecBuilder::new(left, right, join.on.clone(), join.join_type)
        .with_filter(join.filter.clone())
        .with_partition_mode(PartitionMode::Partitioned)
        .with_null_equality(join.null_equality)
        .build()
}

/// Whether at least one input is sorted, or will be, for this join and nobody else.
fn has_own_sorts(join: &SortMergeJoinExec, placement: Placement) -> bool {
    let sides = [&join.left, &join.right];
    match placement {
        Placement::AfterEnforcement => sides.iter().any(|side| is_sorted_for_its_parent(side)),
        // The sorts that are missing now will be added for it.
        Placement::BeforeEnforcement => {
            let mut required = join.required_input_ordering().into_iter().flatten();
            !sides.iter().all(|side| {
                let properties = side.equivalence_properties();
                let required = required.next().map(OrderingRequirements::into_single);
                let is_met = required.map(|r| properties.ordering_satisfy_requirement(r));
                matches!(is_met, Some(Ok(true)))
            })
        }
    }
}

fn is_sorted_for_its_parent(side: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(join) = side.downcast_ref::<SortMergeJoinExec>() {
        // Its order comes from sorts that go when it is replaced as well.
        return has_own_sorts(join, Placement::AfterEnforcement);
    }
    matches!(without_own_sort(side), Ok(Some(_)))
}

/// `side` without the sort that its order comes from; `None` if there is none to be found.
fn without_own_sort(side: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    // A limit takes the first rows of an order.
    if side.fetch().is_some() {
        return Ok(None);
    }
    if let Some(sort) = side.downcast_ref::<SortExec>() {
        let input = Arc::clone(sort.input());
        let is_merged = !sort.preserve_partitioning();
        return Ok(Some(if is_merged { collected(input) } else { input }));
    }
    let passes_order_on = side.is::<ProjectionExec>()
        || side.is::<FilterExec>()
        || side.is::<SortPreservingMergeExec>();
    let children = side.children();
    let (true, [input]) = (passes_order_on, children.as_slice()) else {
        return Ok(None);
    };
    let Some(input) = without_own_sort(input)? else {
        return Ok(None);
    };
    if side.is::<SortPreservingMergeExec>() {
        return Ok(Some(collected(input)));
    }
    let side = replace_children_if_necessary(Arc::clone(side), vec![input])?;
    Ok(Some(side))
}

/// `input` in one partition.
fn collected(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    if input.output_partitioning().partition_count() == 1 {
        return input;
    }
    Arc::new(CoalescePartitionsExec::new(input))
}
