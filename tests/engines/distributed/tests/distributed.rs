//! The promise: on `datafusion-distributed` the join does what it does in one process, in each task's
//! own memory.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::execution::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use engines_testbed::joins::Counts;
use engines_testbed::{Result, rows, tpch};
use futures::TryStreamExt;
use grace_hash_join::{GraceHashJoinOptions, SpillableJoinSelection};
use grace_hash_join_distributed::{Cluster, Workers, with_metrics};
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
const TOO_LONG: Duration = Duration::from_secs(300);

/// Small enough to be quick without optimization.
const SCALE: f64 = 0.01;

fn config(partitions: usize) -> SessionConfig {
    SessionConfig::new().with_target_partitions(partitions)
}

/// With both sides of each join partitioned, however small they are.
fn partitioned(config: SessionConfig) -> SessionConfig {
    config
        .set_u64(
            "datafusion.optimizer.hash_join_single_partition_threshold",
            0,
        )
        .set_u64(
            "datafusion.optimizer.hash_join_single_partition_threshold_rows",
            0,
        )
}

fn options(settings: &[(&str, &str)]) -> Result<GraceHashJoinOptions> {
    let mut options = GraceHashJoinOptions::default();
    for (key, value) in settings {
        options = options.with(key, value)?;
    }
    Ok(options)
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

async fn answer(ctx: &SessionContext, sql: &str) -> Result<Vec<String>> {
    let frame = ctx.sql(sql).await?;
    let schema = frame.schema().as_arrow().clone();
    let batches = timeout(TOO_LONG, frame.collect()).await??;
    rows::sorted(&schema, &batches)
}

/// The answer of one process without a limit.
async fn expected(sql: &str, tables: &Path) -> Result<Vec<String>> {
    let ctx = SessionContext::new_with_config(config(2));
    tpch::register(&ctx, tables).await?;
    answer(&ctx, sql).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_tpch_queries_answer_as_in_one_process() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let workers = Workers {
        count: 2,
        task_memory: 256 << 20,
        is_watched: true,
    };
    let cluster = Cluster::start(&workers)?;
    let ctx = client(
        &cluster,
        partitioned(config(2)),
        &[("spill", "all")],
        &tables,
    )
    .await?;
    let mut total = Counts::default();
    for number in 1..=22 {
        let sql = tpch::query(number, SCALE);
        let found = answer(&ctx, &sql)
            .await
            .map_err(|e| format!("q{number}: {e}"))?;
        assert_eq!(found, expected(&sql, &tables).await?, "q{number}");
        let counts = cluster.joins().take();
        println!("q{number}: {counts:?}");
        total.grace += counts.grace;
        total.spilled_bytes += counts.spilled_bytes;
    }
    // q1 and q6 have no join; each other has one in at least two tasks.
    assert!(total.grace >= 40, "{total:?}");
    assert!(total.spilled_bytes > 1 << 20, "{total:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_fails_for_memory_finishes_and_spills() -> Result<()> {
    const SCALE: f64 = 0.1;
    let tables = tpch::tables(SCALE)?;
    let workers = Workers {
        count: 2,
        task_memory: 4 << 20,
        is_watched: true,
    };
    let cluster = Cluster::start(&workers)?;
    for number in [18, 21] {
        let sql = tpch::query(number, SCALE);
        // The option goes to the workers: nothing is replaced there.
        let off = client(&cluster, config(2), &[("enabled", "false")], &tables).await?;
        let error = answer(&off, &sql).await;
        let error = error.expect_err("a pool that is too small").to_string();
        assert!(error.contains("HashJoinInput"), "q{number}: {error}");
        let counts = cluster.joins().take();
        assert!(
            counts.grace == 0 && counts.hash > 0,
            "q{number}: {counts:?}"
        );

        let on = client(&cluster, config(2), &[], &tables).await?;
        let right = expected(&sql, &tables).await?;
        assert_eq!(answer(&on, &sql).await?, right, "q{number}");
        let counts = cluster.joins().take();
        println!("q{number}: {counts:?}");
        assert!(counts.spilled_bytes > 0, "q{number}: {counts:?}");
    }
    Ok(())
}

/// A query for each join type that SQL can ask for, small table first.
const JOINS: [&str; 9] = [
    "SELECT c_custkey, o_orderkey FROM customer JOIN orders ON c_custkey = o_custkey",
    "SELECT c_custkey, o_orderkey FROM customer LEFT JOIN orders ON c_custkey = o_custkey \
     AND o_totalprice > 100000",
    "SELECT c_custkey, o_orderkey FROM customer RIGHT JOIN orders ON c_custkey = o_custkey \
     AND c_acctbal > 0",
    "SELECT c_custkey, o_orderkey FROM customer FULL JOIN orders ON c_custkey = o_custkey \
     AND c_acctbal > 0 AND o_totalprice > 100000",
    "SELECT c_custkey FROM customer WHERE EXISTS (SELECT 1 FROM orders WHERE c_custkey = o_custkey)",
    "SELECT c_custkey FROM customer WHERE NOT EXISTS \
     (SELECT 1 FROM orders WHERE c_custkey = o_custkey)",
    "SELECT o_orderkey FROM orders WHERE NOT EXISTS \
     (SELECT 1 FROM customer WHERE c_custkey = o_custkey AND c_acctbal > 0)",
    "SELECT c_custkey FROM customer WHERE c_acctbal > 9000 OR EXISTS \
     (SELECT 1 FROM orders WHERE c_custkey = o_custkey AND o_totalprice > 200000)",
    "SELECT o_orderkey FROM orders WHERE o_totalprice > 300000 OR EXISTS \
     (SELECT 1 FROM customer WHERE c_custkey = o_custkey AND c_acctbal > 5000)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broadcast_builds_give_no_row_twice_and_lose_none() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let workers = Workers {
        count: 3,
        task_memory: 256 << 20,
        is_watched: true,
    };
    let cluster = Cluster::start(&workers)?;
    let (mut joins, mut spilled) = (0, 0);
    for broadcasts in ["true", "false"] {
        // With one partition a task, a collected build side is one beside one and is replaced; with
        // two it is shared, and stays.
        for partitions in [1, 2] {
            let ctx = client(&cluster, config(partitions), &[("spill", "all")], &tables).await?;
            ctx.sql(&format!("SET distributed.broadcast_joins = {broadcasts}"))
                .await?;
            for sql in JOINS {
                let found = answer(&ctx, sql).await.map_err(|e| format!("{sql}: {e}"))?;
                assert_eq!(found, expected(sql, &tables).await?, "{partitions}: {sql}");
                let counts = cluster.joins().take();
                println!("broadcast {broadcasts}, {partitions} partitions: {counts:?} {sql}");
                joins += counts.grace + counts.hash;
                spilled += counts.spilled_bytes;
            }
        }
    }
    // What has one partition, the coordinator joins itself.
    assert!(
        joins >= 4 * JOINS.len() && spilled > 0,
        "{joins} joins, {spilled} bytes"
    );
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
    let workers = Workers {
        count: 2,
        task_memory: 256 << 20,
        is_watched: true,
    };
    let cluster = Cluster::start(&workers)?;
    let ctx = client(
        &cluster,
        partitioned(config(2)),
        &[("spill", "all")],
        &tables,
    )
    .await?;
    let plan = run(&ctx, JOINS[0]).await?;
    let counts = cluster.joins().take();
    assert!(counts.grace >= 2 && counts.spilled_bytes > 0, "{counts:?}");
    assert_eq!(spilled_by_plan(&plan), counts.spilled_bytes);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_has_the_node_already_travels() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let workers = Workers {
        count: 2,
        task_memory: 256 << 20,
        is_watched: true,
    };
    let cluster = Cluster::start(&workers)?;
    let settings = [
        ("algorithm", "grace"),
        ("select", "always"),
        ("spill", "all"),
        ("fan_out", "8"),
    ];
    let ctx = client(&cluster, partitioned(config(2)), &settings, &tables).await?;
    // The coordinator's own rule, before the plan is cut into stages.
    let rule = Arc::new(SpillableJoinSelection::new());
    let state = SessionStateBuilder::new_from_existing(ctx.state());
    let state = state.with_physical_optimizer_rule(rule).build();
    let ctx = SessionContext::new_with_state(state);
    let sql = JOINS[1];
    let plan = run(&ctx, sql).await?;
    let shown = datafusion_distributed::display_plan_ascii(plan.as_ref(), false);
    assert!(shown.contains("GraceHashJoinExec"), "{shown}");
    let counts = cluster.joins().take();
    assert!(counts.grace >= 2 && counts.spilled_bytes > 0, "{counts:?}");
    assert_eq!(answer(&ctx, sql).await?, expected(sql, &tables).await?);
    Ok(())
}

/// The files below a directory, whoever made them.
fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return vec![];
    };
    let mut found = Vec::new();
    for path in entries.flatten().map(|e| e.path()) {
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

/// Waits until `is_so`.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(
            start.elapsed() < TOO_LONG,
            "not within {TOO_LONG:?}: {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stops_midway_is_an_error_and_leaves_no_file() -> Result<()> {
    const SCALE: f64 = 0.1;
    let tables = tpch::tables(SCALE)?;
    let workers = Workers {
        count: 2,
        task_memory: 256 << 20,
        is_watched: false,
    };
    let mut cluster = Cluster::start(&workers)?;
    let ctx = client(
        &cluster,
        partitioned(config(2)),
        &[("spill", "all")],
        &tables,
    )
    .await?;
    let sql = "SELECT * FROM lineitem a JOIN lineitem b ON a.l_orderkey = b.l_orderkey";
    let query = tokio::spawn(async move { answer(&ctx, sql).await.map_err(|e| e.to_string()) });
    let directories = [0, 1].map(|w| cluster.directory(w).to_path_buf());
    until("both workers spill", || {
        directories.iter().all(|d| !files(d).is_empty())
    })
    .await;
    assert!(!query.is_finished());
    cluster.stop(0);
    let error = timeout(TOO_LONG, query).await??;
    let error = error.expect_err("half of the answer is none");
    println!("{error}");
    // The other worker's tasks are cancelled with the query.
    until("the files are gone", || {
        directories.iter().all(|d| files(d).is_empty())
    })
    .await;
    drop(cluster);
    assert!(directories.iter().all(|d| !d.exists()));
    Ok(())
}
