//! The slow twin: a nested loop over rows.
//!
//! Job: say what must come out of a join, in the dumbest way that is still right: every build row
//! is compared with every probe row, and each join type is spelled out. No hashing, no join
//! kernel, no buckets, and no code of the operator. `tests/it/anchors.rs` checks it against answers
//! written by hand.
//!
//! Keys are equal if they are the same value. At the top level -0.0 equals 0.0, and a NaN equals a
//! NaN of the same bits, as in `HashJoinExec`. NULL keys follow the [`NullEquality`]; NULLs inside
//! a nested key equal each other.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion_common::{JoinSide, JoinType, NullEquality, Result};

use super::render;
use crate::ResidualFilter;

/// A multiset of rows: sorted, each as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows(Vec<String>);

impl Rows {
    /// The rows of some batches; a row without columns counts too.
    ///
    /// # Errors
    /// If a column's type is not known to [`render`].
    pub fn of(batches: &[RecordBatch]) -> Result<Self> {
        Ok(Self::from_cells(render::rows(batches)?))
    }

    /// Rows written by hand: cells separated by commas.
    #[must_use]
    pub fn written(rows: &[&str]) -> Self {
        let cells = rows
            .iter()
            .map(|row| row.split(',').map(str::to_string).collect());
        Self::from_cells(cells.collect())
    }

    fn from_cells(rows: Vec<Vec<String>>) -> Self {
        let mut rows: Vec<String> = rows.into_iter().map(|cells| cells.join(",")).collect();
        rows.sort_unstable();
        Self(rows)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is missing from `got` and what it has too much, in words; nothing if they are equal.
    #[must_use]
    pub fn difference(&self, got: &Self) -> Option<String> {
        if self == got {
            return None;
        }
        let missing = self.minus(got);
        let extra = got.minus(self);
        Some(format!(
            "{} rows instead of {}; {} missing, such as {:?}; {} too much, such as {:?}",
            got.len(),
            self.len(),
            missing.len(),
            missing.iter().take(3).collect::<Vec<_>>(),
            extra.len(),
            extra.iter().take(3).collect::<Vec<_>>(),
        ))
    }

    /// Whether each row of `part` is in here, as often.
    #[must_use]
    pub fn contains(&self, part: &Self) -> bool {
        part.minus(self).is_empty()
    }

    fn minus(&self, other: &Self) -> Vec<&String> {
        let mut others = other.0.iter().peekable();
        let mut rest = Vec::new();
        for row in &self.0 {
            while others.next_if(|o| *o < row).is_some() {}
            if others.next_if(|o| *o == row).is_none() {
                rest.push(row);
            }
        }
        rest
    }
}

/// A join, as a question to the oracle.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The build input's schema.
    pub build_schema: &'a SchemaRef,
    /// The probe input's schema.
    pub probe_schema: &'a SchemaRef,
    /// The build input.
    pub build: &'a [RecordBatch],
    /// The probe input.
    pub probe: &'a [RecordBatch],
    /// Key columns: (index in the build input, index in the probe input).
    pub on: &'a [(usize, usize)],
    /// The join type.
    pub join_type: JoinType,
    /// Whether NULL keys match each other.
    pub null_equality: NullEquality,
    /// Whether this is NOT IN.
    pub null_aware: bool,
    /// The condition besides key equality.
    pub filter: Option<&'a dyn ResidualFilter>,
    /// Which columns come out.
    pub projection: Option<&'a [usize]>,
}

