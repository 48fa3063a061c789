//! The hash table against a map of lists.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use arbitrary::{Arbitrary, Result, Unstructured};

use super::choices::Choices;
use super::{Target, paste};
use crate::table::{Candidates, Cursor, JoinTable, Link, MatchedBits, Streamed, TableBuilder};

/// What is done next with a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Up to so many candidates, at least 1, are asked for.
    Take(usize),
    /// The rest of the current row's candidates is given up, as a semi join does.
    Skip,
}

/// A table, and a walk over it that is cut and skips.
#[derive(Clone, PartialEq, Eq)]
pub struct Chain {
    /// The hash of each loaded row.
    pub loaded: Vec<u64>,
    /// The hash of each streamed row, and whether it can match at all.
    pub streamed: Vec<(u64, bool)>,
    /// Streamed rows that are not asked about.
    pub left_out: BTreeSet<u32>,
    /// The walk, over and over until it is done.
    pub steps: Vec<Step>,
}

impl<'a> Arbitrary<'a> for Chain {
    fn arbitrary(u: &mut Unstructured<'a>) -> Result<Self> {
        let mut choices = Choices(u);
        let hashes = choices.list(1..=12, |choices| {
            Ok(match choices.size(0..=3)? {
                // Slots are addressed by the high bits: shared by all, by some, by none.
                0 => u64::from(choices.small(0..=20)?),
                1 => u64::from(choices.small(0..=20)?) << 60,
                2 => u64::MAX - u64::from(choices.small(0..=20)?),
                _ => choices.bits()?,
            })
        })?;
        let steps = choices.list(1..=8, |choices| match choices.once_in(4)? {
            true => Ok(Step::Skip),
            false => Ok(Step::Take(choices.size(1..=9)?)),
        })?;
        let loaded = choices.list(0..=200, |choices| choices.of(&hashes))?;
        let streamed = choices.list(0..=60, |choices| {
            Ok((choices.of(&hashes)?, !choices.once_in(8)?))
        })?;
        let left_out = choices.list(0..=6, |choices| Ok(u32::from(choices.small(0..=60)?)))?;
        Ok(Self {
            loaded,
            streamed,
            left_out: left_out.into_iter().collect(),
            steps,
        })
    }
}

impl Target for Chain {
    const NAME: &'static str = "chain";

    async fn check(&self) -> Result<(), String> {
        for addressing in [Addressing::Hashed, Addressing::Direct] {
            let numbered = Numbered::new(self, addressing);
            numbered.lookups_agree()?;
            numbered.walks_agree(self)?;
        }
        self.bits_agree()
    }
}

/// Loaded rows by hash, in order.
type Lists = BTreeMap<u64, Vec<u32>>;

/// How the table is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addressing {
    /// By the numbers as hashes: candidates may have another one.
    Hashed,
    /// By the numbers as keys, brought close together.
    Direct,
}

/// The smallest of the keys that tables are addressed by: some are below zero, some are not.
const SMALLEST: u64 = 0_u64.wrapping_sub(20);

/// How many keys tables are addressed by, of which those in the middle may be there.
const KEYS: u64 = 61;

/// Both sides' numbers, and the table.
struct Numbered {
    addressing: Addressing,
    loaded: Vec<u64>,
    streamed: Vec<u64>,
    lists: Lists,
    table: JoinTable,
}

impl Numbered {
    fn new(chain: &Chain, addressing: Addressing) -> Self {
        let number = |hash: u64| match addressing {
            Addressing::Hashed => hash,
            Addressing::Direct => SMALLEST.wrapping_add(hash % KEYS),
        };
        let loaded: Vec<u64> = chain.loaded.iter().copied().map(number).collect();
        let streamed = chain.streamed.iter().map(|(hash, _)| *hash);
        // Of the streamed keys, some are below all others, some above.
        let stray = |(row, number): (usize, u64)| match (addressing, row % 7) {
            (Addressing::Direct, 3) => number.wrapping_sub(KEYS),
            (Addressing::Direct, 5) => number.wrapping_add(KEYS),
            _ => number,
        };
        let streamed = streamed.map(number).enumerate().map(stray).collect();
        let mut lists = Lists::new();
        for (row, number) in (0..).zip(&loaded) {
            lists.entry(*number).or_default().push(row);
        }
        let mut table = match addressing {
            Addressing::Hashed => TableBuilder::hashed(loaded.len()),
            Addressing::Direct => {
                let slots = usize::try_from(KEYS).unwrap_or(usize::MAX);
                TableBuilder::direct(loaded.len(), SMALLEST, slots)
            }
        };
        for numbers in loaded.rchunks(17) {
            table.prepend(numbers.iter().copied(), |row| {
                loaded.get(row as usize).copied().unwrap_or_default()
            });
        }
        Self {
            addressing,
            table: table.finish(),
            streamed,
            lists,
            loaded,
        }
    }

