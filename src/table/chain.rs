//! A directory of chain heads, and forward chains.
//!
//! The simple version is a map from each hash to the list of its rows. Here the lists of one *slot*
//! are one chain through the array `next`, in the order of the rows, and the map is the array
//! `heads`, addressed by the high bits of the hash:
//!
//! ```text
//! rows 0..6 with hashes a b a c b a; b and c share a slot
//!
//! heads   slot(a): 0a          slot(b) = slot(c): 1b
//! next    0 -> 2a -> 5a.       1 -> 3c -> 4b.
//! ```
//!
//! Looking up `b` walks 1, 3, 4 and keeps 1 and 4: in build order, and without any state but the
//! link it stands on, so a walk can be cut after any row and resumed. Rows are inserted from last to
//! first, each in front of its chain, so chains need no tails.
//!
//! # Links
//!
//! What `heads` and `next` hold is a *link*: the number of a row, and in the bits that a number of a
//! table of this size never has, what is known of that row without going there:
//!
//! ```text
//! bit 31                                      0
//! | low bits of the row's hash | last? | row  |      `row` has as many bits as the number of rows
//! ```
//!
//! So a chain of one row, which most chains are, is walked without `next`, and most strangers are
//! told from their tag, without a look at their keys. The larger the table, the shorter the tags: 11
//! bits at a million rows, 5 at 64 million, none at 2^30, where keys do all the telling.
//!
//! # Passes
//!
//! What one row's lookup waits for, the memory, the next row's does not depend on, so lookups are
//! passes over a batch of rows, without branches on what was found: gather the heads; then, in
//! rounds, move on the links that lead to strangers. Where no two rows have one hash
//! ([`JoinTable::is_unique`]) that is all; else the chains of a few rows at a time are walked side by
//! side, and only long ones one by one.
//!
//! # Addresses
//!
//! By hash: two slots a row keep chains at a mean length of 1.5 for rows of distinct keys; the number
//! of slots need not be a power of two: `(high 32 bits * slots) >> 32`. Or directly, for keys that
//! are whole numbers close together: the slot is the number less the smallest one, so a chain holds
//! the rows of one key, all of them, and there is nothing to compare.

/// Where a chain goes on, and what is known of the row there.
///
/// The bits are kept inverted: those of no row's link are all ones, so zero is free to mean "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link(u32);

impl Link {
    /// The end of a chain, and the head of an empty one.
    pub(crate) const NONE: Self = Self(0);

    fn new(bits: u32) -> Self {
        Self(!bits)
    }

    #[inline]
    fn bits(self) -> u32 {
        !self.0
    }
}

/// A row number that stands for no row.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// The most rows of a table: links have a bit besides the row's number, which is never all ones.
pub(crate) const MAX_ROWS: usize = (1 << 31) - 1;

/// Slots per row.
const SLOTS_PER_ROW: usize = 2;

/// How many rows of a chain are walked per candidate asked for, before the caller gets control
/// back: bounds the work per step where one slot holds many rows of another key.
const WALK_FACTOR: usize = 16;

/// Streamed rows whose chains are walked side by side.
const ABREAST: usize = 16;

/// The longest chains that are walked side by side.
const ABREAST_LENGTH: usize = 128;

/// Chains of more rows are not searched for rows of one hash, and taken to have some.
const LONG_CHAIN: usize = 8;

/// How a number, which is a row's hash or its key, leads to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    /// By the high bits of a hash.
    Hashed,
    /// By the number's distance from the smallest one, modulo 2^64.
    Direct { smallest: u64 },
}

/// Which bits of a link are what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    row: u32,
    last: u32,
    tag: u32,
}

impl Layout {
    fn new(rows: usize, address: Address) -> Self {
        let bits = usize::BITS - rows.leading_zeros();
        let last = 1 << bits.min(31);
        let row = last - 1;
        let tag = match address {
            Address::Hashed => !(row | last),
            Address::Direct { .. } => 0,
        };
        Self { row, last, tag }
    }

    /// The bits of a hash that are its row's tag: low ones, as slots are made of high ones.
    #[inline]
    fn tag(self, hash: u64) -> u32 {
        (hash & 0xffff_ffff) as u32 & self.tag
    }
}

