//! Loaded rows: columns, keys, table and match bits of the side that the other side is streamed
//! past.
//!
//! # Memory
//!
//! A table of `n` rows costs [`Loaded::extra_bytes`] besides the rows: 8 `n` for the directory, 4 `n`
//! for the chains, 8 `n` for the hashes, `n / 8` for match bits where the join type needs them. It
//! is reserved before the table is built. Columns that came in many pieces are merged one at a time
//! where memory for the largest one is granted, each piece released as its column is done; a column
//! that is refused, or too long for 32-bit offsets, stays in pieces and is gathered from those.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt32Array, UInt32Builder, new_null_array};
use arrow::buffer::ScalarBuffer;
use arrow::compute::{concat, interleave, take};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion_common::Result;

use super::context::{JoinContext, Rows, new_batch};
use crate::error;
use crate::keys;
use crate::memory::{Lease, collect_views, column_bytes, unshare};
use crate::semantics::{RowOutput, Side};
use crate::spill::Run;
use crate::table::{JoinTable, MAX_ROWS, MatchedBits, NO_ROW};

/// Columns of more bytes stay in pieces: 32-bit offsets end at 2 GiB.
const MAX_MERGED_BYTES: usize = 1 << 30;

/// One side's rows with everything that finding matches in them takes.
pub(crate) struct Loaded {
    pub(crate) side: Side,
    pub(crate) rows: LoadedRows,
    /// The key columns of each piece, or of all rows.
    pub(crate) keys: Vec<Vec<ArrayRef>>,
    /// The first row of each of those.
    pub(crate) key_starts: Vec<u32>,
    pub(crate) table: JoinTable,
    /// Present where rows of this side come out by whether they matched.
    pub(crate) matched: Option<MatchedBits>,
    _lease: Lease,
}

impl Loaded {
    /// The bytes that loading `rows` rows takes besides the rows themselves.
    pub(crate) fn extra_bytes(ctx: &JoinContext, side: Side, rows: usize) -> usize {
        let bits = match ctx.join.semantics.rows(side) {
            RowOutput::Nothing => 0,
            _ => MatchedBits::size_of(rows),
        };
        JoinTable::size_of(rows) + bits
    }

