//! A file of rows and keys, read where they stand.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use warprow_formats::safetensors::{Tensor, open_tensors};
use warprow_formats::{FileError, FileErrorKind};
use warprow_layout::DType;

use super::origin::StagedOrigin;
use crate::{Keyset, PassError};

/// Elements that are read at once.
const BLOCK: usize = 1 << 16;
/// Bytes of a note, at most: what it has is short, and a file says how long it is.
const NOTE: u64 = 1 << 20;

/// Rows, their keys, and what a staged file has beside them.
#[derive(Debug)]
pub(crate) struct RowsFile {
    path: PathBuf,
    file: File,
    table: String,
    rows: Tensor,
    keys: Tensor,
    checksums: Option<Tensor>,
    note: Option<Tensor>,
}

impl RowsFile {
    /// Opens `path`, which must have the tensors `table` and `table.keys`.
    pub(crate) fn open(path: &Path, table: &str) -> Result<Self, PassError> {
        let (file, tensors) = open_tensors(path)?;
        let find = |name: &str| tensors.iter().find(|tensor| tensor.name == name).cloned();
        let need = |name: &str| {
            find(name).ok_or_else(|| {
                let has = tensors.iter().map(|tensor| &*tensor.name).collect::<Vec<_>>().join(", ");
                let what = format!("it has no tensor {name:?}; its tensors: {has}");
                FileError::new(
                    FileErrorKind::Missing,
                    path,
                    what,
                    "give the rows of this table as `pass begin` names them",
                )
            })
        };
        let keys_name = format!("{table}.keys");
        let rows = need(table)?;
        let keys = need(&keys_name)?;
        let checksums = find(&format!("{table}.checksums"));
        let note = find(&format!("{table}.pass"));
        Ok(Self { path: path.to_owned(), file, table: table.to_owned(), rows, keys, checksums, note })
    }

    pub(crate) fn shown(&self) -> String {
        self.path.display().to_string()
    }

    /// How many rows it has.
    pub(crate) fn len(&self) -> u64 {
        self.rows.shape.first().copied().unwrap_or(0)
    }

    /// Refuses rows of another width or type than the table's, and keys that are not as many.
    pub(crate) fn check(&self, dim: u32, dtype: DType) -> Result<(), PassError> {
        let disagree = |what: String, remedy: &str| FileError::new(FileErrorKind::Disagree, &self.path, what, remedy);
        let name = &self.table;
        let shape = &self.rows.shape;
        if tensor_type(dtype).is_none_or(|text| text != self.rows.dtype) {
            let what = format!("its rows are {}, those of table {name:?} {dtype}", self.rows.dtype);
            return Err(disagree(what, "write the rows in the table's type, as they were staged").into());
        }
        if !matches!(shape[..], [_, found] if found == u64::from(dim)) {
            let what = format!("its rows have the shape {shape:?}, those of table {name:?} have {dim} elements each");
            return Err(disagree(what, "write an array of two dimensions, each row whole, as it was staged").into());
        }
        if !matches!(&*self.keys.dtype, "I64" | "U64") || self.keys.shape.len() != 1 {
            let what = format!("its keys are {} of the shape {:?}", self.keys.dtype, self.keys.shape);
            return Err(disagree(what, "write them as they were staged: a list of int64 or uint64").into());
        }
        let keys = self.keys.shape.first().copied().unwrap_or(0);
        if keys != self.len() {
            let what = format!("it has {keys} keys for {} rows", self.len());
            return Err(disagree(what, "write the key of each row, in the order of the rows").into());
        }
        Ok(())
    }

    /// The keys, in the order of the rows.
    pub(crate) fn keys(&self) -> Result<Keyset, PassError> {
        let mut keys = Vec::new();
        self.each(&self.keys, 8, |bytes| {
            keys.extend(bytes.as_chunks().0.iter().map(|&key| u64::from_le_bytes(key)));
        })?;
        Ok(match &*self.keys.dtype {
            "I64" => Keyset::signed(keys.into_iter().map(|key| key as i64).collect()),
            _ => Keyset::new(keys),
        })
    }

    /// Refuses checksums that are not one for each row, of the type that they were staged with. They are not read.
    pub(crate) fn check_checksums(&self) -> Result<(), PassError> {
        match &self.checksums {
            Some(tensor) if tensor.dtype != "U32" || tensor.shape != [self.len()] => {
                let what = format!(
                    "it has {} of the shape {:?} as checksums of {} staged rows",
                    tensor.dtype,
                    tensor.shape,
                    self.len()
                );
                let remedy = "write that tensor as it was staged, or leave it out and name the staged file as well";
                Err(FileError::new(FileErrorKind::Disagree, &self.path, what, remedy).into())
            }
            _ => Ok(()),
        }
    }

    /// Checksums of the rows as they were staged; `None`: it has none.
    pub(crate) fn checksums(&self) -> Result<Option<Vec<u32>>, PassError> {
        self.check_checksums()?;
        let Some(tensor) = &self.checksums else { return Ok(None) };
        let mut checksums = Vec::new();
        self.each(tensor, 4, |bytes| {
            checksums.extend(bytes.as_chunks().0.iter().map(|&bytes| u32::from_le_bytes(bytes)));
        })?;
        Ok(Some(checksums))
    }

    /// Where its rows come from; `None`: it does not say.
    pub(crate) fn origin(&self) -> Result<Option<StagedOrigin>, PassError> {
        let Some(tensor) = &self.note else { return Ok(None) };
        let mut bytes = Vec::new();
        if tensor.bytes <= NOTE {
            bytes.resize(tensor.bytes as usize, 0);
            self.read(tensor.at, &mut bytes)?;
        }
        let remedy = "write that tensor as it was staged, or name the staged file as well";
        StagedOrigin::decode(&bytes)
            .map(Some)
            .map_err(|what| FileError::new(FileErrorKind::Damaged, &self.path, what, remedy).into())
    }

    /// Fills `out` with whole rows, of `row_bytes` bytes each, from row `first` on.
    pub(crate) fn read_rows(&self, first: u64, row_bytes: usize, out: &mut [u8]) -> Result<(), PassError> {
        self.read(self.rows.at + first * row_bytes as u64, out)
    }

    /// The error that the file is not what it was when it was opened.
    pub(crate) fn changed(&self) -> PassError {
        let what = "was changed while it was read";
        FileError::new(FileErrorKind::Changed, &self.path, what, "let nobody write to it meanwhile, and commit again")
            .into()
    }

    fn each(&self, tensor: &Tensor, width: usize, mut take: impl FnMut(&[u8])) -> Result<(), PassError> {
        let mut buffer = vec![0; (BLOCK * width).min(tensor.bytes as usize)];
        for at in (0..tensor.bytes).step_by(BLOCK * width) {
            let bytes = buffer.len().min((tensor.bytes - at) as usize);
            let buffer = buffer.get_mut(..bytes).unwrap_or_default();
            self.read(tensor.at + at, buffer)?;
            take(buffer);
        }
        Ok(())
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), PassError> {
        self.file.read_exact_at(out, at).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.changed(),
            _ => FileError::io(&self.path, "cannot be read", error).at(at).into(),
        })
    }
}

/// What safetensors call the type.
fn tensor_type(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::F32 => "F32",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I8 => "I8",
        DType::U8 => "U8",
        DType::F8E4M3 => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        DType::Q8 | DType::Q4 | DType::Mxfp8 | DType::F8E4M3S | DType::Nvfp4 => return None,
    })
}
