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

mod columns;
mod pieces;
mod views;

use std::sync::Arc;

use arrow::array::types::{BinaryType, ByteArrayType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{ArrowNativeType, DataType, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion_common::Result;

use columns::growing_column;
use pieces::{Pieces, Source};
use views::stored_type;

pub(crate) use views::{restored, restored_column, restored_extra, stored_schema};

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

/// What is known of the bytes of texts to come.
#[derive(Clone, Copy)]
pub(crate) enum Texts<'a> {
    /// Exactly these, column by column.
    Exactly(&'a [usize]),
    /// They are like the first ones, and of each column no more than this.
    Within(usize),
}

/// What batches that grow one after the other have to know of the dictionaries that their rows come
/// from.
#[derive(Debug, Default)]
pub(crate) struct Sources(Vec<Option<Source>>);

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

    /// The same, of rows that come after others.
    pub(crate) fn after(mut self, sources: &Sources) -> Self {
        for (column, known) in self.columns.iter_mut().zip(&sources.0) {
            if let (Some(source), Some(known)) = (column.source(), known) {
                source.clone_from(known);
            }
        }
        self
    }

    /// What rows that come after these are to know.
    pub(crate) fn sources(&mut self) -> Sources {
        let columns = self.columns.iter_mut();
        Sources(columns.map(|column| column.source().cloned()).collect())
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
    /// What is known of the dictionaries that rows come from.
    fn source(&mut self) -> Option<&mut Source> {
        None
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

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::types::Int64Type;
    use arrow::array::{
        BinaryViewArray, BooleanArray, Decimal128Array, DictionaryArray, Int64Array, ListArray,
        StringArray, StringViewArray, TimestampNanosecondArray,
    };
    use arrow::datatypes::Field;

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
