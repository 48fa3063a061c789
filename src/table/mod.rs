//! The hash table: a directory from hash to first row, forward chains from row to row, match bits.
//!
//! Job: find, for hashes, or for keys that are whole numbers close together, the loaded rows that may
//! match, in build order, from any position on. Not its job: comparing keys (only parts of hashes are
//! compared here), columns, join types, memory (it says what it takes before it is made, and the
//! caller reserves it).

mod chain;
mod matched;

pub(crate) use chain::{
    Candidates, Cursor, JoinTable, Link, MAX_ROWS, NO_ROW, Streamed, TableBuilder, retain,
};
pub(crate) use matched::MatchedBits;
