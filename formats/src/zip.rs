//! The directory of a zip archive, as NumPy writes one: members that are stored or deflated, perhaps with 64-bit sizes.
//!
//! This is written by hand because libraries for archives believe more than is believed here. Of twelve archives that contradict
//! themselves, `zip` 9.8 opens nine: with a name that comes twice (of which it shows the last alone), with members that lie
//! in each other or reach into the directory, with bytes in front of the archive, behind it or behind its directory, with a
//! stored member of another length than it says, with a size that no packed bytes can have, and with a name that is no text. `rawzip` 0.5 lists what
//! stands there, opens nine as well, and would take over the walk through the directory alone.

use std::collections::HashSet;

use crate::error::{FileError, FileErrorKind};
use crate::input::{Input, u16_at, u32_at, u64_at};

/// How a member's bytes stand in the archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ZipPacking {
    /// The bytes stand as they are.
    Stored,
    /// Deflated.
    Deflated,
}

/// A member of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZipMember {
    /// The name of the member.
    pub name: String,
    /// How its bytes are packed.
    pub packing: ZipPacking,
    /// CRC-32 of its bytes.
    pub crc: u32,
    /// Bytes in the archive.
    pub packed: u64,
    /// Bytes of the member.
    pub bytes: u64,
    /// First byte of its data in the archive.
    pub at: u64,
}

/// The archive's end record, and the longest comment behind it.
const END: usize = 22;
const MAX_COMMENT: u64 = 65535;
/// The longest directory that is read.
const MAX_DIRECTORY: u64 = 64 << 20;
/// Bytes that a deflated byte can stand for (RFC 1951), and some for a block's end.
const MAX_RATIO: u64 = 1032;
const SLACK: u64 = 64;

/// The members of an archive in the order of their data, which lies in the file and does not overlap.
pub(crate) fn read(input: &Input) -> Result<Vec<ZipMember>, FileError> {
    let tail_len = input.len.min(END as u64 + MAX_COMMENT + 20);
    let mut tail = vec![0; tail_len as usize];
    input.read(input.len - tail_len, &mut tail)?;
    let damaged = |what: &str| input.damaged(format!("it is no sound archive: {what}"));
    let (directory, count) = locate(&tail, input).map_err(|what| damaged(&what))?;
    let len = directory.end - directory.start;
    if len > MAX_DIRECTORY {
        return Err(damaged("its directory passes 64 MiB").at(directory.start));
    }
    let mut bytes = vec![0; len as usize];
    input.read(directory.start, &mut bytes)?;
    let mut listed = members(&bytes, count).map_err(|what| match what.strip_prefix("twice: ") {
        Some(name) => {
            input.error(FileErrorKind::Duplicate, format!("it holds {name} twice"), "write it again, with numpy.savez")
        }
        None => damaged(&what).at(directory.start),
    })?;
    listed.sort_by_key(|member| member.at);
    let mut end = 0;
    for member in &mut listed {
        let header_at = member.at;
        // Until here `at` is where the member's own header begins.
        let header: [u8; 30] = match header_at.checked_add(30) {
            Some(end) if end <= directory.start => input.array(header_at)?,
            _ => return Err(damaged(&format!("{:?} begins past its end", member.name)).at(header_at)),
        };
        if header.get(..4) != Some(b"PK\x03\x04") || header_at < end {
            return Err(damaged(&format!("{:?} does not begin where the directory says", member.name)).at(header_at));
        }
        let name = u16_at(&header, 26).unwrap_or(0);
        let extra = u16_at(&header, 28).unwrap_or(0);
        member.at = header_at + 30 + u64::from(name) + u64::from(extra);
        end = member.at.checked_add(member.packed).filter(|&end| end <= directory.start).ok_or_else(|| {
            damaged(&format!("{:?} has {} bytes and reaches into the directory", member.name, member.packed))
                .at(member.at)
        })?;
        // At best, two bits stand for 258 bytes.
        if member.packing == ZipPacking::Deflated && member.bytes > member.packed.saturating_mul(MAX_RATIO) + SLACK {
            let what = format!("{:?} cannot be {} bytes: {} are packed", member.name, member.bytes, member.packed);
            return Err(damaged(&what).at(member.at));
        }
        if member.packing == ZipPacking::Stored && member.packed != member.bytes {
            return Err(damaged(&format!("{:?} is stored in another length than it has", member.name)).at(member.at));
        }
    }
    Ok(listed)
}

