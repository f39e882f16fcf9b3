//! Writing a table to a file: all of it appears at once, or nothing does.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ::safetensors::Dtype;
use ::safetensors::tensor::{Metadata, TensorInfo};
use warprow_layout::DType;

use crate::error::{FileError, FileErrorKind};
use crate::input::refuse_special;
use crate::new_file::NewFile;
use crate::npy;

/// A table being written. Dropped before [`finish`](Self::finish), it leaves nothing behind.
///
/// ```
/// use warprow_formats::{TableFile, TableWriter};
/// use warprow_layout::DType;
///
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("keyed.safetensors");
/// // Three rows, and whose they are, in one file. Written in any order, by several threads.
/// let writer = TableWriter::create_keyed(&path, false, "emb", 3, 1, DType::U8, false)?;
/// writer.write(1, &[20, 30])?;
/// writer.write(0, &[10])?;
/// writer.write_keys(0, &[7, 1 << 40, 9])?;
/// writer.finish()?;
/// let file = TableFile::open(&path)?;
/// let mut rows = [0; 3];
/// file.rows(&file.tables[0]).fill(0, &mut rows)?;
/// assert_eq!(rows, [10, 20, 30]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TableWriter {
    file: Whole,
    /// Where the keys begin, in the same file.
    keys_at: u64,
    at: u64,
    row_bytes: u64,
    /// Where checksums of the rows begin, and a note behind them, in a file that has these.
    checksums_at: u64,
    note_at: u64,
}

impl TableWriter {
    /// Begins `path`, `.safetensors` or `.npy`, for `rows` rows of `dim` elements called `name`. An existing file is
    /// refused, unless `force` says to replace it.
    pub fn create(path: &Path, force: bool, name: &str, rows: u64, dim: u32, dtype: DType) -> Result<Self, FileError> {
        let refuse = |kind, what: &str, remedy: &str| FileError::new(kind, path, what, remedy);
        let ends = |ending: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
        let head = if ends("npy") {
            let descr = npy::descr_of(dtype).ok_or_else(|| {
                refuse(
                    FileErrorKind::Unsupported,
                    &format!("NumPy has no {dtype}"),
                    "write to a .safetensors file instead",
                )
            })?;
            npy::head(descr, rows, dim.into())
        } else if ends("safetensors") {
            refuse_name(path, name)?;
            safetensors_head(name, rows, dim, dtype, None, None).ok_or_else(|| does_not_fit(path, dtype))?
        } else {
            return Err(refuse(
                FileErrorKind::Name,
                "its name does not tell the format",
                "end it in .safetensors or .npy",
            ));
        };
        Self::begin(path, force, &head, 0, rows, dtype.row_bytes(dim).map_or(0, u64::from), None)
    }

    /// Begins `path`, `.safetensors`, for `rows` rows of `dim` elements called `name`, and the keys of 64 bits that say whose they are, in the
    /// same order, called `name.keys`. An existing file is refused, unless `force` says to replace it.
    pub fn create_keyed(
        path: &Path,
        force: bool,
        name: &str,
        rows: u64,
        dim: u32,
        dtype: DType,
        signed: bool,
    ) -> Result<Self, FileError> {
        Self::create_tensors(path, force, name, rows, dim, dtype, signed, None)
    }

    /// Begins a file as [`create_keyed`](Self::create_keyed) does, with two more tensors behind the rows: `name.checksums`, a `u32` for each
    /// row, and `name.pass`, a text of `note` bytes.
    #[allow(clippy::too_many_arguments, reason = "the file has as many parts")]
    pub fn create_staged(
        path: &Path,
        force: bool,
        name: &str,
        rows: u64,
        dim: u32,
        dtype: DType,
        signed: bool,
        note: usize,
    ) -> Result<Self, FileError> {
        Self::create_tensors(path, force, name, rows, dim, dtype, signed, Some(note))
    }

