//! The promise: in a plan the node is what `HashJoinExec` is, but for its name, its memory and its
//! order; and the options are set and shown as DataFusion's own are.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking, helpers included"
)]
#![expect(clippy::excessive_nesting, reason = "each axis of a case is a loop")]

mod planning;

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinSide, JoinType, NullEquality, Result};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, DynamicFilterPhysicalExpr, col, lit,
};
use datafusion::physical_expr::{Distribution, PhysicalExpr};
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::execution_plan::{CardinalityEffect, reset_plan_states};
use datafusion::physical_plan::filter_pushdown::FilterPushdownPhase;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning, collect};
use datafusion::prelude::ParquetReadOptions;
use grace_hash_join::{GraceHashJoinConfig, GraceHashJoinExec, SpillPolicy, rewrite_task_plan};
use planning::{Place, Session, count, decisions, plan, rows, schema, text, unknown};

const GRACE: &[(&str, &str)] = &[("algorithm", "grace"), ("select", "always")];

/// A side: sorted by `v`, in `partitions` partitions by `k`.
fn side(partitions: usize) -> Result<Arc<dyn ExecutionPlan>> {
    let source = Arc::new(EmptyExec::new(schema()));
    let by = Partitioning::Hash(vec![col("k", &schema())?], partitions);
    let input = Arc::new(RepartitionExec::try_new(source, by)?);
    let order = [datafusion::physical_expr::PhysicalSortExpr::new_default(
        col("v", &schema())?,
    )];
    let order = datafusion::physical_expr::LexOrdering::new(order).unwrap();
    Ok(Arc::new(
        SortExec::new(order, input).with_preserve_partitioning(partitions > 1),
    ))
}

/// A join that carries everything that a hash join can carry.
fn full_join(partitions: usize, mode: PartitionMode) -> Result<HashJoinExec> {
    let on = vec![(col("k", &schema())?, col("k", &schema())?)];
    let sides = [(2, JoinSide::Right), (1, JoinSide::Left)];
    let columns = sides
        .map(|(index, side)| ColumnIndex { index, side })
        .to_vec();
    let fields = [schema().field(2).clone(), schema().field(1).clone()].to_vec();
    let filter = JoinFilter::new(
        Arc::new(BinaryExpr::new(
            Arc::new(Column::new("f", 0)),
            Operator::Gt,
            lit(1.5),
        )),
        columns,
        Arc::new(arrow::datatypes::Schema::new(fields)),
    );
    let (left, right) = (side(partitions)?, side(partitions)?);
    let keys = vec![col("k", &schema())?];
    let dynamic = Arc::new(DynamicFilterPhysicalExpr::new(keys, lit(true)));
    let join = HashJoinExec::try_new(
        left,
        right,
        on,
        Some(filter),
        &JoinType::Inner,
        Some(vec![4, 0]),
        mode,
        NullEquality::NullEqualsNull,
        false,
    )?;
    let join = join.builder().with_fetch(Some(9)).build()?;
    join.with_dynamic_filter_expr(dynamic)
}

fn node(join: &HashJoinExec) -> Result<Arc<dyn ExecutionPlan>> {
    Ok(Arc::new(GraceHashJoinExec::try_from_hash_join(join)?))
}

fn line(plan: &dyn ExecutionPlan) -> String {
    let text = DisplayableExecutionPlan::new(plan).one_line().to_string();
    text.trim().to_string()
}

/// A plan as a tree, with the node under the name of the hash join, without what a name's length
/// moves.
fn tree(plan: &dyn ExecutionPlan) -> String {
    let tree = DisplayableExecutionPlan::new(plan)
        .tree_render()
        .to_string();
    tree.replace("GraceHashJoinExec", "HashJoinExec     ")
        .replace([' ', '│'], "")
}

fn filter_ids(plan: &dyn ExecutionPlan) -> Vec<Option<u64>> {
    let produced = plan.dynamic_expressions_produced();
    produced.iter().map(|e| e.expression_id()).collect()
}

/// That `plan` is the node for `join`, whatever was done to it.
fn assert_carries(plan: &Arc<dyn ExecutionPlan>, join: &HashJoinExec) {
    assert_eq!(
        line(plan.as_ref()),
        line(join).replacen("HashJoin", "GraceHashJoin", 1)
    );
    assert_eq!(plan.schema(), join.schema());
    assert_eq!(plan.fetch(), join.fetch());
    assert_eq!(filter_ids(plan.as_ref()), filter_ids(join));
    assert_eq!(filter_ids(join).len(), 1);
}

