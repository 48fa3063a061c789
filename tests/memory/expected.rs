//! What must come out, from the keys alone: how many rows, and sums that a row which is missing, is
//! there twice, or has the wrong partner changes.

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use datafusion_common::JoinType;
use hashbrown::HashMap;

use super::data::{ID, Input, KEY, TEXT, text_at};

/// Counts and sums over output rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) rows: u64,
    /// Rows that have a build side, a probe side, both, or a true mark.
    build_rows: u64,
    probe_rows: u64,
    pairs: u64,
    marked: u64,
    /// Over the numbers of each side, and over the products of pairs.
    build: u64,
    probe: u64,
    products: u64,
}

/// The rows of one key on one side.
#[derive(Clone, Copy, Debug, Default)]
struct OfKey {
    rows: u64,
    sum: u64,
}

/// Which output columns there are, by side.
pub(crate) fn sides(join_type: JoinType) -> (bool, bool, bool) {
    match join_type {
        JoinType::LeftSemi | JoinType::LeftAnti => (true, false, false),
        JoinType::LeftMark => (true, false, true),
        JoinType::RightSemi | JoinType::RightAnti => (false, true, false),
        JoinType::RightMark => (false, true, true),
        JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => (true, true, false),
    }
}

fn by_key(input: Input) -> HashMap<Option<i64>, OfKey> {
    let mut keys: HashMap<Option<i64>, OfKey> = HashMap::new();
    for row in 0..input.rows {
        let of = keys.entry(input.key(row)).or_default();
        of.rows += 1;
        of.sum = of.sum.wrapping_add(input.id(row).cast_unsigned());
    }
    keys
}

impl Sums {
    /// For the equality of keys, where NULL equals nothing.
    pub(crate) fn expected(build: Input, probe: Input, join_type: JoinType) -> Self {
        let (builds, probes) = (by_key(build), by_key(probe));
        let other = |of: &HashMap<Option<i64>, OfKey>, key: &Option<i64>| {
            let of = key.and_then(|_| of.get(key));
            of.copied().unwrap_or_default()
        };
        let mut sums = Self::default();
        for (key, own) in &builds {
            sums.build_side(join_type, *own, other(&probes, key));
        }
        for (key, own) in &probes {
            let has_match = other(&builds, key).rows > 0;
            sums.probe_side(join_type, *own, has_match);
        }
        sums
    }

    fn build_side(&mut self, join_type: JoinType, own: OfKey, partners: OfKey) {
        let has_match = partners.rows > 0;
        let pairs = matches!(
            join_type,
            JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full
        );
        if pairs && has_match {
            self.rows += own.rows * partners.rows;
            self.pairs += own.rows * partners.rows;
            self.build_rows += own.rows * partners.rows;
            self.probe_rows += own.rows * partners.rows;
            self.build = self.build.wrapping_add(own.sum.wrapping_mul(partners.rows));
            self.probe = self.probe.wrapping_add(partners.sum.wrapping_mul(own.rows));
            self.products = self
                .products
                .wrapping_add(own.sum.wrapping_mul(partners.sum));
        }
        let singly = match join_type {
            JoinType::Left | JoinType::Full | JoinType::LeftAnti => !has_match,
            JoinType::LeftSemi => has_match,
            JoinType::LeftMark => true,
            _ => false,
        };
        if singly {
            self.rows += own.rows;
            self.build_rows += own.rows;
            self.build = self.build.wrapping_add(own.sum);
            self.marked += own.rows * u64::from(join_type == JoinType::LeftMark && has_match);
        }
    }

    fn probe_side(&mut self, join_type: JoinType, own: OfKey, has_match: bool) {
        let singly = match join_type {
            JoinType::Right | JoinType::Full | JoinType::RightAnti => !has_match,
            JoinType::RightSemi => has_match,
            JoinType::RightMark => true,
            _ => false,
        };
        if singly {
            self.rows += own.rows;
            self.probe_rows += own.rows;
            self.probe = self.probe.wrapping_add(own.sum);
            self.marked += own.rows * u64::from(join_type == JoinType::RightMark && has_match);
        }
    }

    /// Adds output rows, each of which must be whole: its text its own, its keys equal.
    pub(crate) fn add(
        &mut self,
        build: Input,
        probe: Input,
        join_type: JoinType,
        out: &RecordBatch,
    ) {
        let (has_build, has_probe, has_mark) = sides(join_type);
        let mut first = 0;
        let mut side = |has: bool, input: Input| {
            let side = has.then(|| SideOf::new(out, first, input));
            first += if has { 3 } else { 0 };
            side
        };
        let (build, probe) = (side(has_build, build), side(has_probe, probe));
        let mark = has_mark.then(|| out.column(out.num_columns() - 1).as_boolean());
        for row in 0..out.num_rows() {
            let b = build.as_ref().and_then(|side| side.row(row));
            let p = probe.as_ref().and_then(|side| side.row(row));
            self.rows += 1;
            if let Some((_, id)) = b {
                self.build_rows += 1;
                self.build = self.build.wrapping_add(id);
            }
            if let Some((_, id)) = p {
                self.probe_rows += 1;
                self.probe = self.probe.wrapping_add(id);
            }
            if let (Some((b, x)), Some((p, y))) = (b, p) {
                assert!(b == p && b.is_some(), "keys {b:?} and {p:?} are not equal");
                self.pairs += 1;
                self.products = self.products.wrapping_add(x.wrapping_mul(y));
            }
            self.marked += u64::from(mark.is_some_and(|mark| mark.value(row)));
        }
    }
}

/// The columns of one side in an output batch.
struct SideOf<'a> {
    input: Input,
    key: &'a Int64Array,
    id: &'a Int64Array,
    text: &'a ArrayRef,
}

impl<'a> SideOf<'a> {
    fn new(out: &'a RecordBatch, first: usize, input: Input) -> Self {
        Self {
            input,
            key: out.column(first + KEY).as_primitive::<Int64Type>(),
            id: out.column(first + ID).as_primitive::<Int64Type>(),
            text: out.column(first + TEXT),
        }
    }

    /// Key and number, if this side has a row here.
    fn row(&self, row: usize) -> Option<(Option<i64>, u64)> {
        if self.id.is_null(row) {
            assert!(self.key.is_null(row) && self.text.is_null(row));
            return None;
        }
        let id = self.id.value(row);
        assert!(
            self.input.is_text_of(id, text_at(self.text, row)),
            "row {id}"
        );
        let key = (!self.key.is_null(row)).then(|| self.key.value(row));
        Some((key, id.cast_unsigned()))
    }
}
