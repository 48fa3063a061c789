//! A directory of chain heads, and forward chains.
//!
//! The simple version is a map from each hash to the list of its rows. Here the lists of one
//! *slot*, the hashes whose high bits agree, are one chain through the array `next`, in the order
//! of the rows, and the map is the array `heads`, addressed by those bits:
//!
//! ```text
//! rows 0..6 with hashes a b a c b a; b and c share a slot
//!
//! heads   slot(a): 0          slot(b) = slot(c): 1
//! next    0 -> 2 -> 5 -> .    1 -> 3 -> 4 -> .
//! ```
//!
//! Looking up `b` walks 1, 3, 4 and keeps 1 and 4, whose stored hash is `b`: in build order, and
//! without any state but the row it stands on, so a walk can be cut after any row and resumed.
//! Rows are inserted from last to first, each in front of its chain, so chains need no tails.
//!
//! Two slots a row keep chains at a mean length of 1.5 for rows of distinct keys. The number of
//! slots need not be a power of two: `(high 32 bits * slots) >> 32`.

use arrow::buffer::ScalarBuffer;

/// The end of a chain, and the head of an empty one.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// Slots per row.
const SLOTS_PER_ROW: usize = 2;

/// How many rows of a chain are walked per candidate asked for, before the caller gets control
/// back: bounds the work per step where one slot holds many rows of another key.
const WALK_FACTOR: usize = 16;

/// Loaded rows by hash.
#[derive(Debug)]
pub(crate) struct JoinTable {
    heads: Vec<u32>,
    next: Vec<u32>,
    hashes: ScalarBuffer<u64>,
}

/// Where a walk over streamed rows and their chains stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Index into the streamed rows asked about.
    pub(crate) position: usize,
    /// The loaded row to look at next for that streamed row; `None` before its chain was entered.
    chain: Option<u32>,
}

impl Cursor {
    /// Gives up the rest of the current streamed row's chain.
    pub(crate) fn skip_row(&mut self) {
        self.position += 1;
        self.chain = None;
    }

    /// Whether the current streamed row's chain was entered but not finished.
    #[cfg(feature = "testing")]
    pub(crate) fn is_inside_row(self) -> bool {
        self.chain.is_some()
    }
}

/// Pairs whose hashes are equal, by streamed row, then by loaded row.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    pub(crate) loaded: Vec<u32>,
    pub(crate) streamed: Vec<u32>,
}

impl Candidates {
    pub(crate) fn clear(&mut self) {
        self.loaded.clear();
        self.streamed.clear();
    }

    fn push(&mut self, loaded: u32, streamed: u32) {
        self.loaded.push(loaded);
        self.streamed.push(streamed);
    }
}

/// Row numbers are `u32`, and the last one means "none".
pub(crate) const MAX_ROWS: usize = u32::MAX as usize - 1;

impl JoinTable {
    /// The bytes of a table of `rows` rows, its copy of their hashes included.
    pub(crate) fn size_of(rows: usize) -> usize {
        let heads = Self::slots(rows) * size_of::<u32>();
        heads + rows * (size_of::<u32>() + size_of::<u64>())
    }

    fn slots(rows: usize) -> usize {
        // At most 2^32, so that an address is one multiplication of 64 bits.
        (rows * SLOTS_PER_ROW).clamp(1, u32::MAX as usize)
    }

