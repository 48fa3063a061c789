//! One bit per row: whether it has found a match.

use std::ops::Range;

/// Match bits of rows `0..len`, all unset at first.
#[derive(Debug)]
pub(crate) struct MatchedBits {
    words: Vec<u64>,
    len: usize,
}

impl MatchedBits {
    /// The bytes of the bits of `rows` rows.
    pub(crate) fn size_of(rows: usize) -> usize {
        rows.div_ceil(64) * size_of::<u64>()
    }

    pub(crate) fn new(len: usize) -> Self {
        Self {
            words: vec![0; len.div_ceil(64)],
            len,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn get(&self, row: usize) -> bool {
        self.words[row / 64] >> (row % 64) & 1 == 1
    }

    /// Whether any bit is set.
    pub(crate) fn any(&self) -> bool {
        self.words.iter().any(|word| *word != 0)
    }

    /// The rows of a range whose bit is, or is not, set.
    pub(crate) fn rows(&self, range: Range<usize>, is_set: bool) -> impl Iterator<Item = u32> {
        let Range { start, end } = range;
        let end = end.min(self.len);
        let first_word = start / 64;
        let words = self.words.get(first_word..end.div_ceil(64));
        let words = (first_word..).zip(words.unwrap_or_default());
        words.flat_map(move |(index, word)| {
            let first = index * 64;
            let before = start.saturating_sub(first).min(63);
            let after = (first + 64).saturating_sub(end).min(63);
            let wanted = if is_set { *word } else { !word };
            let mut left = wanted & u64::MAX << before & u64::MAX >> after;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                // Row numbers are of 32 bits.
                u32::try_from(first).ok().map(|first| first + bit)
            })
        })
    }

    /// Sets the bit; says whether it was unset.
    #[inline]
    pub(crate) fn set(&mut self, row: usize) -> bool {
        let word = &mut self.words[row / 64];
        let before = *word;
        *word |= 1 << (row % 64);
        *word != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_new_only_once() {
        let mut bits = MatchedBits::new(130);
        assert_eq!(bits.len(), 130);
        assert!(bits.set(129) && !bits.set(129) && bits.set(0));
        assert_eq!(
            (0..130).filter(|r| bits.get(*r)).collect::<Vec<_>>(),
            [0, 129]
        );
        assert!(bits.any() && !MatchedBits::new(130).any());
        assert_eq!(MatchedBits::size_of(130), bits.words.len() * 8);
    }

    #[test]
    fn the_rows_of_a_range_are_those_whose_bits_say_so() {
        let mut bits = MatchedBits::new(200);
        for row in (0..200).filter(|row| row % 7 == 0 || (64..130).contains(row)) {
            bits.set(row);
        }
        for start in [0, 1, 63, 64, 65, 127, 128, 199, 200] {
            for end in [0, 1, 63, 64, 65, 128, 191, 192, 193, 200] {
                for is_set in [true, false] {
                    let rows: Vec<usize> =
                        bits.rows(start..end, is_set).map(|r| r as usize).collect();
                    let expected: Vec<usize> =
                        (start..end).filter(|r| bits.get(*r) == is_set).collect();
                    assert_eq!(rows, expected, "{start}..{end} {is_set}");
                }
            }
        }
    }
}
