//! Join keys: normalised once, hashed once, compared by type.
//!
//! Job: turn key arrays into hashes, validity and comparators, all over the same normal form, so
//! that table, buckets and filters agree. Not its job: where rows live, or what a match means.
//!
//! Equality is that of the pinned `HashJoinExec`: arrow's total order per column after `-0.0`
//! became `0.0` in float columns (apache/datafusion#22835), NULLs by the join's [`NullEquality`].

mod compare;
mod hash;
mod ordinal;

use arrow::array::{Array, ArrayRef, make_comparator, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use datafusion_common::utils::normalize_float_zero;
use datafusion_common::{NullEquality, Result};

pub(crate) use compare::KeyComparator;
pub(crate) use hash::{bucket_of, remixed};
pub(crate) use ordinal::{KeyRange, Visitor, has_range, key_range, visit_ordinals};

use crate::error;

/// The keys of one batch in their normal form.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) columns: Vec<ArrayRef>,
    /// One per row, or none where they were not asked for.
    pub(crate) hashes: Vec<u64>,
    /// Rows that can match at all; `None` means all of them.
    pub(crate) valid: Option<NullBuffer>,
}

impl Keys {
    /// # Errors
    /// If a key cannot be hashed, which construction has ruled out by [`check_supported`].
    pub(crate) fn new(columns: &[ArrayRef], rows: usize, nulls: NullEquality) -> Result<Self> {
        let mut keys = Self::unhashed(columns, nulls);
        keys.hashes = hash::hash_rows(&keys.columns, rows)?;
        Ok(keys)
    }

    /// For tables that are addressed by keys.
    pub(crate) fn unhashed(columns: &[ArrayRef], nulls: NullEquality) -> Self {
        let columns = normalized(columns);
        let valid = match nulls {
            NullEquality::NullEqualsNull => None,
            NullEquality::NullEqualsNothing => {
                let nulls: Vec<_> = columns.iter().map(Array::logical_nulls).collect();
                NullBuffer::union_many(nulls.iter().map(Option::as_ref))
                    .filter(|nulls| nulls.null_count() > 0)
            }
        };
        Self {
            columns,
            hashes: Vec::new(),
            valid,
        }
    }

    /// The same keys with forced collisions.
    #[cfg(feature = "testing")]
    pub(crate) fn masked(mut self, mask: u64) -> Self {
        self.hashes.iter_mut().for_each(|hash| *hash &= mask);
        self
    }
}

/// The normal form of key columns; arrays without a `-0.0` are passed on as they are.
pub(crate) fn normalized(columns: &[ArrayRef]) -> Vec<ArrayRef> {
    columns.iter().map(normalize_float_zero).collect()
}

/// Whether keys of this type can be hashed and compared; asked of those who do it.
///
/// # Errors
/// A plan error that names the key and the cause.
pub(crate) fn check_supported(index: usize, key: &DataType) -> Result<()> {
    let refuse = |cause: String| error::key_unsupported(index, key, &cause);
    let sample = new_null_array(key, 1);
    let comparator = make_comparator(sample.as_ref(), sample.as_ref(), SortOptions::default());
    comparator.map(drop).map_err(|e| refuse(e.to_string()))?;
    hash::hash_rows(&[sample], 1)
        .map(drop)
        .map_err(|e| refuse(e.to_string()))
}
