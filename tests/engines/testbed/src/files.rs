//! Files that come and go while a query runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::answers::TOO_LONG;

/// The files below a directory, whoever made them.
#[must_use]
pub fn below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else {
        return vec![];
    };
    let mut found = Vec::new();
    for path in entries.flatten().map(|e| e.path()) {
        match path.is_dir() {
            true => found.extend(below(&path)),
            false => found.push(path),
        }
    }
    found
}

/// Waits until `is_so`.
///
/// # Panics
/// If it is not, for too long.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < TOO_LONG,
            "not within {TOO_LONG:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
