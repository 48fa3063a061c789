//! Holds the promise that inputs and outputs may have any shape: no rows, no batches, no columns,
//! any projection, any limit, and that what cannot be joined is refused when the join is built.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion_common::{DataFusionError, JoinType, NullEquality};
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{
    Case, Environment, FaultyInput, FilterKind, InputFault, JOIN_TYPES, KeyKind, Pressure, Rows,
    Shape, Spills, collect, within,
};
use grace_hash_join::{GraceHashJoin, GraceHashJoinConfig};

use crate::{WATCHDOG, reference, run};

fn config(pressure: Pressure) -> GraceHashJoinConfig {
    GraceHashJoinConfig::builder()
        .with_fan_out(pressure.fan_out())
        .with_spill(pressure.policy())
        .build()
        .unwrap()
}

/// Runs some of the columns of a case.
fn project(case: Case, projection: &[usize]) {
    let expected = case.expected_columns(Some(projection)).unwrap();
    let wanted = projection.to_vec();
    let outcome = run(&case, move || async move {
        let projected = wanted.clone();
        let setting = case
            .setting_with(|j| {
                j.with_config(config(case.pressure))
                    .with_projection(Some(wanted))
            })
            .unwrap();
        let environment = case.environment().unwrap();
        let spills = case.expects_spill();
        let outcome = setting
            .check(&environment, &expected, spills)
            .await
            .unwrap();
        let theirs = reference::run_columns(&case, Some(projected))
            .await
            .unwrap();
        assert_eq!(outcome.schema, theirs.schema, "{case}");
        outcome
    });
    assert!(
        outcome
            .batches
            .iter()
            .all(|b| b.num_columns() == projection.len())
    );
}

fn width(join_type: JoinType) -> usize {
    match join_type {
        JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => 10,
        JoinType::LeftMark | JoinType::RightMark => 6,
        _ => 5,
    }
}

#[test]
fn a_projection_to_no_columns_still_counts_its_rows() {
    for join_type in JOIN_TYPES {
        for pressure in Pressure::FORCED {
            for batch_size in [1, 7, 8192] {
                for filter in [FilterKind::None, FilterKind::Both] {
                    let case = Case {
                        pressure,
                        batch_size,
                        filter,
                        ..Case::new(join_type)
                    };
                    project(case, &[]);
                }
            }
        }
    }
}

#[test]
fn a_projection_reorders_and_drops_columns() {
    for join_type in JOIN_TYPES {
        let last = width(join_type) - 1;
        for pressure in Pressure::FORCED {
            let case = Case {
                pressure,
                filter: FilterKind::LeftOnly,
                batch_size: 7,
                ..Case::new(join_type)
            };
            project(case, &[last, 2]);
            project(case, &[last]);
            project(case, &[0]);
        }
    }
}

#[test]
fn a_limit_gives_so_many_rows_of_the_answer_and_no_more() {
    for join_type in JOIN_TYPES {
        for pressure in Pressure::FORCED {
            let case = Case {
                pressure,
                batch_size: 7,
                ..Case::new(join_type)
            };
            let expected = case.expected().unwrap();
            for limit in [0, 1, 6, 7, 8, expected.len(), expected.len() + 1] {
                let outcome = run(&case, move || async move {
                    let setting = case
                        .setting_with(|j| j.with_config(config(pressure)).with_limit(Some(limit)))
                        .unwrap();
                    let environment = case.environment().unwrap();
                    let outcome = collect(setting.start(&environment).unwrap()).await.unwrap();
                    environment.becomes_clean().await.unwrap();
                    outcome
                });
                outcome.end.unwrap();
                let rows = Rows::of(&outcome.batches).unwrap();
                assert_eq!(
                    rows.len(),
                    limit.min(expected.len()),
                    "{case}, limit {limit}"
                );
                assert!(expected.contains(&rows), "{case}, limit {limit}");
                assert_eq!(outcome.stats.output_rows, rows.len() as u64, "{case}");
            }
        }
    }
}

