//! Seeded tables: skew, duplicates, NULLs in every column, wide rows, slices, empty batches.
//!
//! Job: turn a [`TableSpec`] and a seed into the batches of one input. Columns are the keys, then
//! `v` (Int32, what filters look at), `id` (Int64, never NULL, different in each row, so that no
//! two rows look the same), `s` (Utf8) and `w` (Utf8View), NULL here and there. Invariant: the
//! same spec and seed give the same rows, whatever the [`Layout`] cuts them into.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion_common::Result;

use super::keys::KeyKind;
use super::rng::Rng;

/// How the keys of a table are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Spread {
    /// Each key once, from this one on.
    Unique(u16),
    /// So many different keys, evenly, from that one on.
    Few(u16, u16),
    /// So many rows in a hundred have key 7, the others are spread over so many keys.
    Hot(u16, u16),
    /// All rows have key 7.
    OneKey,
}

/// How a table is cut into batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Batches of so many rows.
    Batches(usize),
    /// Batches of so many rows, cut out of larger arrays: nothing starts at offset 0.
    Slices(usize),
    /// As `Batches`, with an empty batch before, between and after them.
    WithEmpty(usize),
}

/// What the columns are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Names {
    /// With the table's own prefix.
    Prefixed(&'static str),
    /// All columns have the same name.
    Same,
}

/// What one input looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableSpec {
    /// How many rows.
    pub rows: usize,
    /// How keys are spread.
    pub spread: Spread,
    /// How often a value that may be NULL is, in percent.
    pub null_percent: u16,
    /// How rows are cut into batches.
    pub layout: Layout,
    /// Bytes that each row's `s` has at least.
    pub width: usize,
    /// What the columns are called.
    pub names: Names,
}

/// One input of a join.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its schema, which it has without batches too.
    pub schema: SchemaRef,
    /// Its rows.
    pub batches: Vec<RecordBatch>,
    /// Where `v` is.
    pub v: usize,
}

impl Table {
    /// How many rows it has.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Bytes of its buffers, each slice's own share.
    ///
    /// # Errors
    /// Only if arrow cannot tell.
    pub fn bytes(&self) -> Result<usize> {
        let mut bytes = 0;
        for column in self.batches.iter().flat_map(RecordBatch::columns) {
            bytes += column.to_data().get_slice_memory_size()?;
        }
        Ok(bytes)
    }
}

impl TableSpec {
    /// The table for a seed.
    ///
    /// # Errors
    /// Only if arrow refuses the arrays.
    pub fn table(&self, key: KeyKind, seed: u64) -> Result<Table> {
        let mut rng = Rng::new(seed);
        let codes: Vec<_> = (0..self.rows)
            .map(|row| self.code(&mut rng, key, row))
            .collect();
        let rest: Vec<_> = (0..self.rows).map(|row| self.row(&mut rng, row)).collect();
        let schema = self.schema(key)?;
        let mut batches = Vec::new();
        let empty = RecordBatch::new_empty(Arc::clone(&schema));
        let (size, pad) = match self.layout {
            Layout::Batches(size) | Layout::WithEmpty(size) => (size.max(1), 0),
            Layout::Slices(size) => (size.max(1), 3),
        };
        for start in (0..self.rows).step_by(size) {
            if matches!(self.layout, Layout::WithEmpty(_)) {
                batches.push(empty.clone());
            }
            let end = self.rows.min(start + size);
            // The neighbours' rows as padding: what lies outside of a slice looks like data.
            let wide = start.saturating_sub(pad)..self.rows.min(end + pad);
            let offset = start - wide.start;
            let columns = columns(key, &codes[wide.clone()], &rest[wide])?;
            let batch = RecordBatch::try_new(Arc::clone(&schema), columns)?;
            batches.push(batch.slice(offset, end - start));
        }
        if matches!(self.layout, Layout::WithEmpty(_)) {
            batches.push(empty);
        }
        let v = key.data_types()?.len();
        Ok(Table { schema, batches, v })
    }

    fn code(&self, rng: &mut Rng, key: KeyKind, row: usize) -> Option<u16> {
        let is_null = rng.chance(self.null_percent);
        let row = u16::try_from(row).unwrap_or(u16::MAX);
        let code = match self.spread {
            Spread::Unique(first) => first.saturating_add(row),
            Spread::Few(keys, first) => first.saturating_add(rng.below(keys)),
            Spread::Hot(percent, _) if rng.chance(percent) => 7,
            Spread::Hot(_, keys) => rng.below(keys),
            Spread::OneKey => 7,
        };
        (!is_null).then_some(code % key.distinct())
    }

    fn row(&self, rng: &mut Rng, row: usize) -> Row {
        let maybe = |rng: &mut Rng| !rng.chance(self.null_percent);
        let word = format!("row {row} of a table, with {} in it", rng.below(1000));
        let padded = format!(
            "{word}{}",
            ".".repeat(self.width.saturating_sub(word.len()))
        );
        Row {
            v: maybe(rng).then(|| i32::from(rng.below(10))),
            id: i64::try_from(row).unwrap_or(i64::MAX),
            s: maybe(rng).then_some(padded),
            w: maybe(rng).then(|| word.chars().skip(usize::from(rng.below(30))).collect()),
        }
    }

    fn schema(&self, key: KeyKind) -> Result<SchemaRef> {
        let name = |name: &str| match self.names {
            Names::Prefixed(prefix) => format!("{prefix}_{name}"),
            Names::Same => "x".to_string(),
        };
        let keys = key.data_types()?;
        let mut fields: Vec<_> = keys
            .into_iter()
            .enumerate()
            .map(|(index, key)| Field::new(name(&format!("k{index}")), key, true))
            .collect();
        fields.push(Field::new(name("v"), DataType::Int32, true));
        fields.push(Field::new(name("id"), DataType::Int64, false));
        fields.push(Field::new(name("s"), DataType::Utf8, true));
        fields.push(Field::new(name("w"), DataType::Utf8View, true));
        Ok(Arc::new(Schema::new(fields)))
    }
}

/// What a row has besides its keys.
struct Row {
    v: Option<i32>,
    id: i64,
    s: Option<String>,
    w: Option<String>,
}

fn columns(key: KeyKind, codes: &[Option<u16>], rows: &[Row]) -> Result<Vec<ArrayRef>> {
    let mut columns = key.arrays(codes)?;
    columns.push(Arc::new(
        rows.iter().map(|row| row.v).collect::<Int32Array>(),
    ));
    columns.push(Arc::new(
        rows.iter().map(|row| Some(row.id)).collect::<Int64Array>(),
    ));
    columns.push(Arc::new(
        rows.iter()
            .map(|row| row.s.as_ref())
            .collect::<StringArray>(),
    ));
    columns.push(Arc::new(
        rows.iter()
            .map(|row| row.w.as_ref())
            .collect::<StringViewArray>(),
    ));
    Ok(columns)
}
