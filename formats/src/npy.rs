//! NumPy's `.npy` files as tables: one two-dimensional array each.

use std::io::{BufReader, Read};
use std::path::Path;

use warprow_layout::DType;

use crate::error::{FileError, FileErrorKind};
use crate::file_table::{FileTable, stem};
use crate::found::Found;
use crate::input::Input;
use crate::input_reader::InputReader;
use crate::key_type::KeyType;
use crate::npy_header::{NpyHeader, NpyHeaderError};
use crate::table_shape::shape_of_table;

const AGAIN: &str = "write it again, with numpy.save";

pub(crate) fn open(path: &Path) -> Result<Found, FileError> {
    let input = Input::open(path)?;
    let reader = || BufReader::with_capacity(4096, InputReader { input: &input, at: 0 });
    if NpyHeader::read(&mut reader()).is_ok_and(|header| matches!(*header.shape, [0, dim] if dim > 0)) {
        let name = stem(path);
        let why = "it has no rows".to_owned();
        return Ok(Found {
            inputs: vec![input],
            empty: vec![name.clone()],
            skipped: vec![(name, why)],
            ..Found::default()
        });
    }
    let (rows, dim, dtype, at) = array(&input, reader(), input.len)?;
    let table = FileTable::flat(stem(path), rows, dim, dtype, at);
    Ok(Found { inputs: vec![input], tables: vec![table], ..Found::default() })
}

/// Rows, elements in a row, type and first byte of the array in the `len` bytes that `reader` gives: a table.
pub(crate) fn array(input: &Input, mut reader: impl Read, len: u64) -> Result<(u64, u32, DType, u64), FileError> {
    let unsupported = |what: String| input.error(FileErrorKind::Unsupported, what, "");
    let header = NpyHeader::read(&mut reader).map_err(|error| match error {
        NpyHeaderError::Io(error) => FileError::io(&input.path, "cannot be read", error),
        damaged => input.damaged(damaged.to_string()).remedy(AGAIN),
    })?;
    let Some(dtype) = dtype_of(&header.descr) else {
        let what = format!("its elements are {}; rows are <f4, <f2, |i1 or |u1", header.descr);
        return Err(unsupported(what).remedy("convert it: array.astype(numpy.float32)"));
    };
    let &[rows, dim] = &*header.shape else {
        let what = format!("its array has the shape {:?}; a table is [rows, dim]", header.shape);
        return Err(unsupported(what).remedy("reshape it to two dimensions"));
    };
    if !header.is_c_order() {
        let what = "its array is in Fortran order".to_owned();
        return Err(unsupported(what).remedy("save numpy.ascontiguousarray(array)"));
    }
    let (rows, dim) = shape_of_table(rows, dim, dtype).map_err(|what| unsupported(what).remedy("look at the array"))?;
    let found = len.saturating_sub(header.data_at);
    let promised = header.elements().saturating_mul(dtype.size().into());
    if promised != found.into() {
        let how = if promised > found.into() { "it is cut off or damaged" } else { "more follows than belongs to it" };
        let what = format!("its header promises {promised} bytes of data, {found} follow: {how}");
        return Err(input.damaged(what).remedy(AGAIN));
    }
    Ok((rows, dim, dtype, header.data_at))
}

/// Numbers, type and first byte of the list of whole numbers that `reader` gives, if it is one: of one dimension, or of columns
/// of one.
pub(crate) fn list(mut reader: impl Read, len: u64) -> Option<(u64, KeyType, u64)> {
    let header = NpyHeader::read(&mut reader).ok()?;
    let keys = match &*header.descr {
        "<i8" => KeyType::I64,
        "<u8" => KeyType::U64,
        "<i4" => KeyType::I32,
        "<u4" => KeyType::U32,
        _ => return None,
    };
    let (&[rows] | &[rows, 1]) = &*header.shape else { return None };
    let whole = rows.checked_mul(keys.size())? == len.checked_sub(header.data_at)?;
    (whole && rows > 0).then_some((rows, keys, header.data_at))
}

