//! TPC-H q18 on Ballista with two executors, in tasks with too little memory for DataFusion's hash
//! join: as Ballista is, with hash joins preferred, and with this crate's engine; by the adaptive
//! planner and by the static one.
//!
//! ```sh
//! cargo run --manifest-path tests/engines/Cargo.toml -p grace-hash-join-ballista --example ballista_cluster
//! ```
//!
//! Arguments, all optional: the query's number (18), the scale (0.1), MiB for each task (8).

use std::time::Instant;

use engines_testbed::{Result, rows, tpch};
use grace_hash_join::GraceHashJoinOptions;
use grace_hash_join_ballista::{Client, Cluster, Executors, Hook};

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let number = args.next().map_or(Ok(18), |a| a.parse())?;
    let scale = args.next().map_or(Ok(0.1), |a| a.parse())?;
    let memory = args.next().map_or(Ok(8), |a| a.parse::<usize>())?;
    let tables = tpch::tables(scale)?;
    let sql = tpch::query(number, scale);
    for is_adaptive in [true, false] {
        for (engine, hook, prefers_hash_join) in [
            ("Ballista", Hook::None, false),
            ("Ballista, hash joins preferred", Hook::None, true),
            ("this crate", Hook::Engine, true),
        ] {
            let cluster = Cluster::start(&Executors {
                count: 2,
                vcores: 2,
                task_memory: memory << 20,
                hook,
            })
            .await?;
            let client = Client {
                is_adaptive,
                prefers_hash_join,
                broadcast_bytes: 1 << 20,
                partitions: 4,
            };
            let ctx = cluster
                .session(client, GraceHashJoinOptions::default())
                .await?;
            tpch::register(&ctx, &tables).await?;
            let start = Instant::now();
            let frame = ctx.sql(&sql).await?;
            let schema = frame.schema().as_arrow().clone();
            let outcome = frame.collect().await;
            let took = start.elapsed();
            let counts = cluster.joins().take();
            println!("q{number}, {memory} MiB a task, adaptive: {is_adaptive}, {engine}");
            match outcome {
                Ok(batches) => {
                    let rows = rows::sorted(&schema, &batches)?.len() - 1;
                    println!("{rows} rows in {took:.1?}, {counts:?}\n");
                }
                Err(error) => println!("{error}\nafter {took:.1?}, {counts:?}\n"),
            }
            if hook == Hook::Engine {
                let shown = ctx.sql(&format!("EXPLAIN ANALYZE {sql}")).await?;
                shown.show().await?;
            }
        }
    }
    Ok(())
}
