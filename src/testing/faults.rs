//! The n-th call goes wrong: pools that refuse, files that fail, inputs that fail or dawdle.
//!
//! Job: let a test walk over every call that the operator makes to the outside. Each injector
//! counts its calls and says whether it struck, so that a walk ends when n is past the last call.

use std::fmt;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use datafusion_common::{DataFusionError, Result};
use datafusion_execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use datafusion_execution::{
    DiskManager, RecordBatchStream, SpillFile, SpillWriter, TempFileFactory,
};
use futures::{Stream, StreamExt};

/// What an injected failure says.
pub const INJECTED: &str = "injected by a test";

fn injected(what: &str) -> DataFusionError {
    DataFusionError::Execution(format!("{what}: {INJECTED}"))
}

/// Which calls of a pool are refused, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// None.
    Never,
    /// This one.
    Once(usize),
    /// This one and all that follow.
    From(usize),
    /// Every so many-th.
    Every(usize),
}

/// A pool that refuses some `try_grow`s, whatever the pool inside would say.
#[derive(Debug)]
pub struct RefusingPool {
    inner: Arc<dyn MemoryPool>,
    refusal: Refusal,
    calls: AtomicUsize,
}

impl RefusingPool {
    /// Wraps a pool.
    #[must_use]
    pub fn new(inner: Arc<dyn MemoryPool>, refusal: Refusal) -> Self {
        Self {
            inner,
            refusal,
            calls: AtomicUsize::new(0),
        }
    }

    /// How often `try_grow` was called.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.calls.load(SeqCst)
    }
}

impl fmt::Display for RefusingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refusing({})", self.inner)
    }
}

impl MemoryPool for RefusingPool {
    fn name(&self) -> &'static str {
        "refusing"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.inner.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.inner.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.inner.grow(reservation, additional);
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.inner.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let call = self.calls.fetch_add(1, SeqCst);
        let refuses = match self.refusal {
            Refusal::Never => false,
            Refusal::Once(n) => call == n,
            Refusal::From(n) => call >= n,
            Refusal::Every(n) => n > 0 && (call + 1).is_multiple_of(n),
        };
        if refuses {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "{additional} bytes, call {call}: {INJECTED}"
            )));
        }
        self.inner.try_grow(reservation, additional)
    }

    fn reserved(&self) -> usize {
        self.inner.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.inner.memory_limit()
    }
}

/// Which call on files fails, counted from 0 over all files. Of files on the local disk, which are read
/// behind the back end's back, the n-th one that is finished is damaged instead of the n-th read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileFault {
    /// None.
    Never,
    /// Making the n-th file.
    Create(usize),
    /// Opening the n-th writer.
    OpenWriter(usize),
    /// The n-th write.
    Write(usize),
    /// Finishing the n-th writer.
    Finish(usize),
    /// Opening the n-th reader.
    OpenReader(usize),
    /// The n-th chunk read.
    Read(usize),
    /// The n-th chunk read ends early, by one byte.
    ShortRead(usize),
    /// The n-th chunk read has a bit turned in its middle.
    DamagedRead(usize),
    /// The n-th reader's file lacks so many bytes at its end, or all it has.
    Truncated {
        /// Counted as readers are opened.
        file: usize,
        /// How many are missing.
        bytes: u64,
    },
}

#[derive(Debug, Default)]
struct FileCalls {
    create: AtomicUsize,
    open_writer: AtomicUsize,
    write: AtomicUsize,
    finish: AtomicUsize,
    open_reader: AtomicUsize,
    read: AtomicUsize,
    /// Files on the local disk that were finished.
    local: AtomicUsize,
    written_bytes: AtomicUsize,
}

/// Spill files of which the n-th call fails; those that don't are real files.
#[derive(Debug)]
pub struct FaultyFiles {
    disk: Arc<DiskManager>,
    state: Arc<FileState>,
}

#[derive(Debug)]
struct FileState {
    fault: FileFault,
    /// Whether files say where they are.
    is_local: bool,
    calls: FileCalls,
    struck: AtomicUsize,
}

impl FileState {
    /// Counts a call, and says whether it goes wrong.
    fn strikes(&self, counter: &AtomicUsize, fault: impl Fn(usize) -> FileFault) -> bool {
        let strikes = fault(counter.fetch_add(1, SeqCst)) == self.fault;
        if strikes {
            self.struck.fetch_add(1, SeqCst);
        }
        strikes
    }

