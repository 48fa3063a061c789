//! Holds the promise that NOT IN is SQL's: a NULL anywhere on the probe side leaves nothing, an empty
//! probe side leaves everything, NULL-keyed build rows included; wherever rows are, in whichever
//! batch the fact is found, and through DataFusion's own planner.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, DictionaryArray, Int32Array, Int64Array, NullArray, StringArray,
};
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::catalog::MemTable;
use datafusion::common::Result;
use datafusion::execution::memory_pool::GreedyMemoryPool;
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, displayable};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_common::{JoinType, NullEquality};
use futures::StreamExt;
use grace_hash_join::testing::faults::INJECTED;
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{
    Case, FaultyInput, FilterKind, InputFault, Pressure, Rows, Shape, Spills, Table, collect,
};
use grace_hash_join::{GraceHashJoin, GraceHashJoinOptions, physical_optimizer_rules};

use crate::run;

/// Everything that decides where rows are: in memory, on disk, one row a batch and many.
fn ways() -> Vec<Case> {
    let of = |pressure| {
        [1, 2, 3, 8192].map(|batch_size| Case {
            pressure,
            batch_size,
            ..Case::not_in()
        })
    };
    Pressure::FORCED.into_iter().flat_map(of).collect()
}

/// A table of one key column `k` and one payload column `id`, in batches.
fn table(batches: &[&[Option<i64>]]) -> Table {
    let fields = [("k", DataType::Int64, true), ("id", DataType::Int32, false)];
    let fields = fields.map(|(name, of, nullable)| Field::new(name, of, nullable));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let mut id = 0..;
    let mut batch = |keys: &&[Option<i64>]| {
        let ids: Int32Array = id.by_ref().take(keys.len()).map(Some).collect();
        let keys: Int64Array = keys.iter().copied().collect();
        let columns: Vec<ArrayRef> = vec![Arc::new(keys), Arc::new(ids)];
        RecordBatch::try_new(Arc::clone(&schema), columns).unwrap()
    };
    let batches = batches.iter().map(&mut batch).collect();
    Table {
        schema,
        batches,
        v: 1,
    }
}

/// `case`'s join of other inputs.
fn setting(case: &Case, build: Table, probe: Table) -> Setting {
    setting_with(case, build, probe, None)
}

fn setting_with(case: &Case, build: Table, probe: Table, limit: Option<usize>) -> Setting {
    let config = case.setting().unwrap().join.config().clone();
    let schemas = (Arc::clone(&build.schema), Arc::clone(&probe.schema));
    let join = GraceHashJoin::builder(schemas.0, schemas.1)
        .with_on(vec![(0, 0)])
        .with_join_type(JoinType::LeftAnti)
        .with_null_aware(true)
        .with_null_equality(case.null_equality)
        .with_limit(limit)
        .with_config(config)
        .build()
        .unwrap();
    Setting { join, build, probe }
}

/// The answer by hand, in every way that there is to come by it.
fn gives(build: &[&[Option<i64>]], probe: &[&[Option<i64>]], rows: &[&str]) {
    for case in ways() {
        let expected = Rows::written(rows);
        let setting = setting(&case, table(build), table(probe));
        let oracle = case
            .expected_of(&setting.build, &setting.probe, &[(0, 0)], None)
            .unwrap();
        assert_eq!(oracle, expected, "{case}");
        let has_rows = setting.build.rows() > 0;
        let spills = match case.pressure {
            Pressure::Fits => Spills::MustNot,
            Pressure::Half => Spills::May,
            _ if has_rows => Spills::Must,
            _ => Spills::MustNot,
        };
        run(&case, move || async move {
            let environment = case.environment().unwrap();
            setting
                .check(&environment, &expected, spills)
                .await
                .unwrap();
        });
    }
}

const N: Option<i64> = None;

