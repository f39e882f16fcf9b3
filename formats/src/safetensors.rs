//! The header of a safetensors file: a length, JSON, then the data of all tensors without gaps.
//!
//! The `safetensors` crate parses a whole file that lies in memory. Tables are larger than memory, so the header is read
//! here; types and their widths are the crate's.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ::safetensors::Dtype;
use serde::de::{Error as _, IgnoredAny, IntoDeserializer, MapAccess, Visitor, value};
use serde::{Deserialize, Deserializer};

use crate::error::{FileError, FileErrorKind};
use crate::extent::Extent;
use crate::file_table::FileTable;
use crate::found::Found;
use crate::input::Input;
use crate::key_array::KeyArray;
use crate::key_type::KeyType;
use crate::listed::refuse_elsewhere;
use crate::place::KeyPlace;
use crate::read_options::ReadOptions;
use crate::table_shape::{TYPES, shape_of_table, tensor_types};

/// The longest header that is read, the reference implementation's limit.
pub const MAX_HEADER: u64 = 100_000_000;

/// Bytes before the header: its length.
const PREFIX: u64 = 8;

/// A tensor, as the header has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The name of the tensor.
    pub name: String,
    /// The name of the type: `F32`, `BF16` and others.
    pub dtype: String,
    /// The dimensions.
    pub shape: Vec<u64>,
    /// Offset of the data in the file.
    pub at: u64,
    /// Bytes of the data.
    pub bytes: u64,
}

/// A header that cannot be believed.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// The file could not be read.
    #[error("it cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// There is no room for the header's length.
    #[error("it has {0} bytes: too short for safetensors")]
    TooShort(u64),
    /// The header's length is absurd.
    #[error("its header would have {0} bytes: no safetensors file, or damaged")]
    TooLong(u64),
    /// The header does not end in the file.
    #[error("its header has {header} bytes, but the file only {file}: it is cut off, or no safetensors file")]
    HeaderCutOff {
        /// Bytes of the header.
        header: u64,
        /// Bytes of the file.
        file: u64,
    },
    /// The header is no JSON of the right form.
    #[error("its header is damaged: {0}")]
    Json(#[from] serde_json::Error),
    /// A name comes twice.
    #[error("tensor {0:?} is listed twice")]
    Twice(String),
    /// A range runs backwards.
    #[error("tensor {name:?} begins at {begin} and ends at {end}")]
    Backwards {
        /// The tensor.
        name: String,
        /// First byte.
        begin: u64,
        /// One past the last.
        end: u64,
    },
    /// Two tensors share bytes.
    #[error("tensor {name:?} overlaps with tensor {other:?}")]
    Overlap {
        /// The tensor that begins too early.
        name: String,
        /// The one before it.
        other: String,
    },
    /// Bytes belong to no tensor.
    #[error("{bytes} bytes before tensor {name:?} belong to no tensor")]
    Gap {
        /// The tensor behind the gap.
        name: String,
        /// Bytes of the gap.
        bytes: u64,
    },
    /// Type, shape and range contradict each other.
    #[error("tensor {name:?} of type {dtype} and shape {shape:?} cannot have {bytes} bytes")]
    Size {
        /// The tensor.
        name: String,
        /// The type of the tensor.
        dtype: String,
        /// The shape of the tensor.
        shape: Vec<u64>,
        /// Bytes of its range.
        bytes: u64,
    },
    /// The data end before the last tensor does.
    #[error("its tensors end at byte {promised}, the file at {file}: it is cut off")]
    CutOff {
        /// Where the last tensor ends in the file.
        promised: u64,
        /// Bytes of the file.
        file: u64,
    },
    /// There is more data than tensors.
    #[error("its tensors end at byte {promised}, the file at {file}: what follows is not described")]
    Trailing {
        /// Where the last tensor ends in the file.
        promised: u64,
        /// Bytes of the file.
        file: u64,
    },
}

/// The only safetensors file of a folder; `None`: there is none, or several, of which one is as good as another.
pub(crate) fn only_file_of(folder: &Path) -> Result<Option<PathBuf>, FileError> {
    let cannot = |error| FileError::io(folder, "cannot be listed", error);
    let mut found = None;
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if path.extension().is_some_and(|ending| ending == "safetensors") && found.replace(path).is_some() {
            return Ok(None);
        }
    }
    Ok(found)
}

