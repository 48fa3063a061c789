//! The promise: the rule replaces the joins that do not fit and no others, says why for each that
//! stays, and leaves a right plan wherever it stands.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking, helpers included"
)]

mod planning;

use std::process::Command;
use std::sync::Arc;

use arrow::compute::SortOptions;
use datafusion::common::{JoinType, NullEquality, Result};
use datafusion::config::ConfigOptions;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{binary, col};
use datafusion::physical_expr::{LexOrdering, PhysicalSortExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::empty::EmptyExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, JoinOn, PartitionMode, SortMergeJoinExec};
use datafusion::physical_plan::limit::LocalLimitExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use grace_hash_join::{GraceHashJoinOptions, SPILL_JOIN_BUILD_BYTES_ENV, SpillableJoinSelection};
use planning::{
    Place, Session, count, decisions, plan, rows, rows_in_order, schema, streaming, text, unknown,
};

const JOIN: &str = "SELECT l.v, r.v FROM l JOIN r ON l.k = r.k";
const GRACE: (&str, &str) = ("algorithm", "grace");
const CAPPED: (&str, &str) = ("select", "capped");
const ALWAYS: (&str, &str) = ("select", "always");

fn config(options: &[(&str, &str)]) -> Result<ConfigOptions> {
    let mut extension = GraceHashJoinOptions::default();
    for (key, value) in options {
        extension = extension.with(key, value)?;
    }
    let mut config = ConfigOptions::new();
    config.extensions.insert(extension);
    Ok(config)
}

fn on(left: &str, right: &str) -> Result<JoinOn> {
    Ok(vec![(col(left, &schema())?, col(right, &schema())?)])
}

fn join(
    left: Arc<dyn ExecutionPlan>,
    right: Arc<dyn ExecutionPlan>,
    mode: PartitionMode,
) -> Result<Arc<dyn ExecutionPlan>> {
    typed_join(left, right, mode, JoinType::Inner)
}

fn typed_join(
    left: Arc<dyn ExecutionPlan>,
    right: Arc<dyn ExecutionPlan>,
    mode: PartitionMode,
    join_type: JoinType,
) -> Result<Arc<dyn ExecutionPlan>> {
    let nulls = NullEquality::NullEqualsNothing;
    let on = on("k", "k")?;
    let join = HashJoinExec::try_new(left, right, on, None, &join_type, None, mode, nulls, false)?;
    Ok(Arc::new(join))
}

/// Runs the rule over a plan made by hand, as if appended; gives the plan and the log.
fn run(
    plan: &Arc<dyn ExecutionPlan>,
    options: &[(&str, &str)],
) -> Result<(Arc<dyn ExecutionPlan>, Vec<String>)> {
    let rule = SpillableJoinSelection::with_memory_limit(1 << 20);
    let config = config(options)?;
    decisions(async { rule.optimize(Arc::clone(plan), &config) })
}

fn assert_kept(
    plan: &Arc<dyn ExecutionPlan>,
    options: &[(&str, &str)],
    reason: &str,
) -> Result<()> {
    let (new, log) = run(plan, options)?;
    assert!(Arc::ptr_eq(plan, &new), "{}", text(&new));
    assert!(log.iter().any(|l| l.contains(reason)), "{log:?}");
    Ok(())
}

/// Plans a query and gives the plan's text and the log.
fn planned(session: &Session, sql: &str) -> Result<(String, Vec<String>)> {
    let ctx = session.open()?;
    let (plan, log) = decisions(plan(&ctx, sql))?;
    Ok((text(&plan), log))
}

#[test]
fn without_a_memory_limit_plans_are_the_same_to_the_byte() -> Result<()> {
    for place in [Place::Early, Place::Appended] {
        for options in [vec![GRACE], vec![GRACE, CAPPED], vec![]] {
            let mut session = Session::new(place, &options);
            session.memory = 0;
            let (with, log) = planned(&session, JOIN)?;
            session.place = Place::Nowhere;
            let (without, _) = planned(&session, JOIN)?;
            assert_eq!(with, without);
            assert!(log.iter().all(|l| l.contains("no known limit")), "{log:?}");
            assert!(!log.is_empty());
        }
    }
    Ok(())
}

#[test]
fn a_rule_that_is_switched_off_changes_nothing() -> Result<()> {
    let session = Session::new(Place::Early, &[GRACE, ALWAYS, ("enabled", "false")]);
    let (plan, log) = planned(&session, JOIN)?;
    assert!(plan.contains("HashJoinExec: mode=Partitioned"), "{plan}");
    assert!(!plan.contains("GraceHashJoinExec"), "{plan}");
    assert!(log.is_empty());
    Ok(())
}

#[test]
fn always_replaces_without_a_limit_too() -> Result<()> {
    let mut session = Session::new(Place::Early, &[GRACE, ALWAYS]);
    session.memory = 0;
    let (plan, log) = planned(&session, JOIN)?;
    assert!(
        plan.contains("GraceHashJoinExec: mode=Partitioned"),
        "{plan}"
    );
    assert!(log[0].contains("replaced by GraceHashJoinExec"), "{log:?}");
    Ok(())
}

