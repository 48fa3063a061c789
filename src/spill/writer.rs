//! Writing a run: rows are gathered to a buffer's size, then encoded and written behind the caller's
//! back.

use std::io::{BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};

use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use arrow_ipc::writer::{IpcWriteOptions, StreamEncoder};
use datafusion_common::Result;
use datafusion_execution::spill_file::{SpillFile, SpillWriter};
use tokio::sync::oneshot;

use super::behind::Work;
use super::format::{self, Frame, RunSeed};
use super::run::{Facts, Run, Spiller};
use crate::error;
use crate::memory::{
    Growing, Lease, ROW_OVERHEAD, Sources, Texts, batch_bytes, grows_in_place, restored_extra,
    rows_bytes, shared_bytes, stored_schema, text_bytes, words_bytes_of_row,
};
use crate::stats::StatsCell;

/// Buffers of a frame that are shorter than this are gathered before they are written.
const WRITE_BYTES: usize = 16 << 10;

/// A run that is being written. Dropping it deletes what there is of its file.
pub(crate) struct RunWriter {
    spiller: Arc<Spiller>,
    schema: SchemaRef,
    stored: SchemaRef,
    what: &'static str,
    seed: RunSeed,
    /// Covers what is in flight after the caller was dropped.
    space: Arc<Lease>,
    pending: Option<Growing>,
    pending_bytes: usize,
    /// Of the rows before those.
    sources: Sources,
    /// There once there is something to write; whoever writes has it.
    file: Option<Arc<Mutex<RunFile>>>,
    rows: u64,
    memory_bytes: usize,
    text_bytes: Vec<usize>,
    largest_batch: usize,
    largest_shared: usize,
    /// Those of the last frame's dictionaries.
    words: Vec<ArrayRef>,
    hash: SeenHash,
}

/// Whether all rows so far had one hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeenHash {
    None,
    One(u64),
    Several,
}

/// Rows to pick from.
pub(crate) struct Pick<'a> {
    pub(crate) batch: &'a RecordBatch,
    /// The rows' hashes.
    pub(crate) hashes: &'a [u64],
    /// What a row takes while it waits to be written.
    row_bytes: usize,
}

