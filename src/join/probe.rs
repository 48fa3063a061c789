//! The probe phase: each row is hashed at most once, and joined now, or written to its bucket's run.
//!
//! A row is routed exactly once: rows whose bucket is on disk go there; all others, those that
//! cannot match at all among them, are decided against the loaded rows.
//!
//! # Memory
//!
//! The input batch in hand exists already; it is charged, with its hashes and heads. Probe rows of
//! resident buckets are never held back or written.

use std::time::Instant;

use arrow::record_batch::RecordBatch;
use datafusion_common::Result;
use datafusion_execution::SendableRecordBatchStream;
use futures::StreamExt;
use tokio::task::coop::consume_budget;

use super::build::{Built, Held, hand_out_loaded, hand_out_unmatched};
use super::context::{JoinContext, all_rows};
use super::drain::Pair;
use super::loaded::Loaded;
use super::null_aware::Verdict;
use super::output::{Flow, Output};
use super::scan::{Ask, Scan, Step, StreamedBatch, streamed_row_bytes};
use super::space::Space;
use super::split::{SpilledKeys, SplitBuild};
use crate::bucket::{Level, Scatter};
use crate::keys::{Keys, bucket_of};
use crate::memory::{Lease, ROW_OVERHEAD, rows_bytes, shared_bytes};
use crate::semantics::Side;
use crate::spill::{Pick, Run, RunWriter, finished};

/// Input batches are worked off in slices of at most a buffer's worth of overhead, at least this.
const MIN_SLICE: usize = 512;

/// Streams the probe side past the loaded build rows; leaves the pairs of runs on disk.
///
/// # Errors
/// If the input or the filter fails, or spilling does.
pub(crate) async fn probe(
    ctx: &JoinContext,
    built: Built,
    input: SendableRecordBatchStream,
    out: &mut Output,
) -> Result<Drainable> {
    let Built {
        loaded,
        null_keys,
        split,
        mut in_hand,
    } = built;
    let split = split.map(|split| ProbeSplit::new(ctx, split));
    if let Some(split) = &split {
        in_hand.shrink_to(in_hand.bytes().saturating_sub(split.output_bytes));
        out.bound(split.space.plan.buffer, split.output_bytes);
    }
    let mut waiting = Some(Waiting {
        loaded,
        null_keys,
        split,
    });
    if waiting.as_ref().is_some_and(|w| w.needs_probe(ctx)) {
        let probe = ProbeInput { input, in_hand };
        stream(ctx, &mut waiting, probe, out).await?;
    }
    let Some(waiting) = waiting else {
        return Ok(Drainable::Nothing);
    };
    let Waiting {
        loaded,
        null_keys,
        split,
    } = waiting;
    for held in null_keys {
        let _ = hand_out_unmatched(ctx, Side::Build, &held.rows, out).await?;
        drop(held.lease);
    }
    let _ = hand_out_loaded(ctx, &loaded, out).await?;
    drop(loaded);
    match split {
        Some(split) if out.flow() == Flow::More => split.finish().await,
        _ => Ok(Drainable::Nothing),
    }
}

/// What is left to do after the probe input ended.
pub(crate) enum Drainable {
    /// Nothing was spilled, or no more rows are wanted.
    Nothing,
    /// Pairs of runs.
    Pairs(Space, Vec<Pair>),
}

/// The build side while probe rows pass by.
struct Waiting<'a> {
    loaded: Loaded,
    /// Rows that come out when the probe input has ended.
    null_keys: Vec<Held<RecordBatch>>,
    split: Option<ProbeSplit<'a>>,
}

impl Waiting<'_> {
    /// Whether any probe row could come out, or decide about a build row.
    fn needs_probe(&self, ctx: &JoinContext) -> bool {
        let on_disk = self.split.as_ref();
        let has_build_rows =
            !self.loaded.is_empty() || on_disk.is_some_and(ProbeSplit::has_build_rows);
        let has_null_keys =
            !self.null_keys.is_empty() || on_disk.is_some_and(|split| split.null_keys.is_some());
        has_build_rows
            || (has_null_keys && ctx.join.null_aware)
            || !ctx.join.semantics.nothing_without(Side::Build)
    }

    /// Gives back the rows with a NULL key.
    fn drop_null_keys(&mut self) {
        self.null_keys = Vec::new();
        if let Some(split) = &mut self.split {
            split.null_keys = None;
        }
    }

    /// The keys of probe rows, hashed where that is how their bucket or their matches are found.
    fn keys(&self, ctx: &JoinContext, batch: &RecordBatch) -> Result<Keys> {
        match self.split {
            Some(_) => ctx.keys(Side::Probe, batch),
            None => self.loaded.streamed_keys(ctx, batch),
        }
    }

    /// Joins some probe rows, or sends them to the runs of their buckets.
    async fn join(
        &mut self,
        ctx: &JoinContext,
        streamed: &StreamedBatch,
        out: &mut Output,
    ) -> Result<()> {
        let rows = streamed.batch.num_rows();
        let here = match &mut self.split {
            None => all_rows(rows).collect(),
            Some(split) => split.route(streamed).await?,
        };
        let mut ask = Ask::once(here, rows);
        let _ = join_batch(ctx, &mut self.loaded, streamed, &mut ask, out).await?;
        Ok(())
    }
}

