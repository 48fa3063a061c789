//! What every phase of one partition's join needs, and rows as the phases hand them on.

use std::ptr::addr_eq;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::SchemaRef;
use datafusion_common::Result;

use super::builder::{GraceHashJoin, SideSpec};
use crate::error;
use crate::keys::Keys;
use crate::memory::{
    Budget, ROW_OVERHEAD, batch_bytes, collect_words, compact, needed_bytes, restored, rows_bytes,
    shared_bytes, words_bytes_of_row,
};
use crate::semantics::Side;
use crate::spill::Spiller;
use crate::stats::StatsCell;
use crate::table::MAX_ROWS;

/// What looking up a row takes besides: its number in the lists of rows looked up, sought and asked
/// about, and of its match.
const LOOKUP_OVERHEAD: usize = 4 * size_of::<u32>();

/// One running join of one partition.
pub(crate) struct JoinContext {
    pub(crate) join: Arc<GraceHashJoin>,
    pub(crate) budget: Arc<Budget>,
    pub(crate) spiller: Arc<Spiller>,
    pub(crate) stats: Arc<StatsCell>,
    pub(crate) batch_size: usize,
    pub(crate) partition: usize,
    /// The bytes a row that computed keys take, by side.
    pub(crate) key_bytes: KeyBytes,
}

/// The bytes a row that the keys of each side take besides the columns that they are made of: what
/// was seen so far.
#[derive(Debug, Default)]
pub(crate) struct KeyBytes {
    build: AtomicUsize,
    probe: AtomicUsize,
}

impl KeyBytes {
    fn of(&self, side: Side) -> &AtomicUsize {
        match side {
            Side::Build => &self.build,
            Side::Probe => &self.probe,
        }
    }

    fn note(&self, side: Side, keys: &[ArrayRef], batch: &RecordBatch) {
        let is_column = |key: &&ArrayRef| {
            let same = |column: &ArrayRef| addr_eq(Arc::as_ptr(key), Arc::as_ptr(column));
            batch.columns().iter().any(same)
        };
        let computed = keys.iter().filter(|key| !is_column(key));
        let bytes = computed.map(needed_bytes).sum::<usize>();
        if bytes > 0 {
            let mean = bytes.div_ceil(batch.num_rows().max(1));
            self.of(side).fetch_max(mean, Relaxed);
        }
    }
}

impl JoinContext {
    pub(crate) fn side(&self, side: Side) -> &SideSpec {
        match side {
            Side::Build => &self.join.build,
            Side::Probe => &self.join.probe,
        }
    }

    /// The most rows that are loaded at a time.
    #[cfg_attr(
        not(feature = "testing"),
        expect(clippy::unused_self, reason = "only tests set another cap")
    )]
    pub(crate) fn max_rows(&self) -> usize {
        #[cfg(feature = "testing")]
        return MAX_ROWS.min(self.join.config.max_rows());
        #[cfg(not(feature = "testing"))]
        MAX_ROWS
    }

    /// Whether hashes are made worse than they are, so that tables of hashes are to be seen at work.
    #[cfg_attr(
        not(feature = "testing"),
        expect(clippy::unused_self, reason = "only tests force collisions")
    )]
    pub(crate) fn has_forced_collisions(&self) -> bool {
        #[cfg(feature = "testing")]
        return self.join.config.hash_mask() != u64::MAX;
        #[cfg(not(feature = "testing"))]
        false
    }

    /// The needed columns of an input batch.
    pub(crate) fn narrow(&self, side: Side, batch: &RecordBatch) -> Result<RecordBatch> {
        let spec = self.side(side);
        let columns = spec.needed.iter().map(|index| {
            let column = batch.columns().get(*index);
            column.cloned().ok_or_else(|| {
                error::internal(format!(
                    "an input batch of the {} side is too narrow",
                    side.name()
                ))
            })
        });
        new_batch(
            &spec.schema,
            columns.collect::<Result<_>>()?,
            batch.num_rows(),
        )
    }

    /// What a row in hand takes besides its columns.
    pub(crate) fn row_overhead(&self, side: Side) -> usize {
        ROW_OVERHEAD + LOOKUP_OVERHEAD + self.computed_bytes(side)
    }

    /// The bytes a row that computed keys take.
    pub(crate) fn computed_bytes(&self, side: Side) -> usize {
        self.key_bytes.of(side).load(Relaxed)
    }

    /// The keys of rows that hold the needed columns, as they are or as they are stored.
    pub(crate) fn keys(&self, side: Side, batch: &RecordBatch) -> Result<Keys> {
        let (columns, from) = self.key_columns(side, batch)?;
        let keys = Keys::new(&columns, batch.num_rows(), self.join.null_equality)?;
        self.key_bytes.note(side, &keys.columns, &from);
        #[cfg(feature = "testing")]
        let keys = keys.masked(self.join.config.hash_mask());
        Ok(keys)
    }

    /// The same without hashes.
    pub(crate) fn unhashed_keys(&self, side: Side, batch: &RecordBatch) -> Result<Keys> {
        let (columns, from) = self.key_columns(side, batch)?;
        let keys = Keys::unhashed(&columns, self.join.null_equality);
        self.key_bytes.note(side, &keys.columns, &from);
        Ok(keys)
    }

    /// The keys as they are computed, and the columns that they are made of.
    fn key_columns(&self, side: Side, batch: &RecordBatch) -> Result<(Vec<ArrayRef>, RecordBatch)> {
        let spec = self.side(side);
        let mut keys = batch.project(&spec.key_columns)?;
        if batch.schema_ref().fields() != spec.schema.fields() {
            keys = restored(&keys, &Arc::new(spec.schema.project(&spec.key_columns)?))?;
        }
        let columns = spec.keys.evaluate(&keys)?;
        for (column, expected) in columns.iter().zip(spec.keys.data_types()) {
            if column.len() != batch.num_rows() || !column.data_type().equals_datatype(&expected) {
                return Err(error::bad_keys(
                    side.name(),
                    column.len(),
                    column.data_type(),
                ));
            }
        }
        Ok((columns, keys))
    }
}