    /// Begins a file of keys and rows, and of checksums and a note behind them if a note's length is given.
    #[allow(clippy::too_many_arguments, reason = "the file has as many parts")]
    fn create_tensors(
        path: &Path,
        force: bool,
        name: &str,
        rows: u64,
        dim: u32,
        dtype: DType,
        signed: bool,
        note: Option<usize>,
    ) -> Result<Self, FileError> {
        refuse_other_than_safetensors(path)?;
        refuse_name(path, name)?;
        let head = safetensors_head(name, rows, dim, dtype, Some(signed), note);
        let head = head.ok_or_else(|| does_not_fit(path, dtype))?;
        Self::begin(path, force, &head, rows, rows, dtype.row_bytes(dim).map_or(0, u64::from), note)
    }

    /// Begins `path`, `.npy`, for a list of `count` keys of 64 bits, each of which is a row.
    pub fn create_keys(path: &Path, force: bool, count: u64, signed: bool) -> Result<Self, FileError> {
        if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("npy")) {
            return Err(FileError::new(
                FileErrorKind::Name,
                path,
                "keys are written to a .npy file",
                "end its name in .npy",
            ));
        }
        let head = npy::head_of_list(if signed { "<i8" } else { "<u8" }, count);
        Self::begin(path, force, &head, 0, count, 8, None)
    }

    /// A file of `head`, so many keys, and rows behind them; then, with a note of so many bytes, checksums of the rows, and the note.
    fn begin(
        path: &Path,
        force: bool,
        head: &[u8],
        keys: u64,
        rows: u64,
        row_bytes: u64,
        note: Option<usize>,
    ) -> Result<Self, FileError> {
        let keys_at = head.len() as u64;
        let at = keys.checked_mul(8).and_then(|bytes| bytes.checked_add(keys_at));
        let end = at.and_then(|at| Some((at, rows.checked_mul(row_bytes)?.checked_add(at)?)));
        let end = end.and_then(|(at, end)| {
            let Some(note) = note else { return Some((at, end, end, end)) };
            let note_at = rows.checked_mul(4)?.checked_add(end)?;
            Some((at, end, note_at, note_at.checked_add(note as u64)?))
        });
        let file = Whole::begin(path, force, head, end.map(|(.., size)| size))?;
        let (at, checksums_at, note_at, _) = end.unwrap_or((keys_at, keys_at, keys_at, keys_at));
        Ok(Self { file, keys_at, at, row_bytes, checksums_at, note_at })
    }

    /// Writes the rows from row `first` on. Every row must be written once, in any order.
    pub fn write(&self, first: u64, rows: &[u8]) -> Result<(), FileError> {
        self.file.write(self.at + first * self.row_bytes, rows)
    }

    /// Writes keys of a file that has some, from that of row `first` on. Every one must be written once, in any order.
    pub fn write_keys(&self, first: u64, keys: &[u64]) -> Result<(), FileError> {
        let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        self.file.write(self.keys_at + first * 8, &bytes)
    }

    /// Writes checksums of a file that has some, from that of row `first` on. Every one must be written once, in any order.
    pub fn write_checksums(&self, first: u64, checksums: &[u32]) -> Result<(), FileError> {
        let bytes: Vec<u8> = checksums.iter().flat_map(|checksum| checksum.to_le_bytes()).collect();
        self.file.write(self.checksums_at + first * 4, &bytes)
    }

    /// Writes the note of a file that has one.
    pub fn write_note(&self, note: &[u8]) -> Result<(), FileError> {
        self.file.write(self.note_at, note)
    }

    /// Makes the file appear under its name, durably.
    pub fn finish(self) -> Result<(), FileError> {
        self.file.finish()
    }
}

/// A file that appears under its name when all of it was written.
#[derive(Debug)]
pub(crate) struct Whole {
    path: PathBuf,
    new: NewFile,
    force: bool,
}

