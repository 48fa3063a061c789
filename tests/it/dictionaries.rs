//! Holds the promise that dictionaries may be as many as there are batches: together they may have
//! more words than their keys can number, anywhere in a column, and still each row comes out with its
//! own; and no more words are written than rows have.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, DictionaryArray, FixedSizeBinaryArray,
    FixedSizeListArray, Int16RunArray, Int32Array, Int32RunArray, Int64Array, ListArray,
    ListViewArray, MapArray, PrimitiveArray, RecordBatch, StringArray, StringViewArray,
    StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{
    ArrowDictionaryKeyType, ArrowNativeType, DataType, Field, Fields, Int8Type, Int16Type,
    Int32Type, UInt8Type,
};
use datafusion_common::{JoinSide, JoinType, NullEquality, Result};
use grace_hash_join::testing::run::Setting;
use grace_hash_join::testing::{
    Case, Environment, JOIN_TYPES, Pressure, Question, Spills, Table, collect,
};
use grace_hash_join::{GraceHashJoin, GraceHashJoinConfig, ResidualFilter, SpillPolicy};

use crate::run;

/// Where in a column the dictionary is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Itself,
    Struct,
    List,
    ListView,
    FixedSizeList,
    Map,
    Runs,
}

const PLACES: [Place; 7] = [
    Place::Itself,
    Place::Struct,
    Place::List,
    Place::ListView,
    Place::FixedSizeList,
    Place::Map,
    Place::Runs,
];

/// What words are. Those that arrow does not compare are never merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Words {
    Texts,
    Views,
    Bytes,
}

/// What number a word has in its dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    Int8,
    UInt8,
    Int32,
}

/// A column of dictionaries, one a batch.
#[derive(Clone, Copy, Debug)]
struct Column {
    place: Place,
    words: Words,
    keys: Keys,
    /// Words of a batch, and rows.
    per_batch: usize,
    batches: usize,
    /// Whether all batches have the same words, though not the same dictionary.
    is_repeated: bool,
}

const SMALL: Column = Column {
    place: Place::Itself,
    words: Words::Texts,
    keys: Keys::Int8,
    per_batch: 100,
    batches: 3,
    is_repeated: false,
};

impl Column {
    /// The words of a batch's rows, in another order than the rows; some rows have none.
    fn dictionary(self, batch: usize) -> Result<ArrayRef> {
        let first = if self.is_repeated {
            0
        } else {
            batch * self.per_batch
        };
        let codes = first..first + self.per_batch;
        let words: ArrayRef = match self.words {
            Words::Texts => Arc::new(StringArray::from_iter_values(codes.map(text))),
            Words::Views => Arc::new(StringViewArray::from_iter_values(codes.map(text))),
            Words::Bytes => {
                let bytes = codes.map(|code| (code as u64).to_le_bytes());
                Arc::new(FixedSizeBinaryArray::try_from_iter(bytes)?)
            }
        };
        match self.keys {
            Keys::Int8 => self.numbered::<Int8Type>(words),
            Keys::UInt8 => self.numbered::<UInt8Type>(words),
            Keys::Int32 => self.numbered::<Int32Type>(words),
        }
    }

    fn numbered<K: ArrowDictionaryKeyType>(self, words: ArrayRef) -> Result<ArrayRef> {
        let number = |row: usize| {
            let number = K::Native::from_usize(self.per_batch - 1 - row);
            number.filter(|_| row % 7 != 3)
        };
        let keys: PrimitiveArray<K> = (0..self.per_batch).map(number).collect();
        Ok(Arc::new(DictionaryArray::try_new(keys, words)?))
    }

