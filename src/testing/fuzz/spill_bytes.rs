//! Damaged spill files: the right rows or an error, never a panic, never memory without bound.
//!
//! The bound on memory is the fuzz binaries' own: their allocator fails above it.

use std::fmt;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use arrow::record_batch::RecordBatch;
use arrow_ipc::CompressionType;
use datafusion_common::{DataFusionError, Result as JoinResult};
use datafusion_execution::memory_pool::{MemoryPool, UnboundedMemoryPool};

use super::super::data::{Layout, Names, Spread, TableSpec};
use super::super::keys::KeyKind;
use super::super::memory_files::MemoryFiles;
use super::super::render;
use super::choices::Choices;
use super::{Target, paste};
use crate::SpillCodec;
use crate::memory::{Budget, Partitions};
use crate::spill::{ReadAs, Run, RunWriter, Spiller};
use crate::stats::StatsCell;

/// One change of a file's bytes. Places are taken modulo the file's length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// These bits of the byte at this place are turned.
    Turn(usize, u8),
    /// The byte at this place, and those after it, become these.
    Write(usize, Vec<u8>),
    /// So many bytes from this place on are missing.
    Cut(usize, usize),
    /// So many bytes from this place on come twice.
    Double(usize, usize),
    /// These bytes are in between.
    Insert(usize, Vec<u8>),
    /// Frames, the trailer counted as one, change places.
    SwapFrames(usize, usize),
    /// A frame comes twice.
    DoubleFrame(usize),
    /// A frame is missing.
    DropFrame(usize),
    /// A frame is the one of another run with the same types.
    OtherFrame(usize),
    /// The whole file is these bytes.
    Whole(Vec<u8>),
}

/// A run that is written, damaged and read.
#[derive(Clone, PartialEq, Eq)]
pub struct SpillBytes {
    /// The run's rows; a frame for each batch.
    pub rows: TableSpec,
    /// One of their columns' types.
    pub key: KeyKind,
    /// What the rows are made from.
    pub seed: u64,
    /// Compression.
    pub codec: SpillCodec,
    /// Bytes per chunk read.
    pub chunk: usize,
    /// What happens to the file, one after the other.
    pub damages: Vec<Damage>,
}

impl<'a> Arbitrary<'a> for SpillBytes {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut choices = Choices(u);
        let codecs = [
            SpillCodec::Uncompressed,
            SpillCodec::Lz4Frame,
            SpillCodec::Zstd,
        ];
        let size = choices.size(1..=12)?;
        Ok(Self {
            codec: choices.of(&codecs)?,
            chunk: choices.of(&[128 << 10, 4096, 61, 7])?,
            key: choices.of(&KeyKind::ALL)?,
            rows: TableSpec {
                rows: choices.size(1..=30)?,
                spread: Spread::Few(20, 0),
                null_percent: choices.of(&[10, 0, 100])?,
                layout: match choices.once_in(2)? {
                    true => Layout::Slices(size),
                    false => Layout::Batches(size),
                },
                width: 0,
                names: Names::Prefixed("l"),
            },
            seed: u64::from(choices.small(0..=u16::MAX)?),
            damages: choices.list(0..=4, damage)?,
        })
    }
}

fn damage(choices: &mut Choices) -> Result<Damage> {
    let place = |choices: &mut Choices| choices.size(0..=0xffff);
    let byte = |choices: &mut Choices| Ok(choices.small(0..=255)?.to_le_bytes()[0]);
    let few = |choices: &mut Choices| choices.list(1..=12, byte);
    Ok(match choices.size(0..=9)? {
        0 => Damage::Turn(place(choices)?, byte(choices)?),
        1 => Damage::Write(place(choices)?, few(choices)?),
        2 => Damage::Cut(place(choices)?, choices.size(1..=600)?),
        3 => Damage::Double(place(choices)?, choices.size(1..=600)?),
        4 => Damage::Insert(place(choices)?, few(choices)?),
        5 => Damage::SwapFrames(choices.size(0..=9)?, choices.size(0..=9)?),
        6 => Damage::DoubleFrame(choices.size(0..=9)?),
        7 => Damage::DropFrame(choices.size(0..=9)?),
        8 => Damage::OtherFrame(choices.size(0..=9)?),
        _ => Damage::Whole(choices.list(0..=400, byte)?),
    })
}

