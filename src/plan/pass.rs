//! One run of the rule over one plan.
//!
//! Job: find the joins, let the gates decide about each, take back what would break an order, and
//! put the new nodes in. Not its job: the gates themselves (`eligibility`, `estimate`, `order`), and
//! where the limit comes from (`rule`).

use std::sync::Arc;

use datafusion_common::Result;
use datafusion_common::config::ConfigOptions;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_physical_plan::execution_plan::replace_children_if_necessary;
use datafusion_physical_plan::joins::{HashJoinExec, PartitionMode, SortMergeJoinExec};
use datafusion_physical_plan::{DisplayAs, ExecutionPlan, ExecutionPlanProperties};
use log::{Level, log_enabled};

use super::decision::{self, Choice, Facts, Reason, Verdict};
use super::eligibility::{self, Refusal, Replacement};
use super::estimate::{self, Estimator};
use super::exec::GraceHashJoinExec;
use super::merge_join;
use super::options::{Algorithm, GraceHashJoinOptions, Select};
use super::order::{self, Placement};
use super::sort_merge;
use crate::config::GraceHashJoinConfig;

/// How many times the threshold a build side must be that is worth two exchanges. With the
/// threshold that follows from the memory pool, half of it, that is more than the whole pool.
const FAR_OVER: usize = 2;

/// A join that the rule looks at.
#[derive(Clone, Copy)]
enum Subject<'a> {
    Hash(&'a HashJoinExec),
    /// One that the planner chose by itself (`prefer_hash_join = false`).
    Merge(&'a SortMergeJoinExec),
}

impl<'a> Subject<'a> {
    fn of(node: &'a dyn ExecutionPlan, algorithm: Algorithm) -> Option<Self> {
        let merge = || {
            node.downcast_ref()
                .filter(|_| algorithm == Algorithm::Grace)
        };
        let hash = node.downcast_ref().map(Self::Hash);
        hash.or_else(|| merge().map(Self::Merge))
    }

    fn node(self) -> &'a dyn ExecutionPlan {
        match self {
            Self::Hash(join) => join,
            Self::Merge(join) => join,
        }
    }

    fn line(self) -> &'a dyn DisplayAs {
        match self {
            Self::Hash(join) => join,
            Self::Merge(join) => join,
        }
    }
}

/// How a join is put into a new plan.
#[derive(Clone, Copy)]
enum Step {
    Keep,
    /// As it is, with the sorts that enforcement would give to a sort-merge join.
    KeepSorted,
    Replace(Replacement),
}

impl Step {
    fn of(choice: &Choice) -> Self {
        match choice {
            Ok(verdict) => Self::Replace(verdict.replacement),
            Err(_) => Self::Keep,
        }
    }
}

/// One run of the rule over one plan.
pub(crate) struct Pass<'a> {
    /// The memory pool's, if it is known to have one.
    pub(crate) limit: Option<usize>,
    pub(crate) can_spill: bool,
    pub(crate) options: GraceHashJoinOptions,
    pub(crate) config: GraceHashJoinConfig,
    pub(crate) session: &'a ConfigOptions,
    pub(crate) placement: Placement,
    pub(crate) estimator: Estimator<'a>,
    /// The threshold per partition, if somebody said one.
    pub(crate) explicit: Option<usize>,
}

