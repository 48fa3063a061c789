//! What the engines' tests share: TPC-H as files and queries, answers compared, and what the joins of
//! a run have done.

use datafusion::prelude::SessionConfig;
use grace_hash_join::GraceHashJoinOptions;

pub mod answers;
pub mod files;
pub mod joins;
pub mod process;
pub mod queries;
pub mod tpch;

/// Whatever went wrong, in a test.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// The crate's options with these settings.
///
/// # Errors
/// For a key or a value that is none.
pub fn options(settings: &[(&str, &str)]) -> Result<GraceHashJoinOptions> {
    let mut options = GraceHashJoinOptions::default();
    for (key, value) in settings {
        options = options.with(key, value)?;
    }
    Ok(options)
}

/// `config` with both sides of each join partitioned, however small they are.
#[must_use]
pub fn partitioned(config: SessionConfig) -> SessionConfig {
    let threshold = "datafusion.optimizer.hash_join_single_partition_threshold";
    config
        .set_u64(threshold, 0)
        .set_u64(&format!("{threshold}_rows"), 0)
}

/// The arguments of an example: a query's number, the scale, MiB for each task; `else`, these.
///
/// # Errors
/// If one is no number.
pub fn arguments(number: usize, scale: f64, memory: usize) -> Result<(usize, f64, usize)> {
    let mut args = std::env::args().skip(1);
    let number = args.next().map_or(Ok(number), |a| a.parse())?;
    let scale = args.next().map_or(Ok(scale), |a| a.parse())?;
    let memory = args.next().map_or(Ok(memory), |a| a.parse())?;
    Ok((number, scale, memory))
}