/// The base case: L = {NULL, 1, 1, 2}; the row numbers are its payload.
#[test]
fn the_base_case_is_right_in_every_way() {
    let l: &[&[Option<i64>]] = &[&[N, Some(1)], &[Some(1), Some(2)]];
    gives(l, &[&[N, Some(1), Some(3), Some(3)]], &[]);
    gives(l, &[&[Some(1), Some(3), Some(3)]], &["2,3"]);
    gives(l, &[], &["NULL,0", "1,1", "1,2", "2,3"]);
    gives(l, &[&[], &[]], &["NULL,0", "1,1", "1,2", "2,3"]);
}

#[test]
fn a_null_decides_in_whichever_batch_it_comes() {
    let l: &[&[Option<i64>]] = &[&[Some(5), Some(6)], &[N, Some(7)]];
    gives(l, &[&[N], &[Some(1)], &[Some(2), Some(3)]], &[]);
    gives(l, &[&[Some(1)], &[Some(2), Some(3)], &[Some(4), N]], &[]);
    gives(l, &[&[Some(1)], &[], &[Some(2)], &[N], &[]], &[]);
    gives(l, &[&[N, N], &[N]], &[]);
    gives(
        l,
        &[&[Some(1)], &[Some(2), Some(3)], &[Some(4)]],
        &["5,0", "6,1", "7,3"],
    );
}

#[test]
fn build_rows_of_null_keys_alone_come_out_only_if_there_is_no_probe_row() {
    let l: &[&[Option<i64>]] = &[&[N, N], &[N]];
    gives(l, &[], &["NULL,0", "NULL,1", "NULL,2"]);
    gives(l, &[&[Some(1)]], &[]);
    gives(l, &[&[N]], &[]);
    gives(&[], &[&[Some(1)]], &[]);
    gives(&[&[]], &[&[N]], &[]);
}

/// From the public reports: outer rows {NULL, 5, 500}, subqueries of a hundred keys.
#[test]
fn a_set_of_a_hundred_keys_is_asked_as_a_whole() {
    let l: &[&[Option<i64>]] = &[&[N, Some(5), Some(500)]];
    let set: Vec<_> = (1..=100).map(Some).collect();
    let with_null: Vec<_> = set.iter().copied().chain([N]).collect();
    gives(l, &[&set], &["500,2"]);
    gives(l, &[&with_null], &[]);
}

/// The bucket of a key is the hash's business, so each key in turn is on disk alone.
#[test]
fn the_rows_of_one_spilled_bucket_wait_for_the_whole_probe_side() {
    use grace_hash_join::{GraceHashJoinConfig, SpillPolicy};
    let build: Vec<_> = (0..40).map(Some).chain([N]).collect();
    let odd: Vec<_> = (0..40).filter(|key| key % 2 == 1).map(Some).collect();
    let even: Vec<_> = (0..40).filter(|key| key % 2 == 0).collect();
    let rows: Vec<_> = even.iter().map(|key| format!("{key},{key}")).collect();
    let rows: Vec<_> = rows.iter().map(String::as_str).collect();
    for bucket in 0..4 {
        for has_null in [false, true] {
            let case = Case {
                batch_size: 3,
                ..Case::not_in()
            };
            let probe: [&[Option<i64>]; 2] = [&odd, if has_null { &[N] } else { &[] }];
            let (build, probe) = (table(&[&build]), table(&probe));
            let config = GraceHashJoinConfig::builder()
                .with_fan_out(4)
                .with_spill(SpillPolicy::Bucket(bucket))
                .build()
                .unwrap();
            let schemas = (Arc::clone(&build.schema), Arc::clone(&probe.schema));
            let join = GraceHashJoin::builder(schemas.0, schemas.1)
                .with_on(vec![(0, 0)])
                .with_join_type(JoinType::LeftAnti)
                .with_null_aware(true)
                .with_config(config)
                .build()
                .unwrap();
            let expected = Rows::written(if has_null { &[] } else { &rows });
            let setting = Setting { join, build, probe };
            run(&case, move || async move {
                let environment = case.environment().unwrap();
                setting
                    .check(&environment, &expected, Spills::Must)
                    .await
                    .unwrap();
            });
        }
    }
}

