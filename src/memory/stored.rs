//! Rows as they are kept in buckets and written to disk: columns that grow by rows picked from
//! batches, and that hold these rows and nothing else.
//!
//! # Views
//!
//! A view of a text takes 16 bytes besides the text, and pins a buffer that it shares with others.
//! So columns of views are stored as plain texts with offsets, and become views again, over the
//! stored bytes, where they are read: 12 bytes a row are never copied, written or read.
//!
//! # Other types
//!
//! Numbers, texts and the like grow in place. Columns of other types (nested ones, dictionaries)
//! are kept in pieces, as they come, and put together at the end. Of a dictionary, a piece has the
//! words that its rows use; where words of many pieces would be more than keys can number, the rows
//! are another batch's.

use std::sync::Arc;

use arrow::array::builder::{BooleanBuilder, GenericByteBuilder, NullBufferBuilder};
use arrow::array::types::{BinaryType, ByteArrayType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow::array::{
    Array, ArrayAccessor, ArrayRef, ArrowPrimitiveType, AsArray, BinaryViewArray, PrimitiveArray,
    StringViewArray, UInt32Array, downcast_primitive,
};
use arrow::buffer::ScalarBuffer;
use arrow::compute::take;
use arrow::datatypes::{ArrowNativeType, DataType, Field, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion_common::Result;

use super::size::{column_bytes, compact_array};
use super::words::{Numbers, collect_words, concat_within, has_numbers};
use crate::error;

/// What a view takes beyond an offset.
const VIEW_EXTRA: usize = size_of::<u128>() - size_of::<i32>();

/// The schema of the same rows as they are stored.
pub(crate) fn stored_schema(schema: &SchemaRef) -> SchemaRef {
    if !schema
        .fields()
        .iter()
        .any(|field| is_view(field.data_type()))
    {
        return Arc::clone(schema);
    }
    let field = |field: &Arc<Field>| match stored_type(field.data_type()) {
        Some(stored) => Arc::new(field.as_ref().clone().with_data_type(stored)),
        None => Arc::clone(field),
    };
    Arc::new(Schema::new(
        schema.fields().iter().map(field).collect::<Vec<_>>(),
    ))
}

/// Whether all columns grow in place, so that a batch of them needs no second copy.
pub(crate) fn grows_in_place(schema: &Schema) -> bool {
    let fields = schema.fields();
    fields.iter().all(|field| {
        let stored = stored_type(field.data_type());
        growing_column(
            stored.as_ref().unwrap_or_else(|| field.data_type()),
            0,
            Data::Exactly(0),
        )
        .is_some()
    })
}

/// What `rows` rows of this schema take in memory beyond what they take stored.
pub(crate) fn restored_extra(schema: &Schema, rows: usize) -> usize {
    let views = schema.fields().iter().filter(|f| is_view(f.data_type()));
    views.count() * rows * VIEW_EXTRA
}

/// A column with the type that it had before it was stored. Views are made over the stored bytes.
pub(crate) fn restored_column(column: &ArrayRef, wanted: &DataType) -> ArrayRef {
    match (column.data_type(), wanted) {
        (DataType::Utf8, DataType::Utf8View) => {
            Arc::new(StringViewArray::from(column.as_string::<i32>()))
        }
        (DataType::Binary, DataType::BinaryView) => {
            Arc::new(BinaryViewArray::from(column.as_binary::<i32>()))
        }
        _ => Arc::clone(column),
    }
}

/// A batch with the schema that it had before it was stored.
///
/// # Errors
/// If the types are others than were stored.
pub(crate) fn restored(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| restored_column(column, field.data_type()));
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    Ok(RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns.collect(),
        &options,
    )?)
}

fn is_view(data_type: &DataType) -> bool {
    stored_type(data_type).is_some()
}

fn stored_type(data_type: &DataType) -> Option<DataType> {
    match data_type {
        DataType::Utf8View => Some(DataType::Utf8),
        DataType::BinaryView => Some(DataType::Binary),
        _ => None,
    }
}

/// What is known of the bytes of texts to come.
#[derive(Clone, Copy)]
pub(crate) enum Texts<'a> {
    /// Exactly these, column by column.
    Exactly(&'a [usize]),
    /// They are like the first ones, and of each column no more than this.
    Within(usize),
}

