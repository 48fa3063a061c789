//! What SQL `SET` can say about the join: `SET grace_hash_join.<key> = <value>`.
//!
//! Job: parse, refuse with the list of good values, show. Not its job: acting on any of it; the
//! rule does when it plans, and what concerns running is resolved to a [`GraceHashJoinConfig`] when
//! the node is made.
//!
//! Written by hand, since the keys in [`ExtensionOptions::entries`] must carry the prefix: `SHOW`
//! and `information_schema.df_settings` print them as they are, and executors are sent them as they
//! are. For those who add the prefix themselves, [`ExtensionOptions::set`] takes both forms.

use std::any::Any;
use std::fmt::Debug;

use datafusion_common::Result;
use datafusion_common::config::{
    ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions, SpillCompression,
};

use crate::config::{GraceHashJoinConfig, SpillCodec, SpillPolicy};
use crate::error;

/// Which join takes the place of a hash join that is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Grace,
    SortMerge,
    /// This crate's join or none; not for SQL, but for plans that must keep their shape.
    GraceAlone,
}

/// Which hash joins are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Select {
    Estimated,
    Capped,
    Always,
}

/// The options `grace_hash_join.*`.
///
/// | key | default | meaning |
/// |---|---|---|
/// | `enabled` | `true` | `false`: the rule changes nothing |
/// | `algorithm` | `sort_merge` | `grace`: this crate's join first, sort-merge for shapes that it refuses; `sort_merge`: sort-merge only |
/// | `select` | `estimated` | `estimated`: joins whose build side is estimated to be too large; `capped`: every convertible join if the memory pool is finite; `always`: every convertible join |
/// | `repartition_collect_left` | `false` | `true`: a join that collects a build side far over the threshold is partitioned, so that it can spill |
/// | `build_bytes` | `0` | how large a build side per partition may be; 0: derived from the memory pool's limit |
/// | `fan_out` | `16` | the most buckets per level, a power of two from 2 to 256 |
/// | `max_level` | `6` | how often a bucket is split before its pair is joined in chunks |
/// | `spill` | `pressure` | `pressure`: when the memory pool refuses; `half`, `all`: from the first row on (tests, benches) |
/// | `compression` | `inherit` | `inherit`: as `datafusion.execution.spill_compression`; or `uncompressed`, `lz4_frame`, `zstd` |
///
/// ```
/// use datafusion::prelude::SessionConfig;
/// use grace_hash_join::GraceHashJoinOptions;
/// # fn main() -> datafusion_common::Result<()> {
/// let options = GraceHashJoinOptions::default().with("algorithm", "grace")?;
/// let config = SessionConfig::new().with_option_extension(options);
/// assert!(GraceHashJoinOptions::default().with("fan_out", "3").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraceHashJoinOptions {
    pub(crate) is_enabled: bool,
    pub(crate) algorithm: Algorithm,
    pub(crate) select: Select,
    pub(crate) repartitions_collect_left: bool,
    pub(crate) build_bytes: usize,
    pub(crate) fan_out: usize,
    pub(crate) max_level: u8,
    pub(crate) spill: SpillPolicy,
    pub(crate) codec: SpillCodec,
}

impl Default for GraceHashJoinOptions {
    fn default() -> Self {
        let config = GraceHashJoinConfig::default();
        Self {
            is_enabled: true,
            algorithm: Algorithm::SortMerge,
            select: Select::Estimated,
            repartitions_collect_left: false,
            build_bytes: 0,
            fan_out: config.fan_out(),
            max_level: config.max_level(),
            spill: config.spill(),
            codec: config.codec(),
        }
    }
}

/// A key, what it means, how it is set and how it is shown.
struct Key {
    name: &'static str,
    description: &'static str,
    /// What a value must be, in words.
    good: &'static str,
    /// Sets the value; `false` if it is a bad one.
    set: fn(&mut GraceHashJoinOptions, &str) -> bool,
    get: fn(&GraceHashJoinOptions) -> String,
}

const ALGORITHMS: &[(&str, Algorithm)] = &[
    ("grace", Algorithm::Grace),
    ("sort_merge", Algorithm::SortMerge),
];

