//! Rows lost, doubled or decided wrongly: spilled buckets, cut batches, residual filters, NULL keys,
//! odd shapes.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{Field, Schema};
use datafusion_common::JoinSide::{Left as Build, Right as Probe};
use datafusion_common::JoinType::{
    Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi,
};
use grace_hash_join::testing::{Environment, FilterKind, JOIN_TYPES, Rows, Spills, Table, collect};
use grace_hash_join::{GraceHashJoinConfig, SpillPolicy};

use super::{Rule, Written, cut, keys, numbers, pairs, table};
use crate::run;

// Spilled rows taken for unmatched ones, rows without a bucket, an end too early.

/// IMPALA-1471: a probe row that went to disk fell into the loop over resident rows as well.
#[test]
fn a_probe_row_that_went_to_disk_is_not_unmatched_too() {
    let side = numbers(1..=8);
    Written::new(RightAnti, &side, &side).gives(&[]);
    Written::new(LeftAnti, &side, &side).gives(&[]);
    let same: Vec<_> = (1..=8).map(|i| format!("{i},{i}")).collect();
    let same: Vec<_> = same.iter().map(String::as_str).collect();
    for join_type in [Inner, Left, Right, Full] {
        Written::new(join_type, &side, &side).gives(&same);
    }
    Written::new(RightSemi, &side, &side).gives_rows(8);
    Written::new(LeftSemi, &side, &side).gives_rows(8);
}

/// databend#14860: probe rows whose build bucket never existed were dropped.
#[test]
fn probe_rows_of_a_bucket_without_build_rows_come_out_unmatched() {
    let (build, probe) = (numbers([1, 1]), numbers([1, 2, 3]));
    let join = |join_type| Written::new(join_type, &build, &probe);
    join(Right).gives(&["1,1", "1,1", "NULL,2", "NULL,3"]);
    join(Full).gives(&["1,1", "1,1", "NULL,2", "NULL,3"]);
    join(RightAnti).gives(&["2", "3"]);
    join(RightMark).gives(&["1,true", "2,false", "3,false"]);
    join(Left).gives(&["1,1", "1,1"]);
    // And build rows of a bucket without probe rows.
    let join = |join_type| Written::new(join_type, &probe, &build);
    join(Left).gives(&["1,1", "1,1", "2,NULL", "3,NULL"]);
    join(LeftAnti).gives(&["2", "3"]);
    join(LeftMark).gives(&["1,true", "2,false", "3,false"]);
}

/// doris#34450: what came back in several reads was taken for complete after the first.
#[test]
fn a_run_of_several_frames_is_read_to_its_end() {
    let side = cut(numbers(0..3000), 100);
    let expected = Written::new(Inner, &side, &side).oracle();
    assert_eq!(expected.len(), 3000);
    for spill in [SpillPolicy::All, SpillPolicy::Half, SpillPolicy::Split(2)] {
        let (side, expected) = (side.clone(), expected.clone());
        let written = Written::new(Inner, &side, &side);
        run(&written.case(), move || async move {
            let config = GraceHashJoinConfig::builder()
                .with_spill(spill)
                .with_fan_out(2)
                .build();
            let environment = Environment::unlimited(100).unwrap();
            let outcome = written.setting(config.unwrap());
            let outcome = outcome
                .check(&environment, &expected, Spills::Must)
                .await
                .unwrap();
            // 750 rows of 28 bytes and more for each of four files is more than one buffer.
            let stats = outcome.stats;
            assert!(stats.spilled_bytes / stats.spill_count > 3000, "{stats:?}");
        });
    }
}

