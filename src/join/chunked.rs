//! The skew fallback: a pair that neither fits nor can be split is joined in chunks.
//!
//! As many rows of the smaller run as fit are loaded, all rows of the other one are streamed past
//! them, then the next chunk. Loaded rows are decided with their chunk. A streamed row that comes
//! out by whether it has a match is decided after the last chunk, so what is known of it is carried
//! from chunk to chunk: in one bit a row, or, where the pool refuses even those, beside the row in a
//! new run per chunk.
//!
//! # Memory
//!
//! A chunk takes what is granted, at least one frame of the run. Besides the working space, nothing
//! that is held grows with the input without having been granted.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::Result;

use super::build::hand_out_loaded;
use super::context::{JoinContext, Rows, all_rows, new_batch};
use super::loaded::{Loaded, read_rows};
use super::output::{Flow, Output};
use super::probe::join_batch;
use super::scan::{Ask, StreamedBatch};
use super::space::Space;
use crate::error;
use crate::memory::{Lease, Unshare, batch_bytes};
use crate::semantics::{RowOutput, Side};
use crate::spill::{ReadAs, Run, RunReader, RunWriter};
use crate::table::MatchedBits;

/// What is joined in chunks.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    /// The side that is loaded.
    pub(crate) side: Side,
    pub(crate) loaded: &'a Run,
    pub(crate) streamed: &'a Run,
    /// The most rows of a chunk, besides what memory allows.
    pub(crate) most_rows: Option<usize>,
}

/// Joins a pair in chunks.
///
/// # Errors
/// If reading or writing spill files fails, or the filter does.
pub(crate) async fn join(
    ctx: &JoinContext,
    space: &Space,
    source: Source<'_>,
    out: &mut Output,
) -> Result<()> {
    let mut chunks = Chunks::new(ctx, source);
    let mut seen = Seen::new(ctx, source);
    while let Some(chunk) = chunks.next(ctx, space).await? {
        ctx.stats.chunks.add(1);
        let is_last = chunks.is_done();
        let mut loaded = Loaded::new(ctx, source.side, chunk.parts, chunk.lease)?;
        let replay = Replay {
            ctx,
            space,
            source,
            is_last,
        };
        seen = replay.run(&mut loaded, seen, out).await?;
        if out.flow() == Flow::Enough || hand_out_loaded(ctx, &loaded, out).await? == Flow::Enough {
            return Ok(());
        }
    }
    Ok(())
}

/// Rows that are loaded together.
struct Chunk {
    parts: Vec<Rows>,
    lease: Lease,
}

/// The loaded run, chunk by chunk.
struct Chunks<'a> {
    source: Source<'a>,
    reader: Option<(RunReader, Option<Lease>)>,
    /// Frames read so far, to come back to where a reader was closed for want of memory.
    frames: usize,
    /// Rows that were read but are over the most of their chunk.
    rest: Option<Rows>,
    /// For the parts of one chunk.
    unshare: Unshare,
    rows_left: u64,
}

impl<'a> Chunks<'a> {
    fn new(ctx: &JoinContext, mut source: Source<'a>) -> Self {
        let most_rows = source.most_rows.unwrap_or(usize::MAX);
        source.most_rows = Some(most_rows.min(ctx.max_rows()));
        let rows_left = source.loaded.rows();
        Self {
            source,
            reader: None,
            frames: 0,
            rest: None,
            unshare: Unshare::default(),
            rows_left,
        }
    }

    fn is_done(&self) -> bool {
        self.rows_left == 0
    }

    /// The next chunk; leaves at most a reader open for which memory was granted.
    async fn next(&mut self, ctx: &JoinContext, space: &Space) -> Result<Option<Chunk>> {
        if self.is_done() {
            return Ok(None);
        }
        self.unshare = Unshare::default();
        let mut parts: Vec<Rows> = Vec::new();
        let mut rows = 0_usize;
        let mut bytes = 0;
        let mut lease = ctx.budget.empty_beyond(space.plan.chunk_bytes());
        while !self.is_done() && self.source.most_rows.is_none_or(|most| rows < most) {
            let estimate = bytes
                + self.part_bytes()
                + Loaded::extra_bytes(ctx, self.source.side, rows + self.part_rows());
            if !lease.try_cover(estimate) && !parts.is_empty() {
                break;
            }
            let part = self.part(ctx, rows).await?;
            rows += part.len();
            bytes += part.bytes();
            self.rows_left = self.rows_left.saturating_sub(part.len() as u64);
            parts.push(part);
            lease.settle(bytes + Loaded::extra_bytes(ctx, self.source.side, rows));
        }
        self.pause(ctx);
        Ok(Some(Chunk { parts, lease }))
    }

