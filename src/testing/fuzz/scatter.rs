//! Rows by bucket: each once, in order, equal hashes together, and evenly for keys of any shape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use arrow::array::{ArrayRef, Int64Array};
use datafusion_common::hash_utils::{RandomState, create_hashes};
use datafusion_common::{NullEquality, Result as JoinResult};

use super::choices::Choices;
use super::{Target, paste};
use crate::bucket::{self, FanOut, Level};
use crate::keys::{Keys, bucket_of};

/// Rows per bucket from which on balance is asked for: the fullest bucket of random rows has then
/// more than [`MOST_OVER_MEAN`] times the mean less than once in 10^15 tries.
const ROWS_PER_BUCKET: usize = 64;

/// What the fullest bucket may have, as a multiple of the mean.
const MOST_OVER_MEAN: f64 = 2.5;

/// Hashes that are split, and one of the buckets again.
#[derive(Clone, PartialEq, Eq)]
pub struct Scatter {
    /// Hashes as they are.
    pub raw: Vec<u64>,
    /// Of these keys: the first one, and the step from one to the next, which must not be 0.
    pub keys: (i64, i64),
    /// So many keys.
    pub count: usize,
    /// Only the keys that a repartitioning to so many partitions sends to its first.
    pub partitions: u64,
    /// Rows that are left out: every so many-th; none if 0.
    pub leave_out: usize,
    /// Level of the first split, so that the last one is at most 255.
    pub level: u8,
    /// Buckets per level, and the bucket that is split again, modulo their number.
    pub splits: Vec<(usize, usize)>,
}

impl<'a> Arbitrary<'a> for Scatter {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut choices = Choices(u);
        let step = match choices.size(0..=2)? {
            0 => 1,
            1 => 1 << choices.size(0..=62)?,
            _ => i64::from_le_bytes(choices.bits()?.to_le_bytes()),
        };
        let first = match choices.once_in(2)? {
            true => i64::from_le_bytes(choices.bits()?.to_le_bytes()),
            false => i64::from(choices.small(0..=100)?),
        };
        let fan_outs: Vec<usize> = (1..=8).map(|bits| 1 << bits).collect();
        Ok(Self {
            keys: (first, if step == 0 { 1 } else { step }),
            count: choices.size(0..=6000)?,
            partitions: u64::from(choices.small(1..=8)?),
            leave_out: choices.of(&[0, 2, 3, 7])?,
            // Levels end at 255, which no data reaches; three splits stay below.
            level: u8::try_from(choices.small(0..=252)?).unwrap_or(0),
            splits: choices.list(1..=3, |choices| {
                Ok((choices.of(&fan_outs)?, choices.size(0..=255)?))
            })?,
            raw: choices.list(0..=40, Choices::bits)?,
        })
    }
}

impl Target for Scatter {
    const NAME: &'static str = "scatter";

    async fn check(&self) -> Result<(), String> {
        let all = |hashes: &[u64]| {
            let rows = (0..).take(hashes.len());
            let every = self.leave_out;
            rows.filter(|row: &u32| every == 0 || !(*row as usize + 1).is_multiple_of(every))
                .collect::<Vec<_>>()
        };
        self.splits_well(&self.raw, all(&self.raw), false)?;
        let hashes = self.hashes().map_err(|error| error.to_string())?;
        self.splits_well(&hashes, all(&hashes), self.are_distinct())
    }
}

impl Scatter {
    /// Whether no key comes twice, so that balance can be asked for.
    fn are_distinct(&self) -> bool {
        // The step's period is 2^64 over its largest power of two.
        64 - self.keys.1.trailing_zeros() > usize::BITS - self.count.leading_zeros()
    }

    fn hashes(&self) -> JoinResult<Vec<u64>> {
        let (first, step) = self.keys;
        let keys = (0_i64..).take(self.count);
        let keys = keys.map(|key| first.wrapping_add(key.wrapping_mul(step)));
        let keys: ArrayRef = Arc::new(keys.collect::<Int64Array>());
        let mut routed = vec![0; keys.len()];
        create_hashes([&keys], &RandomState::with_seed(0), &mut routed)?;
        let hashes = Keys::new(&[keys], self.count, NullEquality::NullEqualsNothing)?.hashes;
        let routed = hashes.into_iter().zip(routed);
        Ok(routed
            .filter(|(_, route)| route % self.partitions == 0)
            .map(|(hash, _)| hash)
            .collect())
    }

    fn splits_well(&self, hashes: &[u64], rows: Vec<u32>, evenly: bool) -> Result<(), String> {
        let mut rows = rows;
        let mut level = Level(self.level);
        for (fan_out, again) in &self.splits {
            let fan_out = FanOut::new(*fan_out);
            let scatter = bucket::Scatter::new(hashes, rows.iter().copied(), level, fan_out);
            let buckets: Vec<_> = scatter.buckets().collect();
            let mut expected: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
            for row in &rows {
                let hash = hashes.get(*row as usize).copied().unwrap_or_default();
                let bucket = bucket_of(hash, level, fan_out).index();
                expected.entry(bucket).or_default().push(*row);
            }
            let got = buckets.iter().map(|(id, rows)| (id.index(), *rows));
            let wanted = expected.iter().map(|(id, rows)| (*id, rows.as_slice()));
            if !got.eq(wanted) {
                return Err(format!("{level:?}: {buckets:?} for {expected:?}"));
            }
            if let Some(id) = expected.keys().find(|id| **id >= fan_out.get()) {
                return Err(format!("bucket {id} of {}", fan_out.get()));
            }
            if evenly {
                are_even(&buckets, rows.len(), fan_out).map_err(|e| format!("{level:?}: {e}"))?;
            }
            rows = expected
                .remove(&(again % fan_out.get()))
                .unwrap_or_default();
            level = level.next();
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a few thousand rows are exact")]
fn are_even<B>(buckets: &[(B, &[u32])], rows: usize, fan_out: FanOut) -> Result<(), String> {
    if rows < ROWS_PER_BUCKET * fan_out.get() {
        return Ok(());
    }
    let mean = rows as f64 / fan_out.get() as f64;
    let fullest = buckets.iter().map(|(_, rows)| rows.len()).max();
    let fullest = fullest.unwrap_or_default() as f64;
    if fullest > mean * MOST_OVER_MEAN {
        return Err(format!(
            "{fullest} rows in a bucket where the mean is {mean}"
        ));
    }
    Ok(())
}

impl fmt::Debug for Scatter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            raw,
            keys,
            count,
            partitions,
            leave_out,
            level,
            splits,
        } = self;
        paste::test(
            f,
            Self::NAME,
            format_args!(
                "Scatter {{
        raw: vec!{raw:?},
        keys: {keys:?},
        count: {count},
        partitions: {partitions},
        leave_out: {leave_out},
        level: {level},
        splits: vec!{splits:?},
    }}"
            ),
        )
    }
}
