//! The build phase, while everything fits: batches are buffered as they come, with their hashes.
//!
//! Nothing is partitioned before the pool refuses for the first time; if the input ends before
//! that, this is an ordinary in-memory hash join.
//!
//! # Memory
//!
//! Each buffered batch is reserved before it is kept. With the first batches the head-room is
//! reserved too: what splitting takes (the floor of [`WorkSpace`], twice the largest batch, and a
//! Bloom filter), since at the moment of the refusal the pool has nothing to give. A build below
//! [`TINY_BUILD`] bytes reserves only as much again as its rows take.
//!
//! # Degenerate cases
//!
//! - *NULL keys* under `NullEqualsNothing` never enter a bucket: they are dropped on arrival where
//!   unmatched build rows do not come out, and otherwise kept aside, and handed out at the first
//!   refusal or at the end; those of NOT IN wait for the probe side (`null_aware`).
//! - *No disk*: the refusal becomes an error that says how to enable spilling.

use datafusion_common::Result;
use futures::StreamExt;
use tokio::task::coop::consume_budget;

use super::assemble::{Source, Sources, assemble};
use super::builder::BuildObserver;
use super::context::{JoinContext, Rows, all_rows, take_rows};
use super::loaded::Loaded;
use super::output::{Flow, Output};
use super::scan::split_by_validity;
use super::split::{SpilledKeys, Split, SplitBuild};
use crate::config::SpillPolicy;
use crate::memory::{Lease, WorkSpace, batch_bytes, compact, rows_bytes};
use crate::semantics::{RowOutput, Side};
use arrow::array::{BooleanArray, RecordBatch};
use datafusion_execution::SendableRecordBatchStream;
use std::time::Instant;

/// Builds below this many bytes do not reserve the whole floor.
const TINY_BUILD: usize = 64 << 10;

/// How many batches of the largest size the head-room holds: the copy of one while it is scattered,
/// and the one in hand that the pool has refused.
pub(crate) const RESERVED_BATCHES: usize = 2;

/// What the build phase leaves behind.
pub(crate) struct Built {
    /// The resident rows.
    pub(crate) loaded: Loaded,
    /// Build rows whose key is NULL and that come out unmatched, if they are still to come out and
    /// in memory.
    pub(crate) null_keys: Vec<Held<RecordBatch>>,
    /// The buckets on disk, if there are any.
    pub(crate) split: Option<SplitBuild>,
    /// Covers a probe batch of the size of the largest build batch.
    pub(crate) in_hand: Lease,
}

/// Rows with the lease that covers them.
pub(crate) struct Held<T> {
    pub(crate) rows: T,
    pub(crate) lease: Lease,
}

/// Reads the build side.
///
/// # Errors
/// If the input or the observer fails, memory is below the floor, or spilling fails.
pub(crate) async fn build(
    ctx: &JoinContext,
    mut input: SendableRecordBatchStream,
    mut observer: Option<Box<dyn BuildObserver>>,
    out: &mut Output,
) -> Result<Built> {
    let mut state = match ctx.join.config.spill() {
        SpillPolicy::Pressure => State::Plain(Plain::new(ctx)),
        _ => State::Split(Split::forced(ctx).await?),
    };
    while let Some(batch) = input.next().await.transpose()? {
        consume_budget().await;
        let start = Instant::now();
        ctx.stats.build_batches.add(1);
        ctx.stats.build_rows.add(batch.num_rows());
        let arrived = Arrived::new(ctx, &batch, observer.as_deref_mut())?;
        ctx.stats.largest_batch_bytes.max(arrived.bytes() as u64);
        drop(batch);
        ctx.stats.build_nanos.add_since(start);
        if arrived.is_empty() {
            continue;
        }
        state = state.add(ctx, arrived, out).await?;
        if out.flow() == Flow::Enough {
            break;
        }
    }
    drop(input);
    let built = match state {
        State::Plain(plain) => plain.finish(ctx, out).await?,
        State::Split(split) => split.finish(ctx).await?,
    };
    match observer {
        Some(observer) if out.flow() == Flow::More => observer.built().await?,
        _ => {}
    }
    Ok(built)
}

/// A build batch on arrival.
struct Arrived {
    rows: Rows,
    /// The rows that can match, if not all of them.
    valid: Option<Vec<u32>>,
    /// Rows with a NULL key that come out unmatched.
    null_keys: Option<RecordBatch>,
}

