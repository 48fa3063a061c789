//! The oracle, the case space, seeded data and fault injection.