/// Where the directory stands, and how many members it lists.
fn locate(tail: &[u8], input: &Input) -> Result<(std::ops::Range<u64>, u64), String> {
    let last = tail.len().checked_sub(END).ok_or("it is cut off")?;
    let is_end = |&at: &usize| {
        tail.get(at..at + 4) == Some(b"PK\x05\x06")
            && u16_at(tail, at + 20).is_some_and(|comment| at + END + usize::from(comment) == tail.len())
    };
    let end = (0..=last).rev().find(is_end).ok_or("it is cut off, or no archive: there is no directory at its end")?;
    let count = u16_at(tail, end + 10);
    let len = u32_at(tail, end + 12);
    let begin = u32_at(tail, end + 16);
    let (Some(count), Some(len), Some(begin)) = (count, len, begin) else { return Err("it is cut off".into()) };
    let end_at = input.len - (tail.len() - end) as u64;
    let (count, len, begin, end_at) = if count == u16::MAX || len == u32::MAX || begin == u32::MAX {
        let locator =
            end.checked_sub(20).and_then(|at| tail.get(at..end)).filter(|bytes| bytes.starts_with(b"PK\x06\x07"));
        let at = locator.and_then(|locator| u64_at(locator, 8)).ok_or("its 64-bit directory is not told")?;
        if at.checked_add(56).is_none_or(|end| end > input.len) {
            return Err("its 64-bit end record lies past its end".into());
        }
        let record: [u8; 56] = input.array(at).map_err(|error| error.message())?;
        if !record.starts_with(b"PK\x06\x06") {
            return Err("its 64-bit end record is not where it should be".into());
        }
        let number = |offset| u64_at(&record, offset).unwrap_or(u64::MAX);
        (number(32), number(40), number(48), at)
    } else {
        (count.into(), len.into(), begin.into(), end_at)
    };
    match begin.checked_add(len) {
        Some(end) if end == end_at => Ok((begin..end, count)),
        _ => Err(format!("its directory of {len} bytes at {begin} does not end before its end record at {end_at}")),
    }
}

/// The members that a directory of `count` lists; their `at` is where their own headers begin. A name that comes twice is the
/// error `twice: NAME`.
pub fn members(directory: &[u8], count: u64) -> Result<Vec<ZipMember>, String> {
    let mut listed = Vec::new();
    let mut names = HashSet::new();
    let mut rest = directory;
    while !rest.is_empty() {
        let number = |at| u16_at(rest, at).map(usize::from);
        let (Some(b"PK\x01\x02"), Some(name), Some(extra), Some(comment)) =
            (rest.get(..4), number(28), number(30), number(32))
        else {
            return Err("its directory is damaged".into());
        };
        let word = |at| u32_at(rest, at).unwrap_or(u32::MAX);
        let fields =
            (rest.get(46..46 + name), rest.get(46 + name..46 + name + extra), rest.get(46 + name + extra + comment..));
        let (Some(name), Some(extra), Some(next)) = fields else { return Err("its directory is cut off".into()) };
        let name = String::from_utf8(name.to_vec()).map_err(|_| "a name in its directory is no text".to_owned())?;
        let packing = match number(10) {
            Some(0) => ZipPacking::Stored,
            Some(8) => ZipPacking::Deflated,
            method => return Err(format!("{name:?} is packed by the method {}", method.unwrap_or(0))),
        };
        if number(8).is_some_and(|flags| flags & 1 == 1) {
            return Err(format!("{name:?} is encrypted"));
        }
        let mut wide = wide_numbers(extra);
        let mut size = |at| match word(at) {
            u32::MAX => wide.next().ok_or_else(|| format!("{name:?} has no 64-bit size")),
            size => Ok(u64::from(size)),
        };
        let bytes = size(24)?;
        let packed = size(20)?;
        let at = size(42)?;
        if !names.insert(name.clone()) {
            return Err(format!("twice: {name}"));
        }
        listed.push(ZipMember { name, packing, crc: word(16), packed, bytes, at });
        rest = next;
    }
    if listed.len() as u64 != count {
        return Err(format!("its directory lists {} members and should list {count}", listed.len()));
    }
    Ok(listed)
}

/// The numbers in the extra field that has those which do not fit into 32 bits.
fn wide_numbers(mut extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut found: &[u8] = &[];
    while let (Some(id), Some(len)) = (u16_at(extra, 0), u16_at(extra, 2)) {
        let field = extra.get(4..4 + usize::from(len)).unwrap_or_default();
        if id == 1 {
            found = field;
            break;
        }
        extra = extra.get(4 + usize::from(len)..).unwrap_or_default();
    }
    found.as_chunks::<8>().0.iter().map(|&number| u64::from_le_bytes(number))
}
