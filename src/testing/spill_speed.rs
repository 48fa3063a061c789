//! A spill file written and read back, with the time that each takes: what the bench `spill_io`
//! measures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::record_batch::RecordBatch;
use datafusion_common::{DataFusionError, Result};
use datafusion_execution::DiskManager;
use datafusion_execution::memory_pool::{MemoryPool, UnboundedMemoryPool};

use crate::SpillCodec;
use crate::memory::{Budget, Partitions};
use crate::spill::{ReadAs, RunWriter, Spiller};
use crate::stats::StatsCell;

/// What one round trip came to.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// Rows that came back.
    pub rows: usize,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// From the first row to the closed file.
    pub write: Duration,
    /// From the first frame to the trailer.
    pub read: Duration,
}

/// Writes `batches` as one run in messages of about `buffer` bytes, and reads it.
///
/// # Errors
/// If the disk fails.
pub async fn round_trip(
    batches: &[RecordBatch],
    codec: SpillCodec,
    buffer: usize,
) -> Result<RoundTrip> {
    let nothing = || DataFusionError::Internal("there is nothing to write".to_owned());
    let schema = batches.first().ok_or_else(nothing)?.schema();
    let stats = Arc::new(StatsCell::default());
    let disk = Arc::new(DiskManager::builder().build()?);
    let spiller = Spiller::new(disk, codec.resolve(None), Arc::clone(&stats), 0);
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let budget = Budget::register(
        &pool,
        0,
        Partitions::enter(1, &Arc::default()),
        Arc::clone(&stats),
    );
    spiller.write_behind(3 * buffer, budget.empty());
    let start = Instant::now();
    let mut writer = RunWriter::new(&spiller, &schema, "rows", &Arc::new(budget.empty()));
    for batch in batches {
        writer
            .push(batch.clone(), std::iter::empty(), buffer)
            .await?;
    }
    let run = writer.finish().await?.ok_or_else(nothing)?;
    let write = start.elapsed();
    let start = Instant::now();
    let mut reader = run.read(&spiller, ReadAs::Rows)?;
    let mut rows = 0;
    while let Some(batch) = reader.next().await? {
        rows += batch.num_rows();
    }
    Ok(RoundTrip {
        rows,
        file_bytes: stats.spilled_bytes.get(),
        write,
        read: start.elapsed(),
    })
}
