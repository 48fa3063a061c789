//! Key columns of each type, made from small codes: the same code is the same key, always.
//!
//! Job: hit what is special about a type (a float's two zeros and NaNs, a dictionary that differs
//! from batch to batch, strings that fit a view and strings that don't). Invariant: a `None` code
//! is a NULL in the first key column.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Date32Array, Date64Array,
    Decimal128Array, Decimal256Array, DictionaryArray, DurationNanosecondArray,
    FixedSizeBinaryArray, Float32Array, Float64Array, Int8Array, Int16Array, Int32Array,
    Int64Array, IntervalMonthDayNanoArray, LargeBinaryArray, LargeStringArray, ListArray,
    StringArray, StringViewArray, StructArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    UInt8Array, UInt64Array,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields, Int32Type, Int64Type, IntervalMonthDayNano, i256};
use datafusion_common::Result;

/// What the join keys are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is named after its Arrow type")]
pub enum KeyKind {
    Int32,
    Int64,
    Utf8,
    Utf8View,
    /// Two columns, Int64 and Utf8, the second one sometimes NULL where the first is not.
    Pair,
    Decimal128,
    /// Dictionary(Int32, Utf8), another dictionary in every batch.
    Dictionary,
    /// Both zeros, NaNs of both signs and infinity are among the values.
    Float64,
    Boolean,
    Date32,
    Int8,
    Int16,
    UInt8,
    UInt64,
    Float32,
    LargeUtf8,
    Binary,
    LargeBinary,
    BinaryView,
    FixedSizeBinary,
    Decimal256,
    Date64,
    Time64,
    Timestamp,
    TimestampZone,
    Duration,
    Interval,
    /// A struct of Int64 and Utf8 with NULLs inside.
    Struct,
    /// A list of Int64 with NULLs inside, and empty ones.
    List,
    /// Boolean, Float32, Int32 and Int8 columns.
    Four,
    /// Utf8 of 4 KiB: rows are wide even where nothing but their keys is kept.
    Wide,
}

impl KeyKind {
    /// All of them.
    pub const ALL: [Self; 31] = [
        Self::Int32,
        Self::Int64,
        Self::Utf8,
        Self::Utf8View,
        Self::Pair,
        Self::Decimal128,
        Self::Dictionary,
        Self::Float64,
        Self::Boolean,
        Self::Date32,
        Self::Int8,
        Self::Int16,
        Self::UInt8,
        Self::UInt64,
        Self::Float32,
        Self::LargeUtf8,
        Self::Binary,
        Self::LargeBinary,
        Self::BinaryView,
        Self::FixedSizeBinary,
        Self::Decimal256,
        Self::Date64,
        Self::Time64,
        Self::Timestamp,
        Self::TimestampZone,
        Self::Duration,
        Self::Interval,
        Self::Struct,
        Self::List,
        Self::Four,
        Self::Wide,
    ];

    /// Whether it is more than one column.
    #[must_use]
    pub fn is_several(self) -> bool {
        matches!(self, Self::Pair | Self::Four)
    }

    /// The key columns for these codes.
    ///
    /// # Errors
    /// Only if arrow refuses the arrays.
    pub fn arrays(self, codes: &[Option<u16>]) -> Result<Vec<ArrayRef>> {
        Ok(match self {
            Self::Pair => vec![
                Arc::new(Int64Array::from_iter(each(codes, |c| i64::from(c / 3)))),
                Arc::new(StringArray::from_iter(
                    codes.iter().map(|code| second(*code)),
                )),
            ],
            Self::Four => vec![
                Arc::new(BooleanArray::from_iter(each(codes, |c| c % 2 == 0))),
                Arc::new(Float32Array::from_iter(each(codes, |c| f32::from(c / 2)))),
                Arc::new(Int32Array::from_iter(
                    codes.iter().map(|c| c.map(i32::from)),
                )),
                Arc::new(Int8Array::from_iter(each(codes, |c| {
                    if c % 3 == 0 { 1 } else { -1 }
                }))),
            ],
            one_column => vec![one_column.array(codes)?],
        })
    }

    /// The types of the key columns.
    ///
    /// # Errors
    /// Only if arrow refuses the arrays.
    pub fn data_types(self) -> Result<Vec<DataType>> {
        let arrays = self.arrays(&[])?;
        Ok(arrays
            .iter()
            .map(|array| array.data_type().clone())
            .collect())
    }

    /// How many different keys there can be.
    #[must_use]
    pub fn distinct(self) -> u16 {
        match self {
            Self::Boolean => 2,
            Self::Int8 | Self::UInt8 => 120,
            _ => u16::MAX,
        }
    }

    fn array(self, codes: &[Option<u16>]) -> Result<ArrayRef> {
        Ok(match self {
            Self::Int8 => Arc::new(Int8Array::from_iter(each(codes, small))),
            Self::Int16 => Arc::new(Int16Array::from_iter(each(codes, |c| i16::from(small(c))))),
            Self::Int32 => Arc::new(Int32Array::from_iter(each(codes, |c| i32::from(c) - 2))),
            Self::Int64 => Arc::new(Int64Array::from_iter(each(codes, |c| i64::from(c) - 2))),
            Self::UInt8 => Arc::new(UInt8Array::from_iter(each(codes, |c| {
                small(c).unsigned_abs()
            }))),
            Self::UInt64 => Arc::new(UInt64Array::from_iter(each(codes, |c| {
                u64::MAX - u64::from(c)
            }))),
            Self::Float32 => Arc::new(Float32Array::from_iter(each(codes, float32))),
            Self::Float64 => Arc::new(Float64Array::from_iter(each(codes, float))),
            Self::Boolean => Arc::new(BooleanArray::from_iter(each(codes, |c| c % 2 == 0))),
            Self::Decimal128 => Arc::new(
                Decimal128Array::from_iter(each(codes, |c| i128::from(c) * 50))
                    .with_precision_and_scale(12, 2)?,
            ),
            Self::Decimal256 => Arc::new(
                Decimal256Array::from_iter(each(codes, |c| i256::from_i128(i128::from(c) << 90)))
                    .with_precision_and_scale(60, 4)?,
            ),
            Self::Struct => structs(codes),
            Self::List => lists(codes),
            Self::Date32
            | Self::Date64
            | Self::Time64
            | Self::Timestamp
            | Self::TimestampZone
            | Self::Duration
            | Self::Interval => self.temporal(codes),
            _ => self.bytes(codes)?,
        })
    }

