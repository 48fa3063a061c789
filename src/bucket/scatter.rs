//! The rows of a batch in order of their bucket: a counting sort, so rows of a bucket keep their
//! order.

use super::{BucketId, FanOut, Level};
use crate::keys::bucket_of;

/// Row numbers grouped by bucket.
#[derive(Debug)]
pub(crate) struct Scatter {
    rows: Vec<u32>,
    /// Where each bucket's rows start, and one more entry for the end.
    starts: Vec<usize>,
}

impl Scatter {
    /// Groups `rows` (numbers into `hashes`) by their bucket at `level`.
    pub(crate) fn new(
        hashes: &[u64],
        rows: impl Iterator<Item = u32> + Clone,
        level: Level,
        fan_out: FanOut,
    ) -> Self {
        let bucket = |row: u32| bucket_of(hashes[row as usize], level, fan_out).index();
        let mut starts = vec![0; fan_out.get() + 1];
        for row in rows.clone() {
            starts[bucket(row) + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut sorted = vec![0; starts[fan_out.get()]];
        for row in rows {
            let at = &mut next[bucket(row)];
            sorted[*at] = row;
            *at += 1;
        }
        Self {
            rows: sorted,
            starts,
        }
    }

    /// The buckets that have rows, with their rows in order.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (BucketId, &[u32])> {
        (0_u16..)
            .zip(self.starts.windows(2))
            .filter(|(_, range)| range[0] < range[1])
            .map(|(bucket, range)| (BucketId(bucket), &self.rows[range[0]..range[1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_goes_to_its_bucket_once_and_in_order() {
        let hashes: Vec<u64> = (0..1000_u64)
            .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect();
        let fan_out = FanOut::new(8);
        let scatter = Scatter::new(&hashes, (0..1000).filter(|r| r % 3 != 0), Level(2), fan_out);
        let mut seen = Vec::new();
        for (bucket, rows) in scatter.buckets() {
            assert!(rows.is_sorted());
            for row in rows {
                assert_eq!(bucket_of(hashes[*row as usize], Level(2), fan_out), bucket);
            }
            seen.extend_from_slice(rows);
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).filter(|r| r % 3 != 0).collect::<Vec<_>>());
    }

    #[test]
    fn buckets_without_rows_are_not_among_them() {
        let scatter = Scatter::new(&[7, 7], 0..2, Level(1), FanOut::new(16));
        let buckets: Vec<_> = scatter.buckets().collect();
        let bucket = bucket_of(7, Level(1), FanOut::new(16));
        assert_eq!(buckets, [(bucket, &[0, 1][..])]);
    }
}
