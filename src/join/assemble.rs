//! Output batches out of row numbers: each output column is taken from the side it belongs to.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array, new_null_array};
use arrow::compute::take;
use datafusion_common::Result;

use super::context::{JoinContext, new_batch};
use super::loaded::LoadedRows;
use crate::error;
use crate::semantics::{OutputColumn, Side};

/// Where the columns of one side come from, all of one length.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Loaded rows by number; [`NO_ROW`](crate::table::NO_ROW) gives NULL.
    Loaded(&'a LoadedRows, &'a [u32]),
    /// Rows of a batch by number.
    Batch(&'a RecordBatch, &'a [u32]),
    /// A whole batch.
    Whole(&'a RecordBatch),
    /// NULL in every row.
    Null,
}

impl Source<'_> {
    fn column(self, ctx: &JoinContext, side: Side, index: usize, rows: usize) -> Result<ArrayRef> {
        let missing = || error::internal(format!("column {index} of {} is missing", side.name()));
        match self {
            Self::Loaded(loaded, numbers) => loaded.gather(index, numbers),
            Self::Batch(batch, numbers) => {
                let column = batch.columns().get(index).ok_or_else(missing)?;
                match consecutive(numbers) {
                    // Most probe batches of a foreign-key join pass as they are.
                    Some(first) => Ok(column.slice(first, numbers.len())),
                    None => Ok(take(column, &UInt32Array::from(numbers.to_vec()), None)?),
                }
            }
            Self::Whole(batch) => batch.columns().get(index).cloned().ok_or_else(missing),
            Self::Null => {
                let field = ctx
                    .side(side)
                    .schema
                    .fields()
                    .get(index)
                    .ok_or_else(missing)?;
                Ok(new_null_array(field.data_type(), rows))
            }
        }
    }
}

/// The first of `numbers` if each is one more than the one before.
fn consecutive(numbers: &[u32]) -> Option<usize> {
    let (first, last) = (*numbers.first()?, *numbers.last()?);
    let is_dense = (last.checked_sub(first)? as usize) == numbers.len() - 1
        && numbers
            .windows(2)
            .all(|pair| matches!(pair, [a, b] if a < b));
    is_dense.then_some(first as usize)
}

/// Sources for both sides.
#[derive(Clone, Copy)]
pub(crate) struct Sources<'a> {
    pub(crate) build: Source<'a>,
    pub(crate) probe: Source<'a>,
}

impl<'a> Sources<'a> {
    /// The loaded side's and the other side's sources.
    pub(crate) fn new(loaded_side: Side, loaded: Source<'a>, streamed: Source<'a>) -> Self {
        match loaded_side {
            Side::Build => Self {
                build: loaded,
                probe: streamed,
            },
            Side::Probe => Self {
                build: streamed,
                probe: loaded,
            },
        }
    }

    fn of(self, side: Side) -> Source<'a> {
        match side {
            Side::Build => self.build,
            Side::Probe => self.probe,
        }
    }
}

/// An output batch of `rows` rows. `mark` is there exactly for mark joins.
///
/// # Errors
/// If arrow cannot gather a column.
pub(crate) fn assemble(
    ctx: &JoinContext,
    sources: Sources<'_>,
    rows: usize,
    mark: Option<BooleanArray>,
) -> Result<RecordBatch> {
    let mark: Option<ArrayRef> = mark.map(|mark| Arc::new(mark) as ArrayRef);
    let column = |column: &OutputColumn| match column {
        OutputColumn::Input(side, index) => sources.of(*side).column(ctx, *side, *index, rows),
        OutputColumn::Mark => mark
            .clone()
            .ok_or_else(|| error::internal("a mark is missing")),
    };
    let columns = ctx.join.output.iter().map(column).collect::<Result<_>>()?;
    new_batch(&ctx.join.schema, columns, rows)
}

/// The batch that the residual filter sees for pairs from both sources, of `rows` rows.
///
/// # Errors
/// If arrow cannot gather a column.
pub(crate) fn filter_input(
    ctx: &JoinContext,
    filter: &super::builder::FilterSpec,
    sources: Sources<'_>,
    rows: usize,
) -> Result<RecordBatch> {
    let column = |(side, index): &(Side, usize)| sources.of(*side).column(ctx, *side, *index, rows);
    let columns = filter.columns.iter().map(column).collect::<Result<_>>()?;
    new_batch(&filter.schema, columns, rows)
}
