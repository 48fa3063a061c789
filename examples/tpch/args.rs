//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use datafusion::prelude::SessionContext;

use crate::engine::Engine;
use crate::queries::Selection;

/// TPC-H under a memory limit: DataFusion's joins and the grace hash join beside each other.
///
/// Ends with code 0 only if `grace` ran and gave the right answer to every query.
#[derive(Parser, Debug)]
#[command(name = "tpch")]
pub(crate) struct Args {
    /// What to run: 1 to 22 (several as 7,9,18 or 1..22), `all`, or a file with one query.
    #[arg(long, default_value = "18", value_name = "N|all|FILE.sql")]
    pub(crate) query: Selection,

    /// TPC-H scale factor; 1 is about 1 GB of text, 0.4 GB of Parquet.
    #[arg(long, default_value = "1", value_name = "SF", value_parser = parse_scale)]
    pub(crate) scale: f64,

    /// Memory limit of every engine but the reference, such as 64MB, 1.5G or 512K; 0 is none.
    #[arg(long, default_value = "64MB", value_name = "SIZE")]
    memory: Memory,

    /// DataFusion's memory pool that enforces the limit.
    #[arg(long, default_value = "fair")]
    pub(crate) pool: Pool,

    /// `datafusion.execution.target_partitions`.
    #[arg(long, default_value = "2", value_name = "N")]
    pub(crate) partitions: NonZeroUsize,

    /// The engines to run, separated by commas; `reference` always runs too.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "hash,sort_merge,grace",
        value_name = "ENGINES"
    )]
    pub(crate) engine: Vec<Engine>,

    /// Directory of the tables as Parquet files, made if missing [default: target/tpch/sf{SF}].
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// A DataFusion or `grace_hash_join.*` option, set with SQL `SET`; repeatable. The reference
    /// ignores `datafusion.runtime.*`.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<Setting>,

    /// Print each plan with its metrics (to stderr if the format is JSON).
    #[arg(long)]
    pub(crate) explain: bool,

    /// Run everything so often, engines taking turns, and report medians.
    #[arg(long, default_value = "1", value_name = "N")]
    pub(crate) runs: NonZeroUsize,

    /// Compare `grace` in the place of every join it can take with the reference, both without a
    /// limit, and print the ratios of their times and what their scans skipped.
    #[arg(long, conflicts_with_all = ["memory", "engine", "format"])]
    pub(crate) compare: bool,

    /// How to print results.
    #[arg(long, default_value = "table")]
    pub(crate) format: Format,

    /// Seconds after which a run is killed and reported as an error.
    #[arg(long, default_value = "300", value_name = "SECS")]
    timeout: u64,

    /// Set by this program itself when it starts a process for one engine.
    #[command(flatten)]
    pub(crate) worker: WorkerArgs,
}

/// What the main process adds to its own command line to make a worker of it.
#[derive(clap::Args, Debug)]
pub(crate) struct WorkerArgs {
    /// The engine to run.
    #[arg(id = "worker-engine", long = "worker-engine", hide = true)]
    pub(crate) engine: Option<Engine>,
    /// Which of the selected queries to run.
    #[arg(
        id = "worker-query",
        long = "worker-query",
        hide = true,
        default_value = "0"
    )]
    pub(crate) query: usize,
    /// Where to put the answer and temporary files: a directory in the run's directory.
    #[arg(id = "worker-directory", long = "worker-directory", hide = true)]
    pub(crate) directory: Option<PathBuf>,
}

impl Args {
    /// The engines to run, the reference first, each once.
    pub(crate) fn engines(&self) -> Vec<Engine> {
        let mut engines = vec![Engine::Reference];
        if self.compare {
            engines.push(Engine::Grace);
            return engines;
        }
        for &engine in &self.engine {
            if !engines.contains(&engine) {
                engines.push(engine);
            }
        }
        engines
    }

    /// The memory limit of every engine but the reference.
    pub(crate) fn memory(&self) -> Memory {
        if self.compare {
            Memory(None)
        } else {
            self.memory
        }
    }

    /// How long a run may take.
    pub(crate) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }
}

fn parse_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(scale) if scale.is_finite() && scale > 0.0 => Ok(scale),
        _ => Err("a scale is a number above 0".to_owned()),
    }
}

/// A memory limit in bytes; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory(pub(crate) Option<usize>);

impl FromStr for Memory {
    type Err = String;

    /// Reads sizes as DataFusion does, and also with a final `B` or in small letters.
    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.trim().to_ascii_uppercase();
        let size = upper.strip_suffix('B').unwrap_or(&upper);
        let bytes = SessionContext::parse_capacity_limit("--memory", size)
            .map_err(|error| error.strip_backtrace())?;
        Ok(Self((bytes > 0).then_some(bytes)))
    }
}

/// DataFusion's memory pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pool {
    /// `FairSpillPool`: an even share for each operator that can spill.
    Fair,
    /// `GreedyMemoryPool`: first come, first served.
    Greedy,
}

impl std::fmt::Display for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Fair => "fair",
            Self::Greedy => "greedy",
        })
    }
}

/// `KEY=VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The name of the option.
    pub(crate) key: String,
    /// Its value, as one would write it between quotes in `SET`.
    pub(crate) value: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
        let named = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        if key.is_empty() || !key.chars().all(named) {
            return Err(format!("'{key}' is not the name of an option"));
        }
        Ok(Self {
            key: key.to_owned(),
            value: value.to_owned(),
        })
    }
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// One object a line for each engine and query.
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024_with_or_without_b() {
        let read = |text: &str| text.parse::<Memory>().ok().map(|Memory(bytes)| bytes);
        for (text, bytes) in [("64MB", 64 << 20), ("64m", 64 << 20), ("1.5G", 3 << 29)] {
            assert_eq!(read(text), Some(Some(bytes)), "{text}");
        }
        for text in ["0", "0MB"] {
            assert_eq!(read(text), Some(None), "{text}");
        }
        for text in ["", "64", "5X", "-1M", "MB"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn engines_run_once_and_after_the_reference() {
        let args = Args::parse_from(["tpch", "--engine", "grace,hash,grace"]);
        let engines = [Engine::Reference, Engine::Grace, Engine::Hash];
        assert_eq!(args.engines(), engines);
    }
}