#[test]
fn nothing_that_the_hash_join_carried_is_lost() -> Result<()> {
    let join = full_join(3, PartitionMode::Partitioned)?;
    let node = node(&join)?;
    assert_carries(&node, &join);
    let children = node.children().into_iter().map(Arc::clone).collect();
    #[expect(deprecated, reason = "callers still call it")]
    let same = Arc::clone(&node).with_new_children(children)?;
    assert_carries(&same, &join);
    let others = vec![side(5)?, side(5)?];
    let other = datafusion::physical_plan::execution_plan::replace_children_if_necessary(
        Arc::clone(&node),
        others,
    )?;
    assert_carries(&other, &join);
    assert_eq!(other.output_partitioning().partition_count(), 5);
    assert_carries(&reset_plan_states(Arc::clone(&node))?, &join);
    let fetched = node.with_fetch(Some(3)).unwrap();
    assert_eq!(fetched.fetch(), Some(3));
    assert_carries(&fetched.with_fetch(Some(9)).unwrap(), &join);
    Ok(())
}

#[test]
fn it_reads_like_a_hash_join_in_all_formats() -> Result<()> {
    let join = full_join(2, PartitionMode::Partitioned)?;
    let node = node(&join)?;
    let shown = line(node.as_ref());
    assert_eq!(
        shown,
        "GraceHashJoinExec: mode=Partitioned, join_type=Inner, on=[(k@0, k@0)], filter=f@0 > 1.5, \
         projection=[v@4, k@0], NullsEqual: true, fetch=9"
    );
    let verbose = DisplayableExecutionPlan::new(node.as_ref())
        .indent(true)
        .to_string();
    assert!(
        verbose.contains("fan_out=16, max_level=6, spill=Pressure"),
        "{verbose}"
    );
    assert_eq!(tree(node.as_ref()), tree(&join));
    Ok(())
}

#[test]
fn no_order_is_promised_and_all_else_is_as_before() -> Result<()> {
    let join = full_join(3, PartitionMode::Partitioned)?;
    assert!(join.properties().output_ordering().is_some());
    let node = node(&join)?;
    assert_eq!(node.maintains_input_order(), [false, false]);
    assert!(node.output_ordering().is_none());
    assert!(node.equivalence_properties().oeq_class().is_empty());
    let properties = join.properties();
    assert_eq!(node.output_partitioning(), properties.output_partitioning());
    assert_eq!(node.boundedness(), properties.boundedness);
    assert_eq!(node.pipeline_behavior(), properties.emission_type);
    assert_eq!(
        node.equivalence_properties().eq_group().to_string(),
        properties.equivalence_properties().eq_group().to_string()
    );
    let per_child = node.input_distribution_requirements().into_per_child();
    assert!(
        per_child
            .iter()
            .all(|d| matches!(d, Distribution::KeyPartitioned(_)))
    );
    assert_eq!(node.benefits_from_input_partitioning(), [true, true]);
    assert!(node.downcast_ref::<HashJoinExec>().is_none());
    node.check_invariants(datafusion::physical_plan::execution_plan::InvariantLevel::Executable)
}

/// A join of this type that carries a filter, and a dynamic filter where it may.
fn typed_join(join_type: JoinType, mode: PartitionMode) -> Result<HashJoinExec> {
    let partitions = if mode == PartitionMode::Partitioned {
        3
    } else {
        1
    };
    let like = full_join(partitions, mode)?;
    HashJoinExec::try_new(
        Arc::clone(like.left()),
        Arc::clone(like.right()),
        like.on().to_vec(),
        like.filter().cloned(),
        &join_type,
        None,
        mode,
        NullEquality::NullEqualsNothing,
        false,
    )
}

/// What a node lets pass of filters on its output, and what it sends down by itself.
fn pushdown(plan: &dyn ExecutionPlan, phase: FilterPushdownPhase) -> Result<String> {
    let schema = plan.schema();
    let of_each_column = (0..schema.fields().len()).map(|index| {
        let column = Arc::new(Column::new(schema.field(index).name(), index));
        datafusion::physical_expr::expressions::is_not_null(column)
    });
    let filters = of_each_column.collect::<Result<Vec<_>>>()?;
    let config = ConfigOptions::new();
    let description = plan.gather_filters_for_pushdown(phase, filters, &config)?;
    let own = description.self_filters();
    let own: Vec<Vec<String>> = own
        .iter()
        .map(|filters| filters.iter().map(ToString::to_string).collect())
        .collect();
    Ok(format!("{:?} {own:?}", description.parent_filters()))
}

const TYPES: [JoinType; 10] = [
    JoinType::Inner,
    JoinType::Left,
    JoinType::Right,
    JoinType::Full,
    JoinType::LeftSemi,
    JoinType::RightSemi,
    JoinType::LeftAnti,
    JoinType::RightAnti,
    JoinType::LeftMark,
    JoinType::RightMark,
];

