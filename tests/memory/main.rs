//! Holds the memory promise, measured: above the floor a join finishes whatever its size and skew,
//! more memory never fails or writes more, and what the pool says is what the process holds.
//!
//! A binary of its own, since the allocator counts for the whole process: its tests take turns.
//! `docs/memory.md` has what it prints:
//!
//! ```sh
//! GRACE_SWEEP=8 cargo test --release --test memory -- --nocapture
//! ```

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on says so by panicking, helpers included"
)]

use std::sync::{Mutex, MutexGuard, PoisonError};

use peak_alloc::PeakAlloc;

mod data;
mod expected;
mod extremes;
mod measure;
mod plan;
mod sweep;
mod together;
mod written;

/// Counts what is allocated. Both blocks of a reallocation count while one is copied to the other.
#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Held by the test whose turn it is.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    // The turn of a test that failed is over too.
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
