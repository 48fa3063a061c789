//! TPC-H q18 on `datafusion-distributed` with two workers, in tasks with too little memory for
//! DataFusion's hash join: first with it, then with this crate's.
//!
//! ```sh
//! cargo run --manifest-path tests/engines/Cargo.toml -p grace-hash-join-distributed --example distributed_cluster
//! ```
//!
//! Arguments, all optional: the query's number (18), the scale (0.1), MiB for each task (8).

use std::sync::Arc;
use std::time::Instant;

use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionConfig;
use datafusion_distributed::display_plan_ascii;
use engines_testbed::{Result, tpch};
use futures::TryStreamExt;
use grace_hash_join::GraceHashJoinOptions;
use grace_hash_join_distributed::{Cluster, Workers, with_metrics};

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let number = args.next().map_or(Ok(18), |a| a.parse())?;
    let scale = args.next().map_or(Ok(0.1), |a| a.parse())?;
    let memory = args.next().map_or(Ok(8), |a| a.parse::<usize>())?;
    let tables = tpch::tables(scale)?;
    let cluster = Cluster::start(&Workers {
        count: 2,
        task_memory: memory << 20,
        is_watched: true,
    })?;
    for enabled in ["false", "true"] {
        let options = GraceHashJoinOptions::default().with("enabled", enabled)?;
        let config = SessionConfig::new().with_target_partitions(2);
        let ctx = cluster.session(config, options)?;
        tpch::register(&ctx, &tables).await?;
        let frame = ctx.sql(&tpch::query(number, scale)).await?;
        let plan = frame.create_physical_plan().await?;
        let start = Instant::now();
        let stream = execute_stream(Arc::clone(&plan), ctx.task_ctx())?;
        let outcome = stream.try_collect::<Vec<_>>().await;
        let took = start.elapsed();
        let counts = cluster.joins().take();
        println!("grace_hash_join.enabled = {enabled}, q{number}, {memory} MiB a task");
        match outcome {
            Ok(batches) => {
                let rows: usize = batches.iter().map(|b| b.num_rows()).sum();
                println!("{rows} rows in {took:.1?}, {counts:?}");
                let plan = with_metrics(plan).await?;
                println!("{}", display_plan_ascii(plan.as_ref(), true));
            }
            Err(error) => println!("{error}\nafter {took:.1?}, {counts:?}\n"),
        }
    }
    Ok(())
}
