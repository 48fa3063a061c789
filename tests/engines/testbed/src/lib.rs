//! What the engines' tests share: TPC-H as files and queries, answers compared, and what the joins of
//! a run have done.

pub mod joins;
pub mod rows;
pub mod tpch;

/// Whatever went wrong, in a test.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;
