//! Payload columns of each Arrow type: what is carried through memory and disk, and never compared
//! by the join.
//!
//! Invariant: the value depends on the row's number alone; every fifth one is NULL, and NULLs
//! inside of nested values are not the same rows' as NULLs of the values themselves.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, Decimal32Array, Decimal64Array, DictionaryArray, FixedSizeListArray,
    Float32Array, Int8Array, Int32Array, Int32RunArray, Int64Array, IntervalDayTimeArray,
    IntervalYearMonthArray, LargeListArray, ListArray, ListViewArray, MapArray, NullArray,
    StringArray, StructArray, Time32MillisecondArray, UnionArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, Fields, Int8Type, Int64Type, IntervalDayTime, UnionFields,
};
use datafusion_common::Result;

use super::keys::KeyKind;

/// What a payload column is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadKind {
    /// Of a type that can be a key too.
    Key(KeyKind),
    /// NULLs of no type.
    Null,
    /// Half-precision floats.
    Float16,
    /// 32-bit decimals.
    Decimal32,
    /// 64-bit decimals.
    Decimal64,
    /// Times of the day.
    Time32,
    /// Years and months.
    IntervalYearMonth,
    /// Days and milliseconds.
    IntervalDayTime,
    /// Lists with 64-bit offsets.
    LargeList,
    /// Lists of two.
    FixedSizeList,
    /// Lists as views.
    ListView,
    /// Lists of structs.
    ListOfStructs,
    /// A struct of lists, in a struct.
    NestedStruct,
    /// Maps from words to numbers.
    Map,
    /// Runs of equal values.
    RunEndEncoded,
    /// A dictionary with keys of one byte.
    DictionaryInt8,
    /// A dictionary with a NULL among its values.
    DictionaryOfNull,
    /// Numbers or words, both children as long as the union.
    SparseUnion,
    /// Numbers or words, one after the other in their children.
    DenseUnion,
}

impl PayloadKind {
    /// All that cannot be keys in this library; [`PayloadKind::Key`] holds the others.
    pub const OTHERS: [Self; 18] = [
        Self::Null,
        Self::Float16,
        Self::Decimal32,
        Self::Decimal64,
        Self::Time32,
        Self::IntervalYearMonth,
        Self::IntervalDayTime,
        Self::LargeList,
        Self::FixedSizeList,
        Self::ListView,
        Self::ListOfStructs,
        Self::NestedStruct,
        Self::Map,
        Self::RunEndEncoded,
        Self::DictionaryInt8,
        Self::DictionaryOfNull,
        Self::SparseUnion,
        Self::DenseUnion,
    ];

