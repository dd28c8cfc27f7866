//! How a field of a row becomes a Parquet column and back.

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, UInt64Builder};
use arrow_array::types::{
    ArrowPrimitiveType, Int8Type, Int32Type, Int64Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, Int8Array, ListArray, PrimitiveArray,
    StringArray, StructArray, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field, Fields};
use varve_model::{
    Address, Bytes, Cpu, Duration, Interval, MemoryLevel, ObjectId, ObjectKind, Page, Pid,
    Resolved, SampleMode, SampleSource, SiteId, Tid, Time, TouchSource,
};

use crate::tables::Frame;

/// A type that a column can hold.
pub(crate) trait Cell: Sized + Clone {
    /// Whether the column may hold nulls.
    const NULLABLE: bool = false;
    /// The Arrow type of the column.
    fn data_type() -> DataType;
    /// Builds the column.
    fn to_array(cells: &[Self]) -> ArrayRef;
    /// Reads the column; the message says what is wrong with it.
    fn from_array(array: &dyn Array) -> Result<Vec<Self>, String>;
}

fn downcast<T: 'static>(array: &dyn Array) -> Result<&T, String> {
    array
        .as_any()
        .downcast_ref()
        .ok_or_else(|| format!("it holds {}", array.data_type()))
}

fn no_nulls(array: &dyn Array) -> Result<(), String> {
    match array.null_count() {
        0 => Ok(()),
        n => Err(format!("it has {n} nulls where none may be")),
    }
}

macro_rules! primitive {
    ($arrow:ty: $($name:ty => $to:expr, $from:expr);* $(;)?) => {$(
        impl Cell for $name {
            fn data_type() -> DataType {
                <$arrow as ArrowPrimitiveType>::DATA_TYPE
            }

            fn to_array(cells: &[Self]) -> ArrayRef {
                Arc::new(PrimitiveArray::<$arrow>::from_iter_values(cells.iter().map($to)))
            }

            fn from_array(array: &dyn Array) -> Result<Vec<Self>, String> {
                no_nulls(array)?;
                Ok(downcast::<PrimitiveArray<$arrow>>(array)?.values().iter().map($from).collect())
            }
        }

        impl Cell for Option<$name> {
            const NULLABLE: bool = true;

            fn data_type() -> DataType {
                <$arrow as ArrowPrimitiveType>::DATA_TYPE
            }

            fn to_array(cells: &[Self]) -> ArrayRef {
                Arc::new(PrimitiveArray::<$arrow>::from_iter(cells.iter().map(|c| c.as_ref().map($to))))
            }

            fn from_array(array: &dyn Array) -> Result<Vec<Self>, String> {
                let array = downcast::<PrimitiveArray<$arrow>>(array)?;
                Ok(array.iter().map(|c| c.as_ref().map($from)).collect())
            }
        }
    )*};
}

primitive! { UInt64Type:
    u64 => |c| *c, |v| *v;
    Address => |c| c.0, |v| Address(*v);
    Bytes => |c| c.0, |v| Bytes(*v);
    Duration => |c| c.0, |v| Duration(*v);
    ObjectId => |c| c.0, |v| ObjectId(*v);
    Page => |c| c.0, |v| Page(*v);
    Time => |c| c.0, |v| Time(*v);
}
primitive! { UInt32Type:
    u32 => |c| *c, |v| *v;
    Cpu => |c| c.0, |v| Cpu(*v);
    Interval => |c| c.0, |v| Interval(*v);
    Pid => |c| c.0, |v| Pid(*v);
    SiteId => |c| c.0, |v| SiteId(*v);
    Tid => |c| c.0, |v| Tid(*v);
}
primitive! { Int32Type: i32 => |c| *c, |v| *v; }
primitive! { Int64Type: i64 => |c| *c, |v| *v; }

impl Cell for bool {
    fn data_type() -> DataType {
        DataType::Boolean
    }

    fn to_array(cells: &[Self]) -> ArrayRef {
        Arc::new(BooleanArray::from(cells.to_vec()))
    }

    fn from_array(array: &dyn Array) -> Result<Vec<Self>, String> {
        no_nulls(array)?;
        Ok(downcast::<BooleanArray>(array)?.values().iter().collect())
    }
}

impl Cell for Option<bool> {
    const NULLABLE: bool = true;

    fn data_type() -> DataType {
        DataType::Boolean
    }

    fn to_array(cells: &[Self]) -> ArrayRef {
        Arc::new(BooleanArray::from(cells.to_vec()))
    }

    fn from_array(array: &dyn Array) -> Result<Vec<Self>, String> {
        let array = downcast::<BooleanArray>(array)?;
        if array.null_count() == array.len() {
            return Ok(vec![None; array.len()]);
        }
        Ok(array.iter().collect())
    }
}

