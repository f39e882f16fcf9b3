//! HugeCTR's Norm: a header, then samples of labels, dense features and, for each slot, how many keys and the keys. With
//! `error_check` every unit, the header and each sample, stands between its length and the sum of its bytes.

use std::path::{Path, PathBuf};

use warprow_formats::{FileError, FileErrorKind, KeyType};

use crate::block::{MAX_SAMPLE_KEYS, TraceBlock};
use crate::list;
use crate::sample_source::{AlikeSamples, Opened, SampleSink, SampleSource};
use crate::slot::TraceSlot;
use crate::spec::TraceSpec;
use crate::stream::Stream;

/// Bytes of the header.
const HEADER: usize = 64;
/// The longest unit that is read, and the longest labels and dense features.
const MAX_UNIT: usize = MAX_SAMPLE_KEYS * 8 + (64 << 20);
/// The most slots that a header is believed to have.
const MAX_SLOTS: i64 = 1 << 16;

/// What a header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    framed: bool,
    pub(crate) samples: u64,
    /// Bytes of labels and dense features.
    before: usize,
    labels: i64,
    dense: i64,
    slots: usize,
}

impl Header {
    /// Labels, dense features and slots of each sample.
    pub(crate) fn shape(&self) -> (usize, usize, usize) {
        (self.labels as usize, self.dense as usize, self.slots)
    }
}

pub(crate) struct Norm {
    files: std::vec::IntoIter<PathBuf>,
    first: PathBuf,
    header: Header,
    stream: Stream,
    /// Samples of this file that are still to come.
    left: u64,
    width: KeyType,
    /// How many keys each slot of the sample before had, and how many samples are looked at at once, as long as they are like it.
    counts: Vec<usize>,
    together: usize,
    /// Bytes of the files that were read, and of all.
    before: u64,
    bytes: u64,
}

/// Bytes of samples that are looked at at once.
const BLOCK: usize = 1 << 16;

/// Whether a file begins as these do.
pub(crate) fn is(stream: &mut Stream) -> bool {
    stream.len >= HEADER as u64 && framing(stream).is_ok() && header(stream).is_ok()
}

pub(crate) fn open(spec: &TraceSpec) -> Result<Opened, FileError> {
    let width = spec.keys.unwrap_or(KeyType::U32);
    let norm = Norm::open(&spec.path, list::files(&spec.path)?, width)?;
    let slots = 0..norm.header.slots;
    let slots = slots.map(|slot| TraceSlot { name: slot.to_string(), signed: width.is_signed() }).collect();
    Ok(Opened { slots, source: Box::new(norm) })
}

/// The header of a data file.
pub(crate) fn header_of(path: &Path) -> Result<Header, FileError> {
    header(&mut Stream::open(path)?)
}

/// Whether units are framed.
fn framing(stream: &mut Stream) -> Result<bool, FileError> {
    let start = stream.peek(12)?;
    let unit = start.first_chunk().map(|&bytes| i32::from_le_bytes(bytes));
    let unframed = start.first_chunk().map(|&bytes| i64::from_le_bytes(bytes));
    let framed = start.last_chunk().map(|&bytes| i64::from_le_bytes(bytes));
    match (unframed, unit, framed) {
        (Some(0), ..) => Ok(false),
        (_, Some(64), Some(1)) => Ok(true),
        _ => Err(stream.damaged("it begins with no header of a Norm data file").at(0)),
    }
}

fn header(stream: &mut Stream) -> Result<Header, FileError> {
    let framed = framing(stream)?;
    let mut bytes = [0; HEADER];
    if framed {
        let unit = unit(stream)?;
        bytes.copy_from_slice(unit.get(..HEADER).unwrap_or(&[0; HEADER]));
    } else {
        bytes = stream.array()?;
    }
    let number = |index: usize| {
        bytes.get(index * 8..).and_then(|rest| rest.first_chunk()).map(|&bytes| i64::from_le_bytes(bytes))
    };
    let [samples, labels, dense, slots] = [1, 2, 3, 4].map(|index| number(index).unwrap_or(-1));
    let wrong = |what: String| stream.damaged(what).at(0);
    let limits = [(samples, i64::MAX, "samples"), (labels, 1 << 22, "labels"), (dense, 1 << 22, "dense features")];
    for (value, most, what) in limits {
        if !(0..=most).contains(&value) {
            return Err(wrong(format!("its header says {value} {what}")));
        }
    }
    if !(1..=MAX_SLOTS).contains(&slots) {
        return Err(wrong(format!("its header says {slots} slots; 1 to {MAX_SLOTS} are read")));
    }
    // Each sample has at least its labels, dense features and the number of keys of each slot.
    let before = (labels + dense) as usize * 4;
    let least = before as u64 + slots as u64 * 4 + if framed { 5 } else { 0 };
    if (samples as u64).checked_mul(least).is_none_or(|bytes| bytes > stream.left()) {
        let what =
            format!("its header says {samples} samples of at least {least} bytes, {} bytes follow", stream.left());
        return Err(wrong(what));
    }
    Ok(Header { framed, samples: samples as u64, before, labels, dense, slots: slots as usize })
}