    fn array(self, batch: usize) -> Result<ArrayRef> {
        let words = self.dictionary(batch)?;
        let rows = words.len();
        let field = Arc::new(Field::new("word", words.data_type().clone(), true));
        Ok(match self.place {
            Place::Itself => words,
            Place::Struct => Arc::new(StructArray::try_new(vec![field].into(), vec![words], None)?),
            Place::List => {
                let offsets = OffsetBuffer::from_lengths(vec![1; rows]);
                Arc::new(ListArray::try_new(field, offsets, words, None)?)
            }
            Place::ListView => {
                let starts = (0..).take(rows).collect::<Vec<i32>>();
                let sizes = vec![1; rows];
                Arc::new(ListViewArray::try_new(
                    field,
                    starts.into(),
                    sizes.into(),
                    words,
                    None,
                )?)
            }
            Place::FixedSizeList => Arc::new(FixedSizeListArray::try_new(field, 1, words, None)?),
            Place::Map => {
                let keys = Field::new("keys", DataType::Int32, false);
                let fields = Fields::from(vec![Arc::new(keys), field]);
                let keys = Arc::new(Int32Array::from(vec![1; rows]));
                let entries = StructArray::try_new(fields.clone(), vec![keys, words], None)?;
                let field = Arc::new(Field::new("entries", DataType::Struct(fields), false));
                let offsets = OffsetBuffer::from_lengths(vec![1; rows]);
                Arc::new(MapArray::try_new(field, offsets, entries, None, false)?)
            }
            Place::Runs => {
                let ends = (1..).take(rows).collect::<Int32Array>();
                Arc::new(Int32RunArray::try_new(&ends, &words)?)
            }
        })
    }

    /// An input with a key that each row has alone, and the column.
    fn table(self) -> Result<Table> {
        let mut batches = Vec::new();
        for batch in 0..self.batches {
            let first = i64::try_from(batch * self.per_batch).unwrap();
            let rows = i64::try_from(self.per_batch).unwrap();
            // Rows of one batch find theirs in all others.
            let modulus = i64::try_from(self.batches * self.per_batch).unwrap();
            let keys = (first..first + rows).map(|row| row * 37 % modulus);
            let columns: [(&str, ArrayRef); 2] = [
                ("key", Arc::new(Int64Array::from_iter_values(keys))),
                ("words", self.array(batch)?),
            ];
            batches.push(RecordBatch::try_from_iter_with_nullable(
                columns.map(|(name, column)| (name, column, true)),
            )?);
        }
        let schema = batches[0].schema();
        Ok(Table {
            schema,
            batches,
            v: 1,
        })
    }
}

fn text(code: usize) -> String {
    format!("a word that is not inlined, {code}")
}

/// A table whose keys are in another order.
fn turned(mut table: Table) -> Table {
    table.batches.reverse();
    table
}

#[derive(Debug)]
struct SomeWords;

/// Accepts pairs by their words.
impl ResidualFilter for SomeWords {
    fn columns(&self) -> &[(JoinSide, usize)] {
        &[(JoinSide::Left, 1), (JoinSide::Right, 1)]
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let texts = |index| cast(batch.column(index), &DataType::Utf8);
        let (build, probe) = (texts(0)?, texts(1)?);
        let rows = build
            .as_string::<i32>()
            .iter()
            .zip(probe.as_string::<i32>());
        let ends = |text: Option<&str>| text.is_some_and(|text| !text.ends_with('3'));
        Ok(rows.map(|(b, p)| Some(ends(b) && p.is_some())).collect())
    }
}

fn setting(case: &Case, [build, probe]: [Table; 2], has_filter: bool) -> Result<Setting> {
    let config = GraceHashJoinConfig::builder()
        .with_fan_out(case.pressure.fan_out())
        .with_spill(match case.pressure {
            // Few rows at a time would hide what many do.
            Pressure::Chunked => SpillPolicy::Chunks(230),
            pressure => pressure.policy(),
        });
    let filter = has_filter.then(|| Arc::new(SomeWords) as Arc<dyn ResidualFilter>);
    let join = GraceHashJoin::builder(Arc::clone(&build.schema), Arc::clone(&probe.schema))
        .with_on(vec![(0, 0)])
        .with_join_type(case.join_type)
        .with_filter(filter)
        .with_config(config.build()?)
        .build()?;
    Ok(Setting { join, build, probe })
}

