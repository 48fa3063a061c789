//! What is handed out: batches bounded by rows and bytes, gathered across input batches, up to the
//! limit.
//!
//! # Memory
//!
//! Rows are leased before they are made ([`Output::room`]), and so is the copy that makes one batch
//! of many pieces; where the pool refuses, fewer are made at a time, and what is gathered is handed
//! out at once, however little it is, and is no longer ours.

use std::ptr::addr_eq;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion_common::{DataFusionError, Result};
use datafusion_execution::TryEmitter;

use super::context::{JoinContext, new_batch};
use crate::memory::{Lease, column_bytes, compact, concat_within, rows_bytes};
use crate::stats::StatsCell;

/// Whether more rows are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Flow {
    /// Go on.
    More,
    /// The limit is reached: stop, in good order.
    Enough,
}

/// The bounds of an output batch's bytes, where the pool's limit does not say otherwise: small
/// enough not to matter, large enough not to cut ordinary batches.
const MOST_BYTES: std::ops::RangeInclusive<usize> = (64 << 10)..=(8 << 20);

/// The part of a partition's memory that an output batch may have, as a divisor.
const OUTPUT_PART: usize = 8;

/// The part of a batch that is handed out by itself, as a divisor: whoever comes next works off a
/// batch of two thousand rows as fast as one of eight, row by row, and copying is not free.
const GOOD_SIZE: usize = 4;

/// Rows of so many bytes are made whatever the pool says: fewer at a time would not be worth it.
const LEAST_BYTES: usize = 16 << 10;

/// Where finished rows go.
pub(crate) struct Output {
    emitter: TryEmitter<RecordBatch, DataFusionError>,
    schema: SchemaRef,
    gathered: Gathered,
    allowance: Allowance,
    batch_size: usize,
    /// Rows still wanted.
    wanted: usize,
    stats: Arc<StatsCell>,
}

/// The bytes that rows on their way out may take, and what covers them.
struct Allowance {
    lease: Lease,
    most_bytes: usize,
    /// Bytes of `most_bytes` that are covered elsewhere.
    covered: usize,
    /// What the lease is left with when a batch was handed out.
    kept: usize,
}

impl Allowance {
    /// Bounds them to what is `covered` elsewhere, and `more` if the pool grants it; `gathered` bytes
    /// are there already.
    fn bound(&mut self, gathered: usize, covered: usize, more: usize) {
        self.covered = covered;
        let own = gathered.saturating_sub(covered);
        self.lease.settle(own);
        let is_granted = self.lease.try_extend(more.saturating_sub(own));
        self.kept = if is_granted { more } else { 0 };
        self.most_bytes = (covered + self.kept).max(1);
    }

    /// Asks for what `bytes` bytes take beyond what is held; `false` is a refusal.
    fn try_hold(&mut self, bytes: usize) -> bool {
        let missing = bytes.saturating_sub(self.covered + self.lease.bytes());
        self.lease.try_extend(missing)
    }

    /// The same for bytes that are needed in any case.
    fn hold(&mut self, bytes: usize) {
        if !self.try_hold(bytes) {
            self.lease.settle(bytes.saturating_sub(self.covered));
        }
    }

    /// After a batch was handed out.
    fn release(&mut self) {
        self.lease.shrink_to(self.kept);
    }
}

/// Rows that do not fill a batch yet.
#[derive(Default)]
struct Gathered {
    /// Without columns, only the rows count.
    pieces: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
    /// The bytes of the batches that the pieces were cut from.
    pinned: usize,
}

impl Gathered {
    /// What they take while they are copied to one batch.
    fn with_copy(&self) -> usize {
        match self.pieces.len() {
            0 | 1 => self.pinned,
            _ => self.pinned + self.bytes,
        }
    }
}

