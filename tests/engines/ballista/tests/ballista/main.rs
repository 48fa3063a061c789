//! The promise: on Ballista the join does what it does in one process, in each task's own memory,
//! with the adaptive planner and with the static one.

use std::path::Path;

use datafusion::prelude::SessionContext;
use engines_testbed::answers::{OneProcess, compare, multiset};
use engines_testbed::joins::Counts;
use engines_testbed::{Result, options, queries, tpch};
use grace_hash_join_ballista::{Client, Cluster, Executors, Hook};

mod order;
mod scale_one;
mod stop;

/// Small enough to be quick without optimization.
const SCALE: f64 = 0.01;

/// Every bucket of every join goes to disk.
const ON_DISK: [(&str, &str); 1] = [("spill", "all")];

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

/// A join whose build side is large, under an aggregate that is not.
const WIDE: &str = "SELECT max(o_comment), max(l_comment), count(*) FROM orders \
                    JOIN lineitem ON o_orderkey = l_orderkey";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_fails_or_sorts_finishes_and_spills_in_both_planners() -> Result<()> {
    const SCALE: f64 = 0.1;
    let tables = tpch::tables(SCALE)?;
    let small = Executors {
        task_memory: 4 << 20,
        ..Executors::default()
    };
    let stock = Executors {
        hook: Hook::None,
        ..small
    };
    let (stock, grace) = (Cluster::start(stock).await?, Cluster::start(small).await?);
    let right = OneProcess::new(&tables).await?.multiset(WIDE).await?;
    for is_adaptive in [true, false] {
        let hash = Client {
            is_adaptive,
            ..Client::default()
        };
        // The settings are for both planners: Ballista as it is plans hash joins, and fails.
        let ctx = client(&stock, hash, &[], &tables).await?;
        let error = multiset(&ctx, WIDE).await.expect_err("a pool too small");
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
            let outcome = multiset(&ctx, WIDE).await.map(|rows| rows == right);
            let counts = stock.joins().take();
            println!("sorting: {outcome:?}, {counts:?}");
            assert!(counts.hash == 0 && counts.sort_merge > 0, "{counts:?}");
        }
        let ctx = client(&grace, hash, &[], &tables).await?;
        assert_eq!(multiset(&ctx, WIDE).await?, right);
        let counts = grace.joins().take();
        println!("adaptive: {is_adaptive}, {counts:?}");
        assert!(counts.grace > 0 && counts.spilled_bytes > 0, "{counts:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_many_joins_answer_as_in_one_process_in_both_planners() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let cluster = Cluster::start(Executors::default()).await?;
    let mut right = OneProcess::new(&tables).await?;
    for number in [2, 5, 8, 9, 18, 20, 21, 22] {
        let sql = tpch::query(number, SCALE);
        let right = right.multiset(&sql).await?;
        for is_adaptive in [true, false] {
            let what = format!("q{number}, adaptive: {is_adaptive}");
            let how = Client {
                is_adaptive,
                ..Client::default()
            };
            let ctx = client(&cluster, how, &ON_DISK, &tables).await?;
            let found = multiset(&ctx, &sql).await;
            assert_eq!(found.map_err(|e| format!("{what}: {e}"))?, right, "{what}");
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broadcast_builds_give_no_row_twice_and_lose_none() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    // One partition a task, so that a collected build side is one beside one.
    let cluster = Cluster::start(Executors {
        vcores: 1,
        count: 3,
        ..Executors::default()
    })
    .await?;
    let mut right = OneProcess::new(&tables).await?;
    let mut total = Counts::default();
    for is_adaptive in [true, false] {
        for broadcast_bytes in [0, 16 << 20] {
            let how = Client {
                is_adaptive,
                broadcast_bytes,
                ..Client::default()
            };
            let ctx = client(&cluster, how, &ON_DISK, &tables).await?;
            let what = format!("adaptive {is_adaptive}, broadcasts below {broadcast_bytes}");
            total += compare(&ctx, cluster.joins(), &mut right, &queries::JOINS, &what).await?;
        }
    }
    println!("{total:?}");
    assert!(total.grace > 0 && total.spilled_bytes > 0, "{total:?}");
    for kind in queries::BROADCAST.iter().chain(&queries::NEVER_BROADCAST) {
        assert!(total.has(kind), "no {kind}: {total:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_reach_the_executors_and_metrics_come_back() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let sql = queries::JOINS[0].sql;
    for hook in [Hook::Engine, Hook::Codec] {
        let cluster = Cluster::start(Executors {
            hook,
            ..Executors::default()
        })
        .await?;
        let how = Client::default();
        let off = client(&cluster, how, &[("enabled", "false")], &tables).await?;
        multiset(&off, sql).await?;
        let counts = cluster.joins().take();
        assert!(counts.grace == 0 && counts.hash > 0, "{hook:?}: {counts:?}");

        let on = client(&cluster, how, &[], &tables).await?;
        on.sql("SET grace_hash_join.spill = 'all'").await?;
        let shown = multiset(&on, &format!("EXPLAIN ANALYZE {sql}"))
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