#[test]
fn every_type_in_every_mode_plans_as_the_hash_join_does() -> Result<()> {
    let config = ConfigOptions::new();
    for join_type in TYPES {
        for mode in [PartitionMode::Partitioned, PartitionMode::CollectLeft] {
            let join = typed_join(join_type, mode)?;
            let node = node(&join)?;
            let context = format!("{join_type} {mode:?}");
            assert_eq!(node.schema(), join.schema(), "{context}");
            let (ours, theirs) = (node.properties(), join.properties());
            assert_eq!(
                ours.output_partitioning().to_string(),
                theirs.output_partitioning().to_string(),
                "{context}"
            );
            assert_eq!(ours.emission_type, theirs.emission_type, "{context}");
            assert_eq!(ours.boundedness, theirs.boundedness, "{context}");
            assert_eq!(ours.scheduling_type, theirs.scheduling_type, "{context}");
            assert_eq!(ours.evaluation_type, theirs.evaluation_type, "{context}");
            for phase in [FilterPushdownPhase::Pre, FilterPushdownPhase::Post] {
                let theirs = pushdown(&join, phase)?;
                assert_eq!(pushdown(node.as_ref(), phase)?, theirs, "{context}");
            }
            for partition in [None, Some(0)] {
                let theirs = join.child_stats_requests(partition);
                assert_eq!(node.child_stats_requests(partition), theirs, "{context}");
            }
            let expressions = |plan: &dyn ExecutionPlan| {
                let mut seen = vec![];
                plan.apply_expressions(&mut |e| {
                    seen.push(e.to_string());
                    Ok(TreeNodeRecursion::Continue)
                })?;
                Ok::<_, datafusion::error::DataFusionError>(seen)
            };
            assert_eq!(expressions(node.as_ref())?, expressions(&join)?);
            assert_eq!(
                node.supports_limit_pushdown(),
                join.supports_limit_pushdown()
            );
            let effects = [node.cardinality_effect(), join.cardinality_effect()];
            assert!(
                effects
                    .iter()
                    .all(|e| matches!(e, CardinalityEffect::Unknown))
            );
            assert_eq!(
                node.required_input_ordering(),
                join.required_input_ordering()
            );
            assert!(node.repartitioned(7, &config)?.is_none());
            assert!(join.repartitioned(7, &config)?.is_none());
        }
    }
    Ok(())
}

#[test]
fn partitions_that_do_not_belong_together_are_refused_when_it_runs() -> Result<()> {
    let node = node(&full_join(3, PartitionMode::Partitioned)?)?;
    let uneven = datafusion::physical_plan::execution_plan::replace_children_if_necessary(
        node,
        vec![side(3)?, side(2)?],
    )?;
    let ctx = Session::new(Place::Nowhere, &[]).open()?;
    let Err(error) = uneven.execute(0, ctx.task_ctx()) else {
        return datafusion::common::internal_err!("it runs");
    };
    assert!(error.to_string().contains("3 and 2 partitions"), "{error}");
    Ok(())
}

#[test]
fn a_collected_build_side_requires_one_partition_of_both_sides() -> Result<()> {
    let join = full_join(1, PartitionMode::CollectLeft)?;
    let node = node(&join)?;
    let per_child = node.input_distribution_requirements().into_per_child();
    assert!(
        per_child
            .iter()
            .all(|d| matches!(d, Distribution::SinglePartition))
    );
    assert_eq!(node.benefits_from_input_partitioning(), [false, false]);
    Ok(())
}

#[test]
fn enforcement_does_not_widen_a_probe_side_that_was_one_partition() -> Result<()> {
    let mut session = Session::new(Place::Early, GRACE);
    session.partitions = 1;
    let ctx = session.open()?;
    let state = ctx.state_ref();
    state
        .write()
        .config_mut()
        .options_mut()
        .execution
        .target_partitions = 4;
    state
        .write()
        .config_mut()
        .options_mut()
        .optimizer
        .repartition_joins = false;
    let (plan, _) = decisions(plan(&ctx, "SELECT l.v FROM l JOIN r ON l.k = r.k"))?;
    let text = text(&plan);
    assert!(
        text.contains("GraceHashJoinExec: mode=CollectLeft"),
        "{text}"
    );
    assert_eq!(count(&text, "RepartitionExec"), 0, "{text}");
    Ok(())
}