/// clickhouse#72175: the next bucket began while the last one's rows were still on their way.
#[test]
fn many_small_partitions_beside_each_other_lose_nothing_at_batches_of_one_row() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .build()
        .unwrap();
    let part = |rows: std::ops::Range<i32>, part: i32| numbers(rows.filter(|k| k % 8 == part));
    let answers = [(Inner, 15), (Left, 20), (Right, 20), (Full, 25)];
    for (join_type, rows) in answers.into_iter().cycle().take(200) {
        let config = GraceHashJoinConfig::builder()
            .with_spill(SpillPolicy::All)
            .with_fan_out(4);
        let config = config.build().unwrap();
        let environment = Arc::new(Environment::unlimited(1).unwrap());
        let joins = (0..8).map(|p| {
            let written = Written::new(join_type, &part(0..20, p), &part(5..25, p));
            let stream = written.setting(config.clone()).start(&environment).unwrap();
            runtime.spawn(collect(stream))
        });
        let joins: Vec<_> = joins.collect();
        let mut total = 0;
        for join in joins {
            let outcome = runtime.block_on(join).unwrap().unwrap();
            outcome.end.unwrap();
            total += Rows::of(&outcome.batches).unwrap().len();
        }
        assert_eq!(total, rows, "{join_type:?}");
    }
}

/// databend#14794, velox#6187: buckets marked as spilled that no row enters.
#[test]
fn buckets_that_no_row_enters_make_no_file_and_hold_nobody_up() {
    let one = cut(numbers([7; 100]), 10);
    for join_type in JOIN_TYPES {
        for (build, probe) in [(&one, &one), (&keys(&[]), &one), (&keys(&[]), &keys(&[]))] {
            let written = Written::new(join_type, build, probe);
            let expected = written.oracle();
            let most = build.rows().min(1) as u64 * 2;
            run(&written.case(), move || async move {
                let config = GraceHashJoinConfig::builder()
                    .with_fan_out(64)
                    .with_spill(SpillPolicy::All)
                    .build();
                let environment = Environment::unlimited(8192).unwrap();
                let setting = written.setting(config.unwrap());
                let checked = setting.check(&environment, &expected, Spills::May).await;
                let stats = checked.unwrap().stats;
                assert!(stats.spill_count <= most, "{stats:?}");
                assert!(stats.spilled_buckets <= 1, "{stats:?}");
            });
        }
    }
}

/// IMPALA-3524, duckdb's external join without build rows, IMPALA-2440.
#[test]
fn a_side_without_rows_is_no_special_case_on_disk() {
    let (some, none) = (numbers(1..=100), keys(&[]));
    let without_probe = |join_type| Written::new(join_type, &some, &none);
    without_probe(Inner).gives_rows(0);
    without_probe(Left).gives_rows(100);
    without_probe(LeftAnti).gives_rows(100);
    without_probe(Full).gives_rows(100);
    let some = numbers(1..=5);
    let without_build = |join_type| Written::new(join_type, &none, &some);
    let extended = ["NULL,1", "NULL,2", "NULL,3", "NULL,4", "NULL,5"];
    without_build(Inner).gives(&[]);
    without_build(Right).gives(&extended);
    without_build(Full).gives(&extended);
    without_build(RightAnti).gives(&["1", "2", "3", "4", "5"]);
    without_build(RightSemi).gives(&[]);
    without_build(RightMark).gives(&["1,false", "2,false", "3,false", "4,false", "5,false"]);
    for join_type in JOIN_TYPES {
        Written::new(join_type, &none, &none).gives(&[]);
    }
}

// Batches cut in the middle.

/// datafusion#24348: one finished batch came out, the others stayed behind.
#[test]
fn no_row_stays_behind_where_matches_fill_many_batches() {
    let build = numbers((0..10).flat_map(|k| [k; 3]));
    let probe = numbers(0..10);
    for join_type in [Inner, Left, Right, Full] {
        let written = Written::new(join_type, &build, &probe);
        assert_eq!(written.oracle().len(), 30);
        let expected = written.oracle();
        run(&written.case(), move || async move {
            let environment = Environment::unlimited(4).unwrap();
            for spill in [SpillPolicy::Pressure, SpillPolicy::Half, SpillPolicy::All] {
                let way = super::Way {
                    spill,
                    fan_out: 4,
                    batch_size: 4,
                };
                let outcome = written.answer(way, &environment, &expected).await;
                if spill == SpillPolicy::Pressure {
                    let sizes: Vec<_> = outcome.batches.iter().map(RecordBatch::num_rows).collect();
                    assert_eq!(sizes, [4, 4, 4, 4, 4, 4, 4, 2]);
                }
            }
        });
    }
}

