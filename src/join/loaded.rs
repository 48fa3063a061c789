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

use arrow::array::ArrayRef;
use arrow::buffer::ScalarBuffer;
use arrow::record_batch::RecordBatch;
use datafusion_common::Result;

use super::columns::LoadedRows;
use super::context::{JoinContext, Rows};
use crate::error;
use crate::memory::{Lease, unshare};
use crate::semantics::{RowOutput, Side};
use crate::spill::Run;
use crate::table::{JoinTable, MAX_ROWS, MatchedBits};

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
        lease.settle(rows.bytes_with(&keys) + Self::extra_bytes(ctx, side, total));
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
    if rows + others > ctx.max_rows() {
        return Ok(None);
    }
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
    Ok(Rows::new(unshare(batch)?, keys.hashes))
}