/// The tables among the tensors of a file, or of a folder's only one.
pub(crate) fn open(path: &Path, options: &ReadOptions) -> Result<Found, FileError> {
    let only = if path.is_dir() { only_file_of(path)? } else { None };
    if let Some(file) = only.as_ref().filter(|_| !options.follow_links) {
        refuse_elsewhere(path, file)?;
    }
    let input = Input::open(only.as_deref().unwrap_or(path))?;
    let mut found = Found::default();
    for tensor in tensors(&input)? {
        found.key_arrays.extend(key_array_of(&tensor, 0));
        found.tensors.insert(tensor.name.clone(), (0, tensor.clone()));
        match table_of(&tensor) {
            Ok(table) => found.tables.push(table),
            Err(reason) => {
                if matches!(*tensor.shape, [0, dim] if dim > 0) {
                    found.empty.push(tensor.name.clone());
                }
                found.skipped.push((tensor.name, reason));
            }
        }
    }
    found.inputs.push(input);
    Ok(found)
}

/// The table of the type and shape that a tensor of `name` has, or why it is none.
pub(crate) fn table_of(tensor: &Tensor) -> Result<FileTable, String> {
    let Some(&(_, dtype)) = TYPES.iter().find(|(name, _)| *name == tensor.dtype) else {
        return Err(format!("type {}: tables are of {}", tensor.dtype, tensor_types()));
    };
    let &[rows, dim] = &*tensor.shape else { return Err(format!("rank {}", tensor.shape.len())) };
    let (rows, dim) = shape_of_table(rows, dim, dtype)?;
    Ok(FileTable::flat(&tensor.name, rows, dim, dtype, tensor.at))
}

/// The tensor of input number `input` as keys, if it is a list of whole numbers.
pub(crate) fn key_array_of(tensor: &Tensor, input: usize) -> Option<KeyArray> {
    let keys = match &*tensor.dtype {
        "I64" => KeyType::I64,
        "U64" => KeyType::U64,
        "I32" => KeyType::I32,
        "U32" => KeyType::U32,
        _ => return None,
    };
    let (&[rows] | &[rows, 1]) = &*tensor.shape else { return None };
    let place = KeyPlace::Flat(vec![Extent { input, at: tensor.at, first: 0, rows }]);
    Some(KeyArray { name: tensor.name.clone(), rows, keys, place, stored: None })
}

/// A file, open for reading, and all its tensors, of which none reaches past its end.
pub fn open_tensors(path: &Path) -> Result<(File, Vec<Tensor>), FileError> {
    let input = Input::open(path)?;
    let tensors = tensors(&input)?;
    Ok((input.file, tensors))
}

/// All tensors of a file.
pub(crate) fn tensors(input: &Input) -> Result<Vec<Tensor>, FileError> {
    read(&input.file).map_err(|error| match error {
        HeaderError::Io(error) => FileError::io(&input.path, "cannot be read", error),
        HeaderError::Twice(_) => input.error(FileErrorKind::Duplicate, error.to_string(), AGAIN).at(PREFIX),
        HeaderError::CutOff { .. } | HeaderError::HeaderCutOff { .. } | HeaderError::Trailing { .. } => {
            input.damaged(error.to_string()).at(input.len)
        }
        HeaderError::TooShort(_) | HeaderError::TooLong(_) => {
            input.error(FileErrorKind::Damaged, error.to_string(), AGAIN).at(0)
        }
        _ => input.error(FileErrorKind::Damaged, error.to_string(), AGAIN).at(PREFIX),
    })
}

const AGAIN: &str = "give a .safetensors or .npy file, or say with a format what it is";

/// The tensors of `file`, in the order of their data. Every range lies in the file and fits its type and shape.
pub fn read(file: &File) -> Result<Vec<Tensor>, HeaderError> {
    let file_len = file.metadata()?.len();
    let Some(rest) = file_len.checked_sub(PREFIX) else { return Err(HeaderError::TooShort(file_len)) };
    let mut prefix = [0; PREFIX as usize];
    file.read_exact_at(&mut prefix, 0)?;
    let header_len = u64::from_le_bytes(prefix);
    if header_len > MAX_HEADER {
        return Err(HeaderError::TooLong(header_len));
    }
    if header_len > rest {
        return Err(HeaderError::HeaderCutOff { header: header_len, file: file_len });
    }
    let mut header = vec![0; header_len as usize];
    file.read_exact_at(&mut header, PREFIX)?;
    parse(&header, file_len)
}

