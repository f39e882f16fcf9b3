//! A batch that is being made: lists of ids by feature, which become one.

use std::path::Path;

use warprow_formats::{FileError, FileErrorKind, KeyType};

use super::batch::DataBatch;
use super::shape::DataShape;
use crate::sample_source::{AlikeSamples, SampleSink};

/// The most ids of a batch, in all features together.
pub const MAX_BATCH_IDS: usize = 1 << 28;

/// The ids of one feature.
#[derive(Debug, Default)]
pub(crate) struct Lists {
    ids: Vec<i64>,
    samples: usize,
    /// How many ids each sample has, as long as all have equally many.
    each: usize,
    /// How many ids each sample has, once they differ.
    lengths: Vec<u32>,
    /// The sample with the first key that no id can be.
    vast: Option<usize>,
}

/// Samples that become a batch.
#[derive(Debug)]
pub(crate) struct Staging {
    most: usize,
    first: u64,
    samples: usize,
    label_words: usize,
    /// Whether labels and dense features are integers, of which dense ones become log(x + 1).
    integers: bool,
    /// Whether dense features become log(x + 1) otherwise too.
    log: bool,
    pub(crate) labels: Vec<f32>,
    pub(crate) dense: Vec<f32>,
    pub(crate) features: Vec<Lists>,
    /// The feature whose ids come next, of a sample that has begun.
    slot: usize,
    is_open: bool,
    ids: usize,
}

/// What ids of features have to be, and become.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rows {
    /// How many ids each feature has, from 0; empty: any.
    pub(crate) sizes: Vec<u64>,
    /// Whether the sizes of the features before are added to the ids.
    pub(crate) shift: bool,
}

impl Lists {
    /// Adds the ids of the next sample.
    fn push(&mut self, keys: &[u8], width: KeyType) -> usize {
        let before = self.ids.len();
        match width {
            KeyType::U32 => self.ids.extend(keys.as_chunks().0.iter().map(|&key| i64::from(u32::from_le_bytes(key)))),
            KeyType::I32 => self.ids.extend(keys.as_chunks().0.iter().map(|&key| i64::from(i32::from_le_bytes(key)))),
            KeyType::I64 | KeyType::U64 => {
                self.ids.extend(keys.as_chunks().0.iter().map(|&key| i64::from_le_bytes(key)));
            }
        }
        let length = self.ids.len() - before;
        self.end(length);
        length
    }

    /// Adds the ids of samples that are all alike, `keys` of each from its byte `at` on.
    fn alike(&mut self, bytes: &[u8], (at, keys): (usize, usize), samples: &AlikeSamples) {
        let count = bytes.len() / samples.stride;
        let size = samples.width.size() as usize;
        let lists =
            bytes.chunks_exact(samples.stride).map(|sample| sample.get(at..at + keys * size).unwrap_or_default());
        match (samples.width, keys) {
            (KeyType::U32, 1) => {
                self.ids.extend(lists.map(|key| i64::from(key.first_chunk().map_or(0, |&key| u32::from_le_bytes(key)))))
            }
            (KeyType::I64, 1) => {
                self.ids.extend(lists.map(|key| key.first_chunk().map_or(0, |&key| i64::from_le_bytes(key))));
            }
            _ => {
                for list in lists {
                    self.ids.extend(crate::stream::numbers(list, samples.width).map(|key| key as i64));
                }
            }
        }
        if self.samples == 0 {
            self.each = keys;
        }
        if self.lengths.is_empty() && keys == self.each {
            self.samples += count;
        } else {
            (0..count).for_each(|_| self.end(keys));
        }
    }

    /// Ends a sample whose `length` ids were added.
    #[inline]
    fn end(&mut self, length: usize) {
        if self.samples == 0 {
            self.each = length;
        }
        if length != self.each || !self.lengths.is_empty() {
            if self.lengths.is_empty() {
                self.lengths.resize(self.samples, self.each as u32);
            }
            self.lengths.push(length as u32);
        }
        self.samples += 1;
    }

    /// Adds the ids of the next sample.
    pub(crate) fn push_ids(&mut self, ids: &[i64]) {
        self.ids.extend_from_slice(ids);
        self.end(ids.len());
    }

    /// Adds `keys`, of which the next samples have `lengths`.
    pub(crate) fn extend(&mut self, keys: &[u64], lengths: &[u32], signed: bool) {
        if !signed && self.vast.is_none() {
            self.vast = vast(keys, lengths).map(|sample| self.samples + sample);
        }
        self.ids.extend(keys.iter().map(|&key| key as i64));
        if self.lengths.is_empty() && self.samples == 0 {
            self.each = lengths.first().map_or(0, |&length| length as usize);
        }
        if self.lengths.is_empty() && lengths.iter().all(|&length| length as usize == self.each) {
            self.samples += lengths.len();
            return;
        }
        lengths.iter().for_each(|&length| self.end(length as usize));
    }

