//! Where spill files come from, and what is known of a finished one.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow_ipc::writer::IpcWriteOptions;
use arrow_ipc::{CompressionType, MetadataVersion};
use datafusion_common::Result;
use datafusion_execution::disk_manager::DiskManager;
use datafusion_execution::spill_file::SpillFile;
use tokio::sync::Semaphore;

use super::format::RunSeed;
use super::reader::RunReader;
use crate::error;
use crate::stats::StatsCell;

/// IPC buffers are aligned to this, the alignment of arrow's own allocations, so that decoding a
/// frame copies nothing.
const IPC_ALIGNMENT: usize = 64;

/// Makes spill files for one partition, and bounds what is being written at one time.
pub(crate) struct Spiller {
    pub(super) disk: Arc<DiskManager>,
    pub(super) codec: Option<CompressionType>,
    pub(super) stats: Arc<StatsCell>,
    pub(super) partition: usize,
    /// One write at a time: the disk is busy, and what is in flight is one buffer.
    pub(super) writing: Arc<Semaphore>,
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
            writing: Arc::new(Semaphore::new(1)),
        })
    }

    /// Whether there is a disk to spill to.
    pub(crate) fn is_enabled(&self) -> bool {
        self.disk.tmp_files_enabled()
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

/// One finished spill file, never empty.
pub(crate) struct Run {
    pub(super) file: Arc<dyn SpillFile>,
    pub(super) schema: SchemaRef,
    pub(super) what: &'static str,
    pub(super) seed: RunSeed,
    pub(super) rows: u64,
    pub(super) frames: u32,
    pub(super) largest_frame: u32,
    pub(super) memory_bytes: usize,
    pub(super) single_hash: bool,
}

impl Run {
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// The bytes that the rows take in memory, hashes not included.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }

    /// How many messages the rows are in, at least 1.
    pub(crate) fn frames(&self) -> usize {
        (self.frames as usize).max(1)
    }

    /// Whether all rows have one hash, so that no split can part them.
    pub(crate) fn has_single_hash(&self) -> bool {
        self.single_hash
    }

    /// Starts to read from the first row. A reader keeps the file until it is dropped.
    ///
    /// # Errors
    /// If the back end cannot open the file.
    pub(crate) fn read(&self, spiller: &Arc<Spiller>) -> Result<RunReader> {
        RunReader::open(self, spiller)
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("what", &self.what)
            .field("rows", &self.rows)
            .field("frames", &self.frames)
            .field("memory_bytes", &self.memory_bytes)
            .finish_non_exhaustive()
    }
}
