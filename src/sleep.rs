//! A sleep that works without the runtime's timer, which a caller need not enable.

use std::time::Duration;

/// Sleeps on a thread for blocking work; within a tokio runtime.
pub(crate) async fn sleep(duration: Duration) {
    // An error would mean that the runtime shuts down; then nobody waits any more.
    let _ = tokio::task::spawn_blocking(move || std::thread::sleep(duration)).await;
}
