//! The join's plain counters as DataFusion metrics.
//!
//! Job: after every poll, and when the stream is dropped, add to the metrics what changed in the
//! counters since, so that they are true on every path. Not its job: counting.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion_common::Result;
use datafusion_execution::RecordBatchStream;
use datafusion_physical_plan::metrics::{
    BaselineMetrics, Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, MetricsSet,
    SpillMetrics, Time,
};
use futures::Stream;

use super::dynamic_filter::Seat;
use crate::join::GraceHashJoinStream;
use crate::stats::JoinStats;

/// The metrics of one node, over all its partitions. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeMetrics {
    set: ExecutionPlanMetricsSet,
    /// One gauge for all partitions: DataFusion adds up the gauges of partitions, and a sum of
    /// levels says nothing.
    max_level: Arc<OnceLock<Gauge>>,
}

impl NodeMetrics {
    pub(crate) fn snapshot(&self) -> MetricsSet {
        self.set.clone_inner()
    }

    /// The metrics of one partition.
    pub(crate) fn partition(&self, partition: usize) -> PartitionMetrics {
        let count = |name| MetricBuilder::new(&self.set).counter(name, partition);
        let time = |name| MetricBuilder::new(&self.set).subset_time(name, partition);
        let level = self
            .max_level
            .get_or_init(|| MetricBuilder::new(&self.set).global_gauge("max_level"));
        PartitionMetrics {
            baseline: BaselineMetrics::new(&self.set, partition),
            spill: SpillMetrics::new(&self.set, partition),
            build_time: time("build_time"),
            probe_time: time("probe_time"),
            drain_time: time("drain_time"),
            build_input_rows: count("build_input_rows"),
            build_input_batches: count("build_input_batches"),
            input_rows: count("input_rows"),
            input_batches: count("input_batches"),
            peak_bytes: MetricBuilder::new(&self.set).peak_memory_usage("peak_mem_used", partition),
            spilled_buckets: count("spilled_buckets"),
            pairs_loaded: count("pairs_loaded"),
            pairs_split: count("pairs_split"),
            pairs_chunked: count("pairs_chunked"),
            max_level: level.clone(),
            seen: JoinStats::default(),
        }
    }
}

/// The metrics of one partition, and the counters that they already contain.
#[derive(Debug)]
pub(crate) struct PartitionMetrics {
    baseline: BaselineMetrics,
    spill: SpillMetrics,
    build_time: Time,
    probe_time: Time,
    drain_time: Time,
    build_input_rows: Count,
    build_input_batches: Count,
    input_rows: Count,
    input_batches: Count,
    peak_bytes: Gauge,
    spilled_buckets: Count,
    pairs_loaded: Count,
    pairs_split: Count,
    pairs_chunked: Count,
    max_level: Gauge,
    seen: JoinStats,
}

impl PartitionMetrics {
    /// Brings the metrics up to `now`.
    fn update(&mut self, now: JoinStats) {
        let seen = std::mem::replace(&mut self.seen, now);
        let count = |metric: &Count, now: u64, seen: u64| {
            metric.add(saturated(now.saturating_sub(seen)));
        };
        count(&self.build_input_rows, now.build_rows, seen.build_rows);
        count(
            &self.build_input_batches,
            now.build_batches,
            seen.build_batches,
        );
        count(&self.input_rows, now.probe_rows, seen.probe_rows);
        count(&self.input_batches, now.probe_batches, seen.probe_batches);
        count(
            &self.spill.spill_file_count,
            now.spill_count,
            seen.spill_count,
        );
        count(
            &self.spill.spilled_bytes,
            now.spilled_bytes,
            seen.spilled_bytes,
        );
        count(
            &self.spill.spilled_rows,
            now.spilled_rows,
            seen.spilled_rows,
        );
        count(
            &self.spilled_buckets,
            now.spilled_buckets,
            seen.spilled_buckets,
        );
        count(&self.pairs_loaded, now.pairs_loaded, seen.pairs_loaded);
        count(&self.pairs_split, now.pairs_split, seen.pairs_split);
        count(&self.pairs_chunked, now.pairs_chunked, seen.pairs_chunked);
        let time = |metric: &Time, now: u64, seen: u64| {
            // `Time` counts even an empty addition as a nanosecond.
            if now > seen {
                let since = Duration::from_nanos(now - seen);
                metric.add_duration(since);
                self.baseline.elapsed_compute().add_duration(since);
            }
        };
        time(&self.build_time, now.build_nanos, seen.build_nanos);
        time(&self.probe_time, now.probe_nanos, seen.probe_nanos);
        time(&self.drain_time, now.drain_nanos, seen.drain_nanos);
        self.peak_bytes.set_max(saturated(now.peak_bytes));
        self.max_level.set_max(saturated(now.max_level));
    }
}

fn saturated(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// The join's stream, with its metrics kept up to date.
pub(crate) struct MeteredStream {
    inner: GraceHashJoinStream,
    metrics: PartitionMetrics,
    /// Told of the first poll, so that other partitions know that this one is under way.
    seat: Option<Seat>,
}

impl MeteredStream {
    pub(crate) fn new(
        inner: GraceHashJoinStream,
        metrics: PartitionMetrics,
        seat: Option<Seat>,
    ) -> Self {
        Self {
            inner,
            metrics,
            seat,
        }
    }
}

impl Stream for MeteredStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some(seat) = this.seat.take() {
            seat.start();
        }
        let poll = Pin::new(&mut this.inner).poll_next(cx);
        this.metrics.update(this.inner.stats());
        this.metrics.baseline.record_poll(poll)
    }
}

impl RecordBatchStream for MeteredStream {
    fn schema(&self) -> SchemaRef {
        self.inner.schema()
    }
}

impl Drop for MeteredStream {
    fn drop(&mut self) {
        self.metrics.update(self.inner.stats());
    }
}