    fn temporal(self, codes: &[Option<u16>]) -> ArrayRef {
        let micros = each(codes, |c| i64::from(c) * 86_400_000_001);
        match self {
            Self::Date32 => Arc::new(Date32Array::from_iter(each(codes, |c| i32::from(c) - 700))),
            Self::Date64 => Arc::new(Date64Array::from_iter(each(codes, |c| {
                i64::from(c) * 86_400_000
            }))),
            Self::Time64 => Arc::new(Time64MicrosecondArray::from_iter(each(codes, i64::from))),
            Self::Timestamp => Arc::new(TimestampMicrosecondArray::from_iter(micros)),
            Self::Duration => Arc::new(DurationNanosecondArray::from_iter(micros)),
            Self::Interval => Arc::new(IntervalMonthDayNanoArray::from_iter(each(codes, |c| {
                IntervalMonthDayNano::new(i32::from(c % 3), i32::from(c / 3), i64::from(c))
            }))),
            _ => Arc::new(TimestampMicrosecondArray::from_iter(micros).with_timezone("+01:00")),
        }
    }

    fn bytes(self, codes: &[Option<u16>]) -> Result<ArrayRef> {
        let text = each(codes, word);
        Ok(match self {
            Self::Utf8View => Arc::new(StringViewArray::from_iter(text)),
            Self::Wide => Arc::new(StringArray::from_iter(each(codes, |c| {
                format!("{c:04096}")
            }))),
            Self::LargeUtf8 => Arc::new(LargeStringArray::from_iter(text)),
            Self::Binary => Arc::new(BinaryArray::from_iter(text)),
            Self::LargeBinary => Arc::new(LargeBinaryArray::from_iter(text)),
            Self::BinaryView => Arc::new(BinaryViewArray::from_iter(text)),
            Self::FixedSizeBinary => {
                Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(
                    each(codes, u16::to_be_bytes),
                    2,
                )?)
            }
            Self::Dictionary => {
                let text: Vec<_> = text.collect();
                let values = text.iter().map(Option::as_deref);
                Arc::new(values.collect::<DictionaryArray<Int32Type>>())
            }
            _ => Arc::new(StringArray::from_iter(text)),
        })
    }
}

/// Applies `value` to each code that is there.
fn each<T>(
    codes: &[Option<u16>],
    value: impl Fn(u16) -> T + Copy,
) -> impl Iterator<Item = Option<T>> {
    codes.iter().map(move |code| code.map(value))
}

/// Some of the words fit into a view, some don't, one is empty.
fn word(code: u16) -> String {
    match code % 3 {
        _ if code == 0 => String::new(),
        0 => format!("w{code}"),
        1 => format!("a word of some length {code}"),
        _ => format!("{code}, and its number comes first"),
    }
}

fn second(code: Option<u16>) -> Option<String> {
    match code {
        None => Some("of a row whose first key is NULL".to_string()),
        Some(code) if code % 7 == 6 => None,
        Some(code) => Some(word(code % 3)),
    }
}

fn small(code: u16) -> i8 {
    i8::try_from(code % 120).unwrap_or_default()
}

/// The values of [`float`] have exact counterparts.
#[expect(clippy::cast_possible_truncation, reason = "each value is exact")]
fn float32(code: u16) -> f32 {
    float(code) as f32
}

fn float(code: u16) -> f64 {
    match code {
        0 => 0.0,
        1 => -0.0,
        2 => f64::NAN,
        3 => -f64::NAN,
        4 => f64::INFINITY,
        5 => f64::NEG_INFINITY,
        _ => f64::from(code) / 4.0,
    }
}

/// `{code / 2, word}`; every fifth one has NULL for its number.
fn structs(codes: &[Option<u16>]) -> ArrayRef {
    let numbers = codes
        .iter()
        .map(|c| c.filter(|c| c % 5 != 4).map(|c| i64::from(c / 2)));
    let fields = Fields::from(vec![
        Field::new("number", DataType::Int64, true),
        Field::new("word", DataType::Utf8, true),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter(numbers)),
        Arc::new(StringArray::from_iter(each(codes, word))),
    ];
    let valid: NullBuffer = codes.iter().map(Option::is_some).collect::<Vec<_>>().into();
    Arc::new(StructArray::new(fields, columns, Some(valid)))
}

/// `[]`, `[1]`, `[2, NULL]`, ...: as many items as the code modulo three says.
fn lists(codes: &[Option<u16>]) -> ArrayRef {
    let list = |c: u16| {
        let items = [Some(i64::from(c)), None];
        items
            .into_iter()
            .take(usize::from(c % 3))
            .collect::<Vec<_>>()
    };
    Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(each(
        codes, list,
    )))
}
