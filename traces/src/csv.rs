//! Text in columns.

use std::fs::File;
use std::io::{self, Read, Take};

use csv::{ByteRecord, Reader, ReaderBuilder, Trim};
use warprow_formats::{FileError, FileErrorKind, refuse_special};

use crate::block::{MAX_SAMPLE_KEYS, TraceBlock};
use crate::sample_source::{Opened, SampleSource};
use crate::slot::TraceSlot;
use crate::spec::{QueryBy, TraceSpec};

struct Csv {
    spec: TraceSpec,
    reader: Reader<Lines>,
    len: u64,
    columns: Vec<Column>,
    /// The column that says which lines belong together.
    query: Option<usize>,
    record: ByteRecord,
    /// Whether `record` is a line that belongs to the next sample.
    waiting: bool,
}

/// A file, as long as its lines are not so long that they fill the memory.
pub(crate) struct Lines {
    file: Take<File>,
    /// Bytes since the last line was done.
    pub(crate) line: usize,
}

impl Read for Lines {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.line > MAX_LINE {
            return Err(io::Error::new(io::ErrorKind::InvalidData, TOO_LONG));
        }
        let read = self.file.read(buf)?;
        self.line += read;
        Ok(read)
    }
}

struct Column {
    name: String,
    index: usize,
    negative: bool,
    /// Whether a key from 2⁶³ on was seen.
    vast: bool,
    /// Keys of the sample that is being read.
    keys: Vec<u64>,
}

/// The longest cell that is a number.
const MAX_CELL: usize = 64;
/// The longest line.
const MAX_LINE: usize = 16 << 20;
const TOO_LONG: &str = "a line has more than 16 MiB";

/// A file whose header line was read.
pub(crate) struct Header {
    pub(crate) reader: Reader<Lines>,
    len: u64,
    pub(crate) names: Vec<String>,
}

/// The names of all columns; an error if no line follows that of their names.
pub(crate) fn columns(spec: &TraceSpec) -> Result<Vec<String>, FileError> {
    let Header { mut reader, names, .. } = header(spec)?;
    // What seems to be a name may be all that there is: whoever opens the trace is told so.
    let is_key = matches!(&*names, [only] if only.parse::<i128>().is_ok());
    match reader.read_byte_record(&mut ByteRecord::new()) {
        Ok(false) if !is_key => Err(spec.no_look_ups()),
        // A line that cannot be read is an error of whoever reads it.
        _ => Ok(names),
    }
}

/// Reads the line of names.
pub(crate) fn header(spec: &TraceSpec) -> Result<Header, FileError> {
    let path = &spec.path;
    let cannot = |error: io::Error| FileError::io(path, "cannot be opened", error);
    refuse_special(path)?;
    let file = File::open(path).map_err(cannot)?;
    let len = file.metadata().map_err(cannot)?.len();
    let separator = if spec.ending() == "tsv" { b'\t' } else { b',' };
    let lines = Lines { file: file.take(len), line: 0 };
    let mut reader =
        ReaderBuilder::new().delimiter(separator).trim(Trim::All).buffer_capacity(1 << 18).from_reader(lines);
    let header = reader.byte_headers().map_err(|error| wrong(spec, &error))?;
    // Tables written by other programs may begin with a byte order mark.
    let names =
        header.iter().map(|name| String::from_utf8_lossy(name).trim_start_matches('\u{feff}').to_owned()).collect();
    Ok(Header { reader, len, names })
}

pub(crate) fn open(spec: &TraceSpec) -> Result<Opened, FileError> {
    let path = &spec.path;
    let Header { reader, len, names } = header(spec)?;
    let refuse = |what: String, remedy: &str| FileError::new(FileErrorKind::Unclear, path, what, remedy);
    let find = |wanted: &str| {
        names.iter().position(|name| name == wanted).ok_or_else(|| {
            let what = format!("there is no column {wanted:?}; its columns are: {}", shown(&names));
            FileError::new(FileErrorKind::Missing, path, what, "name one of these")
        })
    };
    let indices = match (&*spec.columns, &*names) {
        ([], [only]) if only.parse::<i128>().is_ok() => {
            let what = format!("it has no header line: its first line is the number {only}");
            return Err(refuse(what, "put the column's name in front, as a line of its own"));
        }
        ([], [_]) => vec![0],
        ([], []) => {
            return Err(refuse("it has no header line".to_owned(), "write it again, with its column's name in front"));
        }
        ([], _) => {
            let what = format!("it has several columns: {}", shown(&names));
            return Err(refuse(what, "name the column of ids: FILE:COLUMN"));
        }
        (columns, _) => columns.iter().map(|wanted| find(wanted)).collect::<Result<_, _>>()?,
    };
    let query = match &spec.query {
        Some(QueryBy::Column(name)) => Some(find(name)?),
        _ => None,
    };
    let column = |index: usize| Column {
        name: names.get(index).cloned().unwrap_or_default(),
        index,
        negative: false,
        vast: false,
        keys: Vec::new(),
    };
    let columns: Vec<Column> = indices.into_iter().map(column).collect();
    let slots = columns.iter().map(|column| TraceSlot { name: column.name.clone(), signed: false }).collect();
    let record = ByteRecord::new();
    let source = Csv { spec: spec.clone(), reader, len, columns, query, record, waiting: false };
    Ok(Opened { slots, source: Box::new(source) })
}

