//! Holds the promise that a column that is only carried along comes out as it went in: every Arrow
//! type, with NULLs outside and inside, through memory and through disk, as the schema says it.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema};
use datafusion_common::{JoinType, Result};
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{
    Case, Environment, JOIN_TYPES, PayloadKind, Pressure, Spills, Table,
};
use grace_hash_join::{GraceHashJoin, GraceHashJoinConfig};

use crate::{reference, run};

/// A table with a payload column at its end, in slices, with metadata on the field.
fn with_payload(table: &Table, kind: PayloadKind) -> Result<Table> {
    let payload = kind.array(0..u16::try_from(table.rows()).unwrap_or(u16::MAX))?;
    let metadata = [(
        "ARROW:extension:name".to_string(),
        "a test's own".to_string(),
    )];
    let field = Field::new("payload", payload.data_type().clone(), true);
    let mut fields: Vec<_> = table.schema.fields().iter().cloned().collect();
    fields.push(Arc::new(field.with_metadata(metadata.into())));
    let schema = Arc::new(Schema::new(fields));
    let mut start = 0;
    let mut batches = Vec::new();
    for batch in &table.batches {
        let mut columns = batch.columns().to_vec();
        columns.push(payload.slice(start, batch.num_rows()));
        start += batch.num_rows();
        batches.push(RecordBatch::try_new(Arc::clone(&schema), columns)?);
    }
    Ok(Table {
        schema,
        batches,
        v: table.v,
    })
}

fn setting(case: &Case, kind: PayloadKind) -> Result<Setting> {
    let (build, probe) = case.tables()?;
    let (build, probe) = (with_payload(&build, kind)?, with_payload(&probe, kind)?);
    let config = GraceHashJoinConfig::builder()
        .with_fan_out(case.pressure.fan_out())
        .with_spill(case.pressure.policy());
    let join = GraceHashJoin::builder(Arc::clone(&build.schema), Arc::clone(&probe.schema))
        .with_on(vec![(0, 0)])
        .with_join_type(case.join_type)
        .with_null_equality(case.null_equality)
        .with_config(config.build()?)
        .build()?;
    Ok(Setting { join, build, probe })
}

/// One payload type through one join type, in memory and on disk, against the oracle and
/// `HashJoinExec`.
fn carried(kind: PayloadKind, join_type: JoinType) {
    for pressure in [
        Pressure::Fits,
        Pressure::All,
        Pressure::SplitAgain,
        Pressure::Chunked,
    ] {
        let case = Case {
            pressure,
            batch_size: 50,
            ..Case::new(join_type)
        };
        run(&case, move || async move {
            let setting = setting(&case, kind).unwrap();
            let tables = (setting.build.clone(), setting.probe.clone());
            let theirs = reference::run_tables(&case, None, tables).await.unwrap();
            let expected = case.expected_of(&setting.build, &setting.probe, &[(0, 0)], None);
            let expected = expected.unwrap();
            // Arrow's `take` of runs and dense unions overlooks NULL indices, and `HashJoinExec` with it.
            if !matches!(kind, PayloadKind::RunEndEncoded | PayloadKind::DenseUnion) {
                assert_eq!(
                    expected.difference(&theirs.rows),
                    None,
                    "HashJoinExec, {kind:?}"
                );
            }
            let environment = Environment::unlimited(case.batch_size).unwrap();
            let checked = setting.check(&environment, &expected, Spills::May).await;
            let outcome = checked.unwrap_or_else(|why| panic!("{kind:?} as a payload: {why}"));
            assert_eq!(outcome.schema, theirs.schema, "{kind:?}");
            let spilled = outcome.stats.spilled_rows > 0;
            assert_eq!(spilled, pressure != Pressure::Fits, "{kind:?}");
        });
    }
}

#[test]
fn every_type_is_carried_through_an_inner_join() {
    for kind in PayloadKind::all() {
        carried(kind, JoinType::Inner);
    }
}

#[test]
fn every_type_is_carried_through_a_full_join() {
    for kind in PayloadKind::all() {
        carried(kind, JoinType::Full);
    }
}

#[test]
fn every_type_is_carried_through_one_of_the_other_joins() {
    let others = JOIN_TYPES
        .into_iter()
        .filter(|t| !matches!(t, JoinType::Inner | JoinType::Full));
    for (kind, join_type) in PayloadKind::all().into_iter().zip(others.cycle()) {
        carried(kind, join_type);
    }
}
