//! The DataFusion half: the plan node, the optimizer rule, the options. The only place that knows
//! a plan.
//!
//! Job: put the join where it is needed and carry it through planning without losing anything that
//! the replaced node promised. Not its job: joining; that is [`crate::GraceHashJoin`]'s.
//!
//! | file | what it knows |
//! |---|---|
//! | `exec` | the node: a [`HashJoinExec`](datafusion_physical_plan::joins::HashJoinExec) that plans, and the join that runs |
//! | `codec` | the node as bytes, for another process (feature `proto`) |
//! | `display` | how the node reads in `EXPLAIN` |
//! | `expr` | physical expressions as the join's keys and residual filter |
//! | `dynamic_filter`, `round`, `bounds` | the filter that the build side sends to the probe side's scans; for whom it waits; what it says |
//! | `metrics` | the join's counters as DataFusion metrics |
//! | `options` | what SQL `SET` can say |
//! | `rule`, `pass` | which joins are replaced; asks `eligibility` (may it be?), `estimate` (need it be?), `order` (does anyone rely on its order?), `sort_merge` (the other algorithm) and `merge_join` (the planner's own sort-merge joins), and says why in the words of `decision` |
//! | `task` | the same where a plan has travelled to the task that runs it |

#![deny(clippy::indexing_slicing)]

mod bounds;
#[cfg(feature = "proto")]
mod codec;
mod decision;
mod display;
mod dynamic_filter;
mod eligibility;
mod estimate;
mod exec;
mod expr;
mod merge_join;
mod metrics;
mod options;
mod order;
mod pass;
mod round;
mod rule;
mod sort_merge;
mod task;

#[cfg(feature = "proto")]
pub use codec::GraceHashJoinCodec;
pub use exec::GraceHashJoinExec;
pub use options::GraceHashJoinOptions;
pub use rule::{SPILL_JOIN_BUILD_BYTES_ENV, SpillableJoinSelection, physical_optimizer_rules};
pub use task::rewrite_task_plan;
