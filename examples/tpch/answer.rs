//! When two answers are equal: as multisets of rows, floats within a tolerance.
//!
//! Both are sorted by their exact columns, then by their floats. Within a group of rows that are
//! exactly alike but for floats, each row of one answer takes a row of the other that is close.
//! Order is not compared, since ties may come in any.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::fs::File;
use std::io::BufReader;
use std::iter;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int8Array, RecordBatch};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Float64Type};
use arrow::row::{RowConverter, Rows, SortField};
use arrow_ipc::reader::StreamReader;

use crate::Result;
use crate::supervisor::Finished;

/// Floats are sums of up to millions of values in whatever order partitions gave them.
const RELATIVE_TOLERANCE: f64 = 1e-9;

/// Whether two workers gave the same answer.
pub(crate) async fn equal(left: &Finished, right: &Finished) -> Result<bool> {
    let (left, right) = (left.answer(), right.answer());
    tokio::task::spawn_blocking(move || equal_batches(&read(&left)?, &read(&right)?)).await?
}

fn read(path: &Path) -> Result<RecordBatch> {
    let reader = StreamReader::try_new(BufReader::new(File::open(path)?), None)?;
    let schema = reader.schema();
    let batches = reader.collect::<Result<Vec<_>, _>>()?;
    Ok(concat_batches(&schema, &batches)?)
}

fn equal_batches(left: &RecordBatch, right: &RecordBatch) -> Result<bool> {
    let types = |batch: &RecordBatch| -> Vec<DataType> {
        let columns = batch.columns().iter();
        columns.map(|column| column.data_type().clone()).collect()
    };
    let types_left = types(left);
    if types_left != types(right) || left.num_rows() != right.num_rows() {
        return Ok(false);
    }
    let exact = types_left.into_iter().filter(|of| !of.is_floating());
    let fields = iter::once(DataType::Int8).chain(exact).map(SortField::new);
    let mut converter = RowConverter::new(fields.collect())?;
    let left = Side::new(left, &mut converter)?;
    let right = Side::new(right, &mut converter)?;
    let (order_left, order_right) = (left.sorted(), right.sorted());
    let mut start = 0;
    for group in order_left.chunk_by(|&a, &b| left.exact.row(a) == left.exact.row(b)) {
        let other = &order_right[start..start + group.len()];
        start += group.len();
        let key = left.exact.row(group[0]);
        let alike = other.iter().all(|&row| right.exact.row(row) == key);
        if !alike || !left.close_to(group, &right, other) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An answer, its columns parted in exact ones and floats.
struct Side {
    exact: Rows,
    floats: Vec<Vec<Option<f64>>>,
}

impl Side {
    fn new(batch: &RecordBatch, converter: &mut RowConverter) -> Result<Self> {
        let columns = batch.columns().iter().cloned();
        let (floats, exact): (Vec<_>, Vec<_>) =
            columns.partition(|column| column.data_type().is_floating());
        // A column of zeros first, so that there is a key where all columns are floats.
        let zeros: ArrayRef = Arc::new(Int8Array::from(vec![0; batch.num_rows()]));
        let exact: Vec<ArrayRef> = iter::once(zeros).chain(exact).collect();
        let as_numbers = |column: &ArrayRef| -> Result<Vec<Option<f64>>> {
            let column = cast(column, &DataType::Float64)?;
            Ok(column.as_primitive::<Float64Type>().iter().collect())
        };
        Ok(Self {
            exact: converter.convert_columns(&exact)?,
            floats: floats.iter().map(as_numbers).collect::<Result<_>>()?,
        })
    }

    fn sorted(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.exact.num_rows()).collect();
        let floats = |a: usize, b: usize| {
            let columns = self.floats.iter();
            columns
                .map(|column| compare(column[a], column[b]))
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        };
        order.sort_unstable_by(|&a, &b| {
            let exact = self.exact.row(a).cmp(&self.exact.row(b));
            exact.then_with(|| floats(a, b))
        });
        order
    }

    /// Whether each of these rows has a partner of its own among the other's.
    fn close_to(&self, rows: &[usize], other: &Self, others: &[usize]) -> bool {
        let mut free: VecDeque<usize> = others.iter().copied().collect();
        rows.iter().all(|&row| {
            let columns = || self.floats.iter().zip(&other.floats);
            let partner = free
                .iter()
                .position(|&it| columns().all(|(mine, its)| close(mine[row], its[it])));
            partner.and_then(|at| free.remove(at)).is_some()
        })
    }
}

fn compare(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

fn close(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => {
            let near = (a - b).abs() <= RELATIVE_TOLERANCE * a.abs().max(b.abs());
            near || a.total_cmp(&b).is_eq() || (a.is_nan() && b.is_nan())
        }
        (a, b) => a.is_none() && b.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Float64Array, Int64Array};

    use super::*;

    /// An answer with a column of integers and one of floats.
    fn answer(rows: &[(Option<i64>, Option<f64>)]) -> RecordBatch {
        let keys: Int64Array = rows.iter().map(|row| row.0).collect();
        let floats: Float64Array = rows.iter().map(|row| row.1).collect();
        let columns: [(&str, ArrayRef); 2] = [("key", Arc::new(keys)), ("float", Arc::new(floats))];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    fn are_equal(
        left: &[(Option<i64>, Option<f64>)],
        right: &[(Option<i64>, Option<f64>)],
    ) -> bool {
        equal_batches(&answer(left), &answer(right)).unwrap()
    }

    #[test]
    fn order_does_not_count_but_multiplicity_does() {
        let (a, b) = ((Some(1), Some(0.5)), (Some(2), None));
        assert!(are_equal(&[a, b, a], &[a, a, b]));
        assert!(!are_equal(&[a, b, a], &[a, b, b]));
        assert!(!are_equal(&[a, b], &[a, b, b]));
    }

    #[test]
    fn floats_are_compared_with_tolerance_and_integers_exactly() {
        let near = 1e6 + 1e-6;
        assert!(are_equal(&[(None, Some(1e6))], &[(None, Some(near))]));
        assert!(!are_equal(&[(None, Some(1e6))], &[(None, Some(1e6 + 1.0))]));
        assert!(!are_equal(&[(Some(1), None)], &[(Some(2), None)]));
        assert!(!are_equal(&[(Some(1), None)], &[(None, None)]));
        assert!(are_equal(
            &[(None, Some(f64::NAN))],
            &[(None, Some(-f64::NAN))]
        ));
        let infinite = (None, Some(f64::INFINITY));
        assert!(are_equal(&[infinite], &[infinite]));
    }

    #[test]
    fn an_answer_of_floats_alone_has_rows_to_compare() {
        let only = |values: Vec<f64>| {
            let column: ArrayRef = Arc::new(Float64Array::from(values));
            RecordBatch::try_from_iter([("float", column)]).unwrap()
        };
        let left = only(vec![1.0, 2.0]);
        assert!(equal_batches(&left, &only(vec![2.0, 1.0])).unwrap());
        assert!(!equal_batches(&left, &only(vec![2.0, 2.0])).unwrap());
    }
}