impl<'a> Pick<'a> {
    pub(crate) fn new(batch: &'a RecordBatch, hashes: &'a [u64]) -> Self {
        let row_bytes = rows_bytes(batch) / batch.num_rows().max(1);
        Self {
            batch,
            hashes,
            row_bytes: row_bytes + words_bytes_of_row(batch) + ROW_OVERHEAD,
        }
    }
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
            stored: stored_schema(schema),
            schema: Arc::clone(schema),
            what,
            seed: RunSeed::random(),
            space: Arc::clone(space),
            pending: None,
            pending_bytes: 0,
            sources: Sources::default(),
            file: None,
            rows: 0,
            memory_bytes: 0,
            text_bytes: vec![0; schema.fields().len()],
            largest_batch: 0,
            largest_shared: 0,
            words: Vec::new(),
            hash: SeenHash::None,
        }
    }

    /// Adds picked rows; writes each time `buffer` bytes are gathered.
    ///
    /// # Errors
    /// If something that was written before failed.
    pub(crate) async fn push_rows(
        &mut self,
        from: &Pick<'_>,
        rows: &[u32],
        buffer: usize,
    ) -> Result<()> {
        let hash = |row: &u32| from.hashes.get(*row as usize).copied();
        self.note(rows.iter().filter_map(hash));
        self.rows += rows.len() as u64;
        let mut rest = rows;
        while !rest.is_empty() {
            let room = buffer.saturating_sub(self.pending_bytes) / from.row_bytes;
            let (now, later) = rest.split_at(room.clamp(1, rest.len()));
            rest = later;
            let expected = (buffer / from.row_bytes).max(now.len());
            self.gather(from.batch, Some(now), (expected, buffer))
                .await?;
            if self.pending_bytes + from.row_bytes > buffer {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Adds rows that hold nothing but themselves, with their hashes where the run may have to be
    /// split; writes once `buffer` bytes are gathered.
    ///
    /// # Errors
    /// If something that was written before failed.
    pub(crate) async fn push(
        &mut self,
        batch: RecordBatch,
        hashes: impl Iterator<Item = u64>,
        buffer: usize,
    ) -> Result<()> {
        self.note(hashes);
        self.rows += batch.num_rows() as u64;
        // What it is worth writing by, whatever its buffers could hold.
        let rows = batch.num_rows();
        let row_bytes = words_bytes_of_row(&batch) + ROW_OVERHEAD;
        let bytes = rows_bytes(&batch) + rows * row_bytes;
        if bytes >= buffer && batch.schema_ref().fields() == self.stored.fields() {
            self.flush().await?;
            let bytes = bytes.max(batch_bytes(&batch));
            return self.hand_over(batch, bytes).await;
        }
        self.gather(&batch, None, (rows, buffer)).await?;
        if self.pending_bytes >= buffer {
            self.flush().await?;
        }
        Ok(())
    }

    /// Adds the given rows, or all, to those that are gathered; has those written first if together
    /// they cannot be one frame. A new frame has room for so many rows and bytes of texts.
    async fn gather(
        &mut self,
        batch: &RecordBatch,
        rows: Option<&[u32]>,
        (expected, texts): (usize, usize),
    ) -> Result<()> {
        loop {
            let (stored, sources) = (&self.stored, &self.sources);
            let new = || Growing::new(stored, expected, Texts::Within(texts)).after(sources);
            let pending = self.pending.get_or_insert_with(new);
            let (before, is_first) = (pending.bytes(), pending.rows() == 0);
            let is_gathered = match rows {
                Some(rows) => pending.append_rows(batch, rows)?,
                None => pending.append(batch)?,
            };
            if is_gathered {
                let rows = rows.map_or_else(|| batch.num_rows(), <[u32]>::len);
                // Rows of few bytes count too: each takes its hash and numbers when it is read back.
                self.pending_bytes += pending.bytes() - before + rows * ROW_OVERHEAD;
                return Ok(());
            }
            if is_first {
                return Err(error::internal("rows of one batch are no frame"));
            }
            self.flush().await?;
        }
    }

    fn note(&mut self, hashes: impl Iterator<Item = u64>) {
        for hash in hashes {
            match self.hash {
                SeenHash::None => self.hash = SeenHash::One(hash),
                SeenHash::One(seen) if seen == hash => {}
                SeenHash::One(_) => self.hash = SeenHash::Several,
                SeenHash::Several => break,
            }
        }
    }

    /// Has written what is gathered.
    ///
    /// # Errors
    /// If something that was written before failed.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.pending_bytes);
        match self.pending.take() {
            Some(mut pending) if pending.rows() > 0 => {
                self.sources = pending.sources();
                self.hand_over(pending.finish()?, bytes).await
            }
            _ => Ok(()),
        }
    }

    async fn hand_over(&mut self, batch: RecordBatch, bytes: usize) -> Result<()> {
        let shared = shared_bytes(&batch);
        self.largest_shared = self.largest_shared.max(shared);
        let views = restored_extra(&self.schema, batch.num_rows());
        let own = match grows_in_place(&self.stored) {
            true => rows_bytes(&batch) + views,
            false => batch_bytes(&batch) - shared,
        };
        self.memory_bytes += own;
        self.largest_batch = self.largest_batch.max(own + shared);
        // Words are written, and read back, once for all frames in a row that have them.
        let words: Vec<ArrayRef> = words_of(&batch).collect();
        let is_known = |(own, last): (&ArrayRef, &ArrayRef)| Arc::ptr_eq(own, last);
        if words.len() != self.words.len() || !words.iter().zip(&self.words).all(is_known) {
            self.memory_bytes += shared;
            self.words = words;
        }
        for (sum, bytes) in self.text_bytes.iter_mut().zip(text_bytes(&batch)) {
            *sum += bytes;
        }
        let (spiller, what) = (&self.spiller, self.what);
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => {
                let file = RunFile::new(spiller, &self.stored, self.seed, what)?;
                Arc::clone(self.file.insert(Arc::new(Mutex::new(file))))
            }
        };
        let wanted = (Arc::downgrade(&file), Arc::downgrade(spiller));
        let work: Work = Box::new(move || {
            let (Some(file), Some(spiller)) = (wanted.0.upgrade(), wanted.1.upgrade()) else {
                // By nobody any more.
                return Ok(());
            };
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            file.write(&spiller, &batch)
        });
        self.write_behind(bytes, work).await
    }

    async fn write_behind(&self, bytes: usize, work: Work) -> Result<()> {
        let behind = &self.spiller.behind;
        let room = behind.room(bytes).await;
        let room = room.map_err(|_| error::internal("the write semaphore is never closed"))?;
        behind.push(room, &self.space, work)
    }

    /// Writes the rest and closes the file; `None` if there never was a row.
    ///
    /// # Errors
    /// If any write failed.
    pub(crate) async fn finish(self) -> Result<Option<Run>> {
        finished(self.close().await?).await
    }

    /// Has the rest written and the file closed, without waiting for it; `None` if there never was a
    /// row.
    ///
    /// # Errors
    /// If something that was written before failed.
    pub(crate) async fn close(mut self) -> Result<Option<Closing>> {
        self.flush().await?;
        let Some(file) = self.file.take() else {
            return Ok(None);
        };
        let (done, written) = oneshot::channel();
        let rows = self.rows;
        let wanted = Arc::downgrade(&file);
        let work: Work = Box::new(move || {
            let Some(file) = wanted.upgrade() else {
                return Ok(());
            };
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            // The error is for whoever closes the file, unless he is gone.
            let _ = done.send(file.close(rows));
            Ok(())
        });
        self.write_behind(0, work).await?;
        Ok(Some(Closing {
            writer: self,
            _file: file,
            written,
        }))
    }
}

