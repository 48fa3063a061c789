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

    /// Hashes of 1,000 different keys of each type; lists of few items and small numbers are fewer.
    fn hashes_by_type() -> Vec<(String, Vec<u64>)> {
        use crate::testing::{KeyKind, PayloadKind};
        let codes: Vec<_> = (0..1000).map(Some).collect();
        let mut all: Vec<(String, Vec<ArrayRef>)> = Vec::new();
        for kind in KeyKind::ALL {
            all.push((format!("{kind:?}"), kind.arrays(&codes).unwrap()));
        }
        for kind in PayloadKind::OTHERS {
            all.push((format!("{kind:?}"), vec![kind.array(0..1000).unwrap()]));
        }
        let hashes = all.into_iter().filter_map(|(name, columns)| {
            let columns = super::super::normalized(&columns);
            let mut hashes = hash_rows(&columns, 1000).ok()?;
            hashes.sort_unstable();
            hashes.dedup();
            (hashes.len() >= 500).then_some((name, hashes))
        });
        hashes.collect()
    }

    /// databend#19753: a hash whose upper bits were always 0.
    #[test]
    fn buckets_are_even_at_every_level_for_every_type_of_key() {
        let types = hashes_by_type();
        assert!(types.len() > 35, "{} types", types.len());
        for (name, hashes) in types {
            for level in (0..8).chain((8..255).step_by(13)) {
                let skew = fullest_over_mean(&hashes, level, 16);
                assert!(skew < 2.0, "{name}, level {level}: {skew}");
            }
            // Every bucket is used by many at once, and the first two by half each.
            for level in [0, 1, 6] {
                let halves = fullest_over_mean(&hashes, level, 2);
                assert!(halves < 1.2, "{name}, level {level}: {halves}");
            }
        }
    }

    /// ASTERIXDB-2783: below an exchange, whatever the key and the number of partitions.
    #[test]
    fn every_type_of_key_is_even_below_a_repartition() {
        use crate::testing::KeyKind;
        let kinds = [
            KeyKind::Int32,
            KeyKind::Utf8,
            KeyKind::Utf8View,
            KeyKind::Pair,
            KeyKind::Dictionary,
            KeyKind::Decimal128,
            KeyKind::Timestamp,
            KeyKind::Struct,
            KeyKind::Float64,
        ];
        for kind in kinds {
            let codes: Vec<_> = (0..32_000).map(Some).collect();
            let columns = kind.arrays(&codes).unwrap();
            let mut routed = vec![0; codes.len()];
            create_hashes(&columns, &DataFusionState::with_seed(0), &mut routed).unwrap();
            let hashes = hash_rows(&super::super::normalized(&columns), codes.len()).unwrap();
            for partitions in [2, 3, 8, 16, 24] {
                let own = hashes.iter().zip(&routed);
                let mut own: Vec<u64> = own
                    .filter(|(_, route)| *route % partitions == 1)
                    .map(|(hash, _)| *hash)
                    .collect();
                own.sort_unstable();
                own.dedup();
                for level in 0..3 {
                    let skew = fullest_over_mean(&own, level, 16);
                    assert!(
                        skew < 1.6,
                        "{kind:?} of {partitions}, level {level}: {skew}"
                    );
                }
            }
        }
    }

    /// velox#8715: rows of one bucket had only an eighth of the table to themselves. As many slots are
    /// in use, and the fullest is no fuller, for rows of one bucket as for any others.
    #[test]
    fn rows_of_one_bucket_spread_over_the_whole_table() {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..160_000));
        let hashes = hash_rows(&[keys], 160_000).unwrap();
        let slots_of = |hashes: &[u64]| {
            let slots = 2 * hashes.len();
            let mut used = vec![0_u32; slots];
            for hash in hashes {
                used[usize::try_from(((hash >> 32) * slots as u64) >> 32).unwrap()] += 1;
            }
            let in_use = used.iter().filter(|n| **n > 0).count();
            // The mean length of the chain that a row is in, times the rows.
            let walked: u32 = used.iter().map(|n| n * n).sum();
            (in_use, walked)
        };
        let any = &hashes[..10_000];
        for level in 0..8 {
            let is_own =
                |hash: &&u64| bucket_of(**hash, Level(level), FanOut::new(16)).index() == 11;
            let own: Vec<u64> = hashes.iter().filter(is_own).copied().take(9000).collect();
            let any = &any[..own.len()];
            let ((in_use, walked), (in_use_any, walked_any)) = (slots_of(&own), slots_of(any));
            assert!(
                in_use.abs_diff(in_use_any) * 20 < in_use_any,
                "level {level}"
            );
            assert!(walked * 5 < walked_any * 6, "level {level}");
        }
    }
}