/// The probe side, with the lease that covers a batch of it.
struct ProbeInput {
    input: SendableRecordBatchStream,
    in_hand: Lease,
}

/// Reads the probe input to its end, or until no more rows are wanted. Of the build side, leaves
/// what may still come out.
async fn stream(
    ctx: &JoinContext,
    waiting: &mut Option<Waiting<'_>>,
    probe: ProbeInput,
    out: &mut Output,
) -> Result<()> {
    let ProbeInput {
        mut input,
        mut in_hand,
    } = probe;
    while out.flow() == Flow::More {
        let Some(whole) = input.next().await.transpose()? else {
            return Ok(());
        };
        ctx.stats.probe_batches.add(1);
        ctx.stats.probe_rows.add(whole.num_rows());
        let batch = ctx.narrow(Side::Probe, &whole)?;
        // With it go the columns that nobody needs.
        drop(whole);
        consume_budget().await;
        // Of a slice, the rest is somebody else's.
        let own = rows_bytes(&batch);
        let row_bytes = streamed_row_bytes(ctx, Side::Probe, &batch, || own);
        let bytes = own + shared_bytes(&batch);
        ctx.stats.largest_batch_bytes.max(bytes as u64);
        let split = waiting.as_ref().and_then(|w| w.split.as_ref());
        let slice = split.map_or(ctx.batch_size, ProbeSplit::slice_rows);
        let slice = slice.max(MIN_SLICE);
        let slice = slice.min(batch.num_rows());
        // Kept until the end of the input: what is given back between batches, others take.
        let needed = bytes + slice * ctx.row_overhead(Side::Probe);
        in_hand.settle(in_hand.bytes().max(needed));
        let mut from = 0;
        while from < batch.num_rows() && out.flow() == Flow::More {
            if from > 0 {
                consume_budget().await;
            }
            let rows = slice.min(batch.num_rows() - from);
            let start = Instant::now();
            let piece = batch.slice(from, rows);
            let keys = match waiting {
                Some(waiting) => waiting.keys(ctx, &piece)?,
                None => ctx.unhashed_keys(Side::Probe, &piece)?,
            };
            let streamed = StreamedBatch {
                batch: piece,
                keys,
                row_bytes,
            };
            ctx.stats.probe_nanos.add_since(start);
            match Verdict::of(ctx, &streamed.keys, rows) {
                Verdict::Open => {}
                Verdict::NoNullKeys => waiting.iter_mut().for_each(Waiting::drop_null_keys),
                // Read on: an error may follow.
                Verdict::NoRows => *waiting = None,
            }
            if let Some(waiting) = waiting {
                waiting.join(ctx, &streamed, out).await?;
            }
            from += rows;
        }
    }
    Ok(())
}

/// Joins the rows asked about with the loaded rows, handing out as it goes.
///
/// # Errors
/// If the filter fails.
pub(crate) async fn join_batch(
    ctx: &JoinContext,
    loaded: &mut Loaded,
    streamed: &StreamedBatch,
    ask: &mut Ask,
    out: &mut Output,
) -> Result<Flow> {
    if ask.rows.is_empty() {
        return Ok(out.flow());
    }
    let start = Instant::now();
    let mut scan = Scan::new(ctx, loaded, streamed, ask, out.most_bytes())?;
    ctx.stats.probe_nanos.add_since(start);
    loop {
        let start = Instant::now();
        let step = scan.step(out)?;
        ctx.stats.probe_nanos.add_since(start);
        match step {
            Step::Done => return Ok(out.flow()),
            Step::Nothing => tokio::task::yield_now().await,
            Step::Batch(batch) => {
                if out.push(batch).await? == Flow::Enough {
                    return Ok(Flow::Enough);
                }
            }
        }
    }
}

/// The buckets of the probe side.
struct ProbeSplit<'a> {
    ctx: &'a JoinContext,
    bloom: Option<SpilledKeys>,
    space: Space,
    output_bytes: usize,
    buckets: Vec<ProbeBucket>,
    /// Of each bucket, whether its rows are.
    is_on_disk: Vec<bool>,
    /// Build rows that come out if there is no probe row.
    null_keys: Option<Run>,
}