/// velox#9400: a probe batch whose matches fill many batches, cut in the middle, on disk or not.
#[test]
fn a_large_probe_batch_is_decided_once_a_row() {
    let build = cut(numbers((0..5000).flat_map(|k| [k; 3])), 1000);
    let probe = numbers((0..10_000).map(|k| k / 2 * 2));
    for (join_type, rows) in [(RightSemi, 5000), (RightAnti, 5000), (RightMark, 10_000)] {
        let written = Written::new(join_type, &build, &probe);
        run(&written.case(), move || async move {
            for spill in [SpillPolicy::Pressure, SpillPolicy::Half, SpillPolicy::All] {
                let config = GraceHashJoinConfig::builder().with_spill(spill).build();
                let environment = Environment::unlimited(1000).unwrap();
                let stream = written.setting(config.unwrap()).start(&environment);
                let outcome = collect(stream.unwrap()).await.unwrap();
                outcome.end.unwrap();
                let mut got: Vec<i32> = Vec::new();
                for batch in &outcome.batches {
                    use arrow::array::AsArray;
                    use arrow::datatypes::Int32Type;
                    let column = batch.column(0).as_primitive::<Int32Type>();
                    got.extend(column.values());
                }
                assert_eq!(got.len(), rows, "{join_type:?}, {spill:?}");
                let matched = got.iter().filter(|k| **k < 5000).count();
                let expected = if join_type == RightAnti { 0 } else { 5000 };
                assert_eq!(matched, expected, "{join_type:?}, {spill:?}");
            }
        });
    }
}

/// velox#12108: the unmatched row before a chain that is cut; and polars#23639: the last matches.
#[test]
fn unmatched_rows_keep_their_place_between_matches_that_are_cut() {
    let build = pairs(&[(Some(2), 1), (Some(2), 2), (Some(2), 3)]);
    let probe = numbers([1, 2, 3]);
    let written = Written::new(Right, &build, &probe);
    written.gives(&["NULL,NULL,1", "2,1,2", "2,2,2", "2,3,2", "NULL,NULL,3"]);
    Written::new(RightAnti, &build, &probe).gives(&["1", "3"]);
    Written::new(RightMark, &build, &probe).gives(&["1,false", "2,true", "3,false"]);
    run(&written.case(), move || async move {
        for batch_size in [1, 2, 3, 8192] {
            let environment = Environment::unlimited(batch_size).unwrap();
            let setting = written.setting(GraceHashJoinConfig::default());
            let outcome = collect(setting.start(&environment).unwrap()).await.unwrap();
            let rows = grace_hash_join::testing::render::rows(&outcome.batches).unwrap();
            let rows: Vec<_> = rows.iter().map(|cells| cells.join(",")).collect();
            let in_order = ["NULL,NULL,1", "2,1,2", "2,2,2", "2,3,2", "NULL,NULL,3"];
            assert_eq!(rows, in_order, "batches of {batch_size}");
        }
    });
}

/// risingwave#20264: what was found for one probe row was still set for the next.
#[test]
fn a_match_found_for_one_row_is_not_the_next_rows() {
    let probe = pairs(&[(Some(1), 9), (Some(2), 0)]);
    let build = pairs(&[(Some(1), 5), (Some(1), 6), (Some(2), 7)]);
    let rule = Rule::over(&[(Build, 1), (Probe, 1)], |v| Some(v[1]? > v[0]?));
    let join = |join_type| Written::new(join_type, &build, &probe).rule(&rule);
    join(RightAnti).gives(&["2,0"]);
    join(RightSemi).gives(&["1,9"]);
    join(RightMark).gives(&["1,9,true", "2,0,false"]);
    join(LeftSemi).gives(&["1,5", "1,6"]);
    join(LeftAnti).gives(&["2,7"]);
}