impl Whole {
    /// Begins a file of `size` bytes with `head`; `None`: more than there can be.
    pub(crate) fn begin(path: &Path, force: bool, head: &[u8], size: Option<u64>) -> Result<Self, FileError> {
        let refuse = |kind, what: &str, remedy: &str| FileError::new(kind, path, what, remedy);
        let shown = path;
        let path = &followed(path);
        if path.exists() {
            refuse_special(path)?;
            if !force {
                let what = "exists already, and was left as it is";
                return Err(refuse(FileErrorKind::Exists, what, "choose another name, or add --force to replace it"));
            }
        }
        let cannot = |error: io::Error| FileError::io(shown, "cannot be written", error);
        let size =
            size.ok_or_else(|| refuse(FileErrorKind::Unsupported, "the table passes 2⁶⁴ bytes", "write it in parts"))?;
        let new = NewFile::create(path).map_err(cannot)?;
        new.file().set_len(size).map_err(cannot)?;
        new.file().write_all_at(head, 0).map_err(cannot)?;
        Ok(Self { path: path.to_owned(), new, force })
    }

    /// Writes `bytes` at byte `at`.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.new.file().write_all_at(bytes, at).map_err(|error| self.failed(error))
    }

    /// Makes the file appear under its name, durably.
    pub(crate) fn finish(self) -> Result<(), FileError> {
        self.new.file().sync_all().map_err(|error| self.failed(error))?;
        let Self { path, new, force } = self;
        new.persist(force).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                let what = "appeared meanwhile, and was left as it is";
                FileError::new(FileErrorKind::Exists, &path, what, "choose another name, or add --force to replace it")
            }
            _ => FileError::io(&path, "cannot be written", error),
        })?;
        let synced = File::open(directory(&path)).and_then(|directory| directory.sync_all());
        synced.map_err(|error| FileError::io(&path, "cannot be made durable", error))
    }

    fn failed(&self, error: io::Error) -> FileError {
        let too_large = error.kind() == io::ErrorKind::FileTooLarge;
        let error = FileError::io(&self.path, "cannot be written", error);
        let remedy = if too_large { &*error.remedy } else { "make room first" };
        let remedy = format!("nothing was left behind; {remedy}");
        error.remedy(remedy)
    }
}

/// Where `path` leads, through symbolic links: it is their target that is written. A circle is followed until that fails.
pub fn followed(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..40 {
        match path.read_link() {
            Ok(target) => path = directory(&path).join(target),
            Err(_) => break,
        }
    }
    path
}

/// The directory that `path` lies in.
pub fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn refuse_other_than_safetensors(path: &Path) -> Result<(), FileError> {
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors")) {
        return Ok(());
    }
    let what = "one file of rows and keys is a safetensors file";
    let remedy = "end its name in .safetensors";
    Err(FileError::new(FileErrorKind::Name, path, what, remedy))
}

pub(crate) fn does_not_fit(path: &Path, dtype: DType) -> FileError {
    let what = format!("a table of {dtype} does not fit into a safetensors file");
    FileError::new(FileErrorKind::Unsupported, path, what, "write it in parts")
}

/// The head of a safetensors file of a table: everything before its data. With `signed` the table's keys come before its rows; with `note`
/// checksums of the rows and a note of so many bytes come behind them.
fn safetensors_head(
    name: &str,
    rows: u64,
    dim: u32,
    dtype: DType,
    signed: Option<bool>,
    note: Option<usize>,
) -> Option<Vec<u8>> {
    let count = usize::try_from(rows).ok()?;
    let keys = signed.map(|signed| keys_of(name, rows, signed));
    let behind = note.map(|note| {
        let checksums = (format!("{name}.checksums"), Dtype::U32, vec![count]);
        [Some(checksums), Some((format!("{name}.pass"), Dtype::U8, vec![note]))]
    });
    let tensors = keys.into_iter().chain([rows_of(name, rows, dim, dtype)]).chain(behind.into_iter().flatten());
    head(tensors.collect::<Option<Vec<_>>>()?).map(|(text, _)| text)
}