#[test]
fn what_it_cannot_join_is_a_plan_error() -> Result<()> {
    let refuse = |join: &HashJoinExec, reason: &str| {
        let error = GraceHashJoinExec::try_from_hash_join(join)
            .unwrap_err()
            .to_string();
        assert!(error.contains("Error during planning"), "{error}");
        assert!(error.contains(reason), "{error}");
    };
    let join = |left, right, mode, join_type, is_null_aware| {
        let on = vec![(col("k", &schema())?, col("k", &schema())?)];
        let nulls = NullEquality::NullEqualsNothing;
        HashJoinExec::try_new(
            left,
            right,
            on,
            None,
            &join_type,
            None,
            mode,
            nulls,
            is_null_aware,
        )
    };
    let (one, two) = (unknown(1)?, unknown(2)?);
    let left = || Arc::clone(&one);
    let anti = join(
        left(),
        left(),
        PartitionMode::Partitioned,
        JoinType::LeftAnti,
        true,
    )?;
    refuse(&anti, "null-aware");
    let shared = join(
        left(),
        Arc::clone(&two),
        PartitionMode::CollectLeft,
        JoinType::LeftAnti,
        true,
    )?;
    refuse(&shared, "1 build and 2 probe partitions");
    let auto = join(left(), left(), PartitionMode::Auto, JoinType::Inner, false)?;
    refuse(&auto, "mode=Auto");
    let shared = join(
        left(),
        two,
        PartitionMode::CollectLeft,
        JoinType::Inner,
        false,
    )?;
    refuse(&shared, "1 build and 2 probe partitions");
    Ok(())
}

/// NOT IN, in one partition, with a filter if that is asked for.
fn null_aware_join(filter: Option<JoinFilter>) -> Result<HashJoinExec> {
    let keys = vec![col("k", &schema())?];
    let join = HashJoinExec::try_new(
        side(1)?,
        side(1)?,
        vec![(Arc::clone(&keys[0]), Arc::clone(&keys[0]))],
        filter,
        &JoinType::LeftAnti,
        Some(vec![2, 0]),
        PartitionMode::CollectLeft,
        NullEquality::NullEqualsNothing,
        true,
    )?;
    let join = join.builder().with_fetch(Some(9)).build()?;
    join.with_dynamic_filter_expr(Arc::new(DynamicFilterPhysicalExpr::new(keys, lit(true))))
}

#[test]
fn a_null_aware_join_stays_one_whatever_is_done_to_it() -> Result<()> {
    let join = null_aware_join(full_join(1, PartitionMode::CollectLeft)?.filter.clone())?;
    let node = node(&join)?;
    let shown = line(node.as_ref());
    assert!(shown.ends_with(", fetch=9, null_aware"), "{shown}");
    assert_carries(&node, &join);
    let others = vec![side(1)?, side(1)?];
    let other = datafusion::physical_plan::execution_plan::replace_children_if_necessary(
        Arc::clone(&node),
        others,
    )?;
    assert_carries(&other, &join);
    assert_carries(&reset_plan_states(Arc::clone(&node))?, &join);
    let fetched = node.with_fetch(Some(3)).unwrap();
    assert_carries(&fetched.with_fetch(Some(9)).unwrap(), &join);
    assert_eq!(tree(node.as_ref()), tree(&join));
    assert!(tree(&join).contains("null_aware"));
    let per_child = node.input_distribution_requirements().into_per_child();
    let single = |d: &Distribution| matches!(d, Distribution::SinglePartition);
    assert!(per_child.iter().all(single));
    Ok(())
}

#[test]
fn a_null_aware_join_s_projection_is_embedded_as_in_a_hash_join() -> Result<()> {
    let join = null_aware_join(None)?.builder().with_projection(None);
    let join = join.with_fetch(None).build()?;
    let node = node(&join)?;
    let join: Arc<dyn ExecutionPlan> = Arc::new(join);
    for indices in [&[2, 0][..], &[], &[1]] {
        let swapped = |plan: &Arc<dyn ExecutionPlan>| {
            plan.try_swapping_with_projection(&columns(indices, plan)?)
        };
        let ours = swapped(&node)?.map(|p| text(&p).replace("GraceHashJoin", "HashJoin"));
        assert!(
            ours.as_ref().is_none_or(|p| p.contains("null_aware")),
            "{ours:?}"
        );
        assert_eq!(ours, swapped(&join)?.map(|p| text(&p)), "{indices:?}");
    }
    Ok(())
}

#[test]
fn statistics_are_those_of_the_hash_join() -> Result<()> {
    let ctx = Session::new(Place::Nowhere, &[]).open()?;
    let (plan, _) = decisions(plan(&ctx, "SELECT l.v, r.v FROM l JOIN r ON l.k = r.k"))?;
    let join = plan.downcast_ref::<HashJoinExec>().unwrap();
    let node = node(join)?;
    for partition in [None, Some(0)] {
        let args = StatisticsArgs::new().with_partition(partition);
        let of = |plan: &dyn ExecutionPlan| StatisticsContext::new().compute(plan, &args);
        assert_eq!(of(node.as_ref())?, of(join)?);
    }
    Ok(())
}

/// These columns of a plan, by a projection.
fn columns(indices: &[usize], plan: &Arc<dyn ExecutionPlan>) -> Result<ProjectionExec> {
    let column = |i: &usize| {
        let name = plan.schema().field(*i).name().clone();
        let expr: Arc<dyn PhysicalExpr> = Arc::new(Column::new(&name, *i));
        ProjectionExpr { expr, alias: name }
    };
    let columns = indices.iter().map(column).collect::<Vec<_>>();
    ProjectionExec::try_new(columns, Arc::clone(plan))
}

