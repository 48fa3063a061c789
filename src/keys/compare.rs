//! Comparing the keys of candidate pairs, one column at a time over the whole list of pairs.
//!
//! The simple version asks a comparator for each pair and each column. Here each column is one pass
//! over the pairs, with the column's type known outside the loop, that clears a flag for each pair that
//! is not equal, and survivors are moved to the front without a branch.

use arrow::array::{
    Array, ArrayAccessor, ArrayRef, AsArray, DynComparator, PrimitiveArray,
    downcast_primitive_array, make_comparator,
};
use arrow::compute::SortOptions;
use arrow::datatypes::{ArrowNativeTypeOp, ArrowPrimitiveType, DataType};
use datafusion_common::{NullEquality, Result};

/// Compares rows of the loaded side (in one or more chunks) with rows of one streamed batch.
///
/// Equality of two NULLs is [`NullEquality::NullEqualsNull`]'s: under the other one, rows with a NULL
/// key never become candidates.
pub(crate) struct KeyComparator<'a> {
    columns: Vec<ColumnComparator<'a>>,
    /// First row of each chunk; a single chunk starts at 0.
    starts: &'a [u32],
}

enum ColumnComparator<'a> {
    /// No NULLs among candidates: compared by type.
    Typed {
        chunks: Vec<&'a ArrayRef>,
        streamed: &'a ArrayRef,
    },
    /// Anything else: arrow's comparator, one per chunk.
    General(Vec<DynComparator>),
}

impl<'a> KeyComparator<'a> {
    /// `loaded` holds the key columns of each chunk, `starts` each chunk's first row.
    ///
    /// # Errors
    /// If arrow cannot compare a type, which construction has ruled out.
    pub(crate) fn new(
        loaded: &'a [Vec<ArrayRef>],
        starts: &'a [u32],
        streamed: &'a [ArrayRef],
        nulls: NullEquality,
    ) -> Result<Self> {
        let has_none =
            |keys: &ArrayRef| nulls == NullEquality::NullEqualsNothing || keys.null_count() == 0;
        let column = |(index, streamed): (usize, &'a ArrayRef)| {
            let chunks = loaded.iter().filter_map(|chunk| chunk.get(index));
            let chunks: Vec<&ArrayRef> = chunks.collect();
            if is_typed(streamed.data_type())
                && has_none(streamed)
                && chunks.iter().all(|chunk| has_none(chunk))
            {
                return Ok(ColumnComparator::Typed { chunks, streamed });
            }
            let compare = |loaded: &&ArrayRef| {
                Ok(make_comparator(
                    loaded.as_ref(),
                    streamed.as_ref(),
                    SortOptions::default(),
                )?)
            };
            Ok(ColumnComparator::General(
                chunks.iter().map(compare).collect::<Result<_>>()?,
            ))
        };
        let columns = streamed
            .iter()
            .enumerate()
            .map(column)
            .collect::<Result<_>>()?;
        Ok(Self { columns, starts })
    }

    /// Whether the keys of each pair are equal.
    pub(crate) fn are_equal(&self, loaded: &[u32], streamed: &[u32]) -> Vec<bool> {
        let mut are_equal = vec![true; loaded.len().min(streamed.len())];
        let places = match self.starts {
            [] | [_] => Vec::new(),
            starts => loaded.iter().map(|row| Place::of(starts, *row)).collect(),
        };
        let pairs = Pairs {
            loaded,
            places: &places,
            streamed,
        };
        for column in &self.columns {
            match column {
                ColumnComparator::Typed { chunks, streamed } => {
                    typed(chunks, streamed, pairs, &mut are_equal);
                }
                ColumnComparator::General(chunks) => {
                    let is_equal = |compare: &DynComparator, l, s| compare(l, s).is_eq();
                    pairs.narrow(&mut are_equal, chunks, is_equal);
                }
            }
        }
        are_equal
    }

    /// Keeps the pairs whose keys are equal, in order.
    pub(crate) fn retain_equal(&self, loaded: &mut Vec<u32>, streamed: &mut Vec<u32>) {
        let are_equal = self.are_equal(loaded, streamed);
        // Mostly all are: tags have told the others.
        if are_equal.contains(&false) {
            keep(loaded, &are_equal);
            keep(streamed, &are_equal);
        }
    }
}

/// Keeps the rows whose flag is set, without a branch.
fn keep(rows: &mut Vec<u32>, flags: &[bool]) {
    let mut kept = 0;
    for (index, flag) in flags.iter().enumerate() {
        rows[kept] = rows[index];
        kept += usize::from(*flag);
    }
    rows.truncate(kept);
}

/// Where a loaded row is.
#[derive(Clone, Copy)]
struct Place {
    chunk: u32,
    /// Its number in the chunk.
    row: u32,
}

impl Place {
    fn of(starts: &[u32], row: u32) -> Self {
        let chunk = starts.partition_point(|start| *start <= row) - 1;
        Self {
            row: row - starts[chunk],
            // There are no more chunks than rows.
            chunk: u32::try_from(chunk).unwrap_or(u32::MAX),
        }
    }
}

/// Pairs of rows.
#[derive(Clone, Copy)]
struct Pairs<'a> {
    loaded: &'a [u32],
    /// Of the loaded rows, if there are several chunks.
    places: &'a [Place],
    streamed: &'a [u32],
}

