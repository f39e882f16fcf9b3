//! Tables in files: safetensors and `.npy`, read row by row, never whole.

use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use warprow_layout::{DType, RowSource, Table, VolumeError};
use warprow_workload::{NpyHeader, NpyHeaderError};

use crate::failure::Failure;

pub mod npy;
pub mod safetensors;
mod write;

pub use write::{TableWriter, directory};

/// A file with tables in it.
#[derive(Debug)]
pub struct TableFile {
    /// Where it is.
    pub path: PathBuf,
    /// What can be loaded, by name.
    pub tables: Vec<FileTable>,
    /// What cannot, by name, and why not.
    pub skipped: Vec<(String, String)>,
    file: File,
}

/// A table in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTable {
    /// The tensor's name; the file's without its ending for `.npy`.
    pub name: String,
    /// Rows; at least one.
    pub rows: u64,
    /// Elements in a row; at least one.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// Offset of row 0 in the file.
    at: u64,
}

impl FileTable {
    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.dim as usize * self.dtype.size() as usize
    }
}

impl TableFile {
    /// Opens the file and reads its header.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let subject = path.display().to_string();
        let cannot = |error: io::Error| Failure::io(&subject, "cannot be opened", &error);
        refuse_special(path)?;
        let file = File::open(path).map_err(cannot)?;
        let mut magic = [0; 8];
        let have = file.read_at(&mut magic, 0).map_err(cannot)?;
        let magic = magic.get(..have).unwrap_or_default();
        let ends = |ending: &str| path.extension().is_some_and(|it| it.eq_ignore_ascii_case(ending));
        let (tables, skipped) = if magic.starts_with(b"\x93NUMPY") || ends("npy") {
            (vec![npy_table(path, &file)?], Vec::new())
        } else if magic.starts_with(b"PK") || ends("npz") || matches!(magic, [0x80, 2..=5, ..] if !ends("safetensors"))
        {
            return Err(Failure::input(subject, "is an archive or a pickle, which are not read")
                .remedy("save it as .safetensors (safetensors.torch.save_file) or each array as .npy (numpy.save)"));
        } else {
            let tensors = safetensors::read(&file).map_err(|error| {
                let remedy = match error {
                    safetensors::HeaderError::CutOff { .. } | safetensors::HeaderError::HeaderCutOff { .. } => {
                        "fetch or write the file again"
                    }
                    _ => "give a .safetensors or .npy file",
                };
                Failure::input(&subject, error.to_string()).remedy(remedy)
            })?;
            sort(tensors)
        };
        Ok(Self { path: path.to_owned(), tables, skipped, file })
    }

    /// The rows of `table`, one of this file's.
    pub fn rows<'a>(&'a self, table: &FileTable) -> FileRows<'a> {
        FileRows { file: &self.file, at: table.at, rows: table.rows, row_bytes: table.row_bytes() }
    }
}

/// The rows of a table in a file, read from where they stand.
#[derive(Debug, Clone, Copy)]
pub struct FileRows<'a> {
    file: &'a File,
    at: u64,
    rows: u64,
    row_bytes: usize,
}

impl RowSource for FileRows<'_> {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(rows, self.at + first * row_bytes as u64).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::other("the file became shorter while it was read"),
            _ => error,
        })
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        let bytes = |rows: u64, row_bytes: u64| rows.saturating_mul(row_bytes);
        let expected = bytes(table.rows, u64::from(table.row_bytes()));
        let given = bytes(self.rows, self.row_bytes as u64);
        if expected != given || table.rows != self.rows {
            return Err(VolumeError::Length { what: "the tensor", expected, given });
        }
        Ok(())
    }
}

/// A pipe or a device may have no end, and opening it may wait. One that is not there is left to whoever opens it.
pub fn refuse_special(path: &Path) -> Result<(), Failure> {
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => Err(Failure::input(path.display().to_string(), "is no regular file")
            .remedy("give a file; what comes through a pipe has to be written to one first")),
        _ => Ok(()),
    }
}

