//! The drain phase: the pairs of runs, smallest first, depth first.
//!
//! For each pair, in this order: nothing to do for an empty side; load the build run if it fits, or
//! else the probe run (roles swapped: `semantics` answers per side); split the pair by the next
//! level; join it in chunks. Recursion is a worklist.
//!
//! # Why unmatched rows are right after splitting
//!
//! Rows with equal keys have equal hashes, so at each level they are in one bucket: a pair holds
//! all rows of either side that a row of it can match. So "no match within the pair" is "no match",
//! and each row, being in exactly one run, is decided exactly once.
//!
//! # Degenerate cases
//!
//! - *One side empty*: skipped only where the join type keeps nothing of the other one; otherwise
//!   that one is streamed from its run straight to the output.
//! - *Splitting does not help* (one hash, or a child has over four fifths of its parent's rows of
//!   both sides, or the deepest level is reached, or a side is as small as a chunk is at least):
//!   joined in chunks.

use std::collections::VecDeque;
use std::time::Instant;

use datafusion_common::Result;

use super::build::{hand_out_loaded, hand_out_unmatched};
use super::chunked::{self, Source};
use super::context::{JoinContext, Rows, all_rows};
use super::loaded::{Loaded, ReadAhead, read_run};
use super::output::{Flow, Output};
use super::probe::join_batch;
use super::scan::{Ask, StreamedBatch};
use super::space::{Space, output_bytes};
use crate::bucket::{Level, Scatter};
#[cfg(feature = "testing")]
use crate::config::SpillPolicy;
use crate::memory::{Lease, batch_bytes};
use crate::semantics::Side;
use crate::spill::{Pick, ReadAs, Run, RunWriter, finished};

/// A bucket's rows of both sides.
#[derive(Debug)]
pub(crate) struct Pair {
    build: Option<Run>,
    probe: Option<Run>,
    /// The level that the next split would use.
    next_level: Level,
    /// Whether another split can be expected to help.
    can_split: bool,
    /// Its first rows, read while the pair before it was joined.
    ahead: Option<ReadAhead>,
}

impl Pair {
    /// A pair of the first level's runs.
    pub(crate) fn new(build: Option<Run>, probe: Option<Run>) -> Self {
        let can_split = build.as_ref().is_some_and(|run| !run.has_single_hash());
        Self {
            build,
            probe,
            next_level: Level::FIRST.next(),
            can_split,
            ahead: None,
        }
    }

    /// Starts to read what is read first, if there is memory for another reader.
    fn read_ahead(&mut self, ctx: &JoinContext) {
        let is_loaded_first = forced(ctx, self.next_level).is_none();
        if let (Some(build), Some(_), true) = (&self.build, &self.probe, is_loaded_first) {
            self.ahead = ReadAhead::start(ctx, build);
        }
    }

    /// The same pair out of a split by `level`, which did not help if it `is_stuck`.
    fn out_of_split(self, level: Level, is_stuck: bool) -> Self {
        Self {
            next_level: level.next(),
            can_split: self.can_split && !is_stuck,
            ..self
        }
    }

    /// The bytes of the side that is easier to load.
    fn smaller_bytes(&self) -> usize {
        let bytes = |run: &Option<Run>| run.as_ref().map_or(0, Run::memory_bytes);
        bytes(&self.build).min(bytes(&self.probe))
    }
}

/// A split that leaves more than this many fifths of the rows in one child did not help.
const STUCK_FIFTHS: u64 = 4;

/// Joins all pairs.
///
/// # Errors
/// If reading or writing spill files fails, or the filter does.
pub(crate) async fn drain(
    ctx: &JoinContext,
    space: &Space,
    mut pairs: Vec<Pair>,
    out: &mut Output,
) -> Result<()> {
    let start = Instant::now();
    out.bound(space.plan.buffer, output_bytes(ctx));
    pairs.sort_by_key(Pair::smaller_bytes);
    let mut work = VecDeque::from(pairs);
    while let Some(pair) = work.pop_front() {
        if out.flow() == Flow::Enough {
            break;
        }
        let children = join_pair(ctx, space, pair, work.front_mut(), out).await?;
        for child in children.into_iter().rev() {
            work.push_front(child);
        }
    }
    ctx.stats.drain_nanos.add_since(start);
    Ok(())
}