    /// Whether a candidate is more than that: what tables of keys leave nothing to do for.
    fn is_pair(&self, loaded: u32, streamed: u32) -> bool {
        self.addressing == Addressing::Direct
            || self.loaded.get(loaded as usize) == self.streamed.get(streamed as usize)
    }

    fn heads(&self) -> Vec<Link> {
        // What was there stays.
        let mut heads = vec![Link::NONE];
        self.table.heads(self.streamed.iter().copied(), &mut heads);
        heads.split_off(1)
    }

    /// The rows of each number, one after the other.
    fn lookups_agree(&self) -> Result<(), String> {
        let Self { table, loaded, .. } = self;
        if table.len() != loaded.len() {
            return Err(format!("{} of {} rows", table.len(), loaded.len()));
        }
        if table.is_unique() && self.lists.len() != loaded.len() {
            return Err("rows that share a number are said not to be there".into());
        }
        // The n-th of each streamed row's rows, for all of them at once.
        let (mut links, mut rows) = (self.heads(), (0..).take(self.streamed.len()).collect());
        let mut found: Vec<Vec<u32>> = vec![Vec::new(); links.len()];
        for _ in 0..=loaded.len() {
            table.seek(&self.streamed, &mut links, &mut rows, usize::MAX);
            for row in &rows {
                if let (Some(link), Some(found)) =
                    (links.get_mut(*row as usize), found.get_mut(*row as usize))
                {
                    let loaded = table.row(*link);
                    found.extend(self.is_pair(loaded, *row).then_some(loaded));
                    *link = table.after(*link);
                }
            }
        }
        for (number, found) in self.streamed.iter().zip(&found) {
            let expected = self.lists.get(number).cloned().unwrap_or_default();
            if *found != expected {
                return Err(format!("rows of {number:#x}: {found:?} for {expected:?}"));
            }
        }
        Ok(())
    }

    /// A walk that is cut and skips, step by step beside a walk over the lists.
    fn walks_agree(&self, chain: &Chain) -> Result<(), String> {
        let Self { table, lists, .. } = self;
        let mut heads = self.heads();
        for ((_, can_match), head) in chain.streamed.iter().zip(&mut heads) {
            if !can_match {
                *head = Link::NONE;
            }
        }
        let rows = (0..).take(self.streamed.len());
        let rows: Vec<u32> = rows.filter(|row| !chain.left_out.contains(row)).collect();
        let streamed = Streamed {
            rows: &rows,
            hashes: match self.addressing {
                Addressing::Hashed => &self.streamed,
                Addressing::Direct => &[],
            },
            heads: &heads,
        };
        let can_match = chain.streamed.iter().map(|(_, can_match)| *can_match);
        let asked: Vec<_> = self.streamed.iter().copied().zip(can_match).collect();
        let mut twin = Twin::new(lists, &rows, &asked);
        let (mut cursor, mut out) = (Cursor::default(), Candidates::default());
        // A call may be bounded in work instead of candidates, but the walk as a whole is finite.
        let most_calls = (self.loaded.len() + 1) * (rows.len() + 1) * 2 + chain.steps.len();
        for step in chain.steps.iter().cycle().take(most_calls) {
            if cursor.position == rows.len() {
                break;
            }
            match step {
                Step::Skip => {
                    let row = cursor.position;
                    cursor.skip_row();
                    if cursor.is_inside_row() || cursor.position != row + 1 {
                        return Err(format!("{cursor:?} after skipping row {row}"));
                    }
                    twin.skip_to(cursor.position);
                }
                Step::Take(most) => {
                    out.clear();
                    table.candidates(&streamed, &mut cursor, *most, &mut out);
                    if out.loaded.len() > *most || out.loaded.len() != out.streamed.len() {
                        return Err(format!("{out:?} where {most} were asked for"));
                    }
                    let pairs = out.loaded.iter().copied().zip(out.streamed.iter().copied());
                    twin.follow(pairs.filter(|(l, s)| self.is_pair(*l, *s)))?;
                }
            }
            twin.may_stand_at(cursor)?;
        }
        // Only skips, over and over: nothing is missing then, since every row was given up.
        if cursor.position == rows.len() {
            twin.ends()
        } else {
            Err(format!("{cursor:?} after {most_calls} steps"))
        }
    }
}