/// Loaded rows by hash, or by key.
#[derive(Debug)]
pub(crate) struct JoinTable {
    /// Links, as numbers: those of zeros come from the system as they are.
    heads: Vec<u32>,
    /// Empty if each chain is one row.
    next: Vec<Link>,
    rows: usize,
    is_unique: bool,
    address: Address,
    layout: Layout,
}

/// A table whose last rows are inserted.
#[derive(Debug)]
pub(crate) struct TableBuilder {
    table: JoinTable,
    /// Rows that are not inserted yet.
    missing: u32,
}

impl TableBuilder {
    /// A table of `rows` rows, at most [`MAX_ROWS`], by hash.
    pub(crate) fn hashed(rows: usize) -> Self {
        Self::new(rows, JoinTable::slots(rows), Address::Hashed)
    }

    /// A table of `rows` rows, at most [`MAX_ROWS`], by the numbers `smallest..smallest + slots`,
    /// modulo 2^64.
    pub(crate) fn direct(rows: usize, smallest: u64, slots: usize) -> Self {
        Self::new(rows, slots, Address::Direct { smallest })
    }

    fn new(rows: usize, slots: usize, address: Address) -> Self {
        debug_assert!(rows <= MAX_ROWS, "checked where rows are loaded");
        Self {
            table: JoinTable {
                heads: vec![Link::NONE.0; slots],
                next: Vec::new(),
                rows,
                is_unique: true,
                address,
                layout: Layout::new(rows, address),
            },
            // Row numbers fit, as said above.
            missing: u32::try_from(rows).unwrap_or(NO_ROW),
        }
    }

    /// Inserts the rows before those that were inserted so far: their hashes, or their keys. `hash`
    /// is that of any row that was inserted; tables of keys do not ask.
    pub(crate) fn prepend(
        &mut self,
        numbers: impl DoubleEndedIterator<Item = u64>,
        hash: impl Fn(u32) -> u64,
    ) {
        match self.table.address {
            Address::Hashed => {
                let slots = self.table.heads.len() as u64;
                self.insert(
                    numbers,
                    |hash| slot_of(hash, slots),
                    |table, chain, number| table.may_have(chain, number, &hash),
                );
            }
            Address::Direct { smallest } => {
                self.insert(numbers, |key| distance(key, smallest), |_, _, _| true);
            }
        }
    }

    fn insert(
        &mut self,
        numbers: impl DoubleEndedIterator<Item = u64>,
        slot: impl Fn(u64) -> usize,
        has_twin: impl Fn(&JoinTable, Link, u64) -> bool,
    ) {
        let layout = self.table.layout;
        for number in numbers.rev() {
            self.missing -= 1;
            let slot = slot(number);
            let after = Link(self.table.heads[slot]);
            let mut last = layout.last;
            if after != Link::NONE {
                last = 0;
                if self.table.next.is_empty() {
                    self.table.next = vec![Link::NONE; self.table.rows];
                }
                self.table.next[self.missing as usize] = after;
                if self.table.is_unique {
                    self.table.is_unique = !has_twin(&self.table, after, number);
                }
            }
            self.table.heads[slot] = Link::new(self.missing | last | layout.tag(number)).0;
        }
    }

    /// The table, once all rows are inserted.
    pub(crate) fn finish(self) -> JoinTable {
        debug_assert_eq!(self.missing, 0, "all rows are inserted");
        self.table
    }
}

/// Where a walk over streamed rows and their chains stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Index into the streamed rows asked about.
    pub(crate) position: usize,
    /// The link to follow next for that streamed row; `None` before its chain was entered.
    chain: Option<Link>,
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

/// Pairs whose tags agree, by streamed row, then by loaded row.
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

    pub(crate) fn is_empty(&self) -> bool {
        self.loaded.is_empty()
    }

    /// Leaves at most the first `most` pairs, and returns the others.
    pub(crate) fn split_off(&mut self, most: usize) -> Self {
        let most = most.min(self.loaded.len());
        Self {
            loaded: self.loaded.split_off(most),
            streamed: self.streamed.split_off(most),
        }
    }

    fn push(&mut self, loaded: u32, streamed: u32) {
        self.loaded.push(loaded);
        self.streamed.push(streamed);
    }
}

