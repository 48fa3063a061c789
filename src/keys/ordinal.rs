//! Keys that are whole numbers, as numbers of 64 bits: what a table can be addressed by without a
//! hash.
//!
//! A signed number is extended with its sign and taken modulo 2^64, so the distance between two keys
//! is the difference of their numbers modulo 2^64, whatever their signs.

use arrow::array::{Array, ArrayRef, new_empty_array};
use arrow::datatypes::{ArrowNativeType, DataType};

/// The numbers from the smallest key to the largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) smallest: u64,
    /// How far the largest one is above it.
    pub(crate) span: u64,
}

trait WholeNumber: ArrowNativeType + Ord {
    fn ordinal(self) -> u64;
}

macro_rules! whole_numbers {
    ($($native:ty => $ordinal:expr),* $(,)?) => {$(
        impl WholeNumber for $native {
            fn ordinal(self) -> u64 {
                $ordinal(self)
            }
        }
    )*};
}

whole_numbers! {
    i8 => |key| i64::from(key).cast_unsigned(),
    i16 => |key| i64::from(key).cast_unsigned(),
    i32 => |key| i64::from(key).cast_unsigned(),
    i64 => i64::cast_unsigned,
    u8 => u64::from,
    u16 => u64::from,
    u32 => u64::from,
    u64 => std::convert::identity,
}

/// Runs a generic function over the values of a column of whole numbers, NULLs' among them.
macro_rules! with_values {
    ($column:expr, $values:ident => $do:expr, else $otherwise:expr) => {{
        let (column, data) = ($column, $column.to_data());
        macro_rules! of {
            ($native:ty) => {{
                let $values = &data.buffer::<$native>(0)[..column.len()];
                $do
            }};
        }
        match column.data_type() {
            DataType::Int8 => of!(i8),
            DataType::Int16 => of!(i16),
            DataType::Int32 | DataType::Date32 | DataType::Time32(_) => of!(i32),
            DataType::Int64
            | DataType::Date64
            | DataType::Time64(_)
            | DataType::Timestamp(_, _)
            | DataType::Duration(_) => of!(i64),
            DataType::UInt8 => of!(u8),
            DataType::UInt16 => of!(u16),
            DataType::UInt32 => of!(u32),
            DataType::UInt64 => of!(u64),
            _ => $otherwise,
        }
    }};
}

/// Whether keys of this type are whole numbers.
pub(crate) fn has_range(data_type: &DataType) -> bool {
    let column = &new_empty_array(data_type);
    with_values!(column, values => values.is_empty(), else false)
}

/// Keys that are looked at before it is asked whether their range is too large already.
const STRETCH: usize = 4096;

/// The range of the keys in all pieces of a column; `None` if they are not whole numbers, if there
/// are none, if some are NULL, or if their span is over `most_span`.
pub(crate) fn key_range<'a>(
    pieces: impl Iterator<Item = &'a ArrayRef>,
    most_span: u64,
) -> Option<KeyRange> {
    fn extremes<T: WholeNumber>(values: &[T]) -> Option<(i128, i128)> {
        let first = *values.first()?;
        let widen = |(least, most): (T, T), key: &T| (least.min(*key), most.max(*key));
        let (least, most) = values.iter().fold((first, first), widen);
        Some((wide(least), wide(most)))
    }
    /// In the order of the keys.
    fn wide<T: WholeNumber>(key: T) -> i128 {
        let is_negative = key < T::usize_as(0);
        if is_negative {
            i128::from(key.ordinal().cast_signed())
        } else {
            i128::from(key.ordinal())
        }
    }
    let mut range: Option<(i128, i128)> = None;
    for piece in pieces {
        if piece.null_count() > 0 {
            return None;
        }
        let stretches = |from| piece.slice(from, STRETCH.min(piece.len() - from));
        for stretch in (0..piece.len()).step_by(STRETCH).map(stretches) {
            let (least, most) =
                with_values!(&stretch, values => extremes(values)?, else return None);
            let (smallest, largest) = range.unwrap_or((least, most));
            let (smallest, largest) = (smallest.min(least), largest.max(most));
            if largest - smallest > i128::from(most_span) {
                return None;
            }
            range = Some((smallest, largest));
        }
    }
    let (smallest, largest) = range?;
    Some(KeyRange {
        smallest: modulo(smallest),
        span: modulo(largest - smallest),
    })
}

/// Modulo 2^64.
fn modulo(number: i128) -> u64 {
    let bits = number.cast_unsigned() & u128::from(u64::MAX);
    u64::try_from(bits).unwrap_or(u64::MAX)
}

/// What is done with numbers, whatever the type of the keys that they are of.
pub(crate) trait Visitor {
    /// Sees the number of each key, in order; those of NULLs are without meaning.
    fn visit(self, numbers: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator);
}

/// Shows the keys' numbers to `visitor`; nothing if the keys are not whole numbers.
pub(crate) fn visit_ordinals(column: &ArrayRef, visitor: impl Visitor) {
    with_values!(
        column,
        values => visitor.visit(values.iter().map(|key| key.ordinal())),
        else ()
    );
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use arrow::array::{Date32Array, Int8Array, Int64Array, StringArray, UInt64Array};

    fn range(pieces: &[ArrayRef]) -> Option<(u64, u64)> {
        key_range(pieces.iter(), u64::MAX).map(|range| (range.smallest, range.span))
    }

    #[test]
    fn a_range_spans_all_pieces_and_both_signs() {
        let low: ArrayRef = Arc::new(Int8Array::from(vec![3, -5]));
        let high: ArrayRef = Arc::new(Int8Array::from(vec![7]));
        assert_eq!(range(&[low, high]), Some(((-5_i64).cast_unsigned(), 12)));
        let all: ArrayRef = Arc::new(Int64Array::from(vec![i64::MAX, i64::MIN]));
        assert_eq!(range(&[all]), Some((1 << 63, u64::MAX)));
        let top: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX, u64::MAX - 1]));
        assert_eq!(range(&[top]), Some((u64::MAX - 1, 1)));
    }

    #[test]
    fn what_is_no_number_has_no_range() {
        let null: ArrayRef = Arc::new(Int8Array::from(vec![Some(3), None]));
        let text: ArrayRef = Arc::new(StringArray::from(vec!["3"]));
        let none: ArrayRef = Arc::new(Int8Array::from(Vec::<i8>::new()));
        assert_eq!([range(&[null]), range(&[text]), range(&[none])], [None; 3]);
        assert_eq!(range(&[]), None);
    }

    #[test]
    fn a_range_that_is_too_large_is_none() {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values((0..9_000).map(|key| key - 7)));
        let of = |span| key_range([&keys].into_iter(), span).map(|range| range.span);
        assert_eq!([of(8_998), of(8_999)], [None, Some(8_999)]);
    }

    #[test]
    fn the_numbers_of_a_slice_are_those_of_its_rows() {
        struct Collect<'a>(&'a mut Vec<u64>);
        impl Visitor for Collect<'_> {
            fn visit(self, numbers: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) {
                self.0.extend(numbers);
            }
        }
        let keys: ArrayRef = Arc::new(Date32Array::from(vec![1, -1, 2, 3]));
        let mut out = Vec::new();
        visit_ordinals(&keys.slice(1, 2), Collect(&mut out));
        assert_eq!(out, [u64::MAX, 2]);
    }
}
