//! What the keys of a build side have in common: bounds, and the values themselves if few.
//!
//! Job: gather over batches, merge over partitions, and say it as a predicate on the probe side's
//! keys. Not its job: knowing when it is complete; that is `dynamic_filter`'s.
//!
//! Invariant: the predicate holds for every probe row that has a match. So
//!
//! * floats: `-0.0` joins `0.0`, but is below it in the order that comparisons use: a zero counts as
//!   both. A NaN among the keys silences its key: statistics of files do not count NaNs;
//! * dictionaries are looked at by their values;
//! * nested types contribute nothing: comparisons with a literal are not sure to exist;
//! * NULLs are let through, always, where the join asks for them (`NullEqualsNull`, NOT IN).

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, downcast_primitive_array};
use arrow::compute::{
    cast, max, max_binary, max_binary_view, max_boolean, max_string, max_string_view, min,
    min_binary, min_binary_view, min_boolean, min_string, min_string_view,
};
use arrow::datatypes::{ArrowNumericType, DataType, Schema};
use datafusion_common::{Result, ScalarValue};
use datafusion_expr_common::operator::Operator;
use datafusion_physical_expr::PhysicalExpr;
use datafusion_physical_expr::expressions::{binary, in_list, is_null, lit};
use datafusion_physical_expr::utils::conjunction;
use hashbrown::HashSet;

/// How many values a list of values may have, and how many bytes their rows may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListLimits {
    pub(crate) values: usize,
    pub(crate) bytes: usize,
}

/// What the keys of some build rows have in common.
#[derive(Debug)]
pub(crate) struct BuildSummary {
    rows: usize,
    keys: Vec<KeySummary>,
    limits: ListLimits,
}

#[derive(Debug)]
struct KeySummary {
    /// The least and the greatest value; `None` before the first one.
    range: Option<(ScalarValue, ScalarValue)>,
    /// The values; `None` once they are too many.
    values: Option<HashSet<ScalarValue>>,
    /// What the rows behind `values` took.
    bytes: usize,
    /// Whether nothing may be said about this key.
    is_mute: bool,
}

impl BuildSummary {
    pub(crate) fn new(keys: usize, limits: ListLimits) -> Self {
        let key = || KeySummary {
            range: None,
            values: Some(HashSet::new()),
            bytes: 0,
            is_mute: false,
        };
        Self {
            rows: 0,
            keys: std::iter::repeat_with(key).take(keys).collect(),
            limits,
        }
    }

    /// Takes in the keys of a batch.
    pub(crate) fn add(&mut self, keys: &[ArrayRef]) -> Result<()> {
        self.rows += keys.first().map_or(0, Array::len);
        for (summary, key) in self.keys.iter_mut().zip(keys) {
            summary.add(key, self.limits)?;
        }
        Ok(())
    }

    /// Takes in what another partition gathered.
    pub(crate) fn merge(&mut self, other: Self) {
        self.rows += other.rows;
        for (mine, theirs) in self.keys.iter_mut().zip(other.keys) {
            mine.is_mute |= theirs.is_mute;
            mine.widen(theirs.range);
            mine.bytes = mine.bytes.saturating_add(theirs.bytes);
            mine.values = match (mine.values.take(), theirs.values) {
                (Some(mut values), Some(more)) => {
                    values.extend(more);
                    Some(values)
                }
                _ => None,
            };
            mine.drop_long_list(self.limits);
        }
    }

    /// What holds for the key expressions `on` of every probe row that has a match, or, if
    /// `passes_nulls`, a NULL key.
    pub(crate) fn predicate(
        &self,
        on: &[&Arc<dyn PhysicalExpr>],
        schema: &Schema,
        passes_nulls: bool,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        if self.rows == 0 || on.len() != self.keys.len() {
            return Ok(lit(self.rows != 0));
        }
        let mut parts = Vec::new();
        for (key, on) in self.keys.iter().zip(on) {
            if let Some(part) = key.predicate(on, schema, passes_nulls)? {
                parts.push(part);
            }
        }
        Ok(conjunction(parts))
    }
}