#[test]
fn a_projection_is_embedded_as_in_a_hash_join() -> Result<()> {
    let join = full_join(2, PartitionMode::Partitioned)?;
    let join = join
        .builder()
        .with_projection(None)
        .with_fetch(None)
        .build()?;
    let node = node(&join)?;
    let join: Arc<dyn ExecutionPlan> = Arc::new(join);
    for indices in [&[4, 1, 2][..], &[], &[5, 4, 3, 2, 1, 0]] {
        let ours = node.try_swapping_with_projection(&columns(indices, &node)?)?;
        let theirs = join.try_swapping_with_projection(&columns(indices, &join)?)?;
        let ours = ours.map(|p| text(&p).replace("GraceHashJoin", "HashJoin"));
        assert_eq!(ours, theirs.map(|p| text(&p)), "{indices:?}");
    }
    Ok(())
}

#[test]
fn the_configuration_stays_with_the_node_but_for_its_partitions() -> Result<()> {
    let join = full_join(3, PartitionMode::Partitioned)?;
    let config = GraceHashJoinConfig::builder()
        .with_fan_out(4)
        .with_spill(SpillPolicy::Half)
        .build()?;
    let node = GraceHashJoinExec::try_from_hash_join(&join)?.with_config(&config)?;
    let node: Arc<dyn ExecutionPlan> = Arc::new(node);
    let check = |plan: &Arc<dyn ExecutionPlan>, partitions| {
        let config = plan.downcast_ref::<GraceHashJoinExec>().unwrap().config();
        assert_eq!((config.fan_out(), config.spill()), (4, SpillPolicy::Half));
        assert_eq!(config.partitions(), partitions);
    };
    check(&node, 3);
    check(&node.with_fetch(Some(1)).unwrap(), 3);
    let wider = datafusion::physical_plan::execution_plan::replace_children_if_necessary(
        node,
        vec![side(7)?, side(7)?],
    )?;
    check(&wider, 7);
    Ok(())
}

#[tokio::test]
async fn options_are_set_and_shown() -> Result<()> {
    let ctx = Session::new(Place::Early, &[]).open()?;
    let good = [
        ("enabled", "false", "maybe", "true or false"),
        ("algorithm", "grace", "hash", "one of: grace, sort_merge"),
        (
            "select",
            "capped",
            "some",
            "one of: estimated, capped, always",
        ),
        ("repartition_collect_left", "true", "yes", "true or false"),
        ("build_bytes", "4096", "-1", "a number of bytes"),
        ("fan_out", "32", "33", "a power of two from 2 to 256"),
        ("max_level", "3", "300", "a number from 0 to 255"),
        ("spill", "half", "none", "one of: pressure, half, all"),
        (
            "compression",
            "zstd",
            "gzip",
            "one of: inherit, uncompressed, lz4_frame, zstd",
        ),
    ];
    let listed = "SELECT name, value FROM information_schema.df_settings \
                  WHERE name LIKE 'grace_hash_join.%'";
    ctx.sql("SET datafusion.catalog.information_schema = true")
        .await?;
    assert_eq!(rows(&ctx, listed).await?.len(), good.len() + 4);
    for (key, value, bad, list) in good {
        let set = |v: &str| format!("SET grace_hash_join.{key} = '{v}'");
        ctx.sql(&set(value)).await?;
        let shown = rows(&ctx, &format!("SHOW grace_hash_join.{key}")).await?;
        assert!(shown.iter().any(|l| l.contains(value)), "{shown:?}");
        let listed = rows(&ctx, listed).await?;
        let line = listed
            .iter()
            .find(|l| l.contains(&format!(".{key} ")))
            .unwrap();
        assert!(line.contains(value), "{line}");
        let error = ctx.sql(&set(bad)).await.unwrap_err().to_string();
        assert!(error.contains(list), "{error}");
        let shown = rows(&ctx, &format!("SHOW grace_hash_join.{key}")).await?;
        assert!(shown.iter().any(|l| l.contains(value)), "{shown:?}");
    }
    let error = ctx.sql("SET grace_hash_join.fanout = 2").await.unwrap_err();
    assert!(
        error.to_string().contains("there are: enabled, algorithm"),
        "{error}"
    );
    Ok(())
}

