//! Holds the promise that the oracle is right: inputs and outputs written by hand, for each join
//! type, checked against the oracle and against the operator, in memory and on disk.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion_common::JoinType::{
    Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi,
};
use datafusion_common::NullEquality::{self, NullEqualsNothing, NullEqualsNull};
use datafusion_common::{JoinType, Result};
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{Environment, FilterKind, Question, Rows, Table, collect};
use grace_hash_join::{GraceHashJoin, GraceHashJoinConfig, SpillPolicy};

/// Rows of (name, key, v); the key is column 1, `v` column 2.
type Written = [(&'static str, Option<i32>, Option<i32>)];

/// `L = {(a,NULL), (b,1), (c,1), (d,2)}`, `v` counts from 0.
const L: &Written = &[
    ("a", None, Some(0)),
    ("b", Some(1), Some(1)),
    ("c", Some(1), Some(2)),
    ("d", Some(2), Some(3)),
];

/// `R = {(w,NULL), (x,1), (y,3), (z,3)}`, `v` is 0 throughout.
const R: &Written = &[
    ("w", None, Some(0)),
    ("x", Some(1), Some(0)),
    ("y", Some(3), Some(0)),
    ("z", Some(3), Some(0)),
];

fn table(rows: &Written) -> Table {
    let schema = Arc::new(Schema::new(vec![
        Field::new("name", DataType::Utf8, false),
        Field::new("key", DataType::Int32, true),
        Field::new("v", DataType::Int32, true),
    ]));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|r| Some(r.0)).collect::<StringArray>()),
        Arc::new(rows.iter().map(|r| r.1).collect::<Int32Array>()),
        Arc::new(rows.iter().map(|r| r.2).collect::<Int32Array>()),
    ];
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    Table {
        schema,
        batches: vec![batch],
        v: 2,
    }
}

/// The columns that anchors look at: the names, and the mark.
fn names_only(join_type: JoinType) -> Vec<usize> {
    match join_type {
        Inner | Left | Right | Full | LeftMark | RightMark => vec![0, 3],
        _ => vec![0],
    }
}

struct Anchor {
    build: &'static Written,
    probe: &'static Written,
    join_type: JoinType,
    null_equality: NullEquality,
    filter: FilterKind,
}

impl Anchor {
    fn base(join_type: JoinType, null_equality: NullEquality) -> Self {
        Self {
            build: L,
            probe: R,
            join_type,
            null_equality,
            filter: FilterKind::None,
        }
    }

    /// Checks an answer written as words of cells: `"bx a-"` is (b, x) and (a, NULL), `"aF"` a mark.
    fn gives(&self, answer: &str) {
        let cell = |c: char| match c {
            '-' => "NULL".to_string(),
            'T' => "true".to_string(),
            'F' => "false".to_string(),
            name => format!("\"{name}\""),
        };
        let row = |word: &str| word.chars().map(cell).collect::<Vec<_>>().join(",");
        let rows: Vec<_> = answer.split_whitespace().map(row).collect();
        let rows: Vec<_> = rows.iter().map(String::as_str).collect();
        let written = Rows::written(&rows);
        let name = format!(
            "{:?} {:?} {:?}",
            self.join_type, self.null_equality, self.filter
        );
        let oracle = self.oracle().unwrap();
        assert_eq!(written.difference(&oracle), None, "the oracle, {name}");
        let runtime = tokio::runtime::Runtime::new().unwrap();
        for spill in [SpillPolicy::Pressure, SpillPolicy::Half, SpillPolicy::All] {
            for fan_out in [2, 8, 16, 64] {
                for batch_size in [1, 2, 3, 8192] {
                    let got = runtime
                        .block_on(self.operator(spill, fan_out, batch_size))
                        .unwrap();
                    let how = format!("{spill:?}, {fan_out} buckets, batches of {batch_size}");
                    assert_eq!(
                        written.difference(&got),
                        None,
                        "the operator, {name}, {how}"
                    );
                }
            }
        }
    }

    fn oracle(&self) -> Result<Rows> {
        let (build, probe) = (table(self.build), table(self.probe));
        Question {
            build_schema: &build.schema,
            probe_schema: &probe.schema,
            build: &build.batches,
            probe: &probe.batches,
            on: &[(1, 1)],
            join_type: self.join_type,
            null_equality: self.null_equality,
            null_aware: false,
            filter: self.filter.filter(2, 2).as_deref(),
            projection: Some(&names_only(self.join_type)),
        }
        .answer()
    }