impl Arrived {
    fn new(
        ctx: &JoinContext,
        batch: &RecordBatch,
        observer: Option<&mut (dyn BuildObserver + 'static)>,
    ) -> Result<Self> {
        let batch = ctx.narrow(Side::Build, batch)?;
        let keys = ctx.keys(Side::Build, &batch)?;
        if let Some(observer) = observer {
            observer.keys(&keys.columns)?;
        }
        let (null, valid) = split_by_validity(&keys, batch.num_rows());
        if null.is_empty() {
            return Ok(Self {
                rows: Rows::new(compact(&batch)?, keys.hashes),
                valid: None,
                null_keys: None,
            });
        }
        let keeps = ctx.join.semantics.rows(Side::Build).keeps_unmatched();
        let null_keys = keeps.then(|| take_rows(&batch, &null)).transpose()?;
        Ok(Self {
            rows: Rows::new(compact(&batch)?, keys.hashes),
            valid: Some(valid),
            null_keys,
        })
    }

    fn is_empty(&self) -> bool {
        let rows = self.valid.as_ref().map_or(self.rows.len(), Vec::len);
        rows == 0 && self.null_keys.is_none()
    }

    fn bytes(&self) -> usize {
        self.rows.bytes() + self.null_keys.as_ref().map_or(0, batch_bytes)
    }
}

/// Where the build phase stands.
enum State {
    Plain(Plain),
    Split(Split),
}

impl State {
    async fn add(self, ctx: &JoinContext, arrived: Arrived, out: &mut Output) -> Result<Self> {
        let mut split = match self {
            Self::Plain(mut plain) => match plain.try_add(ctx, arrived)? {
                None => return Ok(Self::Plain(plain)),
                Some(refused) => {
                    let mut split = plain.split(ctx, refused.bytes(), out).await?;
                    add_split(ctx, &mut split, refused, out).await?;
                    return Ok(Self::Split(split));
                }
            },
            Self::Split(split) => split,
        };
        add_split(ctx, &mut split, arrived, out).await?;
        Ok(Self::Split(split))
    }
}

/// Adds a batch in hand to a build that is split.
async fn add_split(
    ctx: &JoinContext,
    split: &mut Split,
    arrived: Arrived,
    out: &mut Output,
) -> Result<()> {
    let lease = split.admit(ctx, arrived.bytes()).await?;
    if let Some(null_keys) = arrived.null_keys {
        split.add_null_keys(ctx, &null_keys, out).await?;
    }
    let rows = arrived.rows;
    let held = Held { rows, lease };
    split.add(ctx, held, arrived.valid.as_deref()).await
}

/// Everything in memory, in the order of arrival.
struct Plain {
    rows: Vec<Held<Rows>>,
    null_keys: Vec<Held<RecordBatch>>,
    /// Of all rows with keys.
    row_count: usize,
    bytes: usize,
    largest: usize,
    headroom: Lease,
}

impl Plain {
    fn new(ctx: &JoinContext) -> Self {
        Self {
            rows: Vec::new(),
            null_keys: Vec::new(),
            row_count: 0,
            bytes: 0,
            largest: 0,
            headroom: ctx.budget.empty(),
        }
    }

    /// Keeps the batch, or gives it back if the pool refuses.
    fn try_add(&mut self, ctx: &JoinContext, mut arrived: Arrived) -> Result<Option<Arrived>> {
        if let Some(last) = self.rows.last() {
            arrived.rows.share_with(&last.rows);
        }
        let bytes = arrived.bytes();
        let total = self.bytes + bytes;
        let row_count = self.row_count + arrived.rows.len();
        let largest = self.largest.max(bytes);
        let headroom = if total <= TINY_BUILD {
            total
        } else {
            let filter = SpilledKeys::bytes_for(ctx, row_count, total);
            WorkSpace::FLOOR.bytes() + RESERVED_BATCHES * largest + filter
        };
        let mut more = headroom.saturating_sub(self.headroom.bytes());
        let mut lease = ctx.budget.try_lease(bytes + more);
        if lease.is_none() && !self.can_split(ctx) {
            // There is no memory to spill with; the rows by themselves may yet fit.
            more = 0;
            lease = ctx.budget.try_lease(bytes);
        }
        let Some(mut lease) = lease else {
            arrived.rows.count_words();
            return Ok(Some(arrived));
        };
        self.headroom.absorb(lease.split(more));
        (self.row_count, self.bytes, self.largest) = (row_count, total, largest);
        if let Some(rows) = arrived.null_keys {
            let lease = lease.split(batch_bytes(&rows));
            self.null_keys.push(Held { rows, lease });
        }
        let mut rows = match arrived.valid {
            None => arrived.rows,
            // The head-room has space for the copy.
            Some(valid) => arrived.rows.take(&valid)?,
        };
        if let Some(last) = self.rows.last() {
            rows.share_with(&last.rows);
        }
        lease.settle(rows.bytes());
        self.rows.push(Held { rows, lease });
        Ok(None)
    }

    /// Whether the floor, which splitting takes, is held or could be.
    fn can_split(&self, ctx: &JoinContext) -> bool {
        let missing = WorkSpace::FLOOR
            .bytes()
            .saturating_sub(self.headroom.bytes());
        ctx.spiller.is_enabled() && ctx.budget.try_lease(missing).is_some()
    }

