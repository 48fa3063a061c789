//! What the joins of a run have done, read from the nodes themselves: whoever rewrites a task's plan
//! shows it to [`Joins`] before it is executed.

use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;

/// The joins of all tasks since the last look.
#[derive(Clone, Debug, Default)]
pub struct Joins(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    /// They hold nothing but their inputs and their counters.
    grace: Vec<Arc<dyn ExecutionPlan>>,
    hash: usize,
    sort_merge: usize,
}

/// What [`Joins`] saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nodes of this crate, one for each task that has the join.
    pub grace: usize,
    /// Hash joins that stayed.
    pub hash: usize,
    /// Sort-merge joins.
    pub sort_merge: usize,
    /// Bytes that this crate's nodes wrote to disk.
    pub spilled_bytes: usize,
    /// Rows that they put out.
    pub output_rows: usize,
}

impl Joins {
    /// Looks at a plan that is about to be executed.
    pub fn watch(&self, plan: &Arc<dyn ExecutionPlan>) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = plan.apply(|node| {
            match node.name() {
                "GraceHashJoinExec" => watched.grace.push(Arc::clone(node)),
                "HashJoinExec" => watched.hash += 1,
                "SortMergeJoinExec" => watched.sort_merge += 1,
                _ => {}
            }
            Ok(TreeNodeRecursion::Continue)
        });
        all.expect("a walk that cannot fail");
    }

    /// What the joins have done since the last call, which must be over.
    #[must_use]
    pub fn take(&self) -> Counts {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let watched = std::mem::take(&mut *watched);
        let metrics: Vec<_> = watched.grace.iter().filter_map(|n| n.metrics()).collect();
        Counts {
            grace: watched.grace.len(),
            hash: watched.hash,
            sort_merge: watched.sort_merge,
            spilled_bytes: metrics.iter().filter_map(MetricsSet::spilled_bytes).sum(),
            output_rows: metrics.iter().filter_map(MetricsSet::output_rows).sum(),
        }
    }
}