/// A batch of `rows` rows, of no columns too.
pub(crate) fn new_batch(
    schema: &SchemaRef,
    columns: Vec<ArrayRef>,
    rows: usize,
) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns,
        &options,
    )?)
}

/// The given rows of a batch, in the given order, pinning nothing else.
pub(crate) fn take_rows(batch: &RecordBatch, rows: &[u32]) -> Result<RecordBatch> {
    if rows.is_empty() {
        // `take` of no rows panics for run-end encoded columns.
        return Ok(RecordBatch::new_empty(batch.schema()));
    }
    let indices = UInt32Array::from(rows.to_vec());
    let columns = batch
        .columns()
        .iter()
        .map(|column| collect_words(&take(column, &indices, None)?));
    compact(&new_batch(
        batch.schema_ref(),
        columns.collect::<Result<_>>()?,
        rows.len(),
    )?)
}

/// Rows that are held, with their hashes.
#[derive(Debug)]
pub(crate) struct Rows {
    pub(crate) batch: RecordBatch,
    pub(crate) hashes: Vec<u64>,
    /// The bytes of words of dictionaries that are counted with rows before them.
    counted: usize,
}

impl Rows {
    pub(crate) fn new(batch: RecordBatch, hashes: Vec<u64>) -> Self {
        Self::sharing(batch, hashes, 0)
    }

    /// Rows of which `counted` bytes are words that rows before them have too.
    pub(crate) fn sharing(batch: RecordBatch, hashes: Vec<u64>, counted: usize) -> Self {
        Self {
            batch,
            hashes,
            counted,
        }
    }

    /// Counts words that `before` has too with those, if all words are the same.
    pub(crate) fn share_with(&mut self, before: &Self) {
        let are_shared = have_same_words(&self.batch, &before.batch);
        self.counted = if are_shared {
            shared_bytes(&self.batch)
        } else {
            0
        };
    }

    /// Counts all words with these rows; returns the bytes that this adds.
    pub(crate) fn count_words(&mut self) -> usize {
        std::mem::take(&mut self.counted)
    }

    pub(crate) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// The bytes that holding them takes.
    pub(crate) fn bytes(&self) -> usize {
        let rows = batch_bytes(&self.batch).saturating_sub(self.counted);
        rows + self.hashes.capacity() * size_of::<u64>()
    }

    /// The mean bytes of a row by itself.
    pub(crate) fn row_bytes(&self) -> usize {
        let columns = rows_bytes(&self.batch) / self.len().max(1);
        size_of::<u64>() + columns + words_bytes_of_row(&self.batch)
    }

    pub(crate) fn take(&self, rows: &[u32]) -> Result<Self> {
        let mut hashes = Vec::with_capacity(rows.len());
        hashes.extend(rows.iter().filter_map(|row| self.hashes.get(*row as usize)));
        Ok(Self::new(take_rows(&self.batch, rows)?, hashes))
    }
}

/// Whether two batches of one schema have the same dictionaries.
fn have_same_words(one: &RecordBatch, other: &RecordBatch) -> bool {
    let mut pairs = one.columns().iter().zip(other.columns());
    pairs.all(|(one, other)| {
        let words = one
            .as_any_dictionary_opt()
            .zip(other.as_any_dictionary_opt());
        words.is_none_or(|(one, other)| Arc::ptr_eq(one.values(), other.values()))
    })
}

/// Row numbers `0..rows`.
pub(crate) fn all_rows(rows: usize) -> std::ops::Range<u32> {
    // Batches are far smaller; arrow's own kernels count their rows in 32 bits too.
    0..u32::try_from(rows).unwrap_or(u32::MAX)
}
