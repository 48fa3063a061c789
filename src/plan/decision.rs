//! What becomes of a join, and why: the line of the log that says so.
//!
//! Job: the names of all outcomes. Not its job: coming to one; that is `rule`'s, with the reasons
//! why not in `eligibility`.

use std::fmt::{self, Display, Formatter};

use datafusion_physical_plan::{DisplayAs, DisplayFormatType};
use log::debug;

use super::eligibility::{Refusal, Replacement};
use super::estimate::Estimate;

/// Under which name the log has it, as `docs/rule.md` says.
pub(crate) const LOG_TARGET: &str = "grace_hash_join::plan::rule";

/// What becomes of a join.
pub(crate) type Choice = Result<Verdict, Refusal>;

/// A join is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) replacement: Replacement,
    pub(crate) reason: Reason,
}

/// Why a join is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// `select = always`.
    Always,
    /// `select = capped`, and there is a cap.
    Capped,
    /// The estimate is over the threshold.
    TooLarge,
    /// It would fit by itself, but not beside the smaller ones that stay.
    TooManyTogether,
    /// A sort-merge join whose sorts nobody else needs.
    OwnSorts,
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "select = always",
            Self::Capped => "select = capped",
            Self::TooLarge => "the build side is too large",
            Self::TooManyTogether => "the build side fits, but not beside the smaller ones",
            Self::OwnSorts => "its inputs are sorted for it alone",
        })
    }
}

/// What is known of a join's build side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Bytes per partition.
    pub(crate) estimate: Estimate,
    /// What they may be; `None` without a cap.
    pub(crate) threshold: Option<usize>,
}

impl Display for Facts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.estimate {
            Ok(bytes) => write!(f, "{bytes} bytes per partition estimated")?,
            Err(_) => write!(f, "size unknown")?,
        }
        match self.threshold {
            Some(threshold) => write!(f, ", {threshold} allowed"),
            None => write!(f, ", no limit known"),
        }
    }
}

/// Says what becomes of `join`, in one line.
pub(crate) fn log(join: &dyn DisplayAs, choice: &Choice, facts: &Facts) {
    match choice {
        Ok(Verdict {
            replacement,
            reason,
        }) => debug!(
            target: LOG_TARGET,
            "replaced by {replacement}, {reason} ({facts}): {}",
            Line(join)
        ),
        Err(refusal) => debug!(
            target: LOG_TARGET,
            "kept, {refusal} ({facts}): {}",
            Line(join)
        ),
    }
}

/// A join as `EXPLAIN` shows it.
struct Line<'a>(&'a dyn DisplayAs);

impl Display for Line<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt_as(DisplayFormatType::Default, f)
    }
}
