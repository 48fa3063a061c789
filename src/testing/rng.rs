//! A small deterministic generator of numbers: the same seed gives the same data for ever.

/// SplitMix64: one addition and one mix per number, and no state that could be set up wrongly.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts from a seed; every seed is as good as another.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u16) -> u16 {
        let scaled = ((self.bits() >> 48) * u64::from(bound)) >> 16;
        u16::try_from(scaled).unwrap_or(0)
    }

    /// True `percent` times in a hundred.
    pub fn chance(&mut self, percent: u16) -> bool {
        self.below(100) < percent
    }
}