/// A run whose last bytes are being written.
pub(crate) struct Closing {
    writer: RunWriter,
    /// Nothing is written of a file that nobody holds on to.
    _file: Arc<Mutex<RunFile>>,
    written: oneshot::Receiver<Result<Written>>,
}

impl Closing {
    /// The run, once it is written.
    ///
    /// # Errors
    /// If any write failed.
    pub(crate) async fn finish(self) -> Result<Run> {
        let Self {
            writer,
            _file,
            written,
        } = self;
        let Ok(written) = written.await else {
            return Err(writer.spiller.behind.failure());
        };
        let written = written?;
        Ok(Run {
            facts: Arc::new(Facts {
                file: written.file,
                schema: writer.schema,
                stored: writer.stored,
                what: writer.what,
                seed: writer.seed,
                rows: writer.rows,
                frames: written.frames,
                largest_frame: written.largest_frame,
                largest_batch: writer.largest_batch,
                shared: writer.largest_shared,
                _space: writer.space,
            }),
            memory_bytes: writer.memory_bytes,
            text_bytes: writer.text_bytes,
            single_hash: matches!(writer.hash, SeenHash::One(_)),
        })
    }
}

/// The run, once it is written; `None` if there never was a row.
///
/// # Errors
/// If any write failed.
pub(crate) async fn finished(closing: Option<Closing>) -> Result<Option<Run>> {
    match closing {
        Some(closing) => closing.finish().await.map(Some),
        None => Ok(None),
    }
}

/// The words of a batch's dictionaries.
fn words_of(batch: &RecordBatch) -> impl Iterator<Item = ArrayRef> + '_ {
    let dictionaries = batch.columns().iter();
    let dictionaries = dictionaries.filter_map(|column| column.as_any_dictionary_opt());
    dictionaries.map(|dictionary| Arc::clone(dictionary.values()))
}

