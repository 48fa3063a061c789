//! Whether a hash join may be replaced, and the name of every reason why not.
//!
//! Job: the gates that need no number. Not its job: whether it is worth it; that is `estimate`'s
//! and `rule`'s.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion_common::Result;
use datafusion_physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion_physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::exec::{GraceHashJoinExec, partition_counts};
use super::options::Algorithm;
use super::order::Placement;
use super::sort_merge;

/// Why a hash join stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Gate 1: there is nothing that the build side could be too large for.
    NoCap,
    /// The runtime's disk manager refuses temporary files: a join that spills could not.
    SpillingDisabled,
    /// Gate 2: nobody knows how large the build side is.
    UnknownSize(&'static str),
    /// The build side fits, together with those of the other joins that stay.
    Fits { bytes: usize, threshold: usize },
    /// Gate 3: the join's partition mode is still undecided.
    ModeUndecided,
    /// Gate 3: one build side is shared by several probe partitions.
    SharedBuild { probe: usize },
    /// Gate 3: the build side was to be one partition, but is not.
    SplitBuild { build: usize },
    /// After enforcement: both sides of a partitioned join must have as many partitions.
    PartitionCounts { build: usize, probe: usize },
    /// `NOT IN`: the answer depends on NULLs anywhere on the probe side, so it cannot be worked out
    /// by partition; nor by a sort-merge join.
    NullAware,
    /// The join's keys cannot be computed again, or not be hashed and compared.
    Keys(String),
    /// Sort-merge join cannot compare this type, or not as hash join does.
    SortMergeKey(DataType),
    /// An input has no end: what is spilled or sorted would never come out.
    Unbounded,
    /// A sort-merge join whose inputs are sorted already, or for somebody else as well.
    AlreadySorted,
    /// Somebody above relies on the order of the join's output, and it would be lost.
    OrderReliedOn,
}

impl Refusal {
    /// Whether it is because the build side is collected that a join is refused.
    pub(crate) fn is_about_the_mode(&self) -> bool {
        matches!(self, Self::SharedBuild { .. } | Self::SplitBuild { .. })
    }
}

impl Display for Refusal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoCap => write!(f, "there is no known limit on memory"),
            Self::SpillingDisabled => write!(f, "the disk manager does not allow spilling"),
            Self::UnknownSize(why) => write!(f, "the size of the build side is unknown: {why}"),
            Self::Fits { bytes, threshold } => write!(
                f,
                "the build side fits: {bytes} bytes per partition are estimated, {threshold} allowed"
            ),
            Self::ModeUndecided => write!(f, "the partition mode is not decided yet"),
            Self::SharedBuild { probe } => {
                write!(f, "one build side is shared by {probe} probe partitions")
            }
            Self::SplitBuild { build } => {
                write!(
                    f,
                    "the build side is to be collected from {build} partitions"
                )
            }
            Self::PartitionCounts { build, probe } => write!(
                f,
                "the build side has {build} partitions but the probe side {probe}"
            ),
            Self::NullAware => write!(
                f,
                "the join is null-aware (NOT IN), which is neither for several partitions nor for a \
                 sort-merge join"
            ),
            Self::Keys(why) => write!(f, "the join keys are not supported: {why}"),
            Self::SortMergeKey(key) => {
                write!(
                    f,
                    "sort-merge join does not compare {key} keys as hash join does"
                )
            }
            Self::Unbounded => write!(f, "an input has no end"),
            Self::AlreadySorted => write!(f, "its inputs are sorted without it"),
            Self::OrderReliedOn => write!(f, "the order of its output is relied on"),
        }
    }
}

/// Which join can take the place of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacement {
    Grace,
    /// A grace hash join over partitioned inputs, for a hash join that would collect its build side.
    Repartitioned,
    /// A grace hash join for a sort-merge join; its build side is the right one if swapped.
    Unsorted {
        is_swapped: bool,
    },
    SortMerge,
}

impl Display for Replacement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Grace => "GraceHashJoinExec",
            Self::Repartitioned => "a partitioned GraceHashJoinExec",
            Self::Unsorted { is_swapped: false } => "GraceHashJoinExec without sorts",
            Self::Unsorted { is_swapped: true } => "GraceHashJoinExec without sorts, sides swapped",
            Self::SortMerge => "SortMergeJoinExec",
        })
    }
}

/// What `join` can be replaced by, going by its shape alone.
///
/// # Errors
/// The refusal, by name.
pub(crate) fn replacement(
    join: &HashJoinExec,
    algorithm: Algorithm,
    placement: Placement,
) -> Result<Replacement, Refusal> {
    check_mode(join, placement)?;
    check_bounded([&join.left, &join.right])?;
    if join.null_aware && join.mode == PartitionMode::Partitioned {
        return Err(Refusal::NullAware);
    }
    // The first limit takes the first rows in the order that was planned.
    if join.fetch().is_some() && join.properties().output_ordering().is_some() {
        return Err(Refusal::OrderReliedOn);
    }
    match algorithm {
        Algorithm::SortMerge => sort_merge::check(join).map(|()| Replacement::SortMerge),
        Algorithm::GraceAlone => match GraceHashJoinExec::try_from_hash_join(join) {
            Ok(_) => Ok(Replacement::Grace),
            Err(e) => Err(Refusal::Keys(e.message().into_owned())),
        },
        Algorithm::Grace => match GraceHashJoinExec::try_from_hash_join(join) {
            Ok(_) => Ok(Replacement::Grace),
            Err(e) => match sort_merge::check(join) {
                Ok(()) => Ok(Replacement::SortMerge),
                Err(_) => Err(Refusal::Keys(e.message().into_owned())),
            },
        },
    }
}

pub(crate) fn check_bounded(inputs: [&Arc<dyn ExecutionPlan>; 2]) -> Result<(), Refusal> {
    match inputs
        .iter()
        .any(|input| input.boundedness().is_unbounded())
    {
        true => Err(Refusal::Unbounded),
        false => Ok(()),
    }
}

fn check_mode(join: &HashJoinExec, placement: Placement) -> Result<(), Refusal> {
    let (build, probe) = partition_counts(join);
    match join.mode {
        PartitionMode::Auto => Err(Refusal::ModeUndecided),
        PartitionMode::CollectLeft if probe != 1 => Err(Refusal::SharedBuild { probe }),
        PartitionMode::CollectLeft if build != 1 => Err(Refusal::SplitBuild { build }),
        PartitionMode::Partitioned
            if placement == Placement::AfterEnforcement && build != probe =>
        {
            Err(Refusal::PartitionCounts { build, probe })
        }
        PartitionMode::CollectLeft | PartitionMode::Partitioned => Ok(()),
    }
}