/// A batch that grows.
pub(crate) struct Growing {
    schema: SchemaRef,
    columns: Vec<Box<dyn Grow>>,
    rows: usize,
    bytes: usize,
}

impl Growing {
    /// An empty batch of a stored schema, with room for `rows` rows.
    pub(crate) fn new(stored: &SchemaRef, rows: usize, texts: Texts<'_>) -> Self {
        let columns = stored.fields().iter().enumerate().map(|(index, field)| {
            let data = match texts {
                Texts::Exactly(bytes) => Data::Exactly(bytes.get(index).copied().unwrap_or(0)),
                Texts::Within(most) => Data::Within(most),
            };
            growing_column(field.data_type(), rows, data)
                .unwrap_or_else(|| Box::new(Pieces::default()))
        });
        Self {
            schema: Arc::clone(stored),
            columns: columns.collect(),
            rows: 0,
            bytes: 0,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The bytes of the rows so far.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends the given rows of a batch, stored or not; `false` if they are not: together with the
    /// rows so far they have more words than a dictionary can number. Where there are none yet, they
    /// have not.
    ///
    /// # Errors
    /// If a column of texts exceeds its offsets, or arrow cannot take a column's type.
    #[must_use = "rows that were not appended are to be appended elsewhere"]
    pub(crate) fn append_rows(&mut self, batch: &RecordBatch, rows: &[u32]) -> Result<bool> {
        for (growing, column) in self.columns.iter_mut().zip(batch.columns()) {
            if !growing.stage(column, Some(rows))? {
                return Ok(false);
            }
        }
        for (growing, column) in self.columns.iter_mut().zip(batch.columns()) {
            self.bytes += growing.append_rows(column, rows)?;
        }
        self.rows += rows.len();
        Ok(true)
    }

    /// Appends a whole batch, stored or not; `false` if it is not, as [`Self::append_rows`] does.
    ///
    /// # Errors
    /// If a column of texts exceeds its offsets.
    #[must_use = "rows that were not appended are to be appended elsewhere"]
    pub(crate) fn append(&mut self, batch: &RecordBatch) -> Result<bool> {
        for (growing, column) in self.columns.iter_mut().zip(batch.columns()) {
            if !growing.stage(column, None)? {
                return Ok(false);
            }
        }
        for (growing, column) in self.columns.iter_mut().zip(batch.columns()) {
            self.bytes += growing.append(column)?;
        }
        self.rows += batch.num_rows();
        Ok(true)
    }

    /// The batch.
    ///
    /// # Errors
    /// If arrow cannot put pieces together.
    pub(crate) fn finish(self) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(self.rows));
        let columns = self.columns.into_iter().zip(self.schema.fields());
        let columns = columns.map(|(column, field)| column.finish(field.data_type()));
        Ok(RecordBatch::try_new_with_options(
            Arc::clone(&self.schema),
            columns.collect::<Result<_>>()?,
            &options,
        )?)
    }
}

/// The bytes of each column's texts, 0 for other columns.
pub(crate) fn text_bytes(batch: &RecordBatch) -> Vec<usize> {
    fn span<T: ByteArrayType>(column: &ArrayRef) -> usize {
        let offsets = column.as_bytes::<T>().value_offsets();
        match (offsets.first(), offsets.last()) {
            (Some(first), Some(last)) => last.as_usize() - first.as_usize(),
            _ => 0,
        }
    }
    let columns = batch.columns().iter();
    let bytes = columns.map(|column| match column.data_type() {
        DataType::Utf8 => span::<Utf8Type>(column),
        DataType::LargeUtf8 => span::<LargeUtf8Type>(column),
        DataType::Binary => span::<BinaryType>(column),
        DataType::LargeBinary => span::<LargeBinaryType>(column),
        _ => 0,
    });
    bytes.collect()
}

/// One column of a growing batch. Appending returns the bytes that were added.
trait Grow: Send + Sync {
    /// Whether the given rows, or all, can be appended next.
    fn stage(&mut self, _from: &ArrayRef, _rows: Option<&[u32]>) -> Result<bool> {
        Ok(true)
    }
    fn append_rows(&mut self, from: &ArrayRef, rows: &[u32]) -> Result<usize>;
    fn append(&mut self, from: &ArrayRef) -> Result<usize>;
    fn finish(self: Box<Self>, data_type: &DataType) -> Result<ArrayRef>;
}

