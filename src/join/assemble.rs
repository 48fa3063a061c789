//! Output batches out of row numbers: each output column is taken from the side it belongs to.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, UInt32Array, new_null_array};
use arrow::compute::take;
use datafusion_common::Result;

use super::columns::{LoadedRows, Picked};
use super::context::{JoinContext, new_batch};
use crate::error;
use crate::semantics::{OutputColumn, Side};

/// Where the columns of one side come from, all of one length.
pub(crate) enum Source<'a> {
    /// Loaded rows by number.
    Loaded(&'a LoadedRows, Picked<'a>),
    /// Consecutive rows of a batch, from the given one on.
    Slice(&'a RecordBatch, usize),
    /// Rows of a batch by number.
    Take(&'a RecordBatch, UInt32Array),
    /// NULL in every row.
    Null,
}

impl<'a> Source<'a> {
    /// Loaded rows by number; [`NO_ROW`](crate::table::NO_ROW) gives NULL.
    pub(crate) fn loaded(loaded: &'a LoadedRows, rows: &'a [u32]) -> Self {
        Self::Loaded(loaded, Picked::new(rows))
    }

    /// Rows of a batch by number. Most probe batches of a foreign-key join pass as they are; a small
    /// part of a batch is copied, so that it does not keep the rest.
    pub(crate) fn of_batch(batch: &'a RecordBatch, rows: &[u32]) -> Self {
        match consecutive(rows) {
            Some(first) if rows.len() * 2 >= batch.num_rows() => Self::Slice(batch, first),
            _ => Self::Take(batch, UInt32Array::from(rows.to_vec())),
        }
    }

    fn column(
        &self,
        ctx: &JoinContext,
        (side, index): (Side, usize),
        rows: usize,
    ) -> Result<ArrayRef> {
        let missing = || error::internal(format!("column {index} of {} is missing", side.name()));
        let of = |batch: &'a RecordBatch| batch.columns().get(index).ok_or_else(missing);
        match self {
            Self::Loaded(loaded, picked) => loaded.gather(index, picked),
            Self::Slice(batch, first) => Ok(of(batch)?.slice(*first, rows)),
            Self::Take(batch, rows) => Ok(take(of(batch)?, rows, None)?),
            Self::Null => {
                let fields = ctx.side(side).schema.fields();
                let field = fields.get(index).ok_or_else(missing)?;
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

    fn of(&self, side: Side) -> &Source<'a> {
        match side {
            Side::Build => &self.build,
            Side::Probe => &self.probe,
        }
    }
}

/// An output batch of `rows` rows. `mark` is there exactly for mark joins.
///
/// # Errors
/// If arrow cannot gather a column.
pub(crate) fn assemble(
    ctx: &JoinContext,
    sources: &Sources<'_>,
    rows: usize,
    mark: Option<BooleanArray>,
) -> Result<RecordBatch> {
    let mark: Option<ArrayRef> = mark.map(|mark| Arc::new(mark) as ArrayRef);
    let column = |column: &OutputColumn| match column {
        OutputColumn::Input(side, index) => sources.of(*side).column(ctx, (*side, *index), rows),
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
    sources: &Sources<'_>,
    rows: usize,
) -> Result<RecordBatch> {
    let column =
        |(side, index): &(Side, usize)| sources.of(*side).column(ctx, (*side, *index), rows);
    let columns = filter.columns.iter().map(column).collect::<Result<_>>()?;
    new_batch(&filter.schema, columns, rows)
}
