//! One execution of a join, over all its partitions, for whom they wait before the dynamic filter is
//! published.
//!
//! Job: who has a seat, who has reported, and who is still worth waiting for. Not its job: what is
//! gathered (`bounds`), and who owns the filter (`dynamic_filter`).
//!
//! Why nothing hangs: a partition waits for as long as all others are under way, and each of those
//! ends in a report or gives up its seat. If one was not polled although the runtime had nothing else
//! to do for a while, nobody knows whether it ever will be (streams read one after the other, or in
//! another process), and the round goes on without waiting; the filter may still come later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use datafusion_common::{NullEquality, Result};
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::DynamicFilterPhysicalExpr;
use datafusion_physical_plan::joins::HashJoinExec;
use futures::future::{FutureExt, select};
use log::debug;
use tokio::sync::watch;

use super::bounds::BuildSummary;
use crate::sleep::sleep;

/// How long a partition waits at least for one that was not polled yet: short enough not to be
/// noticed where streams are read one after the other.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);

/// How often it waits again while the runtime is too busy to start its tasks: half a second in all.
const MOST_PATIENCE: usize = 10;

/// Where a partition is in the round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// `execute` was not called.
    Absent,
    /// `execute` was called, but nobody polled the stream.
    Seated,
    /// The stream was polled.
    Started,
    /// The build side was seen in full.
    Reported,
}

#[derive(Debug)]
struct RoundState {
    progress: Vec<Progress>,
    /// What the partitions that reported have in common.
    gathered: Option<BuildSummary>,
    /// Nothing will be published any more: it was, or it cannot be.
    is_closed: bool,
    /// Whether partitions still wait for those that were not polled.
    is_patient: bool,
}

/// One execution of the node, over all its partitions.
#[derive(Debug)]
pub(super) struct Round {
    filter: Arc<DynamicFilterPhysicalExpr>,
    probe_schema: SchemaRef,
    /// Whether probe rows with a NULL key are let through.
    passes_nulls: bool,
    state: Mutex<RoundState>,
    closed: watch::Sender<bool>,
}

impl Round {
    pub(super) fn new(
        filter: Arc<DynamicFilterPhysicalExpr>,
        join: &HashJoinExec,
        partitions: usize,
    ) -> Self {
        Self {
            filter,
            probe_schema: join.right.schema(),
            passes_nulls: join.null_aware || join.null_equality == NullEquality::NullEqualsNull,
            state: Mutex::new(RoundState {
                progress: vec![Progress::Absent; partitions],
                gathered: None,
                is_closed: false,
                is_patient: true,
            }),
            closed: watch::Sender::new(false),
        }
    }

    /// Seats a partition; `false` if this is not its round.
    pub(super) fn seat(&self, partition: usize, partitions: usize) -> bool {
        let mut state = lock(&self.state);
        let is_mine = state.progress.len() == partitions;
        match state.progress.get_mut(partition) {
            Some(progress @ Progress::Absent) if is_mine => {
                *progress = Progress::Seated;
                true
            }
            _ => false,
        }
    }

    pub(super) fn start(&self, partition: usize) {
        let mut state = lock(&self.state);
        if let Some(progress @ Progress::Seated) = state.progress.get_mut(partition) {
            *progress = Progress::Started;
        }
    }

    /// Takes in a partition's build side; the last one publishes.
    pub(super) fn report(&self, partition: usize, summary: BuildSummary) {
        let mut state = lock(&self.state);
        if state.is_closed {
            return;
        }
        if let Some(progress) = state.progress.get_mut(partition) {
            *progress = Progress::Reported;
        }
        match &mut state.gathered {
            Some(gathered) => gathered.merge(summary),
            None => state.gathered = Some(summary),
        }
        if state.progress.iter().all(|p| *p == Progress::Reported) {
            if let Some(summary) = state.gathered.take()
                && let Err(e) = self.publish(&summary)
            {
                debug!("the dynamic filter stays true: {e}");
            }
            self.close_locked(&mut state);
        }
    }

    fn publish(&self, summary: &BuildSummary) -> Result<()> {
        // The filter's own children, since the node's keys may have been rewritten since.
        let on = self.filter.children();
        let predicate = summary.predicate(&on, &self.probe_schema, self.passes_nulls)?;
        self.filter.update(predicate)
    }

    /// Ends the round; the filter stays as it is.
    pub(super) fn close(&self) {
        self.close_locked(&mut lock(&self.state));
    }

    fn close_locked(&self, state: &mut RoundState) {
        if !state.is_closed {
            state.is_closed = true;
            state.gathered = None;
            self.filter.mark_complete();
            self.closed.send_replace(true);
        }
    }

    /// Whether every partition was polled, or need not be waited for.
    fn is_under_way(&self) -> bool {
        let state = lock(&self.state);
        let is_absent = |p: &Progress| matches!(p, Progress::Absent | Progress::Seated);
        !state.progress.iter().any(is_absent)
    }

    fn is_patient(&self) -> bool {
        lock(&self.state).is_patient
    }

    /// Waits until every partition was polled, or the round is over; `false` if neither is to be
    /// expected any more.
    async fn wait_for_the_others(&self, mut closed: watch::Receiver<bool>) -> bool {
        for _ in 0..MOST_PATIENCE {
            let before = naps();
            let patience = sleep(PATIENCE).boxed();
            let closed = closed.wait_for(|is_closed| *is_closed).boxed();
            select(closed, patience).await;
            if self.is_under_way() || *self.closed.borrow() {
                return true;
            }
            if was_idle(&before, &naps()) {
                break;
            }
        }
        false
    }

    /// Waits for the end of the round, as long as that is sure to come.
    pub(super) async fn closed(self: Arc<Self>) {
        let mut closed = self.closed.subscribe();
        if !self.is_under_way() {
            if !self.is_patient() {
                return;
            }
            if !self.wait_for_the_others(closed.clone()).await {
                lock(&self.state).is_patient = false;
                return;
            }
        }
        // An error would mean that the sender, which `self` holds, is gone.
        let _ = closed.wait_for(|is_closed| *is_closed).await;
    }
}

/// What the threads of a runtime did so far: how often each of them fell asleep, and woke up again.
fn naps() -> Vec<u64> {
    #[cfg(target_has_atomic = "64")]
    {
        let metrics = tokio::runtime::Handle::current().metrics();
        let workers = 0..metrics.num_workers();
        workers
            .map(|w| metrics.worker_park_unpark_count(w))
            .collect()
    }
    #[cfg(not(target_has_atomic = "64"))]
    Vec::new()
}

/// Whether a thread had nothing to do between two looks. Each of them is asleep if its count is
/// odd.
fn was_idle(before: &[u64], after: &[u64]) -> bool {
    before != after || after.iter().all(|naps| naps % 2 == 1)
}

impl Drop for Round {
    fn drop(&mut self) {
        self.close();
    }
}

/// A lock that outlives a panic elsewhere: every change under it is complete in itself.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