impl Cell for String {
    fn data_type() -> DataType {
        DataType::Utf8
    }

    fn to_array(cells: &[Self]) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(cells))
    }

    fn from_array(array: &dyn Array) -> Result<Vec<Self>, String> {
        no_nulls(array)?;
        let array = downcast::<StringArray>(array)?;
        Ok(array.iter().flatten().map(str::to_owned).collect())
    }
}

/// Text that the writer mostly has as constants.
impl Cell for Cow<'static, str> {
    fn data_type() -> DataType {
        DataType::Utf8
    }

    fn to_array(cells: &[Self]) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(cells))
    }

    fn from_array(array: &dyn Array) -> Result<Vec<Self>, String> {
        Ok(String::from_array(array)?
            .into_iter()
            .map(Cow::Owned)
            .collect())
    }
}

impl Cell for Option<String> {
    const NULLABLE: bool = true;

    fn data_type() -> DataType {
        DataType::Utf8
    }

    fn to_array(cells: &[Self]) -> ArrayRef {
        Arc::new(StringArray::from_iter(cells))
    }

    fn from_array(array: &dyn Array) -> Result<Vec<Self>, String> {
        let array = downcast::<StringArray>(array)?;
        Ok(array.iter().map(|c| c.map(str::to_owned)).collect())
    }
}

/// Words go out as dictionary codes and come back by value, so that a reader of another version, or
/// of a table written by another tool, is right whatever the codes are.
macro_rules! word {
    ($($name:ty),*) => {$(
        impl Cell for $name {
            fn data_type() -> DataType {
                DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8))
            }

            fn to_array(cells: &[Self]) -> ArrayRef {
                let words = StringArray::from_iter_values(Self::ALL.iter().map(|w| w.as_str()));
                let codes = Int8Array::from_iter_values(cells.iter().map(|c| *c as i8));
                Arc::new(DictionaryArray::<Int8Type>::new(codes, Arc::new(words)))
            }

            fn from_array(array: &dyn Array) -> Result<Vec<Self>, String> {
                no_nulls(array)?;
                if let Ok(words) = downcast::<StringArray>(array) {
                    return words.iter().flatten().map(|w| w.parse::<Self>().map_err(|e| e.to_string())).collect();
                }
                let array = downcast::<DictionaryArray<Int8Type>>(array)?;
                let words = downcast::<StringArray>(array.values().as_ref())?;
                let kinds: Vec<Result<Self, String>> = words
                    .iter()
                    .map(|w| w.unwrap_or_default().parse::<Self>().map_err(|e| e.to_string()))
                    .collect();
                array
                    .keys()
                    .values()
                    .iter()
                    .map(|code| {
                        let kind = usize::try_from(*code).ok().and_then(|code| kinds.get(code));
                        kind.cloned().unwrap_or_else(|| Err(format!("it has the unknown code {code}")))
                    })
                    .collect()
            }
        }
    )*};
}

word!(
    TouchSource,
    ObjectKind,
    SampleSource,
    SampleMode,
    Resolved,
    MemoryLevel
);

/// Words that may be missing.
macro_rules! optional_word {
    ($($name:ty),*) => {$(
        impl Cell for Option<$name> {
            const NULLABLE: bool = true;

            fn data_type() -> DataType {
                <$name>::data_type()
            }

            fn to_array(cells: &[Self]) -> ArrayRef {
                let words = StringArray::from_iter_values(<$name>::ALL.iter().map(|w| w.as_str()));
                let codes = Int8Array::from_iter(cells.iter().map(|c| c.map(|c| c as i8)));
                Arc::new(DictionaryArray::<Int8Type>::new(codes, Arc::new(words)))
            }

            fn from_array(array: &dyn Array) -> Result<Vec<Self>, String> {
                let word = |w: &str| w.parse::<$name>().map_err(|e| e.to_string());
                if let Ok(words) = downcast::<StringArray>(array) {
                    return words.iter().map(|w| w.map(word).transpose()).collect();
                }
                let array = downcast::<DictionaryArray<Int8Type>>(array)?;
                let words = downcast::<StringArray>(array.values().as_ref())?;
                let known: Vec<Result<$name, String>> =
                    words.iter().map(|w| word(w.unwrap_or_default())).collect();
                let of = |code: i8| {
                    let found = usize::try_from(code).ok().and_then(|code| known.get(code));
                    found
                        .cloned()
                        .unwrap_or_else(|| Err(format!("it has the unknown code {code}")))
                };
                array.keys().iter().map(|c| c.map(of).transpose()).collect()
            }
        }
    )*};
}

optional_word!(Resolved, SampleMode, MemoryLevel);

