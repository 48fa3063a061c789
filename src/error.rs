//! Every error of this crate is built here, so that each names what, how much, where, and the knob.
//!
//! By blame: `plan_*` for a caller's mistake at construction, `resources` for a limit that was hit,
//! `execution` for what went wrong while running, `internal` for a bug of ours.

use arrow::datatypes::DataType;
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

pub(crate) fn null_aware_unsupported() -> DataFusionError {
    DataFusionError::NotImplemented(
        "null-aware anti joins (NOT IN) are not supported by the grace hash join in this version; \
         keep HashJoinExec for them"
            .to_string(),
    )
}

pub(crate) fn output_schema(expected: &str, got: &str) -> DataFusionError {
    plan(format!(
        "the declared output schema {got} does not fit the join's columns {expected}"
    ))
}

pub(crate) fn internal(message: impl Into<String>) -> DataFusionError {
    DataFusionError::Internal(message.into())
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
    plan("a null-aware anti join (NOT IN) cannot be a GraceHashJoinExec; keep HashJoinExec".into())
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
