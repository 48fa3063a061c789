//! Types: what is a key, when two keys are equal, and that nothing of a column is lost on the way
//! through a file.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeListArray,
    Float32Array, Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, Int64RunArray,
    LargeListViewArray, ListArray, ListViewArray, MapArray, RecordBatch, StringArray,
    StringViewArray, StructArray, TimestampMicrosecondArray, UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, Fields, Float32Type, Int8Type, Int16Type, Int32Type, Int64Type, IntervalUnit,
    Schema, TimeUnit, UInt64Type,
};
use datafusion_common::JoinType::{
    Full, Inner, Left, LeftAnti, LeftSemi, Right, RightAnti, RightMark, RightSemi,
};
use datafusion_common::{DataFusionError, NullEquality};
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{
    Case, Environment, FilterKind, JOIN_TYPES, KeyKind, PayloadKind, Pressure, Rows, Spills, Table,
};
use grace_hash_join::{GraceHashJoin, GraceHashJoinConfig};

use super::{Written, one_way_of_each_kind, table};
use crate::{reference, run};

pub(super) fn key(array: ArrayRef) -> Table {
    table(1, vec![("k", array)])
}

/// Five rows, the last one NULL, of types that no other axis of the case space has.
fn more_types() -> Vec<ArrayRef> {
    let small: ArrayRef = Arc::new(Int32Array::from(vec![
        Some(1),
        Some(2),
        Some(3),
        Some(4),
        None,
    ]));
    let long = cast(&small, &DataType::Int64).unwrap();
    let text = cast(&small, &DataType::Utf8).unwrap();
    let dictionary = |key, value| DataType::Dictionary(Box::new(key), Box::new(value));
    let zone = |zone: &str| Some(Arc::from(zone));
    let of_long = [
        DataType::Timestamp(TimeUnit::Second, None),
        DataType::Timestamp(TimeUnit::Millisecond, zone("UTC")),
        DataType::Timestamp(TimeUnit::Nanosecond, zone("Europe/Zurich")),
        DataType::Duration(TimeUnit::Second),
        DataType::Duration(TimeUnit::Millisecond),
        DataType::Duration(TimeUnit::Microsecond),
        DataType::Time64(TimeUnit::Nanosecond),
        DataType::Date64,
        DataType::UInt32,
        DataType::UInt16,
        DataType::Float16,
        DataType::Decimal32(9, 0),
        DataType::Decimal64(18, 3),
        DataType::Decimal128(38, -2),
        DataType::Decimal256(76, 10),
    ];
    let of_text = [
        dictionary(DataType::Int8, DataType::Utf8),
        dictionary(DataType::UInt16, DataType::LargeUtf8),
        dictionary(DataType::Int64, DataType::Utf8View),
        dictionary(DataType::Int32, DataType::Binary),
        DataType::BinaryView,
    ];
    let of_small = [
        DataType::Time32(TimeUnit::Second),
        DataType::Interval(IntervalUnit::YearMonth),
        dictionary(DataType::UInt64, DataType::Int32),
    ];
    let mut arrays = Vec::new();
    arrays.extend(of_long.iter().map(|t| cast(&long, t).unwrap()));
    arrays.extend(of_text.iter().map(|t| cast(&text, t).unwrap()));
    arrays.extend(of_small.iter().map(|t| cast(&small, t).unwrap()));
    arrays.extend(nested(&small, &long, &text));
    arrays
}

