//! What the ability to spill costs where nothing has to: this crate's join beside `HashJoinExec`,
//! everything in memory. Ids are `join_fits/{join_type}/{shape}/{engine}`, and a shape is
//! `{key}-{pairing}-{hits}-{payload}`.
//!
//! | axis | values | why |
//! |---|---|---|
//! | join type | Inner, Left, LeftSemi, RightAnti | pairs alone; pairs and build rows; match bits alone; probe rows alone |
//! | key | dense, int32, int64, (text), utf8view, twocolumns, decimal, dictionary | a direct index is possible; one word; one word; bytes; views; several passes; two words; arrow's own comparison |
//! | pairing | 1:1, 1:n, (10:n), 100:n | chains of one; the same, twice as many probe rows; long chains |
//! | hits | all, 10 %, 0.1 % | everything comes out; most probe rows end at the directory |
//! | payload | narrow, (mixed), wide | finding matches; copying rows |
//! | engine | grace, hash | ours, and the one that it replaces |
//!
//! What is in brackets is in the first eight cells only, which are always run; `JOIN_FITS=all` runs
//! the other 504 too. Two ways to run a cell: by criterion, engine by engine; or, with
//! `JOIN_FITS_ROUNDS=n`, in turn, `n` rounds, as a Markdown table of the median processor times and
//! ratios, which other work on the machine disturbs less. `JOIN_FITS_ONLY=text` runs the cells whose name has the
//! text.
//!
//! The pool is finite, so that reservations are really asked for, and far larger than the data: a run
//! that writes a file is no run. Each iteration asserts its row count.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a bench that cannot go on ends by panicking, and one that can says what it found"
)]

mod common;

use std::hint::black_box;
use std::sync::Arc;

use common::{Engine, Inputs, Key, Pairing, Payload, Shape, in_turn, rows};
use criterion::{BenchmarkId, Criterion, Throughput};
use datafusion::common::JoinType;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::ExecutionPlan;
use tokio::runtime::{Builder, Runtime};

/// About 18 MB of columns on the build side, beyond the caches of one core.
const BUILD_ROWS: u64 = 500_000;

/// More than build rows, as the planner arranges it.
const PROBE_ROWS: u64 = 1_000_000;

const POOL_BYTES: usize = 4 << 30;

type Cell = (JoinType, Shape);

const CELLS: [Cell; 8] = [
    (JoinType::Inner, Shape::DENSE),
    (JoinType::Inner, Shape::SPARSE),
    (JoinType::Inner, Shape::SELECTIVE),
    (JoinType::Inner, Shape::REPEATED),
    (JoinType::Inner, Shape::TEXT),
    (JoinType::Left, Shape::SPARSE),
    (JoinType::LeftSemi, Shape::SPARSE),
    (JoinType::RightAnti, Shape::SELECTIVE),
];

fn grid() -> Vec<Cell> {
    let mut cells = Vec::new();
    let types = [
        JoinType::Inner,
        JoinType::Left,
        JoinType::LeftSemi,
        JoinType::RightAnti,
    ];
    for key in Key::ALL.into_iter().filter(|key| *key != Key::Text) {
        for pairing in [Pairing::OneToOne, Pairing::OneToMany, Pairing::ManyToMany] {
            for one_hit_in in [1, 10, 1000] {
                for payload in [Payload::Narrow, Payload::Wide] {
                    let shape = Shape {
                        key,
                        pairing,
                        one_hit_in,
                        payload,
                    };
                    cells.extend(types.map(|join_type| (join_type, shape)));
                }
            }
        }
    }
    cells
}

fn name((join_type, shape): Cell) -> String {
    format!("join_fits/{join_type}/{shape}")
}

/// As many pairs, about, where a probe row has many matches.
fn inputs(shape: Shape) -> Inputs {
    let probe_rows = match shape.pairing {
        Pairing::TenToMany => PROBE_ROWS / 10,
        Pairing::ManyToMany => PROBE_ROWS / 100 * shape.one_hit_in.min(10),
        _ => PROBE_ROWS,
    };
    shape.inputs(BUILD_ROWS, probe_rows).expect("the inputs")
}

