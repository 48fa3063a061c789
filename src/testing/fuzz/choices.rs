//! Decoding: one choice after the other, from as few bytes as will do.
//!
//! Invariant: bytes that have run out choose the first alternative, so the empty input is the
//! plainest one.

use std::ops::RangeInclusive;

use arbitrary::{Result, Unstructured};

/// Makes choices from bytes.
pub(super) struct Choices<'a, 'b>(pub(super) &'b mut Unstructured<'a>);

impl Choices<'_, '_> {
    pub(super) fn of<T: Copy>(&mut self, all: &[T]) -> Result<T> {
        self.0.choose(all).copied()
    }

    pub(super) fn size(&mut self, range: RangeInclusive<usize>) -> Result<usize> {
        self.0.int_in_range(range)
    }

    pub(super) fn small(&mut self, range: RangeInclusive<u16>) -> Result<u16> {
        self.0.int_in_range(range)
    }

    /// Yes, once in so many times.
    pub(super) fn once_in(&mut self, times: u8) -> Result<bool> {
        Ok(self.0.int_in_range(0..=times.saturating_sub(1))? == times.saturating_sub(1))
    }

    pub(super) fn bits(&mut self) -> Result<u64> {
        self.0.arbitrary()
    }

    /// So many items.
    pub(super) fn list<T>(
        &mut self,
        length: RangeInclusive<usize>,
        mut item: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let length = self.size(length)?;
        (0..length).map(|_| item(self)).collect()
    }
}