/// The same five rows inside of other types.
fn nested(small: &ArrayRef, long: &ArrayRef, text: &ArrayRef) -> Vec<ArrayRef> {
    let valid = || Some(NullBuffer::from(vec![true, true, true, true, false]));
    let item = |array: &ArrayRef| Arc::new(Field::new("item", array.data_type().clone(), true));
    let list_of = |array: &ArrayRef| {
        let lengths = OffsetBuffer::from_lengths([1; 5]);
        ListArray::new(item(array), lengths, Arc::clone(array), valid())
    };
    let struct_of = |array: &ArrayRef| {
        let fields = Fields::from(vec![item(array).as_ref().clone()]);
        StructArray::new(fields, vec![Arc::clone(array)], valid())
    };
    let words = cast(
        text,
        &DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8)),
    );
    let words = words.unwrap();
    let views = cast(text, &DataType::Utf8View).unwrap();
    let floats = cast(long, &DataType::Float64).unwrap();
    let lists: ArrayRef = Arc::new(list_of(text));
    let structs: ArrayRef = Arc::new(struct_of(&words));
    let large = cast(&list_of(small), &DataType::LargeList(item(small))).unwrap();
    let dense: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c", "d", "e"]));
    let ends = Int64Array::from(vec![1, 2, 3, 4, 5]);
    let runs = Int64RunArray::try_new(
        &ends,
        &StringArray::from(vec![Some("a"), Some("b"), Some("c"), Some("d"), None]),
    );
    vec![
        Arc::new(list_of(&words)),
        Arc::new(list_of(&views)),
        Arc::new(list_of(&floats)),
        Arc::new(list_of(&lists)),
        Arc::new(list_of(&structs)),
        Arc::new(struct_of(&words)),
        Arc::new(struct_of(&floats)),
        Arc::new(struct_of(&lists)),
        large,
        Arc::new(FixedSizeListArray::new(
            item(small),
            1,
            Arc::clone(small),
            valid(),
        )),
        Arc::new(ListViewArray::from(list_of(&dense))),
        Arc::new(runs.unwrap()),
    ]
}

fn all_key_arrays() -> Vec<ArrayRef> {
    let mut arrays = more_types();
    arrays.extend(
        PayloadKind::all()
            .into_iter()
            .map(|kind| kind.array(0..5).unwrap()),
    );
    arrays
}

pub(super) fn join_of(build: &Table, probe: &Table) -> Result<Arc<GraceHashJoin>, DataFusionError> {
    GraceHashJoin::builder(Arc::clone(&build.schema), Arc::clone(&probe.schema))
        .with_on(vec![(0, 0)])
        .build()
}

/// datafusion#2145 and others: for each type either the answer of `HashJoinExec` or a plan error.
#[test]
fn each_arrow_type_is_a_key_exactly_where_it_is_one_for_hash_join_exec() {
    let (mut joined, mut refused) = (0, Vec::new());
    for array in all_key_arrays() {
        let data_type = array.data_type().clone();
        let side = key(array);
        let written = Written::new(Inner, &side, &side);
        let tables = (side.clone(), side.clone());
        let case = written.case();
        let theirs = run(&case, move || async move {
            let theirs = reference::run_tables(&case, None, tables).await;
            theirs.map(|theirs| theirs.rows)
        });
        match theirs {
            Ok(theirs) => {
                let ours = join_of(&side, &side);
                assert!(ours.is_ok(), "{data_type}: {}", ours.unwrap_err());
                let few = matches!(data_type, DataType::Boolean | DataType::Null);
                assert!(few || theirs.len() >= 4, "{data_type}: {theirs:?}");
                written.is_answered_in(one_way_of_each_kind(), &theirs);
                let again = written.clone().nulls_are_equal();
                again.is_answered_in(one_way_of_each_kind(), &again.oracle());
                joined += 1;
            }
            Err(theirs) => {
                let ours = join_of(&side, &side).expect_err(&format!("{data_type}: {theirs}"));
                assert!(
                    matches!(ours, DataFusionError::Plan(_)),
                    "{data_type}: {ours}"
                );
                refused.push(data_type);
            }
        }
    }
    assert!(joined > 60, "{joined} types, and not {refused:?}");
}