// Residual filters.

/// starrocks#23302: on disk the filter looked into the wrong table.
#[test]
fn a_filter_between_the_sides_sees_the_rows_of_the_disk() {
    let build = pairs(&[(Some(1), 5), (Some(1), 9), (Some(2), 0)]);
    let probe = pairs(&[(Some(1), 7)]);
    let join = |join_type| Written::new(join_type, &build, &probe).filter(FilterKind::Both);
    join(Left).gives(&["1,5,1,7", "1,9,NULL,NULL", "2,0,NULL,NULL"]);
    join(Full).gives(&["1,5,1,7", "1,9,NULL,NULL", "2,0,NULL,NULL"]);
    join(Right).gives(&["1,5,1,7"]);
}

/// duckdb#20435: one match marked the whole chain of its key.
#[test]
fn a_match_marks_its_own_row_and_not_its_keys_others() {
    let build = pairs(&[(Some(1), 10), (Some(1), 20)]);
    let probe = pairs(&[(Some(1), 15)]);
    let join = |join_type| Written::new(join_type, &build, &probe).filter(FilterKind::Both);
    join(LeftSemi).gives(&["1,10"]);
    join(LeftAnti).gives(&["1,20"]);
    join(LeftMark).gives(&["1,10,true", "1,20,false"]);
    join(RightSemi).gives(&["1,15"]);
    join(RightAnti).gives(&[]);
}

/// velox#3571: the filter was evaluated for rows that are paired with nothing.
#[test]
fn a_division_by_zero_in_a_row_without_a_partner_is_none() {
    let (build, probe) = (pairs(&[(Some(1), 1)]), pairs(&[(Some(1), 2), (Some(2), 0)]));
    let join = |join_type| Written::new(join_type, &build, &probe).filter(FilterKind::Division);
    join(RightAnti).gives(&["2,0"]);
    join(RightSemi).gives(&["1,2"]);
    join(Full).gives(&["1,1,1,2", "NULL,NULL,2,0"]);
}

/// datafusion#4327: a filter over the other side's columns alone.
#[test]
fn a_filter_may_look_at_the_side_that_does_not_come_out() {
    let (build, probe) = (pairs(&[(Some(1), 5), (Some(1), 50)]), numbers([1, 1]));
    let over = |join_type, rule: fn(&[Option<i64>]) -> Option<bool>| {
        Written::new(join_type, &build, &probe).rule(&Rule::over(&[(Build, 1)], rule))
    };
    over(RightSemi, |v| Some(v[0]? > 40)).gives(&["1", "1"]);
    over(RightSemi, |v| Some(v[0]? > 90)).gives(&[]);
    over(RightAnti, |_| Some(false)).gives(&["1", "1"]);
    over(RightAnti, |_| None).gives(&["1", "1"]);
    over(Left, |_| None).gives(&["1,5,NULL", "1,50,NULL"]);
    over(LeftSemi, |v| Some(v[0]? > 40)).gives(&["1,50"]);
    let (build, probe) = (numbers([1, 1]), pairs(&[(Some(1), 5), (Some(1), 50)]));
    let rule = Rule::over(&[(Probe, 1)], |v| Some(v[0]? > 40));
    let over = |join_type| Written::new(join_type, &build, &probe).rule(&rule);
    over(LeftSemi).gives(&["1", "1"]);
    over(LeftMark).gives(&["1,true", "1,true"]);
    over(RightAnti).gives(&["1,5"]);
}