/// Joins one pair, or splits it and returns its children, smallest first.
async fn join_pair(
    ctx: &JoinContext,
    space: &Space,
    pair: Pair,
    next: Option<&mut Pair>,
    out: &mut Output,
) -> Result<Vec<Pair>> {
    let Pair {
        build,
        probe,
        next_level,
        can_split,
        ahead,
    } = pair;
    let ahead = ahead.filter(|_| build.is_some() && probe.is_some());
    let (build, probe) = match (build, probe) {
        (Some(build), Some(probe)) => (build, probe),
        (Some(build), None) => return lone(ctx, space, (Side::Build, &build), out).await,
        (None, Some(probe)) => return lone(ctx, space, (Side::Probe, &probe), out).await,
        (None, None) => return Ok(Vec::new()),
    };
    let can_split = can_split && next_level.0 <= ctx.join.config.max_level();
    match forced(ctx, next_level) {
        Some(Forced::Split) => return split(ctx, space, [build, probe], next_level).await,
        Some(Forced::Chunks(rows)) => {
            return chunked(ctx, space, &build, &probe, Some(rows), out).await;
        }
        None => {}
    }
    if let Some(rows) = read_run(ctx, (Side::Build, &build), ahead, 0).await? {
        drop(build);
        ctx.stats.pairs_loaded.add(1);
        let rows = (Side::Build, rows);
        join_loaded(ctx, space, rows, (&probe, next), out).await?;
        return Ok(Vec::new());
    }
    if let Some(rows) = read_run(ctx, (Side::Probe, &probe), None, 0).await? {
        drop(probe);
        ctx.stats.pairs_swapped.add(1);
        let rows = (Side::Probe, rows);
        join_loaded(ctx, space, rows, (&build, next), out).await?;
        return Ok(Vec::new());
    }
    // What the working space holds at a time is no smaller after a split.
    let is_small = build.memory_bytes().min(probe.memory_bytes()) <= space.plan.chunk_bytes();
    if can_split && !is_small {
        return split(ctx, space, [build, probe], next_level).await;
    }
    chunked(ctx, space, &build, &probe, None, out).await
}

/// What tests may ask for instead of what memory asks for.
enum Forced {
    #[cfg_attr(
        not(feature = "testing"),
        expect(dead_code, reason = "only tests force a split")
    )]
    Split,
    #[cfg_attr(
        not(feature = "testing"),
        expect(dead_code, reason = "only tests force chunks")
    )]
    Chunks(usize),
}

fn forced(ctx: &JoinContext, next_level: Level) -> Option<Forced> {
    match ctx.join.config.spill() {
        #[cfg(feature = "testing")]
        SpillPolicy::Split(levels) if next_level.0 < levels => Some(Forced::Split),
        #[cfg(feature = "testing")]
        SpillPolicy::Chunks(rows) => Some(Forced::Chunks(rows.max(1))),
        _ => {
            let _ = next_level;
            None
        }
    }
}

/// A run whose other side is empty: its rows have no match.
async fn lone(
    ctx: &JoinContext,
    space: &Space,
    (side, run): (Side, &Run),
    out: &mut Output,
) -> Result<Vec<Pair>> {
    ctx.stats.pairs_skipped.add(1);
    if !ctx.join.semantics.rows(side).keeps_unmatched() {
        return Ok(Vec::new());
    }
    let mut reader = run.read(&ctx.spiller, ReadAs::Rows)?;
    while let Some(batch) = reader.next().await? {
        let _in_hand = ctx
            .budget
            .charge_beyond(space.plan.streamed_bytes(), batch_bytes(&batch));
        if hand_out_unmatched(ctx, side, &batch, out).await? == Flow::Enough {
            break;
        }
    }
    Ok(Vec::new())
}

/// Streams a run past rows of the other side, once those have their table, then hands out the loaded
/// rows that come out singly.
async fn join_loaded(
    ctx: &JoinContext,
    space: &Space,
    (side, (parts, lease)): (Side, (Vec<Rows>, Lease)),
    (streamed, next): (&Run, Option<&mut Pair>),
    out: &mut Output,
) -> Result<()> {
    let mut reader = streamed.read(&ctx.spiller, ReadAs::Rows)?;
    // The first streamed rows are read while the table is built.
    reader.read_ahead();
    let mut loaded = Loaded::new(ctx, side, parts, lease)?;
    if let Some(next) = next {
        next.read_ahead(ctx);
    }
    let side = side.other();
    while let Some(batch) = reader.next().await? {
        let rows = batch.num_rows();
        let in_hand = batch_bytes(&batch) + rows * ctx.row_overhead(side);
        let _in_hand = ctx
            .budget
            .charge_beyond(space.plan.streamed_bytes(), in_hand);
        let keys = loaded.streamed_keys(ctx, &batch)?;
        let streamed = StreamedBatch::whole(ctx, side, batch, keys);
        let mut ask = Ask::once(all_rows(rows).collect(), rows);
        if join_batch(ctx, &mut loaded, &streamed, &mut ask, out).await? == Flow::Enough {
            return Ok(());
        }
    }
    let _ = hand_out_loaded(ctx, &loaded, out).await?;
    Ok(())
}

