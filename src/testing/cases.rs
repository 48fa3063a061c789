//! The case space: axes as enums, invalid combinations as named predicates, names to run again by.
//!
//! Job: say what there is to try. A [`Case`] is one point: join type, null equality, filter, spill
//! pressure, key type, shape of the data, batch size, seed. Its name lists them in that order,
//! `LeftSemi/nothing/both/half/Int64/mixed/3/42`, and [`Case::from_name`] reads it back. A null-aware
//! anti join is called `NotIn`.
//! `GRACE_CASE=<name> cargo test` runs that case alone, in whichever test it belongs to.

use std::fmt;

use datafusion_common::{JoinType, NullEquality, Result};

use super::data::{Layout, Names, Spread, Table, TableSpec};
use super::filters::FilterKind;
use super::keys::KeyKind;
use super::run::{Failure, Spills};
use crate::SpillPolicy;

/// The environment variable that picks one case by its name.
pub const CASE_ENV: &str = "GRACE_CASE";

/// All join types.
pub const JOIN_TYPES: [JoinType; 10] = [
    JoinType::Inner,
    JoinType::Left,
    JoinType::Right,
    JoinType::Full,
    JoinType::LeftSemi,
    JoinType::LeftAnti,
    JoinType::LeftMark,
    JoinType::RightSemi,
    JoinType::RightAnti,
    JoinType::RightMark,
];

/// Both null equalities.
pub const NULL_EQUALITIES: [NullEquality; 2] = [
    NullEquality::NullEqualsNothing,
    NullEquality::NullEqualsNull,
];

/// Batch sizes around every edge that a batch can have.
pub const BATCH_SIZES: [usize; 6] = [1, 2, 3, 7, 50, 8192];

/// What drives a join to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pressure {
    /// Nothing: there is memory without end.
    Fits,
    /// Every second bucket is sent there.
    Half,
    /// Every bucket is.
    All,
    /// Every bucket is, and its pair is split again, to a depth of three.
    SplitAgain,
    /// Every bucket is, and its pair is joined five build rows at a time.
    Chunked,
    /// A pool that is smaller than one key's rows.
    SmallPool,
}

impl Pressure {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Fits,
        Self::Half,
        Self::All,
        Self::SplitAgain,
        Self::Chunked,
        Self::SmallPool,
    ];

    /// Those that don't depend on how large the data is.
    pub const FORCED: [Self; 5] = [
        Self::Fits,
        Self::Half,
        Self::All,
        Self::SplitAgain,
        Self::Chunked,
    ];

    /// The operator's own switch.
    #[must_use]
    pub fn policy(self) -> SpillPolicy {
        match self {
            Self::Fits | Self::SmallPool => SpillPolicy::Pressure,
            Self::Half => SpillPolicy::Half,
            Self::All => SpillPolicy::All,
            Self::SplitAgain => SpillPolicy::Split(3),
            Self::Chunked => SpillPolicy::Chunks(5),
        }
    }

    /// Buckets per level; few where splitting multiplies them.
    #[must_use]
    pub fn fan_out(self) -> usize {
        match self {
            Self::SplitAgain => 2,
            Self::SmallPool => 16,
            _ => 4,
        }
    }

    /// The pool's size, if it has one.
    #[must_use]
    pub fn pool_bytes(self) -> Option<usize> {
        // More than the floor, less than the build side of `Shape::WideOneKey`.
        (self == Self::SmallPool).then_some(640 << 10)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Fits => "fits",
            Self::Half => "half",
            Self::All => "all",
            Self::SplitAgain => "split",
            Self::Chunked => "chunked",
            Self::SmallPool => "small-pool",
        }
    }
}