/// The next unit, if its sum is right.
fn unit(stream: &mut Stream) -> Result<&[u8], FileError> {
    let at = stream.at;
    let stated = i32::from_le_bytes(stream.array()?);
    let length = usize::try_from(stated).ok().filter(|&length| (1..=MAX_UNIT).contains(&length));
    let Some(length) = length.filter(|&length| (length as u64) < stream.left()) else {
        let what = format!("a unit says that it has {stated} bytes, {} follow", stream.left());
        return Err(stream.damaged(what).at(at));
    };
    let framed = stream.peek(length + 1)?;
    let (sum, bytes) = framed.split_last().unwrap_or((&0, &[]));
    let found = self::sum(bytes);
    if found != *sum {
        let what = format!("the sum of a unit's bytes is {found}, and {sum} stands behind it");
        return Err(stream.damaged(what).at(at));
    }
    let framed = stream.take(length + 1)?;
    Ok(&framed[..length])
}

/// The sum of a unit's bytes.
fn sum(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |sum: u8, &byte| sum.wrapping_add(byte))
}

/// The length of a slot's list.
fn count_at(bytes: &[u8]) -> Option<i32> {
    bytes.first_chunk().map(|&bytes| i32::from_le_bytes(bytes))
}

impl Norm {
    /// The samples of `files`, which `path` names.
    pub(crate) fn open(path: &Path, files: Vec<PathBuf>, width: KeyType) -> Result<Self, FileError> {
        let bytes = list::bytes(&files);
        let mut files = files.into_iter();
        let Some(first) = files.next() else {
            return Err(FileError::new(FileErrorKind::Missing, path, "lists no file", "look at the list"));
        };
        let mut stream = Stream::open(&first)?;
        let header = header(&mut stream)?;
        Ok(Self {
            files,
            first,
            header,
            stream,
            left: header.samples,
            width,
            counts: Vec::new(),
            together: 1,
            before: 0,
            bytes,
        })
    }

    /// Gives samples until `sink` is full or there are no more.
    pub(crate) fn read(&mut self, sink: &mut impl SampleSink) -> Result<(), FileError> {
        while !sink.is_full() {
            if self.left == 0 {
                if !self.next_file()? {
                    break;
                }
                continue;
            }
            if let Some(count) = self.alike(sink)? {
                self.left -= count as u64;
                continue;
            }
            self.counts.clear();
            match self.header.framed {
                true => self.framed(sink)?,
                false => self.unframed(sink)?,
            }
            sink.end();
            self.left -= 1;
        }
        Ok(())
    }

    /// Gives samples that are like the one before, all at once, as most are where each has one key of each slot. `None` if the next ones
    /// are not, or not sound: they are then read one by one.
    fn alike(&mut self, sink: &mut impl SampleSink) -> Result<Option<usize>, FileError> {
        let Header { framed, before, slots, .. } = self.header;
        if self.counts.len() != slots {
            return Ok(None);
        }
        let size = self.width.size() as usize;
        let head = if framed { 4 } else { 0 };
        let mut at = head + before;
        let list = |&keys: &usize| {
            at += 4 + keys * size;
            (at - keys * size, keys)
        };
        let lists: Vec<_> = self.counts.iter().map(list).collect();
        let stride = at + usize::from(framed);
        let samples = AlikeSamples { stride, floats: (head, before), lists, width: self.width };
        let most = (BLOCK / stride).min(self.together).min(sink.room());
        let count = (self.stream.left() / stride as u64).min(most as u64).min(self.left) as usize;
        if count == 0 {
            self.together = self.together.max(1);
            return Ok(None);
        }
        let bytes = self.stream.peek(count * stride)?;
        let is_sound = bytes.chunks_exact(stride).all(|sample| {
            let word = |at: usize| sample.get(at..).and_then(count_at);
            let is_framed = || {
                let unit = sample.get(4..stride - 1).unwrap_or_default();
                word(0) == Some(unit.len() as i32) && sample.last() == Some(&sum(unit))
            };
            samples.lists.iter().all(|&(at, keys)| word(at - 4) == Some(keys as i32)) && (!framed || is_framed())
        });
        if !is_sound {
            // The next one alone may be alike; lists of any length are not looked at twice for long.
            self.together /= 2;
            if self.together == 0 {
                (self.together, self.counts) = (1, Vec::new());
            }
            return Ok(None);
        }
        sink.alike(self.stream.take(count * stride)?, &samples);
        self.together = (self.together * 2).min(BLOCK);
        Ok(Some(count))
    }