    /// After the first refusal: the NULL keys come out, or go to their run, everything else goes to
    /// its bucket. The batch that was refused, of `in_hand` bytes, waits for its turn.
    async fn split(self, ctx: &JoinContext, in_hand: usize, out: &mut Output) -> Result<Split> {
        let mut split = Split::under_pressure(ctx, &self.rows, self.headroom, self.largest).await?;
        let _in_hand = split.cover(in_hand);
        for held in self.null_keys {
            split.add_null_keys(ctx, &held.rows, out).await?;
        }
        let mut rows = self.rows.into_iter().peekable();
        while let Some(mut held) = rows.next() {
            if let Some(next) = rows.peek_mut() {
                // Words that they share are the next one's from here on.
                let words = next.rows.count_words();
                next.lease.absorb(held.lease.split(words));
            }
            split.add(ctx, held, None).await?;
        }
        Ok(split)
    }

    /// Everything fits, if the table does.
    async fn finish(mut self, ctx: &JoinContext, out: &mut Output) -> Result<Built> {
        let rows = self.rows.iter().map(|held| held.rows.len()).sum();
        let extra = Loaded::extra_bytes(ctx, Side::Build, rows);
        let more = extra.saturating_sub(self.headroom.bytes());
        let is_too_long = rows > ctx.max_rows();
        let Some(lease) = ctx.budget.try_lease(more).filter(|_| !is_too_long) else {
            return self.split(ctx, 0, out).await?.finish(ctx).await;
        };
        self.headroom.absorb(lease);
        let mut lease = self.headroom.split(extra);
        let mut parts = Vec::with_capacity(self.rows.len());
        for held in self.rows {
            lease.absorb(held.lease);
            parts.push(held.rows);
        }
        // The rest of the head-room is free for merging columns, and for the output.
        self.headroom.shrink_to(self.largest);
        let start = Instant::now();
        let loaded = Loaded::new(ctx, Side::Build, parts, lease)?;
        ctx.stats.build_nanos.add_since(start);
        Ok(Built {
            loaded,
            null_keys: self.null_keys,
            split: None,
            in_hand: self.headroom,
        })
    }
}

/// Hands out rows of one side that have no match.
///
/// # Errors
/// If arrow cannot assemble the output.
pub(crate) async fn hand_out_unmatched(
    ctx: &JoinContext,
    side: Side,
    rows: &RecordBatch,
    out: &mut Output,
) -> Result<Flow> {
    let output = ctx.join.semantics.rows(side);
    if !output.keeps_unmatched() || rows.num_rows() == 0 {
        return Ok(out.flow());
    }
    let row_bytes = (rows_bytes(rows) / rows.num_rows()).max(1);
    let mut from = 0;
    while from < rows.num_rows() {
        let most = ctx.batch_size.min(rows.num_rows() - from);
        let piece = rows.slice(from, out.room(most, row_bytes));
        let mark = (output == RowOutput::Marked)
            .then(|| BooleanArray::from(vec![false; piece.num_rows()]));
        let sources = Sources::new(side, Source::whole(&piece), Source::Null);
        if out
            .push(assemble(ctx, &sources, piece.num_rows(), mark)?)
            .await?
            == Flow::Enough
        {
            return Ok(Flow::Enough);
        }
        from += piece.num_rows();
    }
    Ok(out.flow())
}

/// Hands out the loaded rows that come out singly, after all streamed rows went by.
///
/// # Errors
/// If arrow cannot assemble the output.
pub(crate) async fn hand_out_loaded(
    ctx: &JoinContext,
    loaded: &Loaded,
    out: &mut Output,
) -> Result<Flow> {
    let Some(matched) = &loaded.matched else {
        return Ok(out.flow());
    };
    let output = ctx.join.semantics.rows(loaded.side);
    let row_bytes = loaded.rows.row_bytes().max(loaded.rows.widest()).max(1);
    let mut rows = Vec::new();
    let is_wanted = match output {
        RowOutput::Nothing => return Ok(out.flow()),
        RowOutput::Matched => Some(true),
        RowOutput::Unmatched => Some(false),
        RowOutput::Marked => None,
    };
    let mut from = 0;
    while from < loaded.rows.len() {
        let end = loaded.rows.piece_end(from);
        rows.clear();
        let most = out.room(ctx.batch_size.min(end - from), row_bytes);
        match is_wanted {
            Some(is_matched) => rows.extend(matched.rows(from..end, is_matched).take(most)),
            None => rows.extend(all_rows(end).skip(from).take(most)),
        }
        from = match rows.last() {
            Some(last) if rows.len() == most => *last as usize + 1,
            _ => end,
        };
        if rows.is_empty() {
            continue;
        }
        let mark = (output == RowOutput::Marked).then(|| {
            rows.iter()
                .map(|row| Some(matched.get(*row as usize)))
                .collect()
        });
        let sources = Sources::new(
            loaded.side,
            Source::in_order(&loaded.rows, &rows),
            Source::Null,
        );
        if out.push(assemble(ctx, &sources, rows.len(), mark)?).await? == Flow::Enough {
            return Ok(Flow::Enough);
        }
    }
    Ok(out.flow())
}