/// A filter may name a column twice, the key column, and columns of both sides in any order.
#[test]
fn a_filter_has_its_own_order_of_columns() {
    let build = pairs(&[(Some(1), 5), (Some(2), 6)]);
    let probe = pairs(&[(Some(1), 7), (Some(2), 4)]);
    let columns = [(Probe, 1), (Build, 0), (Build, 1), (Probe, 1), (Probe, 0)];
    let rule = Rule::over(&columns, |v| {
        assert_eq!((v[0], v[1]), (v[3], v[4]));
        Some(v[0]? > v[2]? && v[1]? > 0)
    });
    let join = |join_type| Written::new(join_type, &build, &probe).rule(&rule);
    join(Inner).columns(&[3]).gives(&["7"]);
    join(Inner).columns(&[2, 0, 0]).gives(&["1,1,1"]);
    join(Full)
        .columns(&[1, 3])
        .gives(&["5,7", "6,NULL", "NULL,4"]);
    join(LeftAnti).columns(&[0]).gives(&["2"]);
}

// NULL keys.

/// ballista#2064, polars#15696, datafusion#22964.
#[test]
fn whether_nulls_match_is_the_same_question_for_every_type_and_on_disk() {
    let build = keys(&[None, Some(1), Some(2)]);
    let probe = keys(&[None, Some(2)]);
    let counts = [
        (Inner, 1, 2),
        (Left, 3, 3),
        (Right, 2, 2),
        (Full, 4, 3),
        (LeftSemi, 1, 2),
        (LeftAnti, 2, 1),
        (LeftMark, 3, 3),
        (RightSemi, 1, 2),
        (RightAnti, 1, 0),
        (RightMark, 2, 2),
    ];
    for (join_type, nothing, null) in counts {
        Written::new(join_type, &build, &probe).gives_rows(nothing);
        let written = Written::new(join_type, &build, &probe);
        written.nulls_are_equal().gives_rows(null);
    }
    let (build, probe) = (keys(&[None, Some(1)]), keys(&[None]));
    let equal = |join_type| Written::new(join_type, &build, &probe).nulls_are_equal();
    equal(LeftSemi).gives(&["NULL"]);
    equal(LeftAnti).gives(&["1"]);
    let probe = keys(&[None, Some(2)]);
    let written = Written::new(Inner, &build, &probe);
    written.nulls_are_equal().gives(&["NULL,NULL"]);
}

/// Keys of two columns: a NULL in either, in the same place or another, on both sides.
#[test]
fn a_null_in_one_of_two_key_columns_is_not_a_null_in_the_other() {
    let side = |rows: &[(Option<i32>, Option<i32>)]| {
        let first: Int32Array = rows.iter().map(|r| r.0).collect();
        let second: Int32Array = rows.iter().map(|r| r.1).collect();
        table(2, vec![("a", Arc::new(first)), ("b", Arc::new(second))])
    };
    let build = side(&[
        (None, Some(1)),
        (Some(1), None),
        (None, None),
        (Some(1), Some(1)),
    ]);
    let probe = side(&[(Some(1), None), (None, None), (Some(1), Some(1))]);
    let join = |join_type| Written::new(join_type, &build, &probe);
    join(Inner).gives(&["1,1,1,1"]);
    join(LeftAnti).gives(&["NULL,1", "1,NULL", "NULL,NULL"]);
    join(RightMark).gives(&["1,NULL,false", "NULL,NULL,false", "1,1,true"]);
    let equal = |join_type| join(join_type).nulls_are_equal();
    equal(Inner).gives(&["1,NULL,1,NULL", "NULL,NULL,NULL,NULL", "1,1,1,1"]);
    equal(LeftAnti).gives(&["NULL,1"]);
    equal(RightAnti).gives(&[]);
}

