//! How large batches are, and how to make them no larger than their rows.
//!
//! Three sizes, for three questions. What holding a batch keeps in memory: [`batch_bytes`]. What of
//! that is the values of dictionaries, which many batches may share: [`shared_bytes`]. What its rows
//! would take by themselves, wherever the batch was cut from: [`rows_bytes`], which says how many
//! rows make a piece, a frame or an output batch.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, GenericListArray, GenericListViewArray, OffsetSizeTrait,
};
use arrow::datatypes::DataType;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion_common::Result;
use datafusion_common::utils::memory::{RecordBatchMemoryCounter, get_record_batch_memory_size};

use super::nested::with_leaves;
use super::words::{copied, with_own_words};

/// What an array costs besides its buffers: the structs, and the rounding up of small buffers.
const ARRAY_OVERHEAD: usize = 128;

/// What a row in hand takes besides its columns: its hash, its head, its number in two lists.
pub(crate) const ROW_OVERHEAD: usize = size_of::<u64>() + 3 * size_of::<u32>();

/// A column is copied when it pins more than this many eighths of what its rows need.
const PINNED_EIGHTHS: usize = 16;

/// The same for what was read back: all columns of a frame share one buffer, and must not.
const SHARED_EIGHTHS: usize = 9;

/// Below this many pinned bytes a copy is not worth its while.
const PINNED_SLACK: usize = 4096;

/// The bytes that holding `batch` keeps in memory: each buffer once, at its capacity.
pub(crate) fn batch_bytes(batch: &RecordBatch) -> usize {
    get_record_batch_memory_size(batch) + batch.num_columns() * ARRAY_OVERHEAD
}

/// The part of [`batch_bytes`] that is the values of dictionaries.
pub(crate) fn shared_bytes(batch: &RecordBatch) -> usize {
    let values = batch.columns().iter().filter_map(|column| {
        let dictionary = column.as_any_dictionary_opt()?;
        Some(dictionary.values().get_buffer_memory_size())
    });
    values
        .sum::<usize>()
        .min(get_record_batch_memory_size(batch))
}

/// The bytes of the words of dictionaries that come with a row, where rows are picked from `batch`: no
/// more words than rows are.
pub(crate) fn words_bytes_of_row(batch: &RecordBatch) -> usize {
    let rows = batch.num_rows();
    let of_column = |column: &ArrayRef| {
        let words = column.as_any_dictionary_opt()?.values();
        Some(needed_bytes(words) / words.len().max(rows).max(1))
    };
    batch.columns().iter().filter_map(of_column).sum()
}

/// The bytes of one column, at its buffers' capacity.
pub(crate) fn column_bytes(column: &ArrayRef) -> usize {
    column.get_buffer_memory_size() + ARRAY_OVERHEAD
}

/// The bytes of many columns, buffers that they share once.
pub(crate) fn columns_bytes<'a>(columns: impl Iterator<Item = &'a ArrayRef>) -> usize {
    let mut counter = RecordBatchMemoryCounter::new();
    let mut overhead = 0;
    for column in columns {
        overhead += ARRAY_OVERHEAD;
        if let Ok(batch) = RecordBatch::try_from_iter([("", Arc::clone(column))]) {
            counter.count_batch(&batch);
        }
    }
    counter.memory_usage() + overhead
}

/// The bytes that the rows of `batch` need by themselves, whatever they pin or share.
pub(crate) fn rows_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(needed_bytes).sum()
}

/// The bytes that the rows of `array` need by themselves, the values of dictionaries not included.
pub(crate) fn needed_bytes(array: &ArrayRef) -> usize {
    let rows = array.len();
    let validity = if array.null_count() > 0 { rows / 8 } else { 0 };
    let own = match array.data_type() {
        DataType::Boolean => rows / 8,
        DataType::Utf8 => spanned(array.as_string::<i32>().value_offsets(), 1),
        DataType::LargeUtf8 => spanned(array.as_string::<i64>().value_offsets(), 1),
        DataType::Binary => spanned(array.as_binary::<i32>().value_offsets(), 1),
        DataType::LargeBinary => spanned(array.as_binary::<i64>().value_offsets(), 1),
        DataType::Utf8View => array.as_string_view().total_buffer_bytes_used() + rows * 16,
        DataType::BinaryView => array.as_binary_view().total_buffer_bytes_used() + rows * 16,
        DataType::Struct(_) => array.as_struct().columns().iter().map(needed_bytes).sum(),
        DataType::List(_) => list_bytes(array.as_list::<i32>()),
        DataType::LargeList(_) => list_bytes(array.as_list::<i64>()),
        DataType::ListView(_) => list_view_bytes(array.as_list_view::<i32>()),
        DataType::LargeListView(_) => list_view_bytes(array.as_list_view::<i64>()),
        DataType::FixedSizeList(_, _) => needed_bytes(array.as_fixed_size_list().values()),
        DataType::Map(_, _) => {
            let map = array.as_map();
            let entries: ArrayRef = Arc::new(map.entries().clone());
            spanned(map.value_offsets(), mean_bytes(&entries))
        }
        DataType::Dictionary(key, _) => rows * key.primitive_width().unwrap_or(8),
        DataType::FixedSizeBinary(width) => rows * usize::try_from(*width).unwrap_or(0),
        other => match other.primitive_width() {
            Some(width) => rows * width,
            None => {
                let data = array.to_data();
                data.get_slice_memory_size()
                    .unwrap_or_else(|_| array.get_buffer_memory_size())
            }
        },
    };
    own + validity
}

