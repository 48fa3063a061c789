//! Holds the promise that the faults which joins of this family have had in public stay out: each is
//! here as a small input with the answer written out by hand, run in every way that the operator has.
//!
//! A test's comment names the report, where there is one; `docs/testing.md` has the list by kind. What
//! is kept out is the kind, so most tests try the report's neighbours too.

mod answers;
mod edges;
mod files;
mod memory;
mod plans;
mod skewed;
mod types;
mod waiting;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Int32Array, RecordBatch};
use arrow::datatypes::{Field, Int64Type, Schema};
use datafusion_common::{JoinSide, JoinType, NullEquality, Result};
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{
    Case, Environment, FilterKind, Outcome, Question, Rows, Spills, Table,
};
use grace_hash_join::{GraceHashJoin, GraceHashJoinConfig, ResidualFilter, SpillPolicy};

use crate::{reference, run};

/// One way to run a join.
#[derive(Clone, Copy, Debug)]
struct Way {
    spill: SpillPolicy,
    fan_out: usize,
    batch_size: usize,
}

impl Way {
    fn config(self) -> GraceHashJoinConfig {
        GraceHashJoinConfig::builder()
            .with_spill(self.spill)
            .with_fan_out(self.fan_out)
            .build()
            .unwrap()
    }
}

/// Nothing on disk; half of the buckets or all of them, in turns, in few buckets or many, at every
/// batch size; split three times; in chunks of two rows.
fn every_way() -> Vec<Way> {
    let mut ways = Vec::new();
    for (turn, batch_size) in [1, 2, 3, 8192].into_iter().enumerate() {
        let way = |spill, fan_out| Way {
            spill,
            fan_out,
            batch_size,
        };
        ways.push(way(SpillPolicy::Pressure, 16));
        for (turn, fan_out) in (turn..).zip([2, 8, 16, 64]) {
            let spill = [SpillPolicy::Half, SpillPolicy::All][turn % 2];
            ways.push(way(spill, fan_out));
        }
        ways.push(match turn % 2 {
            0 => way(SpillPolicy::Split(3), 2),
            _ => way(SpillPolicy::Chunks(2), 2),
        });
    }
    ways
}

/// One way of each kind, for what is tried with very many inputs.
fn one_way_of_each_kind() -> Vec<Way> {
    let way = |spill, fan_out, batch_size| Way {
        spill,
        fan_out,
        batch_size,
    };
    vec![
        way(SpillPolicy::Pressure, 16, 3),
        way(SpillPolicy::Half, 4, 2),
        way(SpillPolicy::All, 8, 8192),
        way(SpillPolicy::Split(3), 2, 2),
        way(SpillPolicy::Chunks(2), 2, 3),
    ]
}

/// A column by its name.
type Named<'a> = (&'a str, ArrayRef);

/// A table of one batch; the first `keys` columns are its keys, and `v` comes after them.
fn table(keys: usize, columns: Vec<Named<'_>>) -> Table {
    let field = |(name, array): &Named<'_>| Field::new(*name, array.data_type().clone(), true);
    let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).unwrap();
    Table {
        schema,
        batches: vec![batch],
        v: keys,
    }
}

/// Rows of (key, v).
fn pairs(rows: &[(Option<i32>, i32)]) -> Table {
    let keys: Int32Array = rows.iter().map(|(key, _)| *key).collect();
    let values: Int32Array = rows.iter().map(|(_, v)| Some(*v)).collect();
    table(1, vec![("k", Arc::new(keys)), ("v", Arc::new(values))])
}

/// Rows of one key column, and nothing else.
fn keys(rows: &[Option<i32>]) -> Table {
    let keys: Int32Array = rows.iter().copied().collect();
    table(1, vec![("k", Arc::new(keys))])
}

/// Rows of one key column without NULLs.
fn numbers(rows: impl IntoIterator<Item = i32>) -> Table {
    keys(&rows.into_iter().map(Some).collect::<Vec<_>>())
}

/// The same rows in batches of so many.
fn cut(mut table: Table, rows: usize) -> Table {
    let whole = table.batches.remove(0);
    let starts = (0..whole.num_rows()).step_by(rows);
    table.batches = starts
        .map(|start| whole.slice(start, rows.min(whole.num_rows() - start)))
        .collect();
    table
}

/// A condition written as a function of the values that it looks at.
#[derive(Debug)]
struct Rule {
    columns: Vec<(JoinSide, usize)>,
    verdict: fn(&[Option<i64>]) -> Option<bool>,
}

impl Rule {
    fn over(
        columns: &[(JoinSide, usize)],
        verdict: fn(&[Option<i64>]) -> Option<bool>,
    ) -> Arc<dyn ResidualFilter> {
        Arc::new(Self {
            columns: columns.to_vec(),
            verdict,
        })
    }
}

impl ResidualFilter for Rule {
    fn columns(&self) -> &[(JoinSide, usize)] {
        &self.columns
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        use arrow::array::AsArray;
        use arrow::datatypes::DataType;
        let columns = batch.columns().iter();
        let columns = columns.map(|c| arrow::compute::cast(c, &DataType::Int64));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let value = |row: usize, column: &ArrayRef| {
            let column = column.as_primitive::<Int64Type>();
            column.is_valid(row).then(|| column.value(row))
        };
        let row = |row| columns.iter().map(|c| value(row, c)).collect::<Vec<_>>();
        Ok((0..batch.num_rows())
            .map(|i| (self.verdict)(&row(i)))
            .collect())
    }
}

/// A join of two tables written by hand.
#[derive(Clone, Debug)]
struct Written {
    join_type: JoinType,
    build: Table,
    probe: Table,
    null_equality: NullEquality,
    filter: FilterKind,
    rule: Option<Arc<dyn ResidualFilter>>,
    projection: Option<Vec<usize>>,
}

