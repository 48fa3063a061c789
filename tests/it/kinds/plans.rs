//! Dynamic filters, partitions and metrics of the node in a plan: a filter never costs a row, nobody
//! waits for a partition that is not coming, and the counters say what came out.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    ArrayRef, DictionaryArray, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use arrow::datatypes::{Int32Type, SchemaRef};
use datafusion::common::{DataFusionError, JoinType, NullEquality, Result};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::{SessionStateBuilder, TaskContext};
use datafusion::physical_expr::expressions::{Column, DynamicFilterPhysicalExpr, lit};
use datafusion::physical_expr::{PhysicalExpr, PhysicalExprRef};
use datafusion::physical_plan::common::collect;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_common::JoinType::{
    Full, Inner, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi,
};
use futures::StreamExt;
use grace_hash_join::testing::{Case, JOIN_TYPES, Rows, Table};
use grace_hash_join::{
    GraceHashJoinConfig, GraceHashJoinExec, GraceHashJoinOptions, SpillPolicy,
    physical_optimizer_rules,
};

use super::{cut, keys, numbers, table};
use crate::run;

/// A side of a join, by partition.
type Partitions = Vec<Table>;

fn schema(side: &Partitions) -> SchemaRef {
    Arc::clone(&side[0].schema)
}

fn source(side: &Partitions) -> Arc<dyn ExecutionPlan> {
    let batches: Vec<_> = side.iter().map(|part| part.batches.clone()).collect();
    MemorySourceConfig::try_new_exec(&batches, schema(side), None).unwrap()
}

fn key_columns(side: &Partitions) -> Vec<PhysicalExprRef> {
    let schema = schema(side);
    let column = |i: usize| Arc::new(Column::new(schema.field(i).name(), i)) as PhysicalExprRef;
    (0..side[0].v).map(column).collect()
}

/// The node over partitions given by hand, with a filter that its build side fills and its probe
/// side asks.
struct Plan {
    node: Arc<dyn ExecutionPlan>,
    asked: Arc<dyn ExecutionPlan>,
    filter: Arc<DynamicFilterPhysicalExpr>,
}

#[derive(Clone)]
struct Partitioned {
    join_type: JoinType,
    build: Partitions,
    probe: Partitions,
    null_equality: NullEquality,
    spill: SpillPolicy,
}

impl Partitioned {
    fn new(join_type: JoinType, build: Partitions, probe: Partitions) -> Self {
        Self {
            join_type,
            build,
            probe,
            null_equality: NullEquality::NullEqualsNothing,
            spill: SpillPolicy::Pressure,
        }
    }

    /// Probe rows without a match may go only where they do not come out.
    fn may_filter(&self) -> bool {
        !matches!(self.join_type, Right | Full | RightAnti | RightMark)
    }

    fn plan(&self) -> Plan {
        let on = key_columns(&self.probe);
        let filter = Arc::new(DynamicFilterPhysicalExpr::new(on.clone(), lit(true)));
        let predicate: Arc<dyn PhysicalExpr> = match self.may_filter() {
            true => Arc::<DynamicFilterPhysicalExpr>::clone(&filter),
            false => lit(true),
        };
        let asked: Arc<dyn ExecutionPlan> =
            Arc::new(FilterExec::try_new(predicate, source(&self.probe)).unwrap());
        let mode = match self.build.len() {
            1 => PartitionMode::CollectLeft,
            _ => PartitionMode::Partitioned,
        };
        let join = HashJoinExec::try_new(
            source(&self.build),
            Arc::clone(&asked),
            key_columns(&self.build).into_iter().zip(on).collect(),
            None,
            &self.join_type,
            None,
            mode,
            self.null_equality,
            false,
        );
        let join = match self.may_filter() {
            true => join.unwrap().with_dynamic_filter_expr(Arc::clone(&filter)),
            false => join,
        };
        let config = GraceHashJoinConfig::builder()
            .with_spill(self.spill)
            .with_fan_out(4)
            .build();
        let node = GraceHashJoinExec::try_from_hash_join(&join.unwrap()).unwrap();
        Plan {
            node: Arc::new(node.with_config(&config.unwrap()).unwrap()),
            asked,
            filter,
        }
    }