    fn damage(&self, chunk: Bytes) -> Result<Bytes> {
        let call = self.calls.read.fetch_add(1, SeqCst);
        let damaged = match self.fault {
            FileFault::Read(n) if n == call => Err(injected("reading a spill file")),
            FileFault::ShortRead(n) if n == call => Ok(chunk.slice(..chunk.len() - 1)),
            FileFault::DamagedRead(n) if n == call => {
                let mut bytes = chunk.to_vec();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                Ok(Bytes::from(bytes))
            }
            _ => return Ok(chunk),
        };
        self.struck.fetch_add(1, SeqCst);
        damaged
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "what is on the disk is damaged behind the reader's back"
)]
impl FileState {
    /// Damages a finished file of the local disk, if it is its turn.
    fn damage_file(&self, path: &std::path::Path) -> io::Result<()> {
        let number = self.calls.local.fetch_add(1, SeqCst);
        let size = std::fs::metadata(path)?.len();
        let cut = |bytes: u64| {
            let file = std::fs::OpenOptions::new().write(true).open(path)?;
            file.set_len(size.saturating_sub(bytes))
        };
        match self.fault {
            FileFault::OpenReader(n) if n == number => std::fs::remove_file(path)?,
            FileFault::Read(n) if n == number => cut(size / 2)?,
            FileFault::ShortRead(n) if n == number => cut(1)?,
            FileFault::Truncated { file, bytes } if file == number => cut(bytes)?,
            FileFault::DamagedRead(n) if n == number => {
                let mut bytes = std::fs::read(path)?;
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                std::fs::write(path, bytes)?;
            }
            _ => return Ok(()),
        }
        self.struck.fetch_add(1, SeqCst);
        Ok(())
    }
}

impl FaultyFiles {
    /// Files in a directory of their own.
    ///
    /// # Errors
    /// If there can be no directory.
    pub fn new(fault: FileFault) -> Result<Arc<Self>> {
        let disk = Arc::new(DiskManager::builder().build()?);
        Ok(Self::over(disk, fault))
    }

    /// The same, which say where on the local disk they are, as DataFusion's own do.
    ///
    /// # Errors
    /// If there can be no directory.
    pub fn local(fault: FileFault) -> Result<Arc<Self>> {
        let disk = Arc::new(DiskManager::builder().build()?);
        Ok(Self::made(disk, fault, true))
    }

    /// Files of another disk manager.
    #[must_use]
    pub fn over(disk: Arc<DiskManager>, fault: FileFault) -> Arc<Self> {
        Self::made(disk, fault, false)
    }

    fn made(disk: Arc<DiskManager>, fault: FileFault, is_local: bool) -> Arc<Self> {
        Arc::new(Self {
            disk,
            state: Arc::new(FileState {
                fault,
                is_local,
                calls: FileCalls::default(),
                struck: AtomicUsize::new(0),
            }),
        })
    }

    /// Whether a call has gone wrong.
    #[must_use]
    pub fn struck(&self) -> bool {
        self.state.struck.load(SeqCst) > 0
    }

    /// How many files were made.
    #[must_use]
    pub fn created(&self) -> usize {
        self.state.calls.create.load(SeqCst)
    }

    /// How many bytes were written to them.
    #[must_use]
    pub fn written_bytes(&self) -> usize {
        self.state.calls.written_bytes.load(SeqCst)
    }

    /// The disk manager that the real files belong to.
    #[must_use]
    pub fn disk(&self) -> Arc<DiskManager> {
        Arc::clone(&self.disk)
    }
}

impl TempFileFactory for FaultyFiles {
    fn create_temp_file(&self, description: &str) -> Result<Arc<dyn SpillFile>> {
        if self
            .state
            .strikes(&self.state.calls.create, FileFault::Create)
        {
            return Err(injected("creating a spill file"));
        }
        Ok(Arc::new(FaultyFile {
            file: self.disk.create_tmp_file(description)?,
            state: Arc::clone(&self.state),
        }))
    }
}

struct FaultyFile {
    file: Arc<dyn SpillFile>,
    state: Arc<FileState>,
}

