//! HugeCTR's file lists: how many files, then a path a line.

use std::path::{Path, PathBuf};

use warprow_formats::{FileError, FileErrorKind};

use crate::stream::Stream;

/// The longest list that is read.
const MAX_LIST: u64 = 64 << 20;

/// The files that `path` lists, if its first line is a number and a path follows: numbers alone are a trace of ids.
pub(crate) fn of(path: &Path) -> Result<Option<Vec<PathBuf>>, FileError> {
    let mut stream = Stream::open(path)?;
    if stream.len > MAX_LIST {
        return Ok(None);
    }
    let len = stream.len as usize;
    let Ok(text) = std::str::from_utf8(stream.take(len)?) else { return Ok(None) };
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let Some(count) = lines.next().and_then(|line| line.parse::<u64>().ok()) else { return Ok(None) };
    let names: Vec<&str> = lines.collect();
    if names.first().is_none_or(|name| name.parse::<i128>().is_ok()) {
        return Ok(None);
    }
    if names.len() as u64 != count {
        let what = format!("its first line says {count} files, it lists {}", names.len());
        return Err(FileError::new(FileErrorKind::Disagree, path, what, "mend the list, or fetch it again"));
    }
    names.iter().map(|name| find(path, name)).collect::<Result<_, _>>().map(Some)
}

/// Where a listed file is: the writers mean the folder that they were started in. Else it is looked for beside the list.
fn find(list: &Path, name: &str) -> Result<PathBuf, FileError> {
    let folder = list.parent().unwrap_or(Path::new(""));
    let listed = Path::new(name);
    let base = listed.file_name().map(|base| folder.join(base));
    let places = [Some(folder.join(listed)), base, Some(listed.to_owned())];
    places.into_iter().flatten().find(|place| place.is_file()).ok_or_else(|| {
        let what = format!("lists {name:?}, which is neither there nor in its folder");
        FileError::new(FileErrorKind::Missing, list, what, "put the file beside the list")
    })
}

/// All files of a data set: those that `path` lists, or itself.
pub(crate) fn files(path: &Path) -> Result<Vec<PathBuf>, FileError> {
    Ok(of(path)?.unwrap_or_else(|| vec![path.to_owned()]))
}

/// Bytes of all files.
pub(crate) fn bytes(files: &[PathBuf]) -> u64 {
    files.iter().filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum()
}