/// datafusion#2877: not the same type, not the same instant's zone, not the same scale.
#[test]
fn keys_that_are_comparable_only_after_a_cast_are_refused() {
    let int: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let time = |zone: Option<&str>| {
        let zone = zone.map(Arc::from);
        cast(
            &Int64Array::from(vec![0]),
            &DataType::Timestamp(TimeUnit::Microsecond, zone),
        )
        .unwrap()
    };
    let decimal = |precision, scale| cast(&int, &DataType::Decimal128(precision, scale)).unwrap();
    let dictionary = |keys| {
        let to = DataType::Dictionary(Box::new(keys), Box::new(DataType::Int32));
        cast(&int, &to).unwrap()
    };
    let to = |to: DataType| cast(&int, &to).unwrap();
    let pairs = [
        (Arc::clone(&int), to(DataType::Int64)),
        (Arc::clone(&int), to(DataType::UInt32)),
        (Arc::clone(&int), to(DataType::Date32)),
        (to(DataType::Utf8), to(DataType::LargeUtf8)),
        (to(DataType::Utf8), to(DataType::Utf8View)),
        (Arc::clone(&int), dictionary(DataType::Int32)),
        (dictionary(DataType::Int8), dictionary(DataType::Int32)),
        (time(Some("UTC")), time(Some("+01:00"))),
        (time(Some("UTC")), time(Some("+00:00"))),
        (time(Some("UTC")), time(None)),
        (decimal(10, 2), decimal(12, 3)),
        (decimal(10, 2), decimal(12, 2)),
    ];
    for (one, other) in pairs {
        for (build, probe) in [(&one, &other), (&other, &one)] {
            let refused = join_of(&key(Arc::clone(build)), &key(Arc::clone(probe)));
            let error =
                refused.expect_err(&format!("{} with {}", build.data_type(), probe.data_type()));
            assert!(matches!(error, DataFusionError::Plan(_)), "{error}");
        }
    }
}

/// TiDB#19185 and velox#15267: once both sides were cast, equal values and equal instants match.
#[test]
fn keys_that_were_cast_to_one_type_match() {
    let decimal = |cents: i128, scale| {
        let array = Decimal128Array::from(vec![cents]).with_precision_and_scale(12, scale);
        cast(&array.unwrap(), &DataType::Decimal128(12, 3)).unwrap()
    };
    let (build, probe) = (key(decimal(100, 2)), key(decimal(1000, 3)));
    Written::new(Inner, &build, &probe).gives(&["1000,1000"]);
    let instant = |zone: &str| {
        let local =
            TimestampMicrosecondArray::from(vec![1_700_000_000_000_000]).with_timezone(zone);
        let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        cast(&local, &utc).unwrap()
    };
    let (build, probe) = (key(instant("+01:00")), key(instant("-08:00")));
    Written::new(Inner, &build, &probe).gives_rows(1);
}

/// velox#3567: keys of four columns, among them a Boolean and a float, with NULLs in each.
#[test]
fn four_key_columns_with_nulls_in_each_match_as_one_key() {
    let side = |rows: usize, seed: usize| {
        let at = |row: usize, column: usize| (row * 7 + column * 3 + seed) % 11 != 4;
        let code = |row: usize| i16::try_from(row % 4).unwrap();
        let some = |row: usize, column| at(row, column).then(|| code(row));
        let bools: BooleanArray = (0..rows).map(|r| some(r, 0).map(|c| c % 2 == 0)).collect();
        let reals: Float32Array = (0..rows).map(|r| some(r, 1).map(f32::from)).collect();
        let ints: Int32Array = (0..rows).map(|r| some(r, 2).map(i32::from)).collect();
        let tiny: Int8Array = (0..rows)
            .map(|r| some(r, 3).map(|c| i8::try_from(c).unwrap()))
            .collect();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(bools),
            Arc::new(reals),
            Arc::new(ints),
            Arc::new(tiny),
        ];
        table(4, columns.into_iter().map(|c| ("k", c)).collect())
    };
    let (build, probe) = (side(25, 0), side(5, 1));
    for join_type in [Inner, Full, LeftAnti, RightSemi] {
        for nulls_are_equal in [false, true] {
            let mut written = Written::new(join_type, &build, &probe);
            if nulls_are_equal {
                written = written.nulls_are_equal();
            }
            let rows = written.oracle().len();
            assert!(rows > 0, "{join_type:?}");
            written.gives_rows(rows);
        }
    }
}

