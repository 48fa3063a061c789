//! Writing a run: rows are gathered to a buffer's size, encoded, and written behind the caller's
//! back, one write at a time per partition.

use std::sync::Arc;

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow_ipc::writer::StreamEncoder;
use datafusion_common::Result;
use datafusion_execution::spill_file::{SpillFile, SpillWriter};
use tokio::task::JoinHandle;

use super::format::{self, Frame, RunSeed};
use super::run::{Run, Spiller};
use crate::error;
use crate::memory::{Lease, batch_bytes};

/// A run that is being written. Dropping it deletes what there is of its file.
pub(crate) struct RunWriter {
    spiller: Arc<Spiller>,
    schema: SchemaRef,
    what: &'static str,
    seed: RunSeed,
    /// Covers what is in flight after the caller was dropped.
    space: Arc<Lease>,
    pending: Vec<RecordBatch>,
    pending_bytes: usize,
    file: Option<OpenFile>,
    rows: u64,
    frames: u32,
    largest_frame: u32,
    memory_bytes: usize,
    hash: SeenHash,
}

/// Whether all rows so far had one hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeenHash {
    None,
    One(u64),
    Several,
}

struct OpenFile {
    file: Arc<dyn SpillFile>,
    encoder: StreamEncoder,
    sink: Sink,
}

/// Who has the writer: we, or the blocking task that is writing with it.
enum Sink {
    Idle(Box<dyn SpillWriter>),
    Writing(JoinHandle<Result<Box<dyn SpillWriter>>>),
    /// A write has failed; the error was handed out.
    Failed,
}

impl RunWriter {
    /// Nothing is opened before there is something to write. `what` names the rows in errors.
    pub(crate) fn new(
        spiller: &Arc<Spiller>,
        schema: &SchemaRef,
        what: &'static str,
        space: &Arc<Lease>,
    ) -> Self {
        Self {
            spiller: Arc::clone(spiller),
            schema: Arc::clone(schema),
            what,
            seed: RunSeed::random(),
            space: Arc::clone(space),
            pending: Vec::new(),
            pending_bytes: 0,
            file: None,
            rows: 0,
            frames: 0,
            largest_frame: 0,
            memory_bytes: 0,
            hash: SeenHash::None,
        }
    }

    /// Adds rows, with their hashes where the run may have to be split; writes once `buffer` bytes
    /// are gathered.
    ///
    /// # Errors
    /// If this write, or the one before it, failed.
    pub(crate) async fn push(
        &mut self,
        batch: RecordBatch,
        hashes: impl Iterator<Item = u64>,
        buffer: usize,
    ) -> Result<()> {
        for hash in hashes {
            match self.hash {
                SeenHash::None => self.hash = SeenHash::One(hash),
                SeenHash::One(seen) if seen == hash => {}
                SeenHash::One(_) => self.hash = SeenHash::Several,
                SeenHash::Several => break,
            }
        }
        self.rows += batch.num_rows() as u64;
        self.pending_bytes += batch_bytes(&batch);
        self.pending.push(batch);
        if self.pending_bytes >= buffer {
            self.flush().await
        } else {
            Ok(())
        }
    }

