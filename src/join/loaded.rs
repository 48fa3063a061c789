//! Loaded rows: columns, keys, table and match bits of the side that the other side is streamed
//! past.
//!
//! # Memory
//!
//! A table of `n` rows costs [`Loaded::extra_bytes`] besides the rows: 8 `n` for the directory, 4 `n`
//! for the chains, `n / 8` for match bits where the join type needs them, and what computed keys
//! take. It is reserved before the table is built. A directory that is addressed by the keys
//! themselves may take more, where that is granted. Columns that came in many pieces are merged one
//! at a time where memory for the largest one is granted, each piece released as its column is done;
//! a column that is refused, or too long for 32-bit offsets, stays in pieces and is gathered from
//! those.

use arrow::array::ArrayRef;
use arrow::record_batch::RecordBatch;
use datafusion_common::{DataFusionError, Result};

use super::columns::{LoadedRows, max_merged_bytes};
use super::context::{JoinContext, Rows};
use crate::error;
use crate::keys::{self, KeyRange, Keys};
use crate::memory::{
    Growing, Lease, READER_BYTES, Texts, Unshare, grows_in_place, restored_extra, text_bytes,
};
use crate::semantics::{RowOutput, Side};
use crate::spill::{ReadAs, Run, RunReader};
use crate::table::{JoinTable, MAX_ROWS, MatchedBits, TableBuilder};

/// The most slots for each row of a table that is addressed by keys: a quarter of the range of keys
/// is there, and the directory no more than twice the size of one that is addressed by hashes.
const DIRECT_SLOTS_PER_ROW: usize = 4;

/// As many slots are always few enough.
const DIRECT_SLOTS: usize = 1024;

/// One side's rows with everything that finding matches in them takes.
pub(crate) struct Loaded {
    pub(crate) side: Side,
    pub(crate) rows: LoadedRows,
    pub(crate) index: Index,
    /// Present where rows of this side come out by whether they matched.
    pub(crate) matched: Option<MatchedBits>,
    _lease: Lease,
}

/// What finds rows by their keys.
pub(crate) struct Index {
    /// The key columns of each piece, or of all rows.
    pub(crate) keys: Vec<Vec<ArrayRef>>,
    /// The first row of each of those.
    pub(crate) starts: Vec<u32>,
    pub(crate) table: JoinTable,
}

impl Loaded {
    /// The bytes that loading `rows` rows takes besides the rows themselves.
    pub(crate) fn extra_bytes(ctx: &JoinContext, side: Side, rows: usize) -> usize {
        let bits = match ctx.join.semantics.rows(side) {
            RowOutput::Nothing => 0,
            _ => MatchedBits::size_of(rows),
        };
        JoinTable::size_of(rows) + bits + rows * ctx.computed_bytes(side)
    }

    /// The same for rows as they are stored.
    pub(crate) fn stored_extra_bytes(ctx: &JoinContext, side: Side, rows: usize) -> usize {
        Self::extra_bytes(ctx, side, rows) + restored_extra(&ctx.side(side).schema, rows)
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
        let (batches, hashes): (Vec<_>, Vec<_>) = parts
            .into_iter()
            .map(|part| (part.batch, part.hashes))
            .unzip();
        let address = Address::choose(ctx, side, (&batches, &hashes), &mut lease)?;
        // What the hashes took is there for merging columns.
        let freed: usize = hashes.iter().map(Vec::capacity).sum::<usize>() * size_of::<u64>();
        drop(hashes);
        lease.shrink_to(lease.bytes().saturating_sub(freed));
        let rows = LoadedRows::new(ctx, side, batches)?;
        let (keys, starts) = rows.keys(ctx, side)?;
        let table = match address {
            Address::Hashes(table) => table,
            Address::Keys(range) => direct_table(&keys, total, range),
        };
        let matched = match ctx.join.semantics.rows(side) {
            RowOutput::Nothing => None,
            _ => Some(MatchedBits::new(total)),
        };
        let bits = matched.as_ref().map_or(0, |_| MatchedBits::size_of(total));
        lease.settle(rows.bytes_with(&keys) + table.bytes() + bits);
        Ok(Self {
            side,
            rows,
            index: Index {
                keys,
                starts,
                table,
            },
            matched,
            _lease: lease,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.table.len() == 0
    }

    /// The keys of rows that are streamed past these, hashed where these are found by hash.
    ///
    /// # Errors
    /// If keys cannot be computed.
    pub(crate) fn streamed_keys(&self, ctx: &JoinContext, batch: &RecordBatch) -> Result<Keys> {
        match self.index.table.is_direct() {
            true => ctx.unhashed_keys(self.side.other(), batch),
            false => ctx.keys(self.side.other(), batch),
        }
    }
}

fn hashed_table(hashes: &[Vec<u64>], rows: usize) -> JoinTable {
    let mut starts = Vec::with_capacity(hashes.len());
    let mut start = 0;
    for hashes in hashes {
        starts.push(start);
        start += hashes.len();
    }
    let hash = |row: u32| {
        let part = starts.partition_point(|start| *start <= row as usize);
        let part = part.saturating_sub(1);
        let part = hashes.get(part).zip(starts.get(part));
        let hash = part.and_then(|(hashes, start)| hashes.get(row as usize - start));
        hash.copied().unwrap_or_default()
    };
    let mut table = TableBuilder::hashed(rows);
    for hashes in hashes.iter().rev() {
        table.prepend(hashes.iter().copied(), hash);
    }
    table.finish()
}

/// Inserts rows by their keys.
struct Prepend<'a>(&'a mut TableBuilder);

impl keys::Visitor for Prepend<'_> {
    fn visit(self, numbers: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) {
        self.0.prepend(numbers, |_| 0);
    }
}

