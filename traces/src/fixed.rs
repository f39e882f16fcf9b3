//! Samples that all have the same size: bare integers, arrays, and HugeCTR's Raw.

use std::path::Path;

use warprow_formats::{FileError, FileErrorKind, KeyType};

use crate::block::{MAX_SAMPLE_KEYS, TraceBlock};
use crate::sample_source::{AlikeSamples, Opened, SampleSink, SampleSource};
use crate::slot::TraceSlot;
use crate::spec::{QueryBy, TraceSpec, key_type};
use crate::stream::{Stream, numbers, stem};

/// Bytes of samples that are taken at once: they stay in a cache while their columns are.
const BLOCK: usize = 1 << 16;

/// Samples one after another.
pub(crate) struct Fixed {
    stream: Stream,
    /// Bytes of a sample before its keys.
    before: usize,
    /// Keys in each slot.
    hotness: Vec<u32>,
    width: KeyType,
}

/// Bare integers, `ids=` of them a sample.
pub(crate) fn ids(spec: &TraceSpec) -> Result<Opened, FileError> {
    let stream = Stream::open(&spec.path)?;
    let ending = spec.ending();
    let named = key_type(&ending);
    let width = match (named, spec.keys) {
        (Some(named), Some(said)) if named != said => {
            let what = format!("its name says that it holds {ending}");
            return Err(stream.error(FileErrorKind::Unclear, what, "leave the type out"));
        }
        (_, Some(width)) | (Some(width), None) => width,
        (None, None) => {
            let what = "nothing says how wide its integers are";
            return Err(stream.error(FileErrorKind::Unclear, what, "add :u32, :u64, :i32 or :i64"));
        }
    };
    let each = match spec.query {
        Some(QueryBy::Ids(each)) => each,
        _ => 1,
    };
    let len = stream.len;
    let size = width.size();
    if !len.is_multiple_of(size) {
        let what = format!(
            "its {len} bytes are not a whole number of {size}-byte integers: it is cut off, or of another type"
        );
        return Err(stream.damaged(what));
    }
    opened(stream, 0, vec![each], width)
}

/// HugeCTR's Raw: words of four bytes, labels, dense features and keys.
pub(crate) fn raw(spec: &TraceSpec) -> Result<Opened, FileError> {
    let words = u64::from(spec.labels) + u64::from(spec.dense);
    let (stream, before) = raw_samples(&spec.path, words, &spec.hotness, spec.keys.unwrap_or(KeyType::U32))?;
    opened(stream, before, spec.hotness.clone(), spec.keys.unwrap_or(KeyType::U32))
}

/// A Raw file of whole samples: `words` of labels and dense features, and so many keys of each slot. With the bytes before a
/// sample's keys.
pub(crate) fn raw_samples(
    path: &Path,
    words: u64,
    hotness: &[u32],
    width: KeyType,
) -> Result<(Stream, usize), FileError> {
    let stream = Stream::open(path)?;
    if hotness.is_empty() {
        let what = "nothing says how many keys a sample has";
        let remedy = "add :labels=1,dense=13,slots=26, or hotness=1/3/1 where slots have several keys";
        return Err(stream.error(FileErrorKind::Unclear, what, remedy));
    }
    let before = words.saturating_mul(4);
    let keys = hotness.iter().map(|&keys| u64::from(keys)).sum::<u64>();
    let sample = before.saturating_add(keys * width.size());
    if keys == 0 || keys > MAX_SAMPLE_KEYS as u64 || before > 1 << 30 {
        let what = format!("samples of {keys} keys after {before} bytes are not read");
        return Err(stream.error(
            FileErrorKind::Unsupported,
            what,
            format!("look at the numbers; at most {MAX_SAMPLE_KEYS} keys"),
        ));
    }
    if !stream.len.is_multiple_of(sample) {
        let what = format!(
            "its {} bytes are not a whole number of samples of {sample} bytes: {before} before {keys} keys of {}",
            stream.len,
            width.size()
        );
        return Err(stream.error(
            FileErrorKind::Damaged,
            what,
            "look at labels=, dense=, slots= and keys=, and whether it is whole",
        ));
    }
    Ok((stream, before as usize))
}

/// `stream` from where it is, as samples.
pub(crate) fn opened(stream: Stream, before: usize, hotness: Vec<u32>, width: KeyType) -> Result<Opened, FileError> {
    if hotness.iter().map(|&keys| u64::from(keys)).sum::<u64>() > MAX_SAMPLE_KEYS as u64 {
        let what = format!("samples have more than {MAX_SAMPLE_KEYS} keys");
        return Err(stream.error(FileErrorKind::Unsupported, what, "make smaller samples of it"));
    }
    let name = |slot: usize| if hotness.len() == 1 && before == 0 { stem(&stream.path) } else { slot.to_string() };
    let slots = (0..hotness.len()).map(|slot| TraceSlot { name: name(slot), signed: width.is_signed() }).collect();
    Ok(Opened { slots, source: Box::new(Fixed { stream, before, hotness, width }) })
}

impl Fixed {
    /// The samples of `stream`: `before` bytes, then the keys.
    pub(crate) fn new(stream: Stream, before: usize, hotness: Vec<u32>, width: KeyType) -> Self {
        Self { stream, before, hotness, width }
    }

    /// Gives samples until `sink` is full or there are no more.
    pub(crate) fn read(&mut self, sink: &mut impl SampleSink) -> Result<(), FileError> {
        let size = self.width.size() as usize;
        let mut at = self.before;
        let list = |&keys: &u32| {
            let begin = at;
            at += keys as usize * size;
            (begin, keys as usize)
        };
        let lists = self.hotness.iter().map(list).collect();
        let samples = AlikeSamples { stride: at, floats: (0, self.before), lists, width: self.width };
        while self.stream.left() > 0 && !sink.is_full() {
            let there = self.stream.left() / samples.stride as u64;
            let count = there.min((BLOCK / samples.stride).max(1).min(sink.room()) as u64);
            // A file is whole samples: where it is not, taking one says so.
            sink.alike(self.stream.take(count.max(1) as usize * samples.stride)?, &samples);
        }
        Ok(())
    }
}

impl SampleSource for Fixed {
    fn fill(&mut self, block: &mut TraceBlock) -> Result<(), FileError> {
        let size = self.width.size() as usize;
        if let (0, &[each]) = (self.before, &*self.hotness) {
            let each = (each as usize).max(1);
            let most = block.room().next_multiple_of(each) as u64 * size as u64;
            let bytes = self.stream.take(most.min(self.stream.left()) as usize)?;
            block.push_even(numbers(bytes, self.width), each);
            return Ok(());
        }
        self.read(block)
    }

    fn progress(&self) -> (u64, u64) {
        (self.stream.at, self.stream.len)
    }
}
