//! Plans in which joins share a pool with each other, with an aggregation and with a sort, all of which
//! spill: the answer is right, or somebody else says by name that he did not get by; nobody waits
//! for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::util::pretty::pretty_format_batches;
use datafusion::catalog::MemTable;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_common::{DataFusionError, Result};
use datafusion_execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryLimit, MemoryPool, UnboundedMemoryPool,
};
use datafusion_execution::runtime_env::RuntimeEnvBuilder;
use grace_hash_join::testing::within;
use grace_hash_join::{GraceHashJoinOptions, physical_optimizer_rules};

use super::turn;

/// How long a query may take before it counts as a deadlock.
const WATCHDOG: Duration = Duration::from_mins(1);

/// The first join's build is `a`, the second one's what comes out of the first; then some 6 MB of
/// groups, and as much to sort.
const QUERY: &str = "SELECT k, id, t, count(*) AS n, sum(v) AS v FROM \
    (SELECT a.k AS k, a.id AS id, a.t AS t, b.v + c.v AS v \
     FROM a JOIN b ON a.k = b.k JOIN c ON a.k = c.k) \
    GROUP BY k, id, t ORDER BY t, id";

/// Three keys, so most partitions of a join have no rows.
const KEYS: i64 = 3;

/// A table of `rows` rows with texts of `width` bytes, in batches of 64.
fn table(rows: i64, width: usize) -> Result<MemTable> {
    let batch = |from: i64| {
        let ids = from..rows.min(from + 64);
        let text = |id: i64| format!("{:0width$}", id * 7919 % 10_007);
        let columns: [(&str, ArrayRef); 4] = [
            (
                "k",
                Arc::new(Int64Array::from_iter_values(
                    ids.clone().map(|id| id % KEYS),
                )),
            ),
            ("id", Arc::new(Int64Array::from_iter_values(ids.clone()))),
            (
                "v",
                Arc::new(Int64Array::from_iter_values(ids.clone().map(|id| id * id))),
            ),
            ("t", Arc::new(StringArray::from_iter_values(ids.map(text)))),
        ];
        RecordBatch::try_from_iter(columns)
    };
    let batches = (0..rows)
        .step_by(64)
        .map(batch)
        .collect::<Result<Vec<_>, _>>()?;
    MemTable::try_new(batches[0].schema(), vec![batches])
}

fn session(pool: &Arc<dyn MemoryPool>, partitions: usize, is_ours: bool) -> Result<SessionContext> {
    let runtime = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(pool));
    let runtime = runtime.build_arc()?;
    let options = GraceHashJoinOptions::default()
        .with("algorithm", "grace")?
        .with("select", "always")?;
    let mut config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(64)
        .with_sort_spill_reservation_bytes(32 << 10)
        .with_option_extension(options);
    let optimizer = &mut config.options_mut().optimizer;
    optimizer.join_reordering = false;
    optimizer.hash_join_single_partition_threshold = 0;
    optimizer.hash_join_single_partition_threshold_rows = 0;
    let state = SessionStateBuilder::new().with_config(config);
    let state = match is_ours {
        true => state.with_physical_optimizer_rules(physical_optimizer_rules(&runtime)),
        false => state,
    };
    let state = state.with_runtime_env(runtime).with_default_features();
    let ctx = SessionContext::new_with_state(state.build());
    for (name, rows, width) in [("a", 1500, 2000), ("b", 6, 10), ("c", 3, 10)] {
        ctx.register_table(name, Arc::new(table(rows, width)?))?;
    }
    Ok(ctx)
}

/// Rows that the nodes of one kind have written to disk.
fn spilled(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let own = plan.metrics().and_then(|metrics| metrics.spilled_rows());
    let own = own.filter(|_| plan.name() == name).unwrap_or(0);
    own + plan
        .children()
        .into_iter()
        .map(|child| spilled(child, name))
        .sum::<usize>()
}

/// The answer in the order asked for, and what joins, aggregations and sorts have spilled.
async fn answer(ctx: &SessionContext) -> Result<(String, [usize; 3])> {
    let plan = ctx.sql(QUERY).await?.create_physical_plan().await?;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    let names = ["GraceHashJoinExec", "AggregateExec", "SortExec"];
    let spilled = names.map(|name| spilled(&plan, name));
    Ok((pretty_format_batches(&batches)?.to_string(), spilled))
}

