//! The filter that the build side sends to the probe side's scans.
//!
//! Job: gather what all build rows of all partitions have in common, spilled ones included, and
//! publish it once, when it is complete. Not its job: what the predicate looks like (`bounds`), and
//! pushing the filter to the scans (the template plans that).
//!
//! One *round* is one execution of the node: each partition takes its seat in `execute`, reports
//! when its build side was seen in full, and waits for the others before it polls its probe side.
//!
//! Why no row is lost: the filter is `true` until every partition of the round reported. A partition
//! whose seat is given up without a report (dropped unpolled, dropped midway, failed, finished
//! early) ends the round with the filter `true`. A new round starts by making the filter `true`
//! again and by closing the old one, so that the plan can be executed again with other data.
//!
//! A null-aware join (`NOT IN`) also asks whether there is a probe row at all, and one with a NULL
//! key. So the filter lets NULL keys pass, and stays `true` where a build key may be NULL: such a
//! row comes out if the probe side is empty, and no filter may make it look empty.

use std::any::Any;
use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, Mutex};

use arrow::array::ArrayRef;
use datafusion_common::Result;
use datafusion_common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion_execution::config::SessionConfig;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{DynamicFilterPhysicalExpr, lit};
use datafusion_physical_plan::ExecutionPlan;
use datafusion_physical_plan::joins::HashJoinExec;
use futures::future::{BoxFuture, FutureExt};

use super::bounds::{BuildSummary, ListLimits};
use super::exec::partition_counts;
use super::round::{Round, lock};
use crate::join::BuildObserver;

/// A dynamic filter and its current round; shared by all nodes that own the filter.
pub(crate) struct SharedFilter {
    filter: Arc<DynamicFilterPhysicalExpr>,
    round: Mutex<Option<Arc<Round>>>,
}

impl SharedFilter {
    /// The filter that `join` fills, if any.
    pub(crate) fn of(join: &HashJoinExec) -> Option<Arc<Self>> {
        let filter = dynamic_filter(join)?;
        Some(Arc::new(Self {
            filter,
            round: Mutex::new(None),
        }))
    }

    pub(crate) fn is_for_the_filter_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.filter, &other.filter)
    }

    /// Takes the seat of `partition`, unless nobody would look at the filter.
    pub(crate) fn observe(
        &self,
        join: &HashJoinExec,
        partition: usize,
        config: &SessionConfig,
    ) -> Result<Option<Observer>> {
        let optimizer = &config.options().optimizer;
        let is_used = match self.filter.expression_id() {
            Some(id) => contains(&join.right, id)?,
            None => false,
        };
        let is_wanted = is_used && optimizer.enable_join_dynamic_filter_pushdown;
        if !is_wanted || asks_for_probe_rows(join) {
            if let Some(round) = lock(&self.round).take() {
                round.close();
                self.filter.update(lit(true))?;
            }
            self.filter.mark_complete();
            return Ok(None);
        }
        let limits = ListLimits {
            values: optimizer.hash_join_inlist_pushdown_max_distinct_values,
            bytes: optimizer.hash_join_inlist_pushdown_max_size,
        };
        let seat = self.take_seat(join, partition)?;
        Ok(Some(Observer {
            held: HeldSeat(Some(seat)),
            summary: BuildSummary::new(join.on.len(), limits),
        }))
    }

    fn take_seat(&self, join: &HashJoinExec, partition: usize) -> Result<Seat> {
        let (partitions, _) = partition_counts(join);
        let mut current = lock(&self.round);
        if let Some(round) = &*current {
            if round.seat(partition, partitions) {
                let round = Arc::clone(round);
                return Ok(Seat { round, partition });
            }
            round.close();
        }
        // Whatever an earlier round published was about that round's data.
        self.filter.update(lit(true))?;
        let round = Arc::new(Round::new(Arc::clone(&self.filter), join, partitions));
        round.seat(partition, partitions);
        *current = Some(Arc::clone(&round));
        Ok(Seat { round, partition })
    }
}

impl Debug for SharedFilter {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        // The state of a run is not part of what a plan is.
        f.debug_struct("SharedFilter").finish_non_exhaustive()
    }
}