    /// What the next part is about to take.
    fn part_bytes(&self) -> usize {
        let run = self.source.loaded;
        (run.memory_bytes() / run.frames()).max(1) + self.part_rows() * size_of::<u64>()
    }

    fn part_rows(&self) -> usize {
        usize::try_from(self.source.loaded.rows()).unwrap_or(usize::MAX)
            / self.source.loaded.frames()
    }

    /// The next rows of the chunk that has `rows` already.
    async fn part(&mut self, ctx: &JoinContext, rows: usize) -> Result<Rows> {
        let part = match self.rest.take() {
            Some(rest) => rest,
            None => self.read(ctx).await?,
        };
        let room = self.source.most_rows.map_or(part.len(), |most| most - rows);
        if part.len() <= room {
            return Ok(part);
        }
        let numbers: Vec<u32> = all_rows(part.len()).collect();
        let (now, later) = numbers.split_at(room);
        self.rest = Some(part.take(later)?);
        part.take(now)
    }

    async fn read(&mut self, ctx: &JoinContext) -> Result<Rows> {
        let ended = || error::internal("a run has fewer frames than rows");
        let mut reader = match self.reader.take() {
            Some((reader, _)) => reader,
            None => {
                let mut reader = self.source.loaded.read(&ctx.spiller, ReadAs::Singly)?;
                // Later frames may refer to dictionaries in earlier ones, so those are decoded too.
                for _ in 0..self.frames {
                    reader.next().await?;
                }
                reader
            }
        };
        let batch = reader.next().await?.ok_or_else(ended)?;
        self.frames += 1;
        self.reader = Some((reader, None));
        read_rows(ctx, self.source.side, (&batch, &mut self.unshare))
    }

    /// While streamed rows are read, this reader stays open only if there is memory for what it holds:
    /// nothing, for a file of the local disk without dictionaries.
    fn pause(&mut self, ctx: &JoinContext) {
        let Some((reader, _)) = self.reader.take() else {
            return;
        };
        if self.is_done() {
            return;
        }
        if let Some(lease) = ctx.budget.try_lease(reader.idle_bytes()) {
            self.reader = Some((reader, Some(lease)));
        }
    }
}

/// What is known of the streamed rows after the chunks so far.
enum Seen {
    /// The join type does not ask.
    NotAsked,
    /// One bit a row: whether it has a match.
    Bits(MatchedBits, Lease),
    /// The same beside the rows, in the run that the next chunk is joined with; `None` before the
    /// first one.
    Carried(Option<Run>),
}

impl Seen {
    fn new(ctx: &JoinContext, source: Source<'_>) -> Self {
        if ctx.join.semantics.rows(source.side.other()) == RowOutput::Nothing {
            return Self::NotAsked;
        }
        let Ok(rows) = usize::try_from(source.streamed.rows()) else {
            return Self::Carried(None);
        };
        match ctx.budget.try_lease(MatchedBits::size_of(rows)) {
            Some(lease) => Self::Bits(MatchedBits::new(rows), lease),
            None => Self::Carried(None),
        }
    }
}

/// All streamed rows past one chunk.
struct Replay<'a> {
    ctx: &'a JoinContext,
    space: &'a Space,
    source: Source<'a>,
    is_last: bool,
}