    /// Builds the table of rows `0..hashes.len()`, at most [`MAX_ROWS`].
    pub(crate) fn new(hashes: ScalarBuffer<u64>) -> Self {
        debug_assert!(hashes.len() <= MAX_ROWS, "checked where rows are loaded");
        let mut heads = vec![NO_ROW; Self::slots(hashes.len())];
        let mut next = vec![NO_ROW; hashes.len()];
        let slots = heads.len() as u64;
        // Row numbers fit, as said above.
        let rows = u32::try_from(hashes.len()).unwrap_or(NO_ROW);
        for row in (0..rows).rev() {
            let head = &mut heads[slot_of(hashes[row as usize], slots)];
            next[row as usize] = std::mem::replace(head, row);
        }
        Self {
            heads,
            next,
            hashes,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.next.len()
    }

    /// The first row of each hash's slot, in one pass; `out` is overwritten.
    pub(crate) fn heads(&self, hashes: &[u64], out: &mut Vec<u32>) {
        let slots = self.heads.len() as u64;
        out.clear();
        out.extend(hashes.iter().map(|hash| self.heads[slot_of(*hash, slots)]));
    }

    /// The first row from `row` on in its chain whose hash is `hash`.
    pub(crate) fn seek(&self, mut row: u32, hash: u64) -> u32 {
        while row != NO_ROW && self.hashes[row as usize] != hash {
            row = self.next[row as usize];
        }
        row
    }

    /// The row after `row` in its chain.
    pub(crate) fn after(&self, row: u32) -> u32 {
        self.next[row as usize]
    }

    /// Appends up to `most` candidates from `cursor` on and moves it; finished when
    /// `cursor.position == rows.len()`.
    ///
    /// `rows` are the streamed rows asked about, `heads` and `hashes` belong to all streamed rows,
    /// with [`NO_ROW`] as head where a row cannot match. May append fewer, or none, and not be
    /// finished: the work per call is bounded.
    pub(crate) fn candidates(
        &self,
        streamed: &Streamed<'_>,
        cursor: &mut Cursor,
        most: usize,
        out: &mut Candidates,
    ) {
        let full = out.loaded.len() + most;
        let mut steps = most.saturating_mul(WALK_FACTOR);
        while let Some(row) = streamed.rows.get(cursor.position) {
            let hash = streamed.hashes[*row as usize];
            let mut at = cursor.chain.unwrap_or(streamed.heads[*row as usize]);
            while at != NO_ROW {
                if out.loaded.len() == full || steps == 0 {
                    cursor.chain = Some(at);
                    return;
                }
                steps -= 1;
                if self.hashes[at as usize] == hash {
                    out.push(at, *row);
                }
                at = self.next[at as usize];
            }
            cursor.skip_row();
        }
    }
}

/// The streamed rows that a table is asked about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streamed<'a> {
    /// Which rows, ascending.
    pub(crate) rows: &'a [u32],
    /// The hash of each row of the batch.
    pub(crate) hashes: &'a [u64],
    /// The head of each row of the batch.
    pub(crate) heads: &'a [u32],
}

#[inline]
fn slot_of(hash: u64, slots: u64) -> usize {
    // Below `slots`, which is the length of a vector.
    (((hash >> 32) * slots) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn hash(key: u64) -> u64 {
        // Few distinct high parts, so that slots are shared.
        ((key % 7) << 32) | (key << 40) | key
    }

    /// All candidates, cut after every `most` of them.
    fn walk(table: &JoinTable, hashes: &[u64], rows: &[u32], most: usize) -> Vec<(u32, u32)> {
        let mut heads = Vec::new();
        table.heads(hashes, &mut heads);
        let streamed = Streamed {
            rows,
            hashes,
            heads: &heads,
        };
        let (mut cursor, mut found, mut out) =
            (Cursor::default(), Vec::new(), Candidates::default());
        while cursor.position < rows.len() {
            out.clear();
            table.candidates(&streamed, &mut cursor, most, &mut out);
            assert!(out.loaded.len() <= most);
            found.extend(out.streamed.iter().copied().zip(out.loaded.iter().copied()));
        }
        found
    }

    #[test]
    fn a_walk_gives_the_rows_of_each_hash_in_build_order_wherever_it_is_cut() {
        let keys: Vec<u64> = (0..200).map(|i| (i * i) % 23).collect();
        let hashes: Vec<u64> = keys.iter().map(|k| hash(*k)).collect();
        let mut lists: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (row, hash) in (0..).zip(&hashes) {
            lists.entry(*hash).or_default().push(row);
        }
        let table = JoinTable::new(hashes.into());
        let probe: Vec<u64> = (0..40).map(hash).collect();
        let rows: Vec<u32> = (0..40).filter(|r| r % 5 != 1).collect();
        let expected: Vec<(u32, u32)> = rows
            .iter()
            .flat_map(|r| {
                let found = lists.get(&probe[*r as usize]).cloned().unwrap_or_default();
                found.into_iter().map(|l| (*r, l))
            })
            .collect();
        assert!(expected.len() > 100);
        for most in [1, 2, 3, 7, 50, 1000] {
            assert_eq!(
                walk(&table, &probe, &rows, most),
                expected,
                "{most} at a time"
            );
        }
    }

    #[test]
    fn the_work_of_one_step_is_bounded_where_a_slot_is_full_of_another_key() {
        let table = JoinTable::new(vec![1; 100_000].into());
        let mut heads = Vec::new();
        table.heads(&[2], &mut heads);
        let streamed = Streamed {
            rows: &[0],
            hashes: &[2],
            heads: &heads,
        };
        let (mut cursor, mut out) = (Cursor::default(), Candidates::default());
        let mut steps = 0;
        while cursor.position == 0 {
            table.candidates(&streamed, &mut cursor, 100, &mut out);
            steps += 1;
        }
        assert!(out.loaded.is_empty());
        assert_eq!(steps, 100_000_usize.div_ceil(100 * WALK_FACTOR));
    }

    #[test]
    fn a_table_takes_what_it_said() {
        for rows in [0, 1, 1000] {
            let table = JoinTable::new(vec![7; rows].into());
            let bytes = (table.heads.capacity() + table.next.capacity()) * 4 + rows * 8;
            assert_eq!(bytes, JoinTable::size_of(rows));
        }
    }
}