impl Output {
    pub(crate) fn new(
        ctx: &JoinContext,
        emitter: TryEmitter<RecordBatch, DataFusionError>,
    ) -> Self {
        let (least, most) = MOST_BYTES.into_inner();
        let share = ctx.budget.share().map_or(most, |share| share / OUTPUT_PART);
        Self {
            emitter,
            schema: ctx.join.schema(),
            gathered: Gathered::default(),
            allowance: Allowance {
                lease: ctx.budget.empty(),
                most_bytes: share.clamp(least, most),
                covered: 0,
                kept: 0,
            },
            batch_size: ctx.batch_size.max(1),
            wanted: ctx.join.limit.unwrap_or(usize::MAX),
            stats: Arc::clone(&ctx.stats),
        }
    }

    /// Bounds the bytes of a batch to those that somebody else's lease covers, and `more` if the pool
    /// grants it.
    pub(crate) fn bound(&mut self, covered: usize, more: usize) {
        self.allowance.bound(self.gathered.pinned, covered, more);
    }

    /// The bytes that a batch may have, about.
    pub(crate) fn most_bytes(&self) -> usize {
        self.allowance.most_bytes
    }

    /// How many of `rows` rows, of at most `row_bytes` bytes each, may be made now, at least one:
    /// as many as memory was granted for.
    pub(crate) fn room(&mut self, rows: usize, row_bytes: usize) -> usize {
        let row_bytes = row_bytes.max(1);
        let mut rows = rows.min(self.most_bytes() / row_bytes).max(1);
        loop {
            let bytes = self.gathered.pinned + rows * row_bytes;
            if self.allowance.try_hold(bytes) {
                return rows;
            }
            if rows == 1 || rows * row_bytes <= LEAST_BYTES {
                self.hold(rows * row_bytes);
                return rows;
            }
            rows /= 2;
        }
    }

    /// Counts `bytes` bytes besides what is gathered, for rows that have to be made.
    pub(crate) fn hold(&mut self, bytes: usize) {
        self.allowance.hold(self.gathered.pinned + bytes);
    }

    /// Whether the limit is reached.
    pub(crate) fn flow(&self) -> Flow {
        if self.wanted == 0 {
            Flow::Enough
        } else {
            Flow::More
        }
    }

    /// Takes rows, and hands out the batches that they fill. Gives way to other tasks in any case.
    ///
    /// # Errors
    /// If arrow cannot concatenate a column's type.
    pub(crate) async fn push(&mut self, batch: RecordBatch) -> Result<Flow> {
        let rows = batch.num_rows().min(self.wanted);
        self.wanted -= rows;
        if self.gathered.rows == 0 && rows == batch.num_rows() && self.is_good(rows) {
            self.emit(batch).await;
            self.allowance.release();
            return Ok(self.flow());
        }
        let emitted = self.stats.output_batches.get();
        let values = new_values_bytes(&batch, self.gathered.pieces.last());
        let all = rows_bytes(&batch);
        let mut from = 0;
        while from < rows {
            let piece = (self.batch_size - self.gathered.rows).min(rows - from);
            let piece = batch.slice(from, piece);
            let bytes = match piece.num_rows() == batch.num_rows() {
                true => all,
                false => rows_bytes(&piece),
            };
            if self.gathered.rows > 0 && self.gathered.bytes + bytes > self.most_bytes() {
                // Together they would be larger than a batch may be.
                self.finish().await?;
                continue;
            }
            from += piece.num_rows();
            self.gather(piece, bytes, all + values);
            if self.is_full() {
                self.finish().await?;
            }
        }
        if self.wanted == 0 {
            self.finish().await?;
        }
        if emitted == self.stats.output_batches.get() {
            tokio::task::yield_now().await;
        }
        Ok(self.flow())
    }

