//! What the joins of a run have done, read from the nodes themselves: whoever rewrites a task's plan
//! shows it to [`Joins`] before it is executed.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::ops::AddAssign;
use std::sync::{Arc, Mutex, PoisonError};

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{ExecutionPlan, displayable};

/// The joins of all tasks since the last look.
#[derive(Clone, Debug, Default)]
pub struct Joins(Arc<Mutex<Watched>>);

#[derive(Debug, Default)]
struct Watched {
    /// They hold nothing but their inputs and their counters.
    grace: Vec<Arc<dyn ExecutionPlan>>,
    counts: Counts,
}

/// What [`Joins`] saw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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
    /// How often there was a join of this name, mode and type, as in `hash CollectLeft Inner`.
    pub kinds: BTreeMap<String, usize>,
}

impl Counts {
    /// Whether a join of this mode and type was seen, as a hash join or replaced.
    #[must_use]
    pub fn has(&self, mode_and_type: &str) -> bool {
        self.kinds
            .keys()
            .any(|k| k.ends_with(&format!(" {mode_and_type}")))
    }
}

impl Display for Counts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            grace,
            hash,
            sort_merge,
            spilled_bytes,
            ..
        } = self;
        let mib = *spilled_bytes as f64 / f64::from(1 << 20);
        write!(
            f,
            "joins in tasks: {grace} of this crate, {hash} hash joins, {sort_merge} sort-merge joins; \
             spilled by this crate's: {mib:.1} MiB"
        )
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.grace += other.grace;
        self.hash += other.hash;
        self.sort_merge += other.sort_merge;
        self.spilled_bytes += other.spilled_bytes;
        self.output_rows += other.output_rows;
        for (kind, count) in other.kinds {
            *self.kinds.entry(kind).or_default() += count;
        }
    }
}

impl Joins {
    /// Looks at a plan that is about to be executed.
    pub fn watch(&self, plan: &Arc<dyn ExecutionPlan>) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Watched { grace, counts } = &mut *watched;
        let all = plan.apply(|node| {
            let name = match node.name() {
                "GraceHashJoinExec" => {
                    counts.grace += 1;
                    grace.push(Arc::clone(node));
                    "grace"
                }
                "HashJoinExec" => {
                    counts.hash += 1;
                    "hash"
                }
                "SortMergeJoinExec" => {
                    counts.sort_merge += 1;
                    return Ok(TreeNodeRecursion::Continue);
                }
                _ => return Ok(TreeNodeRecursion::Continue),
            };
            let kind = format!("{name} {}", mode_and_type(node.as_ref()));
            *counts.kinds.entry(kind).or_default() += 1;
            Ok(TreeNodeRecursion::Continue)
        });
        all.expect("a walk that cannot fail");
    }

    /// What the joins have done since the last call, which must be over.
    #[must_use]
    pub fn take(&self) -> Counts {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Watched { grace, mut counts } = std::mem::take(&mut *watched);
        let metrics: Vec<_> = grace.iter().filter_map(|n| n.metrics()).collect();
        counts.spilled_bytes = metrics.iter().filter_map(MetricsSet::spilled_bytes).sum();
        counts.output_rows = metrics.iter().filter_map(MetricsSet::output_rows).sum();
        counts
    }
}

/// As the node shows them; and whether it is a `NOT IN`.
fn mode_and_type(join: &dyn ExecutionPlan) -> String {
    let line = displayable(join).one_line().to_string();
    let field = |name: &str| {
        let (_, rest) = line.split_once(name)?;
        rest.split([',', '\n']).next()
    };
    let mode = field("mode=").unwrap_or("?");
    let join_type = field("join_type=").unwrap_or("?");
    match line.contains("null_aware") {
        true => format!("{mode} NotIn"),
        false => format!("{mode} {join_type}"),
    }
}
