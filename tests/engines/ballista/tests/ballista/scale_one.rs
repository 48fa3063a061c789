//! TPC-H at scale 1: minutes without optimization, and a third of a gigabyte of tables, so on demand.
//!
//! ```sh
//! cargo test --manifest-path tests/engines/Cargo.toml -p grace-hash-join-ballista \
//!     --test ballista -- --ignored --nocapture
//! ```

use engines_testbed::answers::{OneProcess, multiset};
use engines_testbed::{Result, tpch};
use grace_hash_join_ballista::{Client, Cluster, Executors, Hook};

use super::client;

const SCALE: f64 = 1.0;

/// A query, and what each task has, in bytes.
const QUERIES: [(usize, usize); 2] = [(18, 32 << 20), (21, 12 << 20)];

#[ignore = "minutes: see the head of this file"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_scale_one_a_task_that_fails_for_memory_finishes_and_spills_in_both_planners()
-> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let mut right = OneProcess::new(&tables).await?;
    for (number, task_memory) in QUERIES {
        let sql = tpch::query(number, SCALE);
        let executors = Executors {
            task_memory,
            ..Executors::default()
        };
        let stock = Executors {
            hook: Hook::None,
            ..executors
        };
        let (stock, grace) = (
            Cluster::start(stock).await?,
            Cluster::start(executors).await?,
        );
        for is_adaptive in [true, false] {
            // Ballista as it comes, then with hash joins; then those with this crate's hook.
            for prefers_hash_join in [false, true] {
                let how = Client {
                    is_adaptive,
                    prefers_hash_join,
                    broadcast_bytes: 1 << 20,
                    ..Client::default()
                };
                let what = format!("q{number}, {how:?}");
                let ctx = client(&stock, how, &[], &tables).await?;
                let outcome = multiset(&ctx, &sql).await;
                let outcome = outcome
                    .map(|rows| rows.len() - 1)
                    .map_err(|e| e.to_string());
                println!("{what}: {outcome:?}, {}", stock.joins().take());
                // q21's hash joins are small enough; its sorts are not.
                if number == 18 || !(is_adaptive || prefers_hash_join) {
                    let error = outcome.expect_err("a pool too small");
                    assert!(error.contains("ResourcesExhausted"), "{what}: {error}");
                }
            }
            let how = Client {
                is_adaptive,
                broadcast_bytes: 1 << 20,
                ..Client::default()
            };
            let ctx = client(&grace, how, &[], &tables).await?;
            let found = multiset(&ctx, &sql).await?;
            assert_eq!(found, right.multiset(&sql).await?, "q{number}, {how:?}");
            let counts = grace.joins().take();
            println!("q{number}, {how:?}: {} rows, {counts:?}", found.len() - 1);
            assert!(counts.spilled_bytes > 0, "q{number}, {how:?}: {counts:?}");
        }
    }
    Ok(())
}
