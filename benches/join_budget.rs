//! What a join that spills costs: this crate's join with a budget of some per cent of its build,
//! beside `HashJoinExec` and itself without a limit, and beside `SortMergeJoinExec` with its sorts in
//! the same pool. Ids are `join_budget/inner/{shape}/{engine}/{percent}`; `unlimited` is no limit.
//!
//! | axis | values | why |
//! |---|---|---|
//! | shape | uniform, skewed | buckets of one size; buckets of very different sizes |
//! | budget | 200, 100, 75, 50, 25, 10, 5 % of the build | fits; just fits; the bars are at 50, 25 and 10 |
//! | engine | `grace`, `sort_merge` | hash joins without a limit are what both are compared with |
//!
//! Not measured by Criterion, which would run one cell after the other: all cells take turns, so that
//! whatever else the machine does falls on all of them, and a cell is the median of its rounds. Each
//! run asserts its row count. Losses are printed in bold.
//!
//! `cargo bench --bench join_budget -- --help` lists the sizes and the engines.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench that cannot go on ends by panicking, and prints what it found"
)]

#[path = "../examples/curve/grid.rs"]
mod grid;

use clap::Parser;
use grid::{Engine, Shape, Tables};
use tokio::runtime::Builder;

/// A join under a budget, beside its peers.
#[derive(Parser)]
struct Args {
    /// Build rows.
    #[arg(long, default_value = "1000000")]
    build_rows: usize,
    /// Probe rows.
    #[arg(long, default_value = "2000000")]
    probe_rows: usize,
    /// Runs of each cell.
    #[arg(long, default_value = "5")]
    rounds: usize,
    /// Budgets in per cent of the build.
    #[arg(long, value_delimiter = ',', default_value = "200,100,75,50,25,10,5")]
    percents: Vec<usize>,
    /// Leave the peers out.
    #[arg(long)]
    alone: bool,
    /// Cargo says so.
    #[arg(long, hide = true)]
    bench: bool,
}

/// One engine with one budget.
struct Cell {
    engine: Engine,
    /// `None` is no limit.
    percent: Option<usize>,
    seconds: Vec<f64>,
    spilled: usize,
    files: usize,
    peak: usize,
    failure: Option<String>,
}

impl Cell {
    fn new(engine: Engine, percent: Option<usize>) -> Self {
        Self {
            engine,
            percent,
            seconds: Vec::new(),
            spilled: 0,
            files: 0,
            peak: 0,
            failure: None,
        }
    }

    fn median(&self) -> Option<f64> {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f64::total_cmp);
        seconds.get(seconds.len() / 2).copied()
    }

    fn run(&mut self, executor: &tokio::runtime::Runtime, tables: &Tables, build: usize) {
        if self.failure.is_some() {
            return;
        }
        let limit = self.percent.map(|percent| build / 100 * percent);
        match executor.block_on(tables.run(self.engine, limit)) {
            Ok(measured) => {
                assert_eq!(measured.rows, tables.pairs, "{}", self.engine.name());
                self.seconds.push(measured.seconds);
                self.spilled = self.spilled.max(measured.spilled_bytes);
                self.files = self.files.max(measured.files);
                self.peak = self.peak.max(measured.pool_peak);
            }
            Err(error) => self.failure = Some(error.strip_backtrace()),
        }
    }
}

fn cells(args: &Args) -> Vec<Cell> {
    let mut cells = vec![Cell::new(Engine::Grace, None)];
    if !args.alone {
        cells.push(Cell::new(Engine::Hash, None));
        cells.push(Cell::new(Engine::SortMerge, None));
    }
    for percent in &args.percents {
        cells.push(Cell::new(Engine::Grace, Some(*percent)));
        if !args.alone {
            cells.push(Cell::new(Engine::SortMerge, Some(*percent)));
        }
    }
    cells
}

/// A ratio for the table, in bold if it is a loss.
fn ratio(ours: Option<f64>, theirs: Option<f64>, bar: f64) -> String {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) if ours / theirs > bar => format!("**{:.2}**", ours / theirs),
        (Some(ours), Some(theirs)) => format!("{:.2}", ours / theirs),
        _ => "-".to_owned(),
    }
}

/// The most that a budget may cost, against no limit.
fn bar(percent: Option<usize>) -> f64 {
    match percent {
        Some(percent) if percent >= 100 => 1.1,
        Some(percent) if percent >= 50 => 1.5,
        Some(percent) if percent >= 25 => 2.0,
        Some(percent) if percent >= 10 => 3.0,
        _ => f64::INFINITY,
    }
}

fn print(shape: Shape, cells: &[Cell], build: usize) {
    let find = |engine: Engine, percent: Option<usize>| {
        let mut cells = cells.iter();
        cells.find(|cell| cell.engine == engine && cell.percent == percent)
    };
    let median = |engine, percent| find(engine, percent).and_then(Cell::median);
    let unlimited = median(Engine::Grace, None);
    println!("\n{}, build of {build} bytes\n", shape.name());
    println!(
        "| cell | median s | peak | spilled | files | / itself unlimited | / hash unlimited | / sort-merge |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for cell in cells {
        let seconds = cell.median();
        let budget = cell
            .percent
            .map_or_else(|| "unlimited".to_owned(), |percent| format!("{percent} %"));
        let (own, merge) = match cell.engine {
            Engine::Grace => (
                ratio(seconds, unlimited, bar(cell.percent)),
                ratio(seconds, median(Engine::SortMerge, cell.percent), 1.0),
            ),
            _ => ("-".to_owned(), "-".to_owned()),
        };
        println!(
            "| join_budget/inner/{}/{}/{budget} | {} | {} | {} | {} | {own} | {} | {merge} |",
            shape.name(),
            cell.engine.name(),
            seconds.map_or_else(|| "fails".to_owned(), |seconds| format!("{seconds:.3}")),
            cell.peak,
            cell.spilled,
            cell.files,
            ratio(seconds, median(Engine::Hash, None), f64::INFINITY),
        );
        if let Some(failure) = &cell.failure {
            println!("<!-- {} -->", failure.lines().next().unwrap_or_default());
        }
    }
}

fn main() {
    let args = Args::parse();
    let executor = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("an executor");
    for shape in [Shape::Uniform, Shape::Skewed] {
        let tables = Tables::new(shape, args.build_rows, args.probe_rows).expect("the inputs");
        let build = executor.block_on(tables.build_bytes()).expect("the build");
        let mut cells = cells(&args);
        for _ in 0..args.rounds {
            for cell in &mut cells {
                cell.run(&executor, &tables, build);
            }
        }
        print(shape, &cells, build);
    }
}
