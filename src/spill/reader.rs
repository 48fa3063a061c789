//! Reading a run back, frame by frame, each verified before arrow sees it.
//!
//! A file of the local disk is read, verified and decoded by blocking tasks, a few frames each, so
//! that the next ones are there when the last ones are joined. What another back end has is taken
//! from its stream.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Read;
use std::pin::Pin;
use std::sync::Arc;

use arrow::buffer::{Buffer, MutableBuffer};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow_ipc::reader::StreamDecoder;
use datafusion_common::{DataFusionError, Result};
use futures::{Stream, StreamExt};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

use super::format::{
    self, FRAME_HEAD_BYTES, FrameHead, HEADER_BYTES, TRAILER_MARK, TRAILER_REST_BYTES,
};
use super::run::{Facts, Spiller};
use crate::error;
use crate::memory::{READER_BYTES, restored};
use crate::stats::StatsCell;

/// The end-of-stream marker of an IPC stream: makes the decoder finish a message without a body.
const END_OF_STREAM: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// How a run is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadAs {
    /// The rows as they were handed over, some of them ahead of what is asked for.
    Rows,
    /// The same, rows as they are stored.
    Stored,
    /// The rows as they were handed over, one message at a time: between two of them the reader
    /// holds next to nothing.
    Singly,
}

/// A run that is being read.
pub(crate) struct RunReader {
    spiller: Arc<Spiller>,
    facts: Arc<Facts>,
    source: Source,
    /// Read, but not handed out.
    ready: VecDeque<RecordBatch>,
    /// What comes after those, once it is known.
    end: Option<Result<()>>,
    ahead: Ahead,
    reads: ReadAs,
}

/// How far a reader reads ahead of what is asked for.
#[derive(Clone, Copy)]
struct Ahead {
    /// Frames of one blocking task.
    frames: usize,
    /// Frames that may be ready when a task starts; `None` to read when asked only.
    ready: Option<usize>,
}

impl Ahead {
    /// Within what an open reader may hold, the frame that was asked for not counted.
    fn new(facts: &Facts, reads: ReadAs) -> Self {
        let fitting = READER_BYTES / facts.largest_batch.max(1);
        let most = match fitting {
            _ if reads == ReadAs::Singly => None,
            0 => None,
            fitting => Some(fitting / 2),
        };
        Self {
            frames: most.map_or(1, |most| most.max(1)),
            ready: most,
        }
    }
}

/// Where frames come from.
enum Source {
    Local(LocalFile),
    /// A blocking task reads.
    Reading(JoinHandle<Group>),
    Stream(Chunks, Frames),
    /// A task was lost; the error was handed out.
    Lost,
}

/// What one blocking task read.
struct Group {
    file: LocalFile,
    batches: Vec<RecordBatch>,
    end: Option<GroupEnd>,
}

enum GroupEnd {
    /// Nothing comes after those.
    Run(Result<()>),
    /// What is at the file's path is not what was written: it belongs to a back end that reads and
    /// writes it in a way of its own.
    Foreign,
}

impl RunReader {
    pub(super) fn open(facts: &Arc<Facts>, spiller: &Arc<Spiller>, reads: ReadAs) -> Result<Self> {
        let frames = Frames::new(facts, spiller);
        let source = match facts.file.path() {
            Some(_) => Source::Local(LocalFile { frames, open: None }),
            None => Source::Stream(Chunks::open(facts)?, frames),
        };
        Ok(Self {
            spiller: Arc::clone(spiller),
            facts: Arc::clone(facts),
            source,
            ready: VecDeque::new(),
            end: None,
            ahead: Ahead::new(facts, reads),
            reads,
        })
    }

    /// The next batch, or `None` after the last one, once the trailer has proved that it is.
    ///
    /// # Errors
    /// If the file cannot be read, or is not what was written. No row of a damaged frame comes out.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                self.read_ahead();
                return Ok(Some(batch));
            }
            if let Some(end) = self.end.take() {
                return end.map(|()| None);
            }
            self.fetch().await?;
        }
    }

    /// Starts to read what is not there yet, if there is room for it and a turn to be had.
    pub(crate) fn read_ahead(&mut self) {
        let is_wanted = self
            .ahead
            .ready
            .is_some_and(|most| self.ready.len() <= most);
        if !is_wanted || self.end.is_some() {
            return;
        }
        if let Ok(turn) = Arc::clone(&self.spiller.reading).try_acquire_owned() {
            self.start(turn);
        }
    }

    /// What the reader holds on to between two batches.
    pub(crate) fn idle_bytes(&self) -> usize {
        let buffers = match self.source {
            Source::Stream(..) => READER_BYTES,
            _ => 0,
        };
        buffers + self.facts.shared
    }

    fn start(&mut self, turn: OwnedSemaphorePermit) {
        match std::mem::replace(&mut self.source, Source::Lost) {
            Source::Local(file) => {
                let (frames, reads) = (self.ahead.frames, self.reads);
                self.source = Source::Reading(tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    file.read(frames, reads)
                }));
            }
            other => self.source = other,
        }
    }

    /// Makes something ready, or knows the end.
    async fn fetch(&mut self) -> Result<()> {
        if let Source::Stream(chunks, frames) = &mut self.source {
            match frames.next_from(chunks).await? {
                Some(batch) => self.ready.push_back(frames.read_as(batch, self.reads)?),
                None => self.end = Some(Ok(())),
            }
            return Ok(());
        }
        if let Source::Local(_) = self.source {
            let turn = Arc::clone(&self.spiller.reading).acquire_owned().await;
            self.start(turn.map_err(|_| error::internal("the read semaphore is never closed"))?);
        }
        let Source::Reading(task) = &mut self.source else {
            return Err(error::internal("a spill file was read after a failure"));
        };
        let group = task.await;
        self.source = Source::Lost;
        let group = group.map_err(|e| error::blocking_task("reading a spill file", &e))?;
        self.ready.extend(group.batches);
        match group.end {
            Some(GroupEnd::Foreign) => {
                let chunks = Chunks::open(&self.facts)?;
                self.source = Source::Stream(chunks, group.file.frames);
                return Ok(());
            }
            Some(GroupEnd::Run(end)) => self.end = Some(end),
            None => {}
        }
        self.source = Source::Local(group.file);
        Ok(())
    }
}