/// The type that a `.npy` header's `descr` names, if rows may be of it.
pub fn dtype_of(descr: &str) -> Option<DType> {
    Some(match descr {
        "<f4" => DType::F32,
        "<f2" => DType::F16,
        "|i1" | "<i1" => DType::I8,
        "|u1" | "<u1" => DType::U8,
        _ => return None,
    })
}

/// What `descr` says of elements of `dtype`; `None` for types that NumPy does not have, such as
/// bfloat16.
pub fn descr_of(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::I8 => "|i1",
        DType::U8 => "|u1",
        _ => return None,
    })
}

/// The head of a file that holds an array of `rows` × `dim` in C order: everything before its data.
pub fn head(descr: &str, rows: u64, dim: u64) -> Vec<u8> {
    head_of(descr, &format!("({rows}, {dim})"))
}

/// The head of a file that holds `count` numbers.
pub fn head_of_list(descr: &str, count: u64) -> Vec<u8> {
    head_of(descr, &format!("({count},)"))
}

/// The head of a file that holds an array of this shape in C order.
pub fn head_of_shape(descr: &str, shape: &[u64]) -> Vec<u8> {
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    let comma = if sizes.len() == 1 { "," } else { "" };
    head_of(descr, &format!("({}{comma})", sizes.join(", ")))
}

fn head_of(descr: &str, shape: &str) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    // Magic, version 1.0, a 16-bit length; the data begin at a multiple of 64, and the text ends with a newline.
    let length = (10 + text.len() + 1).next_multiple_of(64) - 10;
    let mut head = b"\x93NUMPY\x01\x00".to_vec();
    head.extend((length as u16).to_le_bytes());
    head.extend(format!("{text:<width$}\n", width = length - 1).as_bytes());
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyz::{NpyFile, Order, WriterBuilder};

    #[test]
    fn another_library_reads_our_lists() {
        let mut bytes = head_of_list("<i8", 3);
        bytes.extend([-1i64, 0, i64::MIN].iter().flat_map(|key| key.to_le_bytes()));
        let file = NpyFile::new(&bytes[..]).unwrap();
        assert_eq!(file.shape(), [3]);
        assert_eq!(file.into_vec::<i64>().unwrap(), [-1, 0, i64::MIN]);
    }

    #[test]
    fn another_library_reads_our_head() {
        for (rows, dim) in [(1, 1), (123_456_789_012, 4096), (u64::MAX, u64::from(u32::MAX))] {
            let head = head("<f4", rows, dim);
            assert_eq!(head.len() % 64, 0);
            if rows.checked_mul(dim).is_some() {
                let file = NpyFile::new(&head[..]).unwrap();
                assert_eq!((file.shape(), file.order()), (&[rows, dim][..], Order::C));
                assert_eq!(file.dtype().descr(), "'<f4'");
            }
            let header = NpyHeader::read(&mut &head[..]).unwrap();
            assert_eq!(
                (header.descr, header.shape, header.data_at),
                ("<f4".into(), vec![rows, dim], head.len() as u64)
            );
        }
    }

    #[test]
    fn we_read_another_librarys_head() {
        let mut bytes = Vec::new();
        let mut writer =
            npyz::WriteOptions::new().default_dtype().shape(&[2, 3]).writer(&mut bytes).begin_nd().unwrap();
        writer.extend([1f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        writer.finish().unwrap();
        let header = NpyHeader::read(&mut &bytes[..]).unwrap();
        assert_eq!((dtype_of(&header.descr), &*header.shape), (Some(DType::F32), &[2, 3][..]));
        assert_eq!(bytes[header.data_at as usize..][..4], 1f32.to_le_bytes());
    }

    #[test]
    fn types_go_there_and_back() {
        for dtype in DType::ALL {
            let numpy = matches!(dtype, DType::F32 | DType::F16 | DType::I8 | DType::U8);
            assert_eq!(descr_of(dtype).and_then(dtype_of), numpy.then_some(dtype));
        }
        for other in ["<f8", ">f4", "<i4", "|O", "|V2"] {
            assert_eq!(dtype_of(other), None);
        }
    }
}
