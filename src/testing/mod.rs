//! The oracle, the case space, seeded data and fault injection.

/// Keeps hashes as they are.
pub(crate) fn mask_hashes(_hashes: &mut [u64]) {}
