//! The promise: on `datafusion-distributed` the join does what it does in one process, in each task's
//! own memory.

use std::path::Path;
use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use engines_testbed::answers::{OneProcess, TOO_LONG, compare, multiset};
use engines_testbed::joins::Counts;
use engines_testbed::{Result, options, partitioned, queries, tpch};
use futures::TryStreamExt;
use grace_hash_join::SpillableJoinSelection;
use grace_hash_join_distributed::{Cluster, Workers, with_metrics};
use tokio::time::timeout;

mod order;
mod scale_one;
mod stop;

/// Small enough to be quick without optimization.
const SCALE: f64 = 0.01;

/// Every bucket of every join goes to disk.
const ON_DISK: [(&str, &str); 1] = [("spill", "all")];

fn config(partitions: usize) -> SessionConfig {
    SessionConfig::new().with_target_partitions(partitions)
}

/// A client of `cluster` that knows the tables.
async fn client(
    cluster: &Cluster,
    config: SessionConfig,
    settings: &[(&str, &str)],
    tables: &Path,
) -> Result<SessionContext> {
    let ctx = cluster.session(config, options(settings)?)?;
    tpch::register(&ctx, tables).await?;
    Ok(ctx)
}

/// `ctx` with the rule in the coordinator's session, before a plan is cut into stages.
fn with_rule_on_coordinator(ctx: &SessionContext) -> SessionContext {
    let rule = Arc::new(SpillableJoinSelection::new());
    let state = SessionStateBuilder::new_from_existing(ctx.state());
    let state = state.with_physical_optimizer_rule(rule).build();
    SessionContext::new_with_state(state)
}

/// Runs all queries and compares their answers with those of one process.
async fn compare_all(
    cluster: &Cluster,
    ctx: &SessionContext,
    tables: &Path,
    scale: f64,
) -> Result<Counts> {
    let mut right = OneProcess::new(tables).await?;
    let mut total = Counts::default();
    for number in 1..=22 {
        let sql = tpch::query(number, scale);
        let found = multiset(ctx, &sql)
            .await
            .map_err(|e| format!("q{number}: {e}"))?;
        assert_eq!(found, right.multiset(&sql).await?, "q{number}");
        let counts = cluster.joins().take();
        println!("q{number}: {} rows, {counts:?}", found.len() - 1);
        total += counts;
    }
    Ok(total)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_tpch_queries_answer_as_in_one_process() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let cluster = Cluster::start(Workers::default())?;
    let ctx = client(&cluster, partitioned(config(2)), &ON_DISK, &tables).await?;
    let total = compare_all(&cluster, &ctx, &tables, SCALE).await?;
    // q1 and q6 have no join; each other has one in at least two tasks.
    assert!(total.grace >= 40, "{total:?}");
    assert!(total.spilled_bytes > 1 << 20, "{total:?}");
    Ok(())
}

