//! What is shown while one waits: on stderr, animated on a terminal, a line a step otherwise.

use std::io::{IsTerminal, Write, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that disappears when it is dropped.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Moves on by `count`.
    pub(crate) fn advance(&self, count: usize) {
        self.0.inc(u64::try_from(count).unwrap_or(u64::MAX));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Shows that something of unknown length goes on.
pub(crate) fn spinner(what: &str) -> Progress {
    let bar = shown(
        ProgressBar::new_spinner(),
        "{spinner} {msg} {elapsed}",
        what,
    );
    bar.enable_steady_tick(Duration::from_millis(100));
    Progress(bar)
}

/// Shows how much of `total` is done.
pub(crate) fn bar(what: &str, total: u64) -> Progress {
    let template = "{msg} {wide_bar} {human_pos}/{human_len} rows, {eta} left";
    Progress(shown(ProgressBar::new(total), template, what))
}

/// A line for the user that is no result.
pub(crate) fn note(line: &str) {
    // Nobody to tell if stderr is closed.
    let _ = writeln!(stderr(), "{line}");
}

fn shown(bar: ProgressBar, template: &str, what: &str) -> ProgressBar {
    if !stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        note(what);
    }
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.with_message(what.to_owned())
}
