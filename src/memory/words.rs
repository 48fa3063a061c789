//! Arrays whose values are numbered in few bits: dictionaries, whose keys number words, and runs,
//! whose ends number rows.
//!
//! Job: put such arrays together where their numbers suffice, and say where they do not; keep of a
//! dictionary the words in use and no others. A dictionary may be the column itself or be inside of a
//! nested one. Not its job: what to do where numbers do not suffice; fewer rows at a time always do,
//! since those of one array have been numbered.
//!
//! # Why arrow is not simply asked
//!
//! Its kernels answer with an error for dictionaries of texts and numbers, and panic for those of
//! other values, for dictionaries inside of lists of one size, and for runs.

use std::sync::{Arc, Weak};

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, DictionaryArray, PrimitiveArray, UInt32Array, UInt64Array,
    downcast_integer,
};
use arrow::compute::{concat, interleave, take};
use arrow::datatypes::{ArrowDictionaryKeyType, ArrowNativeType, DataType};
use arrow::error::ArrowError;
use datafusion_common::Result;

use super::nested::with_leaves;

/// Whether columns of this type are, or have in them, dictionaries or runs.
pub(super) fn has_numbers(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, _) | DataType::RunEndEncoded(_, _) => true,
        DataType::Struct(fields) => fields.iter().any(|field| has_numbers(field.data_type())),
        DataType::Union(fields, _) => fields.iter().any(|(_, f)| has_numbers(f.data_type())),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::Map(field, _) => has_numbers(field.data_type()),
        _ => false,
    }
}

/// The most rows that a column of this type can have.
pub(crate) fn most_rows(data_type: &DataType) -> usize {
    match data_type {
        DataType::RunEndEncoded(ends, _) => numbers_of(ends.data_type()) - 1,
        DataType::Struct(fields) => {
            let most = fields.iter().map(|field| most_rows(field.data_type()));
            most.min().unwrap_or(usize::MAX)
        }
        DataType::FixedSizeList(field, size) => {
            most_rows(field.data_type()) / usize::try_from(*size).unwrap_or(1).max(1)
        }
        _ => usize::MAX,
    }
}

/// How many numbers arrays take together, for each dictionary or sequence of runs in their type.
#[derive(Clone, Debug, Default)]
pub(super) struct Numbers(Vec<Numbered>);

#[derive(Clone, Debug)]
struct Numbered {
    /// Of all arrays.
    taken: usize,
    /// How many there are.
    most: usize,
    /// The words that all arrays so far share.
    shared: Option<ArrayData>,
    is_runs: bool,
}

impl Numbered {
    fn suffices(&self) -> bool {
        let taken = self.shared.as_ref().map_or(self.taken, ArrayData::len);
        taken <= self.most
    }
}

impl Numbers {
    pub(super) fn of(array: &dyn Array) -> Self {
        let mut numbers = Self::default();
        numbers.note(&array.to_data());
        numbers
    }

    fn of_all<'a>(arrays: impl IntoIterator<Item = &'a dyn Array>) -> Self {
        let all = arrays.into_iter().map(Self::of);
        all.reduce(|numbers, more| numbers.with(&more))
            .unwrap_or_default()
    }

    fn note(&mut self, data: &ArrayData) {
        let children = data.child_data();
        match (data.data_type(), children) {
            (DataType::Dictionary(keys, _), [words]) => {
                self.0.push(Numbered {
                    taken: words.len(),
                    most: numbers_of(keys),
                    shared: Some(words.clone()),
                    is_runs: false,
                });
                self.note(words);
            }
            (DataType::RunEndEncoded(ends, _), [_, values]) => {
                self.0.push(Numbered {
                    taken: data.len(),
                    // There is no row 0 to end a run at.
                    most: numbers_of(ends.data_type()) - 1,
                    shared: None,
                    is_runs: true,
                });
                self.note(values);
            }
            _ => children.iter().for_each(|child| self.note(child)),
        }
    }

    /// Of these arrays and those.
    pub(super) fn with(&self, more: &Self) -> Self {
        let both = self.0.iter().zip(&more.0).map(|(one, other)| {
            let shared = one.shared.as_ref().zip(other.shared.as_ref());
            let shared = shared.filter(|(one, other)| one.ptr_eq(other));
            Numbered {
                taken: one.taken.saturating_add(other.taken),
                shared: shared.map(|(words, _)| words.clone()),
                ..*one
            }
        });
        Self(both.collect())
    }

    /// Of these arrays and those, which are neighbours and share all words, so that arrow makes one
    /// array with those words; `None` if they do not.
    pub(super) fn joined(&self, more: &Self) -> Option<Self> {
        let mut joined = self.with(more);
        for numbered in joined.0.iter_mut().filter(|numbered| !numbered.is_runs) {
            numbered.taken = numbered.shared.as_ref()?.len();
        }
        Some(joined)
    }

    /// How many words there are.
    pub(super) fn words(&self) -> usize {
        let dictionaries = self.0.iter().filter(|numbered| !numbered.is_runs);
        dictionaries.map(|numbered| numbered.taken).sum()
    }

    /// The bytes of the words that all arrays share.
    pub(super) fn words_bytes(&self) -> usize {
        let words = self
            .0
            .iter()
            .filter_map(|numbered| numbered.shared.as_ref());
        words.map(ArrayData::get_buffer_memory_size).sum()
    }

    /// Whether all arrays can be one, whatever their values.
    pub(super) fn suffice(&self) -> bool {
        self.0.iter().all(Numbered::suffices)
    }

    /// Whether arrow may be asked: it panics where rows have too few numbers.
    fn suffice_for_runs(&self) -> bool {
        let mut runs = self.0.iter().filter(|numbered| numbered.is_runs);
        runs.all(Numbered::suffices)
    }
}

