//! Residual filters without physical expressions, one for each way that a filter can be.
//!
//! Invariant: a filter looks at the `v` columns only (Int32, nullable), wherever they are.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray};
use arrow::datatypes::Int32Type;
use arrow::record_batch::RecordBatch;
use datafusion_common::{DataFusionError, JoinSide, Result};

use crate::ResidualFilter;

/// What a residual filter says of a pair of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FilterKind {
    /// There is no filter.
    None,
    /// `build.v > 3`: NULL where `v` is.
    LeftOnly,
    /// `probe.v > 3`.
    RightOnly,
    /// `build.v < probe.v`.
    Both,
    /// `false`, looking at no column at all.
    AlwaysFalse,
    /// NULL, always.
    NullValued,
    /// `10 / probe.v > build.v`: an error for a pair whose probe side has `v = 0`.
    Division,
    /// An error for every pair.
    Failing,
}

impl FilterKind {
    /// The filters that give an answer for all data.
    pub const ALL: [Self; 6] = [
        Self::None,
        Self::LeftOnly,
        Self::RightOnly,
        Self::Both,
        Self::AlwaysFalse,
        Self::NullValued,
    ];

    /// All filters that a case's name can hold: those that can fail too.
    pub const NAMED: [Self; 8] = [
        Self::None,
        Self::LeftOnly,
        Self::RightOnly,
        Self::Both,
        Self::AlwaysFalse,
        Self::NullValued,
        Self::Division,
        Self::Failing,
    ];

    /// The filter over the columns `v` at these places, if it is one.
    #[must_use]
    pub fn filter(self, build_v: usize, probe_v: usize) -> Option<Arc<dyn ResidualFilter>> {
        let build = (JoinSide::Left, build_v);
        let probe = (JoinSide::Right, probe_v);
        let columns = match self {
            Self::None => return None,
            Self::LeftOnly => vec![build],
            Self::RightOnly => vec![probe],
            // The probe's column comes first: a filter's column order is its own.
            Self::Both | Self::Division | Self::NullValued => vec![probe, build],
            Self::AlwaysFalse | Self::Failing => vec![],
        };
        Some(Arc::new(TestFilter {
            kind: self,
            columns,
        }))
    }

    /// What it says of one pair; `None` is NULL.
    fn verdict(self, build: Option<i32>, probe: Option<i32>) -> Result<Option<bool>> {
        Ok(match self {
            Self::None => Some(true),
            Self::LeftOnly => build.map(|v| v > 3),
            Self::RightOnly => probe.map(|v| v > 3),
            Self::Both => build.zip(probe).map(|(build, probe)| build < probe),
            Self::AlwaysFalse => Some(false),
            Self::NullValued => None,
            Self::Division => match build.zip(probe) {
                Some((_, 0)) => return Err(failure("division by zero in the filter")),
                pair => pair.map(|(build, probe)| 10 / probe > build),
            },
            Self::Failing => return Err(failure("the filter fails")),
        })
    }
}

fn failure(message: &str) -> DataFusionError {
    DataFusionError::Execution(message.to_string())
}

#[derive(Debug)]
struct TestFilter {
    kind: FilterKind,
    columns: Vec<(JoinSide, usize)>,
}

impl ResidualFilter for TestFilter {
    fn columns(&self) -> &[(JoinSide, usize)] {
        &self.columns
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let value = |side: JoinSide, row: usize| {
            let position = self.columns.iter().position(|(s, _)| *s == side)?;
            let column = batch.column(position).as_primitive::<Int32Type>();
            column.is_valid(row).then(|| column.value(row))
        };
        (0..batch.num_rows())
            .map(|row| {
                let build = value(JoinSide::Left, row);
                self.kind.verdict(build, value(JoinSide::Right, row))
            })
            .collect()
    }
}