/// datafusion#11232 and polars#28601: NULL outside is not NULL inside.
#[test]
fn a_null_inside_of_a_key_is_a_value_and_one_outside_is_none() {
    let ids = |ids: Vec<Option<i64>>| {
        let fields = Fields::from(vec![Field::new("id", DataType::Int64, true)]);
        let valid = NullBuffer::from(ids.iter().map(Option::is_some).collect::<Vec<_>>());
        let ids: ArrayRef = Arc::new(Int64Array::from(ids));
        key(Arc::new(StructArray::new(fields, vec![ids], Some(valid))))
    };
    let (build, probe) = (
        ids(vec![None, Some(1), Some(2)]),
        ids(vec![None, Some(2), Some(3)]),
    );
    Written::new(Inner, &build, &probe).gives(&["{2},{2}"]);
    let written = Written::new(Inner, &build, &probe);
    written.nulls_are_equal().gives(&["{2},{2}", "NULL,NULL"]);
    let lists = |lists: Vec<Option<Vec<Option<i64>>>>| {
        key(Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(
            lists,
        )))
    };
    let one = || Some(vec![Some(1)]);
    let (build, probe) = (lists(vec![one(), None]), lists(vec![None, one()]));
    for (join_type, rows) in [
        (Inner, 1),
        (Left, 2),
        (Full, 3),
        (LeftSemi, 1),
        (LeftAnti, 1),
    ] {
        Written::new(join_type, &build, &probe).gives_rows(rows);
    }
    let inner = || Some(vec![None]);
    let (build, probe) = (
        lists(vec![inner(), Some(vec![])]),
        lists(vec![Some(vec![]), inner()]),
    );
    Written::new(Inner, &build, &probe).gives(&["[NULL],[NULL]", "[],[]"]);
    Written::new(LeftAnti, &build, &probe).gives(&[]);
}

const NAN: f64 = f64::NAN;

/// datafusion#22835 and its kin in eight engines: -0.0 is 0.0, a NaN is the same NaN, on disk too.
#[test]
fn zeros_of_both_signs_are_one_key_and_a_nan_is_itself() {
    let floats = vec![
        Some(-0.0),
        Some(0.0),
        Some(NAN),
        Some(-NAN),
        Some(f64::INFINITY),
        None,
    ];
    let halves = cast(&Float64Array::from(floats.clone()), &DataType::Float16).unwrap();
    let singles = cast(&Float64Array::from(floats.clone()), &DataType::Float32).unwrap();
    let doubles: ArrayRef = Arc::new(Float64Array::from(floats));
    // Both zeros with both, and each of the other three with itself.
    let (rows, of_nulls) = (7, 1);
    for array in [halves, singles, doubles] {
        let side = key(array);
        let gives = |written: Written, rows| {
            assert_eq!(written.oracle().len(), rows);
            written.is_answered_in(one_way_of_each_kind(), &written.oracle());
        };
        let join = |join_type| Written::new(join_type, &side, &side);
        gives(join(Inner), rows);
        gives(join(Inner).nulls_are_equal(), rows + of_nulls);
        gives(join(LeftAnti), of_nulls);
        gives(join(RightSemi), 5);
        gives(join(Full), rows + 2 * of_nulls);
    }
    // A key of two columns, of which one is a zero.
    let zero = |zero: f64| {
        let one: ArrayRef = Arc::new(Int32Array::from(vec![1]));
        let zero: ArrayRef = Arc::new(Float64Array::from(vec![zero]));
        table(2, vec![("a", one), ("b", zero)])
    };
    Written::new(Inner, &zero(-0.0), &zero(0.0)).gives_rows(1);
    Written::new(LeftAnti, &zero(0.0), &zero(-0.0)).gives_rows(0);
}

