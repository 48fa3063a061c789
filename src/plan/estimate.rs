//! How large a join's build side is, per partition, as far as statistics say.
//!
//! Job: bytes, or a named reason why nobody knows. Not its job: how much is too much.
//!
//! A wrong guess is dearer than none, so what statistics make up is *unknown*: absent and saturated
//! values, and a zero that comes out of a semi, anti or mark join.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion_common::stats::Precision;
use datafusion_common::tree_node::TreeNode;
use datafusion_common::{Result, Statistics};
use datafusion_physical_plan::ExecutionPlan;
use datafusion_physical_plan::joins::{
    HashJoinExec, NestedLoopJoinExec, PartitionMode, SortMergeJoinExec,
};
use datafusion_physical_plan::operator_statistics::StatisticsRegistry;
use datafusion_physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use super::exec::{GraceHashJoinExec, partition_counts};
use super::order::Placement;
use crate::semantics::Semantics;

/// The bytes taken for a value whose type has no fixed width, offsets and views included.
const VARIABLE_WIDTH: usize = 32;

/// The build side's bytes per partition, or why they are unknown.
pub(crate) type Estimate = std::result::Result<usize, &'static str>;

/// Where statistics come from.
pub(crate) struct Estimator<'a> {
    pub(crate) registry: Option<&'a StatisticsRegistry>,
}

impl Estimator<'_> {
    /// The bytes of the build side `build` in each of its `partitions`.
    pub(crate) fn build_bytes(
        &self,
        build: &Arc<dyn ExecutionPlan>,
        partitions: usize,
    ) -> Estimate {
        let bytes = self.bytes(build)?;
        Ok(bytes.div_ceil(partitions.max(1)))
    }

    /// The bytes that `plan` puts out.
    pub(crate) fn bytes(&self, plan: &Arc<dyn ExecutionPlan>) -> Estimate {
        let Ok(statistics) = self.statistics(plan) else {
            return Err("its statistics cannot be computed");
        };
        let bytes = total_bytes(&statistics, &plan.schema())?;
        if bytes == 0 && may_be_made_up(plan) {
            return Err("a zero out of a semi, anti or mark join says nothing");
        }
        Ok(bytes)
    }

    fn statistics(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<Statistics>> {
        match self.registry {
            Some(registry) => Ok(Arc::clone(registry.compute(plan.as_ref())?.base_arc())),
            None => StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new()),
        }
    }
}

/// Among how many partitions `join`'s build side is divided when it runs.
pub(crate) fn partitions(join: &HashJoinExec, placement: Placement, target: usize) -> usize {
    match (join.mode, placement) {
        (PartitionMode::CollectLeft, _) => 1,
        (_, Placement::BeforeEnforcement) => target,
        (_, Placement::AfterEnforcement) => partition_counts(join).0,
    }
}

fn total_bytes(statistics: &Statistics, schema: &Schema) -> Estimate {
    let rows = known(statistics.num_rows);
    let by_rows = rows.map(|rows| {
        let fields = schema.fields().iter();
        let width: usize = fields.map(|f| width(f.data_type())).sum();
        rows.saturating_mul(width)
    });
    match known(statistics.total_byte_size) {
        // Zero bytes of some rows is a sum over columns of unknown size.
        Some(bytes) if bytes > 0 || rows == Some(0) => Ok(bytes),
        _ => by_rows
            .filter(|b| !is_saturated(*b))
            .ok_or("statistics are absent or saturated"),
    }
}

fn width(data_type: &DataType) -> usize {
    match data_type {
        DataType::Null => 0,
        DataType::Boolean => 1,
        other => other.primitive_width().unwrap_or(VARIABLE_WIDTH),
    }
}

fn known(precision: Precision<usize>) -> Option<usize> {
    precision.get_value().copied().filter(|v| !is_saturated(*v))
}

/// Sums and products of estimates stick at the end of their range.
fn is_saturated(value: usize) -> bool {
    value >= usize::MAX / 4
}

/// Whether a zero may come from a join that estimates its matches.
fn may_be_made_up(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_semi = |node: &Arc<dyn ExecutionPlan>| {
        let join_type = if let Some(join) = node.downcast_ref::<HashJoinExec>() {
            join.join_type
        } else if let Some(join) = node.downcast_ref::<SortMergeJoinExec>() {
            join.join_type
        } else if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
            *join.join_type()
        } else if let Some(join) = node.downcast_ref::<GraceHashJoinExec>() {
            join.join_type()
        } else {
            return false;
        };
        !Semantics::new(join_type).pairs()
    };
    plan.exists(|node| Ok(is_semi(node))).unwrap_or(true)
}
