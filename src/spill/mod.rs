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
//! long as there is memory for: a buffer's worth at least, and two more where buffers are larger than
//! the smallest. A task makes way for those of other partitions now and then, and skips frames that
//! nobody wants any more. They are read, verified and decoded by another, a few frames ahead,
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
pub(crate) use writer::{Pick, RunWriter, check_supported, finished};

#[cfg(test)]
mod tests {
    #![expect(
        clippy::disallowed_methods,
        reason = "what is on the disk is damaged behind the reader's back"
    )]

    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, DictionaryArray, Int64Array, PrimitiveArray, StringArray, StringViewArray,
    };
    use arrow::datatypes::Int32Type;
    use arrow::record_batch::RecordBatch;
    use datafusion_execution::disk_manager::DiskManager;
    use datafusion_execution::memory_pool::{MemoryPool, UnboundedMemoryPool};

    use super::*;
    use crate::memory::{Budget, Lease, Partitions, Unshare};
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

    /// What covers nothing, since nothing is reserved.
    fn space() -> Lease {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let partitions = Partitions::enter(1, &Arc::default());
        Budget::register(&pool, 0, partitions, Arc::default()).empty()
    }

    /// A run of twenty frames on the local disk.
    async fn run() -> (Run, Arc<Spiller>) {
        let stats = Arc::new(StatsCell::default());
        let disk = Arc::new(DiskManager::builder().build().unwrap());
        let spiller = Spiller::new(disk, None, Arc::clone(&stats), 0);
        let space = Arc::new(space());
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

    /// Where each frame ends, the header's 16 bytes being the first one.
    fn frame_ends(file: &[u8]) -> Vec<usize> {
        let mut ends = vec![16];
        loop {
            let at = ends[ends.len() - 1];
            let length = u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
            if length == u32::MAX {
                assert_eq!(file.len(), at + 24, "the trailer");
                return ends;
            }
            ends.push(at + 16 + length as usize);
        }
    }

    #[tokio::test]
    async fn damage_to_a_local_file_is_an_error_after_the_frames_before_it() {
        let (run, spiller) = run().await;
        let path = run.facts.file.path().unwrap().to_owned();
        let whole = std::fs::read(&path).unwrap();
        let ends = frame_ends(&whole);
        assert_eq!(ends.len(), 21);
        let before = |at: usize| i64::try_from(ends.partition_point(|end| *end <= at)).unwrap() - 1;
        let in_frames = [0, 6, 7, 19].map(|frame| ends[frame]);
        let around = in_frames
            .iter()
            .flat_map(|at| [*at, at + 3, at + 5, at + 9, at + 400]);
        for at in around.chain([0, 9, ends[20], whole.len() - 3]) {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, &bytes).unwrap();
            let frames = before(at).max(0);
            assert_eq!(
                read(&run, &spiller, ReadAs::Rows).await,
                (frames, true),
                "byte {at}"
            );
            std::fs::write(&path, &whole[..at]).unwrap();
            // A frame is read with the 16 bytes that follow it, of the next one or the trailer.
            let frames = before(at.saturating_sub(16)).max(0);
            assert_eq!(
                read(&run, &spiller, ReadAs::Rows).await,
                (frames, true),
                "cut at {at}"
            );
        }
        std::fs::write(&path, &whole).unwrap();
        assert_eq!(read(&run, &spiller, ReadAs::Rows).await, (20, false));
    }

    fn text_rows(rows: usize, capacity: usize) -> RecordBatch {
        let mut texts = arrow::array::StringBuilder::with_capacity(capacity / 64, capacity);
        (0..rows).for_each(|row| texts.append_value(format!("text {row}")));
        let texts: ArrayRef = Arc::new(texts.finish());
        RecordBatch::try_from_iter([("text", texts)]).unwrap()
    }

    #[tokio::test]
    async fn few_rows_in_large_buffers_are_gathered_all_the_same() {
        let (_, spiller) = run().await;
        let space = Arc::new(space());
        let small = text_rows(10, 1 << 16);
        let mut writer = RunWriter::new(&spiller, &small.schema(), "rows", &space);
        for _ in 0..20 {
            let rows = text_rows(10, 1 << 16);
            writer
                .push(rows, std::iter::empty(), 1 << 14)
                .await
                .unwrap();
        }
        let run = writer.finish().await.unwrap().unwrap();
        assert_eq!((run.rows(), run.frames()), (200, 1));
    }

    /// Some rows at a time, each with few of the words.
    #[tokio::test]
    async fn words_that_all_rows_share_are_written_and_read_once() {
        let (_, spiller) = run().await;
        let before = spiller.stats.spilled_bytes.get();
        let words = StringArray::from_iter_values((0..50).map(|word| format!("{word:060}")));
        let keys: PrimitiveArray<Int32Type> = (0..31_000).map(|row| Some(row * 7 % 50)).collect();
        let rows = DictionaryArray::try_new(keys, Arc::new(words)).unwrap();
        let rows = RecordBatch::try_from_iter([("words", Arc::new(rows) as ArrayRef)]).unwrap();
        let space = Arc::new(space());
        let mut writer = RunWriter::new(&spiller, &rows.schema(), "rows", &space);
        for first in 0..1000 {
            let picked: Vec<u32> = (first * 31..(first + 1) * 31).collect();
            let pick = Pick::new(&rows, &[]);
            writer.push_rows(&pick, &picked, 1 << 14).await.unwrap();
        }
        let run = writer.finish().await.unwrap().unwrap();
        assert!(run.frames() > 20, "{}", run.frames());
        let written = spiller.stats.spilled_bytes.get() - before;
        let most = (31_000 * 4 + 3 * 50 * 64 + run.frames() * 512) as u64;
        assert!(
            written <= most,
            "{written} bytes of {most} in {} frames",
            run.frames()
        );
        let mut reader = run.read(&spiller, ReadAs::Rows).unwrap();
        let (mut unshare, mut again) = (Unshare::default(), 0);
        while let Some(batch) = reader.next().await.unwrap() {
            let (_, known_bytes) = unshare.rows(&batch).unwrap();
            again += u32::from(known_bytes > 0);
        }
        let frames = run.frames();
        assert!(
            again + 3 >= u32::try_from(frames).unwrap(),
            "{again} of {frames}"
        );
    }

    /// The one thread for blocking work is busy while frames are handed over and given up.
    #[test]
    fn frames_of_a_run_that_nobody_wants_any_more_are_not_written() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (_, spiller) = run().await;
            let written = spiller.stats.spilled_bytes.get();
            for is_closed in [false, true] {
                let (go, wait) = std::sync::mpsc::channel::<()>();
                let busy = tokio::task::spawn_blocking(move || wait.recv());
                let space = Arc::new(space());
                spiller.write_behind(1 << 24, self::space());
                let mut writer = RunWriter::new(&spiller, &batch(0).schema(), "rows", &space);
                for frame in 0..5 {
                    let rows = batch(frame);
                    writer.push(rows, std::iter::empty(), 0).await.unwrap();
                }
                match is_closed {
                    true => drop(writer.close().await.unwrap()),
                    false => drop(writer),
                }
                go.send(()).unwrap();
                busy.await.unwrap().unwrap();
                // What was handed over before is done before this.
                let mut writer = RunWriter::new(&spiller, &batch(0).schema(), "rows", &space);
                writer.push(batch(0), std::iter::empty(), 0).await.unwrap();
                let run = writer.finish().await.unwrap().unwrap();
                assert_eq!(run.frames(), 1);
            }
            let more = spiller.stats.spilled_bytes.get() - written;
            assert!(
                more < written / 5,
                "{more} bytes for two frames of {written}"
            );
        });
    }
}