#[test]
fn null_keys_that_match_each_other_change_nothing() {
    for case in ways() {
        let case = Case {
            null_equality: NullEquality::NullEqualsNull,
            ..case
        };
        let l: &[&[Option<i64>]] = &[&[N, Some(1)], &[Some(2)]];
        for (probe, rows) in [
            (vec![&[N, Some(2)][..]], vec![]),
            (vec![&[Some(2)][..]], vec!["1,1"]),
            (vec![], vec!["NULL,0", "1,1", "2,2"]),
        ] {
            let setting = setting(&case, table(l), table(&probe));
            let expected = Rows::written(&rows);
            run(&case, move || async move {
                let environment = case.environment().unwrap();
                setting
                    .check(&environment, &expected, Spills::May)
                    .await
                    .unwrap();
            });
        }
    }
}

#[test]
fn a_limit_cuts_what_comes_out_and_nothing_comes_before_the_probe_side_ended() {
    for case in ways() {
        for limit in [0, 1, 3, 100] {
            let l: &[&[Option<i64>]] = &[&[N, Some(1), Some(2)], &[Some(3), N, Some(4)]];
            let probe = table(&[&[Some(1)], &[Some(9)], &[Some(8)]]);
            let setting = setting_with(&case, table(l), probe, Some(limit));
            run(&case, move || async move {
                let environment = case.environment().unwrap();
                let all = Rows::written(&["2,2", "3,3", "4,5"]);
                let outcome = collect(setting.start(&environment).unwrap()).await.unwrap();
                outcome.end.unwrap();
                let rows = Rows::of(&outcome.batches).unwrap();
                assert_eq!(rows.len(), limit.min(3), "{case}");
                assert!(all.contains(&rows), "{case}: {rows:?}");
                drop(outcome.batches);
                environment.becomes_clean().await.unwrap();

                // The last probe batch never comes, so nothing may.
                let build = input(&setting.build, InputFault::Never);
                let probe = input(&setting.probe, InputFault::StallAt(2));
                let mut stream = setting.start_with(&environment, build, probe).unwrap();
                let wait = std::time::Duration::from_millis(5);
                let first = tokio::time::timeout(wait, stream.next()).await;
                assert_eq!(first.is_ok(), limit == 0, "{case}: {first:?}");
                drop(stream);
                environment.becomes_clean().await.unwrap();
            });
        }
    }
}

fn input(table: &Table, fault: InputFault) -> std::pin::Pin<Box<FaultyInput>> {
    let input = FaultyInput::new(Arc::clone(&table.schema), table.batches.clone());
    Box::pin(input.with_fault(fault))
}

#[test]
fn what_fails_after_a_null_is_told_and_nothing_is_held_till_then() {
    for case in ways() {
        let l: &[&[Option<i64>]] = &[&[N, Some(1)], &[Some(2)]];
        let probe = table(&[&[Some(1)], &[N], &[Some(8)], &[Some(9)]]);
        let setting = setting(&case, table(l), probe);
        run(&case, move || async move {
            let environment = case.environment().unwrap();
            let build = input(&setting.build, InputFault::Never);
            let probe = input(&setting.probe, InputFault::FailAt(3));
            let stream = setting.start_with(&environment, build, probe).unwrap();
            let outcome = collect(stream).await.unwrap();
            assert!(outcome.batches.is_empty());
            let error = outcome.end.unwrap_err().to_string();
            assert!(error.contains(INJECTED), "{error}");
            environment.becomes_clean().await.unwrap();

            // While the input that can no longer matter is waited for: no file, no build row.
            let build = input(&setting.build, InputFault::Never);
            let probe = input(&setting.probe, InputFault::StallAt(3));
            let mut stream = setting.start_with(&environment, build, probe).unwrap();
            let held = || {
                (
                    environment.pool.reserved(),
                    environment.disk.used_disk_space(),
                )
            };
            // What is left covers a batch in hand. A write in flight takes its time.
            let is_free = |(memory, disk): (usize, u64)| memory < 64 << 10 && disk == 0;
            for _ in 0..100 {
                let wait = std::time::Duration::from_millis(20);
                let next = tokio::time::timeout(wait, stream.next()).await;
                assert!(next.is_err(), "{case}: {next:?}");
                if is_free(held()) {
                    break;
                }
            }
            assert!(is_free(held()), "{case}: {:?}", held());
            drop(stream);
            environment.becomes_clean().await.unwrap();
        });
    }
}

