//! The build phase after the first refusal: every row is in its bucket, resident or on disk.
//!
//! The victims of the split are chosen from the hashes alone, before a byte is copied; then batches
//! are scattered one by one, each released as it is done. A bucket on disk keeps one write buffer
//! and never becomes resident again here. Later refusals give up the largest resident bucket.
//!
//! # Memory
//!
//! [`Space`] is held from the split to the end of the join: the floor, and what buckets beyond the
//! smallest number take besides. The copy of a batch's resident rows is covered by a reserve of the
//! size of the largest batch, which the batch's own lease refills once its rows are copied.
//!
//! # Degenerate cases
//!
//! - *One key*: all rows are in one bucket, which is given up as a whole, once.
//! - *A batch larger than the share*: it exists already, so it is charged, after every resident
//!   bucket was given up.

use std::time::Instant;

use arrow::record_batch::RecordBatch;
use datafusion_common::Result;

use super::build::{Built, Held, RESERVED_BATCHES, hand_out_unmatched};
use super::context::{JoinContext, Rows, all_rows};
use super::loaded::{Loaded, read_run};
use super::null_aware::NullKeyWriter;
use super::output::Output;
use super::patience::require;
use super::resident::Resident;
use super::space::{Space, output_bytes};
use super::victim;
use crate::bucket::{Bloom, FanOut, Level, Scatter};
use crate::config::SpillPolicy;
use crate::error;
use crate::keys::bucket_of;
use crate::memory::{Lease, WorkSpace};
use crate::semantics::Side;
use crate::spill::{Pick, Run, RunWriter, finished};

/// A build side in buckets.
pub(crate) struct Split {
    space: Space,
    buckets: Vec<Bucket>,
    /// Over the build rows on disk.
    bloom: Option<SpilledKeys>,
    /// The build rows with a NULL key, where they wait for the probe side.
    null_keys: Option<Box<NullKeyWriter>>,
    /// Covers copies of resident rows while the batch that they come from is still there.
    reserve: Lease,
    reserve_target: usize,
}

enum Bucket {
    Resident(Resident),
    Spilled(RunWriter),
}

/// A Bloom filter with the lease that covers it.
pub(crate) struct SpilledKeys {
    pub(crate) bloom: Bloom,
    /// Batches that are still to pass without asking.
    pause: usize,
    _lease: Lease,
}

/// The part of what is held that a Bloom filter may take, as a divisor. It is reserved with the
/// head-room: a filter only where the pool has something left at the refusal would make more memory
/// write more.
const BLOOM_PART: usize = 32;

/// The most bytes of a Bloom filter for each row seen at the first refusal and each bucket: two
/// bytes a row keep it below half full if that was one bucket's worth of the build side.
const BLOOM_BYTES_PER_ROW: usize = 2;

/// The part of the rows that must miss the filter, as a divisor: what that saves of writing and
/// reading is about what asking costs.
const WORTH_ASKING: usize = 16;

/// Batches that pass without asking after one of which too few rows missed.
const PAUSE: usize = 15;

impl SpilledKeys {
    /// The bytes of a filter for `rows` rows at the first refusal, of `bytes` bytes.
    pub(crate) fn bytes_for(ctx: &JoinContext, rows: usize, bytes: usize) -> usize {
        (rows * ctx.join.config.fan_out() * BLOOM_BYTES_PER_ROW).min(bytes / BLOOM_PART)
    }

    /// Of `bytes` bytes, some of which `lease` covers. Optional: nothing if the pool refuses.
    fn new(mut lease: Lease, bytes: usize) -> Option<Self> {
        let is_covered = lease.try_cover(bytes);
        lease.shrink_to(bytes);
        let bloom = is_covered.then(|| Bloom::new(bytes)).flatten()?;
        Some(Self {
            bloom,
            pause: 0,
            _lease: lease,
        })
    }

    /// The filter, if asking it may pay for the next batch.
    pub(crate) fn to_ask(&self) -> Option<&Bloom> {
        (self.pause == 0).then_some(&self.bloom)
    }

    /// Learns from a batch: of the rows of buckets on disk, how many were asked about missed.
    pub(crate) fn note_answers(&mut self, rows: usize, misses: usize) {
        self.pause = match self.pause {
            0 if misses * WORTH_ASKING < rows => PAUSE,
            pause => pause.saturating_sub(1),
        };
    }

