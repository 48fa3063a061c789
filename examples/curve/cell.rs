//! One cell: an engine, a workload and a limit, run in a process of its own, so that the most that the
//! process occupied is this cell's.

use std::fmt;
use std::fs;
use std::io::{Write, stdout};
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::args::Args;
use crate::grid::{Engine, Shape, Tables};
use crate::{Error, Result, large};

/// What is joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// The join in memory.
    Grid(Shape),
    /// The join of two Parquet files.
    Large,
}

impl Workload {
    const ALL: [Self; 3] = [
        Self::Grid(Shape::Uniform),
        Self::Grid(Shape::Skewed),
        Self::Large,
    ];

    /// The name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Grid(shape) => shape.name(),
            Self::Large => "large",
        }
    }
}

/// What is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    /// What is joined.
    pub(crate) workload: Workload,
    /// The name of who joins.
    pub(crate) engine: String,
    /// Per cent of the build, or MB; 0 is no limit.
    pub(crate) limit: usize,
}

impl Cell {
    /// All cells that the command line asks for.
    pub(crate) fn all(args: &Args) -> Vec<Self> {
        let mut cells = Vec::new();
        let mut add = |workload, engine: Engine, limit| {
            let engine = engine.name().to_owned();
            if args.engines.contains(&engine) {
                cells.push(Self {
                    workload,
                    engine,
                    limit,
                });
            }
        };
        if args.build_rows > 0 {
            for shape in [Shape::Uniform, Shape::Skewed] {
                let workload = Workload::Grid(shape);
                add(workload, Engine::Hash, 0);
                for limit in std::iter::once(&0).chain(&args.percents) {
                    add(workload, Engine::Grace, *limit);
                    add(workload, Engine::SortMerge, *limit);
                }
            }
        }
        if args.large_rows > 0 {
            for limit in &args.limits {
                for engine in [Engine::Grace, Engine::Hash, Engine::SortMerge] {
                    add(Workload::Large, engine, *limit);
                }
            }
        }
        cells
    }

    /// The limit, for people.
    pub(crate) fn limit(&self) -> String {
        match (self.workload, self.limit) {
            (_, 0) => "none".to_owned(),
            (Workload::Grid(_), percent) => format!("{percent} %"),
            (Workload::Large, megabytes) => format!("{megabytes} MB"),
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let mut words = text.split('/');
        let mut word = || {
            words
                .next()
                .ok_or_else(|| Error::from("a cell has three words"))
        };
        let (workload, engine, limit) = (word()?, word()?, word()?);
        let mut workloads = Workload::ALL.into_iter();
        Ok(Self {
            workload: workloads
                .find(|known| known.name() == workload)
                .ok_or("no such workload")?,
            engine: engine.to_owned(),
            limit: limit.parse()?,
        })
    }

    fn engine(&self) -> Result<Engine> {
        let engines = [Engine::Grace, Engine::Hash, Engine::SortMerge];
        let engine = engines
            .into_iter()
            .find(|known| known.name() == self.engine);
        engine.ok_or_else(|| "no such engine".into())
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.workload.name(), self.engine, self.limit)
    }
}

/// What one run came to. Numbers are `None` where nobody knows them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) error: Option<String>,
    pub(crate) seconds: Option<f64>,
    pub(crate) pool_peak: Option<u64>,
    pub(crate) process_peak: Option<u64>,
    pub(crate) spilled: Option<u64>,
    pub(crate) files: Option<u64>,
}

impl Outcome {
    fn from_json(json: &Value) -> Self {
        Self {
            error: json["error"].as_str().map(str::to_owned),
            seconds: json["seconds"].as_f64(),
            pool_peak: json["pool_peak"].as_u64(),
            process_peak: json["process_peak"].as_u64(),
            spilled: json["spilled"].as_u64(),
            files: json["files"].as_u64(),
        }
    }
}

/// A cell with its runs.
pub(crate) struct Record {
    pub(crate) cell: Cell,
    runs: Vec<Outcome>,
}

