//! Answers as text, so that they can be compared as multisets: the queries here have no floats.

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::Result;

/// The rows, sorted, below the names and types of their columns.
///
/// # Errors
/// If a value cannot be shown.
pub fn sorted(schema: &Schema, batches: &[RecordBatch]) -> Result<Vec<String>> {
    let mut rows = Vec::new();
    let options = FormatOptions::default().with_null("NULL");
    for batch in batches {
        let columns = batch.columns().iter();
        let columns = columns.map(|c| ArrayFormatter::try_new(c.as_ref(), &options));
        let columns = columns.collect::<std::result::Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let values: Vec<_> = columns.iter().map(|c| c.value(row).to_string()).collect();
            rows.push(values.join(" | "));
        }
    }
    rows.sort_unstable();
    let names: Vec<_> = schema.fields().iter().map(|f| f.name().as_str()).collect();
    rows.insert(0, names.join(" | "));
    Ok(rows)
}