/// Row numbers that are picked without a branch.
struct Picks {
    rows: Vec<u32>,
    picked: usize,
}

impl Picks {
    /// Out of `most` rows.
    fn new(most: usize) -> Self {
        Self {
            rows: vec![0; most],
            picked: 0,
        }
    }

    #[inline]
    fn push(&mut self, row: u32, is_picked: bool) {
        if let Some(slot) = self.rows.get_mut(self.picked) {
            *slot = row;
        }
        self.picked += usize::from(is_picked);
    }

    fn finish(mut self) -> Vec<u32> {
        self.rows.truncate(self.picked);
        self.rows
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "there are at most 256, and a spilled one grows a buffer of 16 KiB or more"
)]
enum ProbeBucket {
    /// All its build rows are loaded, or it has none.
    Here,
    /// Its build rows are on disk, and its probe rows go there.
    Spilled { build: Run, probe: RunWriter },
}

impl<'a> ProbeSplit<'a> {
    fn new(ctx: &'a JoinContext, split: SplitBuild) -> Self {
        let SplitBuild {
            space,
            runs,
            bloom,
            null_keys,
            output_bytes,
        } = split;
        let bucket = |run: Option<Run>| match run {
            None => ProbeBucket::Here,
            Some(build) => ProbeBucket::Spilled {
                build,
                probe: space.writer(ctx, Side::Probe),
            },
        };
        let is_on_disk = runs.iter().map(Option::is_some).collect();
        let buckets = runs.into_iter().map(bucket).collect();
        Self {
            ctx,
            bloom,
            space,
            output_bytes,
            buckets,
            is_on_disk,
            null_keys,
        }
    }

    fn has_build_rows(&self) -> bool {
        self.is_on_disk.contains(&true)
    }

    fn slice_rows(&self) -> usize {
        (self.space.plan.buffer / ROW_OVERHEAD).max(MIN_SLICE)
    }

    fn is_spilled(&self, hash: u64) -> bool {
        let bucket = bucket_of(hash, Level::FIRST, self.space.fan_out()).index();
        self.is_on_disk.get(bucket).copied().unwrap_or_default()
    }

    /// Writes the rows whose bucket is on disk; returns the others.
    async fn route(&mut self, streamed: &StreamedBatch) -> Result<Vec<u32>> {
        let start = Instant::now();
        let keys = &streamed.keys;
        let can_match = |row: usize| keys.valid.as_ref().is_none_or(|valid| valid.is_valid(row));
        let mut misses = 0;
        let filter = self.bloom.as_ref().and_then(SpilledKeys::to_ask);
        let rows = streamed.batch.num_rows();
        let mut here = Picks::new(rows);
        let mut away = Picks::new(rows);
        for (row, hash) in all_rows(rows).zip(&keys.hashes) {
            let mut is_away = self.is_spilled(*hash) && can_match(row as usize);
            // The rows of its bucket are on disk, none of them with this key: the loaded rows,
            // none of which has it either, decide it as well as any.
            if is_away && filter.is_some_and(|keys| !keys.may_contain(*hash)) {
                misses += 1;
                is_away = false;
            }
            here.push(row, !is_away);
            away.push(row, is_away);
        }
        let (here, away) = (here.finish(), away.finish());
        if let Some(keys) = &mut self.bloom {
            keys.note_answers(away.len() + misses, misses);
        }
        self.ctx.stats.bloom_misses.add(misses);
        let fan_out = self.space.fan_out();
        let scatter = Scatter::new(&keys.hashes, away.iter().copied(), Level::FIRST, fan_out);
        self.ctx.stats.probe_nanos.add_since(start);
        let pick = Pick::new(&streamed.batch, &keys.hashes);
        let buffer = self.space.plan.buffer;
        for (bucket, rows) in scatter.buckets() {
            let Some(ProbeBucket::Spilled { probe, .. }) = self.buckets.get_mut(bucket.index())
            else {
                continue;
            };
            probe.push_rows(&pick, rows, buffer).await?;
        }
        Ok(here)
    }

    /// The pairs of runs, once all probe rows were routed.
    async fn finish(self) -> Result<Drainable> {
        let null_keys = self.null_keys.into_iter();
        let mut pairs: Vec<Pair> = null_keys.map(|run| Pair::new(Some(run), None)).collect();
        let mut closing = Vec::new();
        for bucket in self.buckets {
            if let ProbeBucket::Spilled { build, probe } = bucket {
                closing.push((build, probe.close().await?));
            }
        }
        for (build, probe) in closing {
            pairs.push(Pair::new(Some(build), finished(probe).await?));
        }
        drop(self.bloom);
        Ok(Drainable::Pairs(self.space.for_drain(), pairs))
    }
}
