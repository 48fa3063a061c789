//! Inputs that are made while they are read, so that nothing is in memory but what the join keeps.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringArray, StringBuilder,
    StringDictionaryBuilder, StringViewBuilder,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, Schema, SchemaRef};
use datafusion_common::Result;
use datafusion_execution::{RecordBatchStream, SendableRecordBatchStream};
use futures::Stream;
use grace_hash_join::JoinKeys;
use grace_hash_join::testing::Rng;

/// Columns of an input: the key; a number that no other row has, but by chance; a text that
/// depends on that number alone.
pub(crate) const KEY: usize = 0;
pub(crate) const ID: usize = 1;
pub(crate) const TEXT: usize = 2;

/// How keys and widths are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// Each key has about one row on either side.
    Uniform,
    /// The n-th key has a share of the build rows that is about proportional to 1 / n.
    Zipf,
    /// So many build rows in a hundred have one key; a few probe rows have it.
    OneKey(u64),
    /// Each key has one row on either side.
    Unique,
}

/// What the text is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Text {
    Plain,
    View,
    /// As many values as rows.
    Dictionary,
}

/// One input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input {
    pub(crate) spread: Spread,
    pub(crate) text: Text,
    pub(crate) rows: usize,
    /// The least bytes of a text, and how many more there may be.
    pub(crate) width: (usize, usize),
    /// Rows of a batch.
    pub(crate) batch: usize,
    pub(crate) is_build: bool,
    /// Whether there is a key only: nothing else comes out.
    pub(crate) is_key_only: bool,
}

/// The key of the hot rows.
const HOT: i64 = -7;

impl Input {
    pub(crate) fn schema(self) -> SchemaRef {
        let text = match self.text {
            Text::Plain => DataType::Utf8,
            Text::View => DataType::Utf8View,
            Text::Dictionary => {
                DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
            }
        };
        let mut fields = vec![Field::new("key", DataType::Int64, true)];
        if !self.is_key_only {
            fields.push(Field::new("id", DataType::Int64, false));
            fields.push(Field::new("text", text, false));
        }
        Arc::new(Schema::new(fields))
    }

    fn rng(self, row: usize) -> Rng {
        let seed = if self.is_build { 1 << 40 } else { 2 << 40 };
        Rng::new(seed + row as u64)
    }

    /// The number of a row.
    pub(crate) fn id(self, row: usize) -> i64 {
        (self.rng(row).bits() >> 2).cast_signed()
    }

    /// The key of a row; NULL now and then.
    pub(crate) fn key(self, row: usize) -> Option<i64> {
        let mut rng = self.rng(row);
        rng.bits();
        let (which, random) = (rng.bits(), rng.bits());
        let has_nulls = !matches!(self.spread, Spread::OneKey(100) | Spread::Unique);
        if has_nulls && which % 64 == 0 {
            return None;
        }
        let keys = self.rows as u64;
        let uniform = (random % keys).cast_signed();
        Some(match self.spread {
            Spread::Unique if self.is_build => i64::try_from(row).unwrap(),
            Spread::Unique => i64::try_from(self.rows - 1 - row).unwrap(),
            Spread::Zipf if self.is_build => zipf(random, keys).cast_signed(),
            Spread::Uniform | Spread::Zipf => uniform,
            Spread::OneKey(percent) if self.is_build => match which % 100 < percent {
                true => HOT,
                false => uniform,
            },
            Spread::OneKey(_) => match row % (self.rows / 3) == 1 {
                true => HOT,
                false => uniform,
            },
        })
    }

    /// The length of a row's text.
    fn width(self, id: i64) -> usize {
        let id = usize::try_from(id).unwrap_or(0);
        self.width.0 + id % self.width.1
    }

    /// The bytes of the rows by themselves, NULLs apart.
    pub(crate) fn bytes(self) -> usize {
        let numbers = self.rows * size_of::<i64>();
        if self.is_key_only {
            return numbers;
        }
        let texts = (0..self.rows).map(|row| self.width(self.id(row)));
        2 * numbers + self.rows * size_of::<i32>() + texts.sum::<usize>()
    }

    /// The text that belongs to a number.
    pub(crate) fn is_text_of(self, id: i64, text: &str) -> bool {
        let letter = char::from(letter(id));
        text.len() == self.width(id) && text.starts_with(letter) && text.ends_with(letter)
    }