    async fn operator(&self, spill: SpillPolicy, fan_out: usize, batch: usize) -> Result<Rows> {
        let (build, probe) = (table(self.build), table(self.probe));
        let config = GraceHashJoinConfig::builder()
            .with_spill(spill)
            .with_fan_out(fan_out);
        let join = GraceHashJoin::builder(Arc::clone(&build.schema), Arc::clone(&probe.schema))
            .with_on(vec![(1, 1)])
            .with_join_type(self.join_type)
            .with_null_equality(self.null_equality)
            .with_filter(self.filter.filter(2, 2))
            .with_projection(Some(names_only(self.join_type)))
            .with_config(config.build()?)
            .build()?;
        let environment = Environment::unlimited(batch)?;
        let setting = Setting { join, build, probe };
        let outcome = collect(setting.start(&environment)?).await.unwrap();
        outcome.end?;
        environment.becomes_clean().await.unwrap();
        Rows::of(&outcome.batches)
    }
}

#[test]
fn the_base_case_is_right_when_nulls_equal_nothing() {
    let anchor = |join_type| Anchor::base(join_type, NullEqualsNothing);
    anchor(Inner).gives("bx cx");
    anchor(Left).gives("a- bx cx d-");
    anchor(Right).gives("bx cx -w -y -z");
    anchor(Full).gives("bx cx a- d- -w -y -z");
    anchor(LeftSemi).gives("b c");
    anchor(LeftAnti).gives("a d");
    anchor(RightSemi).gives("x");
    anchor(RightAnti).gives("w y z");
    anchor(LeftMark).gives("aF bT cT dF");
    anchor(RightMark).gives("wF xT yF zF");
}

#[test]
fn the_base_case_is_right_when_nulls_equal_nulls() {
    let anchor = |join_type| Anchor::base(join_type, NullEqualsNull);
    anchor(Inner).gives("aw bx cx");
    anchor(Left).gives("aw bx cx d-");
    anchor(Right).gives("aw bx cx -y -z");
    anchor(Full).gives("aw bx cx d- -y -z");
    anchor(LeftSemi).gives("a b c");
    anchor(LeftAnti).gives("d");
    anchor(RightSemi).gives("w x");
    anchor(RightAnti).gives("y z");
    anchor(LeftMark).gives("aT bT cT dF");
    anchor(RightMark).gives("wT xT yF zF");
}

#[test]
fn a_filter_that_is_false_or_null_leaves_every_row_unmatched() {
    for filter in [FilterKind::AlwaysFalse, FilterKind::NullValued] {
        for null_equality in [NullEqualsNothing, NullEqualsNull] {
            let anchor = |join_type| Anchor {
                filter,
                ..Anchor::base(join_type, null_equality)
            };
            anchor(Inner).gives("");
            anchor(Left).gives("a- b- c- d-");
            anchor(Right).gives("-w -x -y -z");
            anchor(Full).gives("a- b- c- d- -w -x -y -z");
            anchor(LeftSemi).gives("");
            anchor(LeftAnti).gives("a b c d");
            anchor(RightSemi).gives("");
            anchor(RightAnti).gives("w x y z");
            anchor(LeftMark).gives("aF bF cF dF");
            anchor(RightMark).gives("wF xF yF zF");
        }
    }
}

/// The chain of key 1 is (b, 10) and (c, 20); only b passes `build.v < probe.v`.
#[test]
fn a_filter_between_the_sides_matches_one_row_of_a_chain() {
    let build: &Written = &[
        ("b", Some(1), Some(10)),
        ("c", Some(1), Some(20)),
        ("d", Some(2), Some(0)),
        ("e", Some(1), None),
    ];
    let probe: &Written = &[
        ("x", Some(1), Some(15)),
        ("y", Some(1), Some(5)),
        ("z", None, Some(99)),
    ];
    let anchor = |join_type| Anchor {
        build,
        probe,
        join_type,
        null_equality: NullEqualsNothing,
        filter: FilterKind::Both,
    };
    anchor(Inner).gives("bx");
    anchor(Left).gives("bx c- d- e-");
    anchor(Right).gives("bx -y -z");
    anchor(Full).gives("bx c- d- e- -y -z");
    anchor(LeftSemi).gives("b");
    anchor(LeftAnti).gives("c d e");
    anchor(RightSemi).gives("x");
    anchor(RightAnti).gives("y z");
    anchor(LeftMark).gives("bT cF dF eF");
    anchor(RightMark).gives("xT yF zF");
}

