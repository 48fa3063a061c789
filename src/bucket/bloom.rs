//! A blocked Bloom filter over the keys of build rows on disk: a probe row that misses it has no
//! match and need not be written.
//!
//! A key sets one bit in each of the eight words of one block, which is a cache line, as in the
//! split block filter of Parquet and Impala (Putze, Sanders, Singler: *Cache-, hash- and
//! space-efficient Bloom filters*, 2007), with words of 64 bits. The high bits of the hash choose
//! the block; eight times six bits of the remixed hash choose the bits.
//!
//! At half full, one key in 256 that is not in the filter hits it; above, the filter is of little
//! use and is given up.

use crate::keys::remixed;

/// Words of a block.
const WORDS: usize = 8;

/// Bits that choose a bit of a word.
const BIT_BITS: u32 = 6;

/// Which hashes were seen, with false hits and without false misses.
#[derive(Debug)]
pub(crate) struct Bloom {
    blocks: Vec<[u64; WORDS]>,
    bits_set: usize,
}

impl Bloom {
    /// A filter of at most `bytes`; `None` if that is less than a block.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        // The number of blocks fits 32 bits, as their address has.
        let blocks = (bytes / size_of::<[u64; WORDS]>()).min(u32::MAX as usize);
        (blocks > 0).then(|| Self {
            blocks: vec![[0; WORDS]; blocks],
            bits_set: 0,
        })
    }

    /// Whether it lets few enough strangers pass.
    pub(crate) fn is_useful(&self) -> bool {
        self.bits_set * 2 <= self.blocks.len() * WORDS * 64
    }

    pub(crate) fn insert(&mut self, hash: u64) {
        let block = self.block_of(hash);
        let mut bits = remixed(hash);
        for word in &mut self.blocks[block] {
            let bit = 1 << (bits & 63);
            self.bits_set += usize::from(*word & bit == 0);
            *word |= bit;
            bits >>= BIT_BITS;
        }
    }

    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        let mut bits = remixed(hash);
        self.blocks[self.block_of(hash)].iter().all(|word| {
            let is_set = word >> (bits & 63) & 1 == 1;
            bits >>= BIT_BITS;
            is_set
        })
    }

    fn block_of(&self, hash: u64) -> usize {
        // Below the number of blocks, which is the length of a vector.
        (((hash >> 32) * self.blocks.len() as u64) >> 32) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(key: u64) -> u64 {
        remixed(key ^ 0x1234_5678)
    }

    #[test]
    fn what_was_inserted_is_found_and_few_others_are() {
        let mut bloom = Bloom::new(64 << 10).unwrap();
        let keys = 40_000;
        (0..keys).for_each(|key| bloom.insert(hash(key)));
        assert!(bloom.is_useful());
        assert!((0..keys).all(|key| bloom.may_contain(hash(key))));
        let strangers = (keys..keys * 11)
            .filter(|key| bloom.may_contain(hash(*key)))
            .count();
        assert!(strangers < 4_000, "{strangers} of {}", keys * 10);
    }

    #[test]
    fn an_overfull_filter_says_so() {
        let mut bloom = Bloom::new(1 << 10).unwrap();
        (0..10_000).for_each(|key| bloom.insert(hash(key)));
        assert!(!bloom.is_useful());
        assert!(Bloom::new(63).is_none());
    }

    #[test]
    fn a_filter_is_useful_until_it_is_half_full() {
        // Of 8,192 bits: 44 % with 600 keys, 58 % with 900.
        let mut bloom = Bloom::new(1 << 10).unwrap();
        (0..600).for_each(|key| bloom.insert(hash(key)));
        assert!(bloom.is_useful());
        // Known keys set no bit.
        (0..600).for_each(|key| bloom.insert(hash(key)));
        assert!(bloom.is_useful());
        (600..900).for_each(|key| bloom.insert(hash(key)));
        assert!(!bloom.is_useful());
    }
}