    fn note<'a>(&mut self, hashes: impl Iterator<Item = &'a u64>) {
        for hash in hashes {
            self.bloom.insert(*hash);
        }
    }
}

/// What the split leaves to the probe phase.
pub(crate) struct SplitBuild {
    pub(crate) space: Space,
    /// The build run of each bucket on disk that has rows; `None` where the probe row can be
    /// decided on the spot.
    pub(crate) runs: Vec<Option<Run>>,
    /// Without it, every probe row of a bucket on disk may match.
    pub(crate) bloom: Option<SpilledKeys>,
    /// The build rows with a NULL key, if they wait for the probe side.
    pub(crate) null_keys: Option<Run>,
    /// The part of the lease for the batch in hand that is for the output.
    pub(crate) output_bytes: usize,
}

impl Split {
    /// With buckets on disk from the first row on.
    ///
    /// # Errors
    /// If spilling is disabled, or memory is below the floor.
    pub(crate) async fn forced(ctx: &JoinContext) -> Result<Self> {
        check_disk(ctx)?;
        let floor = require(ctx, WorkSpace::FLOOR.bytes(), "spilling").await?;
        let mut extra = ctx.budget.empty();
        let mut plan = WorkSpace {
            fan_out: ctx.join.config.fan_out(),
            ..WorkSpace::FLOOR
        };
        while !extra.try_extend(plan.bytes() - floor.bytes()) {
            plan.fan_out /= 2;
        }
        let space = Space::new(plan, floor, extra);
        let spilled = |bucket: usize| match ctx.join.config.spill() {
            SpillPolicy::Pressure => false,
            SpillPolicy::Half => bucket % 2 == 1,
            SpillPolicy::All => true,
            #[cfg(feature = "testing")]
            SpillPolicy::Bucket(k) => bucket == k,
            #[cfg(feature = "testing")]
            SpillPolicy::Split(_) | SpillPolicy::Chunks(_) => true,
        };
        let buckets = (0..plan.fan_out)
            .map(|b| Bucket::new(ctx, &space, spilled(b)))
            .collect();
        Ok(Self {
            space,
            buckets,
            bloom: SpilledKeys::new(ctx.budget.empty(), ctx.budget.held() / BLOOM_PART),
            null_keys: None,
            reserve: ctx.budget.empty(),
            reserve_target: 0,
        })
    }

    /// After a refusal: chooses the victims from the hashes of the buffered rows, the largest batch
    /// of which has `largest` bytes.
    ///
    /// # Errors
    /// If spilling is disabled, or memory is below the floor.
    pub(crate) async fn under_pressure(
        ctx: &JoinContext,
        rows: &[Held<Rows>],
        mut headroom: Lease,
        largest: usize,
    ) -> Result<Self> {
        check_disk(ctx)?;
        let floor = WorkSpace::FLOOR.bytes();
        let missing = floor.saturating_sub(headroom.bytes());
        headroom.absorb(require(ctx, missing, "spilling").await?);
        let held = ctx.budget.held();
        let most = ctx.join.config.fan_out();
        let mut plan = WorkSpace::narrow(held, most);
        // At the first batch nothing is held yet that would tell how much there is to be had.
        plan.fan_out = plan.fan_out.max(most.min(WorkSpace::FLOOR_FAN_OUT));
        let mut extra = ctx.budget.empty();
        // Nothing is read during the build, so the floor carries this many buckets; more are asked
        // for, and done without.
        while plan.bytes_without_reader() > floor + extra.bytes()
            && !extra.try_extend(plan.bytes_without_reader() - floor)
        {
            plan.fan_out /= 2;
        }
        let space = Space::new(plan, headroom.split(floor), extra);
        let reserve = headroom.split(RESERVED_BATCHES * largest);
        let sizes = bucket_bytes(rows, space.fan_out());
        let victims = victim::choose(&sizes, (plan.bytes() - floor).max(1));
        let buckets = (0..plan.fan_out).map(|b| Bucket::new(ctx, &space, victims.contains(&b)));
        let bytes = rows.iter().map(|held| held.rows.bytes()).sum();
        let rows = rows.iter().map(|held| held.rows.len()).sum();
        Ok(Self {
            buckets: buckets.collect(),
            bloom: SpilledKeys::new(headroom, SpilledKeys::bytes_for(ctx, rows, bytes)),
            null_keys: None,
            space,
            reserve_target: reserve.bytes() / RESERVED_BATCHES,
            reserve,
        })
    }