/// What rows are found by.
enum Address {
    Hashes(JoinTable),
    Keys(KeyRange),
}

impl Address {
    /// By the keys, if they are whole numbers close together and memory for what that takes more than
    /// a hash table is granted.
    fn choose(
        ctx: &JoinContext,
        side: Side,
        (batches, hashes): (&[RecordBatch], &[Vec<u64>]),
        lease: &mut Lease,
    ) -> Result<Self> {
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        if let Some(range) = direct_range(ctx, side, batches, rows)?
            && lease.try_extend(direct_bytes(range, rows).saturating_sub(JoinTable::size_of(rows)))
        {
            return Ok(Self::Keys(range));
        }
        Ok(Self::Hashes(hashed_table(hashes, rows)))
    }
}

/// The range of the keys, if a table of so many rows can be addressed by them.
fn direct_range(
    ctx: &JoinContext,
    side: Side,
    batches: &[RecordBatch],
    rows: usize,
) -> Result<Option<KeyRange>> {
    let types = ctx.side(side).keys.data_types();
    if !matches!(types.as_slice(), [only] if keys::has_range(only)) || ctx.has_forced_collisions() {
        return Ok(None);
    }
    let mut pieces = Vec::with_capacity(batches.len());
    for batch in batches {
        pieces.extend(ctx.unhashed_keys(side, batch)?.columns);
    }
    let most_slots = (rows * DIRECT_SLOTS_PER_ROW).max(DIRECT_SLOTS);
    Ok(keys::key_range(pieces.iter(), most_slots as u64 - 1))
}

fn direct_slots(range: KeyRange) -> usize {
    // Checked against the most slots, which is a `usize`.
    usize::try_from(range.span).unwrap_or(usize::MAX - 1) + 1
}

fn direct_bytes(range: KeyRange, rows: usize) -> usize {
    JoinTable::direct_size_of(rows, direct_slots(range))
}

fn direct_table(keys: &[Vec<ArrayRef>], rows: usize, range: KeyRange) -> JoinTable {
    let mut table = TableBuilder::direct(rows, range.smallest, direct_slots(range));
    for column in keys.iter().rev().flatten() {
        keys::visit_ordinals(column, Prepend(&mut table));
    }
    table.finish()
}

/// A reader of a run that is to be loaded, ahead of its turn.
pub(crate) struct ReadAhead {
    reader: RunReader,
    /// Covers what it has read.
    _lease: Lease,
}

impl ReadAhead {
    /// Optional: nothing if the pool refuses, or the file cannot be read, which will be found again.
    pub(crate) fn start(ctx: &JoinContext, run: &Run) -> Option<Self> {
        let lease = ctx.budget.try_lease(READER_BYTES)?;
        let mut reader = run.read(&ctx.spiller, ReadAs::Stored).ok()?;
        reader.read_ahead();
        Some(Self {
            reader,
            _lease: lease,
        })
    }
}

impl std::fmt::Debug for ReadAhead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadAhead").finish_non_exhaustive()
    }
}