/// What all cells run in.
struct Bench {
    executor: Runtime,
    task: Arc<TaskContext>,
}

impl Bench {
    fn new() -> Self {
        let pool = Arc::new(GreedyMemoryPool::new(POOL_BYTES));
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(pool)
            .build_arc()
            .expect("a runtime");
        let executor = Builder::new_current_thread().enable_all().build();
        Self {
            executor: executor.expect("an executor"),
            task: Arc::new(TaskContext::default().with_runtime(runtime)),
        }
    }

    /// Runs a plan once.
    fn run(&self, plan: &Arc<dyn ExecutionPlan>, expected: usize) {
        match self.executor.block_on(rows(plan, &self.task)) {
            Ok(got) => assert_eq!(black_box(got), expected, "rows"),
            Err(error) => panic!("{error}"),
        }
        let spilled = plan.metrics().and_then(|metrics| metrics.spill_count());
        assert!(matches!(spilled, None | Some(0)), "a file was written");
    }

    /// One engine after the other.
    fn measure(&self, criterion: &mut Criterion, cell: Cell) {
        let (join_type, shape) = cell;
        let inputs = inputs(shape);
        let mut group = criterion.benchmark_group(name(cell));
        group.sample_size(10);
        group.throughput(Throughput::Elements(inputs.probe_rows()));
        for engine in [Engine::Grace, Engine::Hash] {
            let plan = engine.plan(&inputs, join_type).expect("the plan");
            group.bench_function(BenchmarkId::from_parameter(engine.name()), |bencher| {
                bencher.iter(|| self.run(&plan, inputs.expected(join_type)));
            });
        }
        group.finish();
    }

    /// Both engines in turn; returns the ratio of their times.
    fn compare(&self, rounds: usize, cell: Cell) -> f64 {
        let (join_type, shape) = cell;
        let inputs = inputs(shape);
        let expected = inputs.expected(join_type);
        let plan = |engine: Engine| engine.plan(&inputs, join_type).expect("the plan");
        let (grace, hash) = (plan(Engine::Grace), plan(Engine::Hash));
        let run = |plan| move || self.run(plan, expected);
        let (times, ratio) = in_turn(rounds, run(&grace), run(&hash));
        let [grace, hash] = times.map(|time| time.as_secs_f64() * 1e3);
        let bold = if ratio > 1.0 { "**" } else { "" };
        println!("| {join_type}/{shape} | {grace:.1} | {hash:.1} | {bold}{ratio:.2}{bold} |");
        ratio
    }
}

fn main() {
    let mut cells = CELLS.to_vec();
    if std::env::var("JOIN_FITS").is_ok_and(|which| which == "all") {
        cells.extend(grid());
    }
    if let Ok(only) = std::env::var("JOIN_FITS_ONLY") {
        cells.retain(|cell| name(*cell).contains(&only));
    }
    let bench = Bench::new();
    let rounds = std::env::var("JOIN_FITS_ROUNDS").ok();
    let Some(rounds) = rounds.map(|rounds| rounds.parse().expect("a number of rounds")) else {
        let mut criterion = Criterion::default().configure_from_args();
        for cell in cells {
            bench.measure(&mut criterion, cell);
        }
        criterion.final_summary();
        return;
    };
    println!("| cell | grace, ms | hash, ms | grace / hash |\n|---|---|---|---|");
    let ratios: Vec<f64> = cells
        .iter()
        .map(|cell| bench.compare(rounds, *cell))
        .collect();
    let logarithms = ratios.iter().map(|ratio| ratio.ln()).sum::<f64>();
    #[expect(clippy::cast_precision_loss, reason = "a few hundred cells")]
    let mean = (logarithms / ratios.len() as f64).exp();
    let losses = ratios.iter().filter(|ratio| **ratio > 1.0).count();
    println!(
        "\n{} cells, geometric mean {mean:.3}, {losses} above 1.00",
        ratios.len()
    );
}