    /// The rows of all partitions, each in a task of its own, however the join is run; the filter is
    /// complete in the end. Says how many probe rows the filter let pass, at most.
    fn gives(&self, rows: &[&str]) -> usize {
        let mut most = 0;
        for spill in [SpillPolicy::Pressure, SpillPolicy::Half, SpillPolicy::All] {
            let join = Self {
                spill,
                ..self.clone()
            };
            let expected = Rows::written(rows);
            let passed = run(&Case::new(self.join_type), move || async move {
                let plan = join.plan();
                let rows = Rows::of(&plan.run().await.unwrap()).unwrap();
                assert_eq!(expected.difference(&rows), None, "{spill:?}");
                plan.filter.wait_complete().await;
                let counted = plan.node.metrics().unwrap().output_rows();
                assert_eq!(counted, Some(rows.len()), "{spill:?}");
                plan.asked.metrics().unwrap().output_rows().unwrap()
            });
            most = most.max(passed);
        }
        most
    }
}

impl Plan {
    async fn run(&self) -> Result<Vec<RecordBatch>> {
        let partitions = self.node.properties().partitioning.partition_count();
        let context = Arc::new(TaskContext::default());
        let streams = (0..partitions).map(|p| self.node.execute(p, Arc::clone(&context)));
        let streams = streams.collect::<Result<Vec<_>>>()?;
        let tasks: Vec<_> = streams
            .into_iter()
            .map(|s| tokio::spawn(collect(s)))
            .collect();
        let mut batches = Vec::new();
        for task in tasks {
            let part = task
                .await
                .map_err(|e| DataFusionError::External(Box::new(e)))?;
            batches.extend(part?);
        }
        Ok(batches)
    }
}

fn same(rows: impl IntoIterator<Item = i32>) -> Vec<String> {
    rows.into_iter().map(|k| format!("{k},{k}")).collect()
}

fn words(rows: &[String]) -> Vec<&str> {
    rows.iter().map(String::as_str).collect()
}

/// duckdb#25702: the filter had seen the first round of buckets only.
#[test]
fn a_filter_covers_the_buckets_on_disk() {
    let build = numbers((0..100).map(|i| i % 25));
    // The report's thousand rows, and five hundred that no build row matches.
    let probe = numbers((0..1000).map(|i| i % 25).chain(25..525));
    let one = |table: &Table| vec![cut(table.clone(), 100)];
    let semi: Vec<_> = (0..1000).map(|i| (i % 25).to_string()).collect();
    let passed = Partitioned::new(RightSemi, one(&build), one(&probe)).gives(&words(&semi));
    assert_eq!(passed, 1000);
    let inner = same((0..4000).map(|i| i % 25));
    let passed = Partitioned::new(Inner, one(&build), one(&probe)).gives(&words(&inner));
    assert_eq!(passed, 1000);
}

/// databend#19415: one partition of four spilled, and its rows were not in the filter.
#[test]
fn a_filter_covers_a_partition_that_alone_was_spilled() {
    let wide = |keys: Vec<i32>, width: usize| {
        let text = StringArray::from_iter_values(keys.iter().map(|_| "x".repeat(width)));
        let keys: ArrayRef = Arc::new(Int32Array::from(keys));
        cut(table(1, vec![("k", keys), ("w", Arc::new(text))]), 5)
    };
    let part = |p: i32| (0..100).filter(move |k| k % 4 == p).collect::<Vec<_>>();
    let build: Vec<_> = (0..4)
        .map(|p| wide(part(p), if p == 2 { 64 << 10 } else { 8 }))
        .collect();
    let probe: Vec<_> = (0..4)
        .map(|p| numbers(part(p).into_iter().chain(1000..1100)))
        .collect();
    let join = Partitioned::new(Inner, build, probe);
    run(&Case::new(Inner), move || async move {
        let plan = join.plan();
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 20));
        let runtime = RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc();
        let context = Arc::new(TaskContext::default().with_runtime(runtime.unwrap()));
        let streams: Vec<_> = (0..4)
            .map(|p| plan.node.execute(p, Arc::clone(&context)).unwrap())
            .collect();
        let rows = futures::future::try_join_all(streams.into_iter().map(collect)).await;
        let rows: usize = rows
            .unwrap()
            .iter()
            .flatten()
            .map(RecordBatch::num_rows)
            .sum();
        assert_eq!(rows, 100);
        let metrics = plan.node.metrics().unwrap();
        let spilled = metrics
            .iter()
            .filter(|m| m.value().name() == "spilled_rows");
        let spilled: Vec<_> = spilled
            .filter(|m| m.value().as_usize() > 0)
            .map(|m| m.partition())
            .collect();
        assert_eq!(spilled, [Some(2)]);
        let current = plan.filter.current().unwrap().to_string();
        assert!(
            current.contains(">= 0") && current.contains("<= 99"),
            "{current}"
        );
        assert_eq!(plan.asked.metrics().unwrap().output_rows(), Some(100));
    });
}