fn numbers_of(key: &DataType) -> usize {
    match key {
        DataType::Int8 => 1 << 7,
        DataType::UInt8 => 1 << 8,
        DataType::Int16 => 1 << 15,
        DataType::UInt16 => 1 << 16,
        DataType::Int32 => 1 << 31,
        _ => usize::MAX,
    }
}

/// Whether arrow merges equal words of such arrays, and says so where too many are left.
fn are_words_merged(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, words) => {
            words.is_primitive()
                || matches!(
                    words.as_ref(),
                    DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary
                )
        }
        DataType::Struct(fields) => fields.iter().all(|f| are_words_merged(f.data_type())),
        // Arrow panics where the words of such lists are too many to interleave.
        DataType::ListView(field) | DataType::LargeListView(field) => {
            !has_numbers(field.data_type())
        }
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::Map(field, _)
        | DataType::RunEndEncoded(_, field) => are_words_merged(field.data_type()),
        other => !has_numbers(other),
    }
}

/// What arrow made; nothing if numbers do not suffice.
fn unless_overflown(result: Result<ArrayRef, ArrowError>) -> Result<Option<ArrayRef>> {
    match result {
        Ok(array) => Ok(Some(array)),
        Err(ArrowError::DictionaryKeyOverflowError) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// One array out of many of a type; nothing if its numbers do not suffice for them.
///
/// # Errors
/// If arrow cannot concatenate the type.
pub(crate) fn concat_within(arrays: &[ArrayRef]) -> Result<Option<ArrayRef>> {
    let refs: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    let Some(first) = refs.first() else {
        return Ok(None);
    };
    if !may_be_one(first.data_type(), &refs) {
        return Ok(None);
    }
    unless_overflown(concat(&refs))
}

/// Whether arrow may be asked to make one array of these: they fit, or it says that they do not.
fn may_be_one(data_type: &DataType, arrays: &[&dyn Array]) -> bool {
    if arrays.len() < 2 || !has_numbers(data_type) {
        return true;
    }
    let numbers = Numbers::of_all(arrays.iter().copied());
    numbers.suffice() || numbers.suffice_for_runs() && are_words_merged(data_type)
}

/// Rows of many arrays of a type, each by its array's and its own number; nothing if numbers do not
/// suffice for so many. They do for one row.
///
/// # Errors
/// If arrow cannot gather rows of the type.
pub(crate) fn interleave_within(
    arrays: &[&dyn Array],
    rows: &[(usize, usize)],
) -> Result<Option<ArrayRef>> {
    let data_type = match arrays.first() {
        Some(first) if has_numbers(first.data_type()) && !rows.is_empty() => first.data_type(),
        _ => return Ok(Some(interleave(arrays, rows)?)),
    };
    if let Some(of_one) = of_one_dictionary(arrays, rows)? {
        return Ok(Some(of_one));
    }
    if Numbers::of_all(arrays.iter().copied()).suffice() {
        return unless_overflown(interleave(arrays, rows));
    }
    // With the rows that are wanted, and their words, alone.
    let mut wanted: Vec<Vec<u32>> = vec![Vec::new(); arrays.len()];
    let mut places = Vec::with_capacity(rows.len());
    for (array, row) in rows {
        places.push((*array, wanted[*array].len()));
        // Arrays are numbered by 32 bits at most.
        wanted[*array].push(u32::try_from(*row).unwrap_or(u32::MAX));
    }
    let mut numbers = vec![0; arrays.len()];
    let mut few = Vec::new();
    for (array, rows) in wanted.into_iter().enumerate() {
        if !rows.is_empty() {
            numbers[array] = few.len();
            few.push(collect_words(&take(
                arrays[array],
                &UInt32Array::from(rows),
                None,
            )?)?);
        }
    }
    if let [only] = few.as_slice() {
        return Ok(Some(Arc::clone(only)));
    }
    let few: Vec<&dyn Array> = few.iter().map(AsRef::as_ref).collect();
    if !may_be_one(data_type, &few) {
        return Ok(None);
    }
    let places: Vec<_> = places
        .into_iter()
        .map(|(array, row)| (numbers[array], row))
        .collect();
    unless_overflown(interleave(&few, &places))
}

/// Rows of arrays that have one dictionary: arrow would copy its words for each of them.
fn of_one_dictionary(arrays: &[&dyn Array], rows: &[(usize, usize)]) -> Result<Option<ArrayRef>> {
    let mut keys = Vec::with_capacity(arrays.len());
    let mut words: Option<&ArrayRef> = None;
    for array in arrays {
        let Some(dictionary) = array.as_any_dictionary_opt() else {
            return Ok(None);
        };
        keys.push(dictionary.keys());
        // Rows of NULLs alone have no words.
        if dictionary.values().is_empty() {
            continue;
        }
        match words {
            None => words = Some(dictionary.values()),
            Some(words) if Arc::ptr_eq(words, dictionary.values()) => {}
            Some(_) => return Ok(None),
        }
    }
    let (Some(words), Some(first)) = (words, keys.first()) else {
        return Ok(None);
    };
    let keys = interleave(&keys, rows)?;
    macro_rules! with_words {
        ($t:ty) => {
            Ok(Some(Arc::new(DictionaryArray::<$t>::try_new(
                keys.as_primitive::<$t>().clone(),
                Arc::clone(words),
            )?)))
        };
    }
    downcast_integer! {
        first.data_type() => (with_words),
        _ => Ok(None),
    }
}

/// Notes the words of an array's dictionaries, so that they are known again as long as they are there.
pub(super) fn note_words(array: &ArrayRef, words: &mut Vec<Weak<dyn Array>>) {
    let columns = match array.data_type() {
        DataType::Dictionary(_, _) => {
            words.push(Arc::downgrade(array.as_any_dictionary().values()));
            return;
        }
        DataType::Struct(_) => array.as_struct().columns(),
        DataType::Map(_, _) => array.as_map().entries().columns(),
        DataType::List(_) => std::slice::from_ref(array.as_list::<i32>().values()),
        DataType::LargeList(_) => std::slice::from_ref(array.as_list::<i64>().values()),
        DataType::FixedSizeList(_, _) => std::slice::from_ref(array.as_fixed_size_list().values()),
        _ => return,
    };
    for column in columns {
        note_words(column, words);
    }
}

/// The same array with the dictionaries in it reduced to the words in use, where those are less than
/// half of them.
///
/// # Errors
/// If arrow refuses to put a nested array together again.
pub(crate) fn collect_words(array: &ArrayRef) -> Result<ArrayRef> {
    if !has_numbers(array.data_type()) {
        return Ok(Arc::clone(array));
    }
    with_leaves(array, &|leaf| {
        macro_rules! collected {
            ($t:ty) => {
                words_in_use(leaf.as_dictionary::<$t>())?
            };
        }
        let collected = match leaf.data_type() {
            DataType::Dictionary(key, _) => downcast_integer! {
                key.as_ref() => (collected),
                _ => None,
            },
            _ => None,
        };
        Ok(collected.unwrap_or_else(|| Arc::clone(leaf)))
    })
}

/// Nothing if half of the words are in use, or more.
fn words_in_use<K: ArrowDictionaryKeyType>(
    dictionary: &DictionaryArray<K>,
) -> Result<Option<ArrayRef>> {
    let number = |key: K::Native| key.as_usize() as u64;
    let mut used: Vec<u64> = dictionary.keys().iter().flatten().map(number).collect();
    used.sort_unstable();
    used.dedup();
    if used.len() * 2 >= dictionary.values().len() {
        return Ok(None);
    }
    let keys = dictionary.keys().iter().map(|key| {
        let place = used.binary_search(&number(key?)).unwrap_or_default();
        K::Native::from_usize(place)
    });
    let keys: PrimitiveArray<K> = keys.collect();
    let words = take(dictionary.values(), &UInt64Array::from(used), None)?;
    let words = super::size::collect_views(&words)?;
    Ok(Some(Arc::new(DictionaryArray::try_new(keys, words)?)))
}

/// The same array with the words of its dictionaries in buffers of their own.
///
/// # Errors
/// If arrow refuses to put an array together again.
pub(super) fn with_own_words(array: &ArrayRef) -> Result<ArrayRef> {
    if !has_numbers(array.data_type()) {
        return Ok(Arc::clone(array));
    }
    with_leaves(array, &|leaf| match leaf.as_any_dictionary_opt() {
        Some(dictionary) => Ok(dictionary.with_values(copied(dictionary.values())?)),
        None => Ok(Arc::clone(leaf)),
    })
}

/// A copy in buffers of its own.
///
/// # Errors
/// If arrow cannot copy the type.
pub(super) fn copied(array: &ArrayRef) -> Result<ArrayRef> {
    if array.is_empty() {
        return Ok(arrow::array::new_empty_array(array.data_type()));
    }
    let rows = u32::try_from(array.len()).unwrap_or(u32::MAX);
    let rows = UInt32Array::from_iter_values(0..rows);
    super::size::collect_views(&take(array, &rows, None)?)
}
