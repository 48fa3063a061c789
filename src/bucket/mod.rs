//! Buckets: our hash classes, and scattering rows to them.
//!
//! Job: the numbers of buckets and levels, and the order of a batch's rows by bucket. Not its job:
//! where a bucket's rows live (`join/`), or which bits of the hash decide (`keys/`).

mod bloom;
mod scatter;

pub(crate) use bloom::Bloom;
pub(crate) use scatter::Scatter;

/// One of a level's buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BucketId(pub(crate) u16);

impl BucketId {
    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// How often a bucket has been split: 0 is the first split of the whole input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Level(pub(crate) u8);

impl Level {
    pub(crate) const FIRST: Self = Self(0);

    pub(crate) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Buckets per level: a power of two in 2..=256, which the configuration has checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FanOut(u16);

impl FanOut {
    pub(crate) fn new(fan_out: usize) -> Self {
        debug_assert!(fan_out.is_power_of_two() && (2..=256).contains(&fan_out));
        Self(u16::try_from(fan_out).unwrap_or(256))
    }

    pub(crate) fn get(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn mask(self) -> u16 {
        self.0 - 1
    }
}
