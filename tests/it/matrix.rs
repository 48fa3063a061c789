//! Holds the promise that the answer depends on nothing but the question: each join type, with
//! each null equality and each filter, gives the oracle's and `HashJoinExec`'s rows and schema,
//! whatever is in memory or on disk, however often it was split, at every batch size.

use std::collections::BTreeSet;

use datafusion_common::JoinType;
use grace_hash_join::testing::cases::{BATCH_SIZES, CASE_ENV};
use grace_hash_join::testing::{
    Case, Failure, FilterKind, KeyKind, NULL_EQUALITIES, Pressure, Shape, check,
};

use crate::reference;

/// Runs cases that ask the same question, each against both references.
fn check_all(cases: &[Case]) -> Result<(), Failure> {
    let wanted: Vec<_> = cases
        .iter()
        .filter(|c| c.is_valid() && c.is_wanted())
        .collect();
    let Some(first) = wanted.first() else {
        return Ok(());
    };
    let expected = first.expected()?;
    let runtime = tokio::runtime::Runtime::new().map_err(|e| Failure::new(first, e))?;
    let reference = runtime
        .block_on(reference::run(first))
        .map_err(|e| Failure::new(first, e))?;
    if let Some(difference) = expected.difference(&reference.rows) {
        let reason = format!("HashJoinExec is not of the oracle's opinion: {difference}");
        return Err(Failure::new(first, reason));
    }
    for case in wanted {
        let outcome = check(case, &expected)?;
        if outcome.schema != reference.schema {
            let (ours, theirs) = (&outcome.schema, &reference.schema);
            return Err(Failure::new(
                case,
                format!("schema {ours}, HashJoinExec's {theirs}"),
            ));
        }
        goes_as_deep_as_asked(case, &outcome.stats).map_err(|e| Failure::new(case, e))?;
    }
    Ok(())
}

fn goes_as_deep_as_asked(case: &Case, stats: &grace_hash_join::JoinStats) -> Result<(), String> {
    // An empty side leaves nothing to go deeper for, nor does one that nothing of the other matches,
    // nor NOT IN with a NULL among the probe keys.
    let is_small = stats.build_rows < 20
        || stats.probe_rows < 20
        || case.shape == Shape::NullBuildKeys
        || case.may_be_undecidable();
    let is_right = match case.pressure {
        Pressure::SplitAgain => is_small || (stats.max_level >= 3 && stats.pairs_split > 0),
        Pressure::Chunked => is_small || (stats.pairs_chunked > 0 && stats.chunks > 0),
        _ => true,
    };
    if is_right {
        Ok(())
    } else {
        Err(format!("it was to go deeper than that: {stats:?}"))
    }
}

/// The whole matrix of one join type; a question's cells share its references.
fn matrix_of(join_type: JoinType) {
    matrix_with(Case::new(join_type), &[Shape::Mixed]);
}

/// The whole matrix of one join, with these shapes.
fn matrix_with(join: Case, shapes: &[Shape]) {
    for null_equality in NULL_EQUALITIES {
        for filter in FilterKind::ALL {
            let question = Case {
                null_equality,
                filter,
                ..join
            };
            let cells = |shape, pressures: &[Pressure]| {
                let cell = |pressure| {
                    BATCH_SIZES.map(|batch_size| Case {
                        pressure,
                        shape,
                        key: Shape::key(shape),
                        batch_size,
                        ..question
                    })
                };
                let cases: Vec<_> = pressures.iter().copied().flat_map(cell).collect();
                check_all(&cases).unwrap();
            };
            for shape in shapes {
                cells(*shape, &Pressure::FORCED);
            }
            cells(Shape::WideOneKey, &[Pressure::SmallPool]);
        }
    }
}

#[test]
fn an_inner_join_is_right_in_every_cell() {
    matrix_of(JoinType::Inner);
}

#[test]
fn a_left_join_is_right_in_every_cell() {
    matrix_of(JoinType::Left);
}

#[test]
fn a_right_join_is_right_in_every_cell() {
    matrix_of(JoinType::Right);
}

#[test]
fn a_full_join_is_right_in_every_cell() {
    matrix_of(JoinType::Full);
}

