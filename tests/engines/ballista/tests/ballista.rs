//! The promise: on Ballista the join does what it does in one process, in each task's own memory,
//! with the adaptive planner and with the static one.

use std::path::Path;
use std::time::Duration;

use datafusion::prelude::{SessionConfig, SessionContext};
use engines_testbed::joins::Counts;
use engines_testbed::{Result, rows, tpch};
use grace_hash_join::GraceHashJoinOptions;
use grace_hash_join_ballista::{Client, Cluster, Executors, Hook};
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine.
const TOO_LONG: Duration = Duration::from_secs(300);

/// Hash joins of partitioned sides, whatever their sizes.
const PARTITIONED: Client = Client {
    is_adaptive: true,
    prefers_hash_join: true,
    broadcast_bytes: 0,
    partitions: 4,
};

const EXECUTORS: Executors = Executors {
    count: 2,
    vcores: 2,
    task_memory: 256 << 20,
    hook: Hook::Engine,
};

fn options(settings: &[(&str, &str)]) -> Result<GraceHashJoinOptions> {
    let mut options = GraceHashJoinOptions::default();
    for (key, value) in settings {
        options = options.with(key, value)?;
    }
    Ok(options)
}

async fn client(
    cluster: &Cluster,
    client: Client,
    settings: &[(&str, &str)],
    tables: &Path,
) -> Result<SessionContext> {
    let ctx = cluster.session(client, options(settings)?).await?;
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
    let ctx = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(2));
    tpch::register(&ctx, tables).await?;
    answer(&ctx, sql).await
}

/// A join whose build side is large, under an aggregate that is not.
const WIDE: &str = "SELECT max(o_comment), max(l_comment), count(*) FROM orders \
                    JOIN lineitem ON o_orderkey = l_orderkey";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_fails_or_sorts_finishes_and_spills_in_both_planners() -> Result<()> {
    const SCALE: f64 = 0.1;
    let tables = tpch::tables(SCALE)?;
    let small = Executors {
        task_memory: 4 << 20,
        ..EXECUTORS
    };
    let stock = Executors {
        hook: Hook::None,
        ..small.clone()
    };
    let (stock, grace) = (Cluster::start(&stock).await?, Cluster::start(&small).await?);
    let right = expected(WIDE, &tables).await?;
    for is_adaptive in [true, false] {
        let hash = Client {
            is_adaptive,
            ..PARTITIONED
        };
        // The settings are for both planners: Ballista as it is plans hash joins, and fails.
        let ctx = client(&stock, hash, &[], &tables).await?;
        let error = answer(&ctx, WIDE).await.expect_err("a pool too small");
        assert!(error.to_string().contains("HashJoinInput"), "{error}");
        let counts = stock.joins().take();
        assert!(counts.hash > 0 && counts.sort_merge == 0, "{counts:?}");
        // Without them the static planner turns to sort-merge joins.
        if !is_adaptive {
            let sorting = Client {
                prefers_hash_join: false,
                ..hash
            };
            let ctx = client(&stock, sorting, &[], &tables).await?;
            let outcome = answer(&ctx, WIDE).await.map(|rows| rows == right);
            let counts = stock.joins().take();
            println!("sorting: {outcome:?}, {counts:?}");
            assert!(counts.hash == 0 && counts.sort_merge > 0, "{counts:?}");
        }
        let ctx = client(&grace, hash, &[], &tables).await?;
        assert_eq!(answer(&ctx, WIDE).await?, right);
        let counts = grace.joins().take();
        println!("adaptive: {is_adaptive}, {counts:?}");
        assert!(counts.grace > 0 && counts.spilled_bytes > 0, "{counts:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_many_joins_answer_as_in_one_process_in_both_planners() -> Result<()> {
    const SCALE: f64 = 0.01;
    let tables = tpch::tables(SCALE)?;
    let cluster = Cluster::start(&EXECUTORS).await?;
    for number in [18, 21] {
        let sql = tpch::query(number, SCALE);
        let right = expected(&sql, &tables).await?;
        for is_adaptive in [true, false] {
            let what = format!("q{number}, adaptive: {is_adaptive}");
            let how = Client {
                is_adaptive,
                ..PARTITIONED
            };
            let ctx = client(&cluster, how, &[("spill", "all")], &tables).await?;
            assert_eq!(answer(&ctx, &sql).await?, right, "{what}");
            let counts = cluster.joins().take();
            println!("{what}: {counts:?}");
            assert!(
                counts.grace > 0 && counts.spilled_bytes > 0,
                "{what}: {counts:?}"
            );
        }
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
    let tables = tpch::tables(0.01)?;
    // One partition a task, so that a collected build side is one beside one.
    let cluster = Cluster::start(&Executors {
        vcores: 1,
        count: 3,
        ..EXECUTORS
    })
    .await?;
    let mut total = Counts::default();
    for is_adaptive in [true, false] {
        for broadcast_bytes in [0, 16 << 20] {
            let how = Client {
                is_adaptive,
                broadcast_bytes,
                ..PARTITIONED
            };
            let ctx = client(&cluster, how, &[("spill", "all")], &tables).await?;
            for sql in JOINS {
                let what = format!("{how:?}: {sql}");
                let found = answer(&ctx, sql)
                    .await
                    .map_err(|e| format!("{what}: {e}"))?;
                assert_eq!(found, expected(sql, &tables).await?, "{what}");
                let counts = cluster.joins().take();
                println!("{counts:?} {what}");
                assert!(counts.grace + counts.hash > 0, "no executor joined: {what}");
                total.grace += counts.grace;
                total.spilled_bytes += counts.spilled_bytes;
            }
        }
    }
    assert!(total.grace > 0 && total.spilled_bytes > 0, "{total:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_reach_the_executors_and_metrics_come_back() -> Result<()> {
    let tables = tpch::tables(0.01)?;
    let sql = JOINS[0];
    for hook in [Hook::Engine, Hook::Codec] {
        let cluster = Cluster::start(&Executors { hook, ..EXECUTORS }).await?;
        let off = client(&cluster, PARTITIONED, &[("enabled", "false")], &tables).await?;
        answer(&off, sql).await?;
        let counts = cluster.joins().take();
        assert!(counts.grace == 0 && counts.hash > 0, "{hook:?}: {counts:?}");

        let on = client(&cluster, PARTITIONED, &[], &tables).await?;
        on.sql("SET grace_hash_join.spill = 'all'").await?;
        let shown = answer(&on, &format!("EXPLAIN ANALYZE {sql}"))
            .await?
            .join("\n");
        let counts = cluster.joins().take();
        assert!(
            counts.grace > 0 && counts.spilled_bytes > 0,
            "{hook:?}: {counts:?}"
        );
        // The scheduler shows the plan that it made, with what the executors counted.
        println!("{hook:?}\n{shown}");
        let join = shown.lines().find(|l| l.contains("HashJoinExec"));
        assert!(
            join.is_some_and(|l| l.contains("spilled_bytes=")),
            "{shown}"
        );
    }
    Ok(())
}