/// The column on both sides, in memory and on disk, against the oracle.
fn carried(column: Column, join_type: JoinType, has_filter: bool) {
    let tables = move || [column.table().unwrap(), turned(column.table().unwrap())];
    let [build, probe] = tables();
    let question = Question {
        build_schema: &build.schema,
        probe_schema: &probe.schema,
        build: &build.batches,
        probe: &probe.batches,
        on: &[(0, 0)],
        join_type,
        null_equality: NullEquality::NullEqualsNothing,
        null_aware: false,
        filter: has_filter.then_some(&SomeWords as &dyn ResidualFilter),
        projection: None,
    };
    let expected = question.answer().unwrap();
    for pressure in Pressure::FORCED {
        let case = Case {
            pressure,
            batch_size: 8192,
            ..Case::new(join_type)
        };
        let expected = expected.clone();
        run(&case, move || async move {
            let setting = setting(&case, tables(), has_filter).unwrap();
            let around = Environment::unlimited(case.batch_size).unwrap();
            let spills = match pressure {
                Pressure::Fits => Spills::MustNot,
                _ => Spills::Must,
            };
            let checked = setting.check(&around, &expected, spills).await;
            checked.unwrap_or_else(|why| panic!("{column:?}: {why}"));
        });
    }
}

#[test]
fn words_of_all_batches_may_be_more_than_keys_can_number_anywhere_in_a_column() {
    for place in PLACES {
        for words in [Words::Texts, Words::Views, Words::Bytes] {
            let column = Column {
                place,
                words,
                ..SMALL
            };
            carried(column, JoinType::Full, false);
        }
    }
}

#[test]
fn keys_of_every_width_number_the_words_of_some_batches_or_of_all() {
    for keys in [Keys::Int8, Keys::UInt8, Keys::Int32] {
        for is_repeated in [false, true] {
            let column = Column {
                keys,
                is_repeated,
                ..SMALL
            };
            carried(column, JoinType::Inner, false);
        }
    }
}

#[test]
fn every_join_type_hands_out_the_words_of_many_dictionaries() {
    for join_type in JOIN_TYPES {
        carried(SMALL, join_type, false);
    }
}

#[test]
fn a_filter_sees_the_words_of_many_dictionaries() {
    for join_type in [
        JoinType::Inner,
        JoinType::Full,
        JoinType::LeftSemi,
        JoinType::RightAnti,
    ] {
        carried(SMALL, join_type, true);
    }
}

/// Runs number rows, and 16 bits end soon.
#[test]
fn rows_may_be_more_than_run_ends_can_number() {
    let runs = |batch: usize| -> Result<ArrayRef> {
        let ends: PrimitiveArray<Int16Type> = (1..=10_i16).map(|run| run * 1000).collect();
        let words = StringArray::from_iter_values((0..10).map(|run| text(batch * 10 + run)));
        Ok(Arc::new(Int16RunArray::try_new(&ends, &words)?))
    };
    let table = move || -> Result<Table> {
        let mut batches = Vec::new();
        for batch in 0..4 {
            let first = i64::try_from(batch).unwrap() * 10_000;
            let columns: [(&str, ArrayRef); 2] = [
                (
                    "key",
                    Arc::new(Int64Array::from_iter_values(first..first + 10_000)),
                ),
                ("words", runs(batch)?),
            ];
            batches.push(RecordBatch::try_from_iter_with_nullable(
                columns.map(|(name, column)| (name, column, true)),
            )?);
        }
        let schema = batches[0].schema();
        Ok(Table {
            schema,
            batches,
            v: 1,
        })
    };
    for pressure in [Pressure::Fits, Pressure::All] {
        let case = Case {
            pressure,
            batch_size: 8192,
            ..Case::new(JoinType::Inner)
        };
        run(&case, move || async move {
            let setting = setting(&case, [table().unwrap(), turned(table().unwrap())], false);
            let around = Environment::unlimited(case.batch_size).unwrap();
            let stream = setting.unwrap().start(&around).unwrap();
            let outcome = collect(stream).await.unwrap();
            outcome.end.unwrap();
            let mut rows = 0;
            for batch in &outcome.batches {
                let texts = |index| cast(batch.column(index), &DataType::Utf8).unwrap();
                let keys = batch
                    .column(0)
                    .as_primitive::<arrow::datatypes::Int64Type>();
                let (build, probe) = (texts(1), texts(3));
                for (row, key) in keys.values().iter().enumerate() {
                    let expected = text(usize::try_from(*key).unwrap() / 1000);
                    assert_eq!(build.as_string::<i32>().value(row), expected);
                    assert_eq!(probe.as_string::<i32>().value(row), expected);
                }
                rows += batch.num_rows();
            }
            assert_eq!(rows, 40_000);
        });
    }
}

