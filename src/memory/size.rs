//! How large batches are, and how to make them no larger than their rows.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::DataType;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion_common::Result;
use datafusion_common::utils::memory::get_record_batch_memory_size;

/// What an array costs besides its buffers: the structs, and the rounding up of small buffers.
const ARRAY_OVERHEAD: usize = 128;

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

/// The same for one column.
pub(crate) fn column_bytes(column: &ArrayRef) -> usize {
    column.get_buffer_memory_size() + ARRAY_OVERHEAD
}

/// The bytes that the rows of `batch` need by themselves, whatever they pin.
pub(crate) fn rows_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(needed_bytes).sum()
}

/// The bytes that the rows of `array` need by themselves.
fn needed_bytes(array: &ArrayRef) -> usize {
    match array.data_type() {
        DataType::Utf8View => {
            let view = array.as_string_view();
            view.total_buffer_bytes_used() + view.len() * 16
        }
        DataType::BinaryView => {
            let view = array.as_binary_view();
            view.total_buffer_bytes_used() + view.len() * 16
        }
        _ => array
            .to_data()
            .get_slice_memory_size()
            .unwrap_or_else(|_| array.get_buffer_memory_size()),
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

/// A view array over few buffers that hold its own bytes and no others; other arrays as they are.
pub(crate) fn collect_views(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Utf8View => Arc::new(array.as_string_view().gc()),
        DataType::BinaryView => Arc::new(array.as_binary_view().gc()),
        _ => Arc::clone(array),
    }
}

fn compact_column(array: &ArrayRef, eighths: usize) -> Result<ArrayRef> {
    let pinned = array.get_buffer_memory_size();
    if pinned <= PINNED_SLACK || pinned <= needed_bytes(array) / 8 * eighths {
        return Ok(Arc::clone(array));
    }
    match array.data_type() {
        DataType::Utf8View | DataType::BinaryView => Ok(collect_views(array)),
        // The values of a dictionary are shared by design.
        DataType::Dictionary(_, _) => Ok(Arc::clone(array)),
        _ => {
            let rows = u32::try_from(array.len()).unwrap_or(u32::MAX);
            Ok(take(
                array.as_ref(),
                &UInt32Array::from_iter_values(0..rows),
                None,
            )?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int64Array, StringViewArray};

    #[test]
    fn a_slice_of_a_large_array_is_copied_and_a_whole_array_is_not() {
        let whole: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10_000));
        let kept = compact_column(&whole, PINNED_EIGHTHS).unwrap();
        assert_eq!(
            kept.get_buffer_memory_size(),
            whole.get_buffer_memory_size()
        );
        let slice = compact_column(&whole.slice(5_000, 10), PINNED_EIGHTHS).unwrap();
        assert!(slice.get_buffer_memory_size() < 1_000);
        assert_eq!(
            slice.as_primitive::<arrow::datatypes::Int64Type>().value(3),
            5_003
        );
    }

    #[test]
    fn views_into_a_large_buffer_are_copied() {
        let whole = StringViewArray::from_iter_values(
            (0..10_000).map(|i| format!("a string that is not inlined {i}")),
        );
        let indices = UInt32Array::from(vec![7, 9_999]);
        let taken = take(&whole, &indices, None).unwrap();
        let compacted = compact_column(&taken, PINNED_EIGHTHS).unwrap();
        assert!(compacted.get_buffer_memory_size() < 1_000);
        assert_eq!(
            compacted.as_string_view().value(1),
            "a string that is not inlined 9999"
        );
    }
}