    /// Counts a batch in hand, out of the reserve as far as that goes.
    pub(crate) fn cover(&mut self, bytes: usize) -> Lease {
        let mut lease = self.reserve.split(bytes);
        lease.settle(bytes);
        lease
    }

    /// Asks for the bytes of a batch in hand; gives up buckets until they are granted or none is
    /// left, and then counts them anyway, since the batch exists.
    ///
    /// # Errors
    /// If spilling fails.
    pub(crate) async fn admit(&mut self, ctx: &JoinContext, bytes: usize) -> Result<Lease> {
        loop {
            if let Some(lease) = ctx.budget.try_lease(bytes) {
                return Ok(lease);
            }
            if !self.evict(ctx).await? {
                return Ok(ctx.budget.charge(bytes));
            }
        }
    }

    /// Hands out rows with a NULL key, which have no match; those of NOT IN go to a run of their
    /// own.
    ///
    /// # Errors
    /// If spilling fails, or arrow cannot assemble the output.
    pub(crate) async fn add_null_keys(
        &mut self,
        ctx: &JoinContext,
        rows: &RecordBatch,
        out: &mut Output,
    ) -> Result<()> {
        if !ctx.join.null_aware {
            let _ = hand_out_unmatched(ctx, Side::Build, rows, out).await?;
            return Ok(());
        }
        self.null_keys
            .get_or_insert_with(|| Box::new(NullKeyWriter::new(ctx, &self.space)))
            .push(rows)
            .await
    }

    /// Sends rows to their buckets: the `valid` ones, if not all of them.
    ///
    /// # Errors
    /// If spilling fails.
    pub(crate) async fn add(
        &mut self,
        ctx: &JoinContext,
        held: Held<Rows>,
        valid: Option<&[u32]>,
    ) -> Result<()> {
        let start = Instant::now();
        let Held { rows, lease } = held;
        let order = ctx.budget.charge(rows.len() * size_of::<u32>());
        let (hashes, fan_out) = (&rows.hashes, self.space.fan_out());
        let scatter = match valid {
            None => Scatter::new(hashes, all_rows(rows.len()), Level::FIRST, fan_out),
            Some(valid) => Scatter::new(hashes, valid.iter().copied(), Level::FIRST, fan_out),
        };
        ctx.stats.build_nanos.add_since(start);
        let pick = Pick::new(&rows.batch, &rows.hashes);
        for (bucket, numbers) in scatter.buckets() {
            self.place(ctx, bucket.index(), (&rows, &pick), numbers)
                .await?;
        }
        drop((rows, order));
        // A filter that lets too many strangers pass does not get better.
        self.bloom.take_if(|keys| !keys.bloom.is_useful());
        self.reserve.absorb(lease);
        self.reserve.shrink_to(self.reserve_target);
        self.space.widen(ctx);
        Ok(())
    }