    /// A sample that stands in a unit of its own.
    fn framed(&mut self, sink: &mut impl SampleSink) -> Result<(), FileError> {
        let at = self.stream.at;
        let damaged = |stream: &Stream, what: String| Err(stream.damaged(what).at(at));
        let before = self.header.before;
        let slots = self.header.slots;
        let width = self.width;
        let size = width.size() as usize;
        let bytes = unit(&mut self.stream)?;
        let length = bytes.len();
        let (first, mut rest) = bytes.split_at_checked(before).unwrap_or_default();
        sink.begin(first);
        let mut wrong = None;
        for slot in 0..slots {
            let Some(stated) = count_at(rest) else {
                wrong = Some(format!("a sample of {length} bytes ends before slot {slot}"));
                break;
            };
            let keys = usize::try_from(stated).ok().and_then(|keys| keys.checked_mul(size));
            let list = keys.and_then(|bytes| rest.get(4..)?.split_at_checked(bytes));
            let Some((keys, later)) = list else {
                wrong = Some(format!("a sample of {length} bytes has {stated} keys in slot {slot}"));
                break;
            };
            sink.list(keys, width);
            self.counts.push(stated as usize);
            rest = later;
        }
        let left = rest.len();
        match wrong {
            Some(what) => damaged(&self.stream, what),
            None if left > 0 => damaged(&self.stream, format!("{left} bytes follow in the unit of a sample")),
            None => Ok(()),
        }
    }

    fn unframed(&mut self, sink: &mut impl SampleSink) -> Result<(), FileError> {
        let size = self.width.size();
        sink.begin(self.stream.take(self.header.before)?);
        let mut all = 0;
        for slot in 0..self.header.slots {
            let at = self.stream.at;
            let stated = i32::from_le_bytes(self.stream.array()?);
            let keys = u64::try_from(stated).ok().filter(|keys| keys * size <= self.stream.left());
            let Some(keys) = keys else {
                let what = format!("a sample has {stated} keys in slot {slot}, {} bytes follow", self.stream.left());
                return Err(self.stream.damaged(what).at(at));
            };
            all += keys;
            if all > MAX_SAMPLE_KEYS as u64 {
                let what = format!("a sample has more than {MAX_SAMPLE_KEYS} keys");
                return Err(self.stream.damaged(what).at(at));
            }
            sink.list(self.stream.take((keys * size) as usize)?, self.width);
            self.counts.push(keys as usize);
        }
        Ok(())
    }

    /// Goes on to the next file; `false` if there is none.
    fn next_file(&mut self) -> Result<bool, FileError> {
        if self.stream.left() > 0 {
            let what = format!("{} bytes follow the last of the samples that its header counts", self.stream.left());
            return Err(self.stream.damaged(what).at(self.stream.at));
        }
        let Some(path) = self.files.next() else { return Ok(false) };
        let mut stream = Stream::open(&path)?;
        let header = header(&mut stream)?;
        if header.shape() != self.header.shape() {
            let what = format!(
                "labels, dense features and slots are {:?} in it, {:?} in {}",
                header.shape(),
                self.header.shape(),
                self.first.display()
            );
            return Err(FileError::new(FileErrorKind::Disagree, &path, what, "list only files of one data set"));
        }
        self.before += self.stream.len;
        (self.left, self.header, self.stream) = (header.samples, header, stream);
        Ok(true)
    }
}

impl SampleSource for Norm {
    fn fill(&mut self, block: &mut TraceBlock) -> Result<(), FileError> {
        self.read(block)
    }

    fn progress(&self) -> (u64, u64) {
        (self.before + self.stream.at, self.bytes)
    }
}
