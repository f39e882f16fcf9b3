//! Arrays of numbers in NumPy's `.npz` archives, each read from its first element to its last: what data sets are made of.

use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use crate::deflated::inflate;
use crate::error::{FileError, FileErrorKind};
use crate::input::Input;
use crate::input_reader::InputReader;
use crate::npy_header::NpyHeader;
use crate::zip::{self, ZipMember, ZipPacking};

/// An archive of arrays.
#[derive(Debug)]
pub struct ArrayArchive {
    input: Arc<Input>,
    arrays: Vec<ArchivedArray>,
}

/// An array in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivedArray {
    /// The array's name, without `.npy`.
    pub name: String,
    /// The type of its elements, as NumPy writes it: `<f4`.
    pub descr: String,
    /// The shape of the array. The archive holds as many elements.
    pub shape: Vec<u64>,
    /// Bytes of an element.
    pub size: u64,
    member: ZipMember,
    head: u64,
}

/// The bytes of an array, from the first to the last. Behind the last the member's checksum is compared.
pub struct ArrayReader {
    input: Arc<Input>,
    name: String,
    at: u64,
    reader: Box<dyn Read + Send>,
    left: u64,
    sum: crc32fast::Hasher,
    crc: u32,
}

/// Read at once of a member that is not compressed.
const CHUNK: usize = 1 << 18;

impl ArrayArchive {
    /// Opens an archive and reads the headers of its arrays, of which none is compressed otherwise than NumPy does.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let input = Arc::new(Input::open(path)?);
        let mut arrays = Vec::new();
        for member in zip::read(&input)? {
            let Some(name) = member.name.strip_suffix(".npy").filter(|name| !name.is_empty()) else { continue };
            let wrong = |kind: FileErrorKind, what: String, remedy: &str| {
                input.error(kind, format!("the array {name}: {what}"), remedy).at(member.at)
            };
            let header = NpyHeader::read(&mut reader(&input, &member))
                .map_err(|error| wrong(FileErrorKind::Damaged, error.to_string(), "write the archive again"))?;
            if !header.is_c_order() {
                let remedy = "save numpy.ascontiguousarray(array)";
                return Err(wrong(FileErrorKind::Unsupported, "is in Fortran order".to_owned(), remedy));
            }
            // The last digits of a type are its bytes.
            let digits = header.descr.trim_start_matches(|c: char| !c.is_ascii_digit());
            let Some(size) = digits.parse().ok().filter(|size| (1..=16).contains(size)) else {
                let what = format!("has elements of the type {}", header.descr);
                return Err(wrong(FileErrorKind::Unsupported, what, "leave the array out, or write numbers"));
            };
            let follow = member.bytes.saturating_sub(header.data_at);
            if header.elements().saturating_mul(u128::from(size)) != u128::from(follow) {
                let what = format!("its header promises an array of {:?}, {follow} bytes follow", header.shape);
                return Err(wrong(FileErrorKind::Damaged, what, "write the archive again"));
            }
            let name = name.to_owned();
            let NpyHeader { descr, shape, data_at, .. } = header;
            arrays.push(ArchivedArray { name, descr, shape, size, member: member.clone(), head: data_at });
        }
        Ok(Self { input, arrays })
    }

    /// The arrays, in the order of their data.
    pub fn arrays(&self) -> &[ArchivedArray] {
        &self.arrays
    }

    /// The bytes of an array, one of this archive's.
    pub fn read(&self, array: &ArchivedArray) -> Result<ArrayReader, FileError> {
        let ArchivedArray { name, member, head, .. } = array;
        let mut made = ArrayReader {
            input: self.input.clone(),
            name: name.clone(),
            at: member.at,
            reader: reader(&self.input, member),
            left: member.bytes,
            sum: crc32fast::Hasher::new(),
            crc: member.crc,
        };
        let mut skipped = vec![0; *head as usize];
        made.fill(&mut skipped)?;
        Ok(made)
    }
}

/// The bytes of a member.
fn reader(input: &Arc<Input>, member: &ZipMember) -> Box<dyn Read + Send> {
    match member.packing {
        ZipPacking::Stored => {
            let bytes = InputReader { input: input.clone(), at: member.at }.take(member.bytes);
            Box::new(BufReader::with_capacity(CHUNK, bytes))
        }
        ZipPacking::Deflated => Box::new(inflate(input.clone(), member)),
    }
}

impl ArrayReader {
    /// Bytes that are still to come.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Fills `bytes` with the next ones.
    pub fn fill(&mut self, bytes: &mut [u8]) -> Result<(), FileError> {
        let Self { input, name, at, reader, left, sum, crc } = self;
        if bytes.len() as u64 > *left {
            return Err(input.damaged(format!("the array {name} ends early")).at(*at));
        }
        reader
            .read_exact(bytes)
            .map_err(|error| input.damaged(format!("the array {name} is damaged or cut off: {error}")).at(*at))?;
        sum.update(bytes);
        *left -= bytes.len() as u64;
        if *left == 0 && sum.clone().finalize() != *crc {
            return Err(input.damaged(format!("the checksum of the array {name} does not match")).at(*at));
        }
        Ok(())
    }
}

impl std::fmt::Debug for ArrayReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrayReader").field("name", &self.name).field("left", &self.left).finish_non_exhaustive()
    }
}
