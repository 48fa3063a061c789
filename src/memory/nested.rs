//! The same array with other leaves: what texts, views and dictionaries inside of nested columns hold
//! on to is theirs alone.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, GenericListViewArray, MapArray,
    OffsetSizeTrait, StructArray, UInt64Array, new_empty_array,
};
use arrow::compute::take;
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
        DataType::ListView(_) => of_list_view(array.as_list_view::<i32>(), change)?,
        DataType::LargeListView(_) => of_list_view(array.as_list_view::<i64>(), change)?,
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

/// Without the items that are in none of the lists.
fn of_list_view<O: OffsetSizeTrait>(
    list: &GenericListViewArray<O>,
    change: &dyn Fn(&ArrayRef) -> Result<ArrayRef>,
) -> Result<ArrayRef> {
    let field = match list.data_type() {
        DataType::ListView(field) | DataType::LargeListView(field) => Arc::clone(field),
        _ => return Ok(Arc::new(list.clone())),
    };
    let (sizes, nulls) = (list.sizes().clone(), list.nulls().cloned());
    let (offsets, items) = match own_items(list) {
        // Lists that share items keep them in common.
        None => (list.offsets().clone(), Arc::clone(list.values())),
        Some((offsets, items)) => {
            let items = match items.is_empty() {
                // `take` of no rows panics for run-end encoded columns.
                true => new_empty_array(field.data_type()),
                false => take(list.values(), &UInt64Array::from(items), None)?,
            };
            (offsets.into(), items)
        }
    };
    let items = with_leaves(&items, change)?;
    Ok(Arc::new(GenericListViewArray::<O>::try_new(
        field, offsets, sizes, items, nulls,
    )?))
}

/// The items of all lists one after the other, and where each list starts then; nothing if that would
/// be no fewer than there are.
fn own_items<O: OffsetSizeTrait>(list: &GenericListViewArray<O>) -> Option<(Vec<O>, Vec<u64>)> {
    let sizes = list.sizes().iter().map(|size| size.as_usize());
    if sizes.clone().sum::<usize>() >= list.values().len() {
        return None;
    }
    let mut offsets = Vec::with_capacity(list.len());
    let mut items = Vec::new();
    for (offset, size) in list.offsets().iter().zip(sizes) {
        offsets.push(O::from_usize(items.len())?);
        let first = offset.as_usize() as u64;
        items.extend(first..first + size as u64);
    }
    Some((offsets, items))
}