/// [`Texts`] of one column.
#[derive(Clone, Copy)]
enum Data {
    Exactly(usize),
    Within(usize),
}

/// `None` for types that do not grow in place.
fn growing_column(data_type: &DataType, rows: usize, data: Data) -> Option<Box<dyn Grow>> {
    macro_rules! fixed {
        ($t:ty) => {
            Some(Box::new(Fixed::<$t> {
                values: Vec::with_capacity(rows),
                nulls: NullBufferBuilder::new(rows),
            }))
        };
    }
    downcast_primitive! {
        data_type => (fixed),
        DataType::Boolean => Some(Box::new(BooleanBuilder::with_capacity(rows))),
        DataType::Utf8 => Some(Box::new(Text::<Utf8Type>::new(rows, data))),
        DataType::LargeUtf8 => Some(Box::new(Text::<LargeUtf8Type>::new(rows, data))),
        DataType::Binary => Some(Box::new(Text::<BinaryType>::new(rows, data))),
        DataType::LargeBinary => Some(Box::new(Text::<LargeBinaryType>::new(rows, data))),
        _ => None,
    }
}

/// Numbers, dates, decimals: values of one width.
struct Fixed<T: ArrowPrimitiveType> {
    values: Vec<T::Native>,
    nulls: NullBufferBuilder,
}

impl<T: ArrowPrimitiveType> Grow for Fixed<T> {
    fn append_rows(&mut self, from: &ArrayRef, rows: &[u32]) -> Result<usize> {
        let from = from.as_primitive::<T>();
        let values: &[T::Native] = from.values();
        self.values
            .extend(rows.iter().map(|row| values[*row as usize]));
        match from.nulls().filter(|nulls| nulls.null_count() > 0) {
            None => self.nulls.append_n_non_nulls(rows.len()),
            Some(nulls) => rows
                .iter()
                .for_each(|row| self.nulls.append(nulls.is_valid(*row as usize))),
        }
        Ok(size_of_val(rows) / size_of::<u32>() * size_of::<T::Native>())
    }

    fn append(&mut self, from: &ArrayRef) -> Result<usize> {
        let from = from.as_primitive::<T>();
        self.values.extend_from_slice(from.values());
        match from.nulls() {
            None => self.nulls.append_n_non_nulls(from.len()),
            Some(nulls) => self.nulls.append_buffer(nulls),
        }
        Ok(from.len() * size_of::<T::Native>())
    }

    fn finish(mut self: Box<Self>, data_type: &DataType) -> Result<ArrayRef> {
        let nulls = self.nulls.finish();
        let array = PrimitiveArray::<T>::try_new(ScalarBuffer::from(self.values), nulls)?;
        Ok(Arc::new(array.with_data_type(data_type.clone())))
    }
}

impl Grow for BooleanBuilder {
    fn append_rows(&mut self, from: &ArrayRef, rows: &[u32]) -> Result<usize> {
        let from = from.as_boolean();
        for row in rows.iter().map(|row| *row as usize) {
            self.append_option(from.is_valid(row).then(|| from.value(row)));
        }
        Ok(rows.len() / 8)
    }

    fn append(&mut self, from: &ArrayRef) -> Result<usize> {
        self.append_array(from.as_boolean());
        Ok(from.len() / 8)
    }

    fn finish(mut self: Box<Self>, _data_type: &DataType) -> Result<ArrayRef> {
        Ok(Arc::new(Self::finish(&mut self)))
    }
}

/// Texts and bytes with offsets.
struct Text<T: ByteArrayType> {
    /// Made with the first rows, which tell how long texts are.
    builder: Option<GenericByteBuilder<T>>,
    rows: usize,
    data: Data,
}

impl<T: ByteArrayType> Text<T> {
    fn new(rows: usize, data: Data) -> Self {
        Self {
            builder: None,
            rows,
            data,
        }
    }

    /// Room for the expected rows, if they are like `rows` rows of `bytes` bytes.
    fn builder(&mut self, rows: usize, bytes: usize) -> &mut GenericByteBuilder<T> {
        let expected = bytes.saturating_mul(self.rows) / rows.max(1);
        let data = match self.data {
            Data::Exactly(data) => data,
            // An eighth for chance: growing copies everything.
            Data::Within(most) => (expected + expected / 8).min(most),
        };
        let data = data.max(bytes);
        let rows = self.rows.max(rows);
        self.builder
            .get_or_insert_with(|| GenericByteBuilder::with_capacity(rows, data))
    }