    /// Hands out what is gathered, however little.
    ///
    /// # Errors
    /// If arrow cannot concatenate a column's type.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        let needed = self.gathered.with_copy();
        let Gathered {
            mut pieces, rows, ..
        } = std::mem::take(&mut self.gathered);
        if rows == 0 {
            return Ok(());
        }
        if pieces.is_empty() {
            let batch = new_batch(&self.schema, Vec::new(), rows)?;
            self.emit(batch).await;
        } else {
            // Before the last piece came, this was granted for the others.
            let last = match self.allowance.try_hold(needed) {
                true => None,
                false => pieces.pop(),
            };
            for batch in joined(&self.schema, pieces)?.into_iter().chain(last) {
                self.emit(batch).await;
            }
        }
        self.allowance.release();
        Ok(())
    }

    async fn emit(&mut self, batch: RecordBatch) {
        self.stats.output_rows.add(batch.num_rows());
        self.stats.output_batches.add(1);
        self.emitter.emit(batch).await;
    }

    /// Keeps a piece, the rows of which need `bytes` bytes, of a batch of `pinned` bytes.
    fn gather(&mut self, piece: RecordBatch, bytes: usize, pinned: usize) {
        self.gathered.rows += piece.num_rows();
        if !self.schema.fields().is_empty() {
            self.gathered.bytes += bytes;
            self.gathered.pinned += pinned;
            self.gathered.pieces.push(piece);
        }
    }

    /// Whether so many rows are better handed out as they are than copied.
    fn is_good(&self, rows: usize) -> bool {
        (self.batch_size.div_ceil(GOOD_SIZE)..=self.batch_size).contains(&rows)
    }

    /// Whether what is gathered is a batch: by rows, by bytes, or since the pool refuses what it
    /// and its copy take. A single piece of a good size is one too: it would only be copied.
    fn is_full(&mut self) -> bool {
        let Gathered {
            pieces,
            rows,
            bytes,
            ..
        } = &self.gathered;
        let is_large = pieces.len() == 1 && self.is_good(*rows);
        let is_full = *rows >= self.batch_size || is_large || *bytes >= self.most_bytes();
        is_full || !self.allowance.try_hold(self.gathered.with_copy())
    }
}

/// The bytes of the values of a batch's dictionaries, but for those that the piece before it has too.
fn new_values_bytes(batch: &RecordBatch, before: Option<&RecordBatch>) -> usize {
    let mut bytes = 0;
    for (index, column) in batch.columns().iter().enumerate() {
        let values = |column: &ArrayRef| Some(Arc::clone(column.as_any_dictionary_opt()?.values()));
        let Some(own) = values(column) else {
            continue;
        };
        let known = before.and_then(|before| values(before.columns().get(index)?));
        if known.is_none_or(|known| !addr_eq(Arc::as_ptr(&own), Arc::as_ptr(&known))) {
            bytes += column_bytes(&own);
        }
    }
    bytes
}

/// One batch out of pieces; several where their dictionaries together have more values than the
/// type of their keys can number.
fn joined(schema: &SchemaRef, pieces: Vec<RecordBatch>) -> Result<Vec<RecordBatch>> {
    if pieces.len() < 2 {
        return Ok(pieces);
    }
    let rows = pieces.iter().map(RecordBatch::num_rows).sum();
    let mut columns = Vec::with_capacity(schema.fields().len());
    for index in 0..schema.fields().len() {
        let column = pieces.iter().filter_map(|piece| piece.columns().get(index));
        let Some(column) = concat_within(&column.cloned().collect::<Vec<_>>())? else {
            return Ok(pieces);
        };
        columns.push(column);
    }
    // Copied anyway, so without what the pieces share with larger batches.
    Ok(vec![compact(&new_batch(schema, columns, rows)?)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Budget, Partitions};
    use datafusion_execution::memory_pool::{GreedyMemoryPool, MemoryPool};

    #[test]
    fn a_new_bound_leaves_what_is_gathered_covered() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(16_000));
        let partitions = Partitions::enter(1, &Arc::default());
        let budget = Budget::register(&pool, 0, partitions, Arc::default());
        let mut allowance = Allowance {
            lease: budget.empty(),
            most_bytes: 10_000,
            covered: 0,
            kept: 0,
        };
        assert!(allowance.try_hold(5_000));
        // Of 5000 bytes, 1000 are covered elsewhere from now on; then none again.
        for (covered, more, reserved) in [
            (1_000, 2_000, 4_000),
            (1_000, 6_000, 6_000),
            (0, 99_999, 5_000),
        ] {
            allowance.bound(5_000, covered, more);
            assert_eq!(pool.reserved(), reserved);
        }
        allowance.release();
        assert_eq!(pool.reserved(), 0);
    }
}