/// A file of the local disk.
struct LocalFile {
    frames: Frames,
    /// The file with the head that was read last.
    open: Option<(File, [u8; FRAME_HEAD_BYTES])>,
}

impl LocalFile {
    /// Reads up to so many frames.
    fn read(mut self, frames: usize, reads: ReadAs) -> Group {
        let mut batches = Vec::with_capacity(frames);
        let mut end = None;
        while batches.len() < frames && end.is_none() {
            if self.open.is_none() {
                self.open = self.open();
                if self.open.is_none() {
                    end = Some(GroupEnd::Foreign);
                    break;
                }
            }
            let batch = self.step().and_then(|batch| match batch {
                Some(batch) => self.frames.read_as(batch, reads).map(Some),
                None => Ok(None),
            });
            match batch {
                Ok(Some(batch)) => batches.push(batch),
                Ok(None) => end = Some(GroupEnd::Run(Ok(()))),
                Err(error) => end = Some(GroupEnd::Run(Err(error))),
            }
        }
        Group {
            file: self,
            batches,
            end,
        }
    }

    /// Opens the file if its first bytes are what was written.
    fn open(&self) -> Option<(File, [u8; FRAME_HEAD_BYTES])> {
        let path = self.frames.facts.file.path()?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the DiskManager's own file; of other back ends' files the header differs"
        )]
        let mut file = File::open(path).ok()?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header).ok()?;
        let mut head = [0; FRAME_HEAD_BYTES];
        let is_ours = self.frames.header(header).is_ok();
        (is_ours && file.read_exact(&mut head).is_ok()).then_some((file, head))
    }

    fn step(&mut self) -> Result<Option<RecordBatch>> {
        let Some((file, next)) = &mut self.open else {
            return Err(error::internal(
                "a spill file is read that was never opened",
            ));
        };
        let Some(head) = self.frames.head(*next)? else {
            let mut rest = [0; TRAILER_REST_BYTES];
            let read = file.read_exact(&mut rest);
            read.map_err(|e| self.frames.unreadable(e))?;
            return self.frames.trailer(*next, rest).map(|()| None);
        };
        // A frame is followed by another one, or by the trailer, which begins like one.
        let length = head.length as usize;
        let mut bytes = MutableBuffer::from_len_zeroed(length + FRAME_HEAD_BYTES);
        let read = file.read_exact(&mut bytes);
        read.map_err(|e| self.frames.unreadable(e))?;
        next.copy_from_slice(bytes.get(length..).unwrap_or_default());
        let bytes = Buffer::from(bytes).slice_with_length(0, length);
        self.frames.frame(head, bytes).map(Some)
    }
}

/// The frames of a run: what is known of them, and how far they were read.
struct Frames {
    facts: Arc<Facts>,
    stats: Arc<StatsCell>,
    partition: usize,
    decoder: StreamDecoder,
    rows_read: u64,
    /// Frames that were read.
    count: u32,
    is_begun: bool,
}

impl Frames {
    fn new(facts: &Arc<Facts>, spiller: &Spiller) -> Self {
        Self {
            facts: Arc::clone(facts),
            stats: Arc::clone(&spiller.stats),
            partition: spiller.partition,
            decoder: StreamDecoder::new().with_require_alignment(false),
            rows_read: 0,
            count: 0,
            is_begun: false,
        }
    }

    fn header(&self, header: [u8; HEADER_BYTES]) -> Result<()> {
        if header == format::header(&self.facts.stored) {
            Ok(())
        } else {
            Err(self.damaged("the header is not the one that was written"))
        }
    }