impl Chain {
    fn bits_agree(&self) -> Result<(), String> {
        let mut bits = MatchedBits::new(self.loaded.len());
        let mut set = BTreeSet::new();
        for (hash, _) in &self.streamed {
            if let Some(last) = self.loaded.len().checked_sub(1) {
                let row = usize::try_from(*hash).unwrap_or(usize::MAX) % (last + 1);
                if bits.set(row) != set.insert(row) {
                    return Err(format!("bit {row} of {} bits", last + 1));
                }
            }
        }
        match (0..bits.len()).find(|row| bits.get(*row) != set.contains(row)) {
            Some(row) => Err(format!("bit {row} is {}", bits.get(row))),
            None => Ok(()),
        }
    }
}

/// The same walk over the lists.
struct Twin {
    /// Index into the rows asked about, loaded row, streamed row.
    pairs: Vec<(usize, u32, u32)>,
    /// The next of them.
    next: usize,
}

impl Twin {
    fn new(lists: &Lists, rows: &[u32], streamed: &[(u64, bool)]) -> Self {
        let mut pairs = Vec::new();
        for (position, row) in rows.iter().enumerate() {
            if let Some((hash, true)) = streamed.get(*row as usize) {
                let list = lists.get(hash).into_iter().flatten();
                pairs.extend(list.map(|loaded| (position, *loaded, *row)));
            }
        }
        Self { pairs, next: 0 }
    }

    fn follow(&mut self, pairs: impl Iterator<Item = (u32, u32)>) -> Result<(), String> {
        for got in pairs {
            let expected = self.pairs.get(self.next).map(|(_, l, s)| (*l, *s));
            if expected != Some(got) {
                return Err(format!("(loaded, streamed) is {got:?} for {expected:?}"));
            }
            self.next += 1;
        }
        Ok(())
    }

    fn skip_to(&mut self, position: usize) {
        while self.pairs.get(self.next).is_some_and(|p| p.0 < position) {
            self.next += 1;
        }
    }

    /// No pair before the cursor is still to come, none after it has come.
    fn may_stand_at(&self, cursor: Cursor) -> Result<(), String> {
        let next = self.pairs.get(self.next).map(|pair| pair.0);
        let last = self.next.checked_sub(1).and_then(|p| self.pairs.get(p));
        if next.is_some_and(|next| next < cursor.position)
            || last.is_some_and(|last| last.0 > cursor.position)
        {
            return Err(format!("{cursor:?} with pair {} to come", self.next));
        }
        Ok(())
    }

    fn ends(&self) -> Result<(), String> {
        if self.next == self.pairs.len() {
            Ok(())
        } else {
            Err(format!("{} of {} pairs", self.next, self.pairs.len()))
        }
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            loaded,
            streamed,
            left_out,
            steps,
        } = self;
        let left_out: Vec<_> = left_out.iter().collect();
        let steps: Vec<_> = steps.iter().map(|step| format!("Step::{step:?}")).collect();
        paste::test(
            f,
            Self::NAME,
            format_args!(
                "Chain {{
        loaded: vec!{loaded:?},
        streamed: vec!{streamed:?},
        left_out: {left_out:?}.into(),
        steps: vec![{}],
    }}",
                steps.join(", ")
            ),
        )
    }
}
