//! Parts of the join by themselves, as benches measure them: finding matches, scattering rows.

use arrow::array::{ArrayRef, RecordBatch, UInt32Array};
use arrow::compute::take_record_batch;
use datafusion_common::{NullEquality, Result};

use crate::bucket::{FanOut, Level, Scatter};
use crate::keys::{KeyComparator, Keys, Visitor, key_range, visit_ordinals};
use crate::table::{Candidates, Cursor, JoinTable, Streamed, TableBuilder};

struct Collect<'a>(&'a mut Vec<u64>);

impl Visitor for Collect<'_> {
    fn visit(self, numbers: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) {
        self.0.extend(numbers);
    }
}

/// Loaded keys, to be looked up.
#[derive(Debug)]
pub struct Lookup {
    table: JoinTable,
    keys: Vec<Vec<ArrayRef>>,
}

impl Lookup {
    /// By hash.
    ///
    /// # Errors
    /// If the keys cannot be hashed.
    pub fn by_hash(keys: Vec<ArrayRef>) -> Result<Self> {
        let rows = keys.first().map_or(0, |column| column.len());
        let hashes = Keys::new(&keys, rows, NullEquality::NullEqualsNothing)?.hashes;
        let mut table = TableBuilder::hashed(rows);
        table.prepend(hashes.iter().copied(), |row| {
            hashes.get(row as usize).copied().unwrap_or_default()
        });
        Ok(Self {
            table: table.finish(),
            keys: vec![keys],
        })
    }

    /// By the keys themselves, whatever their range is; `None` if they are no single column of whole
    /// numbers.
    #[must_use]
    pub fn by_key(keys: Vec<ArrayRef>) -> Option<Self> {
        let [column] = keys.as_slice() else {
            return None;
        };
        let range = key_range(keys.iter(), u64::MAX)?;
        let slots = usize::try_from(range.span).ok()?.checked_add(1)?;
        let mut numbers = Vec::new();
        visit_ordinals(column, Collect(&mut numbers));
        let mut table = TableBuilder::direct(column.len(), range.smallest, slots);
        table.prepend(numbers.into_iter(), |_| 0);
        Some(Self {
            table: table.finish(),
            keys: vec![keys],
        })
    }

    /// How many pairs a batch of keys has.
    ///
    /// # Errors
    /// If the keys cannot be hashed or compared.
    pub fn pairs(&self, keys: &[ArrayRef]) -> Result<usize> {
        /// Candidates found at a time.
        const MOST: usize = 8192;
        let rows = keys.first().map_or(0, |column| column.len());
        let (mut heads, mut numbers) = (Vec::with_capacity(rows), Vec::new());
        let comparator = if self.table.is_direct() {
            for column in keys {
                visit_ordinals(column, Collect(&mut numbers));
            }
            None
        } else {
            let nulls = NullEquality::NullEqualsNothing;
            numbers = Keys::new(keys, rows, nulls)?.hashes;
            Some(KeyComparator::new(&self.keys, &[0], keys, nulls)?)
        };
        self.table.heads(numbers.iter().copied(), &mut heads);
        let rows: Vec<u32> = (0..).take(rows).collect();
        let streamed = Streamed {
            rows: &rows,
            hashes: &numbers,
            heads: &heads,
        };
        let (mut cursor, mut out, mut pairs) = (Cursor::default(), Candidates::default(), 0);
        while cursor.position < rows.len() {
            out.clear();
            self.table
                .candidates(&streamed, &mut cursor, MOST, &mut out);
            if let Some(comparator) = &comparator {
                comparator.retain_equal(&mut out.loaded, &mut out.streamed);
            }
            pairs += out.loaded.len();
        }
        Ok(pairs)
    }
}

/// Copies the rows of a batch to buckets by the hash of its first column; how many buckets have any.
///
/// # Errors
/// If the keys cannot be hashed, or the batch cannot be copied.
pub fn scatter(batch: &RecordBatch, fan_out: usize) -> Result<usize> {
    let keys = batch.columns().get(..1).unwrap_or_default();
    let hashes = Keys::new(keys, batch.num_rows(), NullEquality::NullEqualsNull)?.hashes;
    let rows = (0..).take(batch.num_rows());
    let scatter = Scatter::new(&hashes, rows, Level::FIRST, FanOut::new(fan_out));
    let mut buckets = 0;
    for (_, rows) in scatter.buckets() {
        take_record_batch(batch, &UInt32Array::from(rows.to_vec()))?;
        buckets += 1;
    }
    Ok(buckets)
}