    /// Builds the table; `lease` covers the rows, with their hashes, and [`Self::extra_bytes`].
    ///
    /// # Errors
    /// If there are more rows than a table can number, or keys cannot be computed.
    pub(crate) fn new(
        ctx: &JoinContext,
        side: Side,
        parts: Vec<Rows>,
        mut lease: Lease,
    ) -> Result<Self> {
        let total = parts.iter().map(Rows::len).sum::<usize>();
        if total > MAX_ROWS {
            return Err(error::too_many_rows(ctx.partition, total, MAX_ROWS));
        }
        let schema = &ctx.side(side).schema;
        let mut hashes = Vec::with_capacity(total);
        let mut batches = Vec::with_capacity(parts.len());
        for part in parts {
            hashes.extend_from_slice(&part.hashes);
            batches.push(part.batch);
        }
        let table = JoinTable::new(ScalarBuffer::from(hashes));
        let rows = LoadedRows::new(ctx, schema, batches)?;
        let (keys, key_starts) = rows.keys(ctx, side)?;
        let matched = match ctx.join.semantics.rows(side) {
            RowOutput::Nothing => None,
            _ => Some(MatchedBits::new(total)),
        };
        lease.settle(rows.bytes + Self::extra_bytes(ctx, side, total));
        Ok(Self {
            side,
            rows,
            keys,
            key_starts,
            table,
            matched,
            _lease: lease,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table.len() == 0
    }
}

/// Reads a whole run to be loaded with `others` rows, or nothing if memory for it, with its part of
/// the table, is refused.
///
/// # Errors
/// If the run cannot be read.
pub(crate) async fn read_run(
    ctx: &JoinContext,
    side: Side,
    run: &Run,
    others: usize,
) -> Result<Option<(Vec<Rows>, Lease)>> {
    let Ok(rows) = usize::try_from(run.rows()) else {
        return Ok(None);
    };
    let table =
        Loaded::extra_bytes(ctx, side, rows + others) - Loaded::extra_bytes(ctx, side, others);
    let estimate = run.memory_bytes() + rows * size_of::<u64>();
    let Some(mut lease) = ctx.budget.try_lease(table + estimate) else {
        return Ok(None);
    };
    let mut reader = run.read(&ctx.spiller)?;
    let mut parts = Vec::new();
    let mut used = table;
    while let Some(batch) = reader.next().await? {
        let part = read_rows(ctx, side, &batch)?;
        used += part.bytes();
        if !lease.try_cover(used) {
            return Ok(None);
        }
        parts.push(part);
    }
    Ok(Some((parts, lease)))
}

/// Rows read back, with their hashes, in buffers of their own.
///
/// # Errors
/// If their keys cannot be computed.
pub(crate) fn read_rows(ctx: &JoinContext, side: Side, batch: &RecordBatch) -> Result<Rows> {
    let keys = ctx.keys(side, batch)?;
    Ok(Rows {
        batch: unshare(batch)?,
        hashes: keys.hashes,
    })
}

/// Rows by number, column by column.
pub(crate) struct LoadedRows {
    schema: SchemaRef,
    columns: Vec<LoadedColumn>,
    /// The first row of each piece.
    starts: Vec<u32>,
    len: usize,
    bytes: usize,
}

enum LoadedColumn {
    Merged(ArrayRef),
    Pieces(Vec<ArrayRef>),
}

impl LoadedRows {
    fn new(ctx: &JoinContext, schema: &SchemaRef, batches: Vec<RecordBatch>) -> Result<Self> {
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
        let mut bytes = 0;
        let mut columns = Vec::with_capacity(pieces.len());
        for (field, pieces) in schema.fields().iter().zip(pieces) {
            let column = if pieces.is_empty() {
                LoadedColumn::Merged(new_null_array(field.data_type(), 0))
            } else {
                merge(ctx, pieces)?
            };
            bytes += column.bytes();
            columns.push(column);
        }
        Ok(Self {
            schema: Arc::clone(schema),
            columns,
            starts,
            len,
            bytes,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The mean bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.bytes / self.len.max(1)
    }

    /// Column `index` of the given rows; [`NO_ROW`] gives NULL.
    ///
    /// # Errors
    /// If arrow cannot gather the column's type.
    pub(crate) fn gather(&self, index: usize, rows: &[u32]) -> Result<ArrayRef> {
        let column = self.columns.get(index);
        match column.ok_or_else(|| error::internal("a loaded column is missing"))? {
            LoadedColumn::Merged(array)
                if rows.contains(&NO_ROW) && has_runs(array.data_type()) =>
            {
                // `take` gives the first run's value where the row number is NULL.
                self.interleave(std::slice::from_ref(array), rows)
            }
            LoadedColumn::Merged(array) => Ok(take(array, &indices(rows), None)?),
            LoadedColumn::Pieces(pieces) => self.interleave(pieces, rows),
        }
    }

    fn interleave(&self, pieces: &[ArrayRef], rows: &[u32]) -> Result<ArrayRef> {
        let Some(first) = pieces.first() else {
            return Err(error::internal("a loaded column without pieces"));
        };
        let none = rows
            .contains(&NO_ROW)
            .then(|| new_null_array(first.data_type(), 1));
        let mut arrays: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
        arrays.extend(none.as_deref());
        let at = |row: &u32| {
            if *row == NO_ROW {
                return (pieces.len(), 0);
            }
            if pieces.len() == 1 {
                return (0, *row as usize);
            }
            let piece = self
                .starts
                .partition_point(|start| start <= row)
                .saturating_sub(1);
            let start = self.starts.get(piece).copied().unwrap_or_default();
            (piece, (row - start) as usize)
        };
        Ok(interleave(
            &arrays,
            &rows.iter().map(at).collect::<Vec<_>>(),
        )?)
    }

    /// The key columns, in one piece if all columns that they are made of are, and their starts.
    fn keys(&self, ctx: &JoinContext, side: Side) -> Result<(Vec<Vec<ArrayRef>>, Vec<u32>)> {
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
    fn bytes(&self) -> usize {
        match self {
            Self::Merged(array) => column_bytes(array),
            Self::Pieces(pieces) => pieces.iter().map(column_bytes).sum(),
        }
    }
}

/// One array out of many, if memory for the copy is granted.
fn merge(ctx: &JoinContext, pieces: Vec<ArrayRef>) -> Result<LoadedColumn> {
    if let [only] = pieces.as_slice() {
        return Ok(LoadedColumn::Merged(Arc::clone(only)));
    }
    let bytes = pieces.iter().map(column_bytes).sum::<usize>();
    if bytes > MAX_MERGED_BYTES {
        return Ok(LoadedColumn::Pieces(pieces));
    }
    let Some(copy) = ctx.budget.try_lease(bytes) else {
        return Ok(LoadedColumn::Pieces(pieces));
    };
    let arrays: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
    let mut merged = concat(&arrays)?;
    drop(pieces);
    // Every output batch of views would otherwise hold on to each piece's buffer by itself.
    merged = collect_views(&merged);
    // From here on the rows' lease covers the copy as it covered the pieces.
    drop(copy);
    Ok(LoadedColumn::Merged(merged))
}

/// Whether the type is run-end encoded, or holds such a type.
fn has_runs(data_type: &DataType) -> bool {
    match data_type {
        DataType::RunEndEncoded(_, _) => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_runs(field.data_type())),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => has_runs(field.data_type()),
        DataType::Union(fields, _) => fields.iter().any(|(_, field)| has_runs(field.data_type())),
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
