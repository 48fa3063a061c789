//! Columns of loaded rows: in one piece where they are looked up in the order of the streamed rows and
//! memory for merging was granted, in many otherwise.

use std::cell::OnceCell;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array, UInt32Builder, new_null_array};
use arrow::compute::take;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion_common::Result;

use super::assemble::Selection;
use super::context::{JoinContext, new_batch};
use crate::error;
use crate::keys;
use crate::memory::{
    collect_views, column_bytes, columns_bytes, concat_within, interleave_within, needed_bytes,
    restored_column, widest_value,
};
use crate::semantics::Side;
use crate::table::NO_ROW;

/// Columns of more bytes stay in pieces: 32-bit offsets end at 2 GiB.
const MAX_MERGED_BYTES: usize = 1 << 30;

/// Rows by number, column by column.
pub(crate) struct LoadedRows {
    schema: SchemaRef,
    columns: Vec<LoadedColumn>,
    /// The first row of each piece.
    starts: Vec<u32>,
    len: usize,
    row_bytes: usize,
    widest: usize,
}

/// Rows to gather, with what all columns need to know of them.
pub(crate) struct Picked<'a> {
    rows: &'a [u32],
    indices: UInt32Array,
    /// The piece of each row, and its number there, once somebody asks.
    places: OnceCell<Vec<(usize, usize)>>,
}

impl<'a> Picked<'a> {
    /// [`NO_ROW`] stands for a row of NULLs.
    pub(crate) fn new(rows: &'a [u32]) -> Self {
        Self {
            rows,
            indices: indices(rows),
            places: OnceCell::new(),
        }
    }

    fn has_none(&self) -> bool {
        self.indices.null_count() > 0
    }
}

/// Rows of one piece to copy, in their order, with what all columns need to know of them.
pub(crate) struct InOrder {
    piece: usize,
    /// Numbers in the piece.
    of_piece: Selection,
    /// Numbers among all rows.
    of_all: UInt32Array,
}

impl InOrder {
    /// `rows` are numbers of one piece's rows, ascending.
    pub(crate) fn new(loaded: &LoadedRows, rows: &[u32]) -> Self {
        let first = rows.first().copied().unwrap_or_default();
        let (piece, _) = loaded.locate(first);
        let start = loaded.starts.get(piece).copied().unwrap_or_default();
        let end = loaded.piece_end(first as usize);
        let in_piece: Vec<u32> = rows.iter().map(|row| row - start).collect();
        Self {
            piece,
            of_piece: Selection::new(&in_piece, end - start as usize),
            of_all: UInt32Array::from(rows.to_vec()),
        }
    }
}

enum LoadedColumn {
    Merged(ArrayRef),
    Pieces(Vec<ArrayRef>),
}

