//! The promise: when an executor is killed in mid-query and no other is left, the client gets an error,
//! and what the executor leaves is in its own directory.

use std::net::SocketAddr;

use ballista_scheduler::config::SchedulerConfig;
use engines_testbed::answers::{TOO_LONG, multiset};
use engines_testbed::process::Process;
use engines_testbed::{Result, files, options, tpch};
use grace_hash_join_ballista::{Client, start_scheduler};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::ON_DISK;

const SCALE: f64 = 0.1;

/// Takes seconds, and half of it spilling.
const LONG: &str = "SELECT count(*), max(a.l_comment), max(b.l_comment) FROM lineitem a \
                    JOIN lineitem b ON a.l_orderkey = b.l_orderkey";

/// A scheduler that soon misses an executor, as far as a busy machine lets one say that.
async fn scheduler() -> Result<SocketAddr> {
    let mut config = SchedulerConfig::default();
    config.executor_timeout_seconds = 10;
    config.expire_dead_executor_interval_seconds = 1;
    config.no_executors_grace_period_seconds = 10;
    start_scheduler(config).await
}

fn executor(scheduler: SocketAddr) -> Result<Process> {
    let program = env!("CARGO_BIN_EXE_ballista_executor");
    Process::start(program, &[&scheduler.to_string(), "{}", "256"])
}

/// The client's side of [`LONG`], and what became of it.
async fn ask(scheduler: SocketAddr) -> Result<JoinHandle<Result<Vec<String>, String>>> {
    let ctx = Client::default()
        .session(scheduler, options(&ON_DISK)?)
        .await?;
    tpch::register(&ctx, &tpch::tables(SCALE)?).await?;
    Ok(tokio::spawn(async move {
        multiset(&ctx, LONG).await.map_err(|e| e.to_string())
    }))
}

fn is_spilling(executor: &Process) -> bool {
    !executor.spill_files().is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_the_last_executor_is_killed_the_client_gets_an_error() -> Result<()> {
    let scheduler = scheduler().await?;
    let mut executor = executor(scheduler)?;
    let query = ask(scheduler).await?;
    files::until("the executor spills", || {
        is_spilling(&executor) || query.is_finished()
    })
    .await;
    assert!(!query.is_finished());
    executor.kill()?;
    let error = timeout(TOO_LONG, query).await??;
    println!("{}", error.expect_err("nobody was left to answer"));
    // Nobody was left to delete these either; they go with the directory.
    assert!(is_spilling(&executor));
    let stray = executor.stray_files();
    assert!(stray.is_empty(), "{stray:?}");
    Ok(())
}