impl Record {
    pub(crate) fn new(cell: Cell) -> Self {
        Self {
            cell,
            runs: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, outcome: Outcome) {
        self.runs.push(outcome);
    }

    /// The first failure.
    pub(crate) fn error(&self) -> Option<&str> {
        self.runs.iter().find_map(|run| run.error.as_deref())
    }

    /// The median time, if all runs finished.
    pub(crate) fn seconds(&self) -> Option<f64> {
        let seconds = self.runs.iter().map(|run| match run.error {
            None => run.seconds,
            Some(_) => None,
        });
        let mut seconds: Vec<f64> = seconds.collect::<Option<_>>()?;
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }

    /// The largest of some number over the runs.
    pub(crate) fn most(&self, number: impl Fn(&Outcome) -> Option<u64>) -> Option<u64> {
        self.runs.iter().filter_map(number).max()
    }
}

/// Starts a process for a cell and waits for what it prints.
pub(crate) fn start(cell: &Cell, args: &Args) -> Result<Outcome> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--cell", &cell.to_string()])
        .args(["--build-rows", &args.build_rows.to_string()])
        .args(["--probe-rows", &args.probe_rows.to_string()])
        .args(["--large-rows", &args.large_rows.to_string()])
        .args(["--partitions", &args.partitions.to_string()])
        .arg("--data")
        .arg(&args.data)
        .args(args.set.iter().flat_map(|set| ["--set", set]))
        .stderr(Stdio::inherit())
        .output()?;
    let printed = String::from_utf8_lossy(&output.stdout);
    match serde_json::from_str(printed.trim()) {
        Ok(json) => Ok(Outcome::from_json(&json)),
        // Killed for its memory, most likely.
        Err(_) => Ok(Outcome {
            error: Some(format!("ended with {}", output.status)),
            ..Outcome::default()
        }),
    }
}

/// The main function of such a process.
pub(crate) fn work(cell: &str, args: &Args) -> Result<()> {
    let cell = Cell::parse(cell)?;
    let engine = cell.engine()?;
    let runtime = Runtime::new()?;
    let measured = runtime.block_on(async {
        match cell.workload {
            Workload::Grid(shape) => {
                let tables = Tables::new(shape, args.build_rows, args.probe_rows)?;
                let limit = match cell.limit {
                    0 => None,
                    percent => Some(tables.build_bytes().await? / 100 * percent),
                };
                let measured = tables.run(engine, limit).await?;
                match measured.rows == tables.pairs {
                    true => Ok(measured),
                    false => Err(Error::from(format!("{} rows came out", measured.rows))),
                }
            }
            Workload::Large => {
                let limit = (cell.limit > 0).then_some(cell.limit << 20);
                large::run(engine, limit, args).await
            }
        }
    });
    let json = match measured {
        Ok(measured) => json!({
            "seconds": measured.seconds,
            "rows": measured.rows,
            "pool_peak": measured.pool_peak,
            "process_peak": process_peak(),
            "spilled": measured.spilled_bytes,
            "files": measured.files,
        }),
        Err(error) => json!({
            "error": error.to_string().lines().next(),
            "process_peak": process_peak(),
        }),
    };
    writeln!(stdout(), "{json}")?;
    // A blocking task that hangs must not keep a process that has its result.
    runtime.shutdown_background();
    Ok(())
}

/// What DuckDB came to: one JSON object a line, with the limit in MB.
pub(crate) fn of_duckdb(text: &str) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let json: Value = serde_json::from_str(line)?;
        let limit = json["limit_mb"].as_u64().unwrap_or(0);
        let cell = Cell {
            workload: Workload::Large,
            engine: "duckdb".to_owned(),
            limit: usize::try_from(limit)?,
        };
        let outcome = Outcome::from_json(&json);
        match records.iter_mut().find(|record| record.cell == cell) {
            Some(record) => record.add(outcome),
            None => {
                let mut record = Record::new(cell);
                record.add(outcome);
                records.push(record);
            }
        }
    }
    Ok(records)
}

/// The most that this process occupied at a time, where `/proc` tells.
fn process_peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes << 10)
}