/// Reads a whole run to be loaded with `others` rows, or nothing if memory for it, with its part of
/// the table, is refused. It may have been begun to read.
///
/// # Errors
/// If the run cannot be read.
pub(crate) async fn read_run(
    ctx: &JoinContext,
    (side, run): (Side, &Run),
    ahead: Option<ReadAhead>,
    others: usize,
) -> Result<Option<(Vec<Rows>, Lease)>> {
    let Ok(rows) = usize::try_from(run.rows()) else {
        return Ok(None);
    };
    if rows + others > ctx.max_rows() {
        return Ok(None);
    }
    // It is the one open reader now, which the working space covers.
    let ahead = ahead.map(|ahead| ahead.reader);
    let table =
        Loaded::extra_bytes(ctx, side, rows + others) - Loaded::extra_bytes(ctx, side, others);
    let estimate = run.memory_bytes() + rows * size_of::<u64>();
    let Some(mut lease) = ctx.budget.try_lease(table + estimate) else {
        return Ok(None);
    };
    let mut reader = match ahead {
        Some(reader) => reader,
        None => run.read(&ctx.spiller, ReadAs::Stored)?,
    };
    if grows_in_place(run.stored_schema()) {
        return Ok(Some((grown(ctx, side, run, reader).await?, lease)));
    }
    let mut parts = Vec::new();
    let mut unshare = Unshare::default();
    let mut used = table + restored_extra(&ctx.side(side).schema, rows);
    while let Some(batch) = reader.next().await? {
        let part = read_rows(ctx, side, (&batch, &mut unshare))?;
        used += part.bytes();
        if !lease.try_cover(used) {
            return Ok(None);
        }
        parts.push(part);
    }
    Ok(Some((parts, lease)))
}

/// All rows of a run in one part, or in as many as keep the texts of a column within their offsets.
async fn grown(
    ctx: &JoinContext,
    side: Side,
    run: &Run,
    mut reader: RunReader,
) -> Result<Vec<Rows>> {
    let most = max_merged_bytes(ctx).max(1);
    let texts = run.text_bytes();
    let count = texts
        .iter()
        .max()
        .map_or(1, |bytes| bytes.div_ceil(most).max(1));
    let run_rows = usize::try_from(run.rows()).unwrap_or(usize::MAX);
    let rows = run_rows.div_ceil(count);
    let texts: Vec<usize> = texts.iter().map(|bytes| bytes.div_ceil(count)).collect();
    // Parts are cut between frames, so all but the last are a little shorter than their part.
    let (mut rows_left, mut texts_left) = (run_rows, run.text_bytes().to_vec());
    let empty = |rows_left: usize, texts_left: &[usize]| {
        let texts = texts
            .iter()
            .zip(texts_left)
            .map(|(part, left)| *part.min(left));
        let texts: Vec<usize> = texts.collect();
        Growing::new(
            run.stored_schema(),
            rows.min(rows_left),
            Texts::Exactly(&texts),
        )
    };
    let finish = |growing: Growing| {
        let batch = growing.finish()?;
        let hashes = ctx.keys(side, &batch)?.hashes;
        Ok::<_, DataFusionError>(Rows::new(batch, hashes))
    };
    let mut parts = Vec::with_capacity(count);
    let mut growing = empty(rows_left, &texts_left);
    while let Some(batch) = reader.next().await? {
        let is_full = growing.rows() + batch.num_rows() > rows || growing.bytes() >= most;
        if count > 1 && growing.rows() > 0 && is_full {
            let full = std::mem::replace(&mut growing, empty(rows_left, &texts_left));
            parts.push(finish(full)?);
        }
        if !growing.append(&batch)? {
            return Err(error::internal(
                "numbers and texts have no words to be numbered",
            ));
        }
        rows_left = rows_left.saturating_sub(batch.num_rows());
        for (left, bytes) in texts_left.iter_mut().zip(text_bytes(&batch)) {
            *left = left.saturating_sub(bytes);
        }
    }
    parts.push(finish(growing)?);
    Ok(parts)
}

/// Rows read back, with their hashes, in buffers of their own.
///
/// # Errors
/// If their keys cannot be computed.
pub(crate) fn read_rows(
    ctx: &JoinContext,
    side: Side,
    (batch, unshare): (&RecordBatch, &mut Unshare),
) -> Result<Rows> {
    let keys = ctx.keys(side, batch)?;
    let (rows, counted) = unshare.rows(batch)?;
    Ok(Rows::sharing(rows, keys.hashes, counted))
}
