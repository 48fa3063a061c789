//! DataFusion's own `HashJoinExec`, without a limit: the second opinion.
//!
//! Holds the promise that the operator answers what the operator that it replaces answers, with
//! the same schema.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{JoinSide, Result, ScalarValue};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::joins::{HashJoinExecBuilder, PartitionMode};
use grace_hash_join::testing::{Case, FilterKind, Rows, Table};

/// What `HashJoinExec` gives.
pub(crate) struct Reference {
    pub schema: SchemaRef,
    pub rows: Rows,
}

/// Runs the case's join through `HashJoinExec`.
pub(crate) async fn run(case: &Case) -> Result<Reference> {
    run_columns(case, None).await
}

/// Runs the case's join, some of its columns, through `HashJoinExec`.
pub(crate) async fn run_columns(case: &Case, projection: Option<Vec<usize>>) -> Result<Reference> {
    run_tables(case, projection, case.tables()?).await
}

/// Runs the case's join of other inputs through `HashJoinExec`.
pub(crate) async fn run_tables(
    case: &Case,
    projection: Option<Vec<usize>>,
    (build, probe): (Table, Table),
) -> Result<Reference> {
    let on = (0..build.v).map(|key| (column(&build, key), column(&probe, key)));
    let join = HashJoinExecBuilder::new(
        source(&build)?,
        source(&probe)?,
        on.collect(),
        case.join_type,
    )
    .with_filter(filter(case.filter, &build, &probe))
    .with_projection(projection)
    .with_partition_mode(PartitionMode::CollectLeft)
    .with_null_equality(case.null_equality)
    .with_null_aware(case.null_aware)
    .build()?;
    let schema = join.schema();
    let batches =
        datafusion::physical_plan::collect(Arc::new(join), Arc::new(TaskContext::default()))
            .await?;
    Ok(Reference {
        schema,
        rows: Rows::of(&batches)?,
    })
}

fn source(table: &Table) -> Result<Arc<dyn ExecutionPlan>> {
    let partitions = [table.batches.clone()];
    Ok(MemorySourceConfig::try_new_exec(
        &partitions,
        Arc::clone(&table.schema),
        None,
    )?)
}

fn column(table: &Table, index: usize) -> PhysicalExprRef {
    Arc::new(Column::new(table.schema.field(index).name(), index))
}

/// The same filter as a physical expression over its own columns.
fn filter(kind: FilterKind, build: &Table, probe: &Table) -> Option<JoinFilter> {
    let sides = match kind {
        FilterKind::None => return None,
        FilterKind::LeftOnly => vec![JoinSide::Left],
        FilterKind::RightOnly => vec![JoinSide::Right],
        FilterKind::AlwaysFalse => vec![],
        _ => vec![JoinSide::Right, JoinSide::Left],
    };
    let table = |side: &JoinSide| {
        if *side == JoinSide::Left {
            build
        } else {
            probe
        }
    };
    let fields: Vec<_> = sides
        .iter()
        .map(|s| table(s).schema.field(table(s).v).clone())
        .collect();
    let value = |side: JoinSide| -> PhysicalExprRef {
        let index = sides
            .iter()
            .position(|s| *s == side)
            .expect("a side of the filter");
        Arc::new(Column::new(fields[index].name(), index))
    };
    let binary =
        |left, op, right| -> PhysicalExprRef { Arc::new(BinaryExpr::new(left, op, right)) };
    let expression = match kind {
        FilterKind::LeftOnly => binary(value(JoinSide::Left), Operator::Gt, lit(3_i32)),
        FilterKind::RightOnly => binary(value(JoinSide::Right), Operator::Gt, lit(3_i32)),
        FilterKind::Both => binary(value(JoinSide::Left), Operator::Lt, value(JoinSide::Right)),
        FilterKind::AlwaysFalse => lit(false),
        FilterKind::NullValued => lit(ScalarValue::Boolean(None)),
        other => unreachable!("{other:?} is for the operator alone"),
    };
    let indices = sides.iter().map(|side| ColumnIndex {
        index: table(side).v,
        side: *side,
    });
    Some(JoinFilter::new(
        expression,
        indices.collect(),
        Arc::new(Schema::new(fields.clone())),
    ))
}
