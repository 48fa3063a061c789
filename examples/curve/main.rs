//! What memory buys: the same joins under smaller and smaller limits, with each engine.
//!
//! ```text
//! cargo run --release --example curve
//! ```
//!
//! runs two things, each cell in a process of its own, all of them in turns, and writes a drawing
//! (`docs/curve.svg`) and a table in Markdown:
//!
//! - the *grid*: a join in memory under a budget of some per cent of its build, uniform and skewed,
//!   with this crate's join and with sort-merge join, beside hash joins without a limit;
//! - the *large join*: two Parquet files of 20 million rows, a key and a text of 24 characters each,
//!   in a fair pool of 300, 128 and 64 MB, four partitions.
//!
//! `scripts/duckdb_peer.py` runs the large join with DuckDB on the same files; `--duckdb FILE` adds
//! what it prints. `--help` lists sizes and limits.
//!
//! | file | knows |
//! |---|---|
//! | `args` | the command line |
//! | `grid` | the join in memory, which the bench `join_budget` measures too |
//! | `large` | the join of two Parquet files |
//! | `cell` | what is run in one process, and what it came to |
//! | `table`, `chart` | the table, the drawing |

#![expect(
    clippy::disallowed_methods,
    reason = "the rule that files belong to the spill module is the library's"
)]

mod args;
mod cell;
mod chart;
mod grid;
mod large;
mod table;

use std::fs;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::process::ExitCode;

use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use args::Args;
use cell::{Cell, Record};

/// Whatever went wrong, for the user to read.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.cell {
        Some(cell) => cell::work(cell, &args),
        None => measure(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody to tell if stderr is closed.
            let _ = writeln!(stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all cells, round by round, and writes what they came to.
fn measure(args: &Args) -> Result<()> {
    if args.large_rows > 0 {
        large::prepare(args)?;
    }
    let mut records: Vec<Record> = Cell::all(args).into_iter().map(Record::new).collect();
    let bar = progress(records.len() * args.rounds);
    for _ in 0..args.rounds {
        for record in &mut records {
            bar.set_message(record.cell.to_string());
            let outcome = cell::start(&record.cell, args)?;
            record.add(outcome);
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if let Some(file) = &args.duckdb {
        records.extend(cell::of_duckdb(&fs::read_to_string(file)?)?);
    }
    let text = table::of(&records);
    writeln!(stdout(), "{text}")?;
    if let Some(file) = &args.markdown {
        fs::write(file, &text)?;
    }
    chart::draw(&args.svg, &records)
}

fn progress(cells: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(cells).unwrap_or(u64::MAX));
    if !stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}, {eta} left") {
        bar.set_style(style);
    }
    bar
}