/// datafusion#17188: each partition published its own bounds for the scan that all share.
#[test]
fn a_filter_is_of_all_partitions_or_none() {
    let build = vec![numbers([1]), numbers([10_000])];
    let probe = vec![numbers(1..=5000), numbers(5001..=10_000)];
    let passed = Partitioned::new(Inner, build, probe).gives(&["1,1", "10000,10000"]);
    assert_eq!(passed, 2);
}

/// datafusion#20176: partitioned by value whatever the plan says, so rows may not be sent elsewhere.
#[test]
fn a_partition_is_joined_with_its_own_and_no_other() {
    let build = vec![numbers([1, 2, 9]), numbers([1, 3])];
    let probe = vec![numbers([1, 3]), numbers([2, 1, 3])];
    Partitioned::new(Inner, build.clone(), probe.clone()).gives(&["1,1", "1,1", "3,3"]);
    Partitioned::new(LeftAnti, build.clone(), probe.clone()).gives(&["2", "9"]);
    Partitioned::new(LeftMark, build, probe)
        .gives(&["1,true", "2,false", "9,false", "1,true", "3,true"]);
}

/// datafusion#22964, velox#11781: a filter knows whether NULLs match, and empties no side.
#[test]
fn a_filter_lets_nulls_through_where_they_match() {
    let one = |rows: &[Option<i32>]| vec![keys(rows)];
    let (build, probe) = (one(&[None, Some(1)]), one(&[None, Some(2)]));
    let mut join = Partitioned::new(Inner, build.clone(), probe.clone());
    join.gives(&[]);
    join.null_equality = NullEquality::NullEqualsNull;
    join.gives(&["NULL,NULL"]);
    join.join_type = LeftSemi;
    join.gives(&["NULL"]);
    join.join_type = LeftAnti;
    join.gives(&["1"]);
    // Only NULLs on the build side, with values on the other.
    let mut join = Partitioned::new(Inner, one(&[None]), one(&[Some(1), None]));
    join.null_equality = NullEquality::NullEqualsNull;
    join.gives(&["NULL,NULL"]);
    let join = Partitioned::new(LeftMark, one(&[Some(1), None]), one(&[Some(2)]));
    join.gives(&["1,false", "NULL,false"]);
}

/// datafusion#20696, doris#67768, ClickHouse#106540: keys of dictionaries and floats.
#[test]
fn a_filter_knows_the_equality_of_its_keys() {
    let dictionary = |words: Vec<Option<&str>>| {
        let words: ArrayRef = Arc::new(words.into_iter().collect::<DictionaryArray<Int32Type>>());
        vec![table(1, vec![("k", words)])]
    };
    let build = dictionary(vec![Some("a"), Some("b"), None, Some("a")]);
    let probe = dictionary(vec![Some("b"), Some("c"), Some("a"), None]);
    let join = Partitioned::new(Inner, build, probe);
    join.gives(&["\"a\",\"a\"", "\"a\",\"a\"", "\"b\",\"b\""]);
    let floats = |floats: Vec<Option<f64>>| {
        let floats: ArrayRef = Arc::new(Float64Array::from(floats));
        vec![table(1, vec![("k", floats)])]
    };
    let bits = |f: f64| format!("{:x}", f.to_bits());
    let (zero, minus) = (bits(0.0), bits(-0.0));
    let join = Partitioned::new(
        RightSemi,
        floats(vec![Some(0.0)]),
        floats(vec![Some(-0.0), Some(0.0), None]),
    );
    join.gives(&[&zero, &minus]);
    let nan = bits(f64::NAN);
    let build = floats(vec![Some(f64::NAN), Some(f64::INFINITY)]);
    let join = Partitioned::new(
        RightSemi,
        build,
        floats(vec![Some(f64::NAN), Some(-f64::NAN), Some(1.0)]),
    );
    join.gives(&[&nan]);
    let build = floats(vec![Some(-0.0)]);
    Partitioned::new(LeftSemi, build, floats(vec![Some(0.0)])).gives(&[&minus]);
}