const SELECTS: &[(&str, Select)] = &[
    ("estimated", Select::Estimated),
    ("capped", Select::Capped),
    ("always", Select::Always),
];

const POLICIES: &[(&str, SpillPolicy)] = &[
    ("pressure", SpillPolicy::Pressure),
    ("half", SpillPolicy::Half),
    ("all", SpillPolicy::All),
];

const CODECS: &[(&str, SpillCodec)] = &[
    ("inherit", SpillCodec::Inherit),
    ("uncompressed", SpillCodec::Uncompressed),
    ("lz4_frame", SpillCodec::Lz4Frame),
    ("zstd", SpillCodec::Zstd),
];

const KEYS: &[Key] = &[
    Key {
        name: "enabled",
        description: "Whether hash joins may be replaced by joins that spill",
        good: "true or false",
        set: |o, v| put(&mut o.is_enabled, v.parse().ok()),
        get: |o| o.is_enabled.to_string(),
    },
    Key {
        name: "algorithm",
        description: "Which join replaces a hash join: grace (sort_merge for shapes that grace \
                      refuses) or sort_merge",
        good: "one of: grace, sort_merge",
        set: |o, v| put(&mut o.algorithm, value_of(ALGORITHMS, v)),
        get: |o| name_of(ALGORITHMS, &o.algorithm),
    },
    Key {
        name: "select",
        description: "Which hash joins are replaced: estimated (build side estimated to be too \
                      large), capped (all, if the memory pool is finite) or always (all)",
        good: "one of: estimated, capped, always",
        set: |o, v| put(&mut o.select, value_of(SELECTS, v)),
        get: |o| name_of(SELECTS, &o.select),
    },
    Key {
        name: "repartition_collect_left",
        description: "Whether a hash join that collects a build side of more than twice what is \
                      allowed becomes a partitioned join that spills, with exchanges on both sides",
        good: "true or false",
        set: |o, v| put(&mut o.repartitions_collect_left, v.parse().ok()),
        get: |o| o.repartitions_collect_left.to_string(),
    },
    Key {
        name: "build_bytes",
        description: "How many bytes a hash join's build side may have in each partition; 0 \
                      derives it from the memory pool's limit",
        good: "a number of bytes, 0 or more",
        set: |o, v| put(&mut o.build_bytes, v.parse().ok()),
        get: |o| o.build_bytes.to_string(),
    },
    Key {
        name: "fan_out",
        description: "The most buckets that a level of splitting makes",
        good: "a power of two from 2 to 256",
        set: |o, v| put(&mut o.fan_out, v.parse().ok().filter(|n| is_fan_out(*n))),
        get: |o| o.fan_out.to_string(),
    },
    Key {
        name: "max_level",
        description: "How often a bucket is split before its pair is joined in chunks",
        good: "a number from 0 to 255",
        set: |o, v| put(&mut o.max_level, v.parse().ok()),
        get: |o| o.max_level.to_string(),
    },
    Key {
        name: "spill",
        description: "When buckets go to disk: pressure (when the memory pool refuses), half \
                      (every second one) or all from the first row on",
        good: "one of: pressure, half, all",
        set: |o, v| put(&mut o.spill, value_of(POLICIES, v)),
        get: |o| name_of(POLICIES, &o.spill),
    },
    Key {
        name: "compression",
        description: "How spill files are compressed: inherit (as \
                      datafusion.execution.spill_compression), uncompressed, lz4_frame or zstd",
        good: "one of: inherit, uncompressed, lz4_frame, zstd",
        set: |o, v| put(&mut o.codec, value_of(CODECS, v)),
        get: |o| name_of(CODECS, &o.codec),
    },
];

/// The keys that say how a join runs, not whether there is one: what a node carries.
#[cfg(feature = "proto")]
const RUNNING: [&str; 4] = ["fan_out", "max_level", "spill", "compression"];

fn put<T>(slot: &mut T, value: Option<T>) -> bool {
    value.map(|v| *slot = v).is_some()
}