/// The same inside of structs, lists, dictionaries and runs, where `HashJoinExec` decides.
#[test]
fn floats_inside_of_keys_are_equal_where_they_are_for_hash_join_exec() {
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![-0.0, 0.0, NAN, -NAN]));
    let fields = Fields::from(vec![Field::new("f", DataType::Float64, true)]);
    let item = |t: &DataType| Arc::new(Field::new("item", t.clone(), true));
    let lists = ListArray::new(
        item(&DataType::Float64),
        OffsetBuffer::from_lengths([1; 4]),
        Arc::clone(&floats),
        None,
    );
    let dictionary = DictionaryArray::<Int32Type>::try_new(
        Int32Array::from(vec![0, 1, 2, 3]),
        Arc::clone(&floats),
    );
    let ends = Int64Array::from(vec![1, 2, 3, 4]);
    let runs = Int64RunArray::try_new(
        &ends,
        floats.as_primitive::<arrow::datatypes::Float64Type>(),
    );
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(StructArray::new(fields, vec![Arc::clone(&floats)], None)),
        Arc::new(lists),
        Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>([
            Some(vec![Some(-0.0), Some(f32::NAN)]),
            Some(vec![Some(0.0), Some(f32::NAN)]),
        ])),
        Arc::new(dictionary.unwrap()),
        Arc::new(runs.unwrap()),
    ];
    for array in arrays {
        let data_type = array.data_type().clone();
        let side = key(array);
        let tables = (side.clone(), side.clone());
        let case = Case::new(Inner);
        let theirs = run(&case, move || async move {
            reference::run_tables(&case, None, tables)
                .await
                .map(|theirs| theirs.rows)
        });
        let Ok(theirs) = theirs else {
            join_of(&side, &side).expect_err(&data_type.to_string());
            continue;
        };
        let written = Written::new(Inner, &side, &side);
        written.is_answered_by(&theirs);
    }
}

/// datafusion#20696 and others: the same words under other numbers, in every batch.
#[test]
fn dictionaries_that_differ_from_batch_to_batch_are_one_type_of_key() {
    let batch = |words: Vec<Option<&str>>| -> ArrayRef {
        Arc::new(words.into_iter().collect::<DictionaryArray<Int8Type>>())
    };
    let two = |first: Vec<Option<&str>>, second| {
        let mut side = key(batch(first));
        side.batches.extend(key(batch(second)).batches);
        side
    };
    let build = two(vec![Some("a"), None, Some("b")], vec![Some("c"), Some("a")]);
    let probe = two(vec![Some("c"), Some("b")], vec![Some("a"), None]);
    Written::new(Inner, &build, &probe).gives(&[
        "\"a\",\"a\"",
        "\"a\",\"a\"",
        "\"b\",\"b\"",
        "\"c\",\"c\"",
    ]);
    Written::new(RightAnti, &build, &probe).gives(&["NULL"]);
    Written::new(RightMark, &build, &probe)
        .nulls_are_equal()
        .gives(&["\"a\",true", "\"b\",true", "\"c\",true", "NULL,true"]);
    // A NULL among the values is a NULL.
    let keys = Int8Array::from(vec![Some(0), Some(1), None]);
    let values: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
    let side = key(Arc::new(
        DictionaryArray::<Int8Type>::try_new(keys, values).unwrap(),
    ));
    Written::new(Inner, &side, &side).gives(&["\"a\",\"a\""]);
    Written::new(Inner, &side, &side)
        .nulls_are_equal()
        .gives_rows(5);
    // A value that is there twice is one value, and one that no row has is none.
    let keys = Int8Array::from(vec![0, 1, 2]);
    let values: ArrayRef = Arc::new(StringArray::from(vec!["a", "a", "b", "unused"]));
    let side = key(Arc::new(
        DictionaryArray::<Int8Type>::try_new(keys, values).unwrap(),
    ));
    Written::new(Inner, &side, &side).gives_rows(5);
}

/// A struct's or a list's fields may have other names on the other side: their types decide.
#[test]
fn names_inside_of_a_key_do_not_matter() {
    let named = |name: &str, value: i64| {
        let fields = Fields::from(vec![Field::new(name, DataType::Int64, true)]);
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(value), None]));
        key(Arc::new(StructArray::new(fields, vec![ids], None)))
    };
    let (build, probe) = (named("a", 1), named("b", 1));
    let written = Written::new(Inner, &build, &probe);
    let expected = Rows::written(&["{1},{1}", "{NULL},{NULL}"]);
    run(&written.case(), move || async move {
        let environment = Environment::unlimited(2).unwrap();
        for way in one_way_of_each_kind() {
            written.answer(way, &environment, &expected).await;
        }
    });
}