    fn extend<'a, A>(&mut self, from: &A, rows: &[u32]) -> Result<usize>
    where
        A: ArrayAccessor<Item = &'a T::Native>,
        T::Native: 'a,
    {
        let length = |row: &u32| {
            let bytes: &[u8] = from.value(*row as usize).as_ref();
            bytes.len()
        };
        let bytes = rows.iter().map(length).sum::<usize>();
        let has_nulls = from.null_count() > 0;
        let builder = self.builder(rows.len(), bytes);
        check_offsets::<T>(builder, bytes)?;
        for row in rows.iter().map(|row| *row as usize) {
            match has_nulls && from.is_null(row) {
                true => builder.append_null(),
                false => builder.append_value(from.value(row)),
            }
        }
        Ok(bytes + rows.len() * size_of::<T::Offset>())
    }
}

/// Whether `more` bytes can be numbered: a builder panics where they cannot.
fn check_offsets<T: ByteArrayType>(builder: &GenericByteBuilder<T>, more: usize) -> Result<()> {
    match T::Offset::from_usize(builder.values_slice().len() + more) {
        Some(_) => Ok(()),
        None => Err(error::too_long_for_offsets()),
    }
}

impl<T: ByteArrayType> Grow for Text<T>
where
    Self: TextOfViews,
{
    fn append_rows(&mut self, from: &ArrayRef, rows: &[u32]) -> Result<usize> {
        match from.as_bytes_opt::<T>() {
            Some(from) => self.extend(&from, rows),
            None => self.extend_views(from, rows),
        }
    }

    fn append(&mut self, from: &ArrayRef) -> Result<usize> {
        let Some(from) = from.as_bytes_opt::<T>() else {
            let rows: Vec<u32> = (0..u32::try_from(from.len()).unwrap_or(u32::MAX)).collect();
            return self.extend_views(from, &rows);
        };
        let offsets = from.value_offsets();
        let bytes = match (offsets.first(), offsets.last()) {
            (Some(first), Some(last)) => last.as_usize() - first.as_usize(),
            _ => 0,
        };
        let builder = self.builder(from.len(), bytes);
        check_offsets::<T>(builder, bytes)?;
        builder.append_array(from)?;
        Ok(bytes + from.len() * size_of::<T::Offset>())
    }

    fn finish(mut self: Box<Self>, _data_type: &DataType) -> Result<ArrayRef> {
        Ok(Arc::new(self.builder(0, 0).finish()))
    }
}

/// Texts of which the unstored column may be views.
trait TextOfViews {
    fn extend_views(&mut self, from: &ArrayRef, rows: &[u32]) -> Result<usize>;
}

impl TextOfViews for Text<Utf8Type> {
    fn extend_views(&mut self, from: &ArrayRef, rows: &[u32]) -> Result<usize> {
        self.extend(&from.as_string_view(), rows)
    }
}

impl TextOfViews for Text<BinaryType> {
    fn extend_views(&mut self, from: &ArrayRef, rows: &[u32]) -> Result<usize> {
        self.extend(&from.as_binary_view(), rows)
    }
}

impl TextOfViews for Text<LargeUtf8Type> {
    fn extend_views(&mut self, from: &ArrayRef, _rows: &[u32]) -> Result<usize> {
        Err(error::internal(format!(
            "{} is stored as long texts",
            from.data_type()
        )))
    }
}

impl TextOfViews for Text<LargeBinaryType> {
    fn extend_views(&mut self, from: &ArrayRef, _rows: &[u32]) -> Result<usize> {
        Err(error::internal(format!(
            "{} is stored as long bytes",
            from.data_type()
        )))
    }
}