#[test]
fn each_line_of_the_log_has_outcome_estimate_threshold_and_join() -> Result<()> {
    let line = |options: &[(&'static str, &'static str)], memory| {
        let mut session = Session::new(Place::Early, options);
        session.memory = memory;
        Ok::<_, datafusion::error::DataFusionError>(planned(&session, JOIN)?.1.join("\n"))
    };
    let join = "): HashJoinExec: mode=Partitioned, join_type=Inner, on=[(k@0, k@0)]";
    for (options, memory, start) in [
        (
            &[GRACE, ALWAYS][..],
            0,
            "replaced by GraceHashJoinExec, select = always (1856 bytes per partition estimated, \
             no limit known",
        ),
        (
            &[GRACE, CAPPED],
            1 << 20,
            "replaced by GraceHashJoinExec, select = capped (1856 bytes per partition estimated, \
             262144 allowed",
        ),
        (
            &[GRACE],
            4000,
            "replaced by GraceHashJoinExec, the build side is too large (1856 bytes per partition \
             estimated, 1000 allowed",
        ),
        (
            &[],
            4000,
            "replaced by SortMergeJoinExec, the build side is too large (1856 bytes per partition \
             estimated, 1000 allowed",
        ),
        (
            &[GRACE],
            1 << 20,
            "kept, the build side fits: 1856 bytes per partition are estimated, 262144 allowed \
             (1856 bytes per partition estimated, 262144 allowed",
        ),
        (
            &[GRACE],
            0,
            "kept, there is no known limit on memory (1856 bytes per partition estimated, no limit \
             known",
        ),
    ] {
        let line = line(options, memory)?;
        assert!(line.starts_with(&format!("{start}{join}")), "{line}");
    }
    Ok(())
}

#[test]
fn joins_stay_where_the_disk_manager_refuses_to_spill() -> Result<()> {
    let session = Session::new(Place::Early, &[GRACE, CAPPED]);
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(Arc::new(GreedyMemoryPool::new(1 << 20)))
        .with_disk_manager_builder(
            DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled),
        )
        .build_arc()?;
    let ctx = session.open_with(runtime)?;
    let (plan, log) = decisions(plan(&ctx, JOIN))?;
    assert!(!text(&plan).contains("GraceHashJoinExec"));
    assert!(log[0].contains("does not allow spilling"), "{log:?}");
    Ok(())
}

#[test]
fn a_build_side_of_unknown_size_stays_unless_all_are_replaced() -> Result<()> {
    let plan = join(unknown(2)?, unknown(2)?, PartitionMode::Partitioned)?;
    assert_kept(&plan, &[GRACE], "statistics are absent")?;
    let (new, _) = run(&plan, &[GRACE, CAPPED])?;
    assert_eq!(new.name(), "GraceHashJoinExec");
    Ok(())
}

#[test]
fn a_zero_out_of_a_semi_join_is_unknown() -> Result<()> {
    let empty = || Arc::new(EmptyExec::new(schema())) as Arc<dyn ExecutionPlan>;
    let mode = PartitionMode::CollectLeft;
    let semi = typed_join(empty(), empty(), mode, JoinType::LeftSemi)?;
    let plan = join(semi, empty(), mode)?;
    let (_, log) = run(&plan, &[GRACE])?;
    assert!(log[0].contains("a zero out of a semi"), "{log:?}");
    assert!(log[1].contains("the build side fits: 0 bytes"), "{log:?}");
    Ok(())
}

#[test]
fn a_build_side_over_the_threshold_is_replaced_and_one_below_it_stays() -> Result<()> {
    // `l` takes 3,712 bytes, so 1,856 in each of two partitions.
    let over = Session::new(Place::Early, &[GRACE, ("build_bytes", "1000")]);
    let (plan, log) = planned(&over, JOIN)?;
    assert!(plan.contains("GraceHashJoinExec"), "{plan}\n{log:?}");
    let below = Session::new(Place::Early, &[GRACE, ("build_bytes", "100000")]);
    let (plan, log) = planned(&below, JOIN)?;
    assert!(!plan.contains("GraceHashJoinExec"), "{plan}");
    assert!(log[0].contains("the build side fits"), "{log:?}");
    assert!(log[0].contains("100000 allowed"), "{log:?}");
    Ok(())
}

#[test]
fn without_a_threshold_it_follows_from_the_pool() -> Result<()> {
    let mut session = Session::new(Place::Early, &[GRACE]);
    session.memory = 4000;
    let (plan, _) = planned(&session, JOIN)?;
    assert!(plan.contains("GraceHashJoinExec"), "{plan}");
    session.memory = 4_000_000;
    let (plan, log) = planned(&session, JOIN)?;
    assert!(!plan.contains("GraceHashJoinExec"), "{plan}");
    assert!(log[0].contains("1000000 allowed"), "{log:?}");
    Ok(())
}