    /// The sample that the id at `position` belongs to.
    fn sample_of(&self, position: usize) -> usize {
        if self.lengths.is_empty() {
            return position / self.each.max(1);
        }
        let ends = self.lengths.iter().scan(0, |end, &length| {
            *end += length as usize;
            Some(*end)
        });
        ends.take_while(|&end| end <= position).count()
    }

    fn clear(&mut self) {
        self.ids.clear();
        self.lengths.clear();
        (self.samples, self.each, self.vast) = (0, 0, None);
    }
}

/// The first of the samples that has a key of 2⁶³ or more.
fn vast(keys: &[u64], lengths: &[u32]) -> Option<usize> {
    if keys.iter().fold(0, |all, key| all | key) >> 63 == 0 {
        return None;
    }
    let position = keys.iter().position(|key| key >> 63 == 1)?;
    let mut end = 0;
    lengths.iter().position(|&length| {
        end += length as usize;
        end > position
    })
}

impl Staging {
    /// A batch of at most `most` samples.
    pub(crate) fn new(shape: &DataShape, most: usize, integers: bool, log: bool) -> Self {
        Self {
            most,
            first: 0,
            samples: 0,
            label_words: shape.labels.len(),
            integers,
            log: log && !integers,
            labels: Vec::new(),
            dense: Vec::new(),
            features: shape.features.iter().map(|_| Lists::default()).collect(),
            slot: 0,
            is_open: false,
            ids: 0,
        }
    }

    pub(crate) fn samples(&self) -> usize {
        self.samples
    }

    /// Adds the words of the labels and dense features of a sample.
    fn floats(&mut self, before: &[u8]) {
        let (labels, dense) = before.split_at(before.len().min(self.label_words * 4));
        words(labels, self.integers, |label| label as f32, &mut self.labels);
        words(dense, self.integers, |count| logarithm(count as f32), &mut self.dense);
    }

    /// The number of the sample that is being read, in the data set.
    pub(crate) fn current(&self) -> u64 {
        self.first + self.samples.saturating_sub(self.is_open.into()) as u64
    }

    /// How many samples still go in.
    pub(crate) fn room(&self) -> usize {
        self.most - self.samples.min(self.most)
    }

    /// Whether a further sample goes in.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_full()
    }

    /// Counts samples whose labels, dense features and so many ids were added column by column.
    pub(crate) fn added(&mut self, samples: usize, ids: usize) {
        self.samples += samples;
        self.ids += ids;
    }

    /// Whether there is no room for the ids of a whole batch.
    pub(crate) fn is_too_large(&self) -> bool {
        self.ids >= MAX_BATCH_IDS && self.samples < self.most
    }

    /// The error of samples that have more ids than a batch.
    pub(crate) fn too_large(&self, path: &Path) -> FileError {
        let what =
            format!("samples {} to {} have {MAX_BATCH_IDS} ids or more", self.first, self.first + self.samples as u64);
        FileError::new(FileErrorKind::Memory, path, what, "ask for smaller batches")
    }

    /// Makes `batch` of the samples, and is empty then. An id that cannot be is an error by feature, sample and id.
    pub(crate) fn finish(&mut self, rows: &Rows, batch: &mut DataBatch) -> Result<(), BadId> {
        self.check(rows)?;
        if self.log {
            self.dense.iter_mut().for_each(|count| *count = logarithm(*count));
        }
        batch.first = self.first;
        batch.samples = self.samples;
        batch.features = self.features.len();
        std::mem::swap(&mut batch.labels, &mut self.labels);
        std::mem::swap(&mut batch.dense, &mut self.dense);
        batch.ids.clear();
        batch.ids.reserve(self.features.iter().map(|lists| lists.ids.len()).sum());
        let mut before = 0;
        for (nth, lists) in self.features.iter().enumerate() {
            match rows.sizes.get(nth).filter(|_| rows.shift) {
                Some(&size) => {
                    batch.ids.extend(lists.ids.iter().map(|id| id + before));
                    before += size as i64;
                }
                None => batch.ids.extend_from_slice(&lists.ids),
            }
        }
        self.offsets(batch);
        self.first += self.samples as u64;
        self.samples = 0;
        self.ids = 0;
        self.labels.clear();
        self.dense.clear();
        self.features.iter_mut().for_each(Lists::clear);
        Ok(())
    }

    /// Where the ids of each feature and sample begin. They are often those of the batch that was in the same memory before.
    fn offsets(&self, batch: &mut DataBatch) {
        let is_even = self.features.iter().all(|lists| lists.lengths.is_empty());
        let even = || std::iter::once(self.samples).chain(self.features.iter().map(|lists| lists.each));
        if is_even && !batch.even.is_empty() && batch.even.iter().copied().eq(even()) {
            return;
        }
        batch.even.clear();
        batch.even.extend(even().filter(|_| is_even));
        batch.offsets.clear();
        batch.offsets.reserve(self.features.len() * self.samples + 1);
        batch.offsets.push(0);
        let mut end = 0;
        for lists in &self.features {
            let each = lists.each as i64;
            match lists.lengths.is_empty() {
                true => batch.offsets.extend((1..=self.samples as i64).map(|sample| end + sample * each)),
                false => {
                    let mut at = end;
                    batch.offsets.extend(lists.lengths.iter().map(|&length| {
                        at += i64::from(length);
                        at
                    }));
                }
            }
            end += lists.ids.len() as i64;
        }
    }

    fn check(&self, rows: &Rows) -> Result<(), BadId> {
        for (feature, lists) in self.features.iter().enumerate() {
            if let Some(sample) = lists.vast {
                return Err(BadId { feature, sample: self.first + sample as u64, id: None });
            }
            let Some(&size) = rows.sizes.get(feature) else { continue };
            // Ids below zero are the largest as unsigned ones.
            if lists.ids.iter().fold(0, |most, &id| most.max(id as u64)) < size || lists.ids.is_empty() {
                continue;
            }
            let position = lists.ids.iter().position(|&id| id as u64 >= size).unwrap_or(0);
            let sample = self.first + lists.sample_of(position) as u64;
            return Err(BadId { feature, sample, id: lists.ids.get(position).copied() });
        }
        Ok(())
    }
}