/// A table with a payload column of this array beside the key 0, 1, 2 and so on.
pub(super) fn carrying(payload: ArrayRef, metadata: &[(&str, &str)], nullable: bool) -> Table {
    let rows = i32::try_from(payload.len()).unwrap();
    let keys: ArrayRef = Arc::new(Int32Array::from_iter_values(0..rows));
    let field = Field::new("payload", payload.data_type().clone(), nullable);
    let metadata = metadata
        .iter()
        .map(|(k, v)| ((*k).to_string(), (*v).to_string()));
    let fields = vec![
        Field::new("k", DataType::Int32, true),
        field.with_metadata(metadata.collect()),
    ];
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![keys, payload]);
    Table {
        schema,
        batches: vec![batch.unwrap()],
        v: 1,
    }
}

/// velox#9376: a struct's own NULLs and those of its children are different things.
#[test]
fn a_struct_comes_back_from_disk_with_its_own_nulls_and_its_childrens() {
    let fields = Fields::from(vec![
        Field::new("a", DataType::Utf8, true),
        Field::new("b", DataType::Int64, true),
    ]);
    let words: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), Some("hidden"), None]));
    let counts: ArrayRef = Arc::new(Int64Array::from(vec![None, Some(9), Some(3)]));
    let valid = NullBuffer::from(vec![true, false, true]);
    let side = carrying(
        Arc::new(StructArray::new(fields, vec![words, counts], Some(valid))),
        &[],
        true,
    );
    let written = Written::new(Inner, &side, &side).columns(&[1, 3]);
    written.gives(&[
        "{\"x\",NULL},{\"x\",NULL}",
        "NULL,NULL",
        "{NULL,3},{NULL,3}",
    ]);
    let probe = super::numbers([0, 1, 2, 7]);
    let written = Written::new(Right, &side, &probe).columns(&[1, 2]);
    written.gives(&["{\"x\",NULL},0", "NULL,1", "{NULL,3},2", "NULL,7"]);
}

/// Maps of words to numbers, whose keys are sorted or not.
fn delicate_map(name: &str, is_sorted: bool) -> ArrayRef {
    let entries = Fields::from(vec![
        Field::new("keys", DataType::Utf8, false),
        Field::new("values", DataType::Int64, true),
    ]);
    let words: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c", "d", "e"]));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5]));
    let structs = StructArray::new(entries.clone(), vec![words, numbers], None);
    let field = Arc::new(Field::new(name, DataType::Struct(entries), false));
    let lengths = OffsetBuffer::from_lengths([1, 0, 2, 1, 1]);
    Arc::new(MapArray::new(field, lengths, structs, None, is_sorted))
}

/// Payloads whose nested types are easily lost: databend#19564, doris#33273, starrocks#21834.
fn delicate() -> Vec<ArrayRef> {
    let words: ArrayRef = Arc::new(StringArray::from(vec![
        "one", "two", "three", "four", "five",
    ]));
    let strict = |t: DataType| Arc::new(Field::new("item", t, false));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4, 5]));
    let five = || OffsetBuffer::from_lengths([1, 0, 2, 1, 1]);
    let bytes = cast(
        &words,
        &DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8)),
    );
    let bytes = bytes.unwrap();
    let strict_fields = Fields::from(vec![
        Field::new("a", DataType::Int64, false),
        Field::new("d", bytes.data_type().clone(), false),
    ]);
    let list = ListArray::new(strict(DataType::Int64), five(), Arc::clone(&numbers), None);
    let large_view = cast(&list, &DataType::LargeListView(strict(DataType::Int64))).unwrap();
    assert!(large_view.as_any().is::<LargeListViewArray>());
    let keys = UInt64Array::from(vec![Some(4), None, Some(0), Some(0), Some(2)]);
    let lists = Arc::new(list.clone()) as ArrayRef;
    let wide = cast(&numbers, &DataType::Decimal256(70, 5)).unwrap();
    let runs = arrow::array::RunArray::<Int16Type>::try_new(
        &Int16Array::from(vec![2, 5]),
        &StringViewArray::from(vec![Some("a view that is long enough"), None]),
    );
    vec![
        delicate_map("entries", true),
        delicate_map("key_value", false),
        Arc::new(list),
        Arc::new(ListArray::new(
            strict(bytes.data_type().clone()),
            five(),
            Arc::clone(&bytes),
            None,
        )),
        Arc::new(FixedSizeListArray::new(
            strict(DataType::Int64),
            1,
            Arc::clone(&numbers),
            None,
        )),
        Arc::new(StructArray::new(
            strict_fields,
            vec![Arc::clone(&numbers), bytes],
            None,
        )),
        Arc::new(StructArray::new_empty_fields(
            5,
            Some(NullBuffer::from(vec![true, false, true, true, false])),
        )),
        Arc::new(DictionaryArray::<UInt64Type>::try_new(keys, lists).unwrap()),
        large_view,
        wide,
        Arc::new(runs.unwrap()),
    ]
}