#[test]
fn the_builds_that_stay_fit_together_and_the_smallest_stay() -> Result<()> {
    let sql = "SELECT count(*) FROM l JOIN r ON l.k = r.k JOIN s ON s.k = r.k";
    let of = |bytes| Session::new(Place::Early, &[GRACE, ("build_bytes", bytes)]);
    let (none, log) = planned(&of("1000000"), sql)?;
    assert_eq!(count(&none, "GraceHashJoinExec"), 0, "{log:?}");
    let sizes: Vec<usize> = log
        .iter()
        .map(|l| l.split("fits: ").nth(1).unwrap().split(' ').next().unwrap())
        .map(|n| n.parse().unwrap())
        .collect();
    assert_eq!(sizes.len(), 2, "{log:?}");
    // Each fits by itself, but not both.
    let large = *sizes.iter().max().unwrap();
    let small = *sizes.iter().min().unwrap();
    let threshold: &'static str = (large + small / 2).to_string().leak();
    let (one, log) = planned(&of(threshold), sql)?;
    assert_eq!(count(&one, "GraceHashJoinExec"), 1, "{log:?}");
    let replaced = log.iter().find(|l| l.contains("replaced")).unwrap();
    assert!(replaced.contains("not beside the smaller ones"), "{log:?}");
    let kept = log.iter().find(|l| l.contains("kept")).unwrap();
    assert!(kept.contains(&format!("fits: {small} bytes")), "{log:?}");
    Ok(())
}

#[test]
fn a_build_that_stays_in_any_case_takes_its_part() -> Result<()> {
    let mut session = Session::new(Place::Nowhere, &[]);
    session.partitions = 1;
    let ctx = session.open()?;
    let (l, _) = decisions(plan(&ctx, "SELECT * FROM l"))?;
    let (r, _) = decisions(plan(&ctx, "SELECT * FROM r"))?;
    // `l` takes 3,712 bytes.
    let options = [GRACE, ("build_bytes", "5000")];
    let lower = join(Arc::clone(&l), r, PartitionMode::Auto)?;
    let upper = join(l, lower, PartitionMode::CollectLeft)?;
    let (new, log) = run(&upper, &options)?;
    let new = text(&new);
    assert!(
        log.iter().any(|l| l.contains("mode is not decided")),
        "{log:?}"
    );
    assert_eq!(count(&new, "GraceHashJoinExec"), 1, "{new}\n{log:?}");
    assert!(
        log.iter()
            .any(|l| l.contains("not beside the smaller ones")),
        "{log:?}"
    );
    Ok(())
}

#[test]
fn an_undecided_mode_stays() -> Result<()> {
    let plan = join(unknown(1)?, unknown(1)?, PartitionMode::Auto)?;
    assert_kept(&plan, &[GRACE, CAPPED], "mode is not decided")
}

#[test]
fn a_join_of_an_input_without_an_end_stays() -> Result<()> {
    for (build, probe) in [(false, true), (true, false), (true, true)] {
        let sides = || {
            Ok::<_, datafusion::error::DataFusionError>((
                streaming(2, build)?,
                streaming(2, probe)?,
            ))
        };
        let (left, right) = sides()?;
        let plan = join(left, right, PartitionMode::Partitioned)?;
        for options in [&[GRACE, ALWAYS][..], &[ALWAYS], &[GRACE, CAPPED]] {
            assert_kept(&plan, options, "kept, an input has no end")?;
        }
        let (left, right) = sides()?;
        let merge: Arc<dyn ExecutionPlan> = Arc::new(SortMergeJoinExec::try_new(
            left,
            right,
            on("k", "k")?,
            None,
            JoinType::Inner,
            vec![SortOptions::default()],
            NullEquality::NullEqualsNothing,
        )?);
        assert_kept(&merge, &[GRACE, ALWAYS], "kept, an input has no end")?;
    }
    Ok(())
}

#[test]
fn a_build_side_shared_by_several_probe_partitions_stays() -> Result<()> {
    let plan = join(unknown(1)?, unknown(3)?, PartitionMode::CollectLeft)?;
    assert_kept(&plan, &[GRACE, CAPPED], "shared by 3 probe partitions")
}

#[test]
fn a_build_side_that_is_still_to_be_collected_stays() -> Result<()> {
    let plan = join(unknown(4)?, unknown(1)?, PartitionMode::CollectLeft)?;
    assert_kept(&plan, &[GRACE, CAPPED], "collected from 4 partitions")
}

#[test]
fn after_enforcement_unequal_partition_counts_stay() -> Result<()> {
    let plan = join(unknown(2)?, unknown(3)?, PartitionMode::Partitioned)?;
    assert_kept(
        &plan,
        &[GRACE, CAPPED],
        "has 2 partitions but the probe side 3",
    )
}

#[test]
fn not_in_is_replaced_in_one_partition_and_only_by_a_hash_join() -> Result<()> {
    let sql = "SELECT v FROM l WHERE k NOT IN (SELECT k FROM r)";
    for place in [Place::Early, Place::Appended] {
        for (options, name) in [
            (vec![GRACE, CAPPED], "GraceHashJoinExec"),
            (vec![CAPPED], "HashJoinExec"),
        ] {
            let mut session = Session::new(place, &options);
            session.partitions = 1;
            let (plan, log) = planned(&session, sql)?;
            assert_eq!(count(&plan, name), 1, "{plan}");
            assert!(plan.contains(", null_aware"), "{plan}");
            let is_kept = log.iter().any(|l| l.contains("NOT IN"));
            assert_eq!(is_kept, name == "HashJoinExec", "{log:?}");
        }
    }
    Ok(())
}

