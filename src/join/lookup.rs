//! Finding the loaded rows that the keys of one streamed batch are equal to.
//!
//! The simple version walks each row's chain and compares keys on the way. Here all rows do each
//! thing together: their heads are gathered, then those whose link leads to a stranger move on, then
//! keys are compared. Where no two loaded rows have one hash, a row has one match at most, and that
//! is all; elsewhere chains are walked row by row, as many pairs at a time as are asked for.
//!
//! # Degenerate cases
//!
//! - *A chain of another key's rows.* A row that has to pass many of them does so a few in each
//!   round, and whoever asked gets control back between rounds, however many there are.

#![expect(
    clippy::indexing_slicing,
    reason = "vectors as long as the batch, indexed by rows of that batch, in the innermost loops"
)]

use arrow::array::Array;
use datafusion_common::Result;

use super::context::JoinContext;
use super::loaded::Index;
use crate::keys::{KeyComparator, Keys, Visitor, visit_ordinals};
use crate::stats::StatsCell;
use crate::table::{Candidates, Cursor, JoinTable, Link, MatchedBits, Streamed, retain};

/// How many links of strangers a row passes in one round.
const PASSED: usize = 16;

/// Comparisons of one piece of work, about: some milliseconds for keys that are slow to compare.
const WORK: usize = 1 << 15;

/// The state of a lookup: which streamed rows are looked up, and where each one's chain goes on.
pub(crate) struct Lookup<'a> {
    table: &'a JoinTable,
    stats: &'a StatsCell,
    /// Where candidates may have other keys.
    comparator: Option<KeyComparator<'a>>,
    hashes: &'a [u64],
    /// The part of each row's chain that is still to be walked.
    links: Vec<Link>,
    /// Streamed rows that are looked up, ascending.
    rows: Vec<u32>,
    cursor: Cursor,
    /// Rows whose first match is sought, ascending, while that is under way.
    open: Option<Vec<u32>>,
    /// All pairs, where there is one for a row at most; those before `cursor` were given.
    found: Option<Candidates>,
}

impl<'a> Lookup<'a> {
    /// Of the streamed rows with these keys, looks up `rows`.
    ///
    /// # Errors
    /// If keys cannot be compared, which construction has ruled out.
    pub(crate) fn new(
        ctx: &'a JoinContext,
        index: &'a Index,
        keys: &'a Keys,
        rows: Vec<u32>,
    ) -> Result<Self> {
        let Index {
            keys: loaded,
            starts,
            table,
        } = index;
        let comparator = if table.is_direct() {
            None
        } else {
            let nulls = ctx.join.null_equality;
            Some(KeyComparator::new(loaded, starts, &keys.columns, nulls)?)
        };
        Ok(Self {
            table,
            stats: &ctx.stats,
            comparator,
            hashes: &keys.hashes,
            links: heads(table, keys),
            rows,
            cursor: Cursor::default(),
            open: None,
            found: None,
        })
    }

    /// Looks up only rows that `keep` accepts.
    pub(crate) fn retain(&mut self, keep: impl FnMut(u32) -> bool) {
        retain(&mut self.rows, keep);
    }

    /// Once all first matches are found: marks them, and leaves the rows that may have others, of
    /// those that share a first match the first.
    pub(crate) fn mark_first(&mut self, bits: &mut MatchedBits) {
        let Self { table, links, .. } = self;
        if table.is_unique() {
            for row in self.rows.drain(..) {
                bits.set(table.row(links[row as usize]) as usize);
            }
            return;
        }
        retain(&mut self.rows, |row| {
            let link = &mut links[row as usize];
            let is_new = bits.set(table.row(*link) as usize);
            *link = table.after(*link);
            let has_more = *link != Link::NONE;
            is_new && has_more
        });
    }

