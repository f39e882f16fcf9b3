//! Writing several tables to one safetensors file: all of it appears at once, or nothing does.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::path::Path;

use warprow_layout::DType;

use crate::error::{FileError, FileErrorKind};
use crate::write::{Tensor, Whole, does_not_fit, head, keys_of, refuse_name, rows_of};

/// A table that a file is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTable {
    /// The name of the table.
    pub name: String,
    /// Rows of the table.
    pub rows: u64,
    /// Elements in a row.
    pub dim: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// Whether it has keys of 64 bits, in a list called `NAME.keys`, and whether these are `i64`.
    pub keys: Option<bool>,
}

/// Tables being written to one file. Dropped before [`finish`](Self::finish), it leaves nothing behind.
#[derive(Debug)]
pub struct TablesWriter {
    file: Whole,
    /// For each table: where the rows begin, bytes of a row, where the keys begin.
    places: Vec<(u64, u64, u64)>,
}

impl TablesWriter {
    /// Begins `path`, `.safetensors`, for `tables`, each a tensor of its name. An existing file is refused, unless `force` says to replace it.
    pub fn create(path: &Path, force: bool, tables: &[NewTable]) -> Result<Self, FileError> {
        let refuse = |kind, what: String, remedy: &str| Err(FileError::new(kind, path, what, remedy));
        if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("safetensors")) {
            let what = "several tables are written to one safetensors file".to_owned();
            return refuse(FileErrorKind::Name, what, "end its name in .safetensors");
        }
        // Of each tensor: whose it is, and whether it is that table's keys.
        let mut tensors: Vec<(usize, bool, Tensor)> = Vec::new();
        for (at, table) in tables.iter().enumerate() {
            refuse_name(path, &table.name)?;
            let rows = rows_of(&table.name, table.rows, table.dim, table.dtype);
            tensors.push((at, false, rows.ok_or_else(|| does_not_fit(path, table.dtype))?));
            if let Some(signed) = table.keys {
                let keys = keys_of(&table.name, table.rows, signed);
                tensors.push((at, true, keys.ok_or_else(|| does_not_fit(path, table.dtype))?));
            }
        }
        let mut seen = HashSet::new();
        if let Some((.., (name, ..))) = tensors.iter().find(|(.., (name, ..))| !seen.insert(name.clone())) {
            let what = format!("two tensors of it would be called {name:?}");
            return refuse(FileErrorKind::Unclear, what, "write these tables to files of their own");
        }
        // As the reference does: the widest elements first, so that each begins where its type wants to.
        tensors.sort_by_key(|(.., (_, dtype, _))| Reverse(dtype.bitsize()));
        let owners: Vec<(usize, bool)> = tensors.iter().map(|&(at, is_keys, _)| (at, is_keys)).collect();
        let unwritable =
            || FileError::new(FileErrorKind::Unsupported, path, "the tables pass 2⁶⁴ bytes", "write them one by one");
        let (head, ends) = head(tensors.into_iter().map(|(.., tensor)| tensor).collect()).ok_or_else(unwritable)?;
        let row_bytes = |table: &NewTable| u64::from(table.dtype.row_bytes(table.dim).unwrap_or(0));
        let mut places: Vec<(u64, u64, u64)> = tables.iter().map(|table| (0, row_bytes(table), 0)).collect();
        for (&(at, is_keys), &begin) in owners.iter().zip(&ends) {
            if let Some(place) = places.get_mut(at) {
                *(if is_keys { &mut place.2 } else { &mut place.0 }) = begin;
            }
        }
        Ok(Self { file: Whole::begin(path, force, &head, ends.last().copied())?, places })
    }

    /// Writes the rows from row `first` on of a table, by its number. Every row must be written once, in any order.
    pub fn write(&self, table: usize, first: u64, rows: &[u8]) -> Result<(), FileError> {
        let Some(&(at, row_bytes, _)) = self.places.get(table) else { return Ok(()) };
        self.file.write(at + first * row_bytes, rows)
    }

    /// Writes keys of a table that has some, by its number, from that of row `first` on. Every one must be written once, in any order.
    pub fn write_keys(&self, table: usize, first: u64, keys: &[u64]) -> Result<(), FileError> {
        let Some(&(.., at)) = self.places.get(table) else { return Ok(()) };
        let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        self.file.write(at + first * 8, &bytes)
    }

    /// Makes the file appear under its name, durably.
    pub fn finish(self) -> Result<(), FileError> {
        self.file.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::safetensors::{Dtype, SafeTensors};

    fn table(name: &str, rows: u64, dim: u32, dtype: DType, keys: Option<bool>) -> NewTable {
        NewTable { name: name.to_owned(), rows, dim, dtype, keys }
    }

    #[test]
    fn tables_and_keys_of_every_type_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("all.safetensors");
        let tables = [
            table("bytes", 5, 3, DType::U8, None),
            table("wide", 3, 2, DType::F32, Some(true)),
            table("half \"x\"", 4, 3, DType::BF16, Some(false)),
            table("eight", 2, 5, DType::F8E4M3, None),
        ];
        let writer = TablesWriter::create(&path, false, &tables).unwrap();
        let content = |table: usize, row: u64, bytes: usize| vec![(table * 50) as u8 + row as u8; bytes];
        let bytes = |table: &NewTable| table.dtype.row_bytes(table.dim).unwrap() as usize;
        for (at, it) in tables.iter().enumerate() {
            for row in (0..it.rows).rev() {
                writer.write(at, row, &content(at, row, bytes(it))).unwrap();
                it.keys.into_iter().for_each(|_| writer.write_keys(at, row, &[u64::MAX - row]).unwrap());
            }
        }
        assert!(!path.exists(), "it appears only when it is whole");
        writer.finish().unwrap();
        let read = std::fs::read(&path).unwrap();
        let theirs = SafeTensors::deserialize(&read).unwrap();
        assert_eq!(theirs.len(), 6);
        for (at, it) in tables.iter().enumerate() {
            let tensor = theirs.tensor(&it.name).unwrap();
            assert_eq!(tensor.shape(), [it.rows as usize, it.dim as usize]);
            assert_eq!(tensor.data(), (0..it.rows).flat_map(|row| content(at, row, bytes(it))).collect::<Vec<_>>());
            let begin = tensor.data().as_ptr() as usize - read.as_ptr() as usize;
            assert!(begin.is_multiple_of(it.dtype.size().max(1) as usize), "{} begins at {begin}", it.name);
            if let Some(signed) = it.keys {
                let keys = theirs.tensor(&format!("{}.keys", it.name)).unwrap();
                assert_eq!(keys.dtype(), if signed { Dtype::I64 } else { Dtype::U64 });
                assert_eq!(
                    keys.data(),
                    (0..it.rows).flat_map(|row| (u64::MAX - row).to_le_bytes()).collect::<Vec<_>>()
                );
            }
        }
    }

    #[test]
    fn names_that_meet_and_other_formats_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let create = |name: &str, tables: &[NewTable]| TablesWriter::create(&dir.path().join(name), false, tables);
        let one = table("t", 1, 1, DType::F32, Some(true));
        assert_eq!(create("t.npy", std::slice::from_ref(&one)).unwrap_err().kind, FileErrorKind::Name);
        let meets = [one, table("t.keys", 1, 1, DType::F32, None)];
        assert_eq!(create("t.safetensors", &meets).unwrap_err().kind, FileErrorKind::Unclear);
        let scaled = create("t.safetensors", &[table("t", 1, 8, DType::Q8, None)]);
        assert_eq!(scaled.unwrap_err().kind, FileErrorKind::Unsupported);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
