//! TPC-H q18 on `datafusion-distributed` with two workers, in tasks with too little memory for
//! DataFusion's hash join: first with it, then with this crate's.
//!
//! ```sh
//! cargo run --manifest-path tests/engines/Cargo.toml -p grace-hash-join-distributed --example distributed_cluster
//! ```
//!
//! Arguments, all optional: the query's number (18), the scale (0.1), MiB for each task (4).

use std::sync::Arc;
use std::time::Instant;

use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionConfig;
use datafusion_distributed::display_plan_ascii;
use engines_testbed::{Result, arguments, options, tpch};
use futures::TryStreamExt;
use grace_hash_join_distributed::{Cluster, Workers, with_metrics};

#[tokio::main]
async fn main() -> Result<()> {
    let (number, scale, memory) = arguments(18, 0.1, 4)?;
    println!("TPC-H q{number} at scale {scale}: 2 workers, 2 partitions and {memory} MiB a task");
    let tables = tpch::tables(scale)?;
    println!("tables: {}\n", tables.display());
    let cluster = Cluster::start(Workers {
        task_memory: memory << 20,
        ..Workers::default()
    })?;
    for (engine, enabled) in [("as the engine is", "false"), ("with the hook", "true")] {
        println!("{engine} (grace_hash_join.enabled = {enabled}) ..");
        let config = SessionConfig::new().with_target_partitions(2);
        let ctx = cluster.session(config, options(&[("enabled", enabled)])?)?;
        tpch::register(&ctx, &tables).await?;
        let frame = ctx.sql(&tpch::query(number, scale)).await?;
        let plan = frame.create_physical_plan().await?;
        let start = Instant::now();
        let stream = execute_stream(Arc::clone(&plan), ctx.task_ctx())?;
        let outcome = stream.try_collect::<Vec<_>>().await;
        let took = start.elapsed();
        let counts = cluster.joins().take();
        match outcome {
            Ok(batches) => {
                let rows: usize = batches.iter().map(|b| b.num_rows()).sum();
                println!("  {rows} rows in {took:.1?}\n  {counts}\n");
                let plan = with_metrics(plan).await?;
                println!("{}", display_plan_ascii(plan.as_ref(), true));
            }
            Err(error) => println!("  failed after {took:.1?}: {error}\n  {counts}\n"),
        }
    }
    Ok(())
}
