//! One streamed batch against the loaded rows, step by step.
//!
//! A step finds at most a batch's worth of pairs whose keys are equal (`lookup` says how), keeps those
//! that the residual filter accepts, notes the matches, and puts together what comes out. Between steps everything is in the cursor, so the caller may hand out a batch,
//! give way to other tasks, or stop.
//!
//! # Order
//!
//! Pairs come out by streamed row, and for one streamed row by loaded row; a streamed row without a
//! match comes out where its pairs would have been.
//!
//! # Degenerate cases
//!
//! - *A key with very many loaded rows.* Where one match decides (semi, anti and mark joins of the
//!   streamed side without a filter) the chain is left at the first match. Where loaded rows only
//!   have to be marked, a key's chain is walked for the first row that matches it, and no other:
//!   without a filter, a key's rows are marked together. So both take time linear in the rows.
//! - *A very wide row*: a step gives no more pairs than would fit if all were as wide.
//! - *A filter that rejects everything.* Each step ends after a batch's worth of candidates, whether
//!   or not any is left.

use arrow::array::{BooleanArray, RecordBatch};
use datafusion_common::Result;

use super::assemble::{Source, Sources, assemble, filter_input};
use super::columns::LoadedRows;
use super::context::{JoinContext, all_rows};
use super::loaded::Loaded;
use super::lookup::Lookup;
use super::output::Output;
use crate::error;
use crate::keys::Keys;
use crate::memory::{rows_bytes, widest_value};
use crate::semantics::{RowOutput, Side};
use crate::table::{Candidates, MatchedBits, NO_ROW, retain};

/// A streamed batch: the needed columns, and the keys.
pub(crate) struct StreamedBatch {
    pub(crate) batch: RecordBatch,
    pub(crate) keys: Keys,
    /// At least the bytes of each row, where rows of the streamed side come out.
    pub(crate) row_bytes: usize,
}

impl StreamedBatch {
    /// Of a batch that is streamed whole.
    pub(crate) fn whole(ctx: &JoinContext, side: Side, batch: RecordBatch, keys: Keys) -> Self {
        let row_bytes = streamed_row_bytes(ctx, side, &batch, || rows_bytes(&batch));
        Self {
            batch,
            keys,
            row_bytes,
        }
    }
}

/// At least the bytes of each row of `batch`, of `bytes` bytes in all; 0, unasked, where none comes
/// out.
pub(crate) fn streamed_row_bytes(
    ctx: &JoinContext,
    side: Side,
    batch: &RecordBatch,
    bytes: impl FnOnce() -> usize,
) -> usize {
    if !has_pairs(ctx) && ctx.join.semantics.rows(side) == RowOutput::Nothing {
        return 0;
    }
    let widest = batch.columns().iter().map(widest_value).sum::<usize>();
    widest.max(bytes() / batch.num_rows().max(1))
}

/// Whether pairs come out, or are looked at.
fn has_pairs(ctx: &JoinContext) -> bool {
    ctx.join.semantics.pairs() || ctx.join.filter.is_some()
}

/// Which streamed rows are joined, and what is known of them.
pub(crate) struct Ask {
    /// Rows of the batch, ascending.
    pub(crate) rows: Vec<u32>,
    /// Rows that found a match among other loaded rows before.
    pub(crate) matched: MatchedBits,
    /// Whether these are the last loaded rows, so that a row without a match has none.
    pub(crate) is_last: bool,
}

impl Ask {
    /// All loaded rows are in the table: what has no match now has none.
    pub(crate) fn once(rows: Vec<u32>, batch_rows: usize) -> Self {
        Self {
            rows,
            matched: MatchedBits::new(batch_rows),
            is_last: true,
        }
    }
}

/// What a step gave.
pub(crate) enum Step {
    /// Output.
    Batch(RecordBatch),
    /// No output yet.
    Nothing,
    /// The batch is done.
    Done,
}

/// The state between steps.
pub(crate) struct Scan<'a> {
    ctx: &'a JoinContext,
    side: Side,
    rows: &'a LoadedRows,
    loaded_bits: Option<&'a mut MatchedBits>,
    streamed: &'a StreamedBatch,
    ask: &'a mut Ask,
    /// For the rows asked about, or fewer.
    lookup: Lookup<'a>,
    /// Whether first matches decide, and are not all found.
    is_seeking: bool,
    candidates: Candidates,
    /// Pairs that are to come out; those before `ready_from` did.
    ready: Candidates,
    ready_from: usize,
    most_pairs: usize,
    /// At least the bytes of an output row.
    row_bytes: usize,
    /// Rows asked about that came out, as an index into them.
    handed_out: usize,
}