impl Pairs<'_> {
    /// Clears the flags of the pairs that are not equal; asks each chunk where the flag is set.
    fn narrow<C>(
        self,
        flags: &mut [bool],
        chunks: &[C],
        is_equal: impl Fn(&C, usize, usize) -> bool,
    ) {
        let flags = flags.iter_mut().zip(self.streamed);
        if let [chunk] = chunks {
            for ((flag, s), l) in flags.zip(self.loaded) {
                *flag = *flag && is_equal(chunk, *l as usize, *s as usize);
            }
        } else {
            for ((flag, s), l) in flags.zip(self.places) {
                let chunk = &chunks[l.chunk as usize];
                *flag = *flag && is_equal(chunk, l.row as usize, *s as usize);
            }
        }
    }

    /// The same, asking always: cheaper than a branch for values of one word.
    fn narrow_all<T: ArrowPrimitiveType>(
        self,
        flags: &mut [bool],
        chunks: &[&ArrayRef],
        streamed: &PrimitiveArray<T>,
    ) {
        // `is_eq` is the total order's equality, which for floats is not `==`.
        let flags = flags.iter_mut().zip(self.streamed);
        let streamed = streamed.values();
        let chunks = chunks
            .iter()
            .map(|chunk| chunk.as_primitive::<T>().values());
        let chunks: Vec<&[T::Native]> = chunks.map(AsRef::as_ref).collect();
        if let [loaded] = chunks.as_slice() {
            for ((flag, s), l) in flags.zip(self.loaded) {
                *flag &= loaded[*l as usize].is_eq(streamed[*s as usize]);
            }
        } else {
            for ((flag, s), l) in flags.zip(self.places) {
                let loaded = chunks[l.chunk as usize][l.row as usize];
                *flag &= loaded.is_eq(streamed[*s as usize]);
            }
        }
    }

    fn narrow_values<A: ArrayAccessor>(self, flags: &mut [bool], chunks: &[A], streamed: &A)
    where
        A::Item: PartialEq,
    {
        self.narrow(flags, chunks, |chunk, i, j| {
            chunk.value(i) == streamed.value(j)
        });
    }
}

/// Whether [`typed`] knows the type.
fn is_typed(key: &DataType) -> bool {
    key.is_primitive()
        || matches!(
            key,
            DataType::Boolean
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
                | DataType::FixedSizeBinary(_)
        )
}

/// Clears the flags of the pairs whose values in arrays of one type that [`is_typed`] differ; none of
/// the values is NULL.
fn typed(chunks: &[&ArrayRef], streamed: &ArrayRef, pairs: Pairs<'_>, flags: &mut [bool]) {
    macro_rules! values {
        ($as:ident $(::<$t:ty>)?) => {{
            let chunks: Vec<_> = chunks.iter().map(|chunk| chunk.$as$(::<$t>)?()).collect();
            pairs.narrow_values(flags, &chunks, &streamed.$as$(::<$t>)?())
        }};
    }
    downcast_primitive_array! {
        streamed => pairs.narrow_all(flags, chunks, streamed),
        DataType::Boolean => values!(as_boolean),
        DataType::Utf8 => values!(as_string::<i32>),
        DataType::LargeUtf8 => values!(as_string::<i64>),
        DataType::Utf8View => values!(as_string_view),
        DataType::Binary => values!(as_binary::<i32>),
        DataType::LargeBinary => values!(as_binary::<i64>),
        DataType::BinaryView => values!(as_binary_view),
        DataType::FixedSizeBinary(_) => values!(as_fixed_size_binary),
        other => debug_assert!(false, "not typed: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use arrow::array::{Float64Array, Int32Array, StringArray};

    fn equal_pairs(loaded: &[Vec<ArrayRef>], streamed: &[ArrayRef]) -> Vec<(u32, u32)> {
        let rows = |chunk: &Vec<ArrayRef>| u32::try_from(chunk[0].len()).unwrap();
        let mut starts = vec![0];
        let mut total = 0;
        for chunk in loaded {
            total += rows(chunk);
            starts.push(total);
        }
        starts.pop();
        let probe = u32::try_from(streamed[0].len()).unwrap();
        let mut l: Vec<u32> = (0..total).flat_map(|l| vec![l; probe as usize]).collect();
        let mut s: Vec<u32> = (0..total).flat_map(|_| 0..probe).collect();
        let nulls = NullEquality::NullEqualsNull;
        let comparator = KeyComparator::new(loaded, &starts, streamed, nulls).unwrap();
        comparator.retain_equal(&mut l, &mut s);
        l.into_iter().zip(s).collect()
    }

    #[test]
    fn all_columns_must_be_equal_in_one_chunk_or_several() {
        let a: ArrayRef = Arc::new(Int32Array::from(vec![1, 1, 2]));
        let b: ArrayRef = Arc::new(StringArray::from(vec!["x", "y", "x"]));
        let streamed: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from(vec![1, 2, 1])),
            Arc::new(StringArray::from(vec!["y", "x", "z"])),
        ];
        let whole = vec![vec![Arc::clone(&a), Arc::clone(&b)]];
        let halves = vec![
            vec![a.slice(0, 1), b.slice(0, 1)],
            vec![a.slice(1, 2), b.slice(1, 2)],
        ];
        assert_eq!(equal_pairs(&whole, &streamed), [(1, 0), (2, 1)]);
        assert_eq!(equal_pairs(&halves, &streamed), [(1, 0), (2, 1)]);
    }

    #[test]
    fn nulls_equal_nulls_and_nan_equals_the_same_nan() {
        let l: ArrayRef = Arc::new(Float64Array::from(vec![
            Some(f64::NAN),
            None,
            Some(-f64::NAN),
        ]));
        let pairs = equal_pairs(&[vec![Arc::clone(&l)]], &[l]);
        assert_eq!(pairs, [(0, 0), (1, 1), (2, 2)]);
        let l: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN, -f64::NAN]));
        let pairs = equal_pairs(&[vec![Arc::clone(&l)]], &[l]);
        assert_eq!(pairs, [(0, 0), (1, 1)]);
    }
}
