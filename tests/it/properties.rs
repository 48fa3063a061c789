//! Holds the promise that how a join is run does not show in its answer: whatever the type, keys,
//! filter, shape and seed, the rows are the oracle's for any pressure, fan-out and batch size, and a
//! limit gives that many of them.

use std::fmt::Debug;

use grace_hash_join::testing::cases::BATCH_SIZES;
use grace_hash_join::testing::{
    Case, FilterKind, KeyKind, NULL_EQUALITIES, Pressure, Shape, check,
};
use grace_hash_join::{GraceHashJoinConfig, SpillPolicy};
use proptest::prelude::*;
use proptest::sample::select;

use crate::run;

fn any_of<T: Clone + Debug + 'static>(values: &'static [T]) -> impl Strategy<Value = T> {
    select(values)
}

/// Any valid case of small data.
fn cases() -> impl Strategy<Value = Case> {
    let question = (
        select(Case::of_each_type()),
        any_of(&NULL_EQUALITIES),
        any_of(&FilterKind::ALL),
        any_of(&KeyKind::ALL),
    );
    let surroundings = (
        any_of(&Pressure::ALL),
        any_of(&Shape::ALL),
        any_of(&BATCH_SIZES),
        any::<u64>(),
    );
    (question, surroundings)
        .prop_map(|(question, surroundings)| {
            let (join, null_equality, filter, key) = question;
            let (pressure, shape, batch_size, seed) = surroundings;
            Case {
                null_equality,
                filter,
                pressure,
                key,
                shape,
                batch_size,
                seed,
                ..join
            }
        })
        .prop_filter("small data in a valid combination", |case| {
            case.is_valid() && !case.shape.is_large() && case.shape != Shape::WideOneKey
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn the_answer_is_the_oracle_s_however_the_join_is_run(case in cases()) {
        let expected = case.expected().map_err(|e| TestCaseError::fail(e.to_string()))?;
        check(&case, &expected).map_err(|e| TestCaseError::fail(e.to_string()))?;
    }

    #[test]
    fn a_limit_gives_that_many_of_the_rows(case in cases(), limit in 0_usize..40, fan_out in 1_u32..7) {
        let expected = case.expected().map_err(|e| TestCaseError::fail(e.to_string()))?;
        let config = GraceHashJoinConfig::builder()
            .with_fan_out(1 << fan_out)
            .with_spill(if limit % 2 == 0 { SpillPolicy::All } else { SpillPolicy::Half })
            .build()
            .unwrap();
        let wanted = expected.len().min(limit);
        let outcome = run(&case, move || async move {
            let setting = case
                .setting_with(|join| join.with_config(config).with_limit(Some(limit)))
                .unwrap();
            let environment = case.environment().unwrap();
            let outcome = grace_hash_join::testing::collect(setting.start(&environment).unwrap())
                .await
                .unwrap();
            environment.becomes_clean().await.unwrap();
            outcome
        });
        prop_assert!(outcome.end.is_ok());
        let rows = grace_hash_join::testing::Rows::of(&outcome.batches).unwrap();
        prop_assert_eq!(rows.len(), wanted);
        prop_assert!(expected.contains(&rows));
    }
}
