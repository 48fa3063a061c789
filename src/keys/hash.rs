//! Seeds and hash bits: the only place that knows them.
//!
//! The hash is keyed `ahash` with seeds of our own. It is neither the hash that `RepartitionExec`
//! spreads rows over partitions with (all rows of a partition agree on part of that one, so buckets
//! made from it stay empty) nor the one `HashJoinExec` uses.
//!
//! Tables are addressed by the high bits of the hash. A bucket at level `n` is the low bits of
//! `mix(hash, n)`, a bijection keyed by the level. So windows of bits never run out however deep a
//! bucket is split, the rows of one bucket still spread over the whole table, and equal hashes stay
//! equal.

use ahash::RandomState;
use arrow::array::ArrayRef;
use datafusion_common::Result;
use datafusion_common::hash_utils::create_hashes_with_hasher;

use crate::bucket::{BucketId, FanOut, Level};

/// Digits of pi, in hexadecimal: nothing up the sleeve.
const SEEDS: [u64; 4] = [
    0x243f_6a88_85a3_08d3,
    0x1319_8a2e_0370_7344,
    0xa409_3822_299f_31d0,
    0x082e_fa98_ec4e_6c89,
];

/// One hash per row of `columns`, which are in their normal form.
pub(super) fn hash_rows(columns: &[ArrayRef], rows: usize) -> Result<Vec<u64>> {
    let [a, b, c, d] = SEEDS;
    let state = RandomState::with_seeds(a, b, c, d);
    // Rows whose key is NULL leave their entry untouched, so it must be the same everywhere.
    let mut hashes = vec![0; rows];
    create_hashes_with_hasher(columns, &state, &mut hashes)?;
    Ok(hashes)
}

/// The finaliser of `MurmurHash3` (Austin Appleby, public domain) over the hash and the level.
fn mix(hash: u64, level: Level) -> u64 {
    let mut x = hash ^ (u64::from(level.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// Bits for a Bloom filter that neither tables nor buckets look at: those of a level that no split
/// reaches.
#[inline]
pub(crate) fn remixed(hash: u64) -> u64 {
    mix(hash, Level(u8::MAX))
}

/// The bucket of a row at a level.
#[inline]
pub(crate) fn bucket_of(hash: u64, level: Level, fan_out: FanOut) -> BucketId {
    // At most 256 buckets, so 16 bits hold any of them.
    let low = (mix(hash, level) & 0xffff) as u16;
    BucketId(low & fan_out.mask())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use arrow::array::{Date32Array, Int32Array, Int64Array, StringArray};
    use datafusion_common::hash_utils::{RandomState as DataFusionState, create_hashes};

    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of a few million are exact"
    )]
    fn fullest_over_mean(hashes: &[u64], level: u8, fan_out: usize) -> f64 {
        let mut counts = vec![0_usize; fan_out];
        for hash in hashes {
            counts[bucket_of(*hash, Level(level), FanOut::new(fan_out)).index()] += 1;
        }
        let mean = hashes.len() as f64 / fan_out as f64;
        *counts.iter().max().unwrap() as f64 / mean
    }

    #[test]
    fn buckets_are_even_at_every_level_for_keys_of_every_shape() {
        let keys: Vec<ArrayRef> = vec![
            Arc::new(Int32Array::from_iter_values(0..16_000)),
            Arc::new(Int64Array::from_iter_values((0..16_000).map(|i| i << 32))),
            Arc::new(Date32Array::from_iter_values(0..16_000)),
            Arc::new(StringArray::from_iter_values(
                (0..16_000).map(|i| format!("{i}")),
            )),
        ];
        for key in keys {
            let hashes = hash_rows(&[key], 16_000).unwrap();
            for level in 0..40 {
                let skew = fullest_over_mean(&hashes, level, 16);
                assert!(skew < 1.2, "level {level}: {skew}");
            }
        }
    }

    #[test]
    fn buckets_are_even_below_a_repartition_and_inside_a_bucket() {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..2_048_000));
        let mut routed = vec![0; keys.len()];
        create_hashes([&keys], &DataFusionState::with_seed(0), &mut routed).unwrap();
        let hashes = hash_rows(std::slice::from_ref(&keys), keys.len()).unwrap();
        let mut kept: Vec<u64> = hashes
            .into_iter()
            .zip(&routed)
            .filter(|(_, r)| *r % 8 == 3)
            .map(|(h, _)| h)
            .collect();
        for level in 0..3 {
            // About 1,000 rows are left at level 2: three standard deviations are 40 % of the mean.
            let most = if kept.len() > 10_000 { 1.1 } else { 1.5 };
            let skew = fullest_over_mean(&kept, level, 16);
            assert!(
                skew < most,
                "level {level}: {skew} over {} rows",
                kept.len()
            );
            let id = BucketId(5);
            kept.retain(|h| bucket_of(*h, Level(level), FanOut::new(16)) == id);
        }
    }
}
