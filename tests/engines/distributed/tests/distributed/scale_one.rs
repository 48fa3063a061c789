//! TPC-H at scale 1: minutes without optimization, and a third of a gigabyte of tables, so on demand.
//!
//! ```sh
//! cargo test --manifest-path tests/engines/Cargo.toml -p grace-hash-join-distributed \
//!     --test distributed -- --ignored --nocapture
//! ```

use engines_testbed::{Result, tpch};
use grace_hash_join_distributed::{Cluster, Workers};

use super::{client, compare_all, config, fails_without_and_finishes_with};

const SCALE: f64 = 1.0;

/// What each task has, in bytes.
const TASK_MEMORY: usize = 32 << 20;

#[ignore = "minutes: see the head of this file"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_scale_one_a_task_that_fails_for_memory_finishes_and_spills() -> Result<()> {
    fails_without_and_finishes_with(&tpch::tables(SCALE)?, SCALE, TASK_MEMORY).await
}

#[ignore = "minutes: see the head of this file"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_scale_one_all_queries_answer_as_in_one_process() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let cluster = Cluster::start(Workers {
        task_memory: 2 * TASK_MEMORY,
        ..Workers::default()
    })?;
    let ctx = client(&cluster, config(2), &[], &tables).await?;
    let total = compare_all(&cluster, &ctx, &tables, SCALE).await?;
    println!("{total:?}");
    assert!(total.spilled_bytes > 0, "{total:?}");
    Ok(())
}
