//! What a join can be told besides its semantics: how many buckets, how deep, and what goes to disk.
//!
//! Job: hold validated numbers. Not its job: deciding anything at run time; that is `join/`'s.

use arrow_ipc::CompressionType;
use datafusion_common::Result;

use crate::error;

/// Which buckets go to disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpillPolicy {
    /// Buckets go to disk when the memory pool refuses, the largest first.
    #[default]
    Pressure,
    /// Every second bucket goes to disk from the first row on, whatever the pool says.
    Half,
    /// Every bucket goes to disk from the first row on, whatever the pool says.
    All,
    /// Bucket `k` alone goes to disk from the first row on.
    #[cfg(feature = "testing")]
    Bucket(usize),
    /// Every bucket goes to disk, and every pair is split again until it was split `n` times.
    #[cfg(feature = "testing")]
    Split(u8),
    /// Every bucket goes to disk, and every pair is joined in chunks of at most `n` build rows.
    #[cfg(feature = "testing")]
    Chunks(usize),
}

/// How spill files are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpillCodec {
    /// What the session says in `datafusion.execution.spill_compression`.
    #[default]
    Inherit,
    /// No compression.
    Uncompressed,
    /// LZ4 frames: pays where the disk is slower than some 0.6 GB/s.
    Lz4Frame,
    /// Zstandard.
    Zstd,
}

impl SpillCodec {
    /// The codec for arrow, where `inherited` is the session's.
    pub(crate) fn resolve(self, inherited: Option<CompressionType>) -> Option<CompressionType> {
        match self {
            Self::Inherit => inherited,
            Self::Uncompressed => None,
            Self::Lz4Frame => Some(CompressionType::LZ4_FRAME),
            Self::Zstd => Some(CompressionType::ZSTD),
        }
    }
}

/// A validated configuration. Made by [`GraceHashJoinConfig::builder`]; `default()` is valid.
///
/// ```
/// use grace_hash_join::{GraceHashJoinConfig, SpillPolicy};
/// # fn main() -> datafusion_common::Result<()> {
/// let config = GraceHashJoinConfig::builder()
///     .with_fan_out(32)
///     .with_spill(SpillPolicy::Half)
///     .build()?;
/// assert_eq!(config.fan_out(), 32);
/// assert!(GraceHashJoinConfig::builder().with_fan_out(0).build().is_err());
/// let deeper = config.to_builder().with_max_level(9).build()?;
/// assert_eq!((deeper.fan_out(), deeper.max_level()), (32, 9));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraceHashJoinConfig {
    fan_out: usize,
    max_level: u8,
    spill: SpillPolicy,
    codec: SpillCodec,
    partitions: usize,
    /// Bits of the hash that are kept.
    #[cfg(feature = "testing")]
    hash_mask: u64,
    /// The most rows of a table.
    #[cfg(feature = "testing")]
    max_rows: usize,
    /// The most bytes of a column in one piece.
    #[cfg(feature = "testing")]
    max_merged_bytes: usize,
}

impl Default for GraceHashJoinConfig {
    fn default() -> Self {
        Self {
            fan_out: Self::DEFAULT_FAN_OUT,
            max_level: Self::DEFAULT_MAX_LEVEL,
            spill: SpillPolicy::default(),
            codec: SpillCodec::default(),
            partitions: 1,
            #[cfg(feature = "testing")]
            hash_mask: u64::MAX,
            #[cfg(feature = "testing")]
            max_rows: usize::MAX,
            #[cfg(feature = "testing")]
            max_merged_bytes: usize::MAX,
        }
    }
}

impl GraceHashJoinConfig {
    /// Buckets per level: 16 keeps a bucket of a build 16 times the memory loadable after one
    /// split, and 16 write buffers cheap.
    pub const DEFAULT_FAN_OUT: usize = 16;
    /// Splits of a bucket before the skew fallback: 16^6 is far beyond what a split can help.
    pub const DEFAULT_MAX_LEVEL: u8 = 6;