/// The first columns, by name.
fn shown(names: &[String]) -> String {
    let more = if names.len() > 20 { ", .." } else { "" };
    format!(
        "{}{more}",
        names.iter().take(20).map(|name| name.chars().take(40).collect()).collect::<Vec<String>>().join(", ")
    )
}

/// What the reader of text says, as an error about the file.
pub(crate) fn wrong(spec: &TraceSpec, error: &csv::Error) -> FileError {
    match error.kind() {
        csv::ErrorKind::Io(io) if io.kind() == io::ErrorKind::InvalidData => {
            FileError::new(FileErrorKind::Damaged, &spec.path, io.to_string(), "mend or leave out the line")
        }
        csv::ErrorKind::Io(io) => {
            FileError::io(&spec.path, "cannot be read", io::Error::new(io.kind(), io.to_string()))
        }
        _ => FileError::new(FileErrorKind::Damaged, &spec.path, error.to_string(), "mend the line"),
    }
}

impl Column {
    /// Takes the key in `cell`.
    fn take(&mut self, cell: &[u8]) -> Result<(), &'static str> {
        let text = std::str::from_utf8(cell).ok().filter(|text| text.len() <= MAX_CELL);
        let text = text.ok_or("is no integer")?;
        let key = match text.parse::<i64>() {
            Ok(key) => {
                self.negative |= key < 0;
                key as u64
            }
            Err(_) => {
                let key = text.parse::<u64>().map_err(|_| "is no integer of 64 bits")?;
                self.vast |= key > i64::MAX as u64;
                key
            }
        };
        if self.negative && self.vast {
            return Err("does not fit beside the other keys: a column has negative keys or keys from 2⁶³ on, not both");
        }
        if self.keys.len() >= MAX_SAMPLE_KEYS {
            return Err("is one too many for a sample");
        }
        self.keys.push(key);
        Ok(())
    }
}

impl Csv {
    /// Reads the next line; `false` behind the last.
    fn read(&mut self) -> Result<bool, FileError> {
        if self.waiting {
            self.waiting = false;
            return Ok(true);
        }
        self.reader.get_mut().line = 0;
        self.reader.read_byte_record(&mut self.record).map_err(|error| wrong(&self.spec, &error))
    }

    fn refuse(&self, what: String) -> FileError {
        let line = self.record.position().map_or(0, csv::Position::line);
        FileError::new(
            FileErrorKind::Damaged,
            &self.spec.path,
            format!("line {line} {what}"),
            "mend or leave out the line",
        )
    }

    /// Takes the keys of the line that was read.
    fn take(&mut self) -> Result<(), FileError> {
        let wrong = self.columns.iter_mut().find_map(|column| {
            let cell = self.record.get(column.index).unwrap_or_default();
            column.take(cell).err().map(|what| {
                let text: String = String::from_utf8_lossy(cell).chars().take(40).collect();
                format!("column {}: {text:?} {what}", column.name)
            })
        });
        wrong.map_or(Ok(()), |what| Err(self.refuse(what)))
    }
}

impl SampleSource for Csv {
    fn fill(&mut self, block: &mut TraceBlock) -> Result<(), FileError> {
        while !block.is_full() && self.read()? {
            self.take()?;
            if let Some(query) = self.query {
                let of = self.record.get(query).unwrap_or_default().to_vec();
                while self.read()? {
                    if self.record.get(query).unwrap_or_default() != of {
                        self.waiting = true;
                        break;
                    }
                    self.take()?;
                }
            }
            self.columns.iter_mut().for_each(|column| block.push(column.keys.drain(..)));
        }
        Ok(())
    }

    fn signed(&self) -> Vec<bool> {
        self.columns.iter().map(|column| column.negative).collect()
    }

    fn progress(&self) -> (u64, u64) {
        (self.reader.position().byte().min(self.len), self.len)
    }
}
