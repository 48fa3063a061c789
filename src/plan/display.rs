//! How the node reads in `EXPLAIN`: as `HashJoinExec` does, under its own name.

use std::fmt::{self, Display, Formatter};

use datafusion_common::{JoinType, NullEquality};
use datafusion_physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion_physical_plan::joins::HashJoinExec;
use datafusion_physical_plan::{DisplayFormatType, ExecutionPlan};

use crate::config::GraceHashJoinConfig;

/// Writes the join that `template` plans.
pub(crate) fn fmt_join(
    template: &HashJoinExec,
    config: &GraceHashJoinConfig,
    format: DisplayFormatType,
    f: &mut Formatter<'_>,
) -> fmt::Result {
    match format {
        DisplayFormatType::Default => fmt_line(template, f),
        DisplayFormatType::Verbose => {
            fmt_line(template, f)?;
            write!(
                f,
                ", fan_out={}, max_level={}, spill={:?}",
                config.fan_out(),
                config.max_level(),
                config.spill()
            )
        }
        DisplayFormatType::TreeRender => fmt_tree(template, f),
    }
}

fn fmt_line(join: &HashJoinExec, f: &mut Formatter<'_>) -> fmt::Result {
    let on = list(join.on.iter().map(|(l, r)| format!("({l}, {r})")));
    write!(
        f,
        "GraceHashJoinExec: mode={:?}, join_type={:?}, on=[{on}]",
        join.mode, join.join_type
    )?;
    if let Some(filter) = &join.filter {
        write!(f, ", filter={}", filter.expression())?;
    }
    if let Some(projection) = &join.projection {
        let schema = join.join_schema();
        let column = |index: &usize| match schema.fields().get(*index) {
            Some(field) => format!("{}@{index}", field.name()),
            None => format!("@{index}"),
        };
        write!(f, ", projection=[{}]", list(projection.iter().map(column)))?;
    }
    if join.null_equality == NullEquality::NullEqualsNull {
        write!(f, ", NullsEqual: true")?;
    }
    if let Some(fetch) = join.fetch() {
        write!(f, ", fetch={fetch}")?;
    }
    if join.null_aware {
        write!(f, ", null_aware")?;
    }
    Ok(())
}

fn fmt_tree(join: &HashJoinExec, f: &mut Formatter<'_>) -> fmt::Result {
    if join.join_type != JoinType::Inner {
        writeln!(f, "join_type={:?}", join.join_type)?;
    }
    let pair = |(l, r): &(PhysicalExprRef, PhysicalExprRef)| {
        format!("({} = {})", Sql(l.as_ref()), Sql(r.as_ref()))
    };
    writeln!(f, "on={}", list(join.on.iter().map(pair)))?;
    if join.null_equality == NullEquality::NullEqualsNull {
        writeln!(f, "NullsEqual: true")?;
    }
    if join.null_aware {
        writeln!(f, "null_aware")?;
    }
    if let Some(filter) = &join.filter {
        writeln!(f, "filter={filter}")?;
    }
    if let Some(fetch) = join.fetch() {
        writeln!(f, "fetch={fetch}")?;
    }
    Ok(())
}

/// An expression as SQL.
struct Sql<'a>(&'a dyn PhysicalExpr);

impl Display for Sql<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}

fn list(items: impl Iterator<Item = impl Display>) -> String {
    let items: Vec<String> = items.map(|i| i.to_string()).collect();
    items.join(", ")
}
