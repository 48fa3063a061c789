//! One join, with everything about it that is measured.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use datafusion_common::{DataFusionError, JoinType, Result};
use datafusion_execution::memory_pool::{
    GreedyMemoryPool, MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
    UnboundedMemoryPool,
};
use futures::StreamExt;
use grace_hash_join::testing::{Environment, within};
use grace_hash_join::{GraceHashJoin, GraceHashJoinConfig, JoinStats};

use super::ALLOCATOR;
use super::data::{Input, KEY, WideKeys};
use super::expected::{Sums, sides};

/// How long a join may take before it counts as hanging.
const WATCHDOG: Duration = Duration::from_mins(1);

/// A join to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) build: Input,
    pub(crate) probe: Input,
    pub(crate) join_type: JoinType,
    pub(crate) has_computed_keys: bool,
    pub(crate) config: GraceHashJoinConfig,
}

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    Unlimited,
    Greedy(usize),
}

/// What a join took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// The most that the pool had given out, and what it had when the build ended.
    pub(crate) pool_peak: usize,
    pub(crate) build_peak: usize,
    /// The most that was allocated beyond what was before the join.
    pub(crate) allocated: usize,
    pub(crate) stats: JoinStats,
}

impl Taken {
    /// Whether the process holds what the pool says: a fifth more, or 256 KiB, is granted.
    pub(crate) fn is_honest(&self) -> bool {
        self.allocated <= (self.pool_peak + self.pool_peak / 5).max(self.pool_peak + (256 << 10))
    }
}

impl Subject {
    /// Of each side, the columns that come out, or the key alone.
    pub(crate) fn new(build: Input, probe: Input, join_type: JoinType) -> Self {
        let (has_build, has_probe, _) = sides(join_type);
        Self {
            build: Input {
                is_key_only: !has_build,
                ..build
            },
            probe: Input {
                is_key_only: !has_probe,
                ..probe
            },
            join_type,
            has_computed_keys: false,
            config: GraceHashJoinConfig::default(),
        }
    }

    pub(crate) fn expected(&self) -> Sums {
        Sums::expected(self.build, self.probe, self.join_type)
    }

    /// Runs the join, checks its answer and that nothing is left; `None` if the pool was too small,
    /// which it said.
    pub(crate) fn run(&self, pool: Pool, expected: Sums) -> Option<Taken> {
        let subject = self.clone();
        let result = within(
            WATCHDOG,
            move || async move { subject.go(pool, expected).await },
        );
        result.unwrap_or_else(|reason| panic!("{self:?} in {pool:?}: {reason}"))
    }

    pub(crate) fn join(&self) -> Arc<GraceHashJoin> {
        let join = GraceHashJoin::builder(self.build.schema(), self.probe.schema());
        let join = match self.has_computed_keys {
            true => join.with_keys(Arc::new(WideKeys), Arc::new(WideKeys)),
            false => join.with_on(vec![(KEY, KEY)]),
        };
        let join = join.with_join_type(self.join_type);
        join.with_config(self.config.clone()).build().unwrap()
    }

    async fn go(&self, pool: Pool, expected: Sums) -> Option<Taken> {
        let pool = Arc::new(PeakPool::new(pool));
        let around = Environment::new(Arc::<PeakPool>::clone(&pool), self.build.batch).unwrap();
        let join = self.join();
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        let build_peak = Arc::new(AtomicUsize::new(0));
        let probe = {
            let (pool, build_peak) = (Arc::clone(&pool), Arc::clone(&build_peak));
            self.probe.stream(move || {
                // The first time it is asked, the build has just ended.
                let peak = pool.peak.load(SeqCst);
                let _ = build_peak.compare_exchange(0, peak, SeqCst, SeqCst);
            })
        };
        let build = self.build.stream(|| {});
        let mut stream = join
            .execute(build, probe, &around.context, 0, None)
            .unwrap();
        let mut sums = Sums::default();
        let mut end = Ok(());
        while let Some(item) = stream.next().await {
            match item {
                Ok(batch) => sums.add(self.build, self.probe, self.join_type, &batch),
                Err(error) => end = Err(error),
            }
        }
        let allocated = ALLOCATOR.peak_usage() - before;
        let stats = stream.stats();
        drop(stream);
        around.becomes_clean().await.unwrap();
        match end {
            Ok(()) => assert_eq!(sums, expected, "{stats:?}"),
            Err(DataFusionError::ResourcesExhausted(_)) => return None,
            Err(other) => panic!("{other}"),
        }
        Some(Taken {
            pool_peak: pool.peak.load(SeqCst),
            build_peak: build_peak.load(SeqCst),
            allocated,
            stats,
        })
    }
}

/// A pool that remembers the most that was reserved in it.
#[derive(Debug)]
pub(crate) struct PeakPool {
    inner: Arc<dyn MemoryPool>,
    peak: AtomicUsize,
}

impl PeakPool {
    pub(crate) fn new(pool: Pool) -> Self {
        let inner: Arc<dyn MemoryPool> = match pool {
            Pool::Unlimited => Arc::new(UnboundedMemoryPool::default()),
            Pool::Greedy(bytes) => Arc::new(GreedyMemoryPool::new(bytes)),
        };
        Self {
            inner,
            peak: AtomicUsize::new(0),
        }
    }

    fn note(&self) {
        self.peak.fetch_max(self.inner.reserved(), SeqCst);
    }
}

impl fmt::Display for PeakPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl MemoryPool for PeakPool {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.inner.register(consumer);
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.inner.unregister(consumer);
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        self.inner.grow(reservation, additional);
        self.note();
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        self.inner.shrink(reservation, shrink);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        self.inner.try_grow(reservation, additional)?;
        self.note();
        Ok(())
    }

    fn reserved(&self) -> usize {
        self.inner.reserved()
    }

    fn memory_limit(&self) -> MemoryLimit {
        self.inner.memory_limit()
    }
}
