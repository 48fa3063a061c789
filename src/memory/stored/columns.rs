//! Columns that grow in place: numbers, texts and the like.

use std::sync::Arc;

use arrow::array::builder::{BooleanBuilder, GenericByteBuilder, NullBufferBuilder};
use arrow::array::types::{BinaryType, ByteArrayType, LargeBinaryType, LargeUtf8Type, Utf8Type};
use arrow::array::{
    Array, ArrayAccessor, ArrayRef, ArrowPrimitiveType, AsArray, PrimitiveArray, downcast_primitive,
};
use arrow::buffer::ScalarBuffer;
use arrow::datatypes::{ArrowNativeType, DataType};
use datafusion_common::Result;

use super::{Data, Grow};
use crate::error;

/// `None` for types that do not grow in place.
pub(super) fn growing_column(
    data_type: &DataType,
    rows: usize,
    data: Data,
) -> Option<Box<dyn Grow>> {
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