/// What the two inputs look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Some keys on one side, some on both, duplicates, NULLs in every column.
    Mixed,
    /// Each key once on each side, some without a partner.
    Unique,
    /// Half of the rows share one key.
    Skewed,
    /// All rows share one key.
    OneKey,
    /// One key, and 800 KiB of build rows with it.
    WideOneKey,
    /// 2 MiB of build rows over many keys, and a smaller probe side.
    Large,
    /// 2 MiB of build rows, nine tenths of them with one key; a smaller probe side.
    LargeSkewed,
    /// No build rows; there are batches.
    EmptyBuild,
    /// No probe rows; there are batches.
    EmptyProbe,
    /// No batches at all.
    Nothing,
    /// As `Mixed`, with empty batches among the others.
    EmptyBatches,
    /// As `Mixed`, in slices of larger arrays.
    Slices,
    /// As `Mixed`, and every column of both sides has the same name.
    SameNames,
    /// As `Mixed`, without a NULL.
    NoNulls,
    /// As `Mixed`, without a NULL on the probe side, and with many on the build side.
    NoProbeNulls,
    /// All build keys are NULL, no probe key is.
    NullBuildKeys,
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::Mixed,
        Self::Unique,
        Self::Skewed,
        Self::OneKey,
        Self::WideOneKey,
        Self::Large,
        Self::LargeSkewed,
        Self::EmptyBuild,
        Self::EmptyProbe,
        Self::Nothing,
        Self::EmptyBatches,
        Self::Slices,
        Self::SameNames,
        Self::NoNulls,
        Self::NoProbeNulls,
        Self::NullBuildKeys,
    ];

    /// The keys that this shape is meant for.
    #[must_use]
    pub fn key(self) -> KeyKind {
        match self {
            Self::WideOneKey => KeyKind::Wide,
            _ => KeyKind::Int64,
        }
    }

    /// Whether the build side is larger than [`Pressure::SmallPool`].
    #[must_use]
    pub fn is_large(self) -> bool {
        matches!(self, Self::WideOneKey | Self::Large | Self::LargeSkewed)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Mixed => "mixed",
            Self::Unique => "unique",
            Self::Skewed => "skewed",
            Self::OneKey => "one-key",
            Self::WideOneKey => "wide-one-key",
            Self::Large => "large",
            Self::LargeSkewed => "large-skewed",
            Self::EmptyBuild => "empty-build",
            Self::EmptyProbe => "empty-probe",
            Self::Nothing => "nothing",
            Self::EmptyBatches => "empty-batches",
            Self::Slices => "slices",
            Self::SameNames => "same-names",
            Self::NoNulls => "no-nulls",
            Self::NoProbeNulls => "no-probe-nulls",
            Self::NullBuildKeys => "null-build-keys",
        }
    }

    /// The build input's and the probe input's specification.
    #[must_use]
    pub fn specs(self) -> (TableSpec, TableSpec) {
        // 51 and 61 rows: one more than a batch size, and never a multiple of one.
        let mut build = TableSpec {
            rows: 51,
            spread: Spread::Few(25, 0),
            null_percent: 10,
            layout: Layout::Batches(20),
            width: 0,
            names: Names::Prefixed("l"),
        };
        let mut probe = TableSpec {
            rows: 61,
            spread: Spread::Few(25, 8),
            names: Names::Prefixed("r"),
            ..build
        };
        match self {
            Self::Mixed => {}
            Self::Unique => (build.spread, probe.spread) = (Spread::Unique(0), Spread::Unique(20)),
            Self::Skewed => {
                (build.spread, probe.spread) = (Spread::Hot(50, 40), Spread::Hot(50, 40));
            }
            Self::OneKey => (build.spread, probe.spread) = (Spread::OneKey, Spread::OneKey),
            Self::WideOneKey => {
                (build.rows, build.null_percent) = (200, 0);
                build.layout = Layout::Batches(10);
                (build.spread, probe.spread) = (Spread::OneKey, Spread::Unique(5));
                probe.rows = 5;
            }
            Self::Large | Self::LargeSkewed => {
                (build.rows, build.width, build.layout) = (1000, 2048, Layout::Batches(10));
                (build.spread, probe.spread) = (Spread::Few(800, 0), Spread::Few(800, 400));
                (build.null_percent, probe.rows) = (5, 150);
                if self == Self::LargeSkewed {
                    build.spread = Spread::Hot(90, 800);
                    probe.rows = 60;
                    probe.spread = Spread::Hot(2, 800);
                }
            }
            Self::EmptyBuild => (build.rows, build.layout) = (0, Layout::WithEmpty(20)),
            Self::EmptyProbe => (probe.rows, probe.layout) = (0, Layout::WithEmpty(20)),
            Self::Nothing => (build.rows, probe.rows) = (0, 0),
            Self::EmptyBatches => {
                (build.layout, probe.layout) = (Layout::WithEmpty(20), Layout::WithEmpty(9));
            }
            Self::Slices => (build.layout, probe.layout) = (Layout::Slices(20), Layout::Slices(9)),
            Self::SameNames => (build.names, probe.names) = (Names::Same, Names::Same),
            Self::NoNulls => (build.null_percent, probe.null_percent) = (0, 0),
            Self::NoProbeNulls => (build.null_percent, probe.null_percent) = (30, 0),
            Self::NullBuildKeys => (build.null_percent, probe.null_percent) = (100, 0),
        }
        (build, probe)
    }
}

