//! The stream that one partition's join hands out.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion_common::Result;
use datafusion_execution::{RecordBatchStream, SendableRecordBatchStream, TaskContext};
use futures::Stream;

use super::{GraceHashJoin, Inputs};
use crate::stats::{JoinStats, StatsCell};

/// The output of one partition's join, with live counters.
pub struct GraceHashJoinStream {
    inner: SendableRecordBatchStream,
    stats: Arc<StatsCell>,
}

impl GraceHashJoinStream {
    pub(crate) fn start(
        join: Arc<GraceHashJoin>,
        inputs: Inputs,
        context: &TaskContext,
        partition: usize,
    ) -> Self {
        let _ = (join, inputs, context, partition);
        todo!()
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
        self.inner.schema()
    }
}
