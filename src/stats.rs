//! Plain counters of one partition's join: written by `join/`, read by whoever holds the stream.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// What one partition's join did so far. Rows are rows, bytes are bytes; nothing is sampled.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct JoinStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The live counters behind [`JoinStats`].
        #[derive(Debug, Default)]
        pub(crate) struct StatsCell {
            $(pub(crate) $name: Counter,)*
        }

        impl StatsCell {
            pub(crate) fn snapshot(&self) -> JoinStats {
                JoinStats { $($name: self.$name.get(),)* }
            }
        }
    };
}

counters! {
    /// Rows that came in on the build side.
    build_rows,
    /// Batches that came in on the build side.
    build_batches,
    /// Rows that came in on the probe side.
    probe_rows,
    /// Batches that came in on the probe side.
    probe_batches,
    /// Rows handed out.
    output_rows,
    /// Batches handed out.
    output_batches,
    /// Spill files written, both sides, all levels.
    spill_count,
    /// Rows written to spill files, both sides, all levels.
    spilled_rows,
    /// Bytes on disk, both sides, all levels, frames and headers included.
    spilled_bytes,
    /// Bytes read back from spill files.
    read_bytes,
    /// Level-0 buckets whose build rows went to disk.
    spilled_buckets,
    /// Level-0 buckets that were read back to memory before the first probe row.
    reloaded_buckets,
    /// Probe rows of buckets on disk that the Bloom filter decided on the spot.
    bloom_misses,
    /// Pairs of runs whose build run was loaded in one piece.
    pairs_loaded,
    /// Pairs of runs whose probe run was loaded in one piece, roles swapped.
    pairs_swapped,
    /// Pairs of runs that were split by the next level.
    pairs_split,
    /// Pairs of runs that were joined in chunks (the skew fallback).
    pairs_chunked,
    /// Chunks over all of those.
    chunks,
    /// Pairs of runs that needed no reading, since one side was empty.
    pairs_skipped,
    /// How often the most often split bucket was split, level 0 included; 0 if nothing was spilled.
    max_level,
    /// The most bytes that the partition had reserved at one time.
    peak_bytes,
    /// The most bytes that one input batch had: it is in hand besides what the pool granted.
    largest_batch_bytes,
    /// Candidate pairs whose keys were compared.
    candidates,
    /// Nanoseconds of CPU work on the build side, its input's time excluded.
    build_nanos,
    /// Nanoseconds of CPU work on the probe side, its input's time excluded.
    probe_nanos,
    /// Nanoseconds spent on spilled pairs, waiting for the disk included.
    drain_nanos,
}

/// A counter that is written by one task and read by any.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Relaxed);
    }

    pub(crate) fn max(&self, n: u64) {
        self.0.fetch_max(n, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Adds the time since `start`.
    pub(crate) fn add_since(&self, start: Instant) {
        let nanos = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Relaxed);
    }
}

impl JoinStats {
    /// Time of CPU work on the build side.
    #[must_use]
    pub fn build_time(&self) -> Duration {
        Duration::from_nanos(self.build_nanos)
    }

    /// Time of CPU work on the probe side.
    #[must_use]
    pub fn probe_time(&self) -> Duration {
        Duration::from_nanos(self.probe_nanos)
    }

    /// Time spent on spilled pairs.
    #[must_use]
    pub fn drain_time(&self) -> Duration {
        Duration::from_nanos(self.drain_nanos)
    }
}
