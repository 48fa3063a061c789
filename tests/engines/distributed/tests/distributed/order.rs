//! The promise: whoever relies on the order of a join's rows gets it, with every bucket on disk.
//!
//! Files that are known to be sorted are read with one partition a task only: with more,
//! `datafusion-distributed` 4.0 takes what exchanges between tasks hand on for sorted, and it is not,
//! whoever joins.

use engines_testbed::answers::{OneProcess, compare};
use engines_testbed::joins::Counts;
use engines_testbed::queries::{ORDERED, UNION};
use engines_testbed::{Result, options, partitioned, tpch};
use grace_hash_join_distributed::{Cluster, Workers};

use super::{ON_DISK, SCALE, client, config, with_rule_on_coordinator};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_keep_the_order_that_somebody_relies_on() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let cluster = Cluster::start(Workers::default())?;
    let mut right = OneProcess::new(&tables).await?;
    let queries = [&ORDERED[..], &[UNION]].concat();
    let mut total = Counts::default();
    for (what, config) in [
        ("one partition a task", config(1)),
        ("two partitions a task", config(2)),
        ("partitioned sides", partitioned(config(2))),
    ] {
        let ctx = client(&cluster, config, &ON_DISK, &tables).await?;
        total += compare(&ctx, cluster.joins(), &mut right, &queries, what).await?;
    }
    let ctx = cluster.session(config(1), options(&ON_DISK)?)?;
    tpch::register_sorted(&ctx, &tables).await?;
    total += compare(&ctx, cluster.joins(), &mut right, &queries, "sorted files").await?;
    println!("{total:?}");
    // Some were replaced, and some kept for their order although nothing else was in the way.
    assert!(total.grace > 0 && total.spilled_bytes > 0, "{total:?}");
    assert!(
        total.kinds.contains_key("hash Partitioned Inner"),
        "{total:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_join_above_gets_its_inputs_in_order() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let cluster = Cluster::start(Workers::default())?;
    let mut right = OneProcess::new(&tables).await?;
    // The coordinator turns its larger joins into sort-merge joins, the workers replace the others.
    let settings = [
        ("algorithm", "sort_merge"),
        ("build_bytes", "60000"),
        ("spill", "all"),
    ];
    let ctx = cluster.session(partitioned(config(2)), options(&settings)?)?;
    let ctx = with_rule_on_coordinator(&ctx);
    tpch::register(&ctx, &tables).await?;
    let mut total = compare(&ctx, cluster.joins(), &mut right, &ORDERED, "partitioned").await?;
    let ctx = cluster.session(config(1), options(&settings)?)?;
    let ctx = with_rule_on_coordinator(&ctx);
    tpch::register_sorted(&ctx, &tables).await?;
    total += compare(&ctx, cluster.joins(), &mut right, &ORDERED, "sorted files").await?;
    println!("{total:?}");
    assert!(total.sort_merge > 0 && total.grace > 0, "{total:?}");
    assert!(total.spilled_bytes > 0, "{total:?}");
    Ok(())
}