impl JoinTable {
    /// The bytes of a table of `rows` rows by hash, at most.
    pub(crate) fn size_of(rows: usize) -> usize {
        Self::direct_size_of(rows, Self::slots(rows))
    }

    /// The bytes of a table of `rows` rows by key, of so many slots, at most.
    pub(crate) fn direct_size_of(rows: usize, slots: usize) -> usize {
        (rows + slots) * size_of::<Link>()
    }

    fn slots(rows: usize) -> usize {
        // At most 2^32, so that an address is one multiplication of 64 bits.
        (rows * SLOTS_PER_ROW).clamp(1, u32::MAX as usize)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows
    }

    /// The bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        (self.heads.capacity() + self.next.capacity()) * size_of::<Link>()
    }

    /// Whether rows are found by their keys and not by hashes, so that candidates match.
    pub(crate) fn is_direct(&self) -> bool {
        self.address != Address::Hashed
    }

    /// Whether no two rows have one hash, or one key.
    pub(crate) fn is_unique(&self) -> bool {
        self.is_unique
    }

    /// Whether a row of a chain has `number` as its hash, or the chain is too long to tell.
    fn may_have(&self, mut chain: Link, number: u64, hash: impl Fn(u32) -> u64) -> bool {
        let tag = self.layout.tag(number);
        for _ in 0..LONG_CHAIN {
            if chain == Link::NONE {
                return false;
            }
            if self.agrees(chain, tag) && hash(self.row(chain)) == number {
                return true;
            }
            chain = self.after(chain);
        }
        true
    }

    /// Appends the head of the chain of each hash, or of each key.
    pub(crate) fn heads(&self, numbers: impl Iterator<Item = u64>, out: &mut Vec<Link>) {
        match self.address {
            Address::Hashed => {
                let slots = self.heads.len() as u64;
                out.extend(numbers.map(|hash| Link(self.heads[slot_of(hash, slots)])));
            }
            Address::Direct { smallest } => out.extend(numbers.map(|key| {
                let head = self.heads.get(distance(key, smallest));
                head.map_or(Link::NONE, |head| Link(*head))
            })),
        }
    }

    #[inline]
    fn agrees(&self, link: Link, tag: u32) -> bool {
        link.bits() & self.layout.tag == tag
    }

    /// The row that a link, not [`Link::NONE`], leads to.
    #[inline]
    pub(crate) fn row(&self, link: Link) -> u32 {
        link.bits() & self.layout.row
    }

    /// Moves the links of `rows` on to the first whose row may be meant, each by `most` links at most,
    /// and drops rows that have none. `links` and `hashes` belong to all streamed rows; tables of keys
    /// need no hashes.
    pub(crate) fn seek(
        &self,
        hashes: &[u64],
        links: &mut [Link],
        rows: &mut Vec<u32>,
        most: usize,
    ) {
        if !self.is_direct() {
            let is_stranger = |link: Link, row: u32| {
                (link != Link::NONE) & !self.agrees(link, self.layout.tag(hashes[row as usize]))
            };
            let mut left = rows.clone();
            retain(&mut left, |row| is_stranger(links[row as usize], row));
            for _ in 0..most {
                if left.is_empty() {
                    break;
                }
                retain(&mut left, |row| {
                    let link = &mut links[row as usize];
                    *link = self.after(*link);
                    is_stranger(*link, row)
                });
            }
        }
        retain(rows, |row| links[row as usize] != Link::NONE);
    }

    /// The link after `link`, not [`Link::NONE`], in its chain.
    #[inline]
    pub(crate) fn after(&self, link: Link) -> Link {
        if link.bits() & self.layout.last != 0 {
            Link::NONE
        } else {
            self.next[self.row(link) as usize]
        }
    }

    /// Appends up to `most` candidates from `cursor` on and moves it; finished when
    /// `cursor.position == rows.len()`.
    ///
    /// `rows` are the streamed rows asked about, `heads` and `hashes` belong to all streamed rows,
    /// with [`Link::NONE`] as head where a row cannot match. May append fewer, or none, and not be
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
        // Rows before this one are walked one by one.
        let mut alone = 0;
        // What each of the chains side by side has, one after the other.
        let mut lanes = [NO_ROW; ABREAST * ABREAST_LENGTH];
        while let Some(row) = streamed.rows.get(cursor.position) {
            if cursor.chain.is_none() && cursor.position >= alone {
                let limits = (full, &mut steps);
                if self.walk_abreast(streamed, cursor, limits, &mut lanes, out) {
                    continue;
                }
                alone = cursor.position + ABREAST;
            }
            let tag = self.tag_of(streamed, *row);
            let mut at = cursor.chain.unwrap_or(streamed.heads[*row as usize]);
            while at != Link::NONE {
                if out.loaded.len() == full || steps == 0 {
                    cursor.chain = Some(at);
                    return;
                }
                steps -= 1;
                if self.agrees(at, tag) {
                    out.push(self.row(at), *row);
                }
                at = self.after(at);
            }
            cursor.skip_row();
        }
    }

    /// Appends the candidates of the next rows if they make no more than `full`, in chains that are not
    /// long, and that take no more than the steps left; else appends nothing, and says so.
    fn walk_abreast(
        &self,
        streamed: &Streamed<'_>,
        cursor: &mut Cursor,
        (full, steps): (usize, &mut usize),
        lanes: &mut [u32; ABREAST * ABREAST_LENGTH],
        out: &mut Candidates,
    ) -> bool {
        let room = full - out.loaded.len();
        if room < ABREAST {
            return false;
        }
        let rows = &streamed.rows[cursor.position..];
        let rows = &rows[..rows.len().min(ABREAST)];
        let (mut links, mut tags) = ([Link::NONE; ABREAST], [0; ABREAST]);
        for (lane, row) in rows.iter().enumerate() {
            links[lane] = streamed.heads[*row as usize];
            tags[lane] = self.tag_of(streamed, *row);
        }
        let mut lengths = [0; ABREAST];
        for _ in 0..ABREAST_LENGTH {
            let mut walked = 0;
            for (lane, link) in links.iter_mut().enumerate() {
                if *link != Link::NONE {
                    walked += 1;
                    lanes[lane * ABREAST_LENGTH + lengths[lane]] = self.row(*link);
                    lengths[lane] += usize::from(self.agrees(*link, tags[lane]));
                    *link = self.after(*link);
                }
            }
            if walked == 0 {
                break;
            }
            *steps = steps.saturating_sub(walked);
            if *steps == 0 {
                return false;
            }
        }
        if links != [Link::NONE; ABREAST] || lengths.iter().sum::<usize>() > room {
            return false;
        }
        for ((lane, row), length) in rows.iter().enumerate().zip(lengths) {
            let from = lane * ABREAST_LENGTH;
            out.loaded.extend_from_slice(&lanes[from..from + length]);
            out.streamed.extend(std::iter::repeat_n(*row, length));
        }
        cursor.position += rows.len();
        true
    }

    fn tag_of(&self, streamed: &Streamed<'_>, row: u32) -> u32 {
        let hash = streamed.hashes.get(row as usize);
        hash.map_or(0, |hash| self.layout.tag(*hash))
    }
}