/// One point of the case space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// The join type.
    pub join_type: JoinType,
    /// Whether it is NOT IN.
    pub null_aware: bool,
    /// Whether NULL keys match.
    pub null_equality: NullEquality,
    /// The residual filter.
    pub filter: FilterKind,
    /// What drives the join to disk.
    pub pressure: Pressure,
    /// The keys.
    pub key: KeyKind,
    /// The inputs.
    pub shape: Shape,
    /// Rows in a batch of output.
    pub batch_size: usize,
    /// What the data is made from.
    pub seed: u64,
}

impl Case {
    /// NOT IN, as plain as [`Self::new`].
    #[must_use]
    pub fn not_in() -> Self {
        Self {
            null_aware: true,
            shape: Shape::NoProbeNulls,
            ..Self::new(JoinType::LeftAnti)
        }
    }

    /// The plainest join of each type, and NOT IN.
    #[must_use]
    pub fn of_each_type() -> Vec<Self> {
        let types = JOIN_TYPES.into_iter().map(Self::new);
        types.chain([Self::not_in()]).collect()
    }

    /// The plainest join of this type; axes are set with the struct update syntax.
    #[must_use]
    pub fn new(join_type: JoinType) -> Self {
        Self {
            join_type,
            null_aware: false,
            null_equality: NullEquality::NullEqualsNothing,
            filter: FilterKind::None,
            pressure: Pressure::Fits,
            key: KeyKind::Int64,
            shape: Shape::Mixed,
            batch_size: 8192,
            seed: 42,
        }
    }