impl Target for SpillBytes {
    const NAME: &'static str = "spill_bytes";

    async fn check(&self) -> Result<(), String> {
        let told = |error: DataFusionError| error.to_string();
        let (run, file) = self.write(self.seed).await.map_err(told)?;
        let (_other_run, other_file) = self.write(self.seed ^ 1).await.map_err(told)?;
        let (written, other) = (file.bytes(), other_file.bytes());
        let mut bytes = written.clone();
        for damage in &self.damages {
            damage.apply(&mut bytes, &other);
        }
        let is_whole = bytes == written;
        file.files.edit_last(|content| *content = bytes);
        let batches = self.batches(self.seed).map_err(told)?;
        let end = reads_right(&run, &file, &batches).await?;
        match end {
            Err(error) if is_whole => Err(format!("nothing is damaged, but: {error}")),
            Err(DataFusionError::ResourcesExhausted(e)) => Err(format!("memory is blamed: {e}")),
            _ => Ok(()),
        }
    }
}

/// Where a run is.
struct File {
    files: Arc<MemoryFiles>,
    spiller: Arc<Spiller>,
}

impl File {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.files.edit_last(|content| bytes.clone_from(content));
        bytes
    }
}

/// Reads to the end: each batch that comes must be the one that was written; all of them, if it
/// does not end in an error.
async fn reads_right(
    run: &Run,
    file: &File,
    written: &[RecordBatch],
) -> Result<JoinResult<()>, String> {
    let mut reader = match run.read(&file.spiller, ReadAs::Rows) {
        Ok(reader) => reader,
        Err(error) => return Ok(Err(error)),
    };
    let mut written = written.iter();
    loop {
        let got = match reader.next().await {
            Ok(got) => got,
            Err(error) => return Ok(Err(error)),
        };
        match (got, written.next()) {
            (None, None) => return Ok(Ok(())),
            (Some(got), Some(batch)) => same_rows(&got, batch)?,
            (got, batch) => {
                let rows = |batch: Option<usize>| batch.map_or_else(|| "no frame".into(), frame_of);
                return Err(format!(
                    "without an error came {} instead of {}",
                    rows(got.map(|b| b.num_rows())),
                    rows(batch.map(RecordBatch::num_rows))
                ));
            }
        }
    }
}

fn frame_of(rows: usize) -> String {
    format!("a frame of {rows} rows")
}

fn same_rows(got: &RecordBatch, written: &RecordBatch) -> Result<(), String> {
    if got.schema() != written.schema() {
        return Err(format!("schema {} for {}", got.schema(), written.schema()));
    }
    let rows = |batch: &RecordBatch| {
        let rows = render::rows(std::slice::from_ref(batch));
        rows.map_err(|error| error.to_string())
    };
    let (got, written) = (rows(got)?, rows(written)?);
    if got == written {
        Ok(())
    } else {
        Err(format!("without an error came {got:?} for {written:?}"))
    }
}

impl SpillBytes {
    fn batches(&self, seed: u64) -> JoinResult<Vec<RecordBatch>> {
        Ok(self.rows.table(self.key, seed)?.batches)
    }

    async fn write(&self, seed: u64) -> JoinResult<(Run, File)> {
        let files = MemoryFiles::new(self.chunk);
        let codec = self.codec.resolve(None::<CompressionType>);
        let stats = Arc::new(StatsCell::default());
        let spiller = Spiller::new(files.disk()?, codec, Arc::clone(&stats), 0);
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let space = Arc::new(
            Budget::register(&pool, 0, Partitions::enter(1, &Arc::default()), stats).empty(),
        );
        let table = self.rows.table(self.key, seed)?;
        let mut writer = RunWriter::new(&spiller, &table.schema, "fuzzed rows", &space);
        for batch in table.batches {
            writer.push(batch, std::iter::empty(), 0).await?;
        }
        let run = writer.finish().await?;
        let none = || DataFusionError::Internal("a run of some rows is none".to_string());
        Ok((run.ok_or_else(none)?, File { files, spiller }))
    }
}

