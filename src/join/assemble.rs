//! Output batches out of row numbers: each output column is taken from the side it belongs to.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, BooleanBufferBuilder, RecordBatch, UInt32Array, new_null_array,
};
use arrow::compute::{FilterBuilder, FilterPredicate, take};
use datafusion_common::Result;

use super::columns::{InOrder, LoadedRows, Picked};
use super::context::{JoinContext, new_batch};
use crate::error;
use crate::memory::most_rows;
use crate::semantics::{OutputColumn, Side};

/// Where the columns of one side come from, all of one length.
pub(crate) enum Source<'a> {
    /// Loaded rows by number.
    Loaded(&'a LoadedRows, Picked<'a>),
    /// Loaded rows of one piece, in their order.
    InOrder(&'a LoadedRows, InOrder),
    /// Rows of a batch.
    Batch(&'a RecordBatch, Selection),
    /// NULL in every row.
    Null,
}

impl<'a> Source<'a> {
    /// Loaded rows by number; [`NO_ROW`](crate::table::NO_ROW) gives NULL.
    pub(crate) fn loaded(loaded: &'a LoadedRows, rows: &'a [u32]) -> Self {
        Self::Loaded(loaded, Picked::new(rows))
    }

    /// Loaded rows by number, ascending, all of one piece.
    pub(crate) fn in_order(loaded: &'a LoadedRows, rows: &[u32]) -> Self {
        Self::InOrder(loaded, InOrder::new(loaded, rows))
    }

    /// All rows of a batch.
    pub(crate) fn whole(batch: &'a RecordBatch) -> Self {
        Self::Batch(batch, Selection::Slice { first: 0 })
    }

    /// Rows of a batch by number, ascending.
    pub(crate) fn of_batch(batch: &'a RecordBatch, rows: &[u32]) -> Self {
        Self::Batch(batch, Selection::new(rows, batch.num_rows()))
    }

    fn column(
        &self,
        ctx: &JoinContext,
        (side, index): (Side, usize),
        rows: usize,
    ) -> Result<ArrayRef> {
        let missing = || error::internal(format!("column {index} of {} is missing", side.name()));
        let of = |batch: &'a RecordBatch| batch.columns().get(index).ok_or_else(missing);
        let fields = ctx.side(side).schema.fields();
        let field = fields.get(index).ok_or_else(missing)?;
        if rows > most_rows(field.data_type()) {
            return Err(error::too_many_words());
        }
        match self {
            Self::Loaded(loaded, picked) => loaded.gather(index, picked),
            Self::InOrder(loaded, in_order) => loaded.pick(index, in_order),
            Self::Batch(batch, selection) => selection.of(of(batch)?, rows),
            Self::Null => Ok(new_null_array(field.data_type(), rows)),
        }
    }
}

/// Rows of an array, in their order.
pub(crate) enum Selection {
    /// Consecutive rows.
    Slice { first: usize },
    /// Most rows, once each: copied by stretches.
    Filter(FilterPredicate),
    /// Rows by number.
    Take(UInt32Array),
}

impl Selection {
    /// A selection of at least so many fifths is copied by stretches.
    const MOST_FIFTHS: usize = 4;

    /// Rows by number, ascending, out of `total`. Most probe batches of a foreign-key join pass as
    /// they are; a small part of a batch is copied, so that it does not keep the rest.
    pub(crate) fn new(rows: &[u32], total: usize) -> Self {
        let by_number = || Self::Take(UInt32Array::from(rows.to_vec()));
        if rows.len() * 2 < total {
            return by_number();
        }
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return by_number();
        };
        let span = (last - first) as usize + 1;
        let is_descent = |pair: &&[u32]| matches!(pair, [a, b] if a >= b);
        // Counted, and not searched for, which takes a branch for each row.
        let is_ascending = || rows.windows(2).filter(is_descent).count() == 0;
        if span == rows.len() && is_ascending() {
            let first = *first as usize;
            return Self::Slice { first };
        }
        if rows.len() * 5 < total * Self::MOST_FIFTHS || !is_ascending() {
            return by_number();
        }
        let mut is_selected = BooleanBufferBuilder::new(total);
        is_selected.append_n(total, false);
        for row in rows {
            is_selected.set_bit(*row as usize, true);
        }
        let is_selected = BooleanArray::new(is_selected.finish(), None);
        Self::Filter(FilterBuilder::new(&is_selected).optimize().build())
    }

    /// The selected rows, `rows` of them, of an array.
    ///
    /// # Errors
    /// If arrow cannot copy the array's type.
    pub(crate) fn of(&self, array: &ArrayRef, rows: usize) -> Result<ArrayRef> {
        Ok(match self {
            Self::Slice { first } => array.slice(*first, rows),
            Self::Filter(predicate) => predicate.filter(array)?,
            Self::Take(rows) => take(array, rows, None)?,
        })
    }
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