/// The unmatched rows of one piece are more than the run ends of the other side's NULLs can number, on
/// either side, and with NULL keys, which come out another way.
#[test]
fn nulls_may_be_more_than_run_ends_can_number() {
    let long = |key: Option<i64>| {
        let keys: Int64Array = std::iter::repeat_n(key, 40_000).collect();
        let batch =
            RecordBatch::try_from_iter_with_nullable([("key", Arc::new(keys) as ArrayRef, true)]);
        let batch = batch.unwrap();
        Table {
            schema: batch.schema(),
            batches: vec![batch],
            v: 0,
        }
    };
    let runs = |is_listed: bool| {
        let ends = PrimitiveArray::<Int16Type>::from(vec![4]);
        let runs = Int16RunArray::try_new(&ends, &StringArray::from(vec!["a"])).unwrap();
        let field = Arc::new(Field::new("word", runs.data_type().clone(), true));
        let (rows, words): (_, ArrayRef) = match is_listed {
            false => (4, Arc::new(runs)),
            true => (
                1,
                Arc::new(FixedSizeListArray::new(field, 4, Arc::new(runs), None)),
            ),
        };
        let keys: ArrayRef = Arc::new(Int64Array::from(vec![1; rows]));
        let batch =
            RecordBatch::try_from_iter_with_nullable([("key", keys, true), ("words", words, true)]);
        let batch = batch.unwrap();
        Table {
            schema: batch.schema(),
            batches: vec![batch],
            v: 1,
        }
    };
    for (key, is_listed, is_build) in [
        (Some(7), false, true),
        (Some(7), false, false),
        (Some(7), true, true),
        (None, false, true),
        (None, true, false),
    ] {
        for pressure in [Pressure::Fits, Pressure::All] {
            let case = Case {
                pressure,
                batch_size: 65_536,
                ..Case::new(JoinType::Full)
            };
            run(&case, move || async move {
                let sides = match is_build {
                    true => [long(key), runs(is_listed)],
                    false => [runs(is_listed), long(key)],
                };
                let rows: usize = sides.iter().map(|side| side.batches[0].num_rows()).sum();
                let around = Environment::unlimited(case.batch_size).unwrap();
                let setting = setting(&case, sides, false).unwrap();
                let outcome = collect(setting.start(&around).unwrap()).await.unwrap();
                outcome.end.unwrap();
                let given: usize = outcome.batches.iter().map(RecordBatch::num_rows).sum();
                assert_eq!(given, rows, "{key:?} {is_listed} {is_build}");
            });
        }
    }
}

/// The pairs of one batch are more than run ends can number.
#[test]
fn pairs_may_be_more_than_run_ends_can_number() {
    let table = || {
        let ends = PrimitiveArray::<Int16Type>::from(vec![100, 200]);
        let runs = Int16RunArray::try_new(&ends, &StringArray::from(vec!["a", "b"])).unwrap();
        let columns: [(&str, ArrayRef); 2] = [
            ("key", Arc::new(Int64Array::from(vec![1; 200]))),
            ("words", Arc::new(runs)),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns.map(|(name, column)| (name, column, true)),
        );
        let batch = batch.unwrap();
        Table {
            schema: batch.schema(),
            batches: vec![batch],
            v: 1,
        }
    };
    let case = Case {
        batch_size: 100_000,
        ..Case::new(JoinType::Inner)
    };
    run(&case, move || async move {
        for has_filter in [false, true] {
            let setting = setting(&case, [table(), table()], has_filter).unwrap();
            let around = Environment::unlimited(case.batch_size).unwrap();
            let outcome = collect(setting.start(&around).unwrap()).await.unwrap();
            outcome.end.unwrap();
            let mut pairs = [0; 4];
            for batch in &outcome.batches {
                let texts = |index| cast(batch.column(index), &DataType::Utf8).unwrap();
                let (build, probe) = (texts(1), texts(3));
                let rows = build
                    .as_string::<i32>()
                    .iter()
                    .zip(probe.as_string::<i32>());
                for (build, probe) in rows {
                    let number = |text: Option<&str>| usize::from(text == Some("b"));
                    pairs[2 * number(build) + number(probe)] += 1;
                }
            }
            assert_eq!(pairs, [10_000; 4]);
        }
    });
}