/// starrocks#23839: keys of two columns, in the table and in the filter.
#[test]
fn a_filter_over_two_columns_loses_no_pair() {
    let side = |rows: &[(i32, Option<i64>)]| {
        let first: ArrayRef = Arc::new(Int32Array::from_iter_values(rows.iter().map(|r| r.0)));
        let second: ArrayRef = Arc::new(rows.iter().map(|r| r.1).collect::<Int64Array>());
        vec![table(2, vec![("a", first), ("b", second)])]
    };
    let build = side(&[
        (1, Some(1)),
        (1, Some(2)),
        (2, Some(1)),
        (2, None),
        (3, Some(9)),
        (4, Some(4)),
        (1, Some(1)),
        (9, Some(1)),
        (0, None),
    ]);
    let probe = side(&[
        (1, Some(1)),
        (2, Some(2)),
        (2, None),
        (3, Some(9)),
        (9, Some(9)),
        (4, Some(4)),
    ]);
    let join = Partitioned::new(Inner, build, probe);
    join.gives(&["1,1,1,1", "1,1,1,1", "3,9,3,9", "4,4,4,4"]);
}

/// datafusion#21625: partitions without build rows, and partitions that nobody polls.
#[test]
fn partitions_that_are_empty_or_dropped_hold_nobody_up() {
    let partitions = 24;
    let first = |p: usize| if p == 0 { numbers(0..10) } else { keys(&[]) };
    let build: Vec<_> = (0..partitions).map(first).collect();
    let probe: Vec<_> = (0..partitions).map(|_| numbers(0..20)).collect();
    for join_type in [Inner, Right, Full, LeftSemi] {
        let rows_of = |p: usize| match (join_type, p) {
            (Right | Full, _) => 20,
            (_, 0) => 10,
            _ => 0,
        };
        let join = Partitioned::new(join_type, build.clone(), probe.clone());
        for kept in [
            |p: usize| p.is_multiple_of(2),
            |p: usize| !p.is_multiple_of(2),
            |_| true,
        ] {
            let join = join.clone();
            let expected: usize = (0..partitions).filter(|p| kept(*p)).map(rows_of).sum();
            let rows = run(&Case::new(join_type), move || async move {
                let plan = join.plan();
                let context = Arc::new(TaskContext::default());
                let streams =
                    (0..partitions).map(|p| plan.node.execute(p, Arc::clone(&context)).unwrap());
                let streams = streams.enumerate().filter(|(p, _)| kept(*p));
                let tasks: Vec<_> = streams.map(|(_, s)| tokio::spawn(collect(s))).collect();
                let mut rows = 0;
                for task in tasks {
                    let batches = tokio::time::timeout(Duration::from_secs(20), task).await;
                    let batches = batches.expect("a stream hangs").unwrap().unwrap();
                    rows += batches.iter().map(RecordBatch::num_rows).sum::<usize>();
                }
                if join.may_filter() {
                    plan.filter.wait_complete().await;
                }
                rows
            });
            assert_eq!(rows, expected, "{join_type:?}");
        }
    }
}

