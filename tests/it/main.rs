//! The crate's integration tests, in one binary: each module holds one promise.

mod anchors;
mod cancel;
mod faults;
mod matrix;
mod reference;
mod shapes;
mod skew;
mod spill;
