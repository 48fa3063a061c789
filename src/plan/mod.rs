//! plan skeleton