/// The dynamic filter that `join` owns.
pub(crate) fn dynamic_filter(join: &HashJoinExec) -> Option<Arc<DynamicFilterPhysicalExpr>> {
    let produced = join.dynamic_expressions_produced().into_iter().next()?;
    let produced: Arc<dyn Any + Send + Sync> = produced;
    produced.downcast().ok()
}

/// Whether it makes a difference if a probe row without a match is there at all.
fn asks_for_probe_rows(join: &HashJoinExec) -> bool {
    let schema = join.left.schema();
    let mut keys = join.on.iter().map(|(build, _)| build.nullable(&schema));
    join.null_aware && keys.any(|is_nullable| is_nullable.unwrap_or(true))
}

/// Whether an expression anywhere in `plan` is, or contains, the one with this id.
fn contains(plan: &Arc<dyn ExecutionPlan>, id: u64) -> Result<bool> {
    plan.exists(|node| {
        let mut is_found = false;
        node.apply_expressions(&mut |root| {
            is_found |= root.exists(|e| Ok(e.expression_id() == Some(id)))?;
            Ok(if is_found {
                TreeNodeRecursion::Stop
            } else {
                TreeNodeRecursion::Continue
            })
        })?;
        Ok(is_found)
    })
}

/// The place of one partition in a round.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    round: Arc<Round>,
    partition: usize,
}

impl Seat {
    /// The partition's stream was polled.
    pub(crate) fn start(&self) {
        self.round.start(self.partition);
    }
}

/// A seat whose partition has not reported: dropping it ends the round.
#[derive(Debug)]
struct HeldSeat(Option<Seat>);

impl Drop for HeldSeat {
    fn drop(&mut self) {
        if let Some(seat) = self.0.take() {
            seat.round.close();
        }
    }
}

/// Watches one partition's build side.
#[derive(Debug)]
pub(crate) struct Observer {
    held: HeldSeat,
    summary: BuildSummary,
}

impl Observer {
    pub(crate) fn seat(&self) -> Option<Seat> {
        self.held.0.clone()
    }
}

impl BuildObserver for Observer {
    fn keys(&mut self, keys: &[ArrayRef]) -> Result<()> {
        self.summary.add(keys)
    }

    fn built(self: Box<Self>) -> BoxFuture<'static, Result<()>> {
        let Self { mut held, summary } = *self;
        // The seat is held until the report: this future may be dropped without being polled.
        async move {
            if let Some(Seat { round, partition }) = held.0.take() {
                round.report(partition, summary);
                round.closed().await;
            }
            Ok(())
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, DictionaryArray, Float64Array, Int64Array, new_null_array};
    use arrow::datatypes::{DataType, Field, Int32Type, Schema, SchemaRef};
    use arrow::record_batch::RecordBatch;
    use datafusion_common::{JoinType, NullEquality};
    use datafusion_physical_expr::expressions::col;
    use datafusion_physical_plan::empty::EmptyExec;
    use datafusion_physical_plan::filter::FilterExec;
    use datafusion_physical_plan::joins::PartitionMode;
    use futures::FutureExt;

    use super::super::round::PATIENCE;
    use super::*;
    use crate::sleep::sleep;