#[test]
fn an_option_may_be_set_with_and_without_its_prefix() -> Result<()> {
    use datafusion::config::ExtensionOptions;
    let mut options = grace_hash_join::GraceHashJoinOptions::default();
    for entry in options.entries() {
        options.set(&entry.key, &entry.value.unwrap())?;
    }
    options.set("grace_hash_join.fan_out", "8")?;
    let mut config = ConfigOptions::new();
    config.extensions.insert(options);
    config.set("grace_hash_join.max_level", "2")?;
    let values: Vec<_> = config
        .entries()
        .into_iter()
        .filter_map(|e| Some((e.key, e.value?)))
        .collect();
    for (key, value) in [("fan_out", "8"), ("max_level", "2")] {
        let key = format!("grace_hash_join.{key}");
        assert!(values.contains(&(key, value.to_string())));
    }
    Ok(())
}

#[tokio::test]
async fn it_executes_twice_and_counts_what_it_did() -> Result<()> {
    for (spill, join) in [("pressure", "JOIN"), ("all", "FULL JOIN")] {
        let mut options = GRACE.to_vec();
        options.push(("spill", spill));
        let mut session = Session::new(Place::Early, &options);
        // DataFusion's own exchanges do not execute twice.
        session.partitions = 1;
        let ctx = session.open()?;
        let sql = format!("SELECT l.k, r.v FROM l {join} r ON l.k = r.k");
        let plan = plan(&ctx, &sql).await?;
        let node = plan.downcast_ref::<GraceHashJoinExec>().unwrap();
        let mut lengths = vec![];
        for _ in 0..2 {
            let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
            lengths.push(batches.iter().map(RecordBatch::num_rows).sum::<usize>());
        }
        assert_eq!(lengths[0], lengths[1]);
        let metrics = node.metrics().unwrap();
        assert_eq!(metrics.output_rows(), Some(lengths[0] * 2));
        let value = |name| metrics.sum_by_name(name).map(|m| m.as_usize());
        assert_eq!(value("build_input_rows"), Some(200));
        assert_eq!(value("input_rows"), Some(2000));
        let has_spilled = spill == "all";
        assert_eq!(metrics.spill_count().unwrap() > 0, has_spilled);
        assert_eq!(metrics.spilled_bytes().unwrap() > 0, has_spilled);
        assert_eq!(metrics.spilled_rows().unwrap() > 0, has_spilled);
        let again = reset_plan_states(Arc::clone(&plan))?;
        assert_eq!(again.metrics().unwrap().output_rows(), None);
        let batches = collect(again, ctx.task_ctx()).await?;
        assert_eq!(
            batches.iter().map(RecordBatch::num_rows).sum::<usize>(),
            lengths[0]
        );
    }
    Ok(())
}

/// A session with a Parquet file `p` of 20,000 rows in 20 row groups, sorted by `k`.
async fn with_parquet(
    session: &Session,
    directory: &tempfile::TempDir,
) -> Result<datafusion::prelude::SessionContext> {
    let ctx = session.open()?;
    let path = directory.path().join("p.parquet");
    let path = path.to_str().unwrap();
    if !std::path::Path::new(path).exists() {
        ctx.register_table("b", Arc::new(planning::table(20_000, 1, 1)?))?;
        let options = "'format.max_row_group_size' 1000";
        let copy = format!("COPY (SELECT * FROM b ORDER BY f) TO '{path}' OPTIONS ({options})");
        ctx.sql(&copy).await?.collect().await?;
    }
    ctx.register_parquet("p", path, ParquetReadOptions::default())
        .await?;
    Ok(ctx)
}

