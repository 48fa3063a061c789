//! What the ability to spill costs where nothing has to: this crate's join beside `HashJoinExec`,
//! everything in memory. Ids are `join_fits/{join_type}/{shape}/{engine}`.
//!
//! | axis | values | why |
//! |---|---|---|
//! | join type | Inner, Left, LeftSemi, RightAnti | pairs alone; pairs and build rows; match bits alone; probe rows alone |
//! | shape | dense, sparse, selective, repeated, text | a direct index is possible; chains of one; most probe rows end at the directory; long chains; keys that are not numbers |
//! | engine | grace, hash | ours, and the one that it replaces |
//!
//! All shapes for the inner join, which most joins are; the ordinary shape for the other types. The
//! pool is finite, so that reservations are really asked for, and far larger than the data: a run
//! that writes a file is no run. Each iteration asserts its row count.

#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a bench that cannot go on ends by panicking"
)]

mod common;

use std::hint::black_box;
use std::sync::Arc;

use common::{Engine, Inputs, Shape, rows};
use criterion::{BenchmarkId, Criterion, Throughput};
use datafusion::common::JoinType;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use tokio::runtime::{Builder, Runtime};

/// About 18 MB of columns on the build side, beyond the caches of one core.
const BUILD_ROWS: u64 = 500_000;

/// More than build rows, as the planner arranges it.
const PROBE_ROWS: u64 = 1_000_000;

/// With ten matches a probe row, as many pairs as elsewhere.
const PROBE_ROWS_REPEATED: u64 = 100_000;

const POOL_BYTES: usize = 4 << 30;

const CELLS: [(JoinType, Shape); 8] = [
    (JoinType::Inner, Shape::Dense),
    (JoinType::Inner, Shape::Sparse),
    (JoinType::Inner, Shape::Selective),
    (JoinType::Inner, Shape::Repeated),
    (JoinType::Inner, Shape::Text),
    (JoinType::Left, Shape::Sparse),
    (JoinType::LeftSemi, Shape::Sparse),
    (JoinType::RightAnti, Shape::Selective),
];

fn task() -> Arc<TaskContext> {
    let pool = Arc::new(GreedyMemoryPool::new(POOL_BYTES));
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .build_arc()
        .expect("a runtime");
    Arc::new(TaskContext::default().with_runtime(runtime))
}

fn inputs(shape: Shape) -> Inputs {
    let probe_rows = match shape {
        Shape::Repeated => PROBE_ROWS_REPEATED,
        _ => PROBE_ROWS,
    };
    shape.inputs(BUILD_ROWS, probe_rows).expect("the inputs")
}

fn bench_cell(
    criterion: &mut Criterion,
    executor: &Runtime,
    task: &Arc<TaskContext>,
    (join_type, shape): (JoinType, Shape),
) {
    let inputs = inputs(shape);
    let expected = inputs.expected(join_type);
    let mut group = criterion.benchmark_group(format!("join_fits/{join_type}/{}", shape.name()));
    group.sample_size(10);
    group.throughput(Throughput::Elements(inputs.probe_rows()));
    for engine in [Engine::Grace, Engine::Hash] {
        let plan = engine.plan(&inputs, join_type).expect("the plan");
        group.bench_function(BenchmarkId::from_parameter(engine.name()), |bencher| {
            bencher.iter(|| {
                let got = executor.block_on(rows(&plan, task));
                match got {
                    Ok(got) => assert_eq!(black_box(got), expected, "{join_type} {shape:?}"),
                    Err(error) => panic!("{join_type} {shape:?} {engine:?}: {error}"),
                }
            });
        });
        let spilled = plan.metrics().and_then(|metrics| metrics.spill_count());
        assert!(matches!(spilled, None | Some(0)), "{shape:?} spilled");
    }
    group.finish();
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let executor = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("an executor");
    let task = task();
    for cell in CELLS {
        bench_cell(&mut criterion, &executor, &task, cell);
    }
    criterion.final_summary();
}