/// Forty batches share a dictionary of 200 KiB, which is there once.
#[test]
fn words_that_all_batches_share_are_counted_once() {
    let words = StringArray::from_iter_values((0..2000).map(|code| format!("{code:0100}")));
    let words: ArrayRef = Arc::new(words);
    let batch = |first: i32| {
        let numbers = first..first + 100;
        let keys = Int32Array::from_iter_values(numbers.clone());
        let numbers: Int32Array = numbers.map(|row| Some(row * 7 % 2000)).collect();
        let dictionary = DictionaryArray::try_new(numbers, Arc::clone(&words));
        let columns: [(&str, ArrayRef); 2] = [
            ("key", Arc::new(keys)),
            ("words", Arc::new(dictionary.unwrap())),
        ];
        let columns = columns.map(|(name, column)| (name, column, true));
        RecordBatch::try_from_iter_with_nullable(columns).unwrap()
    };
    let batches: Vec<_> = (0..40).map(|number| batch(number * 100)).collect();
    let build = Table {
        schema: batches[0].schema(),
        batches: batches.clone(),
        v: 1,
    };
    let probe = Table {
        batches: batches[..3].to_vec(),
        ..build.clone()
    };
    let case = Case::new(JoinType::Inner);
    run(&case, move || async move {
        let setting = setting(&case, [build, probe], false).unwrap();
        for (bytes, spills) in [(2 << 20, Spills::MustNot), (640 << 10, Spills::Must)] {
            let around = Environment::greedy(bytes, 8192).unwrap();
            let outcome = collect(setting.start(&around).unwrap()).await.unwrap();
            outcome.end.as_ref().unwrap();
            assert_eq!(outcome.stats.output_rows, 300);
            outcome
                .spilled_as(spills)
                .unwrap_or_else(|why| panic!("{bytes} bytes: {why}"));
        }
    });
}

/// A word that few rows have is written to their buckets alone.
#[test]
fn no_more_words_are_written_than_rows_have() {
    for place in [Place::Itself, Place::Struct, Place::List] {
        let column = Column {
            place,
            keys: Keys::Int32,
            per_batch: 4000,
            batches: 2,
            ..SMALL
        };
        let case = Case {
            pressure: Pressure::All,
            ..Case::new(JoinType::Inner)
        };
        run(&case, move || async move {
            let tables = [column.table().unwrap(), turned(column.table().unwrap())];
            let mut setting = setting(&case, tables, false).unwrap();
            let config = GraceHashJoinConfig::builder().with_spill(SpillPolicy::All);
            let join = GraceHashJoin::builder(
                Arc::clone(&setting.build.schema),
                Arc::clone(&setting.probe.schema),
            );
            let join = join
                .with_on(vec![(0, 0)])
                .with_config(config.build().unwrap());
            setting.join = join.build().unwrap();
            let around = Environment::unlimited(8192).unwrap();
            let stream = setting.start(&around).unwrap();
            let outcome = collect(stream).await.unwrap();
            outcome.end.unwrap();
            assert_eq!(outcome.stats.output_rows, 8000);
            let input: usize = 2 * (0..8000).map(|code| text(code).len() + 16).sum::<usize>();
            let written = usize::try_from(outcome.stats.spilled_bytes).unwrap();
            assert!(
                written <= input * 5 / 4,
                "{place:?}: {written} bytes were written for {input} bytes of rows"
            );
        });
    }
}
