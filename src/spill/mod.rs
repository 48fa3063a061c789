//! Spill files: the only place that knows files and Arrow IPC.
//!
//! Job: write the rows of one bucket and side to one file, through the task's `DiskManager` (hence
//! its quota, and custom back ends), and read them back, bit for bit or not at all. Not its job:
//! which rows, when, or with which memory.
//!
//! # Format
//!
//! Arrow's IPC stream, cut into checksummed frames. A bare stream would not do: damaged bytes make
//! its decoder panic, or allocate what a damaged length says, or pass silently.
//!
//! ```text
//! file    = header frame* trailer                          integers are little-endian
//! header  = "GHJSPIL1"                          8 bytes    magic and version
//!           fingerprint of the schema           8 bytes    xxh3 of its types
//! frame   = length n                            4 bytes    at most the run's largest frame
//!           rows                                4 bytes
//!           checksum of the above and the bytes 8 bytes    xxh3, seeded with a random number of the
//!                                                          run's and the frame's number
//!           IPC messages: (schema,) (dictionaries,) one record batch        n bytes
//! trailer = 0xffff_ffff                         4 bytes    no frame is as long
//!           frames                              4 bytes
//!           rows                                8 bytes
//!           checksum of the above               8 bytes
//!
//! a run of two frames of 3 and 2 rows:
//! GHJSPIL1 fingerprint | 712 3 sum ipc[712] | 424 2 sum ipc[424] | ffffffff 2 5 sum
//! ```
//!
//! A frame's length is checked against the run's largest frame, which the writer remembers in
//! memory, before anything is allocated; its checksum before arrow sees a byte of it. The schema is
//! ours: what the file says must agree with it and is otherwise not used. Frames that are missing,
//! doubled, out of order or another run's fail their checksum; a run that ends early fails its
//! trailer.
//!
//! Invariants:
//! - **S1** A reader gives exactly the rows that were written, in order, or an error.
//! - **S2** A file is gone when its run and the last write to it are.

mod format;
mod reader;
mod run;
mod writer;

pub(crate) use reader::RunReader;
pub(crate) use run::{Run, Spiller};
pub(crate) use writer::RunWriter;