/// Whether rows of these columns can be written; asked of arrow, as it will be.
///
/// # Errors
/// A plan error that names the first column that cannot be.
pub(crate) fn check_supported(side: &str, schema: &SchemaRef) -> Result<()> {
    for field in schema.fields() {
        let alone = Schema::new(vec![Arc::clone(field)]);
        let stored = stored_schema(&Arc::new(alone));
        StreamEncoder::try_new_with_options(&stored, IpcWriteOptions::default())
            .map_err(|cause| error::cannot_be_spilled(side, field, &cause.to_string()))?;
    }
    Ok(())
}

/// What is known of a file once it is written.
struct Written {
    file: Arc<dyn SpillFile>,
    frames: u32,
    largest_frame: u32,
}

/// A file with its rows' encoder, touched by whoever writes behind.
struct RunFile {
    open: Option<OpenFile>,
    encoder: StreamEncoder,
    stats: Arc<StatsCell>,
    stored: SchemaRef,
    partition: usize,
    what: &'static str,
    seed: RunSeed,
    frames: u32,
    largest_frame: u32,
}

/// The disk manager counts a file's bytes until its last handle is gone, so both are held together.
struct OpenFile {
    writer: Box<dyn SpillWriter>,
    file: Arc<dyn SpillFile>,
}

impl RunFile {
    fn new(
        spiller: &Spiller,
        stored: &SchemaRef,
        seed: RunSeed,
        what: &'static str,
    ) -> Result<Self> {
        let options: IpcWriteOptions = spiller.ipc_options()?;
        Ok(Self {
            open: None,
            encoder: StreamEncoder::try_new_with_options(stored, options)?,
            stats: Arc::clone(&spiller.stats),
            stored: Arc::clone(stored),
            partition: spiller.partition,
            what,
            seed,
            frames: 0,
            largest_frame: 0,
        })
    }

    /// Writes a frame, making the file before the first one.
    fn write(&mut self, spiller: &Spiller, batch: &RecordBatch) -> Result<()> {
        let frame = self.encode(batch)?;
        let open = match &mut self.open {
            Some(open) => open,
            none => {
                let file = spiller.create(self.what)?;
                let mut writer = file.open_writer()?;
                let header = format::header(&self.stored);
                writer.write_all(&header)?;
                self.stats.spilled_bytes.add(header.len());
                none.insert(OpenFile { writer, file })
            }
        };
        // Writers are not buffered; a frame of many short buffers is one write all the same.
        let mut buffered =
            BufWriter::with_capacity(WRITE_BYTES.min(frame.bytes()), open.writer.as_mut());
        buffered.write_all(&frame.head.to_bytes())?;
        for buffer in &frame.body {
            buffered.write_all(buffer)?;
        }
        buffered.flush()?;
        drop(buffered);
        self.frames += 1;
        self.largest_frame = self.largest_frame.max(frame.head.length);
        self.stats.spilled_rows.add(batch.num_rows());
        self.stats.spilled_bytes.add(frame.bytes());
        Ok(())
    }

    fn encode(&mut self, batch: &RecordBatch) -> Result<Frame> {
        let body = self.encoder.encode(batch)?;
        let too_long = || error::frame_too_long(self.partition, self.what);
        let rows = u32::try_from(batch.num_rows()).map_err(|_| too_long())?;
        Frame::new((self.seed, self.frames), rows, body).ok_or_else(too_long)
    }

    fn close(&mut self, rows: u64) -> Result<Written> {
        let Some(OpenFile { mut writer, file }) = self.open.take() else {
            return Err(error::internal(
                "a spill file is closed that was never opened",
            ));
        };
        let trailer = format::trailer(self.frames, rows);
        writer.write_all(&trailer)?;
        self.stats.spilled_bytes.add(trailer.len());
        writer.flush()?;
        writer.finish()?;
        Ok(Written {
            file,
            frames: self.frames,
            largest_frame: self.largest_frame,
        })
    }
}