impl<'a> Scan<'a> {
    /// `most_bytes` bounds the pairs of one step, as well as the batch size does.
    pub(crate) fn new(
        ctx: &'a JoinContext,
        loaded: &'a mut Loaded,
        streamed: &'a StreamedBatch,
        ask: &'a mut Ask,
        most_bytes: usize,
    ) -> Result<Self> {
        let Loaded {
            side,
            rows,
            index,
            matched,
            ..
        } = loaded;
        let lookup = Lookup::new(ctx, index, &streamed.keys, ask.rows.clone())?;
        let of_loaded = match has_pairs(ctx) {
            true => rows.row_bytes().max(rows.widest()),
            false => 0,
        };
        let row_bytes = (streamed.row_bytes + of_loaded).max(1);
        let mut scan = Self {
            ctx,
            side: *side,
            rows,
            loaded_bits: matched.as_mut(),
            streamed,
            lookup,
            most_pairs: (most_bytes / row_bytes).clamp(1, ctx.batch_size.max(1)),
            ask,
            is_seeking: false,
            candidates: Candidates::default(),
            ready: Candidates::default(),
            ready_from: 0,
            row_bytes,
            handed_out: 0,
        };
        scan.shorten();
        Ok(scan)
    }

    fn streamed_output(&self) -> RowOutput {
        self.ctx.join.semantics.rows(self.side.other())
    }

    /// Whether a streamed row is decided by its first match.
    fn one_match_decides(&self) -> bool {
        !self.ctx.join.semantics.pairs() && self.loaded_bits.is_none()
    }

    /// Drops what need not be looked up.
    fn shorten(&mut self) {
        if self.ctx.join.semantics.pairs() {
            return;
        }
        let Self { lookup, ask, .. } = self;
        if self.loaded_bits.is_none() && ask.matched.any() {
            lookup.retain(|row| !ask.matched.get(row as usize));
        }
        if self.ctx.join.filter.is_some() {
            return;
        }
        self.is_seeking = true;
    }

    /// Finds first matches, as far as one piece of work goes, and notes what they decide; says whether
    /// that is all of them.
    fn seek(&mut self) -> bool {
        if !self.is_seeking {
            return true;
        }
        if !self.lookup.seek_matches() {
            return false;
        }
        self.is_seeking = false;
        let Self { lookup, ask, .. } = self;
        match self.loaded_bits.as_deref_mut() {
            // A key's rows are marked together: where the first one is marked, all are, or will be
            // for an earlier row of this batch.
            Some(bits) => lookup.mark_first(bits),
            None => {
                for row in lookup.take_matched() {
                    ask.matched.set(row as usize);
                }
            }
        }
        true
    }

    /// Does a bounded piece of work; makes no more rows than `out` has room for.
    ///
    /// # Errors
    /// If the filter fails, or arrow cannot gather a column.
    pub(crate) fn step(&mut self, out: &mut Output) -> Result<Step> {
        if self.ready_from < self.ready.loaded.len() {
            return self.next_ready(out);
        }
        if !self.seek() {
            return Ok(Step::Nothing);
        }
        self.skip_decided();
        if self.lookup.row().is_none() {
            return self.finish_rows(out);
        }
        self.lookup.next(self.most_pairs, &mut self.candidates);
        self.apply_filter(out)?;
        if let Some(bits) = self.loaded_bits.as_deref_mut() {
            self.candidates
                .loaded
                .iter()
                .for_each(|row| _ = bits.set(*row as usize));
        }
        if self.streamed_output() != RowOutput::Nothing {
            let matched = &mut self.ask.matched;
            self.candidates
                .streamed
                .iter()
                .for_each(|row| _ = matched.set(*row as usize));
        }
        if self.ctx.join.semantics.pairs() {
            self.pairs(out)
        } else {
            Ok(Step::Nothing)
        }
    }

    /// Moves past streamed rows that one match has decided.
    fn skip_decided(&mut self) {
        if !self.one_match_decides() {
            return;
        }
        while let Some(row) = self.lookup.row() {
            if !self.ask.matched.get(row as usize) {
                return;
            }
            self.lookup.skip_row();
        }
    }

    fn apply_filter(&mut self, out: &mut Output) -> Result<()> {
        let Some(filter) = &self.ctx.join.filter else {
            return Ok(());
        };
        let Candidates { loaded, streamed } = &mut self.candidates;
        let rows = loaded.len();
        if rows == 0 {
            return Ok(());
        }
        out.hold(rows * self.row_bytes);
        let mut accepted = Vec::with_capacity(rows);
        let mut most = rows;
        while accepted.len() < rows {
            let from = accepted.len();
            let until = rows.min(from + most);
            let loaded = loaded.get(from..until).unwrap_or_default();
            let streamed = streamed.get(from..until).unwrap_or_default();
            let sources = Sources::new(
                self.side,
                Source::loaded(self.rows, loaded),
                Source::of_batch(&self.streamed.batch, streamed),
            );
            let input = match filter_input(self.ctx, filter, &sources, until - from) {
                Err(error) if error::is_too_many_words(&error) && until - from > 1 => {
                    most = (until - from) / 2;
                    continue;
                }
                input => input?,
            };
            let verdict = filter.filter.evaluate(&input)?;
            if verdict.len() != until - from {
                return Err(error::bad_filter(until - from, verdict.len()));
            }
            accepted.extend(verdict.iter().map(|verdict| verdict == Some(true)));
        }
        let accepts = |pair: usize| accepted.get(pair).copied().unwrap_or_default();
        retain_by_number(loaded, accepts);
        retain_by_number(streamed, accepts);
        Ok(())
    }