impl KeySummary {
    fn add(&mut self, key: &ArrayRef, limits: ListLimits) -> Result<()> {
        if let DataType::Dictionary(_, values) = key.data_type() {
            return self.add(&cast(key, values)?, limits);
        }
        if !can_compare(key.data_type()) {
            self.is_mute = true;
        }
        if self.is_mute || key.null_count() == key.len() {
            return Ok(());
        }
        match range(key)? {
            Some((low, high)) if is_nan(&low) || is_nan(&high) => self.is_mute = true,
            Some((low, high)) => {
                self.widen(Some((zero(low, false), zero(high, true))));
                self.list(key, limits)?;
            }
            None => {}
        }
        Ok(())
    }

    fn widen(&mut self, other: Option<(ScalarValue, ScalarValue)>) {
        let Some((low, high)) = other else { return };
        self.range = Some(match self.range.take() {
            None => (low, high),
            Some((min, max)) => (
                if low < min { low } else { min },
                if high > max { high } else { max },
            ),
        });
    }

    /// Notes the values of a batch, as long as they are few.
    fn list(&mut self, key: &ArrayRef, limits: ListLimits) -> Result<()> {
        let Some(values) = &mut self.values else {
            return Ok(());
        };
        let width = key.data_type().primitive_width().unwrap_or(1);
        let fits = self.bytes.saturating_add(width.saturating_mul(key.len())) <= limits.bytes;
        for row in (0..key.len()).filter(|row| fits && key.is_valid(*row)) {
            let value = ScalarValue::try_from_array(key, row)?;
            self.bytes += width.max(value.size().saturating_sub(size_of::<ScalarValue>()));
            values.insert(zero(value.clone(), true));
            values.insert(zero(value, false));
            if values.len() > limits.values || self.bytes > limits.bytes {
                break;
            }
        }
        if fits {
            self.drop_long_list(limits);
        } else {
            self.values = None;
        }
        Ok(())
    }

    fn drop_long_list(&mut self, limits: ListLimits) {
        let is_short = |v: &HashSet<ScalarValue>| v.len() <= limits.values;
        if self.bytes > limits.bytes || !self.values.as_ref().is_some_and(is_short) {
            self.values = None;
        }
    }

    fn predicate(
        &self,
        on: &Arc<dyn PhysicalExpr>,
        schema: &Schema,
        passes_nulls: bool,
    ) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        if self.is_mute {
            return Ok(None);
        }
        let among = match &self.range {
            // All keys are NULL: no value matches.
            None => lit(false),
            Some((min, max)) => {
                let key = on.data_type(schema)?;
                let bounds = literal(min, &key).zip(literal(max, &key));
                let Some((min, max)) = bounds else {
                    return Ok(None);
                };
                self.among(on, [min, max], &key, schema)?
            }
        };
        if !passes_nulls {
            return Ok(Some(among));
        }
        let is_null = is_null(Arc::clone(on))?;
        Ok(Some(binary(among, Operator::Or, is_null, schema)?))
    }

    fn among(
        &self,
        on: &Arc<dyn PhysicalExpr>,
        [min, max]: [Arc<dyn PhysicalExpr>; 2],
        key: &DataType,
        schema: &Schema,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let compare = |operator, value| binary(Arc::clone(on), operator, value, schema);
        let mut parts = vec![compare(Operator::GtEq, min)?, compare(Operator::LtEq, max)?];
        let values = self.values.as_ref();
        let values = values.and_then(|v| v.iter().map(|v| literal(v, key)).collect());
        if let Some(values) = values {
            parts.push(in_list(Arc::clone(on), values, &false, schema)?);
        }
        Ok(conjunction(parts))
    }
}

/// `value` as a literal of a key's type; `None` if it is of another.
fn literal(value: &ScalarValue, key: &DataType) -> Option<Arc<dyn PhysicalExpr>> {
    match key {
        DataType::Dictionary(index, values) if **values == value.data_type() => {
            let value = Box::new(value.clone());
            Some(lit(ScalarValue::Dictionary(index.clone(), value)))
        }
        _ => (*key == value.data_type()).then(|| lit(value.clone())),
    }
}

