//! Writing behind the caller's back: rows handed over are encoded and written in the order they
//! came, all files of a partition by one blocking task at a time, which ends when there is nothing
//! left to write, and after [`BURST`] pieces of work makes way for others: a runtime may have few
//! threads for blocking tasks, or one.
//!
//! What waits is bounded: each piece of work takes its bytes' worth of permits, so whoever hands
//! over more waits until enough is written.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use datafusion_common::{DataFusionError, Result};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

use crate::error;
use crate::memory::Lease;

/// Pieces of work after which a task starts again, behind those that wait for its thread: of buffers
/// between 16 KiB and 256 KiB, a few milliseconds' worth.
const BURST: usize = 16;

/// Work on one file.
pub(super) type Work = Box<dyn FnOnce() -> Result<()> + Send>;

/// Work, with what is held until it is done.
struct Job {
    work: Work,
    _room: OwnedSemaphorePermit,
    _space: Arc<Lease>,
}

/// A partition's queue of writes.
pub(super) struct WriteBehind {
    queue: Mutex<Queue>,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// The bytes that may wait, as permits.
    capacity: u32,
    /// Cover what the working space's own lease does not.
    leases: Vec<Lease>,
    state: State,
}

#[derive(Default)]
enum State {
    /// Nobody writes.
    #[default]
    Idle,
    /// A blocking task takes from the queue until it is empty.
    Running,
    /// A write has failed: nothing is written any more. The error is there until it is handed out.
    Failed(Option<DataFusionError>),
}

impl WriteBehind {
    /// With room for so many bytes.
    pub(super) fn new(capacity: usize) -> Arc<Self> {
        let behind = Self {
            queue: Mutex::default(),
            room: Arc::new(Semaphore::new(0)),
        };
        behind.widen(capacity, None);
        Arc::new(behind)
    }

    /// Lets so many bytes wait, if that is more than before, as covered by `lease`.
    pub(super) fn widen(&self, capacity: usize, lease: Option<Lease>) {
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        let mut queue = self.queue();
        let more = capacity.saturating_sub(queue.capacity);
        queue.capacity += more;
        queue.leases.extend(lease);
        self.room.add_permits(more as usize);
    }

    /// Room for about so many bytes, once there is some.
    pub(super) fn room(
        &self,
        bytes: usize,
    ) -> impl Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send + use<> {
        let most = self.queue().capacity;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(most);
        Arc::clone(&self.room).acquire_many_owned(bytes)
    }

    /// Hands over work that has room. `space` covers it until it is done.
    ///
    /// # Errors
    /// If this partition has failed to write anything before.
    pub(super) fn push(
        self: &Arc<Self>,
        room: OwnedSemaphorePermit,
        space: &Arc<Lease>,
        work: Work,
    ) -> Result<()> {
        let mut queue = self.queue();
        if matches!(queue.state, State::Failed(_)) {
            return Err(queue.failure());
        }
        queue.jobs.push_back(Job {
            work,
            _room: room,
            _space: Arc::clone(space),
        });
        if matches!(queue.state, State::Idle) {
            queue.state = State::Running;
            drop(queue);
            let running = Running {
                behind: Arc::clone(self),
                is_done: false,
            };
            tokio::task::spawn_blocking(move || running.write());
        }
        Ok(())
    }

    /// Why nothing is written any more.
    pub(super) fn failure(&self) -> DataFusionError {
        self.queue().failure()
    }

    /// Forgets what is not being written yet.
    pub(super) fn forget(&self) {
        let jobs = std::mem::take(&mut self.queue().jobs);
        drop(jobs);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nobody panics while he holds it.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next piece of work; without one, whoever asks is done.
    fn next(&self) -> Option<Job> {
        let mut queue = self.queue();
        let job = queue.jobs.pop_front();
        if job.is_none() && matches!(queue.state, State::Running) {
            queue.state = State::Idle;
        }
        job
    }

    fn fail(&self, error: DataFusionError) {
        let mut queue = self.queue();
        queue.state = State::Failed(Some(error));
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        drop(jobs);
    }
}

impl Queue {
    fn failure(&mut self) -> DataFusionError {
        let failure = match &mut self.state {
            State::Failed(failure) => failure.take(),
            _ => None,
        };
        failure.unwrap_or_else(|| error::internal("a spill file was written to after a failure"))
    }
}

/// The blocking task. However it ends, nobody waits for it any longer.
struct Running {
    behind: Arc<WriteBehind>,
    is_done: bool,
}

impl Running {
    fn write(mut self) {
        for _ in 0..BURST {
            let Some(Job {
                work,
                _room,
                _space,
            }) = self.behind.next()
            else {
                // From here on another task may be running.
                self.is_done = true;
                return;
            };
            if let Err(error) = work() {
                self.behind.fail(error);
            }
        }
        tokio::task::spawn_blocking(move || self.write());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_done {
            let cause = "it panicked, or its runtime was shut down";
            let error = error::blocking_task("writing spill files", &cause);
            self.behind.fail(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    use datafusion_execution::memory_pool::{MemoryPool, UnboundedMemoryPool};

    use super::*;
    use crate::memory::{Budget, Partitions};

    /// Work that has more of its kind done after it, until somebody else came by.
    fn restless(
        behind: Arc<WriteBehind>,
        space: Arc<Lease>,
        (done, is_over): (Arc<AtomicUsize>, Arc<AtomicBool>),
    ) -> Work {
        Box::new(move || {
            if done.fetch_add(1, SeqCst) > 10_000 || is_over.load(SeqCst) {
                return Ok(());
            }
            let room = Arc::clone(&behind.room).try_acquire_many_owned(0).unwrap();
            let next = restless(Arc::clone(&behind), Arc::clone(&space), (done, is_over));
            behind.push(room, &space, next)
        })
    }

    #[test]
    fn a_partition_that_has_always_something_to_write_lets_another_one_write_too() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let budget = Budget::register(
            &pool,
            0,
            Partitions::enter(1, &Arc::default()),
            Arc::default(),
        );
        let space = Arc::new(budget.empty());
        let (done, is_over) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let written = runtime.block_on(async {
            let busy = WriteBehind::new(1);
            let room = busy.room(0).await.unwrap();
            let work = restless(
                Arc::clone(&busy),
                Arc::clone(&space),
                (Arc::clone(&done), Arc::clone(&is_over)),
            );
            busy.push(room, &space, work).unwrap();
            let other = WriteBehind::new(1);
            let room = other.room(0).await.unwrap();
            let (told, written) = tokio::sync::oneshot::channel();
            let (done, is_over) = (Arc::clone(&done), Arc::clone(&is_over));
            let work: Work = Box::new(move || {
                is_over.store(true, SeqCst);
                let _ = told.send(done.load(SeqCst));
                Ok(())
            });
            other.push(room, &space, work).unwrap();
            written.await.unwrap()
        });
        assert!(written <= 2 * BURST, "after {written} pieces of work");
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}