    /// Sends some rows of a batch to one bucket: to its run, or to its buffer, which is kept each
    /// time that it is full.
    async fn place(
        &mut self,
        ctx: &JoinContext,
        bucket: usize,
        (rows, pick): (&Rows, &Pick<'_>),
        numbers: &[u32],
    ) -> Result<()> {
        let mut rest = numbers;
        while !rest.is_empty() {
            let buffer = self.space.plan.buffer;
            match self.buckets.get_mut(bucket) {
                None => return Err(error::internal("a row has no bucket")),
                Some(Bucket::Spilled(writer)) => {
                    if let Some(keys) = &mut self.bloom {
                        keys.note(rest.iter().filter_map(|row| rows.hashes.get(*row as usize)));
                    }
                    return writer.push_rows(pick, rest, buffer).await;
                }
                Some(Bucket::Resident(resident)) => {
                    rest = resident.tail.append(ctx, rows, rest, buffer)?;
                    // Rows wider than the mean fill it early: no more of them waits unleased.
                    if rest.is_empty() && resident.tail.bytes() < buffer {
                        return Ok(());
                    }
                    let full = resident.tail.take()?;
                    self.keep(ctx, bucket, full).await?;
                }
            }
        }
        Ok(())
    }

    /// Keeps rows that were in a resident bucket's buffer, giving up buckets until they are granted;
    /// or writes them, if that bucket itself is given up.
    async fn keep(&mut self, ctx: &JoinContext, bucket: usize, rows: Option<Rows>) -> Result<()> {
        let Some(rows) = rows else {
            return Ok(());
        };
        let bytes = rows.bytes();
        loop {
            match self.buckets.get_mut(bucket) {
                None => return Err(error::internal("a row has no bucket")),
                Some(Bucket::Spilled(_)) => return self.write(bucket, rows).await,
                Some(Bucket::Resident(resident)) => {
                    let lease = if self.reserve.bytes() >= bytes {
                        Some(self.reserve.split(bytes))
                    } else {
                        ctx.budget.try_lease(bytes)
                    };
                    if let Some(lease) = lease {
                        resident.lease.absorb(lease);
                        resident.parts.push(rows);
                        return Ok(());
                    }
                }
            }
            if !self.evict(ctx).await? {
                // Every resident bucket is empty, this one too.
                self.give_up(ctx, bucket).await?;
            }
        }
    }

    /// Writes rows of a bucket on disk.
    async fn write(&mut self, bucket: usize, rows: Rows) -> Result<()> {
        if let Some(keys) = &mut self.bloom {
            keys.note(rows.hashes.iter());
        }
        let buffer = self.space.plan.buffer;
        match self.buckets.get_mut(bucket) {
            Some(Bucket::Spilled(writer)) => {
                writer
                    .push(rows.batch, rows.hashes.into_iter(), buffer)
                    .await
            }
            _ => Err(error::internal("a resident bucket has no run")),
        }
    }

    /// Gives up the largest resident bucket; `false` if there was none.
    async fn evict(&mut self, ctx: &JoinContext) -> Result<bool> {
        let sizes: Vec<Option<usize>> = self.buckets.iter().map(Bucket::bytes).collect();
        match victim::choose(&sizes, 1).first() {
            Some(bucket) => self.give_up(ctx, *bucket).await.map(|()| true),
            None => Ok(false),
        }
    }

    /// Writes a resident bucket and leaves a writer in its place.
    async fn give_up(&mut self, ctx: &JoinContext, bucket: usize) -> Result<()> {
        let spilled = Bucket::new(ctx, &self.space, true);
        let Some(slot) = self.buckets.get_mut(bucket) else {
            return Ok(());
        };
        let Bucket::Resident(resident) = std::mem::replace(slot, spilled) else {
            return Err(error::internal("a bucket was given up twice"));
        };
        let Resident {
            parts,
            lease,
            mut tail,
        } = resident;
        for part in parts {
            self.write(bucket, part).await?;
        }
        if let Some(rows) = tail.take()? {
            self.write(bucket, rows).await?;
        }
        drop(lease);
        Ok(())
    }

    /// The end of the build: as many resident buckets as there is room for with their table, and
    /// the runs of the others.
    ///
    /// # Errors
    /// If spilling fails, or memory is below the floor.
    pub(crate) async fn finish(mut self, ctx: &JoinContext) -> Result<Built> {
        self.keep_tails(ctx).await?;
        // The reserve has copied its last batch; from here on it covers the probe batch in hand,
        // and output batches that are worth handing out.
        let output_bytes = output_bytes(ctx);
        loop {
            let target = self.reserve_target + output_bytes;
            let missing = target.saturating_sub(self.reserve.bytes());
            if self.reserve.try_extend(missing) || !self.evict(ctx).await? {
                break;
            }
        }
        let mut lease = self.reserve_table(ctx).await?;
        for bucket in &mut self.buckets {
            if let Bucket::Resident(resident) = bucket {
                resident.merge(ctx)?;
            }
        }
        let mut parts = Vec::new();
        let mut closing = Vec::with_capacity(self.buckets.len());
        for bucket in self.buckets {
            match bucket {
                Bucket::Spilled(writer) => closing.push(writer.close().await?),
                Bucket::Resident(resident) => {
                    lease.absorb(resident.lease);
                    parts.extend(resident.parts);
                    closing.push(None);
                }
            }
        }
        let null_keys = match self.null_keys {
            Some(writer) => writer.finish().await?,
            None => None,
        };
        let mut runs = Vec::with_capacity(closing.len());
        for run in closing {
            runs.push(finished(run).await?);
        }
        reload(ctx, &mut runs, &mut parts, &mut lease).await?;
        ctx.stats.spilled_buckets.add(runs.iter().flatten().count());
        ctx.stats.max_level.max(1);
        let start = Instant::now();
        let loaded = Loaded::new(ctx, Side::Build, parts, lease)?;
        ctx.stats.build_nanos.add_since(start);
        let split = Some(SplitBuild {
            space: self.space,
            runs,
            null_keys,
            bloom: self.bloom.filter(|keys| keys.bloom.is_useful()),
            output_bytes: output_bytes.min(self.reserve.bytes()),
        });
        Ok(Built {
            loaded,
            null_keys: Vec::new(),
            split,
            in_hand: self.reserve,
        })
    }

    /// Keeps what is still in buffers.
    async fn keep_tails(&mut self, ctx: &JoinContext) -> Result<()> {
        for bucket in 0..self.buckets.len() {
            if let Some(Bucket::Resident(resident)) = self.buckets.get_mut(bucket) {
                let rest = resident.tail.take()?;
                self.keep(ctx, bucket, rest).await?;
            }
        }
        Ok(())
    }

    /// Reserves the table of the resident rows, giving up buckets until it is granted.
    async fn reserve_table(&mut self, ctx: &JoinContext) -> Result<Lease> {
        loop {
            let rows = self.buckets.iter().map(Bucket::resident_rows).sum();
            let extra = Loaded::stored_extra_bytes(ctx, Side::Build, rows);
            if rows <= ctx.max_rows()
                && let Some(lease) = ctx.budget.try_lease(extra)
            {
                return Ok(lease);
            }
            if !self.evict(ctx).await? {
                return Ok(ctx.budget.charge(Loaded::extra_bytes(ctx, Side::Build, 0)));
            }
        }
    }
}

/// Takes the smallest runs back into memory, where there is room again: each saves its bucket's
/// probe rows the way to the disk and back. What was sent there by order stays.
async fn reload(
    ctx: &JoinContext,
    runs: &mut [Option<Run>],
    parts: &mut Vec<Rows>,
    lease: &mut Lease,
) -> Result<()> {
    if ctx.join.config.spill() != SpillPolicy::Pressure {
        return Ok(());
    }
    let mut smallest: Vec<&mut Option<Run>> = runs.iter_mut().filter(|run| run.is_some()).collect();
    smallest.sort_by_key(|run| run.as_ref().map_or(0, Run::memory_bytes));
    for slot in smallest {
        let rows = parts.iter().map(Rows::len).sum();
        let Some(run) = slot.as_ref() else {
            continue;
        };
        let Some((more, more_lease)) = read_run(ctx, (Side::Build, run), None, rows).await? else {
            return Ok(());
        };
        parts.extend(more);
        lease.absorb(more_lease);
        *slot = None;
        ctx.stats.reloaded_buckets.add(1);
    }
    Ok(())
}

impl Bucket {
    fn new(ctx: &JoinContext, space: &Space, is_spilled: bool) -> Self {
        if is_spilled {
            Self::Spilled(space.writer(ctx, Side::Build))
        } else {
            Self::Resident(Resident::new(ctx))
        }
    }

    fn bytes(&self) -> Option<usize> {
        match self {
            Self::Resident(resident) => Some(resident.lease.bytes()),
            Self::Spilled(_) => None,
        }
    }

    fn resident_rows(&self) -> usize {
        match self {
            Self::Resident(resident) => resident.parts.iter().map(Rows::len).sum(),
            Self::Spilled(_) => 0,
        }
    }
}

fn check_disk(ctx: &JoinContext) -> Result<()> {
    if ctx.spiller.is_enabled() {
        Ok(())
    } else {
        Err(error::spilling_disabled(ctx.partition))
    }
}

/// About how many bytes of the buffered rows belong to each bucket.
fn bucket_bytes(rows: &[Held<Rows>], fan_out: FanOut) -> Vec<Option<usize>> {
    let mut bytes = vec![0; fan_out.get()];
    for held in rows {
        let row_bytes = held.rows.bytes() / held.rows.len().max(1);
        for hash in &held.rows.hashes {
            if let Some(sum) = bytes.get_mut(bucket_of(*hash, Level::FIRST, fan_out).index()) {
                *sum += row_bytes;
            }
        }
    }
    bytes.into_iter().map(Some).collect()
}
