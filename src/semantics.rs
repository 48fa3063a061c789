//! What each join type means. The only place that matches on [`JoinType`].
//!
//! A join type is two answers: what becomes of the *pairs* of matching rows, and, for each side,
//! which of its *single rows* come out besides. Everything else (which sides may be skipped when
//! empty, whether the first match of a row is enough, whether match bits are needed) follows.
//!
//! | type | pairs | build rows | probe rows |
//! |---|---|---|---|
//! | Inner | yes | none | none |
//! | Left | yes | unmatched, NULL-extended | none |
//! | Right | yes | none | unmatched, NULL-extended |
//! | Full | yes | unmatched, NULL-extended | unmatched, NULL-extended |
//! | LeftSemi | no | matched | none |
//! | LeftAnti | no | unmatched | none |
//! | LeftMark | no | all, with a mark | none |
//! | RightSemi | no | none | matched |
//! | RightAnti | no | none | unmatched |
//! | RightMark | no | none | all, with a mark |
//!
//! The answers are per *side*, so they hold as well when a spilled pair is joined with its roles
//! swapped: the loaded side asks about its own rows, the streamed side about its own.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use datafusion_common::{JoinSide, JoinType};

/// One of the two inputs, by name and for ever: build is the left one, probe the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    /// The left input.
    Build,
    /// The right input.
    Probe,
}

impl Side {
    /// The name that goes into errors and descriptions of files.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Probe => "probe",
        }
    }

    /// The other one.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Build => Self::Probe,
            Self::Probe => Self::Build,
        }
    }

    /// From DataFusion's word for the same thing; `JoinSide::None` is neither.
    pub(crate) fn from_join_side(side: JoinSide) -> Option<Self> {
        match side {
            JoinSide::Left => Some(Self::Build),
            JoinSide::Right => Some(Self::Probe),
            JoinSide::None => None,
        }
    }
}

/// Which single rows of a side come out, besides the pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOutput {
    /// None.
    Nothing,
    /// Those with a match, once each.
    Matched,
    /// Those without a match; the other side's columns, if any are in the output, are NULL.
    Unmatched,
    /// All, each with a Boolean that says whether it has a match.
    Marked,
}

impl RowOutput {
    /// Whether a row without a match comes out.
    pub(crate) fn keeps_unmatched(self) -> bool {
        matches!(self, Self::Unmatched | Self::Marked)
    }
}

/// Where an output column, before the projection, comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputColumn {
    /// Column of an input, by its index there.
    Input(Side, usize),
    /// The mark.
    Mark,
}

/// A join type, as questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Semantics(JoinType);

impl Semantics {
    /// What a join is if nobody says.
    pub(crate) const DEFAULT: JoinType = JoinType::Inner;

    pub(crate) fn new(join_type: JoinType) -> Self {
        Self(join_type)
    }

    pub(crate) fn join_type(self) -> JoinType {
        self.0
    }

    /// Whether each pair of matching rows comes out.
    pub(crate) fn pairs(self) -> bool {
        matches!(
            self.0,
            JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full
        )
    }

    /// Which single rows of `side` come out.
    pub(crate) fn rows(self, side: Side) -> RowOutput {
        use JoinType::{
            Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi,
        };
        match (self.0, side) {
            (Inner, _)
            | (Left | LeftSemi | LeftAnti | LeftMark, Side::Probe)
            | (Right | RightSemi | RightAnti | RightMark, Side::Build) => RowOutput::Nothing,
            (LeftSemi, Side::Build) | (RightSemi, Side::Probe) => RowOutput::Matched,
            (Left | Full | LeftAnti, Side::Build) | (Right | Full | RightAnti, Side::Probe) => {
                RowOutput::Unmatched
            }
            (LeftMark, Side::Build) | (RightMark, Side::Probe) => RowOutput::Marked,
        }
    }

    /// Whether nothing comes out when `side` has no rows at all.
    pub(crate) fn nothing_without(self, side: Side) -> bool {
        !self.rows(side.other()).keeps_unmatched()
    }

    /// Whether the only output is NOT IN's: the one type that may be null-aware.
    pub(crate) fn may_be_null_aware(self) -> bool {
        matches!(self.0, JoinType::LeftAnti)
    }