/// q18 and q21: they fail in pools of `task_memory` as the engine is, and with the hook they spill and
/// answer as one process does.
async fn fails_without_and_finishes_with(
    tables: &Path,
    scale: f64,
    task_memory: usize,
) -> Result<()> {
    let workers = Workers {
        task_memory,
        ..Workers::default()
    };
    let cluster = Cluster::start(workers)?;
    let mut right = OneProcess::new(tables).await?;
    for number in [18, 21] {
        let sql = tpch::query(number, scale);
        // The option goes to the workers: nothing is replaced there.
        let off = client(&cluster, config(2), &[("enabled", "false")], tables).await?;
        let error = multiset(&off, &sql).await;
        let error = error.expect_err("a pool that is too small").to_string();
        println!("q{number} as the engine is: {error}");
        assert!(error.contains("HashJoinInput"), "q{number}: {error}");
        let counts = cluster.joins().take();
        assert!(
            counts.grace == 0 && counts.hash > 0,
            "q{number}: {counts:?}"
        );

        let on = client(&cluster, config(2), &[], tables).await?;
        let found = multiset(&on, &sql).await?;
        assert_eq!(found, right.multiset(&sql).await?, "q{number}");
        let counts = cluster.joins().take();
        println!("q{number}: {} rows, {counts:?}", found.len() - 1);
        assert!(counts.spilled_bytes > 0, "q{number}: {counts:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_fails_for_memory_finishes_and_spills() -> Result<()> {
    const SCALE: f64 = 0.1;
    fails_without_and_finishes_with(&tpch::tables(SCALE)?, SCALE, 4 << 20).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broadcast_builds_give_no_row_twice_and_lose_none() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let cluster = Cluster::start(Workers {
        count: 3,
        ..Workers::default()
    })?;
    let mut right = OneProcess::new(&tables).await?;
    let mut total = Counts::default();
    for broadcasts in ["true", "false"] {
        // With one partition a task, a collected build side is one beside one and is replaced; with
        // two it is shared, and stays.
        for partitions in [1, 2] {
            let ctx = client(&cluster, config(partitions), &ON_DISK, &tables).await?;
            ctx.sql(&format!("SET distributed.broadcast_joins = {broadcasts}"))
                .await?;
            let what = format!("broadcasts {broadcasts}, {partitions} partitions");
            total += compare(&ctx, cluster.joins(), &mut right, &queries::JOINS, &what).await?;
        }
    }
    // What has one partition the coordinator joins itself; the branches of a union are tasks.
    let ctx = client(&cluster, config(1), &ON_DISK, &tables).await?;
    for query in queries::JOINS {
        let sql = format!("{0} UNION ALL {0}", query.sql);
        let found = multiset(&ctx, &sql).await?;
        assert_eq!(found, right.multiset(&sql).await?, "{sql}");
        let counts = cluster.joins().take();
        println!("{sql}: {counts:?}");
        total += counts;
    }
    println!("{total:?}");
    assert!(total.spilled_bytes > 0, "{total:?}");
    for kind in queries::BROADCAST.iter().chain(&queries::NEVER_BROADCAST) {
        assert!(total.has(kind), "no {kind}: {total:?}");
    }
    Ok(())
}

/// What the plan that was executed says its hash joins have written to disk.
fn spilled_by_plan(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let own = match plan.name() {
        "HashJoinExec" | "GraceHashJoinExec" => {
            plan.metrics().and_then(|m| m.spilled_bytes()).unwrap_or(0)
        }
        _ => 0,
    };
    let below = plan.children().into_iter().map(spilled_by_plan);
    own + below.sum::<usize>()
}

async fn run(ctx: &SessionContext, sql: &str) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let stream = execute_stream(Arc::clone(&plan), ctx.task_ctx())?;
    timeout(TOO_LONG, stream.try_collect::<Vec<_>>()).await??;
    Ok(timeout(TOO_LONG, with_metrics(plan)).await??)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_sees_what_the_workers_spilled() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let cluster = Cluster::start(Workers::default())?;
    let ctx = client(&cluster, partitioned(config(2)), &ON_DISK, &tables).await?;
    let plan = run(&ctx, queries::JOINS[0].sql).await?;
    let counts = cluster.joins().take();
    assert!(counts.grace >= 2 && counts.spilled_bytes > 0, "{counts:?}");
    assert_eq!(spilled_by_plan(&plan), counts.spilled_bytes);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_has_the_node_already_travels() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let cluster = Cluster::start(Workers::default())?;
    let settings = [
        ("algorithm", "grace"),
        ("select", "always"),
        ("spill", "all"),
        ("fan_out", "8"),
    ];
    let ctx = client(&cluster, partitioned(config(2)), &settings, &tables).await?;
    let ctx = with_rule_on_coordinator(&ctx);
    let sql = queries::JOINS[1].sql;
    let plan = run(&ctx, sql).await?;
    let shown = datafusion_distributed::display_plan_ascii(plan.as_ref(), false);
    assert!(shown.contains("GraceHashJoinExec"), "{shown}");
    let counts = cluster.joins().take();
    assert!(counts.grace >= 2 && counts.spilled_bytes > 0, "{counts:?}");
    let mut right = OneProcess::new(&tables).await?;
    let total = compare(
        &ctx,
        cluster.joins(),
        &mut right,
        &queries::JOINS,
        "the node travels",
    )
    .await?;
    assert!(total.spilled_bytes > 0, "{total:?}");
    Ok(())
}
