//! Inputs as tests to paste: a derived `Debug` names variants without their enum.

use std::fmt;

use super::super::data::TableSpec;

/// A test function around an expression for an input.
pub(super) fn test(f: &mut fmt::Formatter<'_>, target: &str, input: fmt::Arguments) -> fmt::Result {
    write!(
        f,
        "#[tokio::test]
async fn found_by_{target}() {{
    use datafusion_common::{{JoinType, NullEquality}};
    use grace_hash_join::{{SpillCodec, SpillPolicy, testing::*}};
    use grace_hash_join::testing::{{faults::Refusal, fuzz::*}};
    let input = {input};
    input.check().await.unwrap();
}}"
    )
}

/// An expression for a table's specification.
pub(super) fn table(spec: &TableSpec) -> String {
    let TableSpec {
        rows,
        spread,
        null_percent,
        layout,
        width,
        names,
    } = spec;
    format!(
        "TableSpec {{ rows: {rows}, spread: Spread::{spread:?}, null_percent: {null_percent}, \
         layout: Layout::{layout:?}, width: {width}, names: Names::{names:?} }}"
    )
}