/// A tensor that a safetensors file is to have: its name, type and shape.
pub(crate) type Tensor = (String, Dtype, Vec<usize>);

/// The tensor of a table's keys.
pub(crate) fn keys_of(name: &str, rows: u64, signed: bool) -> Option<Tensor> {
    let dtype = if signed { Dtype::I64 } else { Dtype::U64 };
    Some((format!("{name}.keys"), dtype, vec![usize::try_from(rows).ok()?]))
}

/// Refuses the one name that no tensor of a safetensors file can have.
pub(crate) fn refuse_name(path: &Path, name: &str) -> Result<(), FileError> {
    match name == "__metadata__" {
        false => Ok(()),
        true => {
            let what = "a safetensors file cannot have a tensor called \"__metadata__\"";
            Err(FileError::new(FileErrorKind::Name, path, what, "write this table to a .npy file"))
        }
    }
}

/// The tensor of a table's rows.
pub(crate) fn rows_of(name: &str, rows: u64, dim: u32, dtype: DType) -> Option<Tensor> {
    let dtype = match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::I8 => Dtype::I8,
        DType::U8 => Dtype::U8,
        DType::F8E4M3 => Dtype::F8_E4M3,
        DType::F8E5M2 => Dtype::F8_E5M2,
        // Neither has a type for rows with a scale of their own.
        DType::Q8 | DType::Q4 | DType::Mxfp8 | DType::F8E4M3S | DType::Nvfp4 => return None,
    };
    Some((name.to_owned(), dtype, vec![usize::try_from(rows).ok()?, dim as usize]))
}