/// Tensors that are tables, and the others with the reason.
fn sort(tensors: Vec<safetensors::Tensor>) -> (Vec<FileTable>, Vec<(String, String)>) {
    let (mut tables, mut skipped) = (Vec::new(), Vec::new());
    for tensor in tensors {
        match table_of(&tensor) {
            Ok(table) => tables.push(table),
            Err(reason) => skipped.push((tensor.name, reason)),
        }
    }
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    skipped.sort();
    (tables, skipped)
}

fn table_of(tensor: &safetensors::Tensor) -> Result<FileTable, String> {
    let dtype = match &*tensor.dtype {
        "F32" => DType::F32,
        "F16" => DType::F16,
        "BF16" => DType::BF16,
        "I8" => DType::I8,
        "U8" => DType::U8,
        other if other.starts_with("F8") => {
            return Err(format!("type {other}: convert it to F16; bytes of it are not taken for integers"));
        }
        other => return Err(format!("type {other}: tables are of F32, F16, BF16, I8 or U8")),
    };
    let &[rows, dim] = &*tensor.shape else { return Err(format!("rank {}", tensor.shape.len())) };
    let (rows, dim) = shape_of_table(rows, dim, dtype)?;
    Ok(FileTable { name: tensor.name.clone(), rows, dim, dtype, at: tensor.at })
}

fn shape_of_table(rows: u64, dim: u64, dtype: DType) -> Result<(u64, u32), String> {
    if rows == 0 || dim == 0 {
        return Err(format!("shape [{rows}, {dim}] is empty"));
    }
    let dim = u32::try_from(dim).ok().filter(|dim| dim.checked_mul(dtype.size()).is_some());
    Ok((rows, dim.ok_or("its rows pass 4 GiB")?))
}