/// Splits a pair by `level`, from files to files; nothing is held but buffers.
async fn split(
    ctx: &JoinContext,
    space: &Space,
    [build, probe]: [Run; 2],
    level: Level,
) -> Result<Vec<Pair>> {
    ctx.stats.pairs_split.add(1);
    ctx.stats.max_level.max(u64::from(level.0) + 1);
    let parent = [build.rows(), probe.rows()];
    let builds = split_run(ctx, space, (Side::Build, build), level, |_| true).await?;
    // A probe row without build rows in its child has no match.
    let keeps_unmatched = ctx.join.semantics.rows(Side::Probe).keeps_unmatched();
    let is_kept =
        |bucket: usize| keeps_unmatched || builds.get(bucket).is_some_and(Option::is_some);
    let probes = split_run(ctx, space, (Side::Probe, probe), level, is_kept).await?;
    let is_stuck = |run: &Option<Run>, parent: u64| {
        run.as_ref()
            .is_some_and(|run| run.rows() * 5 > parent * STUCK_FIFTHS)
    };
    let mut children: Vec<Pair> = builds
        .into_iter()
        .zip(probes)
        .map(|(build, probe)| {
            let is_stuck = is_stuck(&build, parent[0]) && is_stuck(&probe, parent[1]);
            Pair::new(build, probe).out_of_split(level, is_stuck)
        })
        .collect();
    children.sort_by_key(Pair::smaller_bytes);
    Ok(children)
}

/// The rows of each bucket in which rows are kept.
async fn split_run(
    ctx: &JoinContext,
    space: &Space,
    (side, run): (Side, Run),
    level: Level,
    is_kept: impl Fn(usize) -> bool,
) -> Result<Vec<Option<Run>>> {
    let fan_out = space.fan_out();
    let mut writers: Vec<RunWriter> = (0..fan_out.get())
        .map(|_| space.writer(ctx, side))
        .collect();
    // As they are stored they are written again.
    let mut reader = run.read(&ctx.spiller, ReadAs::Stored)?;
    while let Some(batch) = reader.next().await? {
        let rows = batch.num_rows();
        let in_hand = batch_bytes(&batch) + rows * ctx.row_overhead(side);
        let _in_hand = ctx
            .budget
            .charge_beyond(space.plan.rewritten_bytes(), in_hand);
        let hashes = ctx.keys(side, &batch)?.hashes;
        let scatter = Scatter::new(&hashes, all_rows(rows), level, fan_out);
        let pick = Pick::new(&batch, &hashes);
        for (bucket, rows) in scatter.buckets() {
            let writer = writers.get_mut(bucket.index());
            let Some(writer) = writer.filter(|_| is_kept(bucket.index())) else {
                continue;
            };
            writer.push_rows(&pick, rows, space.plan.buffer).await?;
        }
    }
    drop((reader, run));
    let mut closing = Vec::with_capacity(writers.len());
    for writer in writers {
        closing.push(writer.close().await?);
    }
    let mut runs = Vec::with_capacity(closing.len());
    for run in closing {
        runs.push(finished(run).await?);
    }
    Ok(runs)
}

async fn chunked(
    ctx: &JoinContext,
    space: &Space,
    build: &Run,
    probe: &Run,
    most_rows: Option<usize>,
    out: &mut Output,
) -> Result<Vec<Pair>> {
    ctx.stats.pairs_chunked.add(1);
    let (side, loaded, streamed) = if build.memory_bytes() <= probe.memory_bytes() {
        (Side::Build, build, probe)
    } else {
        (Side::Probe, probe, build)
    };
    let source = Source {
        side,
        loaded,
        streamed,
        most_rows,
    };
    chunked::join(ctx, space, source, out).await?;
    Ok(Vec::new())
}