async fn expected(partitions: usize) -> String {
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let ctx = session(&pool, partitions, false).unwrap();
    answer(&ctx).await.unwrap().0
}

/// Takes a quarter of the pool, once so many bytes were taken by others.
fn neighbour(
    pool: Arc<dyn MemoryPool>,
    after: usize,
    is_over: Arc<AtomicBool>,
) -> Arc<AtomicUsize> {
    let took = Arc::new(AtomicUsize::new(0));
    let taken = Arc::clone(&took);
    std::thread::spawn(move || {
        let held = MemoryConsumer::new("neighbour").register(&pool);
        let MemoryLimit::Finite(limit) = pool.memory_limit() else {
            return;
        };
        while !is_over.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
            if held.size() == 0 && pool.reserved() >= after {
                let _ = held.try_grow(limit / 4);
                taken.store(held.size(), SeqCst);
            }
        }
    });
    took
}

/// Whether an error is one of memory, and not ours.
fn is_of_others(error: &DataFusionError) -> bool {
    let root = error.find_root();
    matches!(root, DataFusionError::ResourcesExhausted(_))
        && !root.to_string().contains("GraceHashJoin partition")
}

type NewPool = fn(usize) -> Arc<dyn MemoryPool>;

/// A fair pool counts everybody who may spill: two joins, two aggregations and a sort a partition.
const POOLS: [NewPool; 2] = [
    |partitions| Arc::new(FairSpillPool::new(partitions * 5 * (640 << 10))),
    |_| Arc::new(GreedyMemoryPool::new(8 << 20)),
];

#[test]
fn joins_beside_an_aggregation_and_a_sort_finish_in_one_pool() {
    let _turn = turn();
    let mut most = [0; 3];
    for partitions in [1, 4, 24] {
        for pool in POOLS {
            let pool = pool(partitions);
            let what = format!("{partitions} partitions in {pool}");
            let run = move || async move {
                let expected = expected(partitions).await;
                let ctx = session(&pool, partitions, true).unwrap();
                let (rows, spilled) = answer(&ctx).await.unwrap();
                assert_eq!(rows, expected);
                assert_eq!(pool.reserved(), 0);
                spilled
            };
            let spilled = within(WATCHDOG, run).unwrap_or_else(|why| panic!("{what}: {why}"));
            most = [0, 1, 2].map(|who| most[who].max(spilled[who]));
        }
    }
    assert!(
        most.iter().all(|rows| *rows > 0),
        "not all spilled: {most:?}"
    );
}

/// Whether the query was answered, and whether the neighbour came.
async fn beside_a_neighbour(
    pool: Arc<dyn MemoryPool>,
    partitions: usize,
    after: usize,
) -> (bool, bool) {
    let expected = expected(partitions).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let took = neighbour(Arc::clone(&pool), after, Arc::clone(&is_over));
    let ctx = session(&pool, partitions, true).unwrap();
    let answer = answer(&ctx).await;
    is_over.store(true, SeqCst);
    let has_come = took.load(SeqCst) > 0;
    match answer {
        Ok((rows, _)) => assert_eq!(rows, expected),
        Err(error) => {
            assert!(is_of_others(&error), "{error}");
            return (false, has_come);
        }
    }
    (true, has_come)
}

#[test]
fn a_neighbour_that_takes_memory_half_way_is_put_up_with_or_complained_of_by_others() {
    let _turn = turn();
    let (mut right, mut came) = (0, 0);
    for (partitions, moments) in [(1, [1 << 19, 2 << 20]), (24, [1 << 20, 3 << 20])] {
        for pool in POOLS {
            for after in moments {
                let pool = pool(partitions);
                let what = format!("{partitions} partitions in {pool}, from {after} bytes on");
                let run = move || beside_a_neighbour(pool, partitions, after);
                let result = within(WATCHDOG, run);
                let (is_right, has_come) = result.unwrap_or_else(|why| panic!("{what}: {why}"));
                right += usize::from(is_right);
                came += usize::from(has_come);
            }
        }
    }
    assert!(
        right > 0 && came >= 4,
        "of 8, {right} were right and {came} had a neighbour"
    );
}
