//! DataFusion's own SQL tests, with its joins replaced by this crate's.
//!
//! ```text
//! cargo run --manifest-path tests/sqllogictest/Cargo.toml
//! ```
//!
//! takes the join-related test files out of the published crate `datafusion-sqllogictest`, as the
//! package registry delivered it, and runs them once for each of the [runs](runs): as they are, with
//! partitioned joins, with everything spilled, and so on. A run fails if a record fails that is not
//! [known](known) to, or if it replaced too few joins to mean anything.
//!
//! | file | knows |
//! |---|---|
//! | `corpus` | where the test files are and what they need around them |
//! | `runs` | how each run's session differs |
//! | `engine` | how a statement is executed and what is counted |
//! | `file` | how a test file is gone through, and when two results are equal |
//! | `known` | the records that may fail, each with its reason |

#![expect(
    clippy::disallowed_methods,
    reason = "the rule that files belong to the spill module is the library's"
)]

mod corpus;
mod engine;
mod file;
mod known;
mod runs;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressStyle};

use corpus::Corpus;
use engine::Tally;
use file::Failure;
use runs::Run;

/// Whatever went wrong, for the user to read.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// A run that replaced fewer joins proves nothing.
const LEAST_REPLACED: usize = 1_000;

/// Deep plans need deep stacks, in an unoptimized build above all.
const STACK_BYTES: usize = 16 << 20;

/// Run DataFusion's own SQL tests with its joins replaced by `GraceHashJoinExec`.
#[derive(Parser)]
struct Args {
    /// Only these runs (by default all; see --list)
    #[arg(long, value_name = "NAME")]
    run: Vec<String>,
    /// Only test files whose name contains this; then nothing is asserted about how many joins
    /// were replaced
    #[arg(long, value_name = "TEXT")]
    file: Option<String>,
    /// Look at all test files of the published crate, not at the join-related ones alone
    #[arg(long)]
    all_files: bool,
    /// How many test files are run at the same time
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,
    /// Seconds after which a test file counts as hanging
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// Show the differences of known records as well
    #[arg(long)]
    show_known: bool,
    /// List the runs and the test files, and do nothing
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if args.list {
        list();
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(run_all(&args)),
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn list() {
    println!("runs:");
    for run in runs::ALL {
        println!("  {:<22} {}", run.name, run.about);
    }
    println!("test files:");
    for file in corpus::FILES {
        println!("  {file}");
    }
}

/// Runs what `args` say; true if all of it is as it should be.
async fn run_all(args: &Args) -> Result<bool> {
    let chosen = runs::chosen(&args.run)?;
    let corpus = Corpus::unpack()?;
    let files = corpus.files(args.file.as_deref(), args.all_files)?;
    known::check()?;
    let is_whole = args.file.is_none() && !args.all_files;
    println!(
        "{:<22} {:>5} {:>7} {:>8} {:>6} {:>8} {:>7} {:>6} {:>8}",
        "run", "files", "records", "replaced", "kept", "spilling", "failing", "known", "seconds"
    );
    let mut is_right = true;
    for run in chosen {
        is_right &= run_one(args, run, &files, is_whole).await;
    }
    Ok(is_right)
}

async fn run_one(args: &Args, run: &'static Run, files: &[String], is_whole: bool) -> bool {
    let start = Instant::now();
    let tally = Arc::new(Tally::default());
    let bar = progress(run.name, files.len());
    let limit = Duration::from_secs(args.timeout);
    let mut failures: Vec<Failure> = futures::stream::iter(files.iter().cloned())
        .map(|name| {
            let (tally, bar) = (Arc::clone(&tally), bar.clone());
            async move {
                bar.set_message(name.clone());
                let task = tokio::spawn(file::run(run, name.clone(), tally));
                let failures = match tokio::time::timeout(limit, task).await {
                    Ok(Ok(Ok(failures))) => failures,
                    Ok(Ok(Err(error))) => vec![Failure::whole(&name, &error.to_string())],
                    Ok(Err(error)) => vec![Failure::whole(&name, &error.to_string())],
                    Err(_) => vec![Failure::whole(&name, "it hangs")],
                };
                bar.inc(1);
                failures
            }
        })
        .buffer_unordered(args.jobs.max(1))
        .flat_map(futures::stream::iter)
        .collect()
        .await;
    bar.finish_and_clear();
    failures.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    let (known, failing): (Vec<_>, Vec<_>) =
        failures.into_iter().partition(|f| known::is_known(run, f));
    println!(
        "{:<22} {:>5} {:>7} {:>8} {:>6} {:>8} {:>7} {:>6} {:>8.1}",
        run.name,
        files.len(),
        tally.records(),
        tally.replaced(),
        tally.kept(),
        tally.spilling(),
        failing.len(),
        known.len(),
        start.elapsed().as_secs_f64()
    );
    for failure in &failing {
        println!("  FAILED {failure}");
    }
    for failure in known.iter().filter(|_| args.show_known) {
        println!("  known {failure}");
    }
    let is_enough = !is_whole || is_enough(run, &tally);
    failing.is_empty() && is_enough
}

/// Whether the run did what it is there for.
fn is_enough(run: &Run, tally: &Tally) -> bool {
    let mut is_enough = true;
    let mut demand = |is_met: bool, what: &str| {
        if !is_met {
            println!("  FAILED {}: {what}", run.name);
            is_enough = false;
        }
    };
    if run.replaces {
        let what = format!("fewer than {LEAST_REPLACED} joins were replaced");
        demand(tally.replaced() >= LEAST_REPLACED, &what);
        demand(tally.spilling() > 0 || !run.must_spill, "no join spilled");
    } else {
        demand(tally.replaced() == 0, "joins were replaced");
    }
    is_enough
}

fn progress(run: &str, files: usize) -> ProgressBar {
    let template = "{prefix:<22} [{elapsed_precise}] {bar:30} {pos}/{len} {msg}";
    let style = ProgressStyle::with_template(template);
    let bar = ProgressBar::new(files as u64).with_prefix(run.to_string());
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