    /// The output's columns before the projection, in order, with their fields.
    pub(crate) fn output(
        self,
        build: &SchemaRef,
        probe: &SchemaRef,
    ) -> (SchemaRef, Vec<OutputColumn>) {
        let side = |side: Side| match side {
            Side::Build => build,
            Side::Probe => probe,
        };
        let mut fields: Vec<FieldRef> = Vec::new();
        let mut columns = Vec::new();
        for from in self.output_sides() {
            // The other side's unmatched rows come out with this side's columns NULL.
            let null_extended = self.pairs() && !self.nothing_without(*from);
            for (index, field) in side(*from).fields().iter().enumerate() {
                fields.push(if null_extended && !field.is_nullable() {
                    Arc::new(field.as_ref().clone().with_nullable(true))
                } else {
                    Arc::clone(field)
                });
                columns.push(OutputColumn::Input(*from, index));
            }
        }
        if matches!(self.0, JoinType::LeftMark | JoinType::RightMark) {
            fields.push(Arc::new(Field::new("mark", DataType::Boolean, false)));
            columns.push(OutputColumn::Mark);
        }
        let schema = Schema::new_with_metadata(Fields::from(fields), self.metadata(build, probe));
        (Arc::new(schema), columns)
    }

    fn output_sides(self) -> &'static [Side] {
        match self.0 {
            JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => {
                &[Side::Build, Side::Probe]
            }
            JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => &[Side::Build],
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => &[Side::Probe],
        }
    }

    /// Both schemas' metadata; where keys clash, the side that the type is named after wins, as in
    /// DataFusion's `build_join_schema`.
    #[expect(
        clippy::disallowed_types,
        reason = "arrow keeps a schema's metadata in one"
    )]
    fn metadata(
        self,
        build: &SchemaRef,
        probe: &SchemaRef,
    ) -> std::collections::HashMap<String, String> {
        let (first, second) = match self.0 {
            JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
                (build, probe)
            }
            _ => (probe, build),
        };
        let mut all = first.metadata().clone();
        all.extend(second.metadata().clone());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [JoinType; 10] = [
        JoinType::Inner,
        JoinType::Left,
        JoinType::Right,
        JoinType::Full,
        JoinType::LeftSemi,
        JoinType::LeftAnti,
        JoinType::LeftMark,
        JoinType::RightSemi,
        JoinType::RightAnti,
        JoinType::RightMark,
    ];

    /// I1: the tables in this module's documentation and in `docs/semantics.md` are what the code
    /// answers, row by row and in order.
    #[test]
    fn the_tables_in_the_docs_are_what_the_code_answers() {
        let mut table = String::new();
        for join_type in ALL {
            let semantics = Semantics::new(join_type);
            let row = |side| match semantics.rows(side) {
                RowOutput::Nothing => "none",
                RowOutput::Matched => "matched",
                RowOutput::Unmatched if semantics.pairs() => "unmatched, NULL-extended",
                RowOutput::Unmatched => "unmatched",
                RowOutput::Marked => "all, with a mark",
            };
            let pairs = if semantics.pairs() { "yes" } else { "no" };
            let (build, probe) = (row(Side::Build), row(Side::Probe));
            let line = format!("| {join_type:?} | {pairs} | {build} | {probe} |\n");
            table.push_str(&line);
        }
        let code = include_str!("semantics.rs").replace("//! |", "|");
        assert!(code.contains(&table), "src/semantics.rs lacks:\n{table}");
        let docs = include_str!("../docs/semantics.md");
        assert!(docs.contains(&table), "docs/semantics.md lacks:\n{table}");
    }

    #[test]
    fn an_empty_side_ends_only_the_types_that_keep_nothing_of_the_other() {
        let ends = |side| {
            ALL.into_iter()
                .filter(|t| Semantics::new(*t).nothing_without(side))
                .collect::<Vec<_>>()
        };
        let names = |side| format!("{:?}", ends(side));
        assert_eq!(
            names(Side::Build),
            "[Inner, Left, LeftSemi, LeftAnti, LeftMark, RightSemi]"
        );
        assert_eq!(
            names(Side::Probe),
            "[Inner, Right, LeftSemi, RightSemi, RightAnti, RightMark]"
        );
    }

    #[test]
    fn where_both_schemas_metadata_clash_the_side_that_the_type_is_named_after_wins() {
        let schema = |side: &str| {
            let own = (side.to_string(), side.to_string());
            let both = ("both".to_string(), side.to_string());
            Arc::new(Schema::new_with_metadata(
                Fields::empty(),
                [own, both].into(),
            ))
        };
        for join_type in ALL {
            let (output, _) = Semantics::new(join_type).output(&schema("left"), &schema("right"));
            let is_of_the_right = format!("{join_type:?}").starts_with("Right");
            let winner = if is_of_the_right { "right" } else { "left" };
            let expected = [("both", winner), ("left", "left"), ("right", "right")];
            let text = |(key, value): (&str, &str)| (key.to_string(), value.to_string());
            assert_eq!(
                *output.metadata(),
                expected.map(text).into(),
                "{join_type:?}"
            );
        }
    }
}