/// Arrays of other types, put together at the end.
#[derive(Default)]
struct Pieces {
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
#[derive(Default)]
struct Source {
    /// Tells them from others, as a rule.
    id: usize,
    /// Words that were picked from them, those that were picked before too.
    picked: usize,
}

impl Source {
    /// Rows picked from a batch, with few words if they use few. Once as many were picked from the same
    /// dictionaries as half of what they have, rows have all of them, and share them.
    fn collect(&mut self, taken: ArrayRef) -> Result<ArrayRef> {
        let words = Numbers::of(&taken);
        let id = words.id();
        if self.id != id {
            *self = Self { id, picked: 0 };
        }
        if self.picked * 2 >= words.words() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::types::Int64Type;
    use arrow::array::{
        BinaryViewArray, BooleanArray, Decimal128Array, DictionaryArray, Int64Array, ListArray,
        StringArray, TimestampNanosecondArray,
    };

    /// A batch of columns of many types, with NULLs, sliced out of a larger one.
    fn batch() -> RecordBatch {
        let text = |row: i64| (row % 5 != 0).then(|| format!("text of row {row}, {}", row % 7));
        let number = |row: i64| (row % 3 != 0).then_some(row);
        let rows = || -20..20;
        let lists = rows().map(|row| Some(vec![Some(row), None]));
        let short: StringArray = rows()
            .map(|row| number(row).map(|n| format!("{n}")))
            .collect();
        let columns: [(&str, ArrayRef); 8] = [
            (
                "number",
                Arc::new(rows().map(number).collect::<Int64Array>()),
            ),
            (
                "bit",
                Arc::new(
                    rows()
                        .map(|r| number(r).map(|n| n > 0))
                        .collect::<BooleanArray>(),
                ),
            ),
            ("text", Arc::new(rows().map(text).collect::<StringArray>())),
            (
                "view",
                Arc::new(rows().map(text).collect::<StringViewArray>()),
            ),
            (
                "bytes",
                Arc::new(rows().map(text).collect::<BinaryViewArray>()),
            ),
            (
                "time",
                Arc::new(
                    TimestampNanosecondArray::from_iter(rows().map(number)).with_timezone("UTC"),
                ),
            ),
            (
                "decimal",
                Arc::new(Decimal128Array::from_iter_values((0..40).map(i128::from))),
            ),
            (
                "list",
                Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists)),
            ),
        ];
        let word = DictionaryArray::<arrow::array::types::Int8Type>::try_new(
            (0..40).map(|row| Some(row % 4)).collect(),
            Arc::new(short.slice(0, 4)),
        );
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut with_word = batch.columns().to_vec();
        with_word.push(Arc::new(word.unwrap()));
        let mut fields = batch.schema().fields().to_vec();
        let word_type = with_word[8].data_type().clone();
        fields.push(Arc::new(Field::new("word", word_type, true)));
        RecordBatch::try_new(Arc::new(Schema::new(fields)), with_word)
            .unwrap()
            .slice(3, 30)
    }

    #[test]
    fn picked_rows_come_back_as_they_were() {
        let batch = batch();
        let stored = stored_schema(batch.schema_ref());
        assert_eq!(stored.field(3).data_type(), &DataType::Utf8);
        let mut growing = Growing::new(&stored, 2, Texts::Within(64));
        assert!(growing.append_rows(&batch, &[29, 0, 7, 7]).unwrap());
        assert!(growing.append_rows(&batch, &[]).unwrap());
        assert!(growing.append_rows(&batch, &[12]).unwrap());
        assert_eq!(growing.rows(), 5);
        let kept = growing.finish().unwrap();
        let back = restored(&kept, batch.schema_ref()).unwrap();
        for (at, from) in [29, 0, 7, 7, 12].into_iter().enumerate() {
            assert_eq!(back.slice(at, 1), batch.slice(from, 1), "row {from}");
        }
    }

    #[test]
    fn whole_batches_come_back_as_they_were_stored_or_not() {
        let batch = batch();
        let stored = stored_schema(batch.schema_ref());
        let mut growing = Growing::new(&stored, 0, Texts::Within(0));
        assert!(growing.append(&batch).unwrap());
        let once = growing.finish().unwrap();
        let mut growing = Growing::new(&stored, 60, Texts::Exactly(&text_bytes(&once)));
        assert!(growing.append(&once).unwrap());
        assert!(growing.append(&batch).unwrap());
        let twice = restored(&growing.finish().unwrap(), batch.schema_ref()).unwrap();
        assert_eq!(twice.slice(0, 30), batch);
        assert_eq!(twice.slice(30, 30), batch);
    }

    #[test]
    fn nested_columns_and_dictionaries_do_not_grow_in_place() {
        let batch = batch();
        assert!(!grows_in_place(batch.schema_ref()));
        let flat = batch.project(&(0..7).collect::<Vec<_>>()).unwrap();
        assert!(grows_in_place(flat.schema_ref()));
        assert_eq!(restored_extra(flat.schema_ref(), 10), 2 * 10 * 12);
    }
}