impl Written {
    fn new(join_type: JoinType, build: &Table, probe: &Table) -> Self {
        Self {
            join_type,
            build: build.clone(),
            probe: probe.clone(),
            null_equality: NullEquality::NullEqualsNothing,
            filter: FilterKind::None,
            rule: None,
            projection: None,
        }
    }

    fn nulls_are_equal(self) -> Self {
        let null_equality = NullEquality::NullEqualsNull;
        Self {
            null_equality,
            ..self
        }
    }

    fn filter(self, filter: FilterKind) -> Self {
        Self { filter, ..self }
    }

    fn rule(self, rule: &Arc<dyn ResidualFilter>) -> Self {
        Self {
            rule: Some(Arc::clone(rule)),
            ..self
        }
    }

    fn columns(self, projection: &[usize]) -> Self {
        Self {
            projection: Some(projection.to_vec()),
            ..self
        }
    }

    fn case(&self) -> Case {
        Case {
            null_equality: self.null_equality,
            filter: self.filter,
            ..Case::new(self.join_type)
        }
    }

    fn condition(&self) -> Option<Arc<dyn ResidualFilter>> {
        let (build, probe) = (self.build.v, self.probe.v);
        self.rule
            .clone()
            .or_else(|| self.filter.filter(build, probe))
    }

    fn on(&self) -> Vec<(usize, usize)> {
        (0..self.build.v).map(|key| (key, key)).collect()
    }

    fn setting(&self, config: GraceHashJoinConfig) -> Setting {
        let schemas = (
            Arc::clone(&self.build.schema),
            Arc::clone(&self.probe.schema),
        );
        let join = GraceHashJoin::builder(schemas.0, schemas.1)
            .with_on(self.on())
            .with_join_type(self.join_type)
            .with_null_equality(self.null_equality)
            .with_filter(self.condition())
            .with_projection(self.projection.clone())
            .with_config(config)
            .build()
            .unwrap();
        Setting {
            join,
            build: self.build.clone(),
            probe: self.probe.clone(),
        }
    }

    fn oracle(&self) -> Rows {
        let (on, condition) = (self.on(), self.condition());
        let question = Question {
            build_schema: &self.build.schema,
            probe_schema: &self.probe.schema,
            build: &self.build.batches,
            probe: &self.probe.batches,
            on: &on,
            join_type: self.join_type,
            null_equality: self.null_equality,
            null_aware: false,
            filter: condition.as_deref(),
            projection: self.projection.as_deref(),
        };
        question.answer().unwrap()
    }

    /// Whether a build row has a key that is not NULL, so that there is something to spill.
    fn has_rows_for_buckets(&self) -> bool {
        let nulls_count = self.null_equality == NullEquality::NullEqualsNull;
        let is_valid = |column: &ArrayRef, row| {
            let nulls = column.logical_nulls();
            nulls_count || nulls.is_none_or(|nulls| nulls.is_valid(row))
        };
        self.build.batches.iter().any(|batch| {
            let keys = &batch.columns()[..self.build.v];
            (0..batch.num_rows()).any(|row| keys.iter().all(|key| is_valid(key, row)))
        })
    }

    /// The operator gives these rows however it is run; so does the oracle, and so does
    /// `HashJoinExec` where the condition can be said to it.
    fn gives(&self, rows: &[&str]) {
        self.is_answered_by(&Rows::written(rows));
    }

    /// As [`Self::gives`], where only the number of rows is written out.
    fn gives_rows(&self, rows: usize) {
        let oracle = self.oracle();
        assert_eq!(oracle.len(), rows, "the oracle, {:?}", self.join_type);
        self.is_answered_by(&oracle);
    }

    fn is_answered_by(&self, expected: &Rows) {
        self.is_answered_in(every_way(), expected);
    }

    fn is_answered_in(&self, ways: Vec<Way>, expected: &Rows) {
        let case = self.case();
        assert_eq!(expected.difference(&self.oracle()), None, "oracle, {case}");
        let (written, wanted) = (self.clone(), expected.clone());
        run(&case, move || async move {
            if written.rule.is_none() && written.filter != FilterKind::Division {
                let tables = (written.build.clone(), written.probe.clone());
                let projection = written.projection.clone();
                let theirs = reference::run_tables(&case, projection, tables).await;
                let theirs = theirs.unwrap().rows;
                assert_eq!(wanted.difference(&theirs), None, "HashJoinExec, {case}");
            }
            let must_spill = written.has_rows_for_buckets();
            let mut spilled = 0;
            let mut environments: Vec<Environment> = Vec::new();
            for way in ways {
                let is_for =
                    |e: &Environment| e.context.session_config().batch_size() == way.batch_size;
                if !environments.iter().any(is_for) {
                    environments.push(Environment::unlimited(way.batch_size).unwrap());
                }
                let around = environments.iter().find(|e| is_for(e)).unwrap();
                spilled += written
                    .answer(way, around, &wanted)
                    .await
                    .stats
                    .spilled_rows;
            }
            assert_eq!(spilled > 0, must_spill, "{case} proved nothing");
        });
    }

    async fn answer(&self, way: Way, around: &Environment, expected: &Rows) -> Outcome {
        let spills = match way.spill {
            SpillPolicy::Pressure => Spills::MustNot,
            _ => Spills::May,
        };
        let setting = self.setting(way.config());
        let checked = setting.check(around, expected, spills).await;
        let join_type = self.join_type;
        checked.unwrap_or_else(|reason| panic!("{join_type:?}, {way:?}: {reason}"))
    }
}