/// A number out of the scans' metrics, as they are shown: the word before `unit`.
fn scanned(plan: &Arc<dyn ExecutionPlan>, name: &str, unit: &str) -> usize {
    let mut sum = 0;
    plan.apply(|node| {
        let metrics = node.metrics().filter(|_| node.name() == "DataSourceExec");
        for metric in metrics.iter().flat_map(MetricsSet::iter) {
            if metric.value().name() == name {
                let shown = metric.value().to_string();
                let words: Vec<_> = shown.split_whitespace().collect();
                let at = words.iter().position(|w| *w == unit).unwrap_or(words.len());
                sum += words[at - 1].parse::<usize>().unwrap();
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    sum
}

fn push_filters_into_scans(ctx: &datafusion::prelude::SessionContext) {
    let state = ctx.state_ref();
    let mut state = state.write();
    let options = state.config_mut().options_mut();
    options.execution.parquet.pushdown_filters = true;
}

#[tokio::test]
async fn scans_below_it_skip_what_they_skip_below_a_hash_join() -> Result<()> {
    let directory = tempfile::tempdir()?;
    for join in ["JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"] {
        for spill in ["pressure", "all"] {
            let sql = format!("SELECT l.k, l.v FROM l {join} p ON l.k = p.k");
            let mut options = GRACE.to_vec();
            options.push(("spill", spill));
            let mut outcomes = vec![];
            for place in [Place::Nowhere, Place::Early, Place::Appended] {
                let session = Session::new(place, &options);
                let ctx = with_parquet(&session, &directory).await?;
                push_filters_into_scans(&ctx);
                let plan = plan(&ctx, &sql).await?;
                let name = if place == Place::Nowhere {
                    "HashJoinExec"
                } else {
                    "GraceHashJoinExec"
                };
                assert_eq!(count(&text(&plan), name), 1, "{}", text(&plan));
                let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
                let rows = batches.iter().map(RecordBatch::num_rows).sum::<usize>();
                let read = scanned(&plan, "row_groups_pruned_statistics", "matched");
                outcomes.push((rows, read, scanned(&plan, "output_rows", "")));
            }
            let (rows, read, passed) = outcomes[0];
            assert!(read > 0 && read <= 20);
            for ours in &outcomes[1..] {
                // Plain bounds prune row groups that HashJoinExec's CASE does not.
                assert_eq!(ours.0, rows, "{sql}");
                assert!(ours.1 <= read && ours.1 < 3, "{sql}: {outcomes:?}");
                assert!(ours.2 <= passed && ours.2 < 1000, "{sql}: {outcomes:?}");
            }
        }
    }
    Ok(())
}

/// The filter of a NOT IN leaves the scan every NULL, and is not there at all where it could make the
/// probe side look empty to a build row with a NULL key.
#[tokio::test]
async fn scans_below_a_not_in_never_skip_what_decides_it() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let never_null = "SELECT v FROM (SELECT COALESCE(k, 1) k, v FROM l) l";
    let any = "SELECT v FROM l";
    let queries = [
        (never_null, "SELECT k FROM p", true),
        (never_null, "SELECT k FROM p WHERE f < 3", true),
        (
            never_null,
            "SELECT k FROM p WHERE f > 10000 AND v <> 3",
            true,
        ),
        (any, "SELECT k FROM p WHERE f > 10001 AND f < 10005", false),
        (any, "SELECT k FROM p WHERE f > 10000", false),
        (any, "SELECT k FROM p WHERE f < 0", false),
    ];
    let mut counts = vec![];
    for (build, set, is_filtered) in queries {
        let sql = format!("{build} WHERE k NOT IN ({set})");
        let mut outcomes = vec![];
        for (place, spill) in [
            (Place::Nowhere, "all"),
            (Place::Early, "pressure"),
            (Place::Early, "all"),
            (Place::Appended, "all"),
        ] {
            let mut options = GRACE.to_vec();
            options.push(("spill", spill));
            let mut session = Session::new(place, &options);
            session.partitions = 1;
            let ctx = with_parquet(&session, &directory).await?;
            push_filters_into_scans(&ctx);
            let is_ours = place != Place::Nowhere;
            if !is_ours {
                let state = ctx.state_ref();
                let mut state = state.write();
                let optimizer = &mut state.config_mut().options_mut().optimizer;
                optimizer.enable_join_dynamic_filter_pushdown = false;
            }
            let plan = plan(&ctx, &sql).await?;
            let shown = text(&plan);
            assert_eq!(shown.contains("GraceHashJoinExec"), is_ours, "{shown}");
            assert!(shown.contains("null_aware"), "{shown}");
            let has_filter = shown.contains("DynamicFilter");
            assert_eq!(has_filter, is_filtered && is_ours, "{shown}");
            let batches = collect(plan, ctx.task_ctx()).await?;
            outcomes.push(batches.iter().map(RecordBatch::num_rows).sum::<usize>());
        }
        assert!(
            outcomes.iter().all(|rows| *rows == outcomes[0]),
            "{sql}: {outcomes:?}"
        );
        counts.push(outcomes[0]);
    }
    let distinct: std::collections::BTreeSet<_> = counts.iter().collect();
    assert!(
        distinct.len() > 3,
        "all, some and no rows are to come out: {counts:?}"
    );
    Ok(())
}

#[tokio::test]
async fn streams_that_are_dropped_unpolled_hold_nobody_up() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let mut session = Session::new(Place::Early, GRACE);
    session.partitions = 8;
    let ctx = with_parquet(&session, &directory).await?;
    let plan = plan(&ctx, "SELECT l.k, p.v FROM l JOIN p ON l.k = p.k").await?;
    assert_eq!(
        count(&text(&plan), "GraceHashJoinExec"),
        1,
        "{}",
        text(&plan)
    );
    for kept in [1, 4, 8] {
        let plan = reset_plan_states(Arc::clone(&plan))?;
        let streams = (0..8).map(|p| plan.execute(p, ctx.task_ctx()));
        let mut streams = streams.collect::<Result<Vec<_>>>()?;
        streams.truncate(kept);
        // One after the other, which no barrier survives that insists on all.
        let all = async {
            for stream in streams {
                datafusion::physical_plan::common::collect(stream).await?;
            }
            Ok::<(), datafusion::common::DataFusionError>(())
        };
        let limit = std::time::Duration::from_secs(20);
        tokio::time::timeout(limit, all)
            .await
            .expect("the streams end")?;
    }
    Ok(())
}

/// The names of all nodes, from the top, with how deep each stands.
fn shape(plan: &Arc<dyn ExecutionPlan>) -> Vec<(usize, String)> {
    let text = text(plan);
    let lines = text.lines().map(|line| {
        let node = line.trim_start();
        let name = node.split([':', ' ']).next().unwrap_or_default();
        (line.len() - node.len(), name.to_string())
    });
    lines.collect()
}

#[tokio::test]
async fn a_task_s_joins_are_replaced_node_for_node_whatever_their_size() -> Result<()> {
    let sql = "SELECT l.v, count(*) FROM l JOIN r ON l.k = r.k WHERE r.v > 1 GROUP BY l.v";
    let mut session = Session::new(Place::Nowhere, &[("fan_out", "4"), ("spill", "all")]);
    session.memory = 0;
    let ctx = session.open()?;
    let before = plan(&ctx, sql).await?;
    let after = rewrite_task_plan(Arc::clone(&before), ctx.state().config().options())?;
    let mut expected = shape(&before);
    for (_, name) in &mut expected {
        if name == "HashJoinExec" {
            "GraceHashJoinExec".clone_into(name);
        }
    }
    assert_eq!(shape(&after), expected);
    let mut nodes = 0;
    after.apply(|node| {
        if let Some(node) = node.downcast_ref::<GraceHashJoinExec>() {
            nodes += 1;
            let config = node.config();
            assert_eq!((config.fan_out(), config.spill()), (4, SpillPolicy::All));
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    assert_eq!(nodes, 1, "{}", text(&after));
    let found = collect(after, ctx.task_ctx()).await?;
    let found = pretty_format_batches(&found)?.to_string();
    let mut found: Vec<_> = found.lines().collect();
    found.sort_unstable();
    assert_eq!(found, rows(&ctx, sql).await?);
    Ok(())
}

#[tokio::test]
async fn a_task_s_plan_stays_the_same_where_nothing_can_be_replaced() -> Result<()> {
    let sql = "SELECT l.v, r.v FROM l JOIN r ON l.k = r.k";
    let off = Session::new(Place::Nowhere, &[("enabled", "false")]);
    // One build side for two probe partitions.
    let mut shared = Session::new(Place::Nowhere, &[]);
    shared.is_partitioned = false;
    for session in [off, shared] {
        let ctx = session.open()?;
        let before = plan(&ctx, sql).await?;
        let after = rewrite_task_plan(Arc::clone(&before), ctx.state().config().options())?;
        assert!(Arc::ptr_eq(&before, &after), "{}", text(&after));
    }
    Ok(())
}

#[test]
fn the_top_of_a_task_s_plan_keeps_its_order() -> Result<()> {
    let plan: Arc<dyn ExecutionPlan> = Arc::new(full_join(2, PartitionMode::Partitioned)?);
    assert!(plan.output_ordering().is_some());
    let after = rewrite_task_plan(Arc::clone(&plan), &ConfigOptions::new())?;
    assert!(Arc::ptr_eq(&plan, &after), "{}", text(&after));
    Ok(())
}

#[test]
fn a_task_s_rows_keep_the_order_that_its_top_hands_on() -> Result<()> {
    // What stands on top of a stage hands rows on, and seldom says in which order.
    let join: Arc<dyn ExecutionPlan> = Arc::new(full_join(2, PartitionMode::Partitioned)?);
    assert!(join.output_ordering().is_some());
    let by = Partitioning::Hash(vec![col("k", &join.schema())?], 2);
    let top: Arc<dyn ExecutionPlan> = Arc::new(RepartitionExec::try_new(join, by)?);
    assert!(top.output_ordering().is_none());
    let after = rewrite_task_plan(Arc::clone(&top), &ConfigOptions::new())?;
    assert!(Arc::ptr_eq(&top, &after), "{}", text(&after));
    Ok(())
}

#[test]
fn a_task_s_part_of_a_union_keeps_the_order_of_the_whole() -> Result<()> {
    // An engine that gives each input of a union to a task of its own puts empty ones in the places
    // of the others, and with them the union says no order any more.
    let join: Arc<dyn ExecutionPlan> = Arc::new(full_join(2, PartitionMode::Partitioned)?);
    let order = join.output_ordering().cloned().unwrap();
    let elsewhere = Arc::new(EmptyExec::new(join.schema()));
    let part = UnionExec::try_new(vec![Arc::clone(&join), elsewhere])?;
    assert!(part.output_ordering().is_none());
    let top: Arc<dyn ExecutionPlan> = Arc::new(SortPreservingMergeExec::new(order, part));
    let after = rewrite_task_plan(Arc::clone(&top), &ConfigOptions::new())?;
    assert!(Arc::ptr_eq(&top, &after), "{}", text(&after));
    Ok(())
}