/// DataFusion plans none, since its answer would be wrong; whoever makes one gets what it gives.
#[test]
fn a_not_in_by_partition_stays() -> Result<()> {
    let nulls = NullEquality::NullEqualsNothing;
    let join = HashJoinExec::try_new(
        unknown(2)?,
        unknown(2)?,
        on("k", "k")?,
        None,
        &JoinType::LeftAnti,
        None,
        PartitionMode::Partitioned,
        nulls,
        true,
    )?;
    let plan: Arc<dyn ExecutionPlan> = Arc::new(join);
    for options in [&[GRACE, CAPPED][..], &[CAPPED]] {
        assert_kept(&plan, options, "null-aware (NOT IN)")?;
    }
    Ok(())
}

fn random_key() -> Result<Arc<dyn PhysicalExpr>> {
    use datafusion::functions::math::random;
    use datafusion::physical_expr::ScalarFunctionExpr;
    let random: Arc<dyn PhysicalExpr> = Arc::new(ScalarFunctionExpr::try_new(
        random(),
        vec![],
        &schema(),
        Arc::new(ConfigOptions::new()),
    )?);
    binary(col("f", &schema())?, Operator::Plus, random, &schema())
}

#[test]
fn volatile_keys_stay() -> Result<()> {
    let on = vec![(random_key()?, col("f", &schema())?)];
    let plan: Arc<dyn ExecutionPlan> = Arc::new(HashJoinExec::try_new(
        unknown(2)?,
        unknown(2)?,
        on,
        None,
        &JoinType::Inner,
        None,
        PartitionMode::Partitioned,
        NullEquality::NullEqualsNothing,
        false,
    )?);
    assert_kept(&plan, &[GRACE, CAPPED], "volatile")?;
    assert_kept(&plan, &[CAPPED], "volatile")
}

#[test]
fn sort_merge_leaves_float_keys_alone() -> Result<()> {
    let sql = "SELECT l.v FROM l JOIN r ON l.f = r.f";
    let (plan, log) = planned(&Session::new(Place::Early, &[CAPPED]), sql)?;
    assert_eq!(count(&plan, "HashJoinExec"), 1, "{plan}");
    assert!(log[0].contains("does not compare Float64"), "{log:?}");
    let (plan, _) = planned(&Session::new(Place::Early, &[CAPPED, GRACE]), sql)?;
    assert!(plan.contains("GraceHashJoinExec"), "{plan}");
    Ok(())
}

#[test]
fn a_second_run_changes_nothing() -> Result<()> {
    for options in [vec![GRACE, CAPPED], vec![CAPPED]] {
        for place in [Place::Early, Place::Appended] {
            for is_merging in [false, true] {
                let mut session = Session::new(place, &options);
                session.is_merging = is_merging;
                let ctx = session.open()?;
                let (plan, _) = decisions(plan(&ctx, JOIN))?;
                let (again, log) = run(&plan, &options)?;
                assert!(Arc::ptr_eq(&plan, &again), "{}", text(&again));
                assert!(log.is_empty(), "{log:?}");
            }
        }
    }
    Ok(())
}

/// A session whose table `o` is known to be sorted by `k`.
fn sorted_session(session: &Session) -> Result<datafusion::prelude::SessionContext> {
    let ctx = session.open()?;
    let order = vec![vec![datafusion::prelude::col("v").sort(true, false)]];
    let batch = planning::batch(1000, 3)?;
    let by_v = arrow::compute::sort_to_indices(batch.column(1), None, None)?;
    let batch = arrow::compute::take_record_batch(&batch, &by_v)?;
    let table = datafusion::catalog::MemTable::try_new(schema(), vec![vec![batch]])?;
    ctx.register_table("o", Arc::new(table.with_sort_order(order)))?;
    Ok(ctx)
}

const ORDERED: &str = "SELECT l.v, o.v, o.k FROM l JOIN o ON l.k = o.k ORDER BY o.v";

#[test]
fn appended_a_join_whose_order_is_relied_on_stays() -> Result<()> {
    for options in [vec![GRACE, CAPPED], vec![CAPPED]] {
        let mut session = Session::new(Place::Appended, &options);
        session.partitions = 1;
        let ctx = sorted_session(&session)?;
        let (plan, log) = decisions(plan(&ctx, ORDERED))?;
        assert!(!text(&plan).contains("SortExec"), "{}", text(&plan));
        assert_eq!(count(&text(&plan), "HashJoinExec"), 1, "{}", text(&plan));
        assert!(log.iter().any(|l| l.contains("relied on")), "{log:?}");
    }
    Ok(())
}

