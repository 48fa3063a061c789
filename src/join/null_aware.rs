//! NOT IN: what a null-aware anti join does besides an anti join.
//!
//! `key NOT IN (the probe keys)` is true of a build row if there is no probe row at all, or if its
//! key is not NULL, no probe key is NULL, and no probe row matches it; else it is false, or unknown,
//! and the row does not come out. So two facts about the whole probe side decide, besides matches:
//!
//! | probe rows | what comes out |
//! |---|---|
//! | none | all build rows |
//! | one with a NULL key | nothing |
//! | others | unmatched build rows whose key is not NULL |
//!
//! # Why the facts are known in time
//!
//! An anti join hands out nothing before the probe input has ended, neither resident rows nor
//! spilled ones. The rows of the probe *input* are looked at, before any of them is routed, so it
//! does not matter which bucket a row belongs to, whether the Bloom filter lets it pass, or whether
//! its pair is skipped.
//!
//! Build rows with a NULL key, which an anti join hands out at the first refusal, wait here for the
//! first probe row: in memory as long as nothing spills, then in a run of their own. That run is
//! drained as a pair without probe rows, which is what it is.
//!
//! # Degenerate cases
//!
//! - *A residual filter* decides about matches and about nothing else, as in `HashJoinExec`: a NULL
//!   probe key ends every row's hope whatever the filter says of the pair.
//! - *NULL keys that match each other* change nothing: a probe row with a NULL key leaves no row to
//!   come out, and without one there is nothing to match. So the keys are compared as if they did
//!   not.
//! - *Nothing can come out any more*: the probe input is read to its end all the same, as
//!   `HashJoinExec` does, so that its failure is not missed; memory and files are given back before.

use arrow::record_batch::RecordBatch;
use datafusion_common::{NullEquality, Result};

use super::context::{JoinContext, all_rows};
use super::space::Space;
use crate::keys::Keys;
use crate::memory::Lease;
use crate::semantics::Side;
use crate::spill::{Pick, Run, RunWriter};

/// How NULL keys are compared.
pub(crate) fn null_equality(is_null_aware: bool, declared: NullEquality) -> NullEquality {
    if is_null_aware {
        NullEquality::NullEqualsNothing
    } else {
        declared
    }
}

/// What rows of the probe input decide, besides finding matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Open,
    /// No build row with a NULL key comes out.
    NoNullKeys,
    /// No build row comes out.
    NoRows,
}

impl Verdict {
    /// The verdict of `rows` probe rows.
    pub(crate) fn of(ctx: &JoinContext, keys: &Keys, rows: usize) -> Self {
        if !ctx.join.null_aware || rows == 0 {
            return Self::Open;
        }
        // Of keys without a NULL, nothing is noted.
        match keys.valid {
            Some(_) => Self::NoRows,
            None => Self::NoNullKeys,
        }
    }
}

/// Build rows with a NULL key, on their way to disk.
pub(crate) struct NullKeyWriter {
    writer: RunWriter,
    /// Covers the write buffer; without it, nothing is gathered.
    buffer: Option<Lease>,
    piece: usize,
}

impl NullKeyWriter {
    pub(crate) fn new(ctx: &JoinContext, space: &Space) -> Self {
        let piece = space.plan.buffer;
        let schema = &ctx.side(Side::Build).schema;
        Self {
            writer: space.writer_of(ctx, schema, "build rows with a NULL key"),
            buffer: ctx.budget.try_lease(piece),
            piece,
        }
    }

    /// Adds rows.
    ///
    /// # Errors
    /// If spilling fails.
    pub(crate) async fn push(&mut self, rows: &RecordBatch) -> Result<()> {
        let numbers: Vec<u32> = all_rows(rows.num_rows()).collect();
        self.writer
            .push_rows(&Pick::new(rows, &[]), &numbers, self.piece)
            .await?;
        match self.buffer {
            Some(_) => Ok(()),
            None => self.writer.flush().await,
        }
    }

    /// The run.
    ///
    /// # Errors
    /// If spilling fails.
    pub(crate) async fn finish(self) -> Result<Option<Run>> {
        self.writer.finish().await
    }
}
