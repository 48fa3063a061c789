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
//! Columns of views are stored as plain texts (see [`memory`](crate::memory)), and are views again when
//! they are read.
//!
//! # Off the async threads
//!
//! Frames are encoded, summed and written by one blocking task a partition, from a queue that is as
//! long as there is memory for. They are read, verified and decoded by another, a few frames ahead,
//! if the file is one of the local disk's; a back end of another kind (without a path, or with bytes
//! of its own at that path) is read through its stream.
//!
//! Invariants:
//! - **S1** A reader gives exactly the rows that were written, in order, or an error.
//! - **S2** A file is gone when its run and the last write to it are.

mod behind;
mod format;
mod reader;
mod run;
mod writer;

pub(crate) use reader::{ReadAs, RunReader};
pub(crate) use run::{Run, Spiller};
pub(crate) use writer::{Pick, RunWriter, finished};

#[cfg(test)]
mod tests {
    #![expect(
        clippy::disallowed_methods,
        reason = "what is on the disk is damaged behind the reader's back"
    )]

    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, StringViewArray};
    use arrow::record_batch::RecordBatch;
    use datafusion_execution::disk_manager::DiskManager;
    use datafusion_execution::memory_pool::{MemoryPool, UnboundedMemoryPool};

    use super::*;
    use crate::memory::{Budget, Partitions};
    use crate::stats::StatsCell;

    const ROWS: i64 = 1000;

    fn batch(frame: i64) -> RecordBatch {
        let rows = frame * ROWS..(frame + 1) * ROWS;
        let texts = rows
            .clone()
            .map(|row| format!("a text that is not inlined {row}"));
        let columns: [(&str, ArrayRef); 2] = [
            ("number", Arc::new(Int64Array::from_iter_values(rows))),
            ("text", Arc::new(StringViewArray::from_iter_values(texts))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    /// A run of twenty frames on the local disk.
    async fn run() -> (Run, Arc<Spiller>) {
        let stats = Arc::new(StatsCell::default());
        let disk = Arc::new(DiskManager::builder().build().unwrap());
        let spiller = Spiller::new(disk, None, Arc::clone(&stats), 0);
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let space = Arc::new(
            Budget::register(&pool, 0, Partitions::enter(1, &Arc::default()), stats).empty(),
        );
        let mut writer = RunWriter::new(&spiller, &batch(0).schema(), "rows", &space);
        for frame in 0..20 {
            writer
                .push(batch(frame), std::iter::empty(), 0)
                .await
                .unwrap();
        }
        let run = writer.finish().await.unwrap().unwrap();
        assert_eq!(run.frames(), 20);
        (run, spiller)
    }

    /// How many frames came back as they were written, and whether an error came after those.
    async fn read(run: &Run, spiller: &Arc<Spiller>, reads: ReadAs) -> (i64, bool) {
        let mut reader = run.read(spiller, reads).unwrap();
        for frame in 0.. {
            match reader.next().await {
                Ok(Some(got)) => assert_eq!(got, batch(frame), "frame {frame}"),
                Ok(None) => return (frame, false),
                Err(_) => return (frame, true),
            }
        }
        unreachable!("a reader ends")
    }

    #[tokio::test]
    async fn a_local_file_is_read_in_order_ahead_and_singly() {
        let (run, spiller) = run().await;
        for reads in [ReadAs::Rows, ReadAs::Singly] {
            assert_eq!(read(&run, &spiller, reads).await, (20, false));
        }
        let mut stored = run.read(&spiller, ReadAs::Stored).unwrap();
        let first = stored.next().await.unwrap().unwrap();
        assert_eq!(&first.schema(), run.stored_schema());
        assert_eq!(first.column(0), batch(0).column(0));
    }

    #[tokio::test]
    async fn damage_to_a_local_file_is_an_error_after_the_frames_before_it() {
        let (run, spiller) = run().await;
        let path = run.facts.file.path().unwrap().to_owned();
        let whole = std::fs::read(&path).unwrap();
        let frame = (whole.len() - 16 - 24) / 20;
        for at in [
            0,
            9,
            17,
            40,
            frame / 2,
            7 * frame,
            19 * frame,
            whole.len() - 3,
        ] {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, &bytes).unwrap();
            let (frames, has_failed) = read(&run, &spiller, ReadAs::Rows).await;
            assert!(has_failed, "byte {at}");
            assert!(
                (frames - i64::try_from(at / frame).unwrap()).abs() <= 1,
                "byte {at}: {frames}"
            );
            std::fs::write(&path, &whole[..at]).unwrap();
            assert!(read(&run, &spiller, ReadAs::Rows).await.1, "cut at {at}");
        }
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(read(&run, &spiller, ReadAs::Rows).await, (20, false));
    }
}
