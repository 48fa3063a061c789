//! The promise: an executor that ends in mid-query costs its work and nothing else; when all have, the
//! client gets an error; and what they leave is in their own directories.

use std::net::SocketAddr;

use ballista_scheduler::config::SchedulerConfig;
use engines_testbed::answers::{OneProcess, TOO_LONG, multiset};
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
async fn an_executor_that_is_killed_midway_costs_its_work_only() -> Result<()> {
    let right = OneProcess::new(&tpch::tables(SCALE)?)
        .await?
        .multiset(LONG)
        .await?;
    let scheduler = scheduler().await?;
    let mut executors = [executor(scheduler)?, executor(scheduler)?];
    let query = ask(scheduler).await?;
    let mut spilling = None;
    files::until("an executor spills", || {
        spilling = executors.iter().position(is_spilling);
        spilling.is_some() || query.is_finished()
    })
    .await;
    let killed = spilling.ok_or("the query was over before an executor spilled")?;
    executors[killed].kill()?;
    // The other one does all of it again.
    assert_eq!(timeout(TOO_LONG, query).await???, right);
    files::until("the other executor's spill files are gone", || {
        !is_spilling(&executors[1 - killed])
    })
    .await;
    // Nobody was left to delete these; they go with the directory.
    assert!(is_spilling(&executors[killed]));
    for executor in &executors {
        let stray = executor.stray_files();
        assert!(stray.is_empty(), "{stray:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_every_executor_is_killed_the_client_gets_an_error() -> Result<()> {
    let scheduler = scheduler().await?;
    let mut executors = [executor(scheduler)?];
    let query = ask(scheduler).await?;
    files::until("the executor spills", || {
        executors.iter().all(is_spilling) || query.is_finished()
    })
    .await;
    assert!(executors.iter().all(is_spilling));
    executors[0].kill()?;
    let error = timeout(TOO_LONG, query).await??;
    println!("{}", error.expect_err("nobody was left to answer"));
    let stray = executors[0].stray_files();
    assert!(stray.is_empty(), "{stray:?}");
    Ok(())
}