impl Replay<'_> {
    async fn run(&self, loaded: &mut Loaded, seen: Seen, out: &mut Output) -> Result<Seen> {
        match seen {
            Seen::NotAsked => {
                let mut reader = self.source.streamed.read(&self.ctx.spiller, ReadAs::Rows)?;
                while let Some(batch) = reader.next().await? {
                    let before = MatchedBits::new(batch.num_rows());
                    self.join(loaded, &batch, before, out).await?;
                    if out.flow() == Flow::Enough {
                        break;
                    }
                }
                Ok(Seen::NotAsked)
            }
            Seen::Bits(bits, lease) => self
                .with_bits(loaded, bits, out)
                .await
                .map(|bits| Seen::Bits(bits, lease)),
            Seen::Carried(run) => self.carrying(loaded, run, out).await.map(Seen::Carried),
        }
    }

    async fn with_bits(
        &self,
        loaded: &mut Loaded,
        mut bits: MatchedBits,
        out: &mut Output,
    ) -> Result<MatchedBits> {
        let mut reader = self.source.streamed.read(&self.ctx.spiller, ReadAs::Rows)?;
        let mut first = 0;
        while let Some(batch) = reader.next().await? {
            let rows = batch.num_rows();
            let mut before = MatchedBits::new(rows);
            (0..rows)
                .filter(|row| bits.get(first + row))
                .for_each(|row| _ = before.set(row));
            let after = self.join(loaded, &batch, before, out).await?;
            if out.flow() == Flow::Enough {
                break;
            }
            (0..rows)
                .filter(|row| after.get(*row))
                .for_each(|row| _ = bits.set(first + row));
            first += rows;
        }
        Ok(bits)
    }

    async fn carrying(
        &self,
        loaded: &mut Loaded,
        run: Option<Run>,
        out: &mut Output,
    ) -> Result<Option<Run>> {
        let schema = carried_schema(&self.ctx.side(self.source.side.other()).schema);
        let mut writer = (!self.is_last).then(|| {
            let what = "streamed rows with what is known of them";
            self.space.writer_of(self.ctx, &schema, what)
        });
        let mut reader = run
            .as_ref()
            .unwrap_or(self.source.streamed)
            .read(&self.ctx.spiller, ReadAs::Rows)?;
        while let Some(batch) = reader.next().await? {
            let (batch, before) = match run {
                Some(_) => self.uncarry(&batch)?,
                None => {
                    let none = MatchedBits::new(batch.num_rows());
                    (batch, none)
                }
            };
            let after = self.join(loaded, &batch, before, out).await?;
            if out.flow() == Flow::Enough {
                return Ok(None);
            }
            if let Some(writer) = &mut writer {
                self.carry(&schema, &batch, &after, writer).await?;
            }
        }
        match writer {
            Some(writer) => writer.finish().await,
            None => Ok(None),
        }
    }

    async fn carry(
        &self,
        schema: &SchemaRef,
        batch: &RecordBatch,
        after: &MatchedBits,
        writer: &mut RunWriter,
    ) -> Result<()> {
        let seen: BooleanArray = (0..after.len()).map(|row| Some(after.get(row))).collect();
        let mut columns = batch.columns().to_vec();
        columns.push(Arc::new(seen) as ArrayRef);
        let batch = new_batch(schema, columns, batch.num_rows())?;
        writer
            .push(batch, std::iter::empty(), self.space.plan.buffer)
            .await
    }

    fn uncarry(&self, batch: &RecordBatch) -> Result<(RecordBatch, MatchedBits)> {
        let Some((seen, columns)) = batch.columns().split_last() else {
            return Err(error::internal("a carried run has no columns"));
        };
        let mut before = MatchedBits::new(batch.num_rows());
        for (row, seen) in seen.as_boolean().values().iter().enumerate() {
            if seen {
                before.set(row);
            }
        }
        let schema = &self.ctx.side(self.source.side.other()).schema;
        Ok((
            new_batch(schema, columns.to_vec(), batch.num_rows())?,
            before,
        ))
    }

    /// Joins one streamed batch with the chunk; returns what is known of its rows then.
    async fn join(
        &self,
        loaded: &mut Loaded,
        batch: &RecordBatch,
        matched: MatchedBits,
        out: &mut Output,
    ) -> Result<MatchedBits> {
        let rows = batch.num_rows();
        let side = self.source.side.other();
        let in_hand = batch_bytes(batch) + rows * self.ctx.row_overhead(side);
        let covered = self.space.plan.streamed_bytes();
        let _in_hand = self.ctx.budget.charge_beyond(covered, in_hand);
        let keys = loaded.streamed_keys(self.ctx, batch)?;
        let streamed = StreamedBatch::whole(self.ctx, side, batch.clone(), keys);
        let mut ask = Ask {
            rows: all_rows(rows).collect(),
            matched,
            is_last: self.is_last,
        };
        let _ = join_batch(self.ctx, loaded, &streamed, &mut ask, out).await?;
        Ok(ask.matched)
    }
}

/// The streamed rows' columns, and whether a match was seen.
fn carried_schema(streamed: &SchemaRef) -> SchemaRef {
    let mut fields = streamed.fields().to_vec();
    fields.push(Arc::new(Field::new("seen", DataType::Boolean, false)));
    Arc::new(Schema::new(fields))
}