#[test]
fn appended_a_limit_without_order_by_counts_as_relying_on_order() -> Result<()> {
    let mut session = Session::new(Place::Appended, &[GRACE, CAPPED]);
    session.partitions = 1;
    let ctx = sorted_session(&session)?;
    let sql = format!("SELECT sum(k) FROM ({ORDERED} LIMIT 7)");
    let (plan, log) = decisions(plan(&ctx, &sql))?;
    assert_eq!(count(&text(&plan), "HashJoinExec"), 1, "{}", text(&plan));
    assert!(log.iter().any(|l| l.contains("relied on")), "{log:?}");
    Ok(())
}

/// Whose node requires no order, and takes the first row where it was told that there is one.
#[test]
fn appended_an_aggregate_that_takes_the_first_row_counts_as_relying_on_order() -> Result<()> {
    let aggregates = [
        "first_value(o.k ORDER BY o.v)",
        "last_value(o.k ORDER BY o.v DESC)",
        "array_agg(o.k ORDER BY o.k), array_agg(o.k ORDER BY o.v)",
    ];
    for options in [vec![GRACE, CAPPED], vec![CAPPED]] {
        for aggregate in aggregates {
            let mut session = Session::new(Place::Appended, &options);
            session.partitions = 1;
            let ctx = sorted_session(&session)?;
            let sql = format!("SELECT {aggregate} FROM l JOIN o ON l.k = o.k");
            let (plan, log) = decisions(plan(&ctx, &sql))?;
            assert_eq!(count(&text(&plan), "HashJoinExec"), 1, "{}", text(&plan));
            assert!(log.iter().any(|l| l.contains("relied on")), "{log:?}");
        }
    }
    Ok(())
}

#[test]
fn early_a_join_whose_order_was_relied_on_gets_a_sort() -> Result<()> {
    for options in [vec![GRACE, CAPPED], vec![CAPPED]] {
        let mut session = Session::new(Place::Early, &options);
        session.partitions = 1;
        let ctx = sorted_session(&session)?;
        let (plan, _) = decisions(plan(&ctx, ORDERED))?;
        assert_eq!(count(&text(&plan), "HashJoinExec"), 0, "{}", text(&plan));
        assert!(text(&plan).contains("SortExec"), "{}", text(&plan));
    }
    Ok(())
}

#[test]
fn appended_sort_merge_brings_its_sorts_and_keeps_the_partitions() -> Result<()> {
    let (plan, _) = planned(&Session::new(Place::Appended, &[CAPPED]), JOIN)?;
    assert!(plan.contains("SortMergeJoinExec"), "{plan}");
    assert_eq!(
        plan.matches("preserve_partitioning=[true]").count(),
        2,
        "{plan}"
    );
    assert!(
        plan.contains("ProjectionExec: expr=[v@1 as v, v@3 as v]"),
        "{plan}"
    );
    Ok(())
}

/// A session whose planner makes sort-merge joins.
fn merging(place: Place, options: &[(&'static str, &'static str)]) -> Session {
    let mut session = Session::new(place, options);
    session.is_merging = true;
    session
}

#[test]
fn a_sort_merge_join_whose_sorts_are_its_own_is_replaced_and_they_go() -> Result<()> {
    for select in [("select", "estimated"), CAPPED, ALWAYS] {
        for place in [Place::Early, Place::Appended] {
            let (plan, log) = planned(&merging(place, &[GRACE, select]), JOIN)?;
            let new = "GraceHashJoinExec: mode=Partitioned, join_type=Inner";
            assert!(plan.contains(new), "{plan}");
            assert_eq!(count(&plan, "SortExec"), 0, "{plan}");
            assert_eq!(count(&plan, "SortMergeJoinExec"), 0, "{plan}");
            assert_eq!(log.len(), 1, "{log:?}");
            assert!(
                log[0].contains("its inputs are sorted for it alone"),
                "{log:?}"
            );
        }
    }
    Ok(())
}

#[test]
fn sort_merge_joins_stay_with_the_other_algorithm_and_without_a_limit() -> Result<()> {
    for place in [Place::Early, Place::Appended] {
        let (plan, log) = planned(&merging(place, &[CAPPED]), JOIN)?;
        assert_eq!(count(&plan, "SortMergeJoinExec"), 1, "{plan}");
        assert!(log.is_empty(), "{log:?}");
        let mut unlimited = merging(place, &[GRACE, CAPPED]);
        unlimited.memory = 0;
        let (with, log) = planned(&unlimited, JOIN)?;
        assert!(log[0].contains("kept, there is no known limit"), "{log:?}");
        unlimited.place = Place::Nowhere;
        assert_eq!(with, planned(&unlimited, JOIN)?.0);
    }
    Ok(())
}

#[test]
fn the_smaller_side_of_a_sort_merge_join_becomes_the_build_side() -> Result<()> {
    // `r` is ten times as large as `l`.
    let sql = "SELECT l.v, r.v FROM r JOIN l ON l.k = r.k";
    for place in [Place::Early, Place::Appended] {
        let (plan, log) = planned(&merging(place, &[GRACE]), sql)?;
        assert_eq!(count(&plan, "GraceHashJoinExec"), 1, "{plan}");
        assert!(log[0].contains("sides swapped"), "{log:?}");
        let (_, log) = planned(&merging(place, &[GRACE]), JOIN)?;
        assert!(!log[0].contains("sides swapped"), "{log:?}");
    }
    Ok(())
}