    /// The pairs of this step, and the unmatched streamed rows that belong between them.
    fn pairs(&mut self, out: &mut Output) -> Result<Step> {
        let (asked, done) = self.lookup.rows();
        let Candidates { loaded, streamed } = &mut self.candidates;
        let output = self.ctx.join.semantics.rows(self.side.other());
        if output == RowOutput::Unmatched && self.ask.is_last {
            let passed = asked.get(self.handed_out..done).unwrap_or_default();
            let unmatched = passed
                .iter()
                .filter(|row| !self.ask.matched.get(**row as usize));
            let unmatched: Vec<u32> = unmatched.copied().collect();
            if !unmatched.is_empty() {
                (*loaded, *streamed) = merge_unmatched(loaded, streamed, &unmatched);
            }
        }
        self.handed_out = done;
        std::mem::swap(&mut self.ready, &mut self.candidates);
        self.ready_from = 0;
        self.next_ready(out)
    }

    /// The next pairs that are to come out.
    fn next_ready(&mut self, out: &mut Output) -> Result<Step> {
        let from = self.ready_from;
        let most = self.most_pairs.min(self.ready.loaded.len() - from);
        if most == 0 {
            return Ok(Step::Nothing);
        }
        let mut rows = out.room(most, self.row_bytes);
        loop {
            let until = from + rows;
            let loaded = self.ready.loaded.get(from..until).unwrap_or_default();
            let streamed = self.ready.streamed.get(from..until).unwrap_or_default();
            let sources = Sources::new(
                self.side,
                Source::loaded(self.rows, loaded),
                Source::of_batch(&self.streamed.batch, streamed),
            );
            match assemble(self.ctx, &sources, rows, None) {
                // One row has no more words than one piece.
                Err(error) if error::is_too_many_words(&error) && rows > 1 => {
                    rows /= 2;
                    self.most_pairs = rows;
                }
                batch => {
                    self.ready_from = until;
                    return batch.map(Step::Batch);
                }
            }
        }
    }

    /// After the walk: the streamed rows that come out singly, where pairs do not.
    fn finish_rows(&mut self, out: &mut Output) -> Result<Step> {
        if self.ctx.join.semantics.pairs() || self.handed_out == self.ask.rows.len() {
            return Ok(Step::Done);
        }
        let from = self.handed_out;
        let most = self.most_pairs.min(self.ask.rows.len() - from);
        let until = from + out.room(most, self.row_bytes);
        self.handed_out = until;
        let rows = self.ask.rows.get(from..until).unwrap_or_default();
        let mut rows = rows.to_vec();
        let matched = |row: u32| self.ask.matched.get(row as usize);
        let mark = match self.streamed_output() {
            _ if !self.ask.is_last => return Ok(Step::Done),
            RowOutput::Nothing => return Ok(Step::Done),
            RowOutput::Matched => {
                retain(&mut rows, matched);
                None
            }
            RowOutput::Unmatched => {
                retain(&mut rows, |row| !matched(row));
                None
            }
            RowOutput::Marked => {
                let mark = rows.iter().map(|row| Some(matched(*row)));
                Some(mark.collect::<BooleanArray>())
            }
        };
        if rows.is_empty() {
            return Ok(Step::Nothing);
        }
        let streamed = Source::of_batch(&self.streamed.batch, &rows);
        let sources = Sources::new(self.side, Source::Null, streamed);
        assemble(self.ctx, &sources, rows.len(), mark).map(Step::Batch)
    }
}

fn retain_by_number(values: &mut Vec<u32>, keep: impl Fn(usize) -> bool) {
    let mut number = 0;
    values.retain(|_| {
        number += 1;
        keep(number - 1)
    });
}

/// Pairs in order of their streamed rows, with `unmatched` streamed rows, which have no pairs,
/// paired with no row where they belong.
fn merge_unmatched(loaded: &[u32], streamed: &[u32], unmatched: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let total = loaded.len() + unmatched.len();
    let (mut left, mut right) = (Vec::with_capacity(total), Vec::with_capacity(total));
    let mut unmatched = unmatched.iter().copied().peekable();
    for (l, s) in loaded.iter().zip(streamed) {
        while let Some(row) = unmatched.next_if(|row| row < s) {
            left.push(NO_ROW);
            right.push(row);
        }
        left.push(*l);
        right.push(*s);
    }
    for row in unmatched {
        left.push(NO_ROW);
        right.push(row);
    }
    (left, right)
}

/// The rows of `keys` that can match nothing, and those that can.
pub(crate) fn split_by_validity(keys: &Keys, rows: usize) -> (Vec<u32>, Vec<u32>) {
    match &keys.valid {
        None => (Vec::new(), all_rows(rows).collect()),
        Some(valid) => all_rows(rows).partition(|row| valid.is_null(*row as usize)),
    }
}
