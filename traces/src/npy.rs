//! NumPy's arrays of integers: the rows are samples, of a list every number.

use std::io::Read;

use warprow_formats::{FileError, FileErrorKind, KeyType, NpyHeader, NpyHeaderError};

use crate::block::MAX_SAMPLE_KEYS;
use crate::fixed;
use crate::sample_source::Opened;
use crate::spec::{QueryBy, TraceSpec};
use crate::stream::Stream;

struct Bytes<'a>(&'a mut Stream);

impl Read for Bytes<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let count = (buf.len() as u64).min(self.0.left()) as usize;
        buf[..count].copy_from_slice(self.0.take(count)?);
        Ok(count)
    }
}

pub(crate) fn open(spec: &TraceSpec) -> Result<Opened, FileError> {
    let mut stream = Stream::open(&spec.path)?;
    let header = NpyHeader::read(&mut Bytes(&mut stream)).map_err(|error| match error {
        NpyHeaderError::Io(error) => FileError::io(&spec.path, "cannot be read", error),
        damaged => stream.damaged(damaged.to_string()),
    })?;
    let refuse = |what: String, remedy: &str| stream.error(FileErrorKind::Unsupported, what, remedy);
    let width = match &*header.descr {
        "<u4" => KeyType::U32,
        "<u8" => KeyType::U64,
        "<i4" => KeyType::I32,
        "<i8" => KeyType::I64,
        other => return Err(refuse(format!("its elements are {other}; keys are <i4, <i8, <u4 or <u8"), "convert it")),
    };
    if !header.is_c_order() {
        return Err(refuse("its array is in Fortran order".into(), "save numpy.ascontiguousarray(array)"));
    }
    let promised = header.elements().saturating_mul(width.size().into());
    if promised != stream.left().into() {
        let what = format!("its header promises {promised} bytes of data, {} follow", stream.left());
        return Err(stream.damaged(what));
    }
    let row = header.shape.get(1..).unwrap_or_default().iter().fold(1u64, |all, &n| all.saturating_mul(n));
    let each = match (&spec.query, header.shape.len()) {
        (Some(QueryBy::Ids(_)), 2..) => {
            return Err(stream.error(
                FileErrorKind::Unclear,
                "its rows say what a sample is, so does ids=",
                "leave ids= out",
            ));
        }
        (Some(QueryBy::Ids(each)), _) => u64::from(*each),
        (Some(QueryBy::Every), _) => 1,
        _ => row,
    };
    if each > MAX_SAMPLE_KEYS as u64 {
        return Err(refuse(format!("its rows have {each} keys, at most {MAX_SAMPLE_KEYS} are read"), "make it a list"));
    }
    fixed::opened(stream, 0, vec![(each as u32).max(1)], width)
}