#[test]
fn sort_merge_joins_over_one_another_go_together() -> Result<()> {
    let sql = "SELECT count(*) FROM l JOIN r ON l.k = r.k JOIN s ON s.k = r.k";
    for place in [Place::Early, Place::Appended] {
        let (plan, log) = planned(&merging(place, &[GRACE]), sql)?;
        assert_eq!(count(&plan, "GraceHashJoinExec"), 2, "{plan}\n{log:?}");
        assert_eq!(count(&plan, "SortExec"), 0, "{plan}");
    }
    Ok(())
}

/// A session whose tables `a` and `o` are known to be sorted by `v`.
fn merging_sorted(session: &Session) -> Result<datafusion::prelude::SessionContext> {
    let ctx = sorted_session(session)?;
    let order = vec![vec![datafusion::prelude::col("v").sort(true, true)]];
    let batch = planning::batch(100, 3)?;
    let by_v = arrow::compute::sort_to_indices(batch.column(1), None, None)?;
    let batch = arrow::compute::take_record_batch(&batch, &by_v)?;
    for name in ["a", "b"] {
        let batches = vec![vec![batch.clone()]];
        let table = datafusion::catalog::MemTable::try_new(schema(), batches)?;
        ctx.register_table(name, Arc::new(table.with_sort_order(order.clone())))?;
    }
    Ok(ctx)
}

#[test]
fn a_sort_merge_join_of_sorted_inputs_stays() -> Result<()> {
    let sql = "SELECT a.k, b.k FROM a JOIN b ON a.v = b.v";
    for place in [Place::Early, Place::Appended] {
        let session = merging(place, &[GRACE, CAPPED]);
        let ctx = merging_sorted(&session)?;
        ctx.state_ref()
            .write()
            .config_mut()
            .options_mut()
            .optimizer
            .prefer_existing_sort = true;
        let (plan, log) = decisions(plan(&ctx, sql))?;
        assert_eq!(count(&text(&plan), "SortExec"), 0, "{}", text(&plan));
        assert_eq!(count(&text(&plan), "SortMergeJoinExec"), 1);
        assert!(log[0].contains("kept, its inputs are sorted"), "{log:?}");
    }
    Ok(())
}

#[test]
fn a_sort_merge_join_whose_output_order_is_used_stays() -> Result<()> {
    let sql = "SELECT l.k, l.v, r.v FROM l JOIN r ON l.k = r.k ORDER BY l.k NULLS FIRST";
    for place in [Place::Early, Place::Appended] {
        let (plan, log) = planned(&merging(place, &[GRACE, CAPPED]), sql)?;
        assert_eq!(count(&plan, "SortMergeJoinExec"), 1, "{plan}\n{log:?}");
        assert!(log[0].contains("kept, the order of its output"), "{log:?}");
        // Another order needs another sort, whichever join is below it.
        let other = "SELECT l.k, l.v, r.v FROM l JOIN r ON l.k = r.k ORDER BY l.v, r.v";
        let (plan, _) = planned(&merging(place, &[GRACE, CAPPED]), other)?;
        assert_eq!(count(&plan, "GraceHashJoinExec"), 1, "{plan}");
    }
    Ok(())
}

#[test]
fn a_sort_merge_join_with_keys_that_cannot_be_computed_again_stays() -> Result<()> {
    let left = random_key()?;
    let on = vec![(left, col("f", &schema())?)];
    let plan: Arc<dyn ExecutionPlan> = Arc::new(SortMergeJoinExec::try_new(
        unknown(2)?,
        unknown(2)?,
        on,
        None,
        JoinType::Inner,
        vec![SortOptions::default()],
        NullEquality::NullEqualsNothing,
    )?);
    let sorted = Arc::clone(&plan).replace_children(
        plan.children()
            .into_iter()
            .map(|side| sorted_by(side, "f"))
            .collect::<Result<_>>()?,
        ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
    )?;
    assert_kept(&sorted, &[GRACE, CAPPED], "volatile")
}

fn sorted_by(side: &Arc<dyn ExecutionPlan>, key: &str) -> Result<Arc<dyn ExecutionPlan>> {
    let order = [PhysicalSortExpr::new_default(col(key, &schema())?)];
    let order = LexOrdering::new(order).unwrap();
    let sort = SortExec::new(order, Arc::clone(side)).with_preserve_partitioning(true);
    Ok(Arc::new(sort))
}

