//! The same array with other leaves: what texts, views and dictionaries inside of nested columns hold
//! on to is theirs alone.

use std::sync::Arc;

use arrow::array::Array;
use arrow::array::{
    ArrayRef, AsArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, StructArray,
};
use arrow::datatypes::DataType;
use datafusion_common::Result;

/// An array with each leaf of structs, lists and maps, or itself, replaced by what `change` makes of
/// it: an array of the same type and length.
///
/// # Errors
/// If `change` fails, or arrow refuses to put a nested array together again.
pub(super) fn with_leaves(
    array: &ArrayRef,
    change: &dyn Fn(&ArrayRef) -> Result<ArrayRef>,
) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        DataType::Struct(_) => Arc::new(of_struct(array.as_struct(), change)?),
        DataType::List(_) => of_list(array.as_list::<i32>(), change)?,
        DataType::LargeList(_) => of_list(array.as_list::<i64>(), change)?,
        DataType::FixedSizeList(field, size) => {
            let list = array.as_fixed_size_list();
            let values = with_leaves(list.values(), change)?;
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
            let entries = of_struct(map.entries(), change)?;
            let (offsets, nulls) = (map.offsets().clone(), map.nulls().cloned());
            let field = Arc::clone(field);
            Arc::new(MapArray::try_new(
                field, offsets, entries, nulls, *is_sorted,
            )?)
        }
        _ => change(array)?,
    })
}

fn of_struct(
    array: &StructArray,
    change: &dyn Fn(&ArrayRef) -> Result<ArrayRef>,
) -> Result<StructArray> {
    let columns = array
        .columns()
        .iter()
        .map(|column| with_leaves(column, change))
        .collect::<Result<Vec<_>>>()?;
    let (fields, nulls) = (array.fields().clone(), array.nulls().cloned());
    Ok(StructArray::try_new_with_length(
        fields,
        columns,
        nulls,
        array.len(),
    )?)
}

fn of_list<O: OffsetSizeTrait>(
    list: &GenericListArray<O>,
    change: &dyn Fn(&ArrayRef) -> Result<ArrayRef>,
) -> Result<ArrayRef> {
    let field = match list.data_type() {
        DataType::List(field) | DataType::LargeList(field) => Arc::clone(field),
        _ => return Ok(Arc::new(list.clone())),
    };
    let values = with_leaves(list.values(), change)?;
    let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
    Ok(Arc::new(GenericListArray::<O>::try_new(
        field, offsets, values, nulls,
    )?))
}
