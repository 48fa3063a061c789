//! Reading a run back, frame by frame, each verified before arrow sees it.

use std::pin::Pin;
use std::sync::Arc;

use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use arrow_ipc::reader::StreamDecoder;
use datafusion_common::{DataFusionError, Result};
use datafusion_execution::spill_file::SpillFile;
use futures::{Stream, StreamExt};

use super::format::{
    self, FRAME_HEAD_BYTES, FrameHead, HEADER_BYTES, RunSeed, TRAILER_MARK, TRAILER_REST_BYTES,
};
use super::run::{Run, Spiller};
use crate::error;

/// The end-of-stream marker of an IPC stream: makes the decoder finish a message without a body.
const END_OF_STREAM: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// A run that is being read.
pub(crate) struct RunReader {
    spiller: Arc<Spiller>,
    schema: SchemaRef,
    what: &'static str,
    seed: RunSeed,
    rows: u64,
    frames: u32,
    largest_frame: u32,
    chunks: Chunks,
    decoder: StreamDecoder,
    rows_read: u64,
    frames_read: u32,
    /// Keeps the file while it is read.
    _file: Arc<dyn SpillFile>,
}

impl RunReader {
    pub(super) fn open(run: &Run, spiller: &Arc<Spiller>) -> Result<Self> {
        let chunks = run.file.read_stream()?.map(|chunk| chunk.map(Buffer::from));
        Ok(Self {
            spiller: Arc::clone(spiller),
            schema: Arc::clone(&run.schema),
            what: run.what,
            seed: run.seed,
            rows: run.rows,
            frames: run.frames,
            largest_frame: run.largest_frame,
            chunks: Chunks {
                stream: Box::pin(chunks),
                rest: Buffer::from(&[]),
            },
            decoder: StreamDecoder::new().with_require_alignment(false),
            rows_read: 0,
            frames_read: 0,
            _file: Arc::clone(&run.file),
        })
    }

    /// The next batch, or `None` after the last one, once the trailer has proved that it is.
    ///
    /// # Errors
    /// If the file cannot be read, or is not what was written. No row of a damaged frame comes out.
    pub(crate) async fn next(&mut self) -> Result<Option<RecordBatch>> {
        if self.frames_read == 0 {
            self.header().await?;
        }
        let head = FrameHead::from_bytes(self.take_array::<FRAME_HEAD_BYTES>().await?);
        if head.length == TRAILER_MARK {
            self.trailer(head).await?;
            return Ok(None);
        }
        if head.length > self.largest_frame || self.frames_read == self.frames {
            return Err(self.damaged("a frame's length is not one that was written"));
        }
        let bytes = self.take(head.length as usize).await?;
        let place = (self.seed, self.frames_read);
        let sum = format::frame_checksum(place, head.length, head.rows, [&*bytes].into_iter());
        if sum != head.checksum {
            return Err(self.damaged("a frame's checksum does not fit its bytes"));
        }
        self.frames_read += 1;
        self.rows_read += u64::from(head.rows);
        self.decode(bytes, head.rows).map(Some)
    }

    async fn header(&mut self) -> Result<()> {
        if self.take_array::<HEADER_BYTES>().await? == format::header(&self.schema) {
            Ok(())
        } else {
            Err(self.damaged("the header is not the one that was written"))
        }
    }

    async fn trailer(&mut self, head: FrameHead) -> Result<()> {
        let rest = self.take_array::<TRAILER_REST_BYTES>().await?;
        let trailer = format::trailer(self.frames, self.rows);
        let (first, last) = trailer.split_at(FRAME_HEAD_BYTES);
        let is_ours = head.to_bytes() == first && rest == last;
        if is_ours && self.frames_read == self.frames && self.rows_read == self.rows {
            Ok(())
        } else {
            Err(self.damaged("the file ends before its last row"))
        }
    }

    fn decode(&mut self, bytes: Buffer, rows: u32) -> Result<RecordBatch> {
        self.spiller.stats.read_bytes.add(bytes.len());
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
            Arc::clone(&self.schema),
            columns,
            &options,
        )?)
    }

    async fn take_array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N).await?;
        <[u8; N]>::try_from(bytes.as_slice()).map_err(|_| self.damaged("the file is too short"))
    }

    async fn take(&mut self, length: usize) -> Result<Buffer> {
        match self.chunks.take(length).await? {
            Some(bytes) => Ok(bytes),
            None => Err(self.damaged("the file is too short")),
        }
    }

    fn damaged(&self, how: &str) -> DataFusionError {
        error::damaged_run(
            self.spiller.partition,
            self.what,
            u64::from(self.frames_read),
            how,
        )
    }
}

/// Pieces of a given length out of chunks of any.
struct Chunks {
    stream: Pin<Box<dyn Stream<Item = Result<Buffer>> + Send>>,
    rest: Buffer,
}

impl Chunks {
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
