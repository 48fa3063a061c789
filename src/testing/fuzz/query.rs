//! What both targets that run the operator vary: the question, and how it is worked out.
//!
//! Invariant: a decoded query is valid, and small enough for the oracle's nested loop.

use std::fmt;
use std::sync::Arc;

use arbitrary::{Arbitrary, Result, Unstructured};
use arrow::array::Array;
use arrow::buffer::NullBuffer;
use arrow::record_batch::RecordBatch;
use datafusion_common::{JoinType, NullEquality, Result as JoinResult};

use super::super::cases::{JOIN_TYPES, NULL_EQUALITIES};
use super::super::data::{Layout, Names, Spread, Table, TableSpec};
use super::super::filters::FilterKind;
use super::super::keys::KeyKind;
use super::super::oracle::{Question, Rows};
use super::super::run::{Outcome, Setting};
use super::choices::Choices;
use super::paste;
use crate::{GraceHashJoin, GraceHashJoinConfig, SpillCodec, SpillPolicy};

/// The most bytes that the output's copies of one side's widest column may take.
const MOST_OUTPUT_BYTES: usize = 4 << 20;

/// What is asked: a join and its inputs.
#[derive(Clone, PartialEq, Eq)]
pub struct Query {
    /// The join type.
    pub join_type: JoinType,
    /// Whether NULL keys match.
    pub null_equality: NullEquality,
    /// Whether it is NOT IN.
    pub null_aware: bool,
    /// The residual filter.
    pub filter: FilterKind,
    /// The keys.
    pub key: KeyKind,
    /// The build input.
    pub build: TableSpec,
    /// The probe input.
    pub probe: TableSpec,
    /// What the data is made from.
    pub seed: u64,
    /// The output's columns, each modulo the number of columns that there are.
    pub projection: Option<Vec<usize>>,
    /// The most rows of output.
    pub limit: Option<usize>,
}

/// How it is worked out: nothing of this may show in the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Engine {
    /// Buckets per level.
    pub fan_out: usize,
    /// Splits before the skew fallback.
    pub max_level: u8,
    /// What goes to disk.
    pub spill: SpillPolicy,
    /// How files are compressed.
    pub codec: SpillCodec,
    /// How many partitions share the pool.
    pub partitions: usize,
    /// The bits of the hash that are kept.
    pub hash_mask: u64,
    /// The most rows in a batch of output.
    pub batch_size: usize,
    /// Files are read in chunks of so many bytes.
    pub chunk: usize,
}

/// The pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Without a limit.
    Unlimited,
    /// A greedy one of so many bytes.
    Greedy(usize),
    /// A fair one of so many bytes.
    Fair(usize),
}

impl Pool {
    /// Whether it is large enough that a join has to finish, where no batch of input is larger
    /// than `batch` bytes. (The operator's own floor is lower.)
    pub(super) fn suffices(self, batch: usize) -> bool {
        match self {
            Self::Unlimited => true,
            Self::Greedy(bytes) | Self::Fair(bytes) => bytes >= (1 << 20) + 2 * batch,
        }
    }
}

impl<'a> Arbitrary<'a> for Pool {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut choices = Choices(u);
        let bytes = |choices: &mut Choices| Ok(choices.size(0..=40)? << 15);
        Ok(match choices.size(0..=3)? {
            0 | 1 => Self::Unlimited,
            2 => Self::Greedy(bytes(&mut choices)?),
            _ => Self::Fair(bytes(&mut choices)?),
        })
    }
}

impl<'a> Arbitrary<'a> for Engine {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut choices = Choices(u);
        let spill = match choices.size(0..=7)? {
            0 | 1 => SpillPolicy::Pressure,
            2 => SpillPolicy::Half,
            3 => SpillPolicy::All,
            4 => SpillPolicy::Bucket(choices.size(0..=15)?),
            5 | 6 => SpillPolicy::Split(u8::try_from(choices.small(0..=4)?).unwrap_or(0)),
            _ => SpillPolicy::Chunks(choices.size(1..=40)?),
        };
        let fan_out = match spill {
            // Files multiply with each split.
            SpillPolicy::Split(_) => choices.of(&[2, 4])?,
            _ => choices.of(&[4, 2, 16, 256])?,
        };
        let codecs = [
            SpillCodec::Uncompressed,
            SpillCodec::Uncompressed,
            SpillCodec::Lz4Frame,
            SpillCodec::Zstd,
        ];
        let codec = choices.of(&codecs)?;
        let max_level = u8::try_from(choices.small(0..=6)?).unwrap_or(0);
        let hash_mask = match choices.size(0..=5)? {
            0 | 1 => u64::MAX,
            2 => 0,
            3 => u64::MAX << choices.size(0..=63)?,
            4 => u64::MAX >> choices.size(0..=63)?,
            _ => choices.bits()?,
        };
        Ok(Self {
            fan_out,
            max_level,
            spill,
            codec,
            partitions: choices.of(&[1, 1, 2, 4])?,
            hash_mask,
            batch_size: match choices.size(0..=3)? {
                0 => 8192,
                1 => choices.size(1..=4)?,
                _ => choices.size(1..=100)?,
            },
            chunk: choices.of(&[128 << 10, 4096, 61, 7])?,
        })
    }
}

