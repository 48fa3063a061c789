//! A hash join as the sort-merge join that gives the same rows.
//!
//! Job: carry over everything that `SortMergeJoinExec` has no place for. Not its job: deciding.

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Schema};
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{JoinSide, Result};
use datafusion_physical_expr::expressions::Column;
use datafusion_physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion_physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion_physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion_physical_plan::limit::LocalLimitExec;
use datafusion_physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion_physical_plan::sorts::sort::SortExec;
use datafusion_physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::dynamic_filter::dynamic_filter;
use super::eligibility::Refusal;
use super::expr::is_volatile;
use super::order::Placement;
use crate::error;

/// Whether sort-merge join gives the same rows.
pub(crate) fn check(join: &HashJoinExec) -> Result<(), Refusal> {
    if join.null_aware {
        return Err(Refusal::NullAware);
    }
    let schema = join.left.schema();
    for (left, right) in &join.on {
        if is_volatile(left) || is_volatile(right) {
            return Err(Refusal::Keys(format!("{left} = {right} is volatile")));
        }
        let key = left.data_type(&schema);
        let key = key.map_err(|e| Refusal::Keys(e.message().into_owned()))?;
        if !can_compare(&key) {
            return Err(Refusal::SortMergeKey(key));
        }
    }
    Ok(())
}

/// The types that `SortMergeJoinExec` compares, less floats: it panics on NaN.
fn can_compare(key: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Boolean, Date32, Date64, Decimal128, FixedSizeBinary, LargeBinary,
        LargeUtf8, Timestamp, Utf8, Utf8View,
    };
    key.is_integer()
        || matches!(
            key,
            Boolean
                | Utf8
                | LargeUtf8
                | Utf8View
                | Binary
                | LargeBinary
                | BinaryView
                | FixedSizeBinary(_)
                | Decimal128(_, _)
                | Timestamp(_, None)
                | Date32
                | Date64
        )
}

/// The sort-merge join in the place of `join`, over `left` and `right`. After enforcement, with
/// the sorts that it needs.
pub(crate) fn replace(join: &HashJoinExec, placement: Placement) -> Result<Arc<dyn ExecutionPlan>> {
    let (lefts, rights): (Vec<_>, Vec<_>) = join.on.iter().cloned().unzip();
    let (mut left, mut right) = (Arc::clone(&join.left), Arc::clone(&join.right));
    if placement == Placement::AfterEnforcement {
        let options = vec![SortOptions::default(); join.on.len()];
        left = sorted(left, lefts, &options)?;
        right = sorted(right, rights, &options)?;
    }
    let merge = SortMergeJoinExec::try_new(
        left,
        right,
        join.on.clone(),
        join.filter.as_ref().map(by_side).transpose()?,
        join.join_type,
        vec![SortOptions::default(); join.on.len()],
        join.null_equality,
    )?;
    let mut plan: Arc<dyn ExecutionPlan> = Arc::new(merge);
    if let Some(projection) = &join.projection {
        plan = projected(plan, projection)?;
    }
    if let Some(fetch) = join.fetch() {
        plan = Arc::new(LocalLimitExec::new(plan, fetch));
    }
    if let Some(filter) = dynamic_filter(join) {
        // Nobody will fill it: whoever waits for it need not.
        filter.mark_complete();
    }
    Ok(plan)
}

/// `join` with the sorts that it requires, which a plan before enforcement does not have yet.
pub(crate) fn with_sorts(join: &SortMergeJoinExec) -> Result<Arc<dyn ExecutionPlan>> {
    let (lefts, rights): (Vec<_>, Vec<_>) = join.on.iter().cloned().unzip();
    let merge = SortMergeJoinExec::try_new(
        sorted(Arc::clone(&join.left), lefts, &join.sort_options)?,
        sorted(Arc::clone(&join.right), rights, &join.sort_options)?,
        join.on.clone(),
        join.filter.clone(),
        join.join_type,
        join.sort_options.clone(),
        join.null_equality,
    )?;
    Ok(Arc::new(merge))
}

/// `input` with each partition sorted by `keys`, as it is if it is so already.
fn sorted(
    input: Arc<dyn ExecutionPlan>,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    options: &[SortOptions],
) -> Result<Arc<dyn ExecutionPlan>> {
    let keys = keys.into_iter().zip(options);
    let keys = keys.map(|(key, options)| PhysicalSortExpr::new(key, *options));
    let ordering = LexOrdering::new(keys).ok_or_else(error::no_keys)?;
    let properties = input.equivalence_properties();
    if properties.ordering_satisfy(ordering.clone())? {
        return Ok(input);
    }
    let sort = SortExec::new(ordering, input).with_preserve_partitioning(true);
    Ok(Arc::new(sort))
}

fn projected(plan: Arc<dyn ExecutionPlan>, projection: &[usize]) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = plan.schema();
    let columns = projection.iter().map(|index| {
        let Some(field) = schema.fields().get(*index) else {
            let columns = schema.fields().len();
            return Err(error::no_such_column("the projection", *index, columns));
        };
        Ok(ProjectionExpr {
            expr: Arc::new(Column::new(field.name(), *index)),
            alias: field.name().clone(),
        })
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(ProjectionExec::try_new(columns, plan)?))
}

/// The same filter with the left side's columns first: `SortMergeJoinExec` in DataFusion 55 hands
/// them over in that order, whatever the filter lists.
fn by_side(filter: &JoinFilter) -> Result<JoinFilter> {
    let columns = filter.column_indices();
    let of = |side| {
        let all = columns.iter().enumerate();
        all.filter(move |(_, c)| (c.side == JoinSide::Left) == side)
    };
    // Where each column of the new order was before.
    let before: Vec<usize> = of(true).chain(of(false)).map(|(i, _)| i).collect();
    let moved: Vec<ColumnIndex> = of(true).chain(of(false)).map(|(_, c)| c.clone()).collect();
    let schema = filter.schema();
    let fields = before.iter().filter_map(|i| schema.fields().get(*i));
    let fields: Vec<_> = fields.map(Arc::clone).collect();
    let expr = Arc::clone(filter.expression()).transform_up(|e| {
        let Some(column) = e.downcast_ref::<Column>() else {
            return Ok(Transformed::no(e));
        };
        let position = before.iter().position(|i| *i == column.index());
        let position = position.ok_or_else(|| {
            error::no_such_column("the join filter", column.index(), columns.len())
        })?;
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(column.name(), position));
        Ok(Transformed::yes(column))
    });
    let schema = Schema::new_with_metadata(fields, schema.metadata().clone());
    Ok(JoinFilter::new(expr.data()?, moved, Arc::new(schema)))
}