/// doris#66398: nobody filled the filter, and the scan waited for it.
#[test]
fn the_first_batch_does_not_wait_for_a_filter_that_does_not_come() {
    for spill in [SpillPolicy::Pressure, SpillPolicy::All] {
        let mut join = Partitioned::new(Inner, vec![numbers(0..100)], vec![numbers(50..200)]);
        join.spill = spill;
        run(&Case::new(Inner), move || async move {
            let plan = join.plan();
            let mut stream = plan
                .node
                .execute(0, Arc::new(TaskContext::default()))
                .unwrap();
            let first = tokio::time::timeout(Duration::from_secs(1), stream.next()).await;
            assert!(first.expect("nothing came").unwrap().unwrap().num_rows() > 0);
            plan.filter.wait_complete().await;
        });
    }
}

/// datafusion#20809, tidb#58571: the counters are true on the short paths too.
#[test]
fn the_output_rows_are_those_that_were_received_on_every_path() {
    let (some, none) = (numbers(0..40), keys(&[]));
    for join_type in JOIN_TYPES {
        for (build, probe) in [
            (&some, &some),
            (&some, &none),
            (&none, &some),
            (&none, &none),
        ] {
            for spill in [SpillPolicy::Pressure, SpillPolicy::Half, SpillPolicy::All] {
                for fetch in [None, Some(0), Some(7)] {
                    let mut join = Partitioned::new(
                        join_type,
                        vec![build.clone()],
                        vec![cut(probe.clone(), 9)],
                    );
                    join.spill = spill;
                    let (received, counted, read) = counts(join, fetch);
                    assert_eq!(received, counted, "{join_type:?}, {spill:?}, {fetch:?}");
                    assert!(fetch.is_none_or(|fetch| received <= fetch));
                    // A build side is read to its end unless nothing was wanted.
                    let wanted = fetch != Some(0);
                    let rows = build.rows();
                    assert!(
                        !wanted || fetch.is_some() || read == rows,
                        "{read} of {rows}"
                    );
                }
            }
        }
    }
}

/// Rows received, counted, and read on the build side.
fn counts(join: Partitioned, fetch: Option<usize>) -> (usize, usize, usize) {
    run(&Case::new(join.join_type), move || async move {
        let node = join.plan().node;
        let node = match fetch {
            Some(_) => node.with_fetch(fetch).unwrap(),
            None => node,
        };
        let stream = node.execute(0, Arc::new(TaskContext::default())).unwrap();
        let batches = collect(stream).await.unwrap();
        let metrics = node.metrics().unwrap();
        let read = metrics.sum_by_name("build_input_rows").unwrap().as_usize();
        let received = batches.iter().map(RecordBatch::num_rows).sum();
        (received, metrics.output_rows().unwrap(), read)
    })
}

/// A session whose every join that can be is ours, with everything on disk, or DataFusion's.
fn session(ours: Option<&str>, partitions: usize, memory: usize) -> SessionContext {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(memory));
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .build_arc()
        .unwrap();
    let mut config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(1000);
    // A file is closed after each batch: apache/datafusion#24883.
    config = config.set_usize("datafusion.execution.max_spill_file_size_bytes", 1);
    let mut builder = SessionStateBuilder::new();
    if let Some(spill) = ours {
        let options = GraceHashJoinOptions::default()
            .with("algorithm", "grace")
            .and_then(|o| o.with("select", "always"))
            .and_then(|o| o.with("spill", spill));
        config = config.with_option_extension(options.unwrap());
        builder = builder.with_physical_optimizer_rules(physical_optimizer_rules(&runtime));
    }
    let builder = builder.with_config(config).with_runtime_env(runtime);
    SessionContext::new_with_state(builder.with_default_features().build())
}

async fn ask(context: &SessionContext, sql: &str) -> Result<(Rows, String)> {
    let plan = context.sql(sql).await?.create_physical_plan().await?;
    let text = displayable(plan.as_ref()).indent(false).to_string();
    let rows = datafusion::physical_plan::collect(plan, context.task_ctx()).await?;
    Ok((Rows::of(&rows)?, text))
}