/// `build.v > 3` and `probe.v > 3` look at one side, whichever side the type keeps.
#[test]
fn a_filter_on_one_side_decides_about_pairs_not_about_rows() {
    let build: &Written = &[
        ("a", Some(1), Some(5)),
        ("b", Some(1), Some(0)),
        ("c", Some(9), Some(0)),
    ];
    let probe: &Written = &[("x", Some(1), Some(0)), ("y", Some(1), Some(8))];
    let anchor = |filter, join_type| Anchor {
        build,
        probe,
        join_type,
        null_equality: NullEqualsNothing,
        filter,
    };
    let left = |join_type| anchor(FilterKind::LeftOnly, join_type);
    left(Inner).gives("ax ay");
    left(Left).gives("ax ay b- c-");
    left(Right).gives("ax ay");
    left(RightSemi).gives("x y");
    left(RightAnti).gives("");
    left(LeftAnti).gives("b c");
    left(LeftMark).gives("aT bF cF");
    let right = |join_type| anchor(FilterKind::RightOnly, join_type);
    right(Inner).gives("ay by");
    right(Full).gives("ay by c- -x");
    right(LeftSemi).gives("a b");
    right(LeftAnti).gives("c");
    right(RightSemi).gives("y");
    right(RightAnti).gives("x");
    right(RightMark).gives("xF yT");
}

/// `10 / probe.v > build.v` would fail for x and d, whose keys match nothing.
#[test]
fn a_filter_is_not_asked_about_rows_whose_keys_do_not_match() {
    let build: &Written = &[("b", Some(1), Some(1)), ("d", Some(2), Some(0))];
    let probe: &Written = &[
        ("w", Some(1), Some(5)),
        ("x", Some(3), Some(0)),
        ("y", None, Some(0)),
    ];
    let anchor = |join_type| Anchor {
        build,
        probe,
        join_type,
        null_equality: NullEqualsNothing,
        filter: FilterKind::Division,
    };
    anchor(Inner).gives("bw");
    anchor(Full).gives("bw d- -x -y");
    anchor(LeftAnti).gives("d");
    anchor(RightAnti).gives("x y");
    anchor(RightMark).gives("wT xF yF");
}

#[test]
fn an_empty_side_leaves_the_other_side_unmatched() {
    let anchor = |build, probe, join_type| Anchor {
        build,
        probe,
        join_type,
        null_equality: NullEqualsNothing,
        filter: FilterKind::None,
    };
    let no_probe = |join_type| anchor(L, &[], join_type);
    no_probe(Inner).gives("");
    no_probe(Left).gives("a- b- c- d-");
    no_probe(Right).gives("");
    no_probe(Full).gives("a- b- c- d-");
    no_probe(LeftSemi).gives("");
    no_probe(LeftAnti).gives("a b c d");
    no_probe(LeftMark).gives("aF bF cF dF");
    no_probe(RightAnti).gives("");
    let no_build = |join_type| anchor(&[], R, join_type);
    no_build(Inner).gives("");
    no_build(Left).gives("");
    no_build(Right).gives("-w -x -y -z");
    no_build(Full).gives("-w -x -y -z");
    no_build(RightSemi).gives("");
    no_build(RightAnti).gives("w x y z");
    no_build(RightMark).gives("wF xF yF zF");
    no_build(LeftMark).gives("");
    anchor(&[], &[], Full).gives("");
}

/// NOT IN, in the oracle alone (`not_in` has the operator's): a NULL in the set makes every answer
/// unknown.
#[test]
fn the_oracle_knows_not_in() {
    let not_in = |probe: &Written| {
        let (build, probe) = (table(L), table(probe));
        let question = Question {
            build_schema: &build.schema,
            probe_schema: &probe.schema,
            build: &build.batches,
            probe: &probe.batches,
            on: &[(1, 1)],
            join_type: LeftAnti,
            null_equality: NullEqualsNothing,
            null_aware: true,
            filter: None,
            projection: Some(&[0]),
        };
        question.answer().unwrap()
    };
    assert_eq!(not_in(R), Rows::written(&[]));
    assert_eq!(not_in(&R[1..]), Rows::written(&["\"d\""]));
    assert_eq!(
        not_in(&[]),
        Rows::written(&["\"a\"", "\"b\"", "\"c\"", "\"d\""])
    );
}
