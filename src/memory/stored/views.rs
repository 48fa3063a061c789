//! Views, which are stored as plain texts, and are views again where they are read.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BinaryViewArray, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion_common::Result;

/// What a view takes beyond an offset.
const VIEW_EXTRA: usize = size_of::<u128>() - size_of::<i32>();

/// The schema of the same rows as they are stored.
pub(crate) fn stored_schema(schema: &SchemaRef) -> SchemaRef {
    if !schema
        .fields()
        .iter()
        .any(|field| is_view(field.data_type()))
    {
        return Arc::clone(schema);
    }
    let field = |field: &Arc<Field>| match stored_type(field.data_type()) {
        Some(stored) => Arc::new(field.as_ref().clone().with_data_type(stored)),
        None => Arc::clone(field),
    };
    Arc::new(Schema::new(
        schema.fields().iter().map(field).collect::<Vec<_>>(),
    ))
}

/// What `rows` rows of this schema take in memory beyond what they take stored.
pub(crate) fn restored_extra(schema: &Schema, rows: usize) -> usize {
    let views = schema.fields().iter().filter(|f| is_view(f.data_type()));
    views.count() * rows * VIEW_EXTRA
}

/// A column with the type that it had before it was stored. Views are made over the stored bytes.
pub(crate) fn restored_column(column: &ArrayRef, wanted: &DataType) -> ArrayRef {
    match (column.data_type(), wanted) {
        (DataType::Utf8, DataType::Utf8View) => {
            Arc::new(StringViewArray::from(column.as_string::<i32>()))
        }
        (DataType::Binary, DataType::BinaryView) => {
            Arc::new(BinaryViewArray::from(column.as_binary::<i32>()))
        }
        _ => Arc::clone(column),
    }
}

/// A batch with the schema that it had before it was stored.
///
/// # Errors
/// If the types are others than were stored.
pub(crate) fn restored(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| restored_column(column, field.data_type()));
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns.collect(),
        &options,
    )?)
}

fn is_view(data_type: &DataType) -> bool {
    stored_type(data_type).is_some()
}

pub(super) fn stored_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Utf8View => Some(DataType::Utf8),
        DataType::BinaryView => Some(DataType::Binary),
        _ => None,
    }
}