    /// Once all first matches are found: the rows that have one. None is looked up any more.
    pub(crate) fn take_matched(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.rows)
    }

    /// Moves links on to each row's first match, as far as one piece of work goes; says whether that
    /// is all. Then rows that have none are dropped.
    pub(crate) fn seek_matches(&mut self) -> bool {
        let Self {
            table,
            links,
            rows,
            hashes,
            ..
        } = self;
        let Some(comparator) = &self.comparator else {
            // Who is on a chain of a table of keys has its key.
            retain(rows, |row| links[row as usize] != Link::NONE);
            return true;
        };
        let mut open = self.open.take().unwrap_or_else(|| rows.clone());
        let mut work = 0;
        while !open.is_empty() {
            if work >= WORK {
                self.open = Some(open);
                return false;
            }
            work += open.len();
            table.seek(hashes, links, &mut open, PASSED);
            self.stats.candidates.add(open.len());
            let loaded = open.iter().map(|row| table.row(links[*row as usize]));
            let are_equal = comparator.are_equal(&loaded.collect::<Vec<_>>(), &open);
            if !are_equal.contains(&false) {
                break;
            }
            let mut pair = 0;
            retain(&mut open, |row| {
                let is_stranger = !are_equal[pair];
                pair += 1;
                if is_stranger {
                    links[row as usize] = table.after(links[row as usize]);
                }
                is_stranger
            });
        }
        retain(rows, |row| links[row as usize] != Link::NONE);
        true
    }

    /// The next row to walk; `None` at the end.
    pub(crate) fn row(&self) -> Option<u32> {
        self.rows.get(self.cursor.position).copied()
    }

    /// The rows looked up, and of how many of them all pairs were given.
    pub(crate) fn rows(&self) -> (&[u32], usize) {
        (&self.rows, self.cursor.position)
    }

    /// Gives up the rest of the current row's chain.
    pub(crate) fn skip_row(&mut self) {
        self.cursor.skip_row();
    }

    /// Overwrites `pairs` with the next pairs whose keys are equal, at most so many; may give fewer, or
    /// none, and not be at the end: the work is bounded.
    pub(crate) fn next(&mut self, most: usize, pairs: &mut Candidates) {
        pairs.clear();
        if self.table.is_unique() {
            self.next_found(most, pairs);
            return;
        }
        let streamed = Streamed {
            rows: &self.rows,
            hashes: self.hashes,
            heads: &self.links,
        };
        self.table
            .candidates(&streamed, &mut self.cursor, most, pairs);
        self.stats.candidates.add(pairs.loaded.len());
        if let Some(comparator) = &self.comparator {
            comparator.retain_equal(&mut pairs.loaded, &mut pairs.streamed);
        }
    }

    /// Finds all pairs at once, and gives some of them.
    fn next_found(&mut self, most: usize, pairs: &mut Candidates) {
        if self.found.is_none() {
            let asked = self.rows.clone();
            if !self.seek_matches() {
                return;
            }
            let Self { table, links, .. } = self;
            let loaded = self.rows.iter().map(|row| table.row(links[*row as usize]));
            self.found = Some(Candidates {
                loaded: loaded.collect(),
                streamed: std::mem::replace(&mut self.rows, asked),
            });
        }
        let Some(found) = &mut self.found else {
            return;
        };
        let rest = found.split_off(most);
        std::mem::swap(pairs, found);
        *found = rest;
        let last = pairs.streamed.last().filter(|_| !found.is_empty());
        self.cursor.position = match last {
            Some(last) => self.rows.partition_point(|row| row <= last),
            None => self.rows.len(),
        };
    }
}

/// The head of each streamed row's chain; none where it cannot match.
fn heads(table: &JoinTable, keys: &Keys) -> Vec<Link> {
    let rows = keys.columns.first().map_or(0, Array::len);
    let mut heads = Vec::with_capacity(rows);
    let column = keys.columns.first().filter(|_| table.is_direct());
    match column {
        None => table.heads(keys.hashes.iter().copied(), &mut heads),
        Some(column) => visit_ordinals(column, Heads(table, &mut heads)),
    }
    // No row of a table that is addressed by keys has a NULL, whatever NULLs equal.
    let valid = column.map_or(keys.valid.as_ref(), |column| column.nulls());
    if let Some(valid) = valid {
        for (head, valid) in heads.iter_mut().zip(valid.iter()) {
            *head = if valid { *head } else { Link::NONE };
        }
    }
    heads
}

/// Gathers the heads of rows by their keys.
struct Heads<'a>(&'a JoinTable, &'a mut Vec<Link>);

impl Visitor for Heads<'_> {
    fn visit(self, numbers: impl DoubleEndedIterator<Item = u64> + ExactSizeIterator) {
        self.0.heads(numbers, self.1);
    }
}