#[test]
fn a_left_semi_join_is_right_in_every_cell() {
    matrix_of(JoinType::LeftSemi);
}

#[test]
fn a_left_anti_join_is_right_in_every_cell() {
    matrix_of(JoinType::LeftAnti);
}

#[test]
fn a_left_mark_join_is_right_in_every_cell() {
    matrix_of(JoinType::LeftMark);
}

#[test]
fn a_right_semi_join_is_right_in_every_cell() {
    matrix_of(JoinType::RightSemi);
}

#[test]
fn a_right_anti_join_is_right_in_every_cell() {
    matrix_of(JoinType::RightAnti);
}

#[test]
fn a_right_mark_join_is_right_in_every_cell() {
    matrix_of(JoinType::RightMark);
}

#[test]
fn a_not_in_is_right_in_every_cell() {
    matrix_with(Case::not_in(), &[Shape::Mixed, Shape::NoProbeNulls]);
}

/// Each key type with each join type; null equality and filter take turns.
#[test]
fn every_key_type_is_right_in_memory_and_on_disk() {
    for (turn, key) in KeyKind::ALL.into_iter().enumerate() {
        for (turn, join) in (turn..).zip(Case::of_each_type()) {
            let question = Case {
                key,
                null_equality: NULL_EQUALITIES[turn % NULL_EQUALITIES.len()],
                filter: FilterKind::ALL[(turn / 2) % 4],
                ..join
            };
            let cells = [
                (Pressure::Fits, 8192),
                (Pressure::Half, 7),
                (Pressure::All, 50),
                (Pressure::SplitAgain, 3),
                (Pressure::Chunked, 2),
            ];
            let cases = cells.map(|(pressure, batch_size)| Case {
                pressure,
                batch_size,
                ..question
            });
            check_all(&cases).unwrap();
        }
    }
}

/// Each shape with each join type; null equality, filter and seed take turns.
#[test]
fn every_shape_is_right_in_memory_and_on_disk() {
    for (turn, shape) in Shape::ALL.into_iter().enumerate() {
        for (turn, join) in (turn..).zip(Case::of_each_type()) {
            let question = Case {
                shape,
                key: shape.key(),
                null_equality: NULL_EQUALITIES[turn % NULL_EQUALITIES.len()],
                filter: FilterKind::ALL[(turn / 2) % FilterKind::ALL.len()],
                seed: turn as u64,
                ..join
            };
            let mut cases = Vec::new();
            for pressure in Pressure::ALL {
                cases.extend([2, 50].map(|batch_size| Case {
                    pressure,
                    batch_size,
                    ..question
                }));
            }
            check_all(&cases).unwrap();
        }
    }
}

/// Whatever a failing test printed as `GRACE_CASE`, in the matrix or not.
#[test]
#[expect(
    clippy::print_stdout,
    reason = "who runs one case wants to see what it did"
)]
fn the_case_of_the_environment_is_right() {
    let Ok(name) = std::env::var(CASE_ENV) else {
        return;
    };
    let case = Case::from_name(&name).unwrap();
    let expected = case.expected().unwrap();
    let outcome = check(&case, &expected).unwrap();
    println!("{case}: {} rows, {:?}", expected.len(), outcome.stats);
}

#[test]
fn a_case_is_found_again_by_its_name() {
    let mut names = BTreeSet::new();
    for join in Case::of_each_type() {
        for null_equality in NULL_EQUALITIES {
            for filter in FilterKind::NAMED {
                for pressure in Pressure::ALL {
                    let case = Case {
                        null_equality,
                        filter,
                        pressure,
                        ..join
                    };
                    assert_eq!(Case::from_name(&case.to_string()).unwrap(), case);
                    assert!(
                        names.insert(case.to_string()),
                        "two cases are called {case}"
                    );
                }
            }
        }
    }
    for key in KeyKind::ALL {
        for shape in Shape::ALL {
            let case = Case {
                key,
                shape,
                batch_size: 3,
                seed: 7,
                ..Case::new(JoinType::Full)
            };
            assert_eq!(Case::from_name(&case.to_string()).unwrap(), case);
        }
    }
    let error = Case::from_name("Left/nothing/sideways")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("sideways") && error.contains("LeftOnly"),
        "{error}"
    );
}
