//! TPC-H q18 on Ballista with two executors, in tasks with too little memory for DataFusion's hash
//! join: as Ballista is, with hash joins preferred, and with this crate's engine; by the adaptive
//! planner and by the static one.
//!
//! ```sh
//! cargo run --manifest-path tests/engines/Cargo.toml -p grace-hash-join-ballista --example ballista_cluster
//! ```
//!
//! Arguments, all optional: the query's number (18), the scale (0.1), MiB for each task (5).

use std::time::Instant;

use engines_testbed::{Result, arguments, tpch};
use grace_hash_join::GraceHashJoinOptions;
use grace_hash_join_ballista::{Client, Cluster, Executors, Hook};

#[tokio::main]
async fn main() -> Result<()> {
    let (number, scale, memory) = arguments(18, 0.1, 5)?;
    println!("TPC-H q{number} at scale {scale}: 2 executors of 2 cores, {memory} MiB a task");
    let tables = tpch::tables(scale)?;
    println!("tables: {}\n", tables.display());
    let sql = tpch::query(number, scale);
    for is_adaptive in [true, false] {
        for (engine, hook, prefers_hash_join) in [
            ("as Ballista is", Hook::None, false),
            ("hash joins preferred", Hook::None, true),
            ("hash joins preferred, with the hook", Hook::Engine, true),
        ] {
            let planner = if is_adaptive { "adaptive" } else { "static" };
            println!("{planner} planner, {engine} ..");
            let cluster = Cluster::start(Executors {
                task_memory: memory << 20,
                hook,
                ..Executors::default()
            })
            .await?;
            let client = Client {
                is_adaptive,
                prefers_hash_join,
                broadcast_bytes: 1 << 20,
                ..Client::default()
            };
            let ctx = cluster
                .session(client, GraceHashJoinOptions::default())
                .await?;
            tpch::register(&ctx, &tables).await?;
            let start = Instant::now();
            let outcome = ctx.sql(&sql).await?.collect().await;
            let took = start.elapsed();
            let counts = cluster.joins().take();
            match outcome {
                Ok(batches) => {
                    let rows: usize = batches.iter().map(|b| b.num_rows()).sum();
                    println!("  {rows} rows in {took:.1?}\n  {counts}\n");
                }
                Err(error) => println!("  failed after {took:.1?}: {error}\n  {counts}\n"),
            }
        }
    }
    Ok(())
}