impl Pass<'_> {
    pub(crate) fn run(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let mut nodes = Vec::new();
        plan.apply(|node| {
            if Subject::of(node.as_ref(), self.options.algorithm).is_some() {
                nodes.push(Arc::clone(node));
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        let subjects = nodes.iter();
        let subjects = subjects.filter_map(|n| Subject::of(n.as_ref(), self.options.algorithm));
        let subjects: Vec<Subject<'_>> = subjects.collect();
        let mut choices = self.choose(&subjects);
        self.keep_what_is_relied_on(plan, &subjects, &mut choices)?;
        if log_enabled!(target: decision::LOG_TARGET, Level::Debug) {
            for (subject, choice) in subjects.iter().zip(&choices) {
                decision::log(subject.line(), choice, &self.facts(*subject));
            }
        }
        let steps: Vec<Step> = choices.iter().map(Step::of).collect();
        self.rebuild(plan, &mut steps.iter())
    }

    /// What becomes of each join, going by its shape and its size.
    fn choose(&self, subjects: &[Subject<'_>]) -> Vec<Choice> {
        if self.explicit.is_none() && self.limit.is_none() && self.options.select != Select::Always
        {
            return vec![Err(Refusal::NoCap); subjects.len()];
        }
        if !self.can_spill {
            return vec![Err(Refusal::SpillingDisabled); subjects.len()];
        }
        let mut choices: Vec<Choice> = subjects.iter().map(|s| self.shape(*s)).collect();
        if self.options.select == Select::Estimated {
            self.keep_the_smallest(subjects, &mut choices);
        }
        choices
    }

    /// What `subject` could be replaced by.
    fn shape(&self, subject: Subject<'_>) -> Choice {
        let replacement = match subject {
            Subject::Merge(join) => {
                merge_join::check(join, self.placement)?;
                let is_swapped = self.is_better_swapped(join);
                return Ok(Verdict {
                    replacement: Replacement::Unsorted { is_swapped },
                    reason: Reason::OwnSorts,
                });
            }
            Subject::Hash(join) => self.hash_replacement(join)?,
        };
        let reason = match self.options.select {
            Select::Always => Reason::Always,
            Select::Capped => Reason::Capped,
            Select::Estimated => Reason::TooLarge,
        };
        Ok(Verdict {
            replacement,
            reason,
        })
    }

    fn hash_replacement(&self, join: &HashJoinExec) -> Result<Replacement, Refusal> {
        let algorithm = self.options.algorithm;
        let refusal = match eligibility::replacement(join, algorithm, self.placement) {
            Err(refusal) if refusal.is_about_the_mode() => refusal,
            answer => return answer,
        };
        if !self.may_repartition(join) {
            return Err(refusal);
        }
        let join = partitioned(join).map_err(|e| Refusal::Keys(e.message().into_owned()))?;
        match eligibility::replacement(&join, algorithm, self.placement)? {
            Replacement::Grace => Ok(Replacement::Repartitioned),
            _ => Err(refusal),
        }
    }

    /// Whether a join that collects its build side is so large that exchanges are worth it.
    fn may_repartition(&self, join: &HashJoinExec) -> bool {
        let facts = self.facts(Subject::Hash(join));
        let (Ok(bytes), Some(threshold)) = (facts.estimate, facts.threshold) else {
            return false;
        };
        self.options.repartitions_collect_left
            && self.placement == Placement::BeforeEnforcement
            && self.session.optimizer.repartition_joins
            // Groups of files pass for partitions by hash, which they are not.
            && self.session.optimizer.preserve_file_partitions == 0
            && self.session.execution.target_partitions > 1
            && bytes / FAR_OVER > threshold
    }

    /// Whether the right side of a sort-merge join is known to be the smaller one.
    fn is_better_swapped(&self, join: &SortMergeJoinExec) -> bool {
        let size = |side| self.estimator.bytes(side);
        self.session.optimizer.join_reordering
            && join.join_type.supports_swap()
            && matches!((size(&join.left), size(&join.right)), (Ok(l), Ok(r)) if l > r)
    }

    fn facts(&self, subject: Subject<'_>) -> Facts {
        let target = self.session.execution.target_partitions;
        let (build, partitions) = match subject {
            Subject::Hash(join) => {
                let partitions = estimate::partitions(join, self.placement, target);
                (&join.left, partitions)
            }
            Subject::Merge(join) => (&join.left, target),
        };
        let share = self.limit.map(|limit| limit / partitions.max(1) / 2);
        Facts {
            estimate: self.estimator.build_bytes(build, partitions),
            threshold: self.explicit.or(share),
        }
    }

    /// Of the hash joins that fit by themselves, the smallest stay, as long as they fit together, and
    /// beside those that stay in any case.
    fn keep_the_smallest(&self, subjects: &[Subject<'_>], choices: &mut [Choice]) {
        let mut fitting = Vec::new();
        // In parts of the threshold, since joins differ in how many partitions share the pool.
        let mut taken = 0.0;
        for (subject, choice) in subjects.iter().zip(choices) {
            if matches!(subject, Subject::Merge(_)) {
                continue;
            }
            let facts = self.facts(*subject);
            match (facts.estimate, facts.threshold) {
                (Ok(bytes), Some(threshold)) if choice.is_err() => taken += part(bytes, threshold),
                _ if choice.is_err() => {}
                (Err(why), _) => *choice = Err(Refusal::UnknownSize(why)),
                (Ok(_), None) => *choice = Err(Refusal::NoCap),
                (Ok(bytes), Some(threshold)) if bytes <= threshold => {
                    fitting.push((bytes, threshold, choice));
                }
                (Ok(_), Some(_)) => {}
            }
        }
        fitting.sort_by_key(|(bytes, _, _)| *bytes);
        for (bytes, threshold, choice) in fitting {
            taken += part(bytes, threshold);
            if taken <= 1.0 {
                *choice = Err(Refusal::Fits { bytes, threshold });
            } else if let Ok(verdict) = choice {
                verdict.reason = Reason::TooManyTogether;
            }
        }
    }

    /// Takes back the choices that would break an order which somebody relies on.
    fn keep_what_is_relied_on(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        subjects: &[Subject<'_>],
        choices: &mut [Choice],
    ) -> Result<()> {
        let mut steps = vec![Step::Keep; choices.len()];
        for (index, (subject, choice)) in subjects.iter().zip(choices.iter_mut()).enumerate() {
            let Ok(verdict) = choice else { continue };
            let replace = Step::Replace(verdict.replacement);
            let mut plan_with = |step| {
                if let Some(slot) = steps.get_mut(index) {
                    *slot = step;
                }
                self.rebuild(plan, &mut steps.iter())
            };
            let is_kept = match (subject, self.placement) {
                // Enforcement is still to come, and gives a sort to whoever needs one.
                (Subject::Hash(_), Placement::BeforeEnforcement) => true,
                (Subject::Merge(_), Placement::BeforeEnforcement) => {
                    let (old, new) = (plan_with(Step::KeepSorted)?, plan_with(replace)?);
                    order::is_kept(&old, &new, self.placement)?
                }
                (_, Placement::AfterEnforcement) => {
                    let node = subject.node();
                    node.equivalence_properties().oeq_class().is_empty() || {
                        let (old, new) = (plan_with(Step::Keep)?, plan_with(replace)?);
                        order::is_kept(&old, &new, self.placement)?
                    }
                }
            };
            if !is_kept {
                *choice = Err(Refusal::OrderReliedOn);
            }
            if let Some(slot) = steps.get_mut(index) {
                *slot = Step::of(choice);
            }
        }
        Ok(())
    }

    /// `plan` with its joins put in as `steps` say, in the order of a walk from the top. What does
    /// not change stays the same node.
    fn rebuild<'s>(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        steps: &mut impl Iterator<Item = &'s Step>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let step = match Subject::of(plan.as_ref(), self.options.algorithm) {
            Some(_) => steps.next(),
            None => None,
        };
        let children = plan.children().into_iter();
        let children = children.map(|child| self.rebuild(child, steps));
        let children = children.collect::<Result<Vec<_>>>()?;
        let plan = replace_children_if_necessary(Arc::clone(plan), children)?;
        let subject = Subject::of(plan.as_ref(), self.options.algorithm);
        match (step, subject) {
            (Some(Step::Replace(replacement)), Some(subject)) => self.put(subject, *replacement),
            (Some(Step::KeepSorted), Some(Subject::Merge(join))) => sort_merge::with_sorts(join),
            _ => Ok(plan),
        }
    }

    fn put(&self, old: Subject<'_>, new: Replacement) -> Result<Arc<dyn ExecutionPlan>> {
        let grace = |join: &HashJoinExec| {
            let node = GraceHashJoinExec::try_from_hash_join(join)?;
            let node: Arc<dyn ExecutionPlan> = Arc::new(node.with_config(&self.config)?);
            Ok(node)
        };
        match (old, new) {
            (Subject::Hash(join), Replacement::SortMerge) => {
                sort_merge::replace(join, self.placement)
            }
            (Subject::Hash(join), Replacement::Repartitioned) => grace(&partitioned(join)?),
            (Subject::Hash(join), _) => grace(join),
            (Subject::Merge(join), replacement) => {
                let is_swapped = replacement == Replacement::Unsorted { is_swapped: true };
                merge_join::replace(join, self.placement, is_swapped, &self.config)
            }
        }
    }
}

/// The part of the threshold that a build side of so many bytes takes.
#[expect(clippy::cast_precision_loss, reason = "an estimate of an estimate")]
fn part(bytes: usize, threshold: usize) -> f64 {
    bytes as f64 / threshold.max(1) as f64
}

/// `join` with both sides partitioned by the keys, once enforcement has added the exchanges.
fn partitioned(join: &HashJoinExec) -> Result<HashJoinExec> {
    let join = join
        .builder()
        .with_partition_mode(PartitionMode::Partitioned);
    join.recompute_properties().build()
}
