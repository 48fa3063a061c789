//! The partition's reservation, and leases: counts over it that travel with the data they cover.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datafusion_common::Result;
use datafusion_execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

use super::space::WorkSpace;
use crate::error;
use crate::stats::StatsCell;

/// The part of a finite pool that is never asked for, as a divisor: pools do not count what is
/// allocated between two reservations, and neighbours that cannot spill need somewhere to go.
const KEPT_FREE: usize = 16;

/// The most of a finite pool that is left to those who have yet to ask for their floor, as a divisor.
const KEPT_FOR_FLOORS: usize = 4;

/// How many floors are left to others in the pool, who may be joins of the same plan.
const FLOORS_OF_OTHERS: usize = 4;

/// What one partition may hold. Shared by the leases over it.
pub(crate) struct Budget {
    reservation: MemoryReservation,
    pool: Arc<dyn MemoryPool>,
    limit: Option<usize>,
    /// Whether the pool sees to it that everyone gets a share.
    shares_fairly: bool,
    partitions: Partitions,
    stats: Arc<StatsCell>,
    partition: usize,
}

/// The partitions of one join that may run beside each other.
#[derive(Debug)]
pub(crate) struct Partitions {
    most: usize,
    /// Those that run now.
    running: Arc<AtomicUsize>,
}

impl Partitions {
    /// One more of them, at most `most`, runs until this is dropped.
    pub(crate) fn enter(most: usize, running: &Arc<AtomicUsize>) -> Self {
        running.fetch_add(1, Relaxed);
        Self {
            most: most.max(1),
            running: Arc::clone(running),
        }
    }

    fn now(&self) -> usize {
        self.running.load(Relaxed).clamp(1, self.most)
    }
}

impl Drop for Partitions {
    fn drop(&mut self) {
        self.running.fetch_sub(1, Relaxed);
    }
}

impl Budget {
    /// Registers one spillable consumer. Called at the first poll, not earlier: fair pools divide
    /// by the number of registered consumers.
    pub(crate) fn register(
        pool: &Arc<dyn MemoryPool>,
        partition: usize,
        partitions: Partitions,
        stats: Arc<StatsCell>,
    ) -> Arc<Self> {
        let limit = match pool.memory_limit() {
            MemoryLimit::Finite(bytes) => Some(bytes),
            MemoryLimit::Infinite | MemoryLimit::Unknown => None,
        };
        // Pools that wrap others show them.
        let shares_fairly = pool.name().contains("fair") || pool.to_string().contains("fair(");
        let consumer =
            MemoryConsumer::new(format!("GraceHashJoin[{partition}]")).with_can_spill(true);
        Arc::new(Self {
            reservation: consumer.register(pool),
            pool: Arc::clone(pool),
            limit,
            shares_fairly,
            partitions,
            stats,
            partition,
        })
    }

    /// What is held now.
    pub(crate) fn held(&self) -> usize {
        self.reservation.size()
    }

    /// About what this partition can expect to get; `None` without a limit.
    pub(crate) fn share(&self) -> Option<usize> {
        self.limit.map(|limit| limit / self.partitions.most)
    }

    /// Asks for `bytes`. `None` is the pool's refusal: an answer, not an error.
    pub(crate) fn try_lease(self: &Arc<Self>, bytes: usize) -> Option<Lease> {
        self.ask(bytes).then(|| self.lease(bytes))
    }

    /// Asks for bytes without which the join cannot go on, `what` they are for.
    ///
    /// # Errors
    /// `ResourcesExhausted`, if the pool refuses.
    pub(crate) fn require(self: &Arc<Self>, bytes: usize, what: &str) -> Result<Lease> {
        if bytes == 0 {
            return Ok(self.empty());
        }
        match self.reservation.try_grow(bytes) {
            Ok(()) => {
                self.note_peak();
                Ok(self.lease(bytes))
            }
            Err(cause) => Err(error::below_floor(
                self.partition,
                what,
                bytes,
                self.held(),
                self.limit,
                &cause,
            )),
        }
    }