const TABLES: [&str; 7] = [
    "CREATE TABLE l AS VALUES (100, 1, 0)",
    "CREATE TABLE r AS VALUES (10, 1)",
    "CREATE TABLE a (k INT) AS VALUES (NULL), (1)",
    "CREATE TABLE b (k INT) AS VALUES (NULL)",
    "CREATE TABLE t (k INT) AS VALUES (1), (NULL)",
    "CREATE TABLE u (k INT) AS VALUES (1)",
    "CREATE TABLE e (k INT) AS SELECT * FROM (VALUES (1)) WHERE false",
];

/// datafusion#24414, ballista#2064, duckdb#19811, datafusion#2230, ballista#1691, datafusion#9757.
#[test]
fn sql_gives_the_rows_written_by_hand_with_the_node_in_the_plan() {
    let cases: [(&str, &[&str], bool); 11] = [
        (
            "SELECT l.column2, r.column2 FROM l JOIN r ON l.column2 = r.column2 AND l.column1 > r.column1",
            &["1,1"],
            true,
        ),
        (
            "SELECT r.column1 FROM l JOIN r ON l.column2 = r.column2 AND l.column1 > r.column1 + l.column3",
            &["10"],
            true,
        ),
        ("SELECT k FROM a INTERSECT SELECT k FROM b", &["NULL"], true),
        ("SELECT k FROM a EXCEPT SELECT k FROM b", &["1"], true),
        (
            "SELECT k FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.k IS DISTINCT FROM t.k)",
            &["1"],
            false,
        ),
        (
            "SELECT a.k, u.k FROM a JOIN u ON a.k < u.k + 1",
            &["1,1"],
            false,
        ),
        (
            "SELECT a.k, u.k FROM a LEFT JOIN u ON a.k = u.k",
            &["1,1", "NULL,NULL"],
            true,
        ),
        (
            "SELECT a.k, t.k FROM a FULL JOIN t ON a.k = t.k",
            &["1,1", "NULL,NULL", "NULL,NULL"],
            true,
        ),
        ("SELECT k FROM a WHERE k IN (SELECT k FROM t)", &["1"], true),
        ("SELECT count(*) FROM a JOIN t ON a.k = t.k", &["1"], true),
        (
            "SELECT a.k FROM a LEFT JOIN e ON a.k = e.k WHERE a.k IS NOT NULL OR e.k IS NULL",
            &["1", "NULL"],
            true,
        ),
    ];
    for (sql, rows, is_ours) in cases {
        let expected = Rows::written(rows);
        for (ours, partitions) in [(None, 1), (Some("all"), 1), (Some("all"), 4)] {
            let expected = expected.clone();
            run(&Case::new(Inner), move || async move {
                let context = session(ours, partitions, 64 << 20);
                for create in TABLES {
                    context.sql(create).await.unwrap().collect().await.unwrap();
                }
                let (rows, plan) = ask(&context, sql).await.unwrap();
                assert_eq!(expected.difference(&rows), None, "{sql}, {ours:?}\n{plan}");
                let has_node = plan.contains("GraceHashJoinExec");
                assert!(
                    partitions > 1 || has_node == (ours.is_some() && is_ours),
                    "{sql}\n{plan}"
                );
            });
        }
    }
}

/// datafusion#24891: an exchange below that spills, and the join above that does.
#[test]
fn a_join_above_an_exchange_that_spills_comes_to_an_end() {
    let sql = "SELECT count(*), sum(l.v) FROM big l JOIN big r ON l.k = r.k";
    let create = "CREATE TABLE big AS SELECT value % 5000 AS k, value AS v, \
                  repeat('x', 100) AS w FROM generate_series(1, 20000)";
    let mut counts = Vec::new();
    for (ours, memory) in [
        (None, 256 << 20),
        (Some("pressure"), 4 << 20),
        (Some("all"), 4 << 20),
    ] {
        let rows = run(&Case::new(Inner), move || async move {
            let context = session(ours, 2, memory);
            context.sql(create).await.unwrap().collect().await.unwrap();
            let asked = tokio::time::timeout(Duration::from_secs(20), ask(&context, sql));
            asked.await.expect("it hangs").unwrap().0
        });
        counts.push(rows);
    }
    assert_eq!(counts[0].difference(&counts[1]), None);
    assert_eq!(counts[0].difference(&counts[2]), None);
}