    /// Whether this combination means something.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.small_pool_has_data_that_exceeds_it()
            && self.large_data_is_there_for_a_pool()
            && self.one_wide_key_is_a_wide_key()
            && self.not_in_is_an_anti_join_with_one_key()
    }

    fn not_in_is_an_anti_join_with_one_key(&self) -> bool {
        !self.null_aware || (self.join_type == JoinType::LeftAnti && !self.key.is_several())
    }

    /// Some join types keep nothing but keys of the build side.
    fn one_wide_key_is_a_wide_key(&self) -> bool {
        self.shape != Shape::WideOneKey || self.key == KeyKind::Wide
    }

    /// Large data takes its time, and proves no more than small data where spilling is forced.
    fn large_data_is_there_for_a_pool(&self) -> bool {
        !self.shape.is_large() || matches!(self.pressure, Pressure::SmallPool | Pressure::Fits)
    }

    /// A small pool presses only on data that is larger; all else would be `Fits` by another name.
    fn small_pool_has_data_that_exceeds_it(&self) -> bool {
        self.pressure != Pressure::SmallPool || self.shape.is_large()
    }

    /// Whether the run must write to disk, must not, or may.
    #[must_use]
    pub fn expects_spill(&self) -> Spills {
        let (build, probe) = self.shape.specs();
        match self.pressure {
            Pressure::Fits => Spills::MustNot,
            // A marked bucket that no row enters has no file.
            _ if build.rows == 0 && probe.rows == 0 => Spills::MustNot,
            _ if build.rows == 0 => Spills::May,
            // Rows with a NULL key are handed out, or dropped, but for NOT IN, which keeps them.
            _ if self.fills_no_bucket() && !self.null_aware => Spills::MustNot,
            // Few keys may all be in buckets that are not marked.
            Pressure::Half if self.has_few_buckets() => Spills::May,
            Pressure::SmallPool if !self.keeps_wide_build_rows() => Spills::May,
            _ => Spills::Must,
        }
    }

    /// Whether no build row can match.
    fn fills_no_bucket(&self) -> bool {
        let matches_nothing =
            self.null_aware || self.null_equality == NullEquality::NullEqualsNothing;
        self.shape == Shape::NullBuildKeys && matches_nothing
    }

    /// Whether a NULL among the probe keys may decide that nothing comes out.
    #[must_use]
    pub fn may_be_undecidable(&self) -> bool {
        self.null_aware && self.shape.specs().1.null_percent > 0
    }

    /// Whether what is kept of a build row is large: columns that come out, or its key.
    fn keeps_wide_build_rows(&self) -> bool {
        let probe_only = [
            JoinType::RightSemi,
            JoinType::RightAnti,
            JoinType::RightMark,
        ];
        self.key == KeyKind::Wide || !probe_only.contains(&self.join_type)
    }

    fn has_few_buckets(&self) -> bool {
        // A third of the codes are one list, so skewed lists are few.
        let are_few_lists = self.key == KeyKind::List && self.shape == Shape::Skewed;
        matches!(self.shape, Shape::OneKey | Shape::NullBuildKeys)
            || self.key == KeyKind::Boolean
            || are_few_lists
    }

    /// The inputs.
    ///
    /// # Errors
    /// Only if arrow refuses the arrays.
    pub fn tables(&self) -> Result<(Table, Table)> {
        let (build, probe) = self.shape.specs();
        let build = build.table(self.key, self.seed)?;
        Ok((build, probe.table(self.key, self.seed ^ 0x5eed)?))
    }

    /// Reads a name back.
    ///
    /// # Errors
    /// If it is not a case's name.
    pub fn from_name(name: &str) -> Result<Self, Failure> {
        let part = |index: usize| name.split('/').nth(index).unwrap_or_default();
        let number = |index: usize| {
            let wrong = |e| Failure::new(name, format!("part {index} is no number: {e}"));
            part(index).parse::<u64>().map_err(wrong)
        };
        let types: Vec<_> = Self::of_each_type()
            .iter()
            .map(|case| (case.join_type, case.null_aware))
            .collect();
        let (join_type, null_aware) = pick(name, part(0), &types, |(j, n)| type_name(j, n))?;
        let case = Self {
            join_type,
            null_aware,
            null_equality: pick(name, part(1), &NULL_EQUALITIES, |n| {
                nulls_name(n).to_string()
            })?,
            filter: pick(name, part(2), &FilterKind::NAMED, |f| format!("{f:?}"))?,
            pressure: pick(name, part(3), &Pressure::ALL, |p| p.name().to_string())?,
            key: pick(name, part(4), &KeyKind::ALL, |k| format!("{k:?}"))?,
            shape: pick(name, part(5), &Shape::ALL, |s| s.name().to_string())?,
            batch_size: usize::try_from(number(6)?).unwrap_or(usize::MAX),
            seed: number(7)?,
        };
        Ok(case)
    }

    /// Whether the environment asks for this case, or for none in particular.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        std::env::var(CASE_ENV).map_or(true, |wanted| wanted == self.to_string())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}/{:?}/{}/{:?}/{}/{}/{}",
            type_name(self.join_type, self.null_aware),
            nulls_name(self.null_equality),
            self.filter,
            self.pressure.name(),
            self.key,
            self.shape.name(),
            self.batch_size,
            self.seed
        )
    }
}

fn type_name(join_type: JoinType, null_aware: bool) -> String {
    match null_aware {
        true => "NotIn".to_string(),
        false => format!("{join_type:?}"),
    }
}

fn nulls_name(null_equality: NullEquality) -> &'static str {
    match null_equality {
        NullEquality::NullEqualsNothing => "nothing",
        NullEquality::NullEqualsNull => "null",
    }
}

fn pick<T: Copy>(
    name: &str,
    part: &str,
    all: &[T],
    display: impl Fn(T) -> String,
) -> Result<T, Failure> {
    let found = all
        .iter()
        .copied()
        .find(|x| display(*x).eq_ignore_ascii_case(part));
    found.ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|x| display(*x)).collect();
        Failure::new(name, format!("{part:?} is none of {known:?}"))
    })
}