fn is_nan(value: &ScalarValue) -> bool {
    match value {
        ScalarValue::Float32(Some(v)) => v.is_nan(),
        ScalarValue::Float64(Some(v)) => v.is_nan(),
        _ => false,
    }
}

/// `value`; but if it is a zero of floats, the one with this sign.
fn zero(value: ScalarValue, is_positive: bool) -> ScalarValue {
    match value {
        ScalarValue::Float32(Some(0.0)) => {
            ScalarValue::Float32(Some(if is_positive { 0.0 } else { -0.0 }))
        }
        ScalarValue::Float64(Some(0.0)) => {
            ScalarValue::Float64(Some(if is_positive { 0.0 } else { -0.0 }))
        }
        other => other,
    }
}

/// Whether equality and order of a type are what joins and comparisons agree on.
fn can_compare(key: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Boolean, Date32, Date64, Decimal32, Decimal64, Decimal128, Decimal256,
        Duration, Float32, Float64, LargeBinary, LargeUtf8, Time32, Time64, Timestamp, Utf8,
        Utf8View,
    };
    key.is_integer()
        || matches!(
            key,
            Boolean
                | Date32
                | Date64
                | Time32(_)
                | Time64(_)
                | Timestamp(_, _)
                | Duration(_)
                | Float32
                | Float64
                | Decimal32(_, _)
                | Decimal64(_, _)
                | Decimal128(_, _)
                | Decimal256(_, _)
                | Utf8
                | LargeUtf8
                | Utf8View
                | Binary
                | LargeBinary
                | BinaryView
        )
}

/// The least and the greatest value of a type that can be compared; `None` if all are NULL.
fn range(key: &ArrayRef) -> Result<Option<(ScalarValue, ScalarValue)>> {
    let text = |make: fn(Option<String>) -> ScalarValue, low: Option<&str>, high: Option<&str>| {
        let own = |v: &str| make(Some(v.to_string()));
        low.map(own).zip(high.map(own))
    };
    let bytes =
        |make: fn(Option<Vec<u8>>) -> ScalarValue, low: Option<&[u8]>, high: Option<&[u8]>| {
            let own = |v: &[u8]| make(Some(v.to_vec()));
            low.map(own).zip(high.map(own))
        };
    let key = key.as_ref();
    Ok(downcast_primitive_array!(
        key => primitive_range(key)?,
        DataType::Boolean => {
            let key = key.as_boolean();
            let own = |v: bool| ScalarValue::Boolean(Some(v));
            min_boolean(key).map(own).zip(max_boolean(key).map(own))
        }
        DataType::Utf8 => {
            let key = key.as_string::<i32>();
            text(ScalarValue::Utf8, min_string(key), max_string(key))
        }
        DataType::LargeUtf8 => {
            let key = key.as_string::<i64>();
            text(ScalarValue::LargeUtf8, min_string(key), max_string(key))
        }
        DataType::Utf8View => {
            let key = key.as_string_view();
            text(ScalarValue::Utf8View, min_string_view(key), max_string_view(key))
        }
        DataType::Binary => {
            let key = key.as_binary::<i32>();
            bytes(ScalarValue::Binary, min_binary(key), max_binary(key))
        }
        DataType::LargeBinary => {
            let key = key.as_binary::<i64>();
            bytes(ScalarValue::LargeBinary, min_binary(key), max_binary(key))
        }
        DataType::BinaryView => {
            let key = key.as_binary_view();
            bytes(ScalarValue::BinaryView, min_binary_view(key), max_binary_view(key))
        }
        _ => None
    ))
}

fn primitive_range<T: ArrowNumericType>(
    key: &PrimitiveArray<T>,
) -> Result<Option<(ScalarValue, ScalarValue)>> {
    let Some((low, high)) = min(key).zip(max(key)) else {
        return Ok(None);
    };
    let own = |v| ScalarValue::new_primitive::<T>(Some(v), key.data_type());
    Ok(Some((own(low)?, own(high)?)))
}