/// Keeps the rows that `keep` accepts, without a branch.
pub(crate) fn retain(rows: &mut Vec<u32>, mut keep: impl FnMut(u32) -> bool) {
    let mut kept = 0;
    for index in 0..rows.len() {
        let row = rows[index];
        rows[kept] = row;
        kept += usize::from(keep(row));
    }
    rows.truncate(kept);
}

/// The streamed rows that a table is asked about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streamed<'a> {
    /// Which rows, ascending.
    pub(crate) rows: &'a [u32],
    /// The hash of each row of the batch; tables that are addressed by keys need none.
    pub(crate) hashes: &'a [u64],
    /// The head of each row of the batch.
    pub(crate) heads: &'a [Link],
}

#[inline]
fn slot_of(hash: u64, slots: u64) -> usize {
    // Below `slots`, which is the length of a vector.
    (((hash >> 32) * slots) >> 32) as usize
}

/// How far `key` is above `smallest`, modulo 2^64.
#[inline]
fn distance(key: u64, smallest: u64) -> usize {
    // No vector is as long as the largest of 64 bits, whatever the width of the machine's words.
    usize::try_from(key.wrapping_sub(smallest)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn hash(key: u64) -> u64 {
        // Few distinct high parts, so that slots are shared.
        ((key % 7) << 32) | (key << 40) | key
    }

    fn table(hashes: &[u64]) -> JoinTable {
        let mut table = TableBuilder::hashed(hashes.len());
        let (first, second) = hashes.split_at(hashes.len() / 3);
        table.prepend(second.iter().copied(), |row| hashes[row as usize]);
        table.prepend(first.iter().copied(), |row| hashes[row as usize]);
        table.finish()
    }

    fn direct(keys: &[u64], smallest: u64, slots: usize) -> JoinTable {
        let mut table = TableBuilder::direct(keys.len(), smallest, slots);
        table.prepend(keys.iter().copied(), |_| 0);
        table.finish()
    }

    /// All candidates, cut after every `most` of them.
    fn walk(table: &JoinTable, numbers: &[u64], rows: &[u32], most: usize) -> Vec<(u32, u32)> {
        let mut heads = Vec::new();
        table.heads(numbers.iter().copied(), &mut heads);
        let streamed = Streamed {
            rows,
            hashes: numbers,
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

    /// What a walk is to find: for each streamed row asked about, the rows of its number in order.
    fn expected(loaded: &[u64], numbers: &[u64], rows: &[u32]) -> Vec<(u32, u32)> {
        let mut lists: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (row, number) in (0..).zip(loaded) {
            lists.entry(*number).or_default().push(row);
        }
        let of = |row: &u32| lists.get(&numbers[*row as usize]).cloned();
        let pairs = rows
            .iter()
            .flat_map(|r| of(r).into_iter().flatten().map(|l| (*r, l)));
        pairs.collect()
    }

    #[test]
    fn a_walk_gives_the_rows_of_each_hash_in_build_order_wherever_it_is_cut() {
        let keys: Vec<u64> = (0..200).map(|i| (i * i) % 23).collect();
        let hashes: Vec<u64> = keys.iter().map(|k| hash(*k)).collect();
        let table = table(&hashes);
        let probe: Vec<u64> = (0..40).map(hash).collect();
        let rows: Vec<u32> = (0..40).filter(|r| r % 5 != 1).collect();
        let expected = expected(&hashes, &probe, &rows);
        assert!(expected.len() > 100);
        for most in [1, 2, 3, 7, 50, 1000] {
            // Strangers whose tags agree are told by their keys.
            let found = walk(&table, &probe, &rows, most).into_iter();
            let found: Vec<_> = found
                .filter(|(s, l)| probe[*s as usize] == hashes[*l as usize])
                .collect();
            assert_eq!(found, expected, "{most} at a time");
        }
    }

    /// `walk` checks that no call gives more than it was asked for.
    #[test]
    fn chains_side_by_side_give_no_more_than_was_asked_for() {
        let key = |row: u64| row.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let probe: Vec<u64> = (0..64).map(key).collect();
        let rows: Vec<u32> = (0..64).collect();
        for copies in [1, 2, 3] {
            let hashes: Vec<u64> = (0..64 * copies).map(|row| key(row % 64)).collect();
            let table = table(&hashes);
            let expected = expected(&hashes, &probe, &rows);
            assert_eq!(expected.len() as u64, 64 * copies);
            for most in [1, 15, 16, 17, 20, 31, 32, 33, 48, 63, 64, 100, 1000] {
                assert_eq!(walk(&table, &probe, &rows, most), expected, "{most}");
            }
        }
    }

    #[test]
    fn candidates_that_are_split_off_are_those_after_the_first_ones() {
        let mut first = Candidates {
            loaded: vec![1, 2, 3],
            streamed: vec![4, 5, 6],
        };
        let rest = first.split_off(2);
        assert_eq!((first.loaded, first.streamed), (vec![1, 2], vec![4, 5]));
        assert_eq!((&rest.loaded, &rest.streamed), (&vec![3], &vec![6]));
        assert!(!rest.is_empty() && Candidates::default().is_empty());
    }

    #[test]
    fn tags_tell_strangers_in_the_same_slot() {
        // One slot, and tags that differ.
        let hashes: Vec<u64> = (0..8).map(|key| key << 24).collect();
        let found = walk(&table(&hashes), &hashes, &[0, 5, 7], 10);
        assert_eq!(found, [(0, 0), (5, 5), (7, 7)]);
    }

    #[test]
    fn a_table_by_key_gives_the_rows_of_each_key_and_no_others() {
        let smallest = (-3_i64).cast_unsigned();
        let keys: Vec<u64> = (0..200_u64)
            .map(|i| (i * i % 23).wrapping_add(smallest))
            .collect();
        let probe: Vec<u64> = (0..40)
            .map(|i| smallest.wrapping_add(i).wrapping_sub(5))
            .collect();
        let rows: Vec<u32> = (0..40).filter(|r| r % 5 != 1).collect();
        let table = direct(&keys, smallest, 23);
        let expected = expected(&keys, &probe, &rows);
        assert!(expected.len() > 100);
        for most in [1, 3, 1000] {
            assert_eq!(walk(&table, &probe, &rows, most), expected);
        }
    }

    #[test]
    fn seeking_finds_the_first_row_that_may_be_meant_of_those_that_have_one() {
        // One slot, and tags that differ.
        let hashes: Vec<u64> = (0..8).map(|key| (key % 6) << 24).collect();
        let table = table(&hashes);
        let streamed: Vec<u64> = (0..9).map(|key| key << 24).collect();
        let (mut links, mut rows) = (Vec::new(), vec![1, 5, 6, 7]);
        table.heads(streamed.iter().copied(), &mut links);
        table.seek(&streamed, &mut links, &mut rows, 9);
        assert_eq!(rows, [1, 5]);
        let row = |index: usize| table.row(links[index]);
        assert_eq!([row(1), row(5)], [1, 5]);
    }

    #[test]
    fn a_table_knows_whether_two_rows_have_one_hash() {
        let distinct: Vec<u64> = (0..1000_u64)
            .map(|row| row.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect();
        assert!(table(&distinct).is_unique() && table(&[]).is_unique());
        let mut twice = distinct.clone();
        twice[999] = twice[0];
        assert!(!table(&twice).is_unique());
        // Tags agree, hashes do not.
        assert!(table(&[1, 2]).is_unique() && !table(&[1, 1]).is_unique());
        assert!(direct(&[4, 3], 3, 9).is_unique() && !direct(&[4, 4], 3, 9).is_unique());
    }

    #[test]
    fn the_work_of_one_step_is_bounded_where_a_slot_is_full_of_another_key() {
        let table = table(&vec![1 << 31; 100_000]);
        let mut heads = Vec::new();
        table.heads([2].into_iter(), &mut heads);
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
    fn the_work_of_one_step_is_bounded_where_each_slot_has_rows_of_another_key() {
        // A hundred strangers in the slot of each of many streamed rows.
        let table = table(&[1 << 31; 100]);
        let hashes = vec![2; 1000];
        let rows: Vec<u32> = (0..1000).collect();
        let mut heads = Vec::new();
        table.heads(hashes.iter().copied(), &mut heads);
        let streamed = Streamed {
            rows: &rows,
            hashes: &hashes,
            heads: &heads,
        };
        let (mut cursor, mut out) = (Cursor::default(), Candidates::default());
        let mut calls = 0;
        while cursor.position < rows.len() {
            let before = cursor.position;
            table.candidates(&streamed, &mut cursor, 100, &mut out);
            assert!((cursor.position - before) * 100 <= 100 * WALK_FACTOR + 100);
            calls += 1;
        }
        assert!(out.is_empty() && calls >= 1000 * 100 / (100 * WALK_FACTOR));
    }

    #[test]
    fn a_table_takes_what_it_said() {
        // A link for each row and two slots: what keeps chains short.
        assert_eq!(JoinTable::size_of(1000), (1000 + 2 * 1000) * 4);
        for rows in [0, 1, 1000] {
            assert!(table(&vec![7; rows]).bytes() <= JoinTable::size_of(rows));
        }
        assert_eq!(table(&[7; 1000]).bytes(), JoinTable::size_of(1000));
        assert_eq!(
            direct(&[7; 9], 7, 1).bytes(),
            JoinTable::direct_size_of(9, 1)
        );
        // Of rows of distinct keys, there is nothing but the directory.
        assert_eq!(
            direct(&[7, 8], 7, 5).bytes(),
            JoinTable::direct_size_of(0, 5)
        );
    }
}
