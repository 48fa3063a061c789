//! Memory, reserved before it is used: one reservation per partition, leases over it, and sizes.
//!
//! Job: ask the pool, count what was granted, give it back when the lease is dropped. Not its job:
//! deciding what to do after a refusal; that is `join/`'s. Knows nothing of tables, files or joins.
//!
//! Invariants:
//! - **M1** One [`MemoryReservation`](datafusion_execution::memory_pool::MemoryReservation) per
//!   partition, never split: fair pools check one reservation at a time, so a second one would walk
//!   past the share.
//! - **M2** The reservation's size is the sum of its leases.

mod budget;
mod nested;
mod size;
mod space;
mod stored;
mod words;

pub(crate) use budget::{Budget, Lease, Partitions};
pub(crate) use size::{
    ROW_OVERHEAD, Unshare, batch_bytes, collect_views, column_bytes, columns_bytes, compact,
    needed_bytes, rows_bytes, shared_bytes, widest_value, words_bytes_of_row,
};
pub(crate) use space::{MIN_BUFFER, READER_BYTES, WorkSpace};
pub(crate) use stored::{
    Growing, Sources, Texts, grows_in_place, restored, restored_column, restored_extra,
    stored_schema, text_bytes,
};
pub(crate) use words::{collect_words, concat_within, interleave_within, most_rows};
