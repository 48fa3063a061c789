//! The stream that one partition's join hands out.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow_ipc::CompressionType;
use datafusion_common::config::SpillCompression;
use datafusion_common::{DataFusionError, Result};
use datafusion_execution::disk_manager::DiskManager;
use datafusion_execution::memory_pool::MemoryPool;
use datafusion_execution::{RecordBatchStream, TaskContext, TryEmitter, async_try_stream};
use futures::Stream;

use super::context::{JoinContext, KeyBytes};
use super::output::Output;
use super::{GraceHashJoin, Inputs};
use crate::memory::{Budget, Partitions};
use crate::spill::Spiller;
use crate::stats::{JoinStats, StatsCell};

/// The output of one partition's join, with live counters.
pub struct GraceHashJoinStream {
    inner: Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>,
    schema: SchemaRef,
    stats: Arc<StatsCell>,
}

impl GraceHashJoinStream {
    pub(crate) fn start(
        join: Arc<GraceHashJoin>,
        inputs: Inputs,
        context: &TaskContext,
        partition: usize,
    ) -> Self {
        let stats = Arc::new(StatsCell::default());
        let schema = join.schema();
        let start = Start {
            pool: Arc::clone(context.memory_pool()),
            disk: Arc::clone(&context.runtime_env().disk_manager),
            codec: join.config.codec().resolve(inherited_codec(context)),
            batch_size: context
                .session_config()
                .batch_size()
                .min(join.most_output_rows()),
            join,
            stats: Arc::clone(&stats),
            partition,
        };
        let stream = async_try_stream(|emitter| start.run(inputs, emitter));
        Self {
            inner: Box::pin(stream),
            schema,
            stats,
        }
    }

    /// What the join did so far.
    #[must_use]
    pub fn stats(&self) -> JoinStats {
        self.stats.snapshot()
    }
}

impl std::fmt::Debug for GraceHashJoinStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraceHashJoinStream")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Stream for GraceHashJoinStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.as_mut().poll_next(cx)
    }
}

impl RecordBatchStream for GraceHashJoinStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// What is taken from the task, before the first poll.
struct Start {
    join: Arc<GraceHashJoin>,
    pool: Arc<dyn MemoryPool>,
    disk: Arc<DiskManager>,
    codec: Option<CompressionType>,
    stats: Arc<StatsCell>,
    batch_size: usize,
    partition: usize,
}

impl Start {
    /// Registers with the pool, now that there is a first poll, and runs the join.
    async fn run(
        self,
        inputs: Inputs,
        emitter: TryEmitter<RecordBatch, DataFusionError>,
    ) -> Result<()> {
        let Self {
            join,
            pool,
            disk,
            codec,
            stats,
            batch_size,
            partition,
        } = self;
        let partitions = Partitions::enter(join.config.partitions(), &join.running);
        let ctx = JoinContext {
            budget: Budget::register(&pool, partition, partitions, Arc::clone(&stats)),
            spiller: Spiller::new(disk, codec, Arc::clone(&stats), partition),
            join,
            stats,
            batch_size,
            partition,
            key_bytes: KeyBytes::default(),
        };
        let mut out = Output::new(&ctx, emitter);
        super::run(&ctx, inputs, &mut out).await
    }
}

/// `datafusion.execution.spill_compression`, in arrow's words.
fn inherited_codec(context: &TaskContext) -> Option<CompressionType> {
    match context.session_config().spill_compression() {
        SpillCompression::Zstd => Some(CompressionType::ZSTD),
        SpillCompression::Lz4Frame => Some(CompressionType::LZ4_FRAME),
        SpillCompression::Uncompressed => None,
    }
}