#[test]
fn a_sort_that_somebody_between_needs_is_not_the_joins_own() -> Result<()> {
    // The left side's order is taken through a limit, the right side's through a filter.
    let limited = |side: &Arc<dyn ExecutionPlan>| -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(LocalLimitExec::new(sorted_by(side, "k")?, 3)))
    };
    let filtered = |side: &Arc<dyn ExecutionPlan>| -> Result<Arc<dyn ExecutionPlan>> {
        let predicate = binary(
            col("v", &schema())?,
            Operator::Gt,
            datafusion::physical_expr::expressions::lit(1_i64),
            &schema(),
        )?;
        let filter = FilterExec::try_new(predicate, sorted_by(side, "k")?)?;
        Ok(Arc::new(filter))
    };
    let merge = |left, right| -> Result<Arc<dyn ExecutionPlan>> {
        let merge = SortMergeJoinExec::try_new(
            left,
            right,
            on("k", "k")?,
            None,
            JoinType::Inner,
            vec![SortOptions::default()],
            NullEquality::NullEqualsNothing,
        )?;
        // So that the order of its output does not matter.
        Ok(Arc::new(CoalescePartitionsExec::new(Arc::new(merge))))
    };
    let side = unknown(2)?;
    let both = merge(limited(&side)?, limited(&side)?)?;
    assert_kept(&both, &[GRACE, CAPPED], "its inputs are sorted without it")?;
    let (new, _) = run(&merge(limited(&side)?, filtered(&side)?)?, &[GRACE, CAPPED])?;
    let new = text(&new);
    assert_eq!(count(&new, "GraceHashJoinExec"), 1, "{new}");
    assert_eq!(count(&new, "SortExec"), 1, "{new}");
    assert_eq!(count(&new, "LocalLimitExec"), 1, "{new}");
    assert_eq!(count(&new, "FilterExec"), 1, "{new}");
    Ok(())
}

#[test]
fn grace_gives_the_rows_of_the_sort_merge_join() -> Result<()> {
    for spill in ["pressure", "all"] {
        let options = [GRACE, CAPPED, ("spill", spill), ("fan_out", "4")];
        assert_same_rows_as(&options, "GraceHashJoinExec", true)?;
    }
    Ok(())
}

const FAR: (&str, &str) = ("repartition_collect_left", "true");

#[test]
fn a_collected_build_side_far_over_the_threshold_is_partitioned_if_wanted() -> Result<()> {
    // `l` takes 3,712 bytes.
    let session = |place, options: &[_], bytes| {
        let mut all = vec![GRACE, ("build_bytes", bytes)];
        all.extend_from_slice(options);
        let mut session = Session::new(place, &all);
        session.is_partitioned = false;
        session
    };
    let (plan, log) = planned(&session(Place::Early, &[FAR], "1000"), JOIN)?;
    assert!(
        plan.contains("GraceHashJoinExec: mode=Partitioned"),
        "{plan}\n{log:?}"
    );
    assert_eq!(count(&plan, "RepartitionExec"), 2, "{plan}");
    assert!(
        log[0].contains("a partitioned GraceHashJoinExec"),
        "{log:?}"
    );
    let stays = |session: &Session| {
        let (plan, log) = planned(session, JOIN)?;
        assert_eq!(count(&plan, "GraceHashJoinExec"), 0, "{plan}");
        assert!(log[0].contains("shared by 2 probe"), "{log:?}");
        Ok::<(), datafusion::error::DataFusionError>(())
    };
    stays(&session(Place::Early, &[], "1000"))?;
    stays(&session(Place::Appended, &[FAR], "1000"))?;
    // Twice as much is not far over.
    stays(&session(Place::Early, &[FAR], "2000"))?;
    // Sort-merge join is not worth two exchanges and two sorts.
    stays(&session(
        Place::Early,
        &[FAR, ("algorithm", "sort_merge")],
        "1000",
    ))
}

#[test]
fn a_collected_build_side_stays_where_joins_are_not_to_be_repartitioned() -> Result<()> {
    let mut session = Session::new(Place::Early, &[GRACE, FAR, ("build_bytes", "1000")]);
    session.is_partitioned = false;
    let ctx = session.open()?;
    ctx.state_ref()
        .write()
        .config_mut()
        .options_mut()
        .optimizer
        .repartition_joins = false;
    let (planned, log) = decisions(plan(&ctx, JOIN))?;
    assert_eq!(count(&text(&planned), "GraceHashJoinExec"), 0, "{log:?}");
    assert!(log[0].contains("shared by 2 probe"), "{log:?}");
    // Nor where groups of files pass for partitions by hash.
    let state = ctx.state_ref();
    {
        let mut state = state.write();
        let optimizer = &mut state.config_mut().options_mut().optimizer;
        optimizer.repartition_joins = true;
        optimizer.preserve_file_partitions = 1;
    }
    let (planned, log) = decisions(plan(&ctx, JOIN))?;
    assert_eq!(count(&text(&planned), "GraceHashJoinExec"), 0, "{log:?}");
    assert!(log[0].contains("shared by 2 probe"), "{log:?}");
    Ok(())
}

#[test]
fn a_partitioned_join_gives_the_rows_of_the_collecting_one() -> Result<()> {
    let mut session = Session::new(Place::Early, &[GRACE, FAR, ("build_bytes", "1")]);
    session.is_partitioned = false;
    let ctx = session.open()?;
    session.place = Place::Nowhere;
    let reference = session.open()?;
    let mut replaced = 0;
    for sql in QUERIES {
        let (plan, _) = decisions(plan(&ctx, sql))?;
        replaced += count(&text(&plan), "GraceHashJoinExec");
        let (got, _) = decisions(rows(&ctx, sql))?;
        let (expected, _) = decisions(rows(&reference, sql))?;
        assert_eq!(got, expected, "{sql}\n{}", text(&plan));
    }
    assert!(replaced >= 6, "{replaced}");
    Ok(())
}

