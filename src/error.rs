//! Every error of this crate is built here, so that each names what, how much, where, and the knob.
//!
//! By blame: `plan_*` for a caller's mistake at construction, `resources` for a limit that was hit,
//! `execution` for what went wrong while running, `internal` for a bug of ours.

use arrow::datatypes::{DataType, Field};
use arrow::error::ArrowError;
use datafusion_common::{DataFusionError, JoinType};

fn plan(message: String) -> DataFusionError {
    DataFusionError::Plan(message)
}

pub(crate) fn bad_fan_out(fan_out: usize) -> DataFusionError {
    DataFusionError::Configuration(format!(
        "grace_hash_join.fan_out is {fan_out}; it must be a power of two from 2 to 256"
    ))
}

pub(crate) fn bad_partitions() -> DataFusionError {
    DataFusionError::Configuration("a join needs at least one partition, got 0".to_string())
}

pub(crate) fn no_keys() -> DataFusionError {
    plan("a hash join needs at least one pair of join keys; use a nested loop or cross join".into())
}

pub(crate) fn key_count(build: usize, probe: usize) -> DataFusionError {
    plan(format!(
        "the build side has {build} join keys but the probe side has {probe}"
    ))
}

pub(crate) fn key_types(index: usize, build: &DataType, probe: &DataType) -> DataFusionError {
    plan(format!(
        "join key {index} has type {build} on the build side but {probe} on the probe side; \
         cast both to one type"
    ))
}

pub(crate) fn key_unsupported(index: usize, key: &DataType, cause: &str) -> DataFusionError {
    plan(format!(
        "join key {index} of type {key} cannot be hashed and compared: {cause}"
    ))
}

pub(crate) fn cannot_be_spilled(side: &str, column: &Field, cause: &str) -> DataFusionError {
    plan(format!(
        "column {} of the {side} side has type {}, which cannot be written to a spill file: {cause}; \
         cast it to another type",
        column.name(),
        column.data_type()
    ))
}

pub(crate) fn no_such_column(what: &str, index: usize, columns: usize) -> DataFusionError {
    plan(format!(
        "{what} names column {index}, but there are {columns} columns"
    ))
}

pub(crate) fn null_aware(join_type: JoinType, keys: usize) -> DataFusionError {
    plan(format!(
        "a null-aware join must be a LeftAnti join with one key, got {join_type} with {keys} keys"
    ))
}

pub(crate) fn output_schema(expected: &str, got: &str) -> DataFusionError {
    plan(format!(
        "the declared output schema {got} does not fit the join's columns {expected}"
    ))
}

pub(crate) fn internal(message: impl Into<String>) -> DataFusionError {
    DataFusionError::Internal(message.into())
}

/// More words than the keys of a dictionary can number; fewer rows have fewer.
pub(crate) fn too_many_words() -> DataFusionError {
    ArrowError::DictionaryKeyOverflowError.into()
}

/// Whether it is [`too_many_words`].
pub(crate) fn is_too_many_words(error: &DataFusionError) -> bool {
    let DataFusionError::ArrowError(error, _) = error else {
        return false;
    };
    matches!(**error, ArrowError::DictionaryKeyOverflowError)
}

pub(crate) fn filter_side() -> DataFusionError {
    plan("the filter names a column that belongs to neither side".into())
}

pub(crate) fn input_schema(side: &str, index: usize, expected: &DataType) -> DataFusionError {
    plan(format!(
        "the {side} input does not have the schema that the join was built with: column {index} \
         should have type {expected}"
    ))
}

// The plan node, the rule and its options.

#[cfg(feature = "datafusion")]
pub(crate) fn volatile_key(expr: &str) -> DataFusionError {
    plan(format!(
        "the join key {expr} is volatile: it would differ when it is computed again for spilled rows"
    ))
}

#[cfg(feature = "datafusion")]
pub(crate) fn node_null_aware() -> DataFusionError {
    plan(
        "a null-aware anti join (NOT IN) with mode=Partitioned cannot be a GraceHashJoinExec: its \
         answer depends on all probe rows; it must be CollectLeft with one partition on both sides"
            .into(),
    )
}

#[cfg(feature = "datafusion")]
pub(crate) fn node_mode(mode: &str, build: usize, probe: usize) -> DataFusionError {
    plan(format!(
        "a hash join with mode={mode}, {build} build and {probe} probe partitions cannot be a \
         GraceHashJoinExec; it must be Partitioned, or CollectLeft with one partition on both sides"
    ))
}

#[cfg(feature = "datafusion")]
pub(crate) fn node_partition(
    mode: &str,
    partition: usize,
    counts: (usize, usize),
) -> DataFusionError {
    let (build, probe) = counts;
    internal(format!(
        "GraceHashJoinExec with mode={mode} cannot execute partition {partition}: its inputs have \
         {build} and {probe} partitions, which must be equal, and 1 for CollectLeft"
    ))
}