    /// Starts from the defaults.
    #[must_use]
    pub fn builder() -> GraceHashJoinConfigBuilder {
        GraceHashJoinConfigBuilder {
            config: Self::default(),
        }
    }

    /// Starts from this configuration.
    #[must_use]
    pub fn to_builder(&self) -> GraceHashJoinConfigBuilder {
        GraceHashJoinConfigBuilder {
            config: self.clone(),
        }
    }

    /// The most buckets per level, a power of two in 2..=256.
    #[must_use]
    pub fn fan_out(&self) -> usize {
        self.fan_out
    }

    /// How often a bucket on disk may be split again before its pair is joined in chunks.
    #[must_use]
    pub fn max_level(&self) -> u8 {
        self.max_level
    }

    /// Which buckets go to disk.
    #[must_use]
    pub fn spill(&self) -> SpillPolicy {
        self.spill
    }

    /// How spill files are compressed.
    #[must_use]
    pub fn codec(&self) -> SpillCodec {
        self.codec
    }

    /// How many partitions of this join may run beside each other in one pool.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.partitions
    }
}

#[cfg(feature = "testing")]
impl GraceHashJoinConfig {
    /// Forces collisions: only these bits of each hash are kept.
    #[must_use]
    pub fn with_hash_mask(mut self, hash_mask: u64) -> Self {
        self.hash_mask = hash_mask;
        self
    }

    /// A table of more rows does not fit, whatever memory says.
    #[must_use]
    pub fn with_max_rows(mut self, max_rows: usize) -> Self {
        self.max_rows = max_rows;
        self
    }

    /// A column of more bytes is not put into one piece, as one of over a GiB is not.
    #[must_use]
    pub fn with_max_merged_bytes(mut self, max_merged_bytes: usize) -> Self {
        self.max_merged_bytes = max_merged_bytes;
        self
    }

    pub(crate) fn max_rows(&self) -> usize {
        self.max_rows
    }

    pub(crate) fn max_merged_bytes(&self) -> usize {
        self.max_merged_bytes
    }

    pub(crate) fn hash_mask(&self) -> u64 {
        self.hash_mask
    }
}

/// Builds a [`GraceHashJoinConfig`]; mistakes are reported by [`Self::build`].
#[derive(Clone, Debug)]
pub struct GraceHashJoinConfigBuilder {
    config: GraceHashJoinConfig,
}

impl GraceHashJoinConfigBuilder {
    /// The most buckets per level, a power of two in 2..=256; lowered to what memory carries.
    #[must_use]
    pub fn with_fan_out(mut self, fan_out: usize) -> Self {
        self.config.fan_out = fan_out;
        self
    }

    /// How often a bucket on disk may be split again before the skew fallback; 0 is never.
    #[must_use]
    pub fn with_max_level(mut self, max_level: u8) -> Self {
        self.config.max_level = max_level;
        self
    }

    /// Which buckets go to disk.
    #[must_use]
    pub fn with_spill(mut self, spill: SpillPolicy) -> Self {
        self.config.spill = spill;
        self
    }

    /// How spill files are compressed.
    #[must_use]
    pub fn with_codec(mut self, codec: SpillCodec) -> Self {
        self.config.codec = codec;
        self
    }

    /// How many partitions of this join may run beside each other in one pool, at least 1.
    #[must_use]
    pub fn with_partitions(mut self, partitions: usize) -> Self {
        self.config.partitions = partitions;
        self
    }

    /// # Errors
    /// A configuration error that names the value and the good ones.
    pub fn build(self) -> Result<GraceHashJoinConfig> {
        let config = self.config;
        if !(2..=256).contains(&config.fan_out) || !config.fan_out.is_power_of_two() {
            return Err(error::bad_fan_out(config.fan_out));
        }
        if config.partitions == 0 {
            return Err(error::bad_partitions());
        }
        Ok(config)
    }
}
