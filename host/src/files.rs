//! Reading small files that others wrote: bounded, and never waiting.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::fcntl::OFlag;

/// More than any file that is read here has.
const MOST_BYTES: u64 = 16 << 20;
const MOST_ENTRIES: usize = 1 << 16;

/// Opens for reading without waiting for a writer, as a FIFO would.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits()).open(path)
}

/// The bytes of a file, up to `most`.
pub(crate) fn bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut data = Vec::new();
    open(path)?.take(most).read_to_end(&mut data)?;
    Ok(data)
}

pub(crate) fn read(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&bytes(path, MOST_BYTES)?).into_owned())
}

/// The text of an attribute without its white space; `None` where it cannot be read, or is empty.
pub(crate) fn text(path: &Path) -> Option<String> {
    read(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

pub(crate) fn number<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// A hexadecimal number, with `0x` or without.
pub(crate) fn hex(path: &Path) -> Option<u64> {
    let text = text(path)?;
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
}

/// The last name of what a link leads to.
pub(crate) fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

/// What a folder holds, with names, sorted; nothing where there is no folder.
pub(crate) fn listing(folder: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries.take(MOST_ENTRIES) {
        let entry = entry?;
        found.push((entry.path(), entry.file_name().to_string_lossy().into_owned()));
    }
    found.sort();
    Ok(found)
}

/// The entries of a folder, sorted; none where the folder cannot be read, which does no harm there.
pub(crate) fn entries(folder: &Path) -> Vec<(PathBuf, String)> {
    listing(folder).unwrap_or_default()
}