fn npy_table(path: &Path, mut file: &File) -> Result<FileTable, Failure> {
    let subject = path.display().to_string();
    let refuse = |what: String| Failure::input(&subject, what);
    let again = "write it again, with numpy.save";
    let header = NpyHeader::read(&mut BufReader::with_capacity(4096, &mut file)).map_err(|error| match error {
        NpyHeaderError::Io(error) => Failure::io(&subject, "cannot be read", &error),
        damaged => refuse(damaged.to_string()).remedy(again),
    })?;
    let Some(dtype) = npy::dtype_of(&header.descr) else {
        let remedy = "convert it: array.astype(numpy.float32)";
        return Err(refuse(format!("its elements are {}; rows are <f4, <f2, |i1 or |u1", header.descr)).remedy(remedy));
    };
    let &[rows, dim] = &*header.shape else {
        return Err(refuse(format!("its array has the shape {:?}; a table is [rows, dim]", header.shape))
            .remedy("reshape it to two dimensions"));
    };
    if !header.is_c_order() {
        return Err(refuse("its array is in Fortran order".into()).remedy("save numpy.ascontiguousarray(array)"));
    }
    let (rows, dim) = shape_of_table(rows, dim, dtype).map_err(refuse)?;
    let found = file.metadata().map_err(|error| Failure::io(&subject, "cannot be read", &error))?.len();
    let found = found.saturating_sub(header.data_at);
    let promised = header.elements().saturating_mul(dtype.size().into());
    if promised != found.into() {
        let how = if promised > found.into() { "it is cut off or damaged" } else { "more follows than belongs to it" };
        return Err(
            refuse(format!("its header promises {promised} bytes of data, {found} follow: {how}")).remedy(again)
        );
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(FileTable { name, rows, dim, dtype, at: header.data_at })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn npy_bytes(descr: &str, rows: u64, dim: u64, data: &[u8]) -> Vec<u8> {
        let mut bytes = npy::head(descr, rows, dim);
        bytes.extend(data);
        bytes
    }

    #[test]
    fn rows_come_from_where_they_stand() {
        let dir = tempfile::tempdir().unwrap();
        let data: Vec<u8> = (0..24).collect();
        let path = write(dir.path(), "user.table.npy", &npy_bytes("<f2", 4, 3, &data));
        let file = TableFile::open(&path).unwrap();
        let [table] = &file.tables[..] else { panic!() };
        assert_eq!((&*table.name, table.rows, table.dim, table.dtype), ("user.table", 4, 3, DType::F16));
        let mut rows = [0; 12];
        file.rows(table).read(2, 6, &mut rows).unwrap();
        assert_eq!(rows, data[12..]);

        File::options().write(true).open(&path).unwrap().set_len(64 + 20).unwrap();
        let error = file.rows(table).read(2, 6, &mut rows).unwrap_err();
        assert!(error.to_string().contains("became shorter"), "{error}");
    }

    #[test]
    fn tensors_that_are_no_tables_are_skipped_with_the_reason() {
        let tensor = |name: &str, dtype: &str, shape: &[u64]| safetensors::Tensor {
            name: name.into(),
            dtype: dtype.into(),
            shape: shape.to_vec(),
            at: 8,
            bytes: 0,
        };
        let (tables, skipped) = sort(vec![
            tensor("z", "BF16", &[7, 2]),
            tensor("bias", "F32", &[7]),
            tensor("fp8", "F8_E4M3", &[7, 2]),
            tensor("ids", "I64", &[7, 2]),
            tensor("none", "F32", &[0, 2]),
            tensor("wide", "F32", &[1, 1 << 31]),
            tensor("a", "U8", &[1, 1]),
        ]);
        assert_eq!(tables.iter().map(|table| &*table.name).collect::<Vec<_>>(), ["a", "z"]);
        let reason = |name| &*skipped.iter().find(|(it, _)| it == name).unwrap().1;
        assert_eq!(skipped.len(), 5);
        assert_eq!(reason("bias"), "rank 1");
        assert!(reason("fp8").contains("convert it to F16"));
        assert!(reason("ids").contains("type I64"));
        assert!(reason("none").contains("empty"));
        assert!(reason("wide").contains("4 GiB"));
    }

    #[test]
    fn what_cannot_be_a_table_is_refused_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let mut three = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        three.extend(format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }").as_bytes());
        three.extend([0; 4]);
        let fortran: Vec<u8> = npy_bytes("<f4", 2, 2, &[0; 16]);
        let fortran = String::from_utf8_lossy(&fortran[10..]).replace("False,", "True, ");
        let mut fortran_bytes = npy::head("<f4", 2, 2)[..10].to_vec();
        fortran_bytes.extend(fortran.as_bytes());
        for (name, bytes, says) in [
            ("wrong.npy", &b"not numpy"[..], "damaged .npy header"),
            ("short.npy", &npy_bytes("<f4", 2, 2, &[0; 15]), "promises 16 bytes of data, 15 follow"),
            ("long.npy", &npy_bytes("<f4", 2, 2, &[0; 17]), "promises 16 bytes of data, 17 follow: more follows"),
            ("vast.npy", &npy_bytes("<f4", u64::MAX, u64::from(u32::MAX) >> 2, &[0; 16]), "cut off"),
            ("wide.npy", &npy_bytes("<f4", 1, u64::MAX, &[0; 16]), "4 GiB"),
            ("double.npy", &npy_bytes("<f8", 2, 1, &[0; 16]), "its elements are <f8"),
            ("flat.npy", &three, "a table is [rows, dim]"),
            ("fortran.npy", &fortran_bytes, "Fortran order"),
            ("model.pt", b"PK\x03\x04....", "archive"),
            ("a.npz", b"", "archive"),
            ("pickle.pkl", b"\x80\x04......", "pickle"),
            ("empty.safetensors", b"", "0 bytes"),
        ] {
            let failure = TableFile::open(&write(dir.path(), name, bytes)).unwrap_err();
            assert!(failure.message.contains(says), "{name}: {failure}");
            assert_eq!(failure.class, crate::failure::Class::Input);
        }
        assert!(TableFile::open(dir.path()).unwrap_err().message.contains("no regular file"));
        assert!(TableFile::open(&dir.path().join("absent")).unwrap_err().message.contains("cannot be opened"));
    }
}