const QUERIES: &[&str] = &[
    JOIN,
    "SELECT count(*) FROM l JOIN r ON l.k = r.k",
    "SELECT l.k, r.v FROM l LEFT JOIN r ON l.k = r.k AND l.v < r.v",
    "SELECT l.k, r.v FROM l RIGHT JOIN r ON l.k = r.k AND r.v < l.v",
    "SELECT l.k, r.k, r.v - l.v FROM l FULL JOIN r ON l.k = r.k AND l.v + r.v > 9",
    "SELECT l.k FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.k = l.k AND r.v > l.v)",
    "SELECT l.k FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.k = l.k AND r.v > l.v)",
    "SELECT l.k FROM l WHERE k IN (SELECT k FROM r) OR v = 3",
    "SELECT l.k, l.v FROM l INTERSECT SELECT k, v FROM s",
    "SELECT l.k, l.v FROM l EXCEPT SELECT k, v FROM s",
    "SELECT l.v, count(*) FROM l JOIN r ON l.k = r.k JOIN s ON s.k = r.k GROUP BY l.v",
    "SELECT l.k, r.v FROM l JOIN r ON l.k = r.k WHERE l.v > 3 ORDER BY l.k, r.v LIMIT 5",
];

fn assert_same_rows(options: &[(&'static str, &'static str)], node: &str) -> Result<()> {
    assert_same_rows_as(options, node, false)
}

fn assert_same_rows_as(
    options: &[(&'static str, &'static str)],
    node: &str,
    is_merging: bool,
) -> Result<()> {
    for place in [Place::Early, Place::Appended] {
        for partitions in [1, 3] {
            let mut session = Session::new(place, options);
            session.partitions = partitions;
            session.is_merging = is_merging;
            let ctx = session.open()?;
            session.place = Place::Nowhere;
            session.is_merging = false;
            let reference = session.open()?;
            let mut replaced = 0;
            for sql in QUERIES {
                let plan = decisions(plan(&ctx, sql))?.0;
                replaced += count(&text(&plan), node);
                let got = decisions(rows(&ctx, sql))?.0;
                let expected = decisions(rows(&reference, sql))?.0;
                assert_eq!(
                    got,
                    expected,
                    "{place:?} {partitions} {sql}\n{}",
                    text(&plan)
                );
            }
            assert!(replaced >= 6, "{place:?} {partitions}: {replaced}");
        }
    }
    Ok(())
}

#[test]
fn sort_merge_gives_the_rows_of_the_hash_join() -> Result<()> {
    assert_same_rows(&[ALWAYS], "SortMergeJoinExec")
}

#[test]
fn grace_gives_the_rows_of_the_hash_join() -> Result<()> {
    assert_same_rows(&[GRACE, ALWAYS], "GraceHashJoinExec")
}

#[test]
fn grace_gives_the_rows_of_the_hash_join_when_all_buckets_are_spilled() -> Result<()> {
    let options = [GRACE, ALWAYS, ("spill", "all"), ("fan_out", "4")];
    assert_same_rows(&options, "GraceHashJoinExec")
}

#[test]
fn an_order_by_over_a_replaced_join_is_kept() -> Result<()> {
    for options in [vec![GRACE, ALWAYS, ("spill", "all")], vec![ALWAYS]] {
        for place in [Place::Early, Place::Appended] {
            let ctx = sorted_session(&Session::new(place, &options))?;
            let sql = "SELECT v FROM (SELECT o.v FROM l JOIN o ON l.k = o.k) ORDER BY v";
            let (got, _) = decisions(rows_in_order(&ctx, sql))?;
            let values = got
                .iter()
                .filter_map(|l| l.trim_matches(['|', ' ']).parse::<i64>().ok());
            assert!(values.is_sorted(), "{got:?}");
        }
    }
    Ok(())
}

/// Runs one test of this file in a process of its own, with the environment variable set.
fn run_with_env(test: &str, value: &str) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(SPILL_JOIN_BUILD_BYTES_ENV, value)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
fn the_environment_variable_wins_over_option_and_pool() {
    run_with_env("env_of_one_byte", "1");
}

#[test]
#[ignore = "run by the_environment_variable_wins_over_option_and_pool"]
fn env_of_one_byte() -> Result<()> {
    let mut session = Session::new(Place::Early, &[GRACE, ("build_bytes", "1000000")]);
    session.memory = 0;
    let (plan, _) = planned(&session, JOIN)?;
    assert!(plan.contains("GraceHashJoinExec"), "{plan}");
    Ok(())
}

#[test]
fn a_bad_environment_variable_is_an_error_at_first_use() {
    run_with_env("env_that_is_no_number", "many");
}

#[test]
#[ignore = "run by a_bad_environment_variable_is_an_error_at_first_use"]
fn env_that_is_no_number() {
    let error = planned(&Session::new(Place::Early, &[GRACE]), JOIN).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("SPILL_JOIN_BUILD_BYTES cannot be 'many'"),
        "{message}"
    );
}
