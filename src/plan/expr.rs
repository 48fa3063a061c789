//! Physical expressions as what the join asks for: keys of a batch, and a condition on pairs.
//!
//! Job: move column indices from the input's schema to the narrow batch that the join hands over.
//! Not its job: types and equality; the join checks those.
//!
//! Invariant: keys are computed again for rows read back from disk, so an expression that may give
//! another value the second time is refused here.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, new_null_array};
use arrow::datatypes::{DataType, Schema};
use arrow::record_batch::RecordBatch;
use datafusion_common::cast::as_boolean_array;
use datafusion_common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion_common::{JoinSide, Result};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::Column;
use datafusion_physical_expr::utils::collect_columns;
use datafusion_physical_plan::joins::utils::JoinFilter;

use crate::error;
use crate::join::{JoinKeys, ResidualFilter};

/// The key expressions of one side, over the columns that they need.
#[derive(Debug)]
pub(crate) struct ExprKeys {
    columns: Vec<usize>,
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    types: Vec<DataType>,
}

impl ExprKeys {
    /// # Errors
    /// If an expression is volatile, or names what the schema does not have.
    pub(crate) fn try_new<'a>(
        exprs: impl IntoIterator<Item = &'a Arc<dyn PhysicalExpr>>,
        schema: &Schema,
    ) -> Result<Self> {
        let exprs: Vec<_> = exprs.into_iter().map(Arc::clone).collect();
        if let Some(volatile) = exprs.iter().find(|e| is_volatile(e)) {
            return Err(error::volatile_key(&volatile.to_string()));
        }
        let types = exprs.iter().map(|e| e.data_type(schema));
        let types = types.collect::<Result<_>>()?;
        let mut columns: Vec<usize> = exprs
            .iter()
            .flat_map(collect_columns)
            .map(|column| column.index())
            .collect();
        columns.sort_unstable();
        columns.dedup();
        let exprs = exprs.into_iter().map(|e| narrowed(e, &columns));
        Ok(Self {
            exprs: exprs.collect::<Result<_>>()?,
            columns,
            types,
        })
    }
}

impl JoinKeys for ExprKeys {
    fn columns(&self) -> &[usize] {
        &self.columns
    }

    fn data_types(&self) -> Vec<DataType> {
        self.types.clone()
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let rows = batch.num_rows();
        let keys = self.exprs.iter();
        keys.map(|e| e.evaluate(batch)?.into_array(rows)).collect()
    }
}

/// Whether `expr` may give another value when it is evaluated again.
pub(crate) fn is_volatile(expr: &Arc<dyn PhysicalExpr>) -> bool {
    // `exists` fails only if its closure does.
    let is_volatile = expr.exists(|e| Ok(e.is_volatile_node()));
    is_volatile.unwrap_or(true)
}

/// `expr` with each column's index replaced by its position in `columns`.
fn narrowed(expr: Arc<dyn PhysicalExpr>, columns: &[usize]) -> Result<Arc<dyn PhysicalExpr>> {
    expr.transform_up(|e| {
        let Some(column) = e.downcast_ref::<Column>() else {
            return Ok(Transformed::no(e));
        };
        let position = columns
            .binary_search(&column.index())
            .map_err(|_| error::internal(format!("key column {column} was not collected")))?;
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(column.name(), position));
        Ok(Transformed::yes(column))
    })
    .data()
}

/// A join filter's expression, over the columns that the filter itself lists, in its order.
#[derive(Debug)]
pub(crate) struct ExprFilter {
    columns: Vec<(JoinSide, usize)>,
    expr: Arc<dyn PhysicalExpr>,
}

impl ExprFilter {
    pub(crate) fn new(filter: &JoinFilter) -> Self {
        let columns = filter.column_indices().iter();
        Self {
            columns: columns.map(|c| (c.side, c.index)).collect(),
            expr: Arc::clone(filter.expression()),
        }
    }
}

impl ResidualFilter for ExprFilter {
    fn columns(&self) -> &[(JoinSide, usize)] {
        &self.columns
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let rows = batch.num_rows();
        let mut verdict = self.expr.evaluate(batch)?.into_array(rows)?;
        if verdict.data_type() == &DataType::Null {
            verdict = new_null_array(&DataType::Boolean, rows);
        }
        Ok(as_boolean_array(&verdict)?.clone())
    }
}