    /// The head of a frame; `None` for a trailer.
    fn head(&self, head: [u8; FRAME_HEAD_BYTES]) -> Result<Option<FrameHead>> {
        let head = FrameHead::from_bytes(head);
        if head.length == TRAILER_MARK {
            return Ok(None);
        }
        if head.length > self.facts.largest_frame || self.count == self.facts.frames {
            return Err(self.damaged("a frame's length is not one that was written"));
        }
        Ok(Some(head))
    }

    fn frame(&mut self, head: FrameHead, bytes: Buffer) -> Result<RecordBatch> {
        let place = (self.facts.seed, self.count);
        let sum = format::frame_checksum(place, head.length, head.rows, [&*bytes].into_iter());
        if sum != head.checksum {
            return Err(self.damaged("a frame's checksum does not fit its bytes"));
        }
        self.count += 1;
        self.rows_read += u64::from(head.rows);
        self.decode(bytes, head.rows)
    }

    fn trailer(&self, head: [u8; FRAME_HEAD_BYTES], rest: [u8; TRAILER_REST_BYTES]) -> Result<()> {
        let trailer = format::trailer(self.facts.frames, self.facts.rows);
        let (first, last) = trailer.split_at(FRAME_HEAD_BYTES);
        let is_read = (self.count, self.rows_read) == (self.facts.frames, self.facts.rows);
        if is_read && head == first && rest == last {
            Ok(())
        } else {
            Err(self.damaged("the file ends before its last row"))
        }
    }

    fn decode(&mut self, bytes: Buffer, rows: u32) -> Result<RecordBatch> {
        self.stats.read_bytes.add(bytes.len());
        let mut bytes = bytes;
        let mut batch = self.decoder.decode(&mut bytes)?;
        if batch.is_none() {
            batch = self.decoder.decode(&mut Buffer::from(&END_OF_STREAM))?;
        }
        let batch = batch.ok_or_else(|| self.damaged("a frame holds no batch"))?;
        if batch.num_rows() != rows as usize {
            return Err(self.damaged("a frame's batch has another number of rows"));
        }
        // Names and metadata are ours; the types must agree, which `try_new` checks.
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = batch.columns().to_vec();
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.facts.stored),
            columns,
            &options,
        )?)
    }

    fn read_as(&self, batch: RecordBatch, reads: ReadAs) -> Result<RecordBatch> {
        match reads {
            ReadAs::Stored => Ok(batch),
            ReadAs::Rows | ReadAs::Singly => restored(&batch, &self.facts.schema),
        }
    }

    async fn next_from(&mut self, chunks: &mut Chunks) -> Result<Option<RecordBatch>> {
        if !self.is_begun {
            self.is_begun = true;
            self.header(self.array(chunks).await?)?;
        }
        let head = self.array(chunks).await?;
        let Some(frame) = self.head(head)? else {
            let rest = self.array(chunks).await?;
            return self.trailer(head, rest).map(|()| None);
        };
        let bytes = self.take(chunks, frame.length as usize).await?;
        self.frame(frame, bytes).map(Some)
    }

    async fn array<const N: usize>(&self, chunks: &mut Chunks) -> Result<[u8; N]> {
        let bytes = self.take(chunks, N).await?;
        <[u8; N]>::try_from(bytes.as_slice()).map_err(|_| self.too_short())
    }

    async fn take(&self, chunks: &mut Chunks, length: usize) -> Result<Buffer> {
        let bytes = chunks.take(length).await?;
        bytes.ok_or_else(|| self.too_short())
    }

    fn unreadable(&self, cause: std::io::Error) -> DataFusionError {
        match cause.kind() {
            std::io::ErrorKind::UnexpectedEof => self.too_short(),
            _ => cause.into(),
        }
    }

    fn too_short(&self) -> DataFusionError {
        self.damaged("the file is too short")
    }

    fn damaged(&self, how: &str) -> DataFusionError {
        let frame = u64::from(self.count);
        error::damaged_run(self.partition, self.facts.what, frame, how)
    }
}

/// Pieces of a given length out of chunks of any.
struct Chunks {
    stream: Pin<Box<dyn Stream<Item = Result<Buffer>> + Send>>,
    rest: Buffer,
}

impl Chunks {
    fn open(facts: &Facts) -> Result<Self> {
        let chunks = facts.file.read_stream()?;
        Ok(Self {
            stream: Box::pin(chunks.map(|chunk| chunk.map(Buffer::from))),
            rest: Buffer::from(&[]),
        })
    }

    /// `None` if the stream ends before `length` bytes. The piece is aligned and owns its bytes.
    async fn take(&mut self, length: usize) -> Result<Option<Buffer>> {
        let mut piece = MutableBuffer::with_capacity(length);
        loop {
            let part = (length - piece.len()).min(self.rest.len());
            piece.extend_from_slice(self.rest.get(..part).unwrap_or_default());
            self.rest.advance(part);
            if piece.len() == length {
                return Ok(Some(piece.into()));
            }
            match self.stream.next().await {
                Some(chunk) => self.rest = chunk?,
                None => return Ok(None),
            }
        }
    }
}
