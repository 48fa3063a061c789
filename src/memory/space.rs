//! The working space of a spilling join: what must be there so that spilling itself can go on.
//!
//! ```text
//! floor = 256 KiB          one open read stream of a spill file
//!       + fan_out * buffer one write buffer per bucket
//!       + 6 * buffer       a slice of the batch in hand, scattered (1); a full write buffer being
//!                          merged (1 + the slice); one being written (1 + the slice); output (1)
//!
//! space = floor
//!       + 2 * buffer       those that wait to be written, where buffers are larger than the smallest
//! ```
//!
//! With the smallest fan-out, 2, and the smallest buffer, 16 KiB, the floor is 384 KiB, and rows that
//! are handed over wait for the ones before them to be written. Where there is more memory, buffers
//! grow, and two of them wait in a queue. The input batch in hand
//! comes on top: it exists already, so it is charged, and worked off in slices.

/// An open read stream of a DataFusion temp file: two buffers of 128 KiB.
pub(crate) const READER_BYTES: usize = 256 << 10;

/// The smallest write buffer: below some 16 KiB the metadata of an IPC message dominates.
pub(crate) const MIN_BUFFER: usize = 16 << 10;

/// The largest write buffer: from some 256 KiB a message on, writing does not get faster.
const MAX_BUFFER: usize = 256 << 10;

/// Buffers besides one per bucket, as in the module's formula.
const EXTRA_BUFFERS: usize = 6;

/// Buffers that may wait to be written behind the one that is being written, beyond the floor.
const BEHIND_BUFFERS: usize = 2;

/// The part of what a partition holds that may go to more buckets, as a divisor.
const SPACE_PART: usize = 4;

/// The part that may go to larger buffers, as a divisor: it is missing for resident rows.
const WIDE_PART: usize = 16;

/// How many buckets, and how large the buffers, for a share of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkSpace {
    pub(crate) fan_out: usize,
    /// Bytes of one write buffer; slices of input and output batches are bounded by it too.
    pub(crate) buffer: usize,
    /// Bytes that may wait to be written, besides the buffer that is being written.
    pub(crate) behind: usize,
}

impl WorkSpace {
    /// The least that a join needs besides its input batch.
    pub(crate) const FLOOR: Self = Self {
        fan_out: 2,
        buffer: MIN_BUFFER,
        behind: 0,
    };

    /// As many buckets as the floor carries while nothing is read: the read stream's bytes are then
    /// free for write buffers.
    pub(crate) const FLOOR_FAN_OUT: usize = 16;

    /// The most buckets, up to `fan_out`, whose smallest buffers fit in a part of `share` bytes.
    pub(crate) fn narrow(share: usize, fan_out: usize) -> Self {
        let buffers = (share / SPACE_PART).saturating_sub(READER_BYTES) / MIN_BUFFER;
        let mut space = Self {
            fan_out,
            ..Self::FLOOR
        };
        while space.fan_out > Self::FLOOR.fan_out && space.fan_out + EXTRA_BUFFERS > buffers {
            space.fan_out /= 2;
        }
        space
    }

    /// The same buckets with the largest buffers for `share` bytes.
    pub(crate) fn widened(self, share: usize) -> Self {
        let buffer = share / WIDE_PART / (self.fan_out + EXTRA_BUFFERS + BEHIND_BUFFERS);
        if buffer <= self.buffer {
            return self;
        }
        let buffer = buffer.min(MAX_BUFFER.max(self.buffer));
        Self {
            buffer,
            behind: BEHIND_BUFFERS * buffer,
            ..self
        }
    }

    /// What covers a batch that was read back and is streamed, while nothing is written: the slice,
    /// and the buffers being merged and written.
    pub(crate) fn streamed_bytes(self) -> usize {
        (EXTRA_BUFFERS - 1) * self.buffer
    }

    /// What covers a batch that was read back while its rows are written to other runs: the output's
    /// buffer, since nothing is handed out meanwhile.
    pub(crate) fn rewritten_bytes(self) -> usize {
        self.buffer
    }

    /// What covers the first rows of a chunk: the write buffers of buckets, which are idle then.
    pub(crate) fn chunk_bytes(self) -> usize {
        self.fan_out * self.buffer
    }

    /// What it takes while nothing is read.
    pub(crate) fn bytes_without_reader(self) -> usize {
        (self.fan_out + EXTRA_BUFFERS) * self.buffer + self.behind
    }

    /// What it takes in all, by the module's formula.
    pub(crate) fn bytes(self) -> usize {
        READER_BYTES + self.bytes_without_reader()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_below_400_kib() {
        let most = WorkSpace {
            fan_out: WorkSpace::FLOOR_FAN_OUT,
            ..WorkSpace::FLOOR
        };
        assert!(most.bytes_without_reader() <= WorkSpace::FLOOR.bytes());
        assert_eq!(WorkSpace::FLOOR.bytes(), 384 << 10);
    }

    #[test]
    fn buckets_and_buffers_grow_with_the_share_and_stay_within_a_part_of_it() {
        let mut last = WorkSpace::FLOOR;
        for share in (19..32).map(|bits| 1_usize << bits) {
            let space = WorkSpace::narrow(share, 16).widened(share);
            assert!(space.fan_out >= last.fan_out);
            assert!(
                space.bytes() <= (share / 4).max(WorkSpace::FLOOR.bytes()),
                "{space:?}"
            );
            last = space;
        }
        assert_eq!(
            last,
            WorkSpace {
                fan_out: 16,
                buffer: MAX_BUFFER,
                behind: 2 * MAX_BUFFER
            }
        );
    }
}
