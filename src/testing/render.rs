//! Values as text that is equal if and only if the values are: how rows are compared.
//!
//! Job: one string per value, exact for every Arrow type (floats by their bits), the same for a
//! plain value and a dictionary's or a run's. Invariant: NULL is [`NULL`] and no value is.

use arrow::array::{Array, ArrayRef, AsArray, downcast_primitive_array};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use arrow::record_batch::RecordBatch;
use datafusion_common::{DataFusionError, Result};
use xxhash_rust::xxh3::xxh3_64;

/// What NULL looks like.
pub const NULL: &str = "NULL";

/// Longer text is compared by its length and a hash, so that wide rows stay cheap.
const LONGEST_TEXT: usize = 200;

/// The rows of some batches, each with its cells.
///
/// # Errors
/// If a column has a type that this module does not know.
pub fn rows(batches: &[RecordBatch]) -> Result<Vec<Vec<String>>> {
    let mut all = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let cells = batch.columns().iter().map(|column| value(column, row));
            all.push(cells.collect::<Result<Vec<_>>>()?);
        }
    }
    Ok(all)
}

/// The value of `array` at `row`.
///
/// # Errors
/// If the array has a type that this module does not know.
pub fn value(array: &ArrayRef, row: usize) -> Result<String> {
    // The logical NULLs: those of a dictionary's values and of runs are NULLs too.
    if array
        .logical_nulls()
        .is_some_and(|nulls| nulls.is_null(row))
    {
        return Ok(NULL.to_string());
    }
    let array = array.as_ref();
    Ok(match array.data_type() {
        DataType::Float16 => format!(
            "{:x}",
            array.as_primitive::<Float16Type>().value(row).to_bits()
        ),
        DataType::Float32 => format!(
            "{:x}",
            array.as_primitive::<Float32Type>().value(row).to_bits()
        ),
        DataType::Float64 => format!(
            "{:x}",
            array.as_primitive::<Float64Type>().value(row).to_bits()
        ),
        DataType::Boolean => array.as_boolean().value(row).to_string(),
        DataType::Utf8 => text(array.as_string::<i32>().value(row).as_bytes()),
        DataType::LargeUtf8 => text(array.as_string::<i64>().value(row).as_bytes()),
        DataType::Utf8View => text(array.as_string_view().value(row).as_bytes()),
        DataType::Binary => text(array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => text(array.as_binary::<i64>().value(row)),
        DataType::BinaryView => text(array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => text(array.as_fixed_size_binary().value(row)),
        DataType::Dictionary(_, _) | DataType::RunEndEncoded(_, _) => nested(array, row)?,
        data_type if data_type.is_nested() => nested(array, row)?,
        _ => primitive(array, row)?,
    })
}

fn primitive(array: &dyn Array, row: usize) -> Result<String> {
    Ok(downcast_primitive_array!(
        array => format!("{:?}", array.value(row)),
        other => return Err(unknown(other)),
    ))
}

fn nested(array: &dyn Array, row: usize) -> Result<String> {
    match array.data_type() {
        DataType::List(_) => list(&array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(row)),
        DataType::ListView(_) => list(&array.as_list_view::<i32>().value(row)),
        DataType::LargeListView(_) => list(&array.as_list_view::<i64>().value(row)),
        DataType::FixedSizeList(_, _) => list(&array.as_fixed_size_list().value(row)),
        DataType::Map(_, _) => {
            let entries: ArrayRef = std::sync::Arc::new(array.as_map().value(row));
            list(&entries)
        }
        DataType::Struct(_) => {
            let columns = array.as_struct().columns();
            let cells = columns.iter().map(|column| value(column, row));
            Ok(format!(
                "{{{}}}",
                cells.collect::<Result<Vec<_>>>()?.join(",")
            ))
        }
        DataType::Dictionary(_, _) => {
            let dictionary = array.as_any_dictionary();
            let keys = dictionary.normalized_keys();
            value(dictionary.values(), keys[row])
        }
        DataType::RunEndEncoded(_, _) => run(array, row),
        DataType::Union(_, _) => {
            let union = array.as_union();
            let cell = value(&union.value(row), 0)?;
            Ok(format!("{}:{cell}", union.type_id(row)))
        }
        other => Err(unknown(other)),
    }
}

fn run(array: &dyn Array, row: usize) -> Result<String> {
    use arrow::datatypes::{Int16Type, Int32Type, Int64Type};
    if let Some(runs) = array.as_run_opt::<Int16Type>() {
        value(runs.values(), runs.get_physical_index(row))
    } else if let Some(runs) = array.as_run_opt::<Int32Type>() {
        value(runs.values(), runs.get_physical_index(row))
    } else if let Some(runs) = array.as_run_opt::<Int64Type>() {
        value(runs.values(), runs.get_physical_index(row))
    } else {
        Err(unknown(array.data_type()))
    }
}

fn list(items: &ArrayRef) -> Result<String> {
    let cells = (0..items.len()).map(|item| value(items, item));
    Ok(format!(
        "[{}]",
        cells.collect::<Result<Vec<_>>>()?.join(",")
    ))
}

/// Quoted, so that neither a separator nor the word NULL inside it can deceive.
fn text(bytes: &[u8]) -> String {
    if bytes.len() > LONGEST_TEXT {
        return format!("\"{} bytes, {:x}\"", bytes.len(), xxh3_64(bytes));
    }
    match std::str::from_utf8(bytes) {
        Ok(plain) if !plain.contains(['"', '\\']) => format!("\"{plain}\""),
        _ => format!("\"{}\"", bytes.escape_ascii()),
    }
}

fn unknown(data_type: &DataType) -> DataFusionError {
    DataFusionError::NotImplemented(format!("comparing values of type {data_type}"))
}
