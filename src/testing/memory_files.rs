//! Spill files that are bytes in memory: quick, counted, and open to damage.
//!
//! Job: a back end for the `DiskManager` without a disk. Invariant: a file is there as long as its
//! handle is, as with DataFusion's own, so what is left tells of a leak.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use datafusion_common::Result;
use datafusion_execution::{DiskManager, SpillFile, SpillWriter, TempFileFactory};
use futures::{Stream, stream};

type Content = Arc<Mutex<Vec<u8>>>;

fn open(content: &Content) -> MutexGuard<'_, Vec<u8>> {
    // Bytes are whole whatever happened to a thread that held them.
    content.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files in memory, read in chunks of a given size.
#[derive(Debug)]
pub struct MemoryFiles {
    chunk: usize,
    live: Arc<AtomicUsize>,
    most_live: AtomicUsize,
    last: Mutex<Option<Content>>,
}

impl MemoryFiles {
    /// Files that are read in chunks of so many bytes, at least 1.
    #[must_use]
    pub fn new(chunk: usize) -> Arc<Self> {
        Arc::new(Self {
            chunk: chunk.max(1),
            live: Arc::default(),
            most_live: AtomicUsize::new(0),
            last: Mutex::default(),
        })
    }

    /// A disk manager over these files.
    ///
    /// # Errors
    /// If there can be none.
    pub fn disk(self: &Arc<Self>) -> Result<Arc<DiskManager>> {
        let files = Arc::<Self>::clone(self);
        let disk = DiskManager::builder().with_temp_file_factory(files);
        Ok(Arc::new(disk.build()?))
    }

    /// How many files there are now.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live.load(SeqCst)
    }

    /// How many files there were at one time, at most.
    #[must_use]
    pub fn most_live(&self) -> usize {
        self.most_live.load(SeqCst)
    }

    /// Changes the content of the file that was made last; nothing happens before there is one.
    pub fn edit_last(&self, edit: impl FnOnce(&mut Vec<u8>)) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(content) = last.as_ref() {
            edit(&mut open(content));
        }
    }
}

impl TempFileFactory for MemoryFiles {
    fn create_temp_file(&self, _description: &str) -> Result<Arc<dyn SpillFile>> {
        let live = self.live.fetch_add(1, SeqCst) + 1;
        self.most_live.fetch_max(live, SeqCst);
        let content = Content::default();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some(Arc::clone(&content));
        Ok(Arc::new(MemoryFile {
            content,
            chunk: self.chunk,
            live: Arc::clone(&self.live),
        }))
    }
}

struct MemoryFile {
    content: Content,
    chunk: usize,
    live: Arc<AtomicUsize>,
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        self.live.fetch_sub(1, SeqCst);
    }
}

impl SpillFile for MemoryFile {
    fn size(&self) -> Option<u64> {
        Some(open(&self.content).len() as u64)
    }

    fn read_stream(&self) -> Result<Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>> {
        let chunks = |content: &[u8]| {
            let chunks = content.chunks(self.chunk).map(Bytes::copy_from_slice);
            chunks.map(Ok).collect::<Vec<_>>()
        };
        Ok(Box::pin(stream::iter(chunks(&open(&self.content)))))
    }

    fn open_writer(&self) -> Result<Box<dyn SpillWriter>> {
        Ok(Box::new(MemoryWriter(Arc::clone(&self.content))))
    }
}

struct MemoryWriter(Content);

impl Write for MemoryWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        open(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SpillWriter for MemoryWriter {
    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}
