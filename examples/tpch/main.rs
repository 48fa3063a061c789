//! The main job: TPC-H queries under a memory limit, with and without this crate.
//!
//! ```text
//! cargo run --release --example tpch
//! ```
//!
//! generates TPC-H at scale 1 once, then runs q18 under a 64 MB pool with DataFusion's hash join,
//! with its sort-merge join and with the grace hash join, beside a hash join without a limit whose
//! answer is the reference. `--help` lists the options.
//!
//! | file | knows |
//! |---|---|
//! | `args` | the command line |
//! | `data` | how the tables are made |
//! | `queries` | the texts of the 22 queries |
//! | `engine` | how a session of each engine is set up: **the place to look for how this crate is used** |
//! | `worker` | what happens inside an engine's process |
//! | `supervisor` | how such a process is started, watched and ended |
//! | `answer` | when two answers are equal |
//! | `report` | the table and the JSON |
//! | `compare` | the table of ratios |
//! | `scans` | what a plan's scans read and skipped |
//! | `progress` | what is shown while one waits |

#![expect(
    clippy::disallowed_methods,
    reason = "the rule that files belong to the spill module is the library's"
)]

mod answer;
mod args;
mod compare;
mod data;
mod engine;
mod progress;
mod queries;
mod report;
mod scans;
mod supervisor;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tokio::runtime::Runtime;

use args::Args;
use compare::Comparison;
use engine::Engine;
use report::{Record, Report};
use supervisor::Task;

/// Whatever went wrong, for the user to read.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// What a shell reports for a program ended by ctrl-c.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return failure(&error.into()),
    };
    if let Some(engine) = args.worker.engine {
        let done = runtime.block_on(worker::run(engine, &args));
        // A blocking task that hangs must not keep a worker that has its result.
        runtime.shutdown_background();
        return done.map_or_else(|error| failure(&error), |()| ExitCode::SUCCESS);
    }
    // Dropping the future of `compare` ends workers and removes what they wrote; dropping the
    // runtime, when this function returns, waits for a generator of data to have cleaned up.
    runtime.block_on(async {
        tokio::select! {
            biased;
            () = interrupted() => ExitCode::from(INTERRUPTED),
            done = compare(&args) => match done {
                Ok(true) => ExitCode::SUCCESS,
                Ok(false) => ExitCode::FAILURE,
                Err(error) => failure(&error),
            },
        }
    })
}

fn failure(error: &Error) -> ExitCode {
    progress::note(&format!("error: {error}"));
    ExitCode::FAILURE
}

/// Runs every query with every engine; true if `grace` gave the right answer to all of them.
async fn compare(args: &Args) -> Result<bool> {
    let queries = args.query.load(args.scale)?;
    // A mistake in `--set` is better found now than in every worker.
    engine::configure(Engine::Hash, args).await?;
    data::prepare(args).await?;
    let directory = supervisor::run_directory()?;
    let report = Report::new(args, &queries);
    report.start()?;
    let mut comparison = Comparison::default();
    let mut proven = args.engines().contains(&Engine::Grace);
    for (index, query) in queries.iter().enumerate() {
        let records = compare_query(args, index, &query.name, directory.path()).await?;
        proven &= records
            .iter()
            .filter(|record| record.engine == Engine::Grace)
            .all(Record::is_right);
        report.query(&records)?;
        comparison.add(&records);
    }
    if args.compare {
        comparison.print()?;
    }
    if !proven {
        progress::note("exit code 1: 0 is for runs in which grace gave every answer rightly");
    }
    Ok(proven)
}

/// Runs one query `--runs` times, the engines taking turns, and gives a record for each engine.
async fn compare_query(
    args: &Args,
    query: usize,
    name: &str,
    directory: &Path,
) -> Result<Vec<Record>> {
    let engines = args.engines();
    let mut records: Vec<Record> = engines
        .iter()
        .map(|&engine| Record::new(name, engine))
        .collect();
    let mut reference = None;
    for run in 1..=args.runs.get() {
        for record in &mut records {
            let task = Task {
                engine: record.engine,
                query,
            };
            let label = format!("{name} {} (run {run} of {})", record.engine, args.runs);
            let _spinner = progress::spinner(&label);
            let finished = supervisor::run(task, args, directory).await?;
            let equal = match &reference {
                _ if finished.outcome.error.is_some() => None,
                // The first answer of the reference is the measure, so equal to itself.
                None if record.engine == Engine::Reference => Some(true),
                None => None,
                Some(reference) => Some(answer::equal(reference, &finished).await?),
            };
            record.add(finished.outcome.clone(), equal);
            if record.engine == Engine::Reference && reference.is_none() && equal.is_some() {
                reference = Some(finished);
            }
        }
    }
    Ok(records)
}

/// Returns when the user or the system asks this program to end.
#[cfg(unix)]
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let asked = async |kind| match signal(kind) {
        Ok(mut signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    };
    tokio::select! {
        () = asked(SignalKind::interrupt()) => {}
        () = asked(SignalKind::terminate()) => {}
    }
}

/// Returns when the user asks this program to end.
#[cfg(not(unix))]
async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
