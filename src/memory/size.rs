//! How large batches are, and how to make them no larger than their rows.
//!
//! Three sizes, for three questions. What holding a batch keeps in memory: [`batch_bytes`]. What of
//! that is the values of dictionaries, which many batches may share: [`shared_bytes`]. What its rows
//! would take by themselves, wherever the batch was cut from: [`rows_bytes`], which says how many
//! rows make a piece, a frame or an output batch.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait,
    StructArray, UInt32Array,
};
use arrow::compute::take;
use arrow::datatypes::DataType;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion_common::Result;
use datafusion_common::utils::memory::{RecordBatchMemoryCounter, get_record_batch_memory_size};

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
    compact_beyond(batch, PINNED_EIGHTHS)
}

/// The same rows, with columns that do not share buffers, so that each can be released alone.
///
/// # Errors
/// If arrow cannot copy a column's type.
pub(crate) fn unshare(batch: &RecordBatch) -> Result<RecordBatch> {
    compact_beyond(batch, SHARED_EIGHTHS)
}

/// The same for one column.
///
/// # Errors
/// If arrow cannot copy the column's type.
pub(crate) fn compact_array(array: &ArrayRef) -> Result<ArrayRef> {
    compact_column(array, PINNED_EIGHTHS)
}

fn compact_beyond(batch: &RecordBatch, eighths: usize) -> Result<RecordBatch> {
    let columns = batch
        .columns()
        .iter()
        .map(|column| compact_column(column, eighths));
    let columns = columns.collect::<Result<Vec<_>>>()?;
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
        _ if array.is_empty() => Ok(arrow::array::new_empty_array(array.data_type())),
        _ => {
            let rows = u32::try_from(array.len()).unwrap_or(u32::MAX);
            let copy = take(
                array.as_ref(),
                &UInt32Array::from_iter_values(0..rows),
                None,
            )?;
            collect_views(&copy)
        }
    }
}

/// The same array with views, in nested types too, over few buffers that hold their own bytes and no
/// others.
///
/// # Errors
/// If arrow refuses to put a nested array together again.
pub(crate) fn collect_views(array: &ArrayRef) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        DataType::Utf8View => Arc::new(array.as_string_view().gc()),
        DataType::BinaryView => Arc::new(array.as_binary_view().gc()),
        DataType::Struct(_) => Arc::new(collect_struct(array.as_struct())?),
        DataType::List(_) => collect_list(array.as_list::<i32>())?,
        DataType::LargeList(_) => collect_list(array.as_list::<i64>())?,
        DataType::FixedSizeList(field, size) => {
            let list = array.as_fixed_size_list();
            let values = collect_views(list.values())?;
            let nulls = list.nulls().cloned();
            if list.is_empty() || *size == 0 {
                return Ok(Arc::clone(array));
            }
            Arc::new(FixedSizeListArray::try_new(
                Arc::clone(field),
                *size,
                values,
                nulls,
            )?)
        }
        DataType::Map(field, is_sorted) => {
            let map = array.as_map();
            let entries = collect_struct(map.entries())?;
            let (offsets, nulls) = (map.offsets().clone(), map.nulls().cloned());
            let field = Arc::clone(field);
            Arc::new(MapArray::try_new(
                field, offsets, entries, nulls, *is_sorted,
            )?)
        }
        _ => Arc::clone(array),
    })
}

fn collect_struct(array: &StructArray) -> Result<StructArray> {
    let columns = array
        .columns()
        .iter()
        .map(collect_views)
        .collect::<Result<Vec<_>>>()?;
    let (fields, nulls) = (array.fields().clone(), array.nulls().cloned());
    Ok(StructArray::try_new_with_length(
        fields,
        columns,
        nulls,
        array.len(),
    )?)
}

fn collect_list<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> Result<ArrayRef> {
    let field = match list.data_type() {
        DataType::List(field) | DataType::LargeList(field) => Arc::clone(field),
        _ => return Ok(Arc::new(list.clone())),
    };
    let values = collect_views(list.values())?;
    let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
    Ok(Arc::new(GenericListArray::<O>::try_new(
        field, offsets, values, nulls,
    )?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{DictionaryArray, Int64Array, StringArray, StringViewArray};
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
