//! The rows of a bucket in memory while the build side is read.
//!
//! Job: gather small pieces into parts of a buffer's size, and parts into one where memory allows.
//! Not its job: which bucket stays in memory, and what its lease covers (`split`).

use arrow::array::{Array, ArrayRef};
use arrow::compute::concat;
use datafusion_common::Result;

use super::columns::max_merged_bytes;
use super::context::{JoinContext, Rows, new_batch};
use crate::memory::{Growing, Lease, Sources, Texts, column_bytes, grows_in_place, stored_schema};

/// A bucket in memory.
pub(super) struct Resident {
    pub(super) parts: Vec<Rows>,
    pub(super) lease: Lease,
    pub(super) tail: Tail,
}

impl Resident {
    pub(super) fn new(ctx: &JoinContext) -> Self {
        Self {
            parts: Vec::new(),
            lease: ctx.budget.empty(),
            tail: Tail::default(),
        }
    }

    /// Makes one part of many, a column at a time, if memory for the largest column is granted: rows
    /// are looked up in few parts much faster than in many.
    pub(super) fn merge(&mut self, ctx: &JoinContext) -> Result<()> {
        let schema = stored_schema(&ctx.join.build.schema);
        if self.parts.len() < 2 || !grows_in_place(&schema) {
            return Ok(());
        }
        let column = |index: usize| {
            let columns = self.parts.iter().map(move |part| part.batch.columns());
            columns.filter_map(move |columns| columns.get(index).cloned())
        };
        let mut columns: Vec<Vec<ArrayRef>> = (0..schema.fields().len())
            .map(|index| column(index).collect())
            .collect();
        let largest = columns
            .iter()
            .map(|column| column.iter().map(column_bytes).sum());
        let rows: usize = self.parts.iter().map(Rows::len).sum();
        let largest = largest.max().unwrap_or(0).max(rows * size_of::<u64>());
        let is_mergeable = largest <= max_merged_bytes(ctx);
        let Some(_copy) = ctx.budget.try_lease(largest).filter(|_| is_mergeable) else {
            return Ok(());
        };
        let mut hashes = Vec::with_capacity(rows);
        for part in std::mem::take(&mut self.parts) {
            hashes.extend_from_slice(&part.hashes);
        }
        let merged = columns.iter_mut().map(|column| {
            let column = std::mem::take(column);
            let arrays: Vec<&dyn Array> = column.iter().map(AsRef::as_ref).collect();
            concat(&arrays)
        });
        let merged = merged.collect::<Result<Vec<_>, _>>()?;
        let merged = Rows::new(new_batch(&schema, merged, rows)?, hashes);
        self.lease.settle(merged.bytes());
        self.parts.push(merged);
        Ok(())
    }
}

/// Rows of a resident bucket that do not fill a buffer yet; like a write buffer, it is covered by
/// the working space.
#[derive(Default)]
pub(super) struct Tail {
    rows: Option<Growing>,
    hashes: Vec<u64>,
    /// Of the rows before those.
    sources: Sources,
}

impl Tail {
    /// Appends rows until the buffer is full; returns those for which there is no room any more.
    /// Where a dictionary cannot number the words of more of them, it is full too: there are rows in
    /// it then.
    pub(super) fn append<'a>(
        &mut self,
        ctx: &JoinContext,
        from: &Rows,
        rows: &'a [u32],
        buffer: usize,
    ) -> Result<&'a [u32]> {
        let row_bytes = from.row_bytes().max(1);
        let room = buffer.saturating_sub(self.bytes()) / row_bytes;
        // A row wider than a buffer has one for itself.
        let least = usize::from(self.hashes.is_empty());
        let (now, later) = rows.split_at(room.max(least).min(rows.len()));
        if now.is_empty() {
            return Ok(later);
        }
        let most = (buffer / row_bytes).max(now.len());
        if self.rows.is_none() {
            let stored = stored_schema(&ctx.join.build.schema);
            let growing = Growing::new(&stored, most, Texts::Within(buffer));
            self.rows = Some(growing.after(&self.sources));
            self.hashes.reserve_exact(most);
        }
        if let Some(growing) = &mut self.rows
            && !growing.append_rows(&from.batch, now)?
        {
            return Ok(rows);
        }
        let hashes = now.iter().filter_map(|row| from.hashes.get(*row as usize));
        self.hashes.extend(hashes);
        Ok(later)
    }

    pub(super) fn bytes(&self) -> usize {
        self.rows.as_ref().map_or(0, Growing::bytes) + size_of_val(&*self.hashes)
    }

    /// Takes the rows out; nothing if there are none.
    pub(super) fn take(&mut self) -> Result<Option<Rows>> {
        let Some(mut rows) = self.rows.take() else {
            return Ok(None);
        };
        self.sources = rows.sources();
        let hashes = std::mem::take(&mut self.hashes);
        Ok(Some(Rows::new(rows.finish()?, hashes)))
    }
}