#[cfg(feature = "datafusion")]
pub(crate) fn node_children(children: usize) -> DataFusionError {
    internal(format!(
        "GraceHashJoinExec has two children, got {children}"
    ))
}

#[cfg(feature = "datafusion")]
pub(crate) fn bad_option(key: &str, value: &str, good: &str) -> DataFusionError {
    DataFusionError::Configuration(format!("{key} cannot be '{value}'; it must be {good}"))
}

#[cfg(feature = "datafusion")]
pub(crate) fn unknown_option(prefix: &str, key: &str, keys: &str) -> DataFusionError {
    DataFusionError::Configuration(format!(
        "there is no option '{key}' in '{prefix}'; there are: {keys}"
    ))
}

fn resources(message: String) -> DataFusionError {
    DataFusionError::ResourcesExhausted(message)
}

pub(crate) fn below_floor(
    partition: usize,
    what: &str,
    asked: usize,
    held: usize,
    limit: Option<usize>,
    cause: &DataFusionError,
) -> DataFusionError {
    let limit = limit.map_or_else(|| "unknown".to_string(), |l| format!("{l} bytes"));
    resources(format!(
        "GraceHashJoin partition {partition} cannot go on: {asked} bytes for {what} were refused \
         while it holds {held} bytes; the pool's limit is {limit}. Raise \
         datafusion.runtime.memory_limit, or lower datafusion.execution.target_partitions or \
         grace_hash_join.fan_out. The pool says: {cause}"
    ))
}

pub(crate) fn spilling_disabled(partition: usize) -> DataFusionError {
    resources(format!(
        "GraceHashJoin partition {partition} does not fit in memory and spilling is disabled: the \
         disk manager makes no temporary files. Enable it (RuntimeEnvBuilder::\
         with_disk_manager_builder), or raise datafusion.runtime.memory_limit"
    ))
}

pub(crate) fn damaged_run(partition: usize, what: &str, frame: u64, how: &str) -> DataFusionError {
    execution(format!(
        "GraceHashJoin partition {partition}: a spill file of {what} is damaged at frame {frame}: \
         {how}"
    ))
}

pub(crate) fn frame_too_long(partition: usize, what: &str) -> DataFusionError {
    execution(format!(
        "GraceHashJoin partition {partition}: {what} in one spill message take over 4 GiB; lower \
         datafusion.execution.batch_size"
    ))
}

pub(crate) fn too_long_for_offsets() -> DataFusionError {
    execution(
        "GraceHashJoin: the texts of one column in one spill message take over 2 GiB; lower \
         datafusion.execution.batch_size"
            .to_string(),
    )
}

pub(crate) fn too_many_rows(partition: usize, rows: usize, most: usize) -> DataFusionError {
    resources(format!(
        "GraceHashJoin partition {partition}: {rows} rows in one table are over its {most}; raise \
         datafusion.execution.target_partitions"
    ))
}

pub(crate) fn blocking_task(what: &str, cause: &impl std::fmt::Display) -> DataFusionError {
    execution(format!(
        "the blocking task that was {what} ended early: {cause}"
    ))
}

fn execution(message: String) -> DataFusionError {
    DataFusionError::Execution(message)
}

pub(crate) fn bad_keys(side: &str, rows: usize, key: &DataType) -> DataFusionError {
    execution(format!(
        "the keys of the {side} side came out as {rows} rows of {key}, which is not what was declared"
    ))
}

pub(crate) fn bad_filter(rows: usize, got: usize) -> DataFusionError {
    execution(format!("the join filter gave {got} values for {rows} rows"))
}

// The node as bytes.

/// Said before what another codec said of bytes that are not ours.
#[cfg(feature = "proto")]
pub(crate) const CODEC_NOT_OURS: &str = "these are not the bytes of a GraceHashJoinExec, and the codec inside GraceHashJoinCodec has \
     no use for them either";

#[cfg(feature = "proto")]
pub(crate) fn codec_damaged(cause: &str) -> DataFusionError {
    plan(format!(
        "the bytes of a GraceHashJoinExec are damaged: {cause}"
    ))
}

#[cfg(feature = "proto")]
pub(crate) fn codec_unknown_fields() -> DataFusionError {
    plan(
        "the bytes of a GraceHashJoinExec say more than this version understands; use one version \
         of grace-hash-join and of DataFusion on all machines"
            .to_string(),
    )
}

#[cfg(feature = "proto")]
pub(crate) fn codec_version(got: u8, known: u8) -> DataFusionError {
    plan(format!(
        "the bytes of a GraceHashJoinExec are of version {got}, and this is version {known}; use \
         one version of grace-hash-join on all machines"
    ))
}

#[cfg(feature = "proto")]
pub(crate) fn codec_input(encoded: &[DataType], got: &[DataType]) -> DataFusionError {
    plan(format!(
        "a GraceHashJoinExec was encoded over an input with columns of types {encoded:?}, and is \
         decoded over one with {got:?}"
    ))
}