    /// All of them.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let keys = KeyKind::ALL.into_iter().map(Self::Key);
        keys.chain(Self::OTHERS).collect()
    }

    /// The values of these rows.
    ///
    /// # Errors
    /// Only if arrow refuses the array.
    pub fn array(self, rows: std::ops::Range<u16>) -> Result<ArrayRef> {
        let codes: Vec<_> = rows.map(|row| (row % 5 != 4).then_some(row)).collect();
        Ok(match self {
            Self::Key(key) => Arc::clone(&key.arrays(&codes)?[0]),
            Self::Null => Arc::new(NullArray::new(codes.len())),
            Self::Float16 => {
                let floats = Float32Array::from_iter(codes.iter().map(|c| c.map(f32::from)));
                cast(&floats, &DataType::Float16)?
            }
            Self::Decimal32 => {
                Arc::new(Decimal32Array::from_iter(numbers(&codes)).with_precision_and_scale(8, 2)?)
            }
            Self::Decimal64 => {
                Arc::new(Decimal64Array::from_iter(longs(&codes)).with_precision_and_scale(16, 2)?)
            }
            Self::Time32 => Arc::new(Time32MillisecondArray::from_iter(numbers(&codes))),
            Self::IntervalYearMonth => Arc::new(IntervalYearMonthArray::from_iter(numbers(&codes))),
            Self::IntervalDayTime => Arc::new(IntervalDayTimeArray::from_iter(
                numbers(&codes).map(|n| n.map(|n| IntervalDayTime::new(n / 3, n))),
            )),
            Self::RunEndEncoded => runs(&codes)?,
            Self::DictionaryInt8 | Self::DictionaryOfNull => self.dictionary(&codes)?,
            Self::SparseUnion | Self::DenseUnion => self.union(&codes)?,
            _ => self.nested(&codes)?,
        })
    }

    fn union(self, codes: &[Option<u16>]) -> Result<ArrayRef> {
        let fields = UnionFields::try_new(
            vec![0, 1],
            vec![
                Field::new("number", DataType::Int64, true),
                Field::new("word", DataType::Utf8, true),
            ],
        )?;
        let is_word = |code: &Option<u16>| code.is_some_and(|code| code % 3 == 1);
        let ids = codes.iter().map(|code| i8::from(is_word(code)));
        let ids: ScalarBuffer<i8> = ids.collect();
        let number = |code: &Option<u16>| code.map(i64::from);
        let word = |code: &Option<u16>| code.map(|code| format!("word {code}"));
        let (offsets, numbers, words) = if self == Self::SparseUnion {
            let numbers: Int64Array = codes.iter().map(number).collect();
            let words: StringArray = codes.iter().map(word).collect();
            (None, numbers, words)
        } else {
            let (mut numbers, mut words) = (0, 0);
            let offsets = codes.iter().map(|code| {
                let next = if is_word(code) {
                    &mut words
                } else {
                    &mut numbers
                };
                *next += 1;
                *next - 1
            });
            let offsets: ScalarBuffer<i32> = offsets.collect();
            let numbers = codes.iter().filter(|code| !is_word(code)).map(number);
            let words = codes.iter().filter(|code| is_word(code)).map(word);
            (Some(offsets), numbers.collect(), words.collect())
        };
        let children: Vec<ArrayRef> = vec![Arc::new(numbers), Arc::new(words)];
        Ok(Arc::new(UnionArray::try_new(
            fields, ids, offsets, children,
        )?))
    }

    fn dictionary(self, codes: &[Option<u16>]) -> Result<ArrayRef> {
        let keys = codes
            .iter()
            .map(|c| c.map(|c| i8::try_from(c % 3).unwrap_or_default()));
        let last = (self == Self::DictionaryInt8).then_some("three");
        let values = StringArray::from(vec![Some("one"), Some("two"), last]);
        let array =
            DictionaryArray::<Int8Type>::try_new(Int8Array::from_iter(keys), Arc::new(values));
        Ok(Arc::new(array?))
    }

    fn nested(self, codes: &[Option<u16>]) -> Result<ArrayRef> {
        let list = |c: &Option<u16>| {
            c.map(|c| {
                let items = [Some(i64::from(c)), None, Some(-1)];
                items
                    .into_iter()
                    .take(usize::from(c % 4))
                    .collect::<Vec<_>>()
            })
        };
        let lists = codes.iter().map(list);
        Ok(match self {
            Self::LargeList => Arc::new(LargeListArray::from_iter_primitive::<Int64Type, _, _>(
                lists,
            )),
            Self::ListView => {
                let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
                Arc::new(ListViewArray::from(lists))
            }
            Self::FixedSizeList => {
                let pairs = codes
                    .iter()
                    .map(|c| c.map(|c| vec![Some(i64::from(c)), None]));
                Arc::new(FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>(
                    pairs, 2,
                ))
            }
            Self::ListOfStructs => {
                let structs = KeyKind::Struct.arrays(codes)?.remove(0);
                let field = Arc::new(Field::new("item", structs.data_type().clone(), true));
                let lengths = OffsetBuffer::from_lengths(codes.iter().map(|_| 1));
                Arc::new(ListArray::try_new(
                    field,
                    lengths,
                    structs,
                    Some(validity(codes, 3)),
                )?)
            }
            Self::NestedStruct => {
                let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
                let structs = KeyKind::Struct.arrays(codes)?.remove(0);
                let fields = Fields::from(vec![
                    Field::new("numbers", lists.data_type().clone(), true),
                    Field::new("pair", structs.data_type().clone(), true),
                ]);
                let columns: Vec<ArrayRef> = vec![Arc::new(lists), structs];
                Arc::new(StructArray::try_new(
                    fields,
                    columns,
                    Some(validity(codes, 7)),
                )?)
            }
            _ => maps(codes)?,
        })
    }
}

fn numbers(codes: &[Option<u16>]) -> impl Iterator<Item = Option<i32>> {
    codes.iter().map(|c| c.map(i32::from))
}

fn longs(codes: &[Option<u16>]) -> impl Iterator<Item = Option<i64>> {
    codes.iter().map(|c| c.map(i64::from))
}

/// Valid but for every so many-th row.
fn validity(codes: &[Option<u16>], every: usize) -> NullBuffer {
    let valid: Vec<_> = (0..codes.len())
        .map(|row| row % every != every - 1)
        .collect();
    valid.into()
}

/// One entry per row, whose value is sometimes NULL; every seventh map is.
fn maps(codes: &[Option<u16>]) -> Result<ArrayRef> {
    let keys = StringArray::from_iter_values((0..codes.len()).map(|row| format!("key {row}")));
    let values = Int64Array::from_iter(longs(codes));
    let fields = Fields::from(vec![
        Field::new("keys", DataType::Utf8, false),
        Field::new("values", DataType::Int64, true),
    ]);
    let entries = Field::new("entries", DataType::Struct(fields.clone()), false);
    let columns: Vec<ArrayRef> = vec![Arc::new(keys), Arc::new(values)];
    let structs = StructArray::try_new(fields, columns, None)?;
    let offsets = OffsetBuffer::from_lengths(codes.iter().map(|_| 1));
    let valid = Some(validity(codes, 7));
    Ok(Arc::new(MapArray::try_new(
        Arc::new(entries),
        offsets,
        structs,
        valid,
        false,
    )?))
}

/// Runs of two.
fn runs(codes: &[Option<u16>]) -> Result<ArrayRef> {
    let rows = i32::try_from(codes.len()).unwrap_or(i32::MAX);
    let ends: Vec<i32> = (0..rows)
        .map(|row| row + 1)
        .filter(|end| end % 2 == 0 || *end == rows)
        .collect();
    let values = StringArray::from_iter(codes.iter().step_by(2).map(|c| c.map(|c| c.to_string())));
    let ends = Int32Array::new(ScalarBuffer::from(ends), None);
    Ok(Arc::new(Int32RunArray::try_new(&ends, &values)?))
}
