//! Where spill files come from, and what is known of a finished one.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow_ipc::writer::IpcWriteOptions;
use arrow_ipc::{CompressionType, MetadataVersion};
use datafusion_common::Result;
use datafusion_execution::disk_manager::DiskManager;
use datafusion_execution::spill_file::SpillFile;
use tokio::sync::Semaphore;

use super::behind::WriteBehind;
use super::format::RunSeed;
use super::reader::{ReadAs, RunReader};
use crate::error;
use crate::memory::{Lease, MIN_BUFFER};
use crate::stats::StatsCell;

/// IPC buffers are aligned to this, the alignment of arrow's own allocations, so that decoding a
/// frame copies nothing.
const IPC_ALIGNMENT: usize = 64;

/// Blocking reads at one time: of the run that is being joined, and of the next one.
const READS: usize = 2;

/// Makes spill files for one partition, and bounds what is being written and read at one time.
pub(crate) struct Spiller {
    pub(super) disk: Arc<DiskManager>,
    pub(super) codec: Option<CompressionType>,
    pub(super) stats: Arc<StatsCell>,
    pub(super) partition: usize,
    pub(super) behind: Arc<WriteBehind>,
    pub(super) reading: Arc<Semaphore>,
}

impl Spiller {
    pub(crate) fn new(
        disk: Arc<DiskManager>,
        codec: Option<CompressionType>,
        stats: Arc<StatsCell>,
        partition: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            disk,
            codec,
            stats,
            partition,
            behind: WriteBehind::new(MIN_BUFFER),
            reading: Arc::new(Semaphore::new(READS)),
        })
    }

    /// Whether there is a disk to spill to.
    pub(crate) fn is_enabled(&self) -> bool {
        self.disk.tmp_files_enabled()
    }

    /// Lets so many bytes wait to be written; `more` covers those beyond the ones before.
    pub(crate) fn write_behind(&self, bytes: usize, more: Lease) {
        self.behind.widen(bytes, Some(more));
    }

    /// # Errors
    /// If spilling is disabled, or the file cannot be made.
    pub(super) fn create(&self, what: &str) -> Result<Arc<dyn SpillFile>> {
        if !self.is_enabled() {
            return Err(error::spilling_disabled(self.partition));
        }
        let file = self
            .disk
            .create_tmp_file(&format!("GraceHashJoin[{}] {what}", self.partition))?;
        self.stats.spill_count.add(1);
        Ok(file)
    }

    pub(super) fn ipc_options(&self) -> Result<IpcWriteOptions> {
        let options = IpcWriteOptions::try_new(IPC_ALIGNMENT, false, MetadataVersion::V5)?;
        Ok(options.try_with_compression(self.codec)?)
    }
}

impl Drop for Spiller {
    fn drop(&mut self) {
        // Whoever had rows written is gone.
        self.behind.forget();
    }
}

/// One finished spill file, never empty.
pub(crate) struct Run {
    pub(super) facts: Arc<Facts>,
    pub(super) memory_bytes: usize,
    pub(super) text_bytes: Vec<usize>,
    pub(super) single_hash: bool,
}

/// What reading a run takes.
pub(super) struct Facts {
    pub(super) file: Arc<dyn SpillFile>,
    /// Of the rows as they were handed over.
    pub(super) schema: SchemaRef,
    /// Of the rows as they are stored.
    pub(super) stored: SchemaRef,
    pub(super) what: &'static str,
    pub(super) seed: RunSeed,
    pub(super) rows: u64,
    pub(super) frames: u32,
    /// The bytes on disk of the largest frame.
    pub(super) largest_frame: u32,
    /// The bytes in memory of the largest frame.
    pub(super) largest_batch: usize,
    /// The bytes of dictionaries, which a reader keeps from frame to frame.
    pub(super) shared: usize,
    /// Covers what is being read after the caller was dropped.
    pub(super) _space: Arc<Lease>,
}

impl Run {
    pub(crate) fn rows(&self) -> u64 {
        self.facts.rows
    }

    /// The bytes that the rows take in memory, hashes not included.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// The bytes of each column's texts, as far as they are stored as such.
    pub(crate) fn text_bytes(&self) -> &[usize] {
        &self.text_bytes
    }

    /// The schema of the rows as they are stored.
    pub(crate) fn stored_schema(&self) -> &SchemaRef {
        &self.facts.stored
    }

    /// How many messages the rows are in, at least 1.
    pub(crate) fn frames(&self) -> usize {
        (self.facts.frames as usize).max(1)
    }

    /// Whether all rows have one hash, so that no split can part them.
    pub(crate) fn has_single_hash(&self) -> bool {
        self.single_hash
    }

    /// Starts to read from the first row. A reader keeps the file until it is dropped.
    ///
    /// # Errors
    /// If the back end cannot open the file.
    pub(crate) fn read(&self, spiller: &Arc<Spiller>, reads: ReadAs) -> Result<RunReader> {
        RunReader::open(&self.facts, spiller, reads)
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("what", &self.facts.what)
            .field("rows", &self.facts.rows)
            .field("frames", &self.facts.frames)
            .field("memory_bytes", &self.memory_bytes)
            .finish_non_exhaustive()
    }
}
