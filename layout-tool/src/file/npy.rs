//! NumPy's `.npy` files as tables: one two-dimensional array each.

use warprow_layout::DType;

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

/// What `descr` says of elements of `dtype`; `None` for bfloat16, which NumPy does not have.
pub fn descr_of(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "<f4",
        DType::F16 => "<f2",
        DType::BF16 => return None,
        DType::I8 => "|i1",
        DType::U8 => "|u1",
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
    use warprow_workload::NpyHeader;

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
    fn another_library_reads_our_lists() {
        let mut bytes = head_of_list("<i8", 3);
        bytes.extend([-1i64, 0, i64::MIN].iter().flat_map(|key| key.to_le_bytes()));
        let file = NpyFile::new(&bytes[..]).unwrap();
        assert_eq!(file.shape(), [3]);
        assert_eq!(file.into_vec::<i64>().unwrap(), [-1, 0, i64::MIN]);
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
            assert_eq!(descr_of(dtype).and_then(dtype_of), (dtype != DType::BF16).then_some(dtype));
        }
        for other in ["<f8", ">f4", "<i4", "|O", "|V2"] {
            assert_eq!(dtype_of(other), None);
        }
    }
}