/// duckdb#22683: the mark of a row-valued IN. A mark here is true or false, as `HashJoinExec` has it.
#[test]
fn a_mark_of_a_row_with_nulls_is_false() {
    let pair = |rows: &[(Option<i32>, Option<i32>)]| {
        let first: Int32Array = rows.iter().map(|r| r.0).collect();
        let second: Int32Array = rows.iter().map(|r| r.1).collect();
        table(2, vec![("a", Arc::new(first)), ("b", Arc::new(second))])
    };
    let build = pair(&[(Some(1), Some(5)), (Some(2), Some(5)), (None, Some(5))]);
    let probe = pair(&[(Some(1), None), (Some(1), Some(6))]);
    let mark = Written::new(LeftMark, &build, &probe);
    mark.gives(&["1,5,false", "2,5,false", "NULL,5,false"]);
    let mark = Written::new(RightMark, &probe, &build);
    mark.gives(&["1,5,false", "2,5,false", "NULL,5,false"]);
    // velox#11781, two-valued: what the probe side holds is no reason for NULL.
    let (build, probe) = (keys(&[Some(1), None]), keys(&[Some(2)]));
    Written::new(LeftMark, &build, &probe).gives(&["1,false", "NULL,false"]);
}

// Shapes.

/// velox#9071: NULL keys at the end of a batch that is a slice.
#[test]
fn null_keys_at_the_end_of_a_slice_go_where_the_type_needs_them() {
    let rows = [
        None,
        Some(4),
        Some(4),
        None,
        Some(9),
        Some(1),
        Some(2),
        None,
        Some(2),
        Some(1),
        None,
    ];
    let slice = |mut table: Table| {
        table.batches[0] = table.batches[0].slice(5, 3);
        table
    };
    // 1, 2, NULL in both.
    let (build, probe) = (slice(keys(&rows)), slice(keys(&rows)));
    let join = |join_type| Written::new(join_type, &build, &probe);
    join(Inner).gives(&["1,1", "2,2"]);
    join(Left).gives(&["1,1", "2,2", "NULL,NULL"]);
    join(Full).gives(&["1,1", "2,2", "NULL,NULL", "NULL,NULL"]);
    join(LeftAnti).gives(&["NULL"]);
    join(RightAnti).gives(&["NULL"]);
    join(Inner)
        .nulls_are_equal()
        .gives(&["1,1", "2,2", "NULL,NULL"]);
    join(LeftMark).gives(&["1,true", "2,true", "NULL,false"]);
    // Nothing but NULLs: no bucket gets a row.
    let none = keys(&[None, None]);
    Written::new(Full, &none, &none).gives(&["NULL,NULL"; 4]);
    Written::new(Full, &none, &none)
        .nulls_are_equal()
        .gives(&["NULL,NULL"; 4]);
    Written::new(Inner, &none, &none).gives(&[]);
}

/// velox#17367: `count(*)` over a join, of which no column comes out.
#[test]
fn rows_without_columns_are_counted_in_memory_and_on_disk() {
    let (build, probe) = (numbers([1, 1]), numbers([1, 1, 2]));
    for (join_type, rows) in [(Inner, 4), (Left, 4), (Right, 5), (Full, 5)] {
        let written = Written::new(join_type, &build, &probe).columns(&[]);
        written.gives(&vec![""; rows]);
    }
    for (join_type, rows) in [(LeftSemi, 2), (LeftAnti, 0), (RightSemi, 2), (RightAnti, 1)] {
        let written = Written::new(join_type, &build, &probe).columns(&[]);
        written.gives(&vec![""; rows]);
    }
    let rule = Rule::over(&[(Probe, 0)], |v| Some(v[0]? == 1));
    let written = Written::new(RightMark, &build, &probe).rule(&rule);
    written.columns(&[1]).gives(&["true", "true", "false"]);
}