impl<'a> Arbitrary<'a> for Query {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut choices = Choices(u);
        let join_type = choices.of(&JOIN_TYPES)?;
        let null_equality = choices.of(&NULL_EQUALITIES)?;
        let filter = choices.of(&FilterKind::NAMED)?;
        let key = choices.of(&KeyKind::ALL)?;
        let projection = match choices.once_in(4)? {
            true => Some(choices.list(0..=4, |choices| choices.size(0..=15))?),
            false => None,
        };
        let limit = match choices.once_in(5)? {
            true => Some(choices.size(0..=100)?),
            false => None,
        };
        let null_aware =
            join_type == JoinType::LeftAnti && !key.is_several() && choices.once_in(2)?;
        let same_names = choices.once_in(16)?;
        let mut build = table(&mut choices, "l", same_names)?;
        let mut probe = table(&mut choices, "r", same_names)?;
        if build.rows > 70 {
            probe.rows = probe.rows.min(50);
        }
        build.width = build
            .width
            .min(MOST_OUTPUT_BYTES / build.rows.max(1) / probe.rows.max(1));
        probe.width = probe
            .width
            .min(MOST_OUTPUT_BYTES / build.rows.max(1) / probe.rows.max(1));
        Ok(Self {
            join_type,
            null_equality,
            null_aware,
            filter,
            key,
            build,
            probe,
            seed: u64::from(choices.small(0..=u16::MAX)?),
            projection,
            limit,
        })
    }
}

fn table(choices: &mut Choices, prefix: &'static str, same_names: bool) -> Result<TableSpec> {
    let rows = match choices.size(0..=7)? {
        0..=3 => choices.size(0..=12)?,
        4..=6 => choices.size(0..=70)?,
        _ => choices.size(0..=300)?,
    };
    let spread = match choices.size(0..=4)? {
        0 | 1 => Spread::Few(choices.small(1..=30)?, choices.small(0..=10)?),
        2 => Spread::Unique(choices.small(0..=20)?),
        3 => Spread::Hot(choices.small(10..=95)?, choices.small(1..=60)?),
        _ => Spread::OneKey,
    };
    let size = choices.size(1..=70)?;
    Ok(TableSpec {
        rows,
        spread,
        null_percent: choices.of(&[0, 10, 50, 100])?,
        layout: match choices.size(0..=3)? {
            0 | 1 => Layout::Batches(size),
            2 => Layout::Slices(size),
            _ => Layout::WithEmpty(size),
        },
        width: match choices.once_in(4)? {
            true => choices.size(0..=15)? << 10,
            false => 0,
        },
        names: match same_names {
            true => Names::Same,
            false => Names::Prefixed(prefix),
        },
    })
}

impl Query {
    /// The inputs.
    pub(super) fn tables(&self) -> JoinResult<(Table, Table)> {
        let build = self.build.table(self.key, self.seed)?;
        Ok((build, self.probe.table(self.key, self.seed ^ 0x5eed)?))
    }

    /// The largest batch of input.
    pub(super) fn largest_batch(&self) -> usize {
        let bytes = |spec: &TableSpec| {
            let (Layout::Batches(rows) | Layout::Slices(rows) | Layout::WithEmpty(rows)) =
                spec.layout;
            // Twice for the padding of slices; a row's other columns take less than 512 bytes.
            2 * rows.min(spec.rows) * (spec.width + 512)
        };
        bytes(&self.build).max(bytes(&self.probe))
    }

    /// The join with its inputs.
    pub(super) fn setting(&self, engine: &Engine) -> JoinResult<Setting> {
        let config = GraceHashJoinConfig::builder()
            .with_fan_out(engine.fan_out)
            .with_max_level(engine.max_level)
            .with_spill(engine.spill)
            .with_codec(engine.codec)
            .with_partitions(engine.partitions)
            .build()?
            .with_hash_mask(engine.hash_mask);
        let (build, probe) = self.tables()?;
        let schemas = (Arc::clone(&build.schema), Arc::clone(&probe.schema));
        let join = GraceHashJoin::builder(schemas.0, schemas.1)
            .with_on(on(&build))
            .with_join_type(self.join_type)
            .with_null_equality(self.null_equality)
            .with_null_aware(self.null_aware)
            .with_filter(self.filter.filter(build.v, probe.v))
            .with_projection(self.columns(&build, &probe))
            .with_limit(self.limit)
            .with_config(config);
        Ok(Setting {
            join: join.build()?,
            build,
            probe,
        })
    }

