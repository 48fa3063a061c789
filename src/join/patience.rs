//! Waiting for memory that others in the pool hold: as long as they take and give back.
//!
//! A greedy pool can be full at the moment at which a join asks for its floor, of neighbours that are
//! about to finish or to spill. Nobody tells when memory is given back, so the pool's total is looked
//! at; what stands still is waited for no longer than [`STILL`], since those who hold it may in turn
//! wait for this join's rows.

use std::time::{Duration, Instant};

use datafusion_common::Result;

use super::context::JoinContext;
use crate::memory::Lease;
use crate::sleep::sleep;

/// The time between two looks at the pool.
const LOOK: Duration = Duration::from_millis(2);

/// How long what others hold may stay the same.
const STILL: Duration = Duration::from_millis(500);

/// How long is waited at most, however busy the others are.
const MOST: Duration = Duration::from_secs(10);

/// Asks for bytes without which the join cannot go on, `what` they are for. A refusal stands once
/// there is nothing to be expected from others in the pool.
///
/// # Errors
/// `ResourcesExhausted`, if the pool refuses.
pub(crate) async fn require(ctx: &JoinContext, bytes: usize, what: &str) -> Result<Lease> {
    let budget = &ctx.budget;
    let mut patience = Patience::new(budget.others());
    loop {
        let refusal = match budget.require(bytes, what) {
            Ok(lease) => return Ok(lease),
            Err(refusal) => refusal,
        };
        if !budget.is_possible(bytes) || !patience.wait(budget.others()).await {
            return Err(refusal);
        }
    }
}

/// One wait.
struct Patience {
    start: Instant,
    /// What others held at the last look, and since when.
    others: usize,
    since: Instant,
}

impl Patience {
    /// Of a join beside others that hold `others` bytes.
    fn new(others: usize) -> Self {
        let start = Instant::now();
        Self {
            start,
            others,
            since: start,
        }
    }

    /// Waits a moment; `false`, at once, if there is nothing to be expected from others any more.
    async fn wait(&mut self, others: usize) -> bool {
        let now = Instant::now();
        if others != self.others {
            (self.others, self.since) = (others, now);
        }
        if others == 0 || now - self.since >= STILL || now - self.start >= MOST {
            return false;
        }
        sleep(LOOK).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_moves_is_waited_for_and_what_stands_still_is_not() {
        let mut patience = Patience::new(900);
        let start = Instant::now();
        for others in (100..=900).rev().step_by(100) {
            while start.elapsed() < STILL / 900 * (1000 - others) * 2 {
                assert!(patience.wait(others as usize).await);
            }
        }
        assert!(start.elapsed() > STILL);
        let still = Instant::now();
        while patience.wait(100).await {}
        assert!((STILL / 2..MOST).contains(&still.elapsed()));
        assert!(!patience.wait(0).await, "there is nobody to wait for");
    }
}