/// The tensors that `header` lists, the JSON text of a file of `file_len` bytes.
pub fn parse(header: &[u8], file_len: u64) -> Result<Vec<Tensor>, HeaderError> {
    let Listed(mut listed) = serde_json::from_slice(header)?;
    listed.sort_by(|(left, _), (right, _)| left.cmp(right));
    if let Some((name, _)) =
        listed.windows(2).find_map(|pair| matches!(pair, [(a, _), (b, _)] if a == b).then(|| &pair[0]))
    {
        return Err(HeaderError::Twice(name.clone()));
    }
    listed.sort_by_key(|(_, entry)| entry.data_offsets);
    let data_at = PREFIX + header.len() as u64;
    let mut tensors: Vec<Tensor> = Vec::with_capacity(listed.len());
    let mut end_of_last = 0;
    for (name, Entry { dtype, shape, data_offsets: (begin, end) }) in listed {
        let Some(bytes) = end.checked_sub(begin) else { return Err(HeaderError::Backwards { name, begin, end }) };
        if begin < end_of_last {
            let other = tensors.last().map(|tensor| tensor.name.clone()).unwrap_or_default();
            return Err(HeaderError::Overlap { name, other });
        }
        if begin > end_of_last {
            return Err(HeaderError::Gap { name, bytes: begin - end_of_last });
        }
        if bits(&dtype).is_some_and(|bits| size(&shape, bits) != Some(bytes)) {
            return Err(HeaderError::Size { name, dtype, shape, bytes });
        }
        end_of_last = end;
        tensors.push(Tensor { name, dtype, shape, at: data_at.saturating_add(begin), bytes });
    }
    let promised = data_at.saturating_add(end_of_last);
    match promised.cmp(&file_len) {
        std::cmp::Ordering::Greater => Err(HeaderError::CutOff { promised, file: file_len }),
        std::cmp::Ordering::Less => Err(HeaderError::Trailing { promised, file: file_len }),
        std::cmp::Ordering::Equal => Ok(tensors),
    }
}

/// Bits of an element; `None` for types that came after this version.
fn bits(dtype: &str) -> Option<u64> {
    let name: value::StrDeserializer<'_, value::Error> = dtype.into_deserializer();
    Dtype::deserialize(name).ok().map(|dtype| dtype.bitsize() as u64)
}

/// Bytes of a tensor, if it has a whole number of them below 2⁶⁴.
fn size(shape: &[u64], bits: u64) -> Option<u64> {
    let bits = shape.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))?.checked_mul(bits)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The members of the header but `__metadata__`, doubles included.
