//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// What memory buys: joins under smaller and smaller limits, as a drawing and a table.
#[derive(Parser, Debug)]
#[command(name = "curve")]
pub(crate) struct Args {
    /// Build rows of the join in memory; 0 leaves the grid out.
    #[arg(long, default_value = "1000000", value_name = "N")]
    pub(crate) build_rows: usize,

    /// Probe rows of the join in memory.
    #[arg(long, default_value = "2000000", value_name = "N")]
    pub(crate) probe_rows: usize,

    /// Budgets of the join in memory, in per cent of its build.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "200,100,75,50,25,10,5",
        value_name = "PERCENTS"
    )]
    pub(crate) percents: Vec<usize>,

    /// Rows of each Parquet file; 0 leaves the large join out.
    #[arg(long, default_value = "20000000", value_name = "N")]
    pub(crate) large_rows: usize,

    /// Limits of the large join in MB; 0 is none.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0,300,128,64",
        value_name = "MB"
    )]
    pub(crate) limits: Vec<usize>,

    /// Partitions of the large join.
    #[arg(long, default_value = "4", value_name = "N")]
    pub(crate) partitions: usize,

    /// An option of the large join's session, as KEY=VALUE; repeatable.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// Engines to run.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "grace,hash,sort_merge",
        value_name = "ENGINES"
    )]
    pub(crate) engines: Vec<String>,

    /// Runs of each cell, of which the table has the median.
    #[arg(long, default_value = "3", value_name = "N")]
    pub(crate) rounds: usize,

    /// Directory of the Parquet files, made if missing.
    #[arg(long, default_value = "target/curve", value_name = "DIR")]
    pub(crate) data: PathBuf,

    /// What `scripts/duckdb_peer.py` printed.
    #[arg(long, value_name = "FILE")]
    pub(crate) duckdb: Option<PathBuf>,

    /// Where to draw.
    #[arg(long, default_value = "docs/curve.svg", value_name = "FILE")]
    pub(crate) svg: PathBuf,

    /// Where to write the table, besides stdout.
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,

    /// Set by this program itself when it starts a process for one cell.
    #[arg(long, hide = true)]
    pub(crate) cell: Option<String>,
}