/// The head of a safetensors file of these tensors, one behind the other; and where in the file each begins, and the last ends.
pub(crate) fn head(tensors: Vec<Tensor>) -> Option<(Vec<u8>, Vec<u64>)> {
    let mut at = 0usize;
    let mut ends = vec![0u64];
    let mut placed = Vec::with_capacity(tensors.len());
    for (name, dtype, shape) in tensors {
        let bytes = shape.iter().try_fold(dtype.bitsize() / 8, |bytes, &n| bytes.checked_mul(n))?;
        let end = at.checked_add(bytes)?;
        placed.push((name, TensorInfo { dtype, shape, data_offsets: (at, end) }));
        (at, _) = (end, ends.push(end as u64));
    }
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]).into_iter().collect();
    let metadata = Metadata::new(Some(metadata), placed).ok()?;
    let mut text = serde_json::to_vec(&metadata).ok()?;
    // As the reference does: the data begin at a multiple of 8.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut head = (text.len() as u64).to_le_bytes().to_vec();
    head.extend(text);
    let begin = head.len() as u64;
    Some((head, ends.into_iter().map(|end| end.saturating_add(begin)).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableFile;
    use warprow_layout::RowSource;

    #[test]
    fn what_was_written_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        for (name, dtype) in [("t.npy", DType::F16), ("t.safetensors", DType::BF16), ("u.safetensors", DType::F32)] {
            let path = dir.path().join(name);
            let writer = TableWriter::create(&path, false, "emb \"x\"", 5, 3, dtype).unwrap();
            let row_bytes = 3 * dtype.size() as usize;
            let data: Vec<u8> = (0..5 * row_bytes as u8).collect();
            for row in [4, 0, 2, 1, 3] {
                writer.write(row, &data[row as usize * row_bytes..][..row_bytes]).unwrap();
            }
            assert!(!path.exists(), "it appears only when it is whole");
            writer.finish().unwrap();

            let file = TableFile::open(&path).unwrap();
            let [table] = &file.tables[..] else { panic!("{file:?}") };
            assert_eq!((table.rows, table.dim, table.dtype), (5, 3, dtype));
            assert_eq!(table.name, if name.ends_with("npy") { "t" } else { "emb \"x\"" });
            let mut rows = vec![0; data.len()];
            file.rows(table).read(0, row_bytes, &mut rows).unwrap();
            assert_eq!(rows, data);
            if name.ends_with("safetensors") {
                let bytes = std::fs::read(&path).unwrap();
                let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
                assert_eq!(theirs.tensor("emb \"x\"").unwrap().data(), data);
            }
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "no temporary file is left");
    }

    #[test]
    fn rows_and_keys_in_one_file_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        for (signed, rows) in [(true, 5u64), (false, 5), (true, 0)] {
            let path = dir.path().join("delta.safetensors");
            let writer = TableWriter::create_keyed(&path, true, "emb", rows, 3, DType::F16, signed).unwrap();
            let keys: Vec<u64> = (0..rows).map(|row| u64::MAX - row).collect();
            let data: Vec<u8> = (0..rows as u8 * 6).collect();
            for row in (0..rows as usize).rev() {
                writer.write_keys(row as u64, &keys[row..row + 1]).unwrap();
                writer.write(row as u64, &data[row * 6..][..6]).unwrap();
            }
            writer.finish().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let whose = theirs.tensor("emb.keys").unwrap();
            let content = theirs.tensor("emb").unwrap();
            assert_eq!(
                (whose.dtype(), whose.shape()),
                (if signed { Dtype::I64 } else { Dtype::U64 }, &[rows as usize][..])
            );
            assert_eq!(whose.data(), keys.iter().flat_map(|key| key.to_le_bytes()).collect::<Vec<_>>());
            assert_eq!((content.shape(), content.data()), (&[rows as usize, 3][..], &data[..]));
        }
        let npy = TableWriter::create_keyed(&dir.path().join("t.npy"), false, "t", 1, 1, DType::F32, true);
        assert_eq!(npy.unwrap_err().kind, FileErrorKind::Name);
    }

    #[test]
    fn what_exists_stays_unless_forced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.npy");
        std::fs::write(&path, "precious").unwrap();
        let create = |force| TableWriter::create(&path, force, "t", 1, 1, DType::U8);
        assert_eq!(create(false).unwrap_err().kind, FileErrorKind::Exists);
        drop(create(true).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious", "dropped before it was finished");
        let writer = create(true).unwrap();
        writer.write(0, &[7]).unwrap();
        writer.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap().last(), Some(&7));

        let link = dir.path().join("link.npy");
        std::os::unix::fs::symlink("t.npy", &link).unwrap();
        let writer = TableWriter::create(&link, true, "t", 1, 1, DType::U8).unwrap();
        writer.write(0, &[9]).unwrap();
        writer.finish().unwrap();
        assert!(link.is_symlink(), "what it leads to is replaced");
        assert_eq!(std::fs::read(&path).unwrap().last(), Some(&9));
        std::fs::remove_file(&path).unwrap();
        TableWriter::create(&link, false, "t", 1, 1, DType::U8).unwrap().finish().unwrap();
        assert!(link.is_symlink() && path.is_file(), "it led nowhere");
        std::fs::remove_file(&link).unwrap();

        let late = dir.path().join("late.npy");
        let writer = TableWriter::create(&late, false, "t", 1, 1, DType::U8).unwrap();
        std::fs::write(&late, "precious").unwrap();
        assert_eq!(writer.finish().unwrap_err().kind, FileErrorKind::Exists);
        assert_eq!(std::fs::read_to_string(&late).unwrap(), "precious");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn formats_that_cannot_hold_it_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let create =
            |name: &str, dtype| TableWriter::create(&dir.path().join(name), false, "t", 1, 1, dtype).unwrap_err();
        assert!(create("t.npy", DType::BF16).remedy.contains(".safetensors"));
        assert_eq!(create("t.csv", DType::F32).kind, FileErrorKind::Name);
        assert_eq!(create("no/such/dir/t.npy", DType::F32).kind, FileErrorKind::Io);
    }
}