impl Cell for Vec<Address> {
    fn data_type() -> DataType {
        DataType::List(Arc::new(Field::new("item", DataType::UInt64, true)))
    }

    fn to_array(cells: &[Self]) -> ArrayRef {
        let mut list = ListBuilder::new(UInt64Builder::new());
        for cell in cells {
            list.append_value(cell.iter().map(|a| Some(a.0)));
        }
        Arc::new(list.finish())
    }

    fn from_array(array: &dyn Array) -> Result<Vec<Self>, String> {
        no_nulls(array)?;
        let lists = downcast::<ListArray>(array)?;
        no_nulls(lists.values().as_ref())?;
        let items = downcast::<UInt64Array>(lists.values().as_ref())?;
        Ok(ranges(lists)
            .map(|r| items.values()[r].iter().map(|a| Address(*a)).collect())
            .collect())
    }
}

fn ranges(lists: &ListArray) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    lists
        .value_offsets()
        .windows(2)
        .map(|w| w[0] as usize..w[1] as usize)
}

fn frame_fields() -> Fields {
    Fields::from(vec![
        Field::new("function", DataType::Utf8, true),
        Field::new("file", DataType::Utf8, true),
        Field::new("line", DataType::UInt32, true),
        Field::new("column", DataType::UInt32, true),
        Field::new("function_line", DataType::UInt32, true),
        Field::new("module", DataType::Utf8, true),
        Field::new("offset", DataType::UInt64, true),
        Field::new("address", DataType::UInt64, false),
    ])
}

impl Cell for Vec<Frame> {
    fn data_type() -> DataType {
        DataType::List(Arc::new(Field::new(
            "item",
            DataType::Struct(frame_fields()),
            false,
        )))
    }

    fn to_array(cells: &[Self]) -> ArrayRef {
        let frames: Vec<&Frame> = cells.iter().flatten().collect();
        let structs = StructArray::new(
            frame_fields(),
            vec![
                Arc::new(StringArray::from_iter(
                    frames.iter().map(|f| f.function.as_ref()),
                )),
                Arc::new(StringArray::from_iter(
                    frames.iter().map(|f| f.file.as_ref()),
                )),
                Arc::new(UInt32Array::from_iter(frames.iter().map(|f| f.line))),
                Arc::new(UInt32Array::from_iter(frames.iter().map(|f| f.column))),
                Arc::new(UInt32Array::from_iter(
                    frames.iter().map(|f| f.function_line),
                )),
                Arc::new(StringArray::from_iter(
                    frames.iter().map(|f| f.module.as_ref()),
                )),
                Arc::new(UInt64Array::from_iter(frames.iter().map(|f| f.offset))),
                Arc::new(UInt64Array::from_iter_values(
                    frames.iter().map(|f| f.address.0),
                )),
            ],
            None,
        );
        let offsets = arrow_buffer_offsets(cells.iter().map(Vec::len));
        Arc::new(ListArray::new(
            Arc::new(Field::new("item", DataType::Struct(frame_fields()), false)),
            offsets,
            Arc::new(structs),
            None,
        ))
    }

    fn from_array(array: &dyn Array) -> Result<Vec<Self>, String> {
        no_nulls(array)?;
        let lists = downcast::<ListArray>(array)?;
        no_nulls(lists.values().as_ref())?;
        let structs = downcast::<StructArray>(lists.values().as_ref())?;
        let column = |name: &str| {
            structs
                .column_by_name(name)
                .ok_or_else(|| format!("its frames have no `{name}`"))
        };
        let functions = Option::<String>::from_array(column("function")?.as_ref())?;
        let files = Option::<String>::from_array(column("file")?.as_ref())?;
        let lines = Option::<u32>::from_array(column("line")?.as_ref())?;
        let columns = Option::<u32>::from_array(column("column")?.as_ref())?;
        let function_lines = Option::<u32>::from_array(column("function_line")?.as_ref())?;
        let modules = Option::<String>::from_array(column("module")?.as_ref())?;
        let offsets = Option::<u64>::from_array(column("offset")?.as_ref())?;
        let addresses = Address::from_array(column("address")?.as_ref())?;
        let frame = |i: usize| Frame {
            function: functions[i].clone(),
            file: files[i].clone(),
            line: lines[i],
            column: columns[i],
            function_line: function_lines[i],
            module: modules[i].clone(),
            offset: offsets[i],
            address: addresses[i],
        };
        Ok(ranges(lists).map(|r| r.map(frame).collect()).collect())
    }
}

fn arrow_buffer_offsets(lengths: impl Iterator<Item = usize>) -> arrow_buffer::OffsetBuffer<i32> {
    arrow_buffer::OffsetBuffer::from_lengths(lengths)
}