#[test]
fn a_limit_that_the_first_probe_batch_fills_waits_for_no_other() {
    let case = Case::new(JoinType::Inner);
    run(&case, move || async move {
        let setting = case.setting_with(|j| j.with_limit(Some(3))).unwrap();
        let environment = case.environment().unwrap();
        let input = |table: &grace_hash_join::testing::Table| {
            FaultyInput::new(Arc::clone(&table.schema), table.batches.clone())
        };
        let probe = input(&setting.probe).with_fault(InputFault::StallAt(1));
        let build = Box::pin(input(&setting.build));
        let stream = setting
            .start_with(&environment, build, Box::pin(probe))
            .unwrap();
        let outcome = collect(stream).await.unwrap();
        assert_eq!(Rows::of(&outcome.batches).unwrap().len(), 3);
    });
}

#[test]
fn a_join_executes_twice_with_the_same_answer() {
    for pressure in Pressure::FORCED {
        let case = Case {
            pressure,
            ..Case::new(JoinType::Full)
        };
        let expected = case.expected().unwrap();
        run(&case, move || async move {
            let setting = case.setting().unwrap();
            let environment = case.environment().unwrap();
            for _ in 0..2 {
                let spills = case.expects_spill();
                setting
                    .check(&environment, &expected, spills)
                    .await
                    .unwrap();
            }
            // And two at a time, over the same pool and disk.
            let one = setting.start(&environment).unwrap();
            let two = setting.start(&environment).unwrap();
            let (one, two) = futures::join!(collect(one), collect(two));
            for outcome in [one.unwrap(), two.unwrap()] {
                outcome.keeps_its_word(&expected, &environment).unwrap();
            }
            environment.becomes_clean().await.unwrap();
        });
    }
}

/// In memory, output is in probe order, and in build order for each probe row.
#[test]
fn an_inner_join_in_memory_keeps_probe_order_then_build_order() {
    for batch_size in [1, 3, 8192] {
        let case = Case {
            batch_size,
            shape: Shape::NoNulls,
            ..Case::new(JoinType::Inner)
        };
        let outcome = run(&case, move || async move {
            let setting = case
                .setting_with(|j| j.with_projection(Some(vec![7, 2])))
                .unwrap();
            let environment = case.environment().unwrap();
            collect(setting.start(&environment).unwrap()).await.unwrap()
        });
        outcome.end.unwrap();
        let mut ids = Vec::new();
        for batch in &outcome.batches {
            use arrow::array::AsArray;
            use arrow::datatypes::Int64Type;
            let ids_of = |column: usize| batch.column(column).as_primitive::<Int64Type>().values();
            ids.extend(ids_of(0).iter().copied().zip(ids_of(1).iter().copied()));
        }
        assert!(ids.len() > 50, "{} pairs", ids.len());
        assert!(ids.is_sorted(), "{ids:?}");
    }
}