impl FaultyFile {
    /// How many bytes this reader finds.
    fn left_of(&self, reader: usize) -> u64 {
        match (self.state.fault, self.file.size()) {
            (FileFault::Truncated { file, bytes }, Some(size)) if file == reader => {
                self.state.struck.fetch_add(1, SeqCst);
                size.saturating_sub(bytes)
            }
            _ => u64::MAX,
        }
    }
}

impl SpillFile for FaultyFile {
    /// Without one, whoever reads must go through `read_stream`, as with any custom back end.
    fn path(&self) -> Option<&std::path::Path> {
        self.file.path().filter(|_| self.state.is_local)
    }

    fn size(&self) -> Option<u64> {
        self.file.size()
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let reader = self.state.calls.open_reader.load(SeqCst);
        if self
            .state
            .strikes(&self.state.calls.open_reader, FileFault::OpenReader)
        {
            return Err(injected("opening a spill file"));
        }
        let state = Arc::clone(&self.state);
        let mut left = self.left_of(reader);
        let damage = move |chunk: Result<Bytes>| {
            let chunk = chunk?;
            let kept = usize::try_from(left).map_or(chunk.len(), |left| chunk.len().min(left));
            left -= kept as u64;
            state.damage(chunk.slice(..kept))
        };
        Ok(Box::pin(self.file.read_stream()?.map(damage)))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        if self
            .state
            .strikes(&self.state.calls.open_writer, FileFault::OpenWriter)
        {
            return Err(injected("opening a spill file for writing"));
        }
        let path = self.path().map(std::path::Path::to_owned);
        Ok(Box::new(FaultyWriter {
            writer: self.file.open_writer()?,
            state: Arc::clone(&self.state),
            path,
        }))
    }
}

struct FaultyWriter {
    writer: Box<dyn SpillWriter>,
    state: Arc<FileState>,
    /// Of a file on the local disk.
    path: Option<std::path::PathBuf>,
}

impl Write for FaultyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self
            .state
            .strikes(&self.state.calls.write, FileFault::Write)
        {
            return Err(io::Error::other(format!(
                "writing a spill file: {INJECTED}"
            )));
        }
        let written = self.writer.write(bytes)?;
        self.state.calls.written_bytes.fetch_add(written, SeqCst);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

impl SpillWriter for FaultyWriter {
    fn finish(&mut self) -> Result<()> {
        if self
            .state
            .strikes(&self.state.calls.finish, FileFault::Finish)
        {
            return Err(injected("finishing a spill file"));
        }
        self.writer.finish()?;
        match &self.path {
            Some(path) => Ok(self.state.damage_file(path)?),
            None => Ok(()),
        }
    }
}

/// What an input does besides handing out its batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFault {
    /// Nothing.
    Never,
    /// The n-th item is an error.
    FailAt(usize),
    /// So many polls come to nothing before each item, and before the end.
    Dawdle(usize),
    /// The n-th item never comes.
    StallAt(usize),
}

/// An input stream that fails or dawdles, and that must not be polled once it has ended.
#[derive(Debug)]
pub struct FaultyInput {
    schema: SchemaRef,
    batches: std::vec::IntoIter<RecordBatch>,
    fault: InputFault,
    items: usize,
    waited: usize,
    ended: bool,
}

impl FaultyInput {
    /// Hands out these batches.
    #[must_use]
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self {
            schema,
            batches: batches.into_iter(),
            fault: InputFault::Never,
            items: 0,
            waited: 0,
            ended: false,
        }
    }

    /// Goes wrong in this way.
    #[must_use]
    pub fn with_fault(mut self, fault: InputFault) -> Self {
        self.fault = fault;
        self
    }
}

impl Stream for FaultyInput {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        assert!(!self.ended, "an input was polled after its end");
        match self.fault {
            InputFault::FailAt(n) if n == self.items => {
                self.ended = true;
                return Poll::Ready(Some(Err(injected("an input"))));
            }
            InputFault::StallAt(n) if n == self.items => return Poll::Pending,
            InputFault::Dawdle(polls) if self.waited < polls => {
                self.waited += 1;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            _ => {}
        }
        self.waited = 0;
        self.items += 1;
        let batch = self.batches.next();
        self.ended = batch.is_none();
        Poll::Ready(batch.map(Ok))
    }
}

impl RecordBatchStream for FaultyInput {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