    /// What the oracle says, without the limit; an error if the filter fails for a matching pair.
    pub(super) fn expected(&self, build: &Table, probe: &Table) -> JoinResult<Rows> {
        Question {
            build_schema: &build.schema,
            probe_schema: &probe.schema,
            build: &build.batches,
            probe: &probe.batches,
            on: &on(build),
            join_type: self.join_type,
            null_equality: self.null_equality,
            null_aware: self.null_aware,
            filter: self.filter.filter(build.v, probe.v).as_deref(),
            projection: self.columns(build, probe).as_deref(),
        }
        .answer()
    }

    /// Whether a probe row could come out, or decide about a build row.
    pub(super) fn needs_probe(&self, build: &Table) -> bool {
        let keys = |batch: &RecordBatch| {
            let keys = batch.columns().iter().take(build.v);
            let nulls: Vec<_> = keys.map(Array::logical_nulls).collect();
            NullBuffer::union_many(nulls.iter().map(Option::as_ref))
        };
        let can_match = |batch: &RecordBatch| match self.null_equality {
            // Of NOT IN, every build row waits for the probe side.
            _ if self.null_aware => batch.num_rows() > 0,
            NullEquality::NullEqualsNull => batch.num_rows() > 0,
            NullEquality::NullEqualsNothing => {
                keys(batch).map_or(0, |nulls| nulls.null_count()) < batch.num_rows()
            }
        };
        let hands_out_probe_rows = matches!(
            self.join_type,
            JoinType::Right | JoinType::Full | JoinType::RightAnti | JoinType::RightMark
        );
        hands_out_probe_rows || build.batches.iter().any(can_match)
    }

    fn columns(&self, build: &Table, probe: &Table) -> Option<Vec<usize>> {
        let (build, probe) = (build.schema.fields().len(), probe.schema.fields().len());
        let all = match self.join_type {
            JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => build + probe,
            JoinType::LeftSemi | JoinType::LeftAnti => build,
            JoinType::RightSemi | JoinType::RightAnti => probe,
            JoinType::LeftMark => build + 1,
            JoinType::RightMark => probe + 1,
        };
        let projection = self.projection.as_ref()?;
        Some(projection.iter().map(|column| column % all).collect())
    }

    /// What of the answer came, and whether that is what should have.
    pub(super) fn limited(&self, expected: &Rows, got: &Outcome) -> JoinResult<Rows, String> {
        let Some(limit) = self.limit else {
            return Ok(expected.clone());
        };
        let rows = Rows::of(&got.batches).map_err(|error| error.to_string())?;
        if rows.len() != expected.len().min(limit) {
            let (rows, all) = (rows.len(), expected.len());
            return Err(format!(
                "{rows} rows with a limit of {limit} and {all} in all"
            ));
        }
        if !expected.contains(&rows) {
            return Err("a row came with the limit that isn't there without it".to_string());
        }
        Ok(rows)
    }
}

fn on(build: &Table) -> Vec<(usize, usize)> {
    (0..build.v).map(|key| (key, key)).collect()
}

impl fmt::Debug for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let projection = self.projection.as_ref().map(|p| format!("vec!{p:?}"));
        let projection = projection.map_or_else(|| "None".into(), |p| format!("Some({p})"));
        write!(
            f,
            "Query {{
            join_type: JoinType::{:?},
            null_equality: NullEquality::{:?},
            null_aware: {},
            filter: FilterKind::{:?},
            key: KeyKind::{:?},
            build: {},
            probe: {},
            seed: {},
            projection: {projection},
            limit: {:?},
        }}",
            self.join_type,
            self.null_equality,
            self.null_aware,
            self.filter,
            self.key,
            paste::table(&self.build),
            paste::table(&self.probe),
            self.seed,
            self.limit,
        )
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Engine {{ fan_out: {}, max_level: {}, spill: SpillPolicy::{:?}, \
             codec: SpillCodec::{:?}, partitions: {}, hash_mask: {:#x}, batch_size: {}, \
             chunk: {} }}",
            self.fan_out,
            self.max_level,
            self.spill,
            self.codec,
            self.partitions,
            self.hash_mask,
            self.batch_size,
            self.chunk,
        )
    }
}