    fn schema() -> SchemaRef {
        let field = |name, key| Field::new(name, key, true);
        Arc::new(Schema::new(vec![
            field("k", DataType::Int64),
            field("f", DataType::Float64),
            field(
                "d",
                DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into()),
            ),
        ]))
    }

    struct Plan {
        filter: Arc<DynamicFilterPhysicalExpr>,
        shared: Arc<SharedFilter>,
        join: HashJoinExec,
    }

    impl Plan {
        fn new(partitions: usize, null_equality: NullEquality) -> Result<Self> {
            Self::on(partitions, null_equality, &["k"])
        }

        fn on(partitions: usize, null_equality: NullEquality, keys: &[&str]) -> Result<Self> {
            let nulls = (null_equality, false);
            Self::of(partitions, JoinType::Inner, nulls, (keys, &schema()))
        }

        /// NOT IN, with a build key that may be NULL or not.
        fn not_in(is_nullable: bool) -> Result<Self> {
            let field = Field::new("k", DataType::Int64, is_nullable);
            let build = Arc::new(Schema::new(vec![field]));
            Self::of(1, JoinType::LeftAnti, (NOTHING, true), (&["k"], &build))
        }

        fn of(
            partitions: usize,
            join_type: JoinType,
            (null_equality, null_aware): (NullEquality, bool),
            (keys, build_schema): (&[&str], &SchemaRef),
        ) -> Result<Self> {
            let keys = keys.iter().map(|k| col(k, &schema()));
            let keys = keys.collect::<Result<Vec<_>>>()?;
            let filter = Arc::new(DynamicFilterPhysicalExpr::new(keys.clone(), lit(true)));
            let scan = |schema: &SchemaRef| {
                Arc::new(EmptyExec::new(Arc::clone(schema)).with_partitions(partitions))
            };
            let predicate: Arc<dyn PhysicalExpr> = Arc::<DynamicFilterPhysicalExpr>::clone(&filter);
            let probe = FilterExec::try_new(predicate, scan(&schema()))?;
            let mode = match null_aware {
                true => PartitionMode::CollectLeft,
                false => PartitionMode::Partitioned,
            };
            let join = HashJoinExec::try_new(
                scan(build_schema),
                Arc::new(probe),
                keys.iter().cloned().zip(keys.iter().cloned()).collect(),
                None,
                &join_type,
                None,
                mode,
                null_equality,
                null_aware,
            )?;
            let join = join.with_dynamic_filter_expr(Arc::clone(&filter))?;
            let shared = SharedFilter::of(&join).unwrap();
            Ok(Self {
                filter,
                shared,
                join,
            })
        }

        fn seat(&self, partition: usize) -> Result<Box<Observer>> {
            let config = SessionConfig::new();
            let observer = self.shared.observe(&self.join, partition, &config)?;
            Ok(Box::new(observer.unwrap()))
        }

        /// A partition that was polled and has seen these keys.
        fn started(&self, partition: usize, keys: &[Option<i64>]) -> Result<Box<Observer>> {
            let mut observer = self.seat(partition)?;
            observer.seat().unwrap().start();
            observer.keys(&[Arc::new(keys.iter().copied().collect::<Int64Array>())])?;
            Ok(observer)
        }

        fn current(&self) -> Result<String> {
            Ok(self.filter.current()?.to_string())
        }

        fn is_complete(&self) -> bool {
            self.filter.wait_complete().now_or_never().is_some()
        }
    }

    const NOTHING: NullEquality = NullEquality::NullEqualsNothing;

    #[tokio::test]
    async fn it_is_published_once_all_partitions_have_reported() -> Result<()> {
        let plan = Plan::new(2, NOTHING)?;
        let first = plan.started(0, &[Some(7), None])?;
        let second = plan.started(1, &[Some(1_000_000)])?;
        let mut waiting = first.built();
        assert!((&mut waiting).now_or_never().is_none());
        assert_eq!(plan.current()?, "true");
        second.built().await?;
        waiting.await?;
        let current = plan.current()?;
        assert!(
            current.starts_with("k@0 >= 7 AND k@0 <= 1000000 AND k@0 IN"),
            "{current}"
        );
        assert!(plan.is_complete());
        Ok(())
    }

    #[tokio::test]
    async fn a_partition_that_is_dropped_makes_it_true_and_wakes_the_others() -> Result<()> {
        let plan = Plan::new(3, NOTHING)?;
        let first = plan.started(0, &[Some(7)])?;
        let unpolled = plan.seat(1)?;
        let midway = plan.started(2, &[Some(8)])?;
        let mut waiting = first.built();
        assert!((&mut waiting).now_or_never().is_none());
        drop(unpolled);
        waiting.await?;
        midway.built().await?;
        assert_eq!(plan.current()?, "true");
        assert!(plan.is_complete());
        Ok(())
    }

    #[tokio::test]
    async fn a_report_that_is_dropped_unpolled_counts_as_dropped() -> Result<()> {
        let plan = Plan::new(2, NOTHING)?;
        let first = plan.started(0, &[Some(7)])?;
        drop(plan.started(1, &[Some(8)])?.built());
        first.built().await?;
        assert_eq!(plan.current()?, "true");
        Ok(())
    }

    #[tokio::test]
    async fn a_partition_that_nobody_polls_is_not_waited_for_but_still_counts() -> Result<()> {
        let plan = Plan::new(2, NOTHING)?;
        let first = plan.started(0, &[Some(7)])?;
        first.built().await?;
        assert_eq!(plan.current()?, "true");
        let second = plan.started(1, &[Some(9)])?;
        second.built().await?;
        let current = plan.current()?;
        assert!(current.starts_with("k@0 >= 7 AND k@0 <= 9"), "{current}");
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_idle_runtime_is_not_waited_for_long() -> Result<()> {
        // Its threads are asleep: this is polled by the test's own.
        sleep(PATIENCE / 5).await;
        let plan = Plan::new(2, NOTHING)?;
        let start = std::time::Instant::now();
        plan.started(0, &[Some(7)])?.built().await?;
        assert!(start.elapsed() < PATIENCE * 5, "{:?}", start.elapsed());
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_partition_whose_task_a_busy_runtime_has_not_started_is_waited_for() -> Result<()> {
        let plan = Plan::new(2, NOTHING)?;
        let first = plan.started(0, &[Some(7)])?;
        let second = plan.seat(1)?;
        let busy = tokio::spawn(async move {
            for _ in 0..20 {
                std::thread::sleep(PATIENCE / 5);
                tokio::task::yield_now().await;
            }
            second.seat().unwrap().start();
            second.built().await
        });
        let filter = Arc::clone(&plan.filter);
        let waiting = tokio::spawn(async move {
            first.built().await?;
            Ok::<_, datafusion_common::DataFusionError>(filter.current()?.to_string())
        });
        let seen = waiting.await.unwrap()?;
        assert!(seen.starts_with("k@0 >= 7 AND k@0 <= 7"), "{seen}");
        busy.await.unwrap()
    }

    #[tokio::test]
    async fn a_second_execution_starts_from_true_and_fills_it_anew() -> Result<()> {
        let plan = Plan::new(1, NOTHING)?;
        plan.started(0, &[Some(1)])?.built().await?;
        assert!(plan.current()?.starts_with("k@0 >= 1 AND k@0 <= 1"));
        let again = plan.started(0, &[Some(2)])?;
        assert_eq!(plan.current()?, "true");
        again.built().await?;
        assert!(plan.current()?.starts_with("k@0 >= 2 AND k@0 <= 2"));
        Ok(())
    }

    #[tokio::test]
    async fn an_execution_that_shall_not_filter_leaves_nothing_of_the_one_before() -> Result<()> {
        let plan = Plan::new(1, NOTHING)?;
        plan.started(0, &[Some(1)])?.built().await?;
        let late = plan.started(0, &[Some(2)])?;
        let mut config = SessionConfig::new();
        let optimizer = &mut config.options_mut().optimizer;
        optimizer.enable_join_dynamic_filter_pushdown = false;
        assert!(plan.shared.observe(&plan.join, 0, &config)?.is_none());
        late.built().await?;
        assert_eq!(plan.current()?, "true");
        assert!(plan.is_complete());
        Ok(())
    }

    #[tokio::test]
    async fn an_old_round_can_no_longer_publish() -> Result<()> {
        let plan = Plan::new(1, NOTHING)?;
        let old = plan.started(0, &[Some(1)])?;
        let new = plan.started(0, &[Some(2)])?;
        old.built().await?;
        assert_eq!(plan.current()?, "true");
        new.built().await?;
        assert!(plan.current()?.starts_with("k@0 >= 2 AND k@0 <= 2"));
        Ok(())
    }

    #[tokio::test]
    async fn an_empty_partition_contributes_nothing_and_all_empty_match_nothing() -> Result<()> {
        let plan = Plan::new(2, NOTHING)?;
        let (empty, other) = (plan.started(0, &[])?, plan.started(1, &[Some(5)])?);
        let _ = futures::join!(empty.built(), other.built());
        assert!(plan.current()?.starts_with("k@0 >= 5 AND k@0 <= 5"));
        let (empty, other) = (plan.started(0, &[])?, plan.started(1, &[None])?);
        let _ = futures::join!(empty.built(), other.built());
        assert_eq!(plan.current()?, "false");
        Ok(())
    }

    #[tokio::test]
    async fn nulls_are_let_through_where_they_match() -> Result<()> {
        let plan = Plan::new(1, NullEquality::NullEqualsNull)?;
        plan.started(0, &[Some(1), None])?.built().await?;
        let current = plan.current()?;
        assert!(current.ends_with("OR k@0 IS NULL"), "{current}");
        plan.started(0, &[None])?.built().await?;
        assert_eq!(plan.current()?, "false OR k@0 IS NULL");
        Ok(())
    }

    #[tokio::test]
    async fn a_not_in_never_loses_a_null_of_its_probe_side() -> Result<()> {
        let plan = Plan::not_in(false)?;
        plan.started(0, &[Some(1), Some(4)])?.built().await?;
        let current = plan.current()?;
        assert!(current.starts_with("k@0 >= 1 AND k@0 <= 4"), "{current}");
        assert!(current.ends_with("OR k@0 IS NULL"), "{current}");
        Ok(())
    }

    #[tokio::test]
    async fn a_not_in_that_asks_for_an_empty_probe_side_is_not_filtered() -> Result<()> {
        let plan = Plan::not_in(true)?;
        let config = SessionConfig::new();
        assert!(plan.shared.observe(&plan.join, 0, &config)?.is_none());
        assert_eq!(plan.current()?, "true");
        assert!(plan.is_complete());
        Ok(())
    }

    #[tokio::test]
    async fn many_values_leave_bounds_only() -> Result<()> {
        let plan = Plan::on(1, NOTHING, &["k", "f"])?;
        let mut observer = plan.seat(0)?;
        observer.keys(&[
            Arc::new(Int64Array::from_iter_values(0..1000)),
            Arc::new(Float64Array::from_iter_values((0..1000).map(f64::from))),
        ])?;
        observer.built().await?;
        assert_eq!(
            plan.current()?,
            "k@0 >= 0 AND k@0 <= 999 AND f@1 >= -0 AND f@1 <= 999"
        );
        Ok(())
    }

    /// Which probe keys pass the filter, if the build side has these ones.
    async fn passing(key: &str, build: ArrayRef, probe: ArrayRef) -> Result<Vec<bool>> {
        let plan = Plan::on(1, NOTHING, &[key])?;
        let mut observer = plan.seat(0)?;
        observer.keys(&[build])?;
        observer.built().await?;
        let rows = probe.len();
        let schema = schema();
        let columns = schema.fields().iter().map(|field| match field.name() {
            name if name == key => Arc::clone(&probe),
            _ => new_null_array(field.data_type(), rows),
        });
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns.collect())?;
        let passes = plan.filter.current()?.evaluate(&batch)?.into_array(rows)?;
        Ok(passes
            .as_boolean()
            .iter()
            .map(|v| v == Some(true))
            .collect())
    }

    #[tokio::test]
    async fn a_zero_of_floats_is_both_zeros_and_a_nan_silences_its_key() -> Result<()> {
        let floats = |values: &[f64]| -> ArrayRef { Arc::new(Float64Array::from(values.to_vec())) };
        let probe = [-1.0, -0.0, 0.0, 0.5, 2.5, 3.0, f64::NAN];
        for zero in [0.0, -0.0] {
            let passes = passing("f", floats(&[zero, 2.5]), floats(&probe)).await?;
            assert_eq!(passes, [false, true, true, false, true, false, false]);
        }
        let passes = passing("f", floats(&[2.5, f64::NAN]), floats(&probe)).await?;
        assert_eq!(passes, [true; 7]);
        Ok(())
    }

    #[tokio::test]
    async fn dictionaries_are_compared_by_their_values() -> Result<()> {
        let words = |words: &[&str]| -> ArrayRef {
            Arc::new(
                words
                    .iter()
                    .copied()
                    .collect::<DictionaryArray<Int32Type>>(),
            )
        };
        let probe = words(&["a", "b", "c", "b", "d"]);
        let passes = passing("d", words(&["b", "d", "b"]), probe).await?;
        assert_eq!(passes, [false, true, false, true, true]);
        Ok(())
    }

    #[tokio::test]
    async fn without_a_consumer_nobody_takes_a_seat() -> Result<()> {
        let plan = Plan::new(1, NOTHING)?;
        let scan = Arc::new(EmptyExec::new(schema()));
        let join = plan
            .join
            .builder()
            .with_new_children(vec![Arc::clone(&plan.join.left), scan])?;
        let observer = plan
            .shared
            .observe(&join.build()?, 0, &SessionConfig::new())?;
        assert!(observer.is_none());
        assert!(plan.is_complete());
        Ok(())
    }
}
