//! The crate's integration tests, in one binary: each module holds one promise.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on says so by panicking, helpers included"
)]
#![expect(clippy::excessive_nesting, reason = "each axis of a case is a loop")]

use std::time::Duration;

use grace_hash_join::testing::{Case, within};

mod anchors;
mod cancel;
mod dictionaries;
mod faults;
mod kinds;
mod matrix;
mod not_in;
mod observer;
mod payloads;
mod properties;
mod reference;
mod regressions;
mod shapes;
mod skew;
mod spill;

/// How long a run may take before it counts as hanging.
const WATCHDOG: Duration = Duration::from_mins(1);

/// Runs something about a case under the watchdog; a failure names the case.
fn run<T, F>(case: &Case, what: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    within(WATCHDOG, what).unwrap_or_else(|reason| panic!("{case}: {reason}"))
}