    fn make(self, from: usize, to: usize) -> Result<RecordBatch> {
        let key: Int64Array = (from..to).map(|row| self.key(row)).collect();
        if self.is_key_only {
            return Ok(RecordBatch::try_new(self.schema(), vec![Arc::new(key)])?);
        }
        let id = Int64Array::from_iter_values((from..to).map(|row| self.id(row)));
        let text = match self.text {
            Text::Plain => self.plain(id.values())?,
            Text::View => self.views(id.values()),
            Text::Dictionary => self.dictionary(id.values())?,
        };
        let columns: Vec<ArrayRef> = vec![Arc::new(key), Arc::new(id), text];
        Ok(RecordBatch::try_new(self.schema(), columns)?)
    }

    fn text_bytes(self, ids: &[i64]) -> usize {
        ids.iter().map(|id| self.width(*id)).sum()
    }

    fn plain(self, ids: &[i64]) -> Result<ArrayRef> {
        let mut offsets = Vec::with_capacity(ids.len() + 1);
        let mut values = Vec::with_capacity(self.text_bytes(ids));
        offsets.push(0);
        for id in ids {
            values.resize(values.len() + self.width(*id), letter(*id));
            offsets.push(i32::try_from(values.len()).unwrap());
        }
        let offsets = OffsetBuffer::new(offsets.into());
        Ok(Arc::new(StringArray::try_new(
            offsets,
            values.into(),
            None,
        )?))
    }

    fn text_of(self, id: i64) -> String {
        String::from_utf8(vec![letter(id); self.width(id)]).unwrap()
    }

    fn views(self, ids: &[i64]) -> ArrayRef {
        let block = u32::try_from(self.text_bytes(ids)).unwrap();
        let mut views = StringViewBuilder::with_capacity(ids.len()).with_fixed_block_size(block);
        for id in ids {
            views.append_value(self.text_of(*id));
        }
        Arc::new(views.finish())
    }

    fn dictionary(self, ids: &[i64]) -> Result<ArrayRef> {
        let (rows, bytes) = (ids.len(), self.text_bytes(ids));
        let mut texts = StringDictionaryBuilder::<Int32Type>::with_capacity(rows, rows, bytes);
        for id in ids {
            texts.append(self.text_of(*id))?;
        }
        Ok(Arc::new(texts.finish()))
    }

    /// The rows, made batch by batch; `before` is called before each.
    pub(crate) fn stream(self, before: impl FnMut() + Send + 'static) -> SendableRecordBatchStream {
        Box::pin(Making {
            input: self,
            next: 0,
            before: Box::new(before),
        })
    }
}

fn letter(id: i64) -> u8 {
    b'a' + u8::try_from(id.rem_euclid(26)).unwrap_or(0)
}

/// The text of a row, whatever it is made of.
pub(crate) fn text_at(texts: &ArrayRef, row: usize) -> &str {
    match texts.data_type() {
        DataType::Utf8View => texts.as_string_view().value(row),
        DataType::Dictionary(_, _) => {
            let texts = texts.as_dictionary::<Int32Type>();
            let value = usize::try_from(texts.keys().value(row)).unwrap();
            texts.values().as_string::<i32>().value(value)
        }
        _ => texts.as_string::<i32>().value(row),
    }
}

/// Keys that are computed, and wide: no column has them.
#[derive(Debug)]
pub(crate) struct WideKeys;

impl JoinKeys for WideKeys {
    fn columns(&self) -> &[usize] {
        &[KEY]
    }

    fn data_types(&self) -> Vec<DataType> {
        vec![DataType::Utf8]
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<Vec<ArrayRef>> {
        let keys = batch.column(0).as_primitive::<Int64Type>();
        // Of the right capacity, as kernels make them.
        let mut wide = StringBuilder::with_capacity(keys.len(), keys.len() * 67);
        for key in keys {
            wide.append_option(key.map(|key| format!("a key that takes {key:050}")));
        }
        Ok(vec![Arc::new(wide.finish())])
    }
}

/// A number below `keys`, small ones more often: `keys` to the power of a random part of one.
fn zipf(random: u64, keys: u64) -> u64 {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "any number will do"
    )]
    let key = (keys as f64).powf((random >> 11) as f64 / (1_u64 << 53) as f64) as u64;
    key - 1
}

struct Making {
    input: Input,
    next: usize,
    before: Box<dyn FnMut() + Send>,
}

impl Stream for Making {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        (self.before)();
        let Input { rows, batch, .. } = self.input;
        let (from, to) = (self.next, rows.min(self.next + batch));
        self.next = to;
        Poll::Ready((from < to).then(|| self.input.make(from, to)))
    }
}

impl RecordBatchStream for Making {
    fn schema(&self) -> SchemaRef {
        self.input.schema()
    }
}
