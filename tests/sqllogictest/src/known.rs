//! The records that may fail, each with its reason.

use datafusion_sqllogictest::DFColumnType;
use sqllogictest::{Record, parse_file};

use crate::Result;
use crate::corpus;
use crate::file::Failure;
use crate::runs::{Merge, Run};

/// A record whose result is not determined by its SQL, or is wrong without this crate as well.
struct Known {
    file: &'static str,
    line: u32,
    why: Why,
}

/// Why a record may come out differently.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Which rows pass its LIMIT depends on the order of a join's output, and nothing says which. It
    /// must give as many rows.
    Limit,
    /// Its only ORDER BY is inside a subquery and says nothing about the order outside. The rows
    /// are compared as a multiset, and must be right.
    InnerOrder,
    /// DataFusion's own joins fail it too, once they are partitioned: it takes the groups of
    /// `preserve_file_partitions` for partitions by hash.
    FileGroups,
    /// Its limit is too small for a join that spills: the pool is greedy, and a neighbour may have
    /// taken what the 384 KiB of a partition that spills are missing. Nothing but that error will do.
    Floor,
}

const KNOWN: &[Known] = &[
    known("join_limit_pushdown.slt", 60, Why::Limit),
    known("join_limit_pushdown.slt", 146, Why::Limit),
    known("join_limit_pushdown.slt", 187, Why::Limit),
    known("join_limit_pushdown.slt", 229, Why::Limit),
    known("joins.slt", 3895, Why::InnerOrder),
    known("joins.slt", 3952, Why::InnerOrder),
    known("joins.slt", 4006, Why::InnerOrder),
    known("joins.slt", 4402, Why::Limit),
    known("preserve_file_partitioning.slt", 423, Why::FileGroups),
    known("sort_merge_join_spill.slt", 169, Why::Floor),
    known("sort_merge_join_spill.slt", 225, Why::Floor),
];

const fn known(file: &'static str, line: u32, why: Why) -> Known {
    Known { file, line, why }
}

fn find(file: &str, line: u32) -> Option<Why> {
    let found = KNOWN.iter().find(|k| (k.file, k.line) == (file, line));
    found.map(|known| known.why)
}

/// Whether a failure is none of ours.
pub fn is_known(run: &Run, failure: &Failure) -> bool {
    match find(&failure.file, failure.line) {
        Some(Why::FileGroups) => run.partitioned || run.merge == Merge::Always,
        Some(Why::Floor) => run.merge == Merge::Never && failure.says("Resources exhausted"),
        Some(Why::Limit | Why::InnerOrder) | None => false,
    }
}

/// What is compared of a record's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The rows and their order.
    Order,
    /// The rows.
    Rows,
    /// How many rows there are.
    Count,
}

/// What a record's SQL promises of its rows.
pub fn promise(run: &Run, file: &str, line: u32, sql: &str) -> Promise {
    match find(file, line).filter(|_| run.replaces) {
        Some(Why::Limit) => Promise::Count,
        Some(Why::InnerOrder) => Promise::Rows,
        _ if sql.to_ascii_uppercase().contains("ORDER BY") => Promise::Order,
        _ => Promise::Rows,
    }
}

/// Each known record is one that exists.
pub fn check() -> Result<()> {
    for Known { file, line, .. } in KNOWN {
        let records = parse_file::<DFColumnType>(corpus::path_of(file))?;
        let is_there = |record: &Record<_>| match record {
            Record::Query { loc, .. } | Record::Statement { loc, .. } => loc.line() == *line,
            _ => false,
        };
        if !records.iter().any(is_there) {
            return Err(format!("{file} has no record in line {line}").into());
        }
    }
    Ok(())
}