impl LoadedRows {
    /// Columns that came in many pieces are merged one at a time, if they are looked up in the order
    /// of the streamed rows, and where memory for the copy is granted.
    ///
    /// # Errors
    /// If arrow cannot merge a column's type.
    pub(crate) fn new(ctx: &JoinContext, side: Side, batches: Vec<RecordBatch>) -> Result<Self> {
        let schema = &ctx.side(side).schema;
        let mut starts = Vec::with_capacity(batches.len());
        let mut len = 0_usize;
        for batch in &batches {
            // The sum was checked to be within the table's numbers.
            starts.push(u32::try_from(len).unwrap_or(NO_ROW));
            len += batch.num_rows();
        }
        let mut pieces: Vec<Vec<ArrayRef>> = schema
            .fields()
            .iter()
            .map(|_| Vec::with_capacity(batches.len()))
            .collect();
        for batch in batches {
            for (column, piece) in pieces.iter_mut().zip(batch.columns()) {
                column.push(Arc::clone(piece));
            }
        }
        let (mut needed, mut widest) = (0, 0);
        let mut columns = Vec::with_capacity(pieces.len());
        for (index, pieces) in pieces.into_iter().enumerate() {
            let wanted = schema.field(index).data_type();
            let column = match pieces.as_slice() {
                [] => LoadedColumn::Merged(new_null_array(wanted, 0)),
                [only] => LoadedColumn::Merged(Arc::clone(only)).restored(wanted),
                _ if ctx.join.looks_up(side, index) => merge(ctx, pieces)?.restored(wanted),
                _ => LoadedColumn::Pieces(pieces).restored(wanted),
            };
            needed += column.pieces().iter().map(needed_bytes).sum::<usize>();
            widest += column.pieces().iter().map(widest_value).max().unwrap_or(0);
            let (bytes, most) = column.words_bytes();
            needed += bytes;
            widest += most;
            columns.push(column);
        }
        Ok(Self {
            schema: Arc::clone(schema),
            columns,
            starts,
            len,
            row_bytes: needed / len.max(1),
            widest,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The mean bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// At least the bytes of the widest row.
    pub(crate) fn widest(&self) -> usize {
        self.widest
    }

    /// The bytes that all columns, and `others` beside them, keep in memory.
    pub(crate) fn bytes_with(&self, others: &[Vec<ArrayRef>]) -> usize {
        let columns = self.columns.iter().flat_map(LoadedColumn::pieces);
        columns_bytes(columns.chain(others.iter().flatten()))
    }

    /// Column `index` of the given rows.
    ///
    /// # Errors
    /// If arrow cannot gather the column's type; [`error::is_too_many_words`] if fewer rows can be
    /// gathered.
    pub(crate) fn gather(&self, index: usize, picked: &Picked<'_>) -> Result<ArrayRef> {
        let column = self.columns.get(index);
        let column = column.ok_or_else(|| error::internal("a loaded column is missing"))?;
        match column {
            // `take` gives the first value where the row number is NULL.
            LoadedColumn::Merged(array)
                if picked.has_none() && take_ignores_nulls(array.data_type()) =>
            {
                self.interleave(column, picked)
            }
            LoadedColumn::Merged(array) => Ok(take(array, &picked.indices, None)?),
            LoadedColumn::Pieces(_) => self.interleave(column, picked),
        }
    }

    /// Column `index` of rows of one piece.
    ///
    /// # Errors
    /// If arrow cannot copy the column's type.
    pub(crate) fn pick(&self, index: usize, in_order: &InOrder) -> Result<ArrayRef> {
        let rows = &in_order.of_all;
        match self.columns.get(index) {
            // Not by slicing, which would keep the whole column.
            Some(LoadedColumn::Merged(array)) => Ok(take(array, rows, None)?),
            Some(LoadedColumn::Pieces(pieces)) => match pieces.get(in_order.piece) {
                Some(piece) => in_order.of_piece.of(piece, rows.len()),
                None => Err(error::internal("a piece of a loaded column is missing")),
            },
            None => Err(error::internal("a loaded column is missing")),
        }
    }

    /// Where the piece of a row ends: all rows are one if no column is in pieces.
    pub(crate) fn piece_end(&self, row: usize) -> usize {
        let is_merged = |column: &LoadedColumn| matches!(column, LoadedColumn::Merged(_));
        if self.columns.iter().all(is_merged) {
            return self.len;
        }
        let after = self.starts.partition_point(|start| *start as usize <= row);
        self.starts
            .get(after)
            .map_or(self.len, |start| *start as usize)
    }

    fn interleave(&self, column: &LoadedColumn, picked: &Picked<'_>) -> Result<ArrayRef> {
        let pieces = column.pieces();
        let Some(first) = pieces.first() else {
            return Err(error::internal("a loaded column without pieces"));
        };
        let none = picked
            .has_none()
            .then(|| new_null_array(first.data_type(), 1));
        let mut arrays: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
        arrays.extend(none.as_deref());
        if pieces.len() == 1 {
            let at = |row: &u32| match row {
                &NO_ROW => (1, 0),
                row => (0, *row as usize),
            };
            let rows: Vec<(usize, usize)> = picked.rows.iter().map(at).collect();
            return interleave_within(&arrays, &rows)?.ok_or_else(error::too_many_words);
        }
        let at = |row: &u32| match row {
            &NO_ROW => (pieces.len(), 0),
            row => self.locate(*row),
        };
        let places = || picked.rows.iter().map(at).collect();
        let rows = picked.places.get_or_init(places);
        interleave_within(&arrays, rows)?.ok_or_else(error::too_many_words)
    }

    /// The piece of a row, and its number there.
    fn locate(&self, row: u32) -> (usize, usize) {
        let after = self.starts.partition_point(|start| *start <= row);
        let piece = after.saturating_sub(1);
        let start = self.starts.get(piece).copied().unwrap_or_default();
        (piece, (row - start) as usize)
    }

    /// The key columns, in one piece if all columns that they are made of are, and their starts.
    ///
    /// # Errors
    /// If keys cannot be computed.
    pub(crate) fn keys(
        &self,
        ctx: &JoinContext,
        side: Side,
    ) -> Result<(Vec<Vec<ArrayRef>>, Vec<u32>)> {
        let spec = ctx.side(side);
        let is_merged =
            |index: &usize| matches!(self.columns.get(*index), Some(LoadedColumn::Merged(_)));
        let starts = if spec.key_columns.iter().all(is_merged) {
            vec![0]
        } else {
            self.starts.clone()
        };
        let schema = Arc::new(self.schema.project(&spec.key_columns)?);
        let mut keys = Vec::with_capacity(starts.len());
        for (piece, start) in starts.iter().enumerate() {
            let start = *start as usize;
            let end = starts
                .get(piece + 1)
                .map_or(self.len, |next| *next as usize);
            let columns = spec.key_columns.iter().filter_map(|index| {
                Some(match self.columns.get(*index)? {
                    LoadedColumn::Merged(array) => array.slice(start, end - start),
                    LoadedColumn::Pieces(pieces) => Arc::clone(pieces.get(piece)?),
                })
            });
            let batch = new_batch(&schema, columns.collect(), end - start)?;
            keys.push(keys::normalized(&spec.keys.evaluate(&batch)?));
        }
        Ok((keys, starts))
    }
}

impl LoadedColumn {
    /// Rows that were in buckets are stored ones.
    fn restored(self, wanted: &DataType) -> Self {
        let restored = |column: &ArrayRef| restored_column(column, wanted);
        match self {
            Self::Merged(array) => Self::Merged(restored(&array)),
            Self::Pieces(pieces) => Self::Pieces(pieces.iter().map(restored).collect()),
        }
    }

    /// The bytes of words that are copied where rows of many pieces are gathered, and of the widest.
    fn words_bytes(&self) -> (usize, usize) {
        let words = |piece: &ArrayRef| Some(Arc::clone(piece.as_any_dictionary_opt()?.values()));
        let words: Vec<ArrayRef> = self.pieces().iter().filter_map(words).collect();
        let is_one = |pair: &[ArrayRef]| matches!(pair, [a, b] if Arc::ptr_eq(a, b));
        if words.windows(2).all(is_one) {
            return (0, 0);
        }
        (
            words.iter().map(needed_bytes).sum(),
            words.iter().map(widest_value).max().unwrap_or(0),
        )
    }

    fn pieces(&self) -> &[ArrayRef] {
        match self {
            Self::Merged(array) => std::slice::from_ref(array),
            Self::Pieces(pieces) => pieces,
        }
    }
}

#[cfg_attr(
    not(feature = "testing"),
    expect(unused_variables, reason = "only tests set another cap")
)]
pub(crate) fn max_merged_bytes(ctx: &JoinContext) -> usize {
    #[cfg(feature = "testing")]
    return MAX_MERGED_BYTES.min(ctx.join.config.max_merged_bytes());
    #[cfg(not(feature = "testing"))]
    MAX_MERGED_BYTES
}

/// One array out of many, if memory for the copy is granted.
fn merge(ctx: &JoinContext, pieces: Vec<ArrayRef>) -> Result<LoadedColumn> {
    let bytes = pieces.iter().map(column_bytes).sum::<usize>();
    if bytes > max_merged_bytes(ctx) {
        return Ok(LoadedColumn::Pieces(pieces));
    }
    let Some(copy) = ctx.budget.try_lease(bytes) else {
        return Ok(LoadedColumn::Pieces(pieces));
    };
    // Each piece has few enough words for the type of its keys; all of them may not have.
    let Some(merged) = concat_within(&pieces)? else {
        return Ok(LoadedColumn::Pieces(pieces));
    };
    drop(pieces);
    // Every output batch of views would otherwise hold on to each piece's buffer by itself.
    let merged = collect_views(&merged)?;
    // From here on the rows' lease covers the copy as it covered the pieces.
    drop(copy);
    Ok(LoadedColumn::Merged(merged))
}

/// Whether `take` gives some value, and not NULL, for a NULL row number: for types without validity
/// of their own, and those that hold such a type.
fn take_ignores_nulls(data_type: &DataType) -> bool {
    match data_type {
        DataType::RunEndEncoded(_, _) | DataType::Union(_, _) => true,
        DataType::Struct(fields) => fields
            .iter()
            .any(|field| take_ignores_nulls(field.data_type())),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => take_ignores_nulls(field.data_type()),
        _ => false,
    }
}

/// Row numbers for `take`, with NULL for [`NO_ROW`].
fn indices(rows: &[u32]) -> UInt32Array {
    if !rows.contains(&NO_ROW) {
        return UInt32Array::from(rows.to_vec());
    }
    let mut builder = UInt32Builder::with_capacity(rows.len());
    for row in rows {
        builder.append_option((*row != NO_ROW).then_some(*row));
    }
    builder.finish()
}