/// The bytes of the offsets, and of what they span at `width` bytes each.
fn spanned<O: OffsetSizeTrait>(offsets: &[O], width: usize) -> usize {
    let span = match (offsets.first(), offsets.last()) {
        (Some(first), Some(last)) => last.as_usize() - first.as_usize(),
        _ => 0,
    };
    span * width + size_of_val(offsets)
}

fn list_bytes<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> usize {
    spanned(list.value_offsets(), mean_bytes(list.values()))
}

/// Lists that share items have them in common.
fn list_view_bytes<O: OffsetSizeTrait>(list: &GenericListViewArray<O>) -> usize {
    let items: usize = list.sizes().iter().map(|size| size.as_usize()).sum();
    let items = items.min(list.values().len());
    items * mean_bytes(list.values()) + 2 * size_of_val(list.value_sizes())
}

fn mean_bytes(values: &ArrayRef) -> usize {
    needed_bytes(values).div_ceil(values.len().max(1))
}

/// The bytes of the widest value of `array`, estimated from the mean item for lists.
pub(crate) fn widest_value(array: &ArrayRef) -> usize {
    fn widest<O: OffsetSizeTrait>(offsets: &[O]) -> usize {
        let length = |pair: &[O]| match pair {
            [from, to] => to.as_usize() - from.as_usize(),
            _ => 0,
        };
        offsets.windows(2).map(length).max().unwrap_or(0)
    }
    // The length of a view is its low 32 bits.
    fn widest_view(views: &[u128]) -> usize {
        let length = |view: &u128| (view & u128::from(u32::MAX)) as usize;
        16 + views.iter().map(length).max().unwrap_or(0)
    }
    match array.data_type() {
        DataType::Utf8 => widest(array.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => widest(array.as_string::<i64>().value_offsets()),
        DataType::Binary => widest(array.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => widest(array.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => widest_view(array.as_string_view().views()),
        DataType::BinaryView => widest_view(array.as_binary_view().views()),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            widest(list.value_offsets()) * mean_bytes(list.values())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            widest(list.value_offsets()) * mean_bytes(list.values())
        }
        DataType::Struct(_) => array.as_struct().columns().iter().map(widest_value).sum(),
        _ => needed_bytes(array).div_ceil(array.len().max(1)),
    }
}

/// A batch of the same rows that pins little more than they need: slices of larger arrays and
/// views into larger buffers are copied, everything else is passed on as it is.
///
/// # Errors
/// If arrow cannot copy a column's type.
pub(crate) fn compact(batch: &RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(compact_array);
    with_columns(batch, columns.collect::<Result<_>>()?)
}

/// The same for one column.
///
/// # Errors
/// If arrow cannot copy the column's type.
pub(crate) fn compact_array(array: &ArrayRef) -> Result<ArrayRef> {
    compact_column(array, PINNED_EIGHTHS)
}

/// Gives the rows of frames that are read one after the other columns of their own, which can be
/// released one by one: all columns of a frame share one buffer. Words that frames have in common
/// they keep in common.
#[derive(Default)]
pub(crate) struct Unshare {
    /// For each column, the words of the last frame: as they were read, and by themselves. The
    /// decoder makes an array of them anew for each frame, over the same buffers.
    words: Vec<Option<(ArrayData, ArrayRef)>>,
}

impl Unshare {
    /// The same rows, and the bytes of words in them that rows before them have too.
    ///
    /// # Errors
    /// If arrow cannot copy a column's type.
    pub(crate) fn rows(&mut self, batch: &RecordBatch) -> Result<(RecordBatch, usize)> {
        self.words.resize(batch.num_columns(), None);
        let mut known_bytes = 0;
        let mut columns = Vec::with_capacity(batch.num_columns());
        for (column, known) in batch.columns().iter().zip(&mut self.words) {
            let Some(dictionary) = column.as_any_dictionary_opt() else {
                columns.push(with_own_words(&compact_column(column, SHARED_EIGHTHS)?)?);
                continue;
            };
            let read = dictionary.values().to_data();
            let words = match known {
                Some((before, own)) if before.ptr_eq(&read) => {
                    known_bytes += own.get_buffer_memory_size();
                    Arc::clone(own)
                }
                _ => {
                    let own = copied(dictionary.values())?;
                    *known = Some((read, Arc::clone(&own)));
                    own
                }
            };
            columns.push(copied(column)?.as_any_dictionary().with_values(words));
        }
        Ok((with_columns(batch, columns)?, known_bytes))
    }
}

fn with_columns(batch: &RecordBatch, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(
        batch.schema(),
        columns,
        &options,
    )?)
}

fn compact_column(array: &ArrayRef, eighths: usize) -> Result<ArrayRef> {
    let pinned = array.get_buffer_memory_size();
    if pinned <= PINNED_SLACK || pinned <= needed_bytes(array) / 8 * eighths {
        return Ok(Arc::clone(array));
    }
    match array.data_type() {
        DataType::Utf8View | DataType::BinaryView => collect_views(array),
        // The values of a dictionary are shared by design.
        DataType::Dictionary(_, _) => Ok(Arc::clone(array)),
        _ => copied(array),
    }
}

/// The same array with views, in nested types too, over few buffers that hold their own bytes and no
/// others.
///
/// # Errors
/// If arrow refuses to put a nested array together again.
pub(crate) fn collect_views(array: &ArrayRef) -> Result<ArrayRef> {
    with_leaves(array, &|leaf| {
        Ok(match leaf.data_type() {
            DataType::Utf8View => Arc::new(leaf.as_string_view().gc()),
            DataType::BinaryView => Arc::new(leaf.as_binary_view().gc()),
            _ => Arc::clone(leaf),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{
        DictionaryArray, Int64Array, ListArray, ListViewArray, StringArray, StringViewArray,
        StructArray, UInt32Array,
    };
    use arrow::compute::take;
    use arrow::datatypes::{Field, Fields, Int32Type, Int64Type};

    fn views(rows: usize) -> ArrayRef {
        let long = |row| format!("a string that is not inlined {row}");
        Arc::new(StringViewArray::from_iter_values((0..rows).map(long)))
    }

    #[test]
    fn a_slice_of_a_large_array_is_copied_and_a_whole_array_is_not() {
        let whole: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10_000));
        let kept = compact_column(&whole, PINNED_EIGHTHS).unwrap();
        assert_eq!(
            kept.get_buffer_memory_size(),
            whole.get_buffer_memory_size()
        );
        let slice = whole.slice(5_000, 10);
        assert_eq!(needed_bytes(&slice), 80);
        let slice = compact_column(&slice, PINNED_EIGHTHS).unwrap();
        assert!(slice.get_buffer_memory_size() < 1_000);
        assert_eq!(slice.as_primitive::<Int64Type>().value(3), 5_003);
    }

    #[test]
    fn a_few_lists_of_many_views_of_lists_leave_the_items_of_the_others() {
        let lists = (0..1000_i64).map(|row| Some((0..100).map(move |item| Some(row * 100 + item))));
        let all: ArrayRef = Arc::new(ListViewArray::from(ListArray::from_iter_primitive::<
            Int64Type,
            _,
            _,
        >(lists)));
        let few = take(
            &all,
            &UInt32Array::from(vec![Some(700), None, Some(3)]),
            None,
        )
        .unwrap();
        let own = compact(&RecordBatch::try_from_iter([("l", Arc::clone(&few))]).unwrap()).unwrap();
        let own = own.column(0);
        assert!(few.get_buffer_memory_size() > 700_000);
        assert!(
            own.get_buffer_memory_size() < 4_000,
            "{}",
            own.get_buffer_memory_size()
        );
        assert_eq!(own.null_count(), 1);
        for row in [0, 2] {
            let (own, few) = (own.as_list_view::<i32>(), few.as_list_view::<i32>());
            assert_eq!(&own.value(row), &few.value(row));
        }
    }

    #[test]
    fn views_into_a_large_buffer_are_copied_in_nested_types_too() {
        let plain = views(10_000);
        let fields = Fields::from(vec![Field::new("s", DataType::Utf8View, true)]);
        let nested: ArrayRef =
            Arc::new(StructArray::try_new(fields, vec![Arc::clone(&plain)], None).unwrap());
        for array in [plain, nested] {
            let taken = take(&array, &UInt32Array::from(vec![7, 9_999]), None).unwrap();
            let compacted = compact_column(&taken, PINNED_EIGHTHS).unwrap();
            assert!(
                compacted.get_buffer_memory_size() < 1_000,
                "{}",
                array.data_type()
            );
            assert_eq!(&compacted, &taken);
        }
    }

    #[test]
    fn the_values_of_a_dictionary_are_not_the_rows() {
        let values = StringArray::from_iter_values((0..1_000).map(|i| format!("value {i}")));
        let keys = arrow::array::Int32Array::from(vec![1, 2, 3]);
        let array: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, Arc::new(values)));
        assert_eq!(needed_bytes(&array), 12);
        let batch = RecordBatch::try_from_iter([("d", array)]).unwrap();
        assert!(shared_bytes(&batch) > 8_000);
        assert!(batch_bytes(&batch) - shared_bytes(&batch) < 1_000);
    }
}