fn is_fan_out(fan_out: usize) -> bool {
    let config = GraceHashJoinConfig::builder().with_fan_out(fan_out);
    config.build().is_ok()
}

fn value_of<T: Copy>(names: &[(&str, T)], value: &str) -> Option<T> {
    let mut known = names.iter();
    let found = known.find(|(name, _)| name.eq_ignore_ascii_case(value));
    found.map(|(_, v)| *v)
}

fn name_of<T: PartialEq + Debug>(names: &[(&str, T)], value: &T) -> String {
    let found = names.iter().find(|(_, v)| v == value);
    found.map_or_else(|| format!("{value:?}"), |(name, _)| (*name).to_string())
}

impl GraceHashJoinOptions {
    /// Sets one option, as SQL's `SET grace_hash_join.<key> = <value>` does.
    ///
    /// # Errors
    /// A configuration error that lists the keys, or the good values.
    pub fn with(mut self, key: &str, value: &str) -> Result<Self> {
        self.set(key, value)?;
        Ok(self)
    }

    /// The session's options, or the defaults if the extension was not registered.
    pub(crate) fn of(config: &ConfigOptions) -> Self {
        config.extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// What another process must [set](Self::with) to have `config`, also where its defaults are
    /// others. The number of partitions is not in it: that is each node's own.
    ///
    /// # Errors
    /// A configuration error if `config` says what only tests can say.
    #[cfg(feature = "proto")]
    pub(crate) fn settings(config: &GraceHashJoinConfig) -> Result<Vec<(String, String)>> {
        let options = Self {
            fan_out: config.fan_out(),
            max_level: config.max_level(),
            spill: config.spill(),
            codec: config.codec(),
            ..Self::default()
        };
        let of_running = KEYS.iter().filter(|key| RUNNING.contains(&key.name));
        let setting = |key: &Key| {
            let value = (key.get)(&options);
            Self::default().with(key.name, &value)?;
            Ok((key.name.to_string(), value))
        };
        of_running.map(setting).collect()
    }

    /// What the node carries. The session's compression is looked up now, not when the node runs.
    ///
    /// # Errors
    /// A configuration error that names a bad value; [`Self::set`] lets none in.
    pub(crate) fn resolve(&self, session: &ConfigOptions) -> Result<GraceHashJoinConfig> {
        let codec = match self.codec {
            SpillCodec::Inherit => codec_of(session.execution.spill_compression),
            codec => codec,
        };
        Self {
            codec,
            ..self.clone()
        }
        .config()
    }

    /// What concerns running, as it stands here.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub(crate) fn config(&self) -> Result<GraceHashJoinConfig> {
        GraceHashJoinConfig::builder()
            .with_fan_out(self.fan_out)
            .with_max_level(self.max_level)
            .with_spill(self.spill)
            .with_codec(self.codec)
            .build()
    }
}

fn codec_of(compression: SpillCompression) -> SpillCodec {
    match compression {
        SpillCompression::Uncompressed => SpillCodec::Uncompressed,
        SpillCompression::Lz4Frame => SpillCodec::Lz4Frame,
        SpillCompression::Zstd => SpillCodec::Zstd,
    }
}

impl ConfigExtension for GraceHashJoinOptions {
    const PREFIX: &'static str = "grace_hash_join";
}

impl ExtensionOptions for GraceHashJoinOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let name = key
            .strip_prefix(Self::PREFIX)
            .and_then(|k| k.strip_prefix('.'))
            .unwrap_or(key);
        let Some(known) = KEYS.iter().find(|k| k.name == name) else {
            let names: Vec<_> = KEYS.iter().map(|k| k.name).collect();
            return Err(error::unknown_option(Self::PREFIX, name, &names.join(", ")));
        };
        if (known.set)(self, value.trim()) {
            return Ok(());
        }
        let key = format!("{}.{name}", Self::PREFIX);
        Err(error::bad_option(&key, value, known.good))
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let entry = |key: &Key| ConfigEntry {
            key: format!("{}.{}", Self::PREFIX, key.name),
            value: Some((key.get)(self)),
            description: key.description,
        };
        KEYS.iter().map(entry).collect()
    }
}