impl Question<'_> {
    /// What must come out.
    ///
    /// # Errors
    /// If the filter fails for a pair of rows whose keys match.
    pub fn answer(&self) -> Result<Rows> {
        let matches = self.matches()?;
        let rows = self.joined(&matches)?;
        let Some(projection) = self.projection else {
            return Ok(Rows::from_cells(rows));
        };
        let project = |row: Vec<String>| projection.iter().map(|c| row[*c].clone()).collect();
        Ok(Rows::from_cells(rows.into_iter().map(project).collect()))
    }

    /// For each build row, for each probe row, whether they match.
    fn matches(&self) -> Result<Vec<Vec<bool>>> {
        let (build_on, probe_on): (Vec<_>, Vec<_>) = self.on.iter().copied().unzip();
        let build_keys = keys(self.build, &build_on)?;
        let probe_keys = keys(self.probe, &probe_on)?;
        let build_rows = addresses(self.build);
        let probe_rows = addresses(self.probe);
        let mut all = Vec::new();
        for (build_key, build_row) in build_keys.iter().zip(&build_rows) {
            let mut one = Vec::new();
            for (probe_key, probe_row) in probe_keys.iter().zip(&probe_rows) {
                let equal = self.keys_equal(build_key, probe_key);
                one.push(equal && self.passes(*build_row, *probe_row)?);
            }
            all.push(one);
        }
        Ok(all)
    }

    fn keys_equal(&self, build: &[String], probe: &[String]) -> bool {
        build.iter().zip(probe).all(|(build, probe)| {
            let either_null = build == render::NULL || probe == render::NULL;
            build == probe && (!either_null || self.null_equality == NullEquality::NullEqualsNull)
        })
    }

    /// Whether the filter is true for one pair of rows.
    fn passes(&self, build: (usize, usize), probe: (usize, usize)) -> Result<bool> {
        let Some(filter) = self.filter else {
            return Ok(true);
        };
        let mut fields = Vec::new();
        let mut columns: Vec<ArrayRef> = Vec::new();
        for (side, column) in filter.columns() {
            let (batches, (batch, row)) = match side {
                JoinSide::Left => (self.build, build),
                _ => (self.probe, probe),
            };
            fields.push(batches[batch].schema().field(*column).clone());
            columns.push(batches[batch].column(*column).slice(row, 1));
        }
        let pair = RecordBatch::try_new_with_options(
            Arc::new(Schema::new(fields)),
            columns,
            &RecordBatchOptions::new().with_row_count(Some(1)),
        )?;
        let verdict = filter.evaluate(&pair)?;
        Ok(verdict.iter().next().flatten() == Some(true))
    }

    fn joined(&self, matches: &[Vec<bool>]) -> Result<Vec<Vec<String>>> {
        let build = render::rows(self.build)?;
        let probe = render::rows(self.probe)?;
        let build_hit = |b: usize| matches[b].contains(&true);
        let probe_hit = |p: usize| matches.iter().any(|row| row[p]);
        let all_build = 0..build.len();
        let all_probe = 0..probe.len();

        let mut pairs = Vec::new();
        for b in all_build.clone() {
            for p in all_probe.clone().filter(|p| matches[b][*p]) {
                pairs.push([build[b].clone(), probe[p].clone()].concat());
            }
        }
        let no_build = vec![render::NULL.to_string(); self.build_schema.fields().len()];
        let no_probe = vec![render::NULL.to_string(); self.probe_schema.fields().len()];
        let lone_build = all_build
            .clone()
            .filter(|b| !build_hit(*b))
            .map(|b| [build[b].clone(), no_probe.clone()].concat());
        let lone_probe = all_probe
            .clone()
            .filter(|p| !probe_hit(*p))
            .map(|p| [no_build.clone(), probe[p].clone()].concat());
        let marked = |row: &[String], hit: bool| [row, &[hit.to_string()]].concat();

        Ok(match self.join_type {
            JoinType::Inner => pairs,
            JoinType::Left => pairs.into_iter().chain(lone_build).collect(),
            JoinType::Right => pairs.into_iter().chain(lone_probe).collect(),
            JoinType::Full => pairs
                .into_iter()
                .chain(lone_build)
                .chain(lone_probe)
                .collect(),
            JoinType::LeftSemi => picked(&build, build_hit),
            JoinType::LeftAnti if self.null_aware => self.not_in(&build, build_hit)?,
            JoinType::LeftAnti => picked(&build, |b| !build_hit(b)),
            JoinType::LeftMark => all_build.map(|b| marked(&build[b], build_hit(b))).collect(),
            JoinType::RightSemi => picked(&probe, probe_hit),
            JoinType::RightAnti => picked(&probe, |p| !probe_hit(p)),
            JoinType::RightMark => all_probe.map(|p| marked(&probe[p], probe_hit(p))).collect(),
        })
    }

    /// NOT IN: all build rows of an empty set; none if the set has a NULL; else those that are not
    /// NULL and have no match.
    fn not_in(
        &self,
        build: &[Vec<String>],
        build_hit: impl Fn(usize) -> bool,
    ) -> Result<Vec<Vec<String>>> {
        let (build_on, probe_on): (Vec<_>, Vec<_>) = self.on.iter().copied().unzip();
        let has_null = |key: &Vec<String>| key.iter().any(|k| k == render::NULL);
        let probe_keys = keys(self.probe, &probe_on)?;
        if probe_keys.is_empty() {
            return Ok(build.to_vec());
        }
        if probe_keys.iter().any(has_null) {
            return Ok(Vec::new());
        }
        let build_keys = keys(self.build, &build_on)?;
        Ok(picked(build, |b| {
            !build_hit(b) && !has_null(&build_keys[b])
        }))
    }
}

fn picked(rows: &[Vec<String>], keep: impl Fn(usize) -> bool) -> Vec<Vec<String>> {
    let kept = rows.iter().enumerate().filter(|(index, _)| keep(*index));
    kept.map(|(_, row)| row.clone()).collect()
}

/// The key of each row, as text.
fn keys(batches: &[RecordBatch], columns: &[usize]) -> Result<Vec<Vec<String>>> {
    let mut all = Vec::new();
    for (batch, row) in addresses(batches) {
        let key = columns
            .iter()
            .map(|column| key_part(batches[batch].column(*column), row));
        all.push(key.collect::<Result<Vec<_>>>()?);
    }
    Ok(all)
}

fn key_part(array: &ArrayRef, row: usize) -> Result<String> {
    let value = render::value(array, row)?;
    let negative_zero = match array.data_type() {
        DataType::Float16 => format!("{:x}", 1_u16 << 15),
        DataType::Float32 => format!("{:x}", (-0.0_f32).to_bits()),
        DataType::Float64 => format!("{:x}", (-0.0_f64).to_bits()),
        _ => return Ok(value),
    };
    Ok(if value == negative_zero {
        "0".to_string()
    } else {
        value
    })
}

/// Each row as (batch, row in the batch).
fn addresses(batches: &[RecordBatch]) -> Vec<(usize, usize)> {
    let rows = batches.iter().enumerate();
    rows.flat_map(|(index, batch)| (0..batch.num_rows()).map(move |row| (index, row)))
        .collect()
}
