//! The first matching loaded row of each streamed row, in bounded pieces of work.
//!
//! By rounds over all rows that have none yet: a row whose candidate of this round has another key
//! stands on its next one in the next round. Most batches take one round.
//!
//! # Degenerate cases
//!
//! - *A chain of another key's rows.* A row that has to pass many of them does so a few in each
//!   round, and whoever asked gets control back between rounds, however many there are.

#![expect(
    clippy::indexing_slicing,
    reason = "vectors as long as the batch, indexed by rows of that batch"
)]

use crate::keys::KeyComparator;
use crate::stats::StatsCell;
use crate::table::{Candidates, JoinTable, Link};

/// How many links of strangers a row passes in one round.
const PASSED: usize = 16;

/// Comparisons of one piece of work, about: some milliseconds for keys that are slow to compare.
const WORK: usize = 1 << 15;

/// A search for first matches that is under way.
pub(crate) struct FirstMatches {
    found: Vec<Link>,
    /// Rows without a match so far, ascending, with the link that each stands on.
    open: Vec<(Link, u32)>,
}

impl FirstMatches {
    /// Of the rows `walk`, whose chains are `heads`.
    pub(crate) fn new(heads: &[Link], walk: &[u32]) -> Self {
        let open = walk.iter().map(|row| (heads[*row as usize], *row));
        Self {
            found: vec![Link::NONE; heads.len()],
            open: open.filter(|(link, _)| *link != Link::NONE).collect(),
        }
    }

    /// Goes on; says whether all is found.
    pub(crate) fn go_on(
        &mut self,
        table: &JoinTable,
        comparator: &KeyComparator<'_>,
        hashes: &[u64],
        stats: &StatsCell,
    ) -> bool {
        let mut work = 0;
        while !self.open.is_empty() && work < WORK {
            work += self.open.len();
            let mut pairs = Candidates::default();
            self.open.retain_mut(|(link, row)| {
                let hash = hashes[*row as usize];
                *link = table.seek(*link, hash, PASSED);
                if *link != Link::NONE && table.may_be(*link, hash) {
                    pairs.loaded.push(table.row(*link));
                    pairs.streamed.push(*row);
                }
                *link != Link::NONE
            });
            self.compare(table, comparator, pairs, stats);
        }
        self.open.is_empty()
    }

    /// Ends the search of rows whose candidate has their key, and moves the others past theirs.
    fn compare(
        &mut self,
        table: &JoinTable,
        comparator: &KeyComparator<'_>,
        mut pairs: Candidates,
        stats: &StatsCell,
    ) {
        stats.candidates.add(pairs.loaded.len());
        let mut compared = pairs.streamed.clone().into_iter().peekable();
        comparator.retain_equal(&mut pairs.loaded, &mut pairs.streamed);
        let mut equal = pairs.streamed.into_iter().peekable();
        self.open.retain_mut(|(link, row)| {
            let is_compared = compared.next_if_eq(row).is_some();
            if equal.next_if_eq(row).is_some() {
                self.found[*row as usize] = *link;
                return false;
            }
            if is_compared {
                *link = table.after(*link);
            }
            *link != Link::NONE
        });
    }

    /// The link to the first match of each row of the batch, or [`Link::NONE`].
    pub(crate) fn found(self) -> Vec<Link> {
        self.found
    }
}
