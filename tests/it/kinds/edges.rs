//! Types at their edges: values of no size, the least and the largest ones, ranges at the limit of a
//! table by key, texts around the length that a view holds itself, batches without rows.

use std::sync::Arc;

use arrow::array::types::ArrowPrimitiveType;
use arrow::array::{
    ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Int32Array, Int64Array,
    IntervalDayTimeArray, IntervalMonthDayNanoArray, PrimitiveArray, RecordBatch, StringArray,
    StructArray, new_empty_array,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Date32Type, Date64Type, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type,
    DurationNanosecondType, Field, Int8Type, Int16Type, Int32Type, Int64Type, IntervalDayTime,
    IntervalMonthDayNano, Time32SecondType, Time64NanosecondType, TimestampMicrosecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion_common::JoinType::{Full, Inner, LeftAnti, LeftMark, Right, RightSemi};
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{Environment, PayloadKind, Rows, Table};

use super::types::{carrying, join_of, key};
use super::{Written, numbers, one_way_of_each_kind};
use crate::{reference, run};

/// The first, the third and the fourth value of four are there.
fn valid() -> NullBuffer {
    NullBuffer::from(vec![true, false, true, true])
}

/// Four values of no size, of which the second is NULL.
fn values_of_no_size() -> Vec<ArrayRef> {
    let texts: ArrayRef = Arc::new(StringArray::from(vec![Some(""), None, Some(""), Some("")]));
    let to = |data_type: DataType| cast(&texts, &data_type).unwrap();
    vec![
        Arc::new(StructArray::new_empty_fields(4, Some(valid()))),
        to(DataType::LargeUtf8),
        to(DataType::Utf8View),
        to(DataType::Binary),
        to(DataType::BinaryView),
        to(DataType::Dictionary(
            Box::new(DataType::Int8),
            Box::new(DataType::Utf8),
        )),
        texts,
    ]
}

/// Four values of types of no size: arrow's `take` loses their rows.
fn values_of_types_of_no_size() -> Vec<ArrayRef> {
    let list_of = |items: DataType| {
        let item = Arc::new(Field::new("item", items.clone(), true));
        let items = new_empty_array(&items);
        FixedSizeListArray::try_new_with_length(item, 0, items, Some(valid()), 4).unwrap()
    };
    let nothing: Buffer = Vec::<u8>::new().into();
    vec![
        Arc::new(FixedSizeBinaryArray::new(0, nothing, Some(valid()))),
        Arc::new(list_of(DataType::Int64)),
        Arc::new(list_of(DataType::Utf8)),
    ]
}

/// Whether `HashJoinExec` gives an answer, and which it is then.
fn theirs(written: &Written) -> Option<Rows> {
    let (case, tables) = (
        written.case(),
        (written.build.clone(), written.probe.clone()),
    );
    run(&case, move || async move {
        let theirs = reference::run_tables(&case, None, tables).await;
        theirs.ok().map(|theirs| theirs.rows)
    })
}

#[test]
fn values_of_no_size_are_one_key_where_they_are_keys() {
    let mut joined = 0;
    for array in values_of_no_size() {
        let data_type = array.data_type().clone();
        let side = key(array);
        let written = Written::new(Inner, &side, &side);
        assert_eq!(written.oracle().len(), 9, "{data_type}");
        if theirs(&written).is_none() {
            assert!(join_of(&side, &side).is_err(), "{data_type}");
            continue;
        }
        for (join_type, rows) in [(Inner, 9), (LeftAnti, 1), (RightSemi, 3), (Full, 11)] {
            Written::new(join_type, &side, &side).gives_rows(rows);
        }
        Written::new(Inner, &side, &side)
            .nulls_are_equal()
            .gives_rows(10);
        joined += 1;
    }
    assert!(joined > 6, "{joined}");
}

#[test]
fn values_of_no_size_are_carried() {
    for payload in values_of_no_size() {
        let build = carrying(payload, &[], true);
        let probe = numbers([0, 1, 2, 2, 3, 7]);
        for (join_type, rows) in [(Inner, 5), (Right, 6), (Full, 6), (LeftMark, 4)] {
            let written = Written::new(join_type, &build, &probe);
            written.gives_rows(rows);
            // Streamed, they are the other side's.
            let (rows, turned) = (build.rows() + 1, Written::new(Full, &probe, &build));
            assert_eq!(turned.oracle().len(), rows + 1);
            turned.is_answered_in(one_way_of_each_kind(), &turned.oracle());
        }
    }
}

/// `HashJoinExec` gives no rows of these, and no error either.
#[test]
fn values_of_types_of_no_size_are_an_error_if_not_the_answer() {
    let keys = values_of_types_of_no_size().into_iter().map(key);
    let carried = values_of_types_of_no_size().into_iter();
    for side in keys.chain(carried.map(|payload| carrying(payload, &[], true))) {
        for join_type in [Inner, Full, LeftAnti, RightSemi] {
            let written = Written::new(join_type, &side, &side);
            if join_of(&side, &side).is_err() {
                continue;
            }
            let expected = written.oracle();
            run(&written.case(), move || async move {
                for way in one_way_of_each_kind() {
                    let around = Environment::unlimited(way.batch_size).unwrap();
                    let setting = written.setting(way.config());
                    let stream = setting.start(&around);
                    let survived = Setting::survives(stream, &around, &expected).await;
                    survived.unwrap_or_else(|why| panic!("{join_type:?}, {way:?}: {why}"));
                }
            });
        }
    }
}

/// Keys next to each other at both ends of a type, where the distance between two of them wraps.
fn ends<T: ArrowPrimitiveType>(least: [T::Native; 3], largest: [T::Native; 3]) {
    let side = |keys: &[T::Native]| {
        let keys = keys.iter().map(|key| Some(*key));
        key(Arc::new(PrimitiveArray::<T>::from_iter(keys)))
    };
    let ([low, second, third], [high, last_but_one, last_but_two]) = (least, largest);
    let all = side(&[low, second, high, last_but_one]);
    let join = |build: &Table, probe: &Table, rows| {
        let written = Written::new(Inner, build, probe);
        assert_eq!(written.oracle().len(), rows, "{}", T::DATA_TYPE);
        written.is_answered_in(one_way_of_each_kind(), &written.oracle());
    };
    join(&all, &all, 4);
    join(&all, &side(&[third, last_but_two, high]), 1);
    // Both of these are close together: addressed by the keys themselves.
    let (lows, highs) = (side(&[low, second]), side(&[high, last_but_one]));
    join(&lows, &side(&[high, last_but_one, last_but_two, second]), 1);
    join(&highs, &side(&[low, second, third, high]), 1);
    join(&lows, &highs, 0);
}

#[test]
fn the_least_and_the_largest_values_of_a_type_are_keys_like_others() {
    macro_rules! ends {
        ($($t:ty),*) => {$({
            let (low, high) = (
                <$t as ArrowPrimitiveType>::Native::MIN,
                <$t as ArrowPrimitiveType>::Native::MAX,
            );
            ends::<$t>([low, low + 1, low + 2], [high, high - 1, high - 2]);
        })*};
    }
    ends!(Int8Type, Int16Type, Int32Type, Int64Type);
    ends!(UInt8Type, UInt16Type, UInt32Type, UInt64Type);
    ends!(
        Date32Type,
        Date64Type,
        Time32SecondType,
        Time64NanosecondType
    );
    ends!(TimestampMicrosecondType, DurationNanosecondType);
    ends!(Decimal32Type, Decimal64Type, Decimal128Type);
    let one = arrow::datatypes::i256::ONE;
    let (low, high) = (arrow::datatypes::i256::MIN, arrow::datatypes::i256::MAX);
    ends::<Decimal256Type>(
        [low, low + one, low + one + one],
        [high, high - one, high - one - one],
    );
}

/// Below, at and above the number of slots that is always few enough, and four for each row.
#[test]
fn keys_around_the_widest_range_of_a_table_by_key_match_as_keys_do() {
    for (rows, limit) in [(2, 1024), (300, 1200)] {
        for span in [limit - 2, limit - 1, limit, limit + 1] {
            // So many rows, of which the last two are the ends of the range.
            let inner = (0..rows - 2).map(|row| 5 + row);
            let build = numbers(inner.chain([0, span]));
            let probe = numbers([-1, 0, 1, 4, span - 1, span, span + 1, span + 1024, i32::MIN]);
            Written::new(Inner, &build, &probe).gives(&["0,0", &format!("{span},{span}")]);
            let build = numbers((0..rows).map(|row| row - 7).chain([span - 7]));
            let probe = numbers([-8, -7, span - 7, span - 6]);
            Written::new(LeftAnti, &build, &probe)
                .gives_rows(usize::try_from(rows).unwrap() + 1 - 2);
        }
    }
}

/// Texts of these lengths that begin alike, and end in this letter.
fn texts(last: char) -> StringArray {
    let lengths = [1, 2, 4, 5, 8, 11, 12, 13, 14, 16, 17, 100, 5000];
    let text = |length: usize| format!("{}{last}", "x".repeat(length - 1));
    StringArray::from_iter_values(lengths.map(text))
}

#[test]
fn texts_around_the_length_that_a_view_holds_itself_are_told_apart() {
    let (ours, others) = (texts('a'), texts('b'));
    let dictionary = |key| DataType::Dictionary(Box::new(key), Box::new(DataType::Utf8View));
    for data_type in [
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Utf8View,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::BinaryView,
        dictionary(DataType::Int8),
    ] {
        let side = |texts: &StringArray| key(cast(texts, &data_type).unwrap());
        let (build, probe) = (side(&ours), side(&others));
        Written::new(Inner, &build, &build).gives_rows(13);
        Written::new(Inner, &build, &probe).gives_rows(0);
        Written::new(Full, &build, &probe).gives_rows(26);
    }
}

#[test]
fn an_interval_is_its_parts_and_not_their_sum() {
    let day = 86_400_000;
    let nanoseconds = i64::from(day) * 1_000_000;
    let of_three = IntervalMonthDayNanoArray::from(vec![
        IntervalMonthDayNano::new(1, 0, 0),
        IntervalMonthDayNano::new(0, 30, 0),
        IntervalMonthDayNano::new(0, 29, nanoseconds),
        IntervalMonthDayNano::new(0, 0, 30 * nanoseconds),
        IntervalMonthDayNano::new(2, -30, 0),
    ]);
    let of_two = IntervalDayTimeArray::from(vec![
        IntervalDayTime::new(1, 0),
        IntervalDayTime::new(0, day),
        IntervalDayTime::new(2, -day),
    ]);
    for (side, rows) in [(key(Arc::new(of_three)), 5), (key(Arc::new(of_two)), 3)] {
        Written::new(Inner, &side, &side).gives_rows(rows);
        Written::new(RightSemi, &side, &side).gives_rows(rows);
    }
}

#[test]
fn batches_without_rows_are_carried_for_every_type() {
    for kind in PayloadKind::all() {
        let mut side = carrying(kind.array(0..5).unwrap(), &[], true);
        let keys: ArrayRef = Arc::new(Int32Array::from(Vec::<i32>::new()));
        let made = vec![keys, kind.array(0..0).unwrap()];
        let made = RecordBatch::try_new(Arc::clone(&side.schema), made).unwrap();
        let cut = side.batches[0].slice(3, 0);
        let empty = RecordBatch::new_empty(Arc::clone(&side.schema));
        let full = side.batches.remove(0);
        side.batches = vec![made.clone(), full, cut, made, empty];
        let mut none = side.clone();
        none.batches.retain(|batch| batch.num_rows() == 0);
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let twos: ArrayRef = Arc::new(Int32Array::from(vec![2, 9]));
        let few = super::table(1, vec![("k", twos), ("id", ids)]);
        for (build, probe, rows) in [(&side, &few, 6), (&few, &side, 6), (&none, &few, 2)] {
            let written = Written::new(Full, build, probe);
            let expected = written.oracle();
            assert_eq!(expected.len(), rows, "{kind:?}");
            let ways = one_way_of_each_kind();
            let case = written.case();
            run(&case, move || async move {
                for way in ways {
                    let around = Environment::unlimited(way.batch_size);
                    written.answer(way, &around.unwrap(), &expected).await;
                }
            });
        }
    }
}
