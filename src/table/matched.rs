//! One bit per row: whether it has found a match.

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
        assert!(bits.set(129) && !bits.set(129) && bits.set(0));
        assert_eq!(
            (0..130).filter(|r| bits.get(*r)).collect::<Vec<_>>(),
            [0, 129]
        );
        assert_eq!(MatchedBits::size_of(130), bits.words.len() * 8);
    }
}
