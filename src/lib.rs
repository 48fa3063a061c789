//! A spilling hash join.

mod bucket;
mod config;
mod error;
mod join;
mod keys;
mod memory;
mod semantics;
mod spill;
mod stats;
mod table;

#[cfg(feature = "datafusion")]
mod plan;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

pub use config::{GraceHashJoinConfig, GraceHashJoinConfigBuilder, SpillCodec, SpillPolicy};
pub use join::{
    BuildObserver, GraceHashJoin, GraceHashJoinBuilder, GraceHashJoinStream, JoinKeys,
    ResidualFilter,
};
#[cfg(feature = "datafusion")]
pub use plan::{
    GraceHashJoinExec, GraceHashJoinOptions, SPILL_JOIN_BUILD_BYTES_ENV, SpillableJoinSelection,
    physical_optimizer_rules,
};
pub use stats::JoinStats;