#[test]
fn every_join_type_takes_inputs_without_batches() {
    for join_type in JOIN_TYPES {
        for null_equality in [
            NullEquality::NullEqualsNothing,
            NullEquality::NullEqualsNull,
        ] {
            for pressure in Pressure::FORCED {
                for shape in [Shape::Nothing, Shape::EmptyBuild, Shape::EmptyProbe] {
                    let case = Case {
                        pressure,
                        shape,
                        null_equality,
                        batch_size: 3,
                        ..Case::new(join_type)
                    };
                    let expected = case.expected().unwrap();
                    grace_hash_join::testing::check(&case, &expected).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_join_without_keys_is_refused() {
    let (build, probe) = Case::new(JoinType::Inner).tables().unwrap();
    let schemas = (build.schema, probe.schema);
    let join = GraceHashJoin::builder(Arc::clone(&schemas.0), Arc::clone(&schemas.1));
    assert!(matches!(join.build(), Err(DataFusionError::Plan(_))));
    let join = GraceHashJoin::builder(schemas.0, schemas.1).with_on(vec![]);
    assert!(matches!(join.build(), Err(DataFusionError::Plan(_))));
}

#[test]
fn keys_of_different_types_are_refused() {
    for (one, other) in KeyKind::ALL
        .into_iter()
        .zip(KeyKind::ALL.into_iter().skip(1))
    {
        let table = |key| {
            Case {
                key,
                ..Case::new(JoinType::Inner)
            }
            .tables()
            .unwrap()
            .0
        };
        let (build, probe) = (table(one), table(other));
        let join = GraceHashJoin::builder(build.schema, probe.schema).with_on(vec![(0, 0)]);
        let is_same = one.data_types().unwrap()[0] == other.data_types().unwrap()[0];
        assert_eq!(join.build().is_ok(), is_same, "{one:?} with {other:?}");
    }
}

/// Arrow IPC has no place for them, wherever in a column they are; in memory nothing would stop them
/// before the first file.
#[test]
fn columns_that_no_file_can_hold_are_refused_if_they_are_needed() {
    let words = DataType::Dictionary(DataType::Int8.into(), DataType::Utf8.into());
    let nested = DataType::Dictionary(DataType::Int32.into(), words.into());
    let list = DataType::List(Arc::new(Field::new("item", nested.clone(), true)));
    for data_type in [nested, list] {
        let (build, probe) = Case::new(JoinType::Inner).tables().unwrap();
        let mut fields = build.schema.fields().to_vec();
        fields.push(Arc::new(Field::new("words", data_type, true)));
        let words = fields.len() - 1;
        let schema = Arc::new(Schema::new(fields));
        let join = |output| {
            GraceHashJoin::builder(Arc::clone(&schema), Arc::clone(&probe.schema))
                .with_on(vec![(0, 0)])
                .with_projection(Some(output))
                .build()
        };
        assert!(join(vec![0]).is_ok());
        let error = join(vec![0, words]).unwrap_err();
        assert!(matches!(error, DataFusionError::Plan(_)), "{error}");
        assert!(
            error.to_string().contains("column words of the build side"),
            "{error}"
        );
    }
}

#[test]
fn columns_that_are_not_there_are_refused() {
    let case = Case::new(JoinType::Left);
    let refused = |setting: datafusion_common::Result<Setting>| {
        assert!(
            matches!(setting, Err(DataFusionError::Plan(_))),
            "{setting:?}"
        );
    };
    refused(case.setting_with(|j| j.with_on(vec![(5, 0)])));
    refused(case.setting_with(|j| j.with_on(vec![(0, 5)])));
    refused(case.setting_with(|j| j.with_projection(Some(vec![0, 10]))));
    refused(case.setting_with(|j| j.with_filter(FilterKind::Both.filter(5, 0))));
}

#[test]
fn an_input_of_another_schema_is_refused_before_it_is_polled() {
    let setting = Case::new(JoinType::Inner).setting().unwrap();
    let other = Case {
        key: KeyKind::Utf8,
        ..Case::new(JoinType::Inner)
    };
    let (wrong_build, wrong_probe) = other.tables().unwrap();
    let environment = Environment::unlimited(10).unwrap();
    let input = |table: &grace_hash_join::testing::Table| {
        Box::pin(FaultyInput::new(
            Arc::clone(&table.schema),
            table.batches.clone(),
        ))
    };
    for (build, probe, side) in [
        (&wrong_build, &setting.probe, "build"),
        (&setting.build, &wrong_probe, "probe"),
    ] {
        let started = setting.start_with(&environment, input(build), input(probe));
        let error = started.err().unwrap().to_string();
        assert!(error.contains(side), "{side}: {error}");
    }
}

/// Many rows per key on both sides: no batch may grow beyond its size.
#[test]
fn a_join_of_many_with_many_hands_out_bounded_batches() {
    for pressure in Pressure::FORCED {
        let case = Case {
            pressure,
            shape: Shape::OneKey,
            batch_size: 50,
            ..Case::new(JoinType::Full)
        };
        let expected = case.expected().unwrap();
        assert!(expected.len() > 2000);
        run(&case, move || async move {
            let setting = case.setting().unwrap();
            let environment = case.environment().unwrap();
            setting
                .check(&environment, &expected, Spills::May)
                .await
                .unwrap()
        });
    }
    // The watchdog itself works.
    assert!(within(WATCHDOG / 600, std::future::pending::<()>).is_err());
}