/// Types, nullability and metadata are the schema's before and after the disk.
#[test]
fn delicate_types_are_the_same_before_and_after_the_disk() {
    let metadata = [
        ("ARROW:extension:name", "a test's own"),
        ("ARROW:extension:metadata", "{}"),
    ];
    for payload in delicate() {
        let data_type = payload.data_type().clone();
        let nullable = payload.null_count() > 0;
        let build = carrying(
            payload,
            &metadata,
            nullable || payload_is_logically_null(&data_type),
        );
        let probe = super::numbers([0, 1, 1, 2, 4, 9]);
        for join_type in JOIN_TYPES {
            let written = Written::new(join_type, &build, &probe);
            let expected = written.oracle();
            let tables = (build.clone(), probe.clone());
            let (case, what) = (written.case(), data_type.clone());
            run(&case, move || async move {
                let theirs = reference::run_tables(&case, None, tables).await;
                let environment = Environment::unlimited(3).unwrap();
                for way in one_way_of_each_kind() {
                    let outcome = written.answer(way, &environment, &expected).await;
                    // Arrow's kernels cannot gather everything; ours do without them.
                    if let Ok(theirs) = &theirs {
                        assert_eq!(outcome.schema, theirs.schema, "{what}");
                    }
                }
            });
        }
    }
}

fn payload_is_logically_null(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::RunEndEncoded(_, _) | DataType::Dictionary(_, _)
    )
}

/// velox#13242: maps among the payload of tiny inputs.
#[test]
fn maps_are_carried_by_tiny_inputs() {
    for rows in 1..=4 {
        let maps = PayloadKind::Map.array(0..rows).unwrap();
        let side = carrying(maps, &[], true);
        for join_type in [Inner, Full, LeftSemi] {
            let written = Written::new(join_type, &side, &side);
            assert_eq!(written.oracle().len(), usize::from(rows));
            written.is_answered_in(one_way_of_each_kind(), &written.oracle());
        }
    }
}

/// Every type as a key again, and every type as a payload, at hashes that all collide.
#[test]
fn equal_hashes_are_not_equal_keys() {
    for (turn, key) in KeyKind::ALL.into_iter().enumerate() {
        for mask in [0, 0b1_u64 << 40 | 1] {
            let join_type = JOIN_TYPES[(turn + usize::from(mask > 0)) % JOIN_TYPES.len()];
            let case = Case {
                key,
                filter: FilterKind::ALL[turn % 4],
                null_equality: if turn % 2 == 0 {
                    NullEquality::NullEqualsNothing
                } else {
                    NullEquality::NullEqualsNull
                },
                pressure: Pressure::FORCED[turn % Pressure::FORCED.len()],
                batch_size: 7,
                ..Case::new(join_type)
            };
            let expected = case.expected().unwrap();
            run(&case, move || async move {
                let config = GraceHashJoinConfig::builder()
                    .with_fan_out(4)
                    .with_spill(case.pressure.policy())
                    .build()
                    .unwrap()
                    .with_hash_mask(mask);
                let setting: Setting = case.setting_with(|join| join.with_config(config)).unwrap();
                let environment = case.environment().unwrap();
                let checked = setting.check(&environment, &expected, Spills::May).await;
                checked.unwrap_or_else(|why| panic!("{case}, mask {mask}: {why}"));
            });
        }
    }
}
