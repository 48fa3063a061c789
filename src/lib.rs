//! A hash join that stays in memory while its build side fits there, and spills what does not fit
//! instead of failing: for two streams of Arrow batches ([`GraceHashJoin`]), and for DataFusion's
//! plans (`physical_optimizer_rules`, feature `datafusion`).
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | **build** side | the left input, loaded first |
//! | **probe** side | the right input, streamed |
//! | **bucket** | one of our hash classes |
//! | **partition** | DataFusion's output partition, never ours |
//! | **level** | how often a bucket has been split |
//! | **resident**, **spilled** bucket | its build rows are in memory, on disk |
//! | **run** | a finished spill file |
//! | **pair** | a bucket's build run and probe run |
//! | **chain** | the build rows of one key, in build order |
//! | **loaded**, **streamed** | within a pair: the side in the table, the side passing by |
//! | **lease** | a count of reserved bytes that travels with the data it covers |
//! | **drain** | the phase after the probe input ended |
//!
//! # One picture
//!
//! ```text
//!          build input                       probe input
//!               |                                 |
//!        buffer, hash once                    hash once
//!               |                                 |
//!    refused? split into buckets,          bucket on disk? ---------------.
//!    give up the largest                          |                       |
//!         |            |                          |            can it match at all?
//!     resident      spilled                   resident         (Bloom filter)
//!         |            |                          |                       |
//!      one table    a run each            join now, output         a run per bucket
//!                      |                                                  |
//!                      '-------------------- pairs -----------------------'
//!                                              |
//!              drain, smallest first: load the build run | load the probe run, roles swapped
//!                                     | split by the next level | join in chunks
//! ```
//!
//! If the build input ends before memory is refused, only the left column happens: an ordinary hash
//! join, in which nothing is partitioned. Rows of a resident bucket never touch the disk.
//!
//! # Example: two streams
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};
//! use datafusion::physical_plan::memory::MemoryStream;
//! use datafusion_common::JoinType;
//! use datafusion_execution::TaskContext;
//! use futures::TryStreamExt;
//! use grace_hash_join::GraceHashJoin;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> datafusion_common::Result<()> {
//! let ids: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
//! let names: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c"]));
//! let of: ArrayRef = Arc::new(Int32Array::from(vec![3, 1, 3, 9]));
//! let build = RecordBatch::try_from_iter([("id", ids), ("name", names)])?;
//! let probe = RecordBatch::try_from_iter([("of", of)])?;
//! let (build_schema, probe_schema) = (build.schema(), probe.schema());
//! let build = MemoryStream::try_new(vec![build], build_schema.clone(), None)?;
//! let probe = MemoryStream::try_new(vec![probe], probe_schema.clone(), None)?;
//!
//! let join = GraceHashJoin::builder(build_schema, probe_schema)
//!     .with_on(vec![(0, 0)])
//!     .with_join_type(JoinType::Right)
//!     .build()?;
//! // Memory pool, disk manager and batch size are the task's.
//! let task = TaskContext::default();
//! let stream = join.execute(Box::pin(build), Box::pin(probe), &task, 0, None)?;
//! let batches: Vec<_> = stream.try_collect().await?;
//! assert_eq!(batches.iter().map(|b| b.num_rows()).sum::<usize>(), 4);
//! # Ok(())
//! # }
//! ```
//!
//! # Example: the rule
//!
//! ```
//! # #[cfg(feature = "datafusion")]
//! # mod example {
//! use std::sync::Arc;
//!
//! use datafusion::execution::memory_pool::FairSpillPool;
//! use datafusion::execution::runtime_env::RuntimeEnvBuilder;
//! use datafusion::execution::session_state::SessionStateBuilder;
//! use datafusion::prelude::{SessionConfig, SessionContext};
//! use grace_hash_join::{GraceHashJoinOptions, physical_optimizer_rules};
//!
//! # pub(crate) fn session() -> datafusion::error::Result<SessionContext> {
//! let pool = Arc::new(FairSpillPool::new(64 << 20));
//! let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?;
//! let options = GraceHashJoinOptions::default().with("algorithm", "grace")?;
//! let state = SessionStateBuilder::new()
//!     .with_config(SessionConfig::new().with_option_extension(options))
//!     .with_physical_optimizer_rules(physical_optimizer_rules(&runtime))
//!     .with_runtime_env(runtime)
//!     .with_default_features()
//!     .build();
//! let ctx = SessionContext::new_with_state(state);
//! # Ok(ctx)
//! # }
//! # }
//! ```
//!
//! # Map
//!
//! A module uses those below it, never those above, and the siblings of one line do not know each
//! other; `.ci/greps` holds them to it.
//!
//! | module | knows |
//! |---|---|
//! | `plan` | DataFusion's plans: the node, the rule, the options (feature `datafusion`) |
//! | `join` | the phases: build, probe, drain; the only orchestrator |
//! | `table`, `bucket`, `memory`, `spill` | hash to rows; hash classes; reservations; files |
//! | `keys`, `semantics` | hashes and equality of keys; what each join type means |
//! | `config`, `stats`, `error` | what everyone may know |
//!
//! # Features
//!
//! * `datafusion` (default): node, rule and options. Without it the crate depends on `arrow`,
//!   `datafusion-common` and `datafusion-execution`, and on no plan.
//! * `proto`: the node as bytes, for engines that plan in one process and execute in another.
//! * `testing`: the crate's own test library. Not a stable interface.

mod bucket;
mod config;
mod error;
mod join;
mod keys;
mod memory;
mod semantics;
mod sleep;
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
#[cfg(feature = "proto")]
pub use plan::GraceHashJoinCodec;
#[cfg(feature = "datafusion")]
pub use plan::{
    GraceHashJoinExec, GraceHashJoinOptions, SPILL_JOIN_BUILD_BYTES_ENV, SpillableJoinSelection,
    physical_optimizer_rules, rewrite_task_plan,
};
pub use stats::JoinStats;

#[cfg(all(doctest, feature = "datafusion"))]
#[doc = include_str!("../README.md")]
struct Readme;