#[test]
fn dropped_at_any_poll_it_leaves_nothing() {
    for shape in [Shape::Mixed, Shape::NoProbeNulls, Shape::EmptyProbe] {
        for pressure in Pressure::FORCED {
            let case = Case {
                pressure,
                shape,
                batch_size: 5,
                ..Case::not_in()
            };
            run(&case, move || async move {
                let setting = case.setting().unwrap();
                for polls in 0.. {
                    let environment = case.environment().unwrap();
                    let mut stream = setting.start(&environment).unwrap();
                    let mut done = false;
                    for _ in 0..polls {
                        let next = std::future::poll_fn(|context| {
                            std::task::Poll::Ready(stream.poll_next_unpin(context))
                        });
                        done = matches!(next.await, std::task::Poll::Ready(None));
                        if done {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                    drop(stream);
                    environment.becomes_clean().await.unwrap();
                    if done || polls > 200 {
                        break;
                    }
                }
            });
        }
    }
}

/// More than the pool has of build rows with a NULL key: they go to disk as any others do.
#[test]
fn null_keys_that_do_not_fit_are_spilled_and_come_back() {
    for (is_empty, every) in [(true, 1), (true, 2), (false, 1), (false, 2)] {
        let case = Case {
            pressure: Pressure::SmallPool,
            shape: Shape::Large,
            ..Case::not_in()
        };
        let (mut build, mut probe) = case.shape.specs();
        build.null_percent = 0;
        (probe.null_percent, probe.rows) = (0, if is_empty { 0 } else { probe.rows });
        let mut setting = case.setting().unwrap();
        setting.build = build.table(case.key, 1).unwrap();
        for batch in &mut setting.build.batches {
            let keys: Int64Array = batch.column(0).as_primitive().clone();
            let mut numbers = 0..;
            let keys: Int64Array = keys
                .iter()
                .map(|key| key.filter(|_| numbers.next().is_some_and(|row| row % every != 0)))
                .collect();
            let mut columns = batch.columns().to_vec();
            columns[0] = Arc::new(keys);
            *batch = RecordBatch::try_new(batch.schema(), columns).unwrap();
        }
        setting.probe = probe.table(case.key, 2).unwrap();
        let expected = case
            .expected_of(&setting.build, &setting.probe, &[(0, 0)], None)
            .unwrap();
        assert_eq!(expected.len() == 1000, is_empty);
        assert_eq!(expected.is_empty(), !is_empty && every == 1);
        run(&case, move || async move {
            let environment = case.environment().unwrap();
            setting
                .check(&environment, &expected, Spills::Must)
                .await
                .unwrap();
        });
    }
}

/// The build side of one key does not fit, so its few probe rows are loaded instead.
#[test]
fn a_pair_whose_roles_are_swapped_is_right() {
    let case = Case {
        pressure: Pressure::SmallPool,
        shape: Shape::WideOneKey,
        key: Shape::WideOneKey.key(),
        filter: FilterKind::AlwaysFalse,
        ..Case::not_in()
    };
    let expected = case.expected().unwrap();
    assert_eq!(expected.len(), 200);
    let outcome = run(&case, move || async move {
        let environment = case.environment().unwrap();
        let setting = case.setting().unwrap();
        let checked = setting.check(&environment, &expected, Spills::Must).await;
        checked.unwrap()
    });
    assert!(outcome.stats.pairs_swapped > 0, "{:?}", outcome.stats);
}

/// Where a key is NULL by its value, not by the array's own validity.
#[test]
fn a_key_is_null_if_its_value_is() {
    let values = StringArray::from(vec![Some("a"), None]);
    let keys = Int32Array::from(vec![0, 1]);
    let dictionary = DictionaryArray::<Int32Type>::new(keys, Arc::new(values));
    let nulls = NullArray::new(2);
    let columns: [ArrayRef; 2] = [Arc::new(dictionary), Arc::new(nulls)];
    for column in columns {
        for case in ways() {
            let column = Arc::clone(&column);
            let batch = RecordBatch::try_from_iter_with_nullable([("k", column, true)]).unwrap();
            let table = |rows| Table {
                schema: batch.schema(),
                batches: vec![batch.slice(0, rows)],
                v: 1,
            };
            let with_null = setting(&case, table(2), table(2));
            let without = setting(&case, table(2), table(0));
            run(&case, move || async move {
                let environment = case.environment().unwrap();
                let nothing = Rows::written(&[]);
                let checked = with_null.check(&environment, &nothing, Spills::May);
                checked.await.unwrap();
                let all = Rows::of(&without.build.batches).unwrap();
                without
                    .check(&environment, &all, Spills::May)
                    .await
                    .unwrap();
            });
        }
    }
}

/// A session with tables of one partition and, unless the rule is left out, with every hash join
/// replaced.
fn session(spill: Option<&str>, batch_size: usize) -> Result<SessionContext> {
    let pool = Arc::new(GreedyMemoryPool::new(256 << 20));
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .build_arc()?;
    let options = GraceHashJoinOptions::default()
        .with("algorithm", "grace")?
        .with("select", "always")?
        .with("spill", spill.unwrap_or("pressure"))?;
    let config = SessionConfig::new()
        .with_target_partitions(1)
        .with_batch_size(batch_size)
        .with_option_extension(options);
    let builder = SessionStateBuilder::new().with_config(config);
    let builder = match spill {
        Some(_) => builder.with_physical_optimizer_rules(physical_optimizer_rules(&runtime)),
        None => builder,
    };
    let state = builder.with_runtime_env(runtime).with_default_features();
    Ok(SessionContext::new_with_state(state.build()))
}

/// The tables: `l` and `r` with a NULL key in ten, `plain` without, `none` without rows, `nulls` of
/// nothing but NULL keys.
fn register(ctx: &SessionContext) -> Result<()> {
    let tables = [
        ("l", 100, 2, 10),
        ("r", 300, 3, 10),
        ("plain", 60, 5, i64::MAX),
        ("none", 0, 1, 10),
        ("nulls", 4, 1, 1),
    ];
    for (name, rows, step, null_every) in tables {
        let key = |row: i64| (row % null_every != null_every - 1).then_some(row * step);
        let columns: [(&str, ArrayRef); 3] = [
            ("k", Arc::new((0..rows).map(key).collect::<Int64Array>())),
            (
                "v",
                Arc::new((0..rows).map(|row| Some(row % 13)).collect::<Int64Array>()),
            ),
            (
                "s",
                Arc::new(
                    (0..rows)
                        .map(|row| key(row).map(|key| format!("a key of {key}")))
                        .collect::<StringArray>(),
                ),
            ),
        ];
        let nullable = columns.map(|(name, column)| (name, column, true));
        let batch = RecordBatch::try_from_iter_with_nullable(nullable)?;
        let table = MemTable::try_new(batch.schema(), vec![vec![batch]])?;
        ctx.register_table(name, Arc::new(table))?;
    }
    Ok(())
}

async fn query(ctx: &SessionContext, sql: &str) -> Result<(Rows, Arc<dyn ExecutionPlan>)> {
    let plan = ctx.sql(sql).await?.create_physical_plan().await?;
    let batches = datafusion::physical_plan::collect(Arc::clone(&plan), ctx.task_ctx()).await?;
    Ok((Rows::of(&batches)?, plan))
}

#[tokio::test]
async fn sql_s_not_in_is_datafusion_s_own_in_memory_and_on_disk() -> Result<()> {
    let mut queries = Vec::new();
    for set in ["r", "plain", "none", "nulls"] {
        for key in ["k", "s"] {
            queries.push(format!(
                "SELECT * FROM l WHERE {key} NOT IN (SELECT {key} FROM {set})"
            ));
        }
        queries.extend([
            format!("SELECT v FROM l WHERE k + 1 NOT IN (SELECT k - 1 FROM {set} WHERE v < 7)"),
            format!("SELECT count(*) FROM l WHERE k NOT IN (SELECT k FROM {set})"),
            format!("SELECT v FROM nulls WHERE k NOT IN (SELECT k FROM {set})"),
            format!("SELECT count(*) FROM (SELECT k FROM l WHERE k NOT IN (SELECT k FROM {set}) LIMIT 5)"),
            // The second NOT IN is a residual filter's.
            format!("SELECT l.k FROM l WHERE l.k NOT IN (SELECT o.k FROM {set} o WHERE o.v < l.v)"),
        ]);
    }
    let theirs = session(None, 8192)?;
    register(&theirs)?;
    let mut replaced = 0;
    for (spill, batch_size) in [("pressure", 8192), ("half", 3), ("all", 8192), ("all", 2)] {
        let ours = session(Some(spill), batch_size)?;
        register(&ours)?;
        for sql in &queries {
            let (expected, plan) = query(&theirs, sql).await?;
            let (rows, our_plan) = query(&ours, sql).await?;
            let text = |plan: &Arc<dyn ExecutionPlan>| {
                displayable(plan.as_ref()).indent(false).to_string()
            };
            let is_null_aware = text(&plan).contains("null_aware");
            assert_eq!(
                text(&our_plan).contains("null_aware"),
                is_null_aware,
                "{sql}"
            );
            if is_null_aware {
                replaced += 1;
                let text = text(&our_plan);
                assert!(
                    text.contains("GraceHashJoinExec: mode=CollectLeft"),
                    "{text}"
                );
                assert!(
                    !text
                        .replace("GraceHashJoinExec", "")
                        .contains("HashJoinExec"),
                    "{text}"
                );
            }
            if let Some(difference) = expected.difference(&rows) {
                panic!("{sql}, {spill}: {difference}");
            }
        }
    }
    assert!(replaced > 80, "{replaced}");
    Ok(())
}

/// Before enforcement both sides are one partition; afterwards ours still are.
#[tokio::test]
async fn a_not_in_of_a_session_with_many_partitions_gathers_its_probe_side() -> Result<()> {
    let ours = session(Some("all"), 100)?;
    let theirs = session(None, 100)?;
    for ctx in [&ours, &theirs] {
        register(ctx)?;
        let state = ctx.state_ref();
        let mut state = state.write();
        state.config_mut().options_mut().execution.target_partitions = 4;
    }
    for set in ["r", "plain", "none"] {
        let sql = format!("SELECT v FROM l WHERE k NOT IN (SELECT k FROM {set})");
        let (rows, plan) = query(&ours, &sql).await?;
        let (expected, _) = query(&theirs, &sql).await?;
        assert_eq!(rows, expected, "{sql}");
        let text = displayable(plan.as_ref()).indent(false).to_string();
        assert!(
            text.contains("GraceHashJoinExec: mode=CollectLeft"),
            "{text}"
        );
        assert_eq!(plan.output_partitioning().partition_count(), 1, "{text}");
    }
    Ok(())
}

#[test]
fn what_hash_join_refuses_as_null_aware_is_refused_here() {
    let of = |join_type, on: Vec<(usize, usize)>| {
        let table = table(&[]);
        GraceHashJoin::builder(Arc::clone(&table.schema), table.schema)
            .with_on(on)
            .with_join_type(join_type)
            .with_null_aware(true)
            .build()
    };
    assert!(of(JoinType::LeftAnti, vec![(0, 0)]).is_ok());
    for join_type in grace_hash_join::testing::JOIN_TYPES {
        let refused = of(join_type, vec![(0, 0)]).is_err();
        assert_eq!(refused, join_type != JoinType::LeftAnti);
    }
    let error = of(JoinType::LeftAnti, vec![(0, 0), (1, 1)]).unwrap_err();
    assert!(error.to_string().contains("one key"), "{error}");
    assert!(
        error.to_string().contains("Error during planning"),
        "{error}"
    );
}
