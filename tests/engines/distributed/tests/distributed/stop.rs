//! The promise: a worker that ends in mid-query is an error to the client, and leaves nothing outside
//! its own directory.

use datafusion::prelude::SessionContext;
use engines_testbed::answers::{TOO_LONG, multiset};
use engines_testbed::process::Process;
use engines_testbed::{Result, files, options, partitioned, tpch};
use grace_hash_join_distributed::{Cluster, Workers, client};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use url::Url;

use super::{ON_DISK, config};

const SCALE: f64 = 0.1;

/// Takes seconds, and half of it spilling.
const LONG: &str = "SELECT * FROM lineitem a JOIN lineitem b ON a.l_orderkey = b.l_orderkey";

/// The client's side of [`LONG`], and what became of it.
fn ask(ctx: SessionContext) -> JoinHandle<Result<Vec<String>, String>> {
    tokio::spawn(async move { multiset(&ctx, LONG).await.map_err(|e| e.to_string()) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_stops_midway_is_an_error_and_leaves_no_file() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let mut cluster = Cluster::start(Workers {
        is_watched: false,
        ..Workers::default()
    })?;
    let ctx = super::client(&cluster, partitioned(config(2)), &ON_DISK, &tables).await?;
    let query = ask(ctx);
    let directories = [0, 1].map(|w| cluster.directory(w).to_path_buf());
    files::until("both workers spill", || {
        directories.iter().all(|d| !files::below(d).is_empty())
    })
    .await;
    assert!(!query.is_finished());
    cluster.stop(0);
    let error = timeout(TOO_LONG, query).await??;
    let error = error.expect_err("half of the answer is none");
    println!("{error}");
    // The other worker's tasks are cancelled with the query.
    files::until("the files are gone", || {
        directories.iter().all(|d| files::below(d).is_empty())
    })
    .await;
    drop(cluster);
    assert!(directories.iter().all(|d| !d.exists()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_is_killed_midway_leaves_files_in_its_own_directory_only() -> Result<()> {
    let tables = tpch::tables(SCALE)?;
    let start = || Process::start(env!("CARGO_BIN_EXE_distributed_worker"), &["{}", "256"]);
    let mut workers = [start()?, start()?];
    let urls = workers.iter_mut().map(|w| Ok(Url::parse(&w.line()?)?));
    let urls = urls.collect::<Result<_>>()?;
    let ctx = client(urls, partitioned(config(2)), options(&ON_DISK)?)?;
    tpch::register(&ctx, &tables).await?;
    let query = ask(ctx);
    files::until("both workers spill", || {
        workers.iter().all(|w| !w.spill_files().is_empty())
    })
    .await;
    assert!(!query.is_finished());
    workers[0].kill()?;
    let error = timeout(TOO_LONG, query).await??;
    let error = error.expect_err("half of the answer is none");
    println!("{error}");
    let [killed, other] = &workers;
    files::until("the other worker's files are gone", || {
        files::below(other.directory()).is_empty()
    })
    .await;
    // Nobody was left to delete these; they go with the directory.
    assert!(!killed.spill_files().is_empty());
    for worker in &workers {
        assert!(
            worker.stray_files().is_empty(),
            "{:?}",
            worker.stray_files()
        );
    }
    Ok(())
}