    /// Writes what is gathered.
    ///
    /// # Errors
    /// If this write, or the one before it, failed.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let batch = concat_batches(&self.schema, &self.pending)?;
        self.pending.clear();
        self.pending_bytes = 0;
        self.memory_bytes += batch_bytes(&batch);
        self.spiller.stats.spilled_rows.add(batch.num_rows());
        let frame = self.encode(&batch)?;
        drop(batch);
        let mut parts = Vec::with_capacity(3);
        if self.frames == 0 {
            parts.push(Part::Bytes(format::header(&self.schema).to_vec()));
        }
        self.frames += 1;
        self.largest_frame = self.largest_frame.max(frame.head.length);
        parts.push(Part::Frame(frame));
        self.write(parts).await
    }

    /// Writes the rest and closes the file; `None` if there never was a row.
    ///
    /// # Errors
    /// If any write failed.
    pub(crate) async fn finish(mut self) -> Result<Option<Run>> {
        self.flush().await?;
        if self.file.is_none() {
            return Ok(None);
        }
        let trailer = format::trailer(self.frames, self.rows).to_vec();
        self.write(vec![Part::Bytes(trailer), Part::End]).await?;
        let Some(mut open) = self.file.take() else {
            return Ok(None);
        };
        open.idle_writer().await?;
        Ok(Some(Run {
            file: open.file,
            schema: self.schema,
            what: self.what,
            seed: self.seed,
            rows: self.rows,
            frames: self.frames,
            largest_frame: self.largest_frame,
            memory_bytes: self.memory_bytes,
            single_hash: matches!(self.hash, SeenHash::One(_)),
        }))
    }

    fn encode(&mut self, batch: &RecordBatch) -> Result<Frame> {
        let open = match &mut self.file {
            Some(open) => open,
            empty => empty.insert(OpenFile::new(&self.spiller, &self.schema, self.what)?),
        };
        let body = open.encoder.encode(batch)?;
        let too_long = || error::frame_too_long(self.spiller.partition, self.what);
        let rows = u32::try_from(batch.num_rows()).map_err(|_| too_long())?;
        Frame::new((self.seed, self.frames), rows, body).ok_or_else(too_long)
    }

    /// Waits for this file's last write and for the partition's turn, then writes in the background.
    async fn write(&mut self, parts: Vec<Part>) -> Result<()> {
        let Some(open) = &mut self.file else {
            return Ok(());
        };
        let mut writer = open.idle_writer().await?;
        let turn = Arc::clone(&self.spiller.writing).acquire_owned().await;
        let turn = turn.map_err(|_| error::internal("the write semaphore is never closed"))?;
        // The file and the space stay until the write is done, whoever is dropped meanwhile: the
        // disk manager counts a file's bytes until its last handle is gone.
        let (file, space) = (Arc::clone(&open.file), Arc::clone(&self.space));
        let spiller = Arc::clone(&self.spiller);
        open.sink = Sink::Writing(tokio::task::spawn_blocking(move || {
            let _held = (turn, file, space);
            for part in parts {
                spiller
                    .stats
                    .spilled_bytes
                    .add(part.write(writer.as_mut())?);
            }
            Ok(writer)
        }));
        Ok(())
    }
}

impl OpenFile {
    fn new(spiller: &Spiller, schema: &SchemaRef, what: &str) -> Result<Self> {
        let encoder = StreamEncoder::try_new_with_options(schema, spiller.ipc_options()?)?;
        let file = spiller.create(what)?;
        let sink = Sink::Idle(file.open_writer()?);
        Ok(Self {
            file,
            encoder,
            sink,
        })
    }

    /// Takes the writer, once it is free.
    async fn idle_writer(&mut self) -> Result<Box<dyn SpillWriter>> {
        match std::mem::replace(&mut self.sink, Sink::Failed) {
            Sink::Idle(writer) => Ok(writer),
            Sink::Writing(task) => task
                .await
                .map_err(|e| error::blocking_task("writing a spill file", &e))?,
            Sink::Failed => Err(error::internal(
                "a spill file was written to after a failure",
            )),
        }
    }
}

/// What is written in one go.
enum Part {
    Bytes(Vec<u8>),
    Frame(Frame),
    End,
}

impl Part {
    /// Returns the bytes written.
    fn write(self, writer: &mut dyn SpillWriter) -> Result<usize> {
        match self {
            Self::Bytes(bytes) => {
                writer.write_all(&bytes)?;
                Ok(bytes.len())
            }
            Self::Frame(frame) => {
                writer.write_all(&frame.head.to_bytes())?;
                for buffer in &frame.body {
                    writer.write_all(buffer)?;
                }
                Ok(frame.bytes())
            }
            Self::End => {
                writer.flush()?;
                writer.finish()?;
                Ok(0)
            }
        }
    }
}
