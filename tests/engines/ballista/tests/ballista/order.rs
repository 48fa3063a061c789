//! The promise: whoever relies on the order of a join's rows gets it, with every bucket on disk, by
//! both planners and both hooks.
//!
//! The files are not said to be sorted: over files that are, Ballista 55 loses rows and order by
//! itself, whoever joins.

use engines_testbed::answers::{OneProcess, compare};
use engines_testbed::joins::Counts;
use engines_testbed::queries::ORDERED;
use engines_testbed::{Result, tpch};
use grace_hash_join_ballista::{Client, Cluster, Executors, Hook};

use super::{ON_DISK, SCALE, client};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_keep_the_order_that_somebody_relies_on() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let mut right = OneProcess::new(&tables).await?;
    for hook in [Hook::Engine, Hook::Codec] {
        let cluster = Cluster::start(Executors {
            hook,
            ..Executors::default()
        })
        .await?;
        for is_adaptive in [true, false] {
            let mut total = Counts::default();
            // Of partitioned sides, and of broadcast ones.
            let broadcasts: &[usize] = match hook {
                Hook::Codec => &[0],
                _ => &[0, 16 << 20],
            };
            for &broadcast_bytes in broadcasts {
                let how = Client {
                    is_adaptive,
                    broadcast_bytes,
                    ..Client::default()
                };
                let ctx = client(&cluster, how, &ON_DISK, &tables).await?;
                let what = format!("{hook:?}, {how:?}");
                total += compare(&ctx, cluster.joins(), &mut right, &ORDERED, &what).await?;
            }
            println!("{hook:?}, adaptive: {is_adaptive}, {total:?}");
            // Some were replaced, and some kept for their order although nothing else was in the way.
            assert!(total.grace > 0 && total.spilled_bytes > 0, "{total:?}");
            assert!(
                total.kinds.contains_key("hash Partitioned Inner"),
                "{total:?}"
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_merge_join_above_gets_its_inputs_in_order() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let mut right = OneProcess::new(&tables).await?;
    let cluster = Cluster::start(Executors::default()).await?;
    // The adaptive planner broadcasts the small builds, and sorts and merges beside the large ones.
    let how = Client {
        sort_merge_bytes: 1,
        broadcast_bytes: 64 << 10,
        ..Client::default()
    };
    let ctx = client(&cluster, how, &ON_DISK, &tables).await?;
    let total = compare(&ctx, cluster.joins(), &mut right, &ORDERED, "merge joins").await?;
    println!("{total:?}");
    assert!(total.sort_merge > 0 && total.grace > 0, "{total:?}");
    assert!(total.spilled_bytes > 0, "{total:?}");
    Ok(())
}