struct Listed(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Listed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Listed;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Listed, A::Error> {
                let mut listed = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let named = |error| A::Error::custom(format!("tensor {name:?}: {error}"));
                    let entry = map.next_value().map_err(named)?;
                    listed.push((name, entry));
                }
                Ok(Listed(listed))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::safetensors::SafeTensors;
    use proptest::prelude::*;

    fn file_of(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn parse_text(header: &str, data: u64) -> Result<Vec<Tensor>, HeaderError> {
        parse(header.as_bytes(), PREFIX + header.len() as u64 + data)
    }

    #[test]
    fn reads_what_the_reference_writes() {
        let a = vec![1u8; 24];
        let b = vec![2u8; 10];
        let view = |dtype, shape, data| ::safetensors::tensor::TensorView::new(dtype, shape, data).unwrap();
        let tensors = [("a", view(Dtype::F32, vec![2, 3], &a)), ("b", view(Dtype::BF16, vec![5, 1], &b))];
        let metadata = [("format".to_owned(), "pt".to_owned())].into();
        let bytes = ::safetensors::serialize(tensors, Some(metadata)).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        for tensor in read(&file).unwrap() {
            let (dtype, shape, data): (_, &[u64], _) = match &*tensor.name {
                "a" => ("F32", &[2, 3], &a),
                "b" => ("BF16", &[5, 1], &b),
                other => panic!("{other}"),
            };
            assert_eq!((&*tensor.dtype, &*tensor.shape), (dtype, shape));
            assert_eq!(&bytes[tensor.at as usize..][..tensor.bytes as usize], data);
        }
    }

    #[test]
    fn every_lie_has_its_error() {
        let one = r#""a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}"#;
        let with = |rest: &str| format!("{{{one},{rest}}}");
        let two = |dtype: &str, shape: &str, begin: u64, end: u64| {
            with(&format!(r#""b":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#))
        };
        macro_rules! refuses {
            ($header:expr, $data:expr, $pattern:pat) => {
                let header: String = $header;
                let data: u64 = $data;
                match parse_text(&header, data) {
                    Err($pattern) => {}
                    other => panic!("{header} with {data} bytes: {other:?}"),
                }
            };
        }
        refuses!(String::new(), 0, HeaderError::Json(_));
        refuses!("[]".into(), 0, HeaderError::Json(_));
        refuses!("[".repeat(100_000), 0, HeaderError::Json(_));
        refuses!(format!("{{\"a\":{}", "[".repeat(100_000)), 0, HeaderError::Json(_));
        refuses!(format!("{{\"__metadata__\":{}", "[".repeat(100_000)), 0, HeaderError::Json(_));
        refuses!(r#"{"a":{"dtype":"F32","shape":[2]}}"#.into(), 8, HeaderError::Json(_));
        refuses!(r#"{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#.into(), 8, HeaderError::Json(_));
        refuses!(r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}}"#.into(), 8, HeaderError::Json(_));
        refuses!(with(one), 16, HeaderError::Twice(_));
        refuses!(two("F32", "[2]", 24, 16), 24, HeaderError::Backwards { .. });
        refuses!(two("F32", "[2]", 12, 20), 20, HeaderError::Overlap { .. });
        refuses!(two("F32", "[2]", 20, 28), 28, HeaderError::Gap { bytes: 4, .. });
        refuses!(two("F32", "[3]", 16, 24), 24, HeaderError::Size { .. });
        refuses!(two("F4", "[3]", 16, 17), 17, HeaderError::Size { .. });
        refuses!(two("F32", "[4294967296,4294967296]", 16, 16), 16, HeaderError::Size { .. });
        refuses!(two("I8", "[1]", 16, 17), 16, HeaderError::CutOff { .. });
        refuses!(two("I8", "[1]", 16, 17), 18, HeaderError::Trailing { .. });
        refuses!(two("X7", "[1]", 16, u64::MAX), 18, HeaderError::CutOff { .. });
        assert_eq!(parse_text(&two("X7", "[1]", 16, 17), 17).unwrap().len(), 2, "an unknown type is no damage");
        assert!(parse_text("{}", 0).unwrap().is_empty());
    }

    #[test]
    fn short_files_and_absurd_lengths() {
        let with = |bytes: &[u8]| {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(bytes, 0).unwrap();
            read(&file)
        };
        assert!(matches!(with(&[]), Err(HeaderError::TooShort(0))));
        assert!(matches!(with(&[0; 7]), Err(HeaderError::TooShort(7))));
        assert!(matches!(with(&[0xff; 64]), Err(HeaderError::TooLong(u64::MAX))));
        assert!(matches!(with(&200u64.to_le_bytes()), Err(HeaderError::HeaderCutOff { header: 200, file: 8 })));
        assert!(matches!(with(&[0; 8]), Err(HeaderError::Json(_))));
    }

    /// Headers that are nearly right.
    fn nearly_right() -> impl Strategy<Value = (String, usize)> {
        let dtype = proptest::sample::select(vec!["F32", "F16", "BF16", "I8", "U8", "F4", "F8_E4M3", "I64", "BOOL"]);
        let tensor = (dtype, proptest::collection::vec(0u64..4, 0..4), 0u8..8);
        (proptest::collection::vec(tensor, 0..5), -2i64..3).prop_map(|(tensors, change)| {
            let mut end = 0;
            let listed: Vec<String> = tensors
                .iter()
                .enumerate()
                .map(|(i, (dtype, shape, wrong))| {
                    let bytes = size(shape, bits(dtype).unwrap()).unwrap_or(1);
                    let begin = if *wrong == 0 { end + 1 } else { end };
                    end = if *wrong == 1 { begin + bytes + 1 } else { begin + bytes };
                    let name = if *wrong == 2 { 0 } else { i };
                    format!(r#""t{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
                })
                .collect();
            let data = if tensors.len() > 2 { end.saturating_add_signed(change) } else { end };
            (format!("{{{}}}", listed.join(",")), data as usize)
        })
    }

    proptest! {
        #[test]
        fn agrees_with_the_reference((header, data) in nearly_right()) {
            let bytes = file_of(&header, data);
            let ours = parse(header.as_bytes(), bytes.len() as u64);
            match SafeTensors::deserialize(&bytes) {
                // The reference lets a name come twice where the ranges still happen to fit.
                Ok(_) if matches!(ours, Err(HeaderError::Twice(_))) => {}
                Ok(theirs) => {
                    let ours = ours.unwrap();
                    prop_assert_eq!(ours.len(), theirs.len());
                    for tensor in ours {
                        let view = theirs.tensor(&tensor.name).unwrap();
                        prop_assert_eq!(view.dtype().to_string(), tensor.dtype);
                        prop_assert_eq!(view.data().len() as u64, tensor.bytes);
                        if tensor.bytes > 0 {
                            let at = view.data().as_ptr().addr() - bytes.as_ptr().addr();
                            prop_assert_eq!(at as u64, tensor.at);
                        }
                    }
                }
                Err(theirs) => prop_assert!(ours.is_err(), "the reference says {}", theirs),
            }
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>, file_len: u64) {
            let _ = parse(&bytes, file_len);
        }

        #[test]
        fn damaged_headers_never_panic((header, data) in nearly_right(), at: usize, byte: u8) {
            let mut header = header.into_bytes();
            let at = at % header.len();
            header[at] = byte;
            let _ = parse(&header, PREFIX + header.len() as u64 + data as u64);
        }
    }
}