/// An id that is none of its feature's; `None`: a key of 2⁶³ or more.
#[derive(Debug)]
pub(crate) struct BadId {
    feature: usize,
    sample: u64,
    id: Option<i64>,
}

impl BadId {
    /// As an error about the data set at `path`.
    pub(crate) fn error(&self, path: &Path, shape: &DataShape, rows: &Rows) -> FileError {
        let Self { feature, sample, id } = self;
        let name = shape.features.get(*feature).map_or("", |feature| &feature.name);
        let Some(id) = id else {
            let what = format!("sample {sample} has a key of 2⁶³ or more in feature {name:?}");
            let remedy = "write the keys as signed integers, or hash them to fewer bits";
            return FileError::new(FileErrorKind::Unsupported, path, what, remedy);
        };
        let size = rows.sizes.get(*feature).copied().unwrap_or(0);
        let what =
            format!("sample {sample} has the id {id} in feature {name:?}, of which it is said that it has {size} rows");
        let remedy = "look at the order of the features, at their rows, and at the data set";
        FileError::new(FileErrorKind::Disagree, path, what, remedy)
    }
}

/// What HugeCTR makes of a count.
fn logarithm(count: f32) -> f32 {
    (count + 1.0).ln()
}

/// Appends the words of `bytes`: floats, or integers as `convert` makes floats of them.
fn words(bytes: &[u8], integers: bool, convert: impl Fn(i32) -> f32, to: &mut Vec<f32>) {
    let words = bytes.as_chunks().0.iter();
    match integers {
        false => to.extend(words.map(|&word| f32::from_le_bytes(word))),
        true => to.extend(words.map(|&word| convert(i32::from_le_bytes(word)))),
    }
}

impl SampleSink for Staging {
    fn is_full(&self) -> bool {
        self.samples >= self.most || self.ids >= MAX_BATCH_IDS
    }

    fn begin(&mut self, before: &[u8]) {
        self.floats(before);
        self.samples += 1;
        (self.slot, self.is_open) = (0, true);
    }

    fn list(&mut self, keys: &[u8], width: KeyType) {
        if let Some(lists) = self.features.get_mut(self.slot) {
            self.ids += lists.push(keys, width);
        }
        self.slot += 1;
    }

    fn end(&mut self) {
        self.is_open = false;
    }

    fn room(&self) -> usize {
        Self::room(self).max(1)
    }

    fn alike(&mut self, bytes: &[u8], samples: &AlikeSamples) {
        let count = bytes.len() / samples.stride;
        let (at, len) = samples.floats;
        for sample in bytes.chunks_exact(samples.stride) {
            self.floats(sample.get(at..at + len).unwrap_or_default());
        }
        for (lists, &(at, keys)) in self.features.iter_mut().zip(&samples.lists) {
            lists.alike(bytes, (at, keys), samples);
            self.ids += count * keys;
        }
        self.samples += count;
    }
}