    /// Whether the pool could ever grant `bytes` more.
    pub(crate) fn is_possible(&self, bytes: usize) -> bool {
        self.limit
            .is_some_and(|limit| self.held().saturating_add(bytes) <= limit)
    }

    /// What others in the pool hold.
    pub(crate) fn others(&self) -> usize {
        self.pool.reserved().saturating_sub(self.held())
    }

    /// Counts bytes that exist already, such as the input batch in hand.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Lease {
        self.reservation.grow(bytes);
        self.note_peak();
        self.lease(bytes)
    }

    /// Counts what exists already, but for the part that another lease covers.
    pub(crate) fn charge_beyond(self: &Arc<Self>, covered: usize, bytes: usize) -> Lease {
        self.charge(bytes.saturating_sub(covered))
    }

    /// A lease of nothing, to be grown.
    pub(crate) fn empty(self: &Arc<Self>) -> Lease {
        self.lease(0)
    }

    /// A lease of nothing, for data of which a lease that lives longer covers the first bytes.
    pub(crate) fn empty_beyond(self: &Arc<Self>, elsewhere: usize) -> Lease {
        let mut lease = self.lease(0);
        lease.elsewhere = elsewhere;
        lease
    }

    fn lease(self: &Arc<Self>, bytes: usize) -> Lease {
        Lease {
            budget: Arc::clone(self),
            bytes,
            elsewhere: 0,
        }
    }

    fn ask(&self, bytes: usize) -> bool {
        bytes == 0
            || self.is_polite(bytes) && self.reservation.try_grow(bytes).is_ok() && {
                self.note_peak();
                true
            }
    }

    /// Whether asking for `bytes` leaves the others what is theirs. Fair pools do not check their
    /// total, and greedy ones do not share.
    fn is_polite(&self, bytes: usize) -> bool {
        let Some(limit) = self.limit else {
            return true;
        };
        let (reserved, held) = (self.pool.reserved(), self.held());
        let is_alone = reserved <= held;
        if reserved.saturating_add(bytes) > limit - self.kept_free(limit, is_alone) {
            return false;
        }
        let cap = limit / self.partitions.now();
        is_alone || self.shares_fairly || held.saturating_add(bytes) <= cap
    }

    /// What is not asked for: partitions that start late, and others, need their floors.
    fn kept_free(&self, limit: usize, is_alone: bool) -> usize {
        let siblings = self.partitions.most - 1;
        let floors = match is_alone {
            true => siblings,
            false => siblings.max(FLOORS_OF_OTHERS),
        };
        let floors = floors.saturating_mul(WorkSpace::FLOOR.bytes());
        (limit / KEPT_FREE).max(floors.min(limit / KEPT_FOR_FLOORS))
    }

    fn note_peak(&self) {
        self.stats.peak_bytes.max(self.reservation.size() as u64);
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget")
            .field("partition", &self.partition)
            .field("held", &self.held())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// A count of reserved bytes, owned by whoever owns the data that they cover, and given back with it.
#[derive(Debug)]
pub(crate) struct Lease {
    budget: Arc<Budget>,
    bytes: usize,
    /// Bytes of the same data that a lease which lives longer covers.
    elsewhere: usize,
}

impl Lease {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Asks for `bytes` more; `false` is the pool's refusal.
    pub(crate) fn try_extend(&mut self, bytes: usize) -> bool {
        let granted = self.budget.ask(bytes);
        if granted {
            self.bytes += bytes;
        }
        granted
    }

    /// Gives back all but `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        if let Some(surplus) = self.bytes.checked_sub(bytes) {
            self.bytes = bytes;
            self.budget.reservation.shrink(surplus);
        }
    }

    /// Asks for what data of `bytes` bytes takes beyond what is counted; `false` is a refusal.
    pub(crate) fn try_cover(&mut self, bytes: usize) -> bool {
        self.try_extend(bytes.saturating_sub(self.bytes + self.elsewhere))
    }

    /// Makes the count what it turned out to be, of data of `bytes` bytes that exists already.
    pub(crate) fn settle(&mut self, bytes: usize) {
        let bytes = bytes.saturating_sub(self.elsewhere);
        match bytes.checked_sub(self.bytes) {
            Some(more) => {
                let budget = Arc::clone(&self.budget);
                self.absorb(budget.charge(more));
            }
            None => self.shrink_to(bytes),
        }
    }

    /// Moves up to `bytes` of this lease into a new one.
    pub(crate) fn split(&mut self, bytes: usize) -> Lease {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.budget.lease(bytes)
    }

    /// Takes over another lease of the same budget.
    pub(crate) fn absorb(&mut self, mut other: Lease) {
        debug_assert!(
            Arc::ptr_eq(&self.budget, &other.budget),
            "leases of one budget"
        );
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.reservation.shrink(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion_execution::memory_pool::{FairSpillPool, GreedyMemoryPool};

    fn budget(pool: &Arc<dyn MemoryPool>, partitions: usize) -> Arc<Budget> {
        let partitions = Partitions::enter(partitions, &Arc::default());
        Budget::register(pool, 0, partitions, Arc::default())
    }

    #[test]
    fn m2_the_reservation_is_the_sum_of_its_leases() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1600));
        let budget = budget(&pool, 1);
        let mut a = budget.try_lease(100).unwrap();
        let b = a.split(30);
        let mut c = budget.charge(50);
        c.absorb(b);
        assert_eq!((a.bytes(), c.bytes(), pool.reserved()), (70, 80, 150));
        c.shrink_to(10);
        assert_eq!(pool.reserved(), 80);
        drop((a, c));
        assert_eq!(pool.reserved(), 0);
    }

    #[test]
    fn the_last_sixteenth_of_a_pool_is_never_asked_for() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1600));
        let budget = budget(&pool, 1);
        assert!(budget.try_lease(1501).is_none());
        assert!(budget.try_lease(1500).is_some());
    }

    #[test]
    fn in_a_greedy_pool_with_others_a_partition_takes_only_its_part() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1600));
        let running = Arc::default();
        let siblings = [(); 5].map(|()| Partitions::enter(4, &running));
        let partition = Partitions::enter(4, &running);
        let budget = Budget::register(&pool, 0, partition, Arc::default());
        let alone = budget.try_lease(900);
        assert!(alone.is_some());
        drop(alone);
        let other = MemoryConsumer::new("other").register(&pool);
        other.grow(1);
        assert!(budget.try_lease(401).is_none());
        assert!(budget.try_lease(400).is_some());
        drop(siblings);
        assert!(budget.try_lease(1100).is_some());
    }

    #[test]
    fn what_others_need_to_start_with_is_left_to_them() {
        let floor = WorkSpace::FLOOR.bytes();
        let limit = 40 * floor;
        let most = |partitions, is_alone: bool| {
            let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(limit));
            let budget = budget(&pool, partitions);
            let other = MemoryConsumer::new("other").register(&pool);
            other.grow(usize::from(!is_alone));
            let others = other.size();
            (0..=limit)
                .rev()
                .step_by(floor / 2)
                .find(|bytes| budget.is_polite(*bytes - others))
        };
        assert_eq!(most(1, true), Some(limit - 5 * floor / 2));
        assert_eq!(most(1, false), Some(limit - 4 * floor));
        assert_eq!(most(7, true), Some(limit - 6 * floor));
        assert_eq!(most(100, false), Some(limit - 10 * floor));
    }

    #[test]
    fn a_fair_pool_that_is_full_in_total_refuses_although_the_share_is_free() {
        let pool: Arc<dyn MemoryPool> = Arc::new(FairSpillPool::new(1600));
        let neighbour = budget(&pool, 2);
        let held = neighbour.try_lease(1100).unwrap();
        let budget = budget(&pool, 2);
        assert!(budget.try_lease(200).is_none());
        drop(held);
        assert!(budget.try_lease(200).is_some());
    }

    #[test]
    fn what_is_below_the_floor_is_an_error_that_names_the_limit_and_the_option() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1000));
        let error = budget(&pool, 1)
            .require(2000, "write buffers")
            .unwrap_err()
            .to_string();
        for part in ["partition 0", "2000", "1000", "write buffers", "fan_out"] {
            assert!(error.contains(part), "{part} is missing in: {error}");
        }
    }
}
