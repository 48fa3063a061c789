//! Columns that do not grow in place: pieces as they come, put together at the end.
//!
//! # Words
//!
//! A dictionary may be large, and another one in each batch, of which a bucket gets a few rows; or it
//! may be one for all batches. So rows are first kept with the words that they use. Once as many words
//! were picked from one dictionary as half of what it has, rows keep all of it, and share it with
//! those before and after: no more than one and a half times its words is ever kept or written.

use std::sync::{Arc, Weak};

use arrow::array::{Array, ArrayRef, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::DataType;
use datafusion_common::Result;

use super::Grow;
use crate::error;
use crate::memory::size::{column_bytes, compact_array};
use crate::memory::words::{Numbers, collect_words, concat_within, has_numbers, note_words};

/// Arrays of other types, put together at the end.
#[derive(Default)]
pub(super) struct Pieces {
    /// Pieces that have the same words, where they have words.
    groups: Vec<Group>,
    /// What all groups but the last take of the numbers of their type.
    numbers: Option<Numbers>,
    staged: Option<Staged>,
    source: Source,
}

struct Group {
    pieces: Vec<ArrayRef>,
    numbers: Numbers,
}

/// What is appended next.
enum Staged {
    Nothing,
    /// A piece that the last group takes, with what it takes of numbers then.
    Joining(ArrayRef, Numbers),
    /// A piece that is a group by itself.
    Alone(ArrayRef, Numbers),
    /// All pieces with the next one in one.
    Merged(ArrayRef, Numbers),
}

/// The dictionaries that the last rows came from.
#[derive(Clone, Debug, Default)]
pub(super) struct Source {
    words: Vec<Weak<dyn Array>>,
    /// Words that were picked from them, those that were picked before too.
    picked: usize,
}

impl Source {
    /// Rows picked from a batch, with few words if they use few.
    fn collect(&mut self, taken: ArrayRef) -> Result<ArrayRef> {
        let mut words = Vec::new();
        note_words(&taken, &mut words);
        let are_same = !words.is_empty()
            && words.len() == self.words.len()
            && words.iter().zip(&self.words).all(|(a, b)| a.ptr_eq(b));
        if !are_same {
            *self = Self { words, picked: 0 };
        }
        let all = Numbers::of(&taken).words();
        if self.picked * 2 >= all {
            return Ok(taken);
        }
        let few = collect_words(&taken)?;
        self.picked += Numbers::of(&few).words();
        Ok(few)
    }
}

impl Pieces {
    /// All pieces and `more` in one; nothing if their numbers do not suffice.
    fn merged<'a>(
        groups: &[Group],
        more: impl Iterator<Item = &'a ArrayRef>,
    ) -> Result<Option<ArrayRef>> {
        let mut all = Vec::with_capacity(groups.len());
        for group in groups {
            match concat_within(&group.pieces)? {
                Some(group) => all.push(group),
                None => return Ok(None),
            }
        }
        all.extend(more.cloned());
        concat_within(&all)
    }

    fn append_staged(&mut self) -> Result<usize> {
        let (piece, numbers, known) = match self.staged.take() {
            Some(Staged::Nothing) => return Ok(0),
            Some(Staged::Joining(piece, numbers)) => {
                // Small pieces cost more than their rows; words that others have too do not.
                let bytes = column_bytes(&piece).saturating_sub(numbers.words_bytes());
                if let Some(last) = self.groups.last_mut() {
                    last.pieces.push(piece);
                    last.numbers = numbers;
                }
                return Ok(bytes);
            }
            Some(Staged::Alone(piece, numbers)) => {
                self.numbers = self.numbers_before_another();
                (piece, numbers, 0)
            }
            Some(Staged::Merged(all, numbers)) => {
                let pieces = self.groups.drain(..).flat_map(|group| group.pieces);
                let known = pieces.map(|piece| column_bytes(&piece)).sum();
                self.numbers = None;
                (all, numbers, known)
            }
            None => return Err(error::internal("rows are appended that were not looked at")),
        };
        let bytes = column_bytes(&piece).saturating_sub(known);
        self.groups.push(Group {
            pieces: vec![piece],
            numbers,
        });
        Ok(bytes)
    }

    /// What all groups take, if there are any.
    fn numbers_before_another(&self) -> Option<Numbers> {
        let last = &self.groups.last()?.numbers;
        Some(match &self.numbers {
            Some(numbers) => numbers.with(last),
            None => last.clone(),
        })
    }

    /// Looks at a piece; `None` if the numbers of its type do not suffice for it and the others.
    fn staged(&self, piece: ArrayRef) -> Result<Option<Staged>> {
        let own = Numbers::of(&piece);
        let Some(last) = self.groups.last() else {
            return Ok(Some(Staged::Alone(piece, own)));
        };
        let suffice = |numbers: &Numbers| match &self.numbers {
            Some(before) => before.with(numbers).suffice(),
            None => numbers.suffice(),
        };
        if let Some(together) = last.numbers.joined(&own)
            && suffice(&together)
        {
            return Ok(Some(Staged::Joining(piece, together)));
        }
        if suffice(&last.numbers.with(&own)) {
            return Ok(Some(Staged::Alone(piece, own)));
        }
        // Words that dictionaries have in common take one number.
        let merged = Self::merged(&self.groups, std::iter::once(&piece))?;
        Ok(merged.map(|all| {
            let numbers = Numbers::of(&all);
            Staged::Merged(all, numbers)
        }))
    }
}

impl Grow for Pieces {
    fn stage(&mut self, from: &ArrayRef, rows: Option<&[u32]>) -> Result<bool> {
        let piece = match rows {
            // `take` of no rows panics for run-end encoded columns.
            Some([]) => {
                self.staged = Some(Staged::Nothing);
                return Ok(true);
            }
            Some(rows) => {
                let taken = take(from.as_ref(), &UInt32Array::from(rows.to_vec()), None)?;
                compact_array(&taken)?
            }
            None => Arc::clone(from),
        };
        let piece = match has_numbers(piece.data_type()) {
            true => self.source.collect(piece)?,
            false => piece,
        };
        self.staged = self.staged(piece)?;
        Ok(self.staged.is_some())
    }

    fn source(&mut self) -> Option<&mut Source> {
        Some(&mut self.source)
    }

    fn append_rows(&mut self, _from: &ArrayRef, _rows: &[u32]) -> Result<usize> {
        self.append_staged()
    }

    fn append(&mut self, _from: &ArrayRef) -> Result<usize> {
        self.append_staged()
    }

    fn finish(self: Box<Self>, data_type: &DataType) -> Result<ArrayRef> {
        if self.groups.is_empty() {
            return Ok(arrow::array::new_empty_array(data_type));
        }
        Self::merged(&self.groups, std::iter::empty())?
            .ok_or_else(|| error::internal("pieces have more words than were counted"))
    }
}
