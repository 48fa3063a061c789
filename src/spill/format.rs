//! The bytes around the IPC messages: see the drawing in [`spill`](super).

use std::hash::{BuildHasher, RandomState};

use arrow::buffer::Buffer;
use arrow::datatypes::Schema;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: [u8; 8] = *b"GHJSPIL1";

/// Where a frame's length would be, a trailer begins with this.
pub(super) const TRAILER_MARK: u32 = u32::MAX;

pub(super) const HEADER_BYTES: usize = 16;
pub(super) const FRAME_HEAD_BYTES: usize = 16;
/// What follows the 16 bytes that a trailer shares with a frame's head.
pub(super) const TRAILER_REST_BYTES: usize = 8;

/// Identifies the types of a run's columns.
pub(super) fn fingerprint(schema: &Schema) -> u64 {
    let mut sum = Xxh3::new();
    for field in schema.fields() {
        sum.update(field.data_type().to_string().as_bytes());
        sum.update(&[0]);
    }
    sum.digest()
}

pub(super) fn header(schema: &Schema) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    let (magic, print) = bytes.split_at_mut(8);
    magic.copy_from_slice(&MAGIC);
    print.copy_from_slice(&fingerprint(schema).to_le_bytes());
    bytes
}

/// What stands before a frame's messages, or, by its mark, the first part of a trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) length: u32,
    pub(super) rows: u32,
    pub(super) checksum: u64,
}

impl FrameHead {
    pub(super) fn to_bytes(self) -> [u8; FRAME_HEAD_BYTES] {
        let mut bytes = [0; FRAME_HEAD_BYTES];
        let (length, rest) = bytes.split_at_mut(4);
        let (rows, checksum) = rest.split_at_mut(4);
        length.copy_from_slice(&self.length.to_le_bytes());
        rows.copy_from_slice(&self.rows.to_le_bytes());
        checksum.copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    #[expect(
        clippy::many_single_char_names,
        reason = "bytes are told by their place"
    )]
    pub(super) fn from_bytes(bytes: [u8; FRAME_HEAD_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, sum @ ..] = bytes;
        Self {
            length: u32::from_le_bytes([a, b, c, d]),
            rows: u32::from_le_bytes([e, f, g, h]),
            checksum: u64::from_le_bytes(sum),
        }
    }
}

/// What a run's checksums begin with, besides a frame's number: random, and nowhere in the file, so
/// that the frame of another run, left on the same blocks or in a file mixed up, does not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunSeed(u64);

impl RunSeed {
    pub(super) fn random() -> Self {
        // Keyed anew each time, from the system's randomness once per thread.
        Self(RandomState::new().hash_one(0))
    }

    fn of_frame(self, number: u32) -> u64 {
        self.0.wrapping_add(u64::from(number))
    }
}

/// The checksum of a frame: over its run and number, its length and rows, and its bytes.
pub(super) fn frame_checksum<'a>(
    (run, number): (RunSeed, u32),
    length: u32,
    rows: u32,
    parts: impl Iterator<Item = &'a [u8]>,
) -> u64 {
    let mut sum = Xxh3::with_seed(run.of_frame(number));
    sum.update(&length.to_le_bytes());
    sum.update(&rows.to_le_bytes());
    for part in parts {
        sum.update(part);
    }
    sum.digest()
}

/// The whole trailer: a head whose checksum field holds the rows, and the sum of that head.
pub(super) fn trailer(frames: u32, rows: u64) -> [u8; FRAME_HEAD_BYTES + TRAILER_REST_BYTES] {
    let head = FrameHead {
        length: TRAILER_MARK,
        rows: frames,
        checksum: rows,
    }
    .to_bytes();
    let mut bytes = [0; FRAME_HEAD_BYTES + TRAILER_REST_BYTES];
    let (first, rest) = bytes.split_at_mut(FRAME_HEAD_BYTES);
    first.copy_from_slice(&head);
    rest.copy_from_slice(&xxh3_64(&head).to_le_bytes());
    bytes
}

/// The parts of one encoded frame, ready to be written.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) head: FrameHead,
    pub(super) body: Vec<Buffer>,
}

impl Frame {
    /// `None` if the messages are too long for a frame.
    pub(super) fn new(place: (RunSeed, u32), rows: u32, body: Vec<Buffer>) -> Option<Self> {
        let length = body.iter().map(Buffer::len).sum::<usize>();
        let length = u32::try_from(length).ok().filter(|l| *l != TRAILER_MARK)?;
        let parts = body.iter().map(Buffer::as_slice);
        let checksum = frame_checksum(place, length, rows, parts);
        Some(Self {
            head: FrameHead {
                length,
                rows,
                checksum,
            },
            body,
        })
    }

    /// The bytes on disk.
    pub(super) fn bytes(&self) -> usize {
        FRAME_HEAD_BYTES + self.head.length as usize
    }
}
