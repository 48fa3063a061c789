//! skeleton
use arrow::datatypes::DataType;
use datafusion_common::Result;
pub(crate) fn check_supported(_index: usize, _key: &DataType) -> Result<()> {
    Ok(())
}