/// Where each frame is; the trailer counts as one. As in `spill`'s drawing, written out again.
fn frames(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut frames, mut at) = (Vec::new(), 16);
    while let Some(head) = bytes.get(at..at + 4) {
        let length = head
            .iter()
            .rev()
            .fold(0, |sum, b| sum << 8 | usize::from(*b));
        let end = match length {
            0xffff_ffff => at + 24,
            length => at + 16 + length,
        };
        if end > bytes.len() {
            break;
        }
        frames.push(at..end);
        at = end;
    }
    frames
}

impl Damage {
    fn apply(&self, bytes: &mut Vec<u8>, other: &[u8]) {
        let length = bytes.len().max(1);
        let end = |place: usize, count: usize| (place % length + count).min(bytes.len());
        match self {
            Self::Turn(place, bits) => {
                if let Some(byte) = bytes.get_mut(place % length) {
                    *byte ^= bits;
                }
            }
            Self::Write(place, new) => {
                let old = bytes.iter_mut().skip(place % length);
                old.zip(new).for_each(|(old, new)| *old = *new);
            }
            Self::Cut(place, count) => {
                let end = end(*place, *count);
                bytes.drain((place % length).min(end)..end);
            }
            Self::Double(place, count) => {
                let end = end(*place, *count);
                let twice = bytes.get(place % length..end).unwrap_or_default().to_vec();
                bytes.splice(end..end, twice);
            }
            Self::Insert(place, new) => {
                let place = end(*place, 0);
                bytes.splice(place..place, new.iter().copied());
            }
            Self::Whole(new) => bytes.clone_from(new),
            Self::SwapFrames(..) | Self::DoubleFrame(_) => self.reorder(bytes),
            Self::DropFrame(_) | Self::OtherFrame(_) => self.replace(bytes, other),
        }
    }

    fn reorder(&self, bytes: &mut Vec<u8>) {
        let frames = frames(bytes);
        if frames.is_empty() {
            return;
        }
        let mut order: Vec<usize> = (0..frames.len()).collect();
        match self {
            Self::SwapFrames(a, b) => order.swap(a % frames.len(), b % frames.len()),
            Self::DoubleFrame(frame) => order.insert(frame % frames.len(), frame % frames.len()),
            _ => {}
        }
        let mut new = bytes.get(..16).unwrap_or_default().to_vec();
        for range in order.iter().filter_map(|frame| frames.get(*frame)) {
            new.extend_from_slice(bytes.get(range.clone()).unwrap_or_default());
        }
        *bytes = new;
    }

    fn replace(&self, bytes: &mut Vec<u8>, other: &[u8]) {
        let frames = frames(bytes);
        let (index, new) = match self {
            Self::DropFrame(index) => (index % frames.len().max(1), &[][..]),
            Self::OtherFrame(index) => {
                let index = index % frames.len().max(1);
                let range = self::frames(other).get(index).cloned().unwrap_or(0..0);
                (index, other.get(range).unwrap_or_default())
            }
            _ => return,
        };
        if let Some(range) = frames.get(index) {
            bytes.splice(range.clone(), new.iter().copied());
        }
    }
}

/// An expression for a change.
fn pasted(damage: &Damage) -> String {
    match damage {
        Damage::Write(place, bytes) => format!("Damage::Write({place}, vec!{bytes:?})"),
        Damage::Insert(place, bytes) => format!("Damage::Insert({place}, vec!{bytes:?})"),
        Damage::Whole(bytes) => format!("Damage::Whole(vec!{bytes:?})"),
        plain => format!("Damage::{plain:?}"),
    }
}

impl fmt::Debug for SpillBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rows,
            key,
            seed,
            codec,
            chunk,
            damages,
        } = self;
        let rows = paste::table(rows);
        let damages: Vec<_> = damages.iter().map(pasted).collect();
        paste::test(
            f,
            Self::NAME,
            format_args!(
                "SpillBytes {{
        rows: {rows},
        key: KeyKind::{key:?},
        seed: {seed},
        codec: SpillCodec::{codec:?},
        chunk: {chunk},
        damages: vec![{}],
    }}",
                damages.join(", ")
            ),
        )
    }
}