/// Columns of one name, of either side, and one that both filter and key are.
#[test]
fn columns_are_told_apart_by_number_where_they_share_a_name() {
    let side = |rows: &[(i32, &str, i32)]| {
        let first: Int32Array = rows.iter().map(|r| Some(r.0)).collect();
        let second: StringArray = rows.iter().map(|r| Some(r.1)).collect();
        let third: Int32Array = rows.iter().map(|r| Some(r.2)).collect();
        let columns: Vec<ArrayRef> = vec![Arc::new(first), Arc::new(second), Arc::new(third)];
        table(1, columns.into_iter().map(|c| ("x", c)).collect())
    };
    let build = side(&[(1, "a", 10), (2, "b", 20), (2, "c", 30)]);
    let probe = side(&[(2, "d", 25), (3, "e", 0)]);
    let rule = Rule::over(&[(Probe, 2), (Build, 2)], |v| Some(v[0]? > v[1]?));
    let join = |join_type| Written::new(join_type, &build, &probe).rule(&rule);
    join(Inner).columns(&[4, 1]).gives(&["\"d\",\"b\""]);
    join(Full)
        .columns(&[1, 4])
        .gives(&["\"b\",\"d\"", "\"a\",NULL", "\"c\",NULL", "NULL,\"e\""]);
    join(LeftAnti).columns(&[1]).gives(&["\"a\"", "\"c\""]);
}

/// A column that cannot be NULL can be in the output of an outer join, and only there.
#[test]
fn a_column_may_be_null_in_the_output_only_where_rows_are_extended() {
    let strict = |mut table: Table| {
        let fields = table.schema.fields().iter();
        let fields = fields.map(|f| f.as_ref().clone().with_nullable(false));
        let metadata = [("table".to_string(), "strict".to_string())];
        let fields: Vec<Field> = fields
            .map(|f| f.with_metadata(metadata.clone().into()))
            .collect();
        table.schema = Arc::new(Schema::new(fields).with_metadata(metadata.into()));
        for batch in &mut table.batches {
            let columns = batch.columns().to_vec();
            *batch = RecordBatch::try_new(Arc::clone(&table.schema), columns).unwrap();
        }
        table
    };
    let (build, probe) = (strict(numbers([1, 2])), strict(numbers([2, 3])));
    for join_type in JOIN_TYPES {
        let written = Written::new(join_type, &build, &probe);
        let rows = written.oracle().len();
        written.gives_rows(rows);
        let schema = written
            .setting(GraceHashJoinConfig::default())
            .join
            .schema();
        let nullable: Vec<_> = schema.fields().iter().map(|f| f.is_nullable()).collect();
        let expected = match join_type {
            Inner | LeftMark | RightMark => vec![false, false],
            Left => vec![false, true],
            Right => vec![true, false],
            Full => vec![true, true],
            _ => vec![false],
        };
        assert_eq!(nullable, expected, "{join_type:?}");
        assert_eq!(schema.field(0).metadata().len(), 1);
        assert_eq!(schema.metadata().len(), 1);
    }
}

/// The same key twice, and a key column crossed with another.
#[test]
fn a_column_can_be_a_key_twice() {
    use grace_hash_join::GraceHashJoin;
    let (build, probe) = (
        pairs(&[(Some(1), 1), (Some(1), 2)]),
        pairs(&[(Some(1), 1), (Some(2), 2)]),
    );
    let expected = Rows::written(&["1,1,1,1"]);
    let case = Written::new(Inner, &build, &probe).case();
    run(&case, move || async move {
        for on in [
            vec![(0, 0), (1, 1), (0, 0)],
            vec![(0, 1), (1, 0)],
            vec![(0, 0), (1, 0), (1, 1)],
        ] {
            for spill in [SpillPolicy::Pressure, SpillPolicy::All] {
                let config = GraceHashJoinConfig::builder().with_spill(spill).build();
                let schemas = (Arc::clone(&build.schema), Arc::clone(&probe.schema));
                let join = GraceHashJoin::builder(schemas.0, schemas.1)
                    .with_on(on.clone())
                    .with_config(config.unwrap())
                    .build()
                    .unwrap();
                let setting = grace_hash_join::testing::run::Setting {
                    join,
                    build: build.clone(),
                    probe: probe.clone(),
                };
                let environment = Environment::unlimited(2).unwrap();
                let checked = setting.check(&environment, &expected, Spills::May).await;
                checked.unwrap_or_else(|why| panic!("{on:?}, {spill:?}: {why}"));
            }
        }
    });
}
