//! A trace, whatever its format.

use warprow_formats::{FileError, FileErrorKind, KeyType};

use crate::block::TraceBlock;
use crate::sample_source::{Opened, SampleSource};
use crate::slot::TraceSlot;
use crate::spec::{NgramSpec, QueryBy, TraceFormat, TraceSpec};
use crate::{csv, fixed, norm, npy, npz, parquet, tokens};

/// Recorded look-ups. Ends with the last sample, or with the first error.
pub struct Trace {
    spec: TraceSpec,
    format: TraceFormat,
    slots: Vec<TraceSlot>,
    source: Box<dyn SampleSource>,
    /// For each slot, how many keys the slots before it have, and how many it has.
    sizes: Vec<(u64, u64)>,
    /// How many slots the source has, and which of them is wanted, if not all.
    all: usize,
    only: Option<usize>,
    samples: u64,
    ended: bool,
}

impl std::fmt::Debug for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("spec", &self.spec).field("slots", &self.slots).finish_non_exhaustive()
    }
}

impl Trace {
    /// Opens it and reads its headers.
    pub fn open(spec: &TraceSpec) -> Result<Self, FileError> {
        let format = TraceFormat::of(spec)?;
        refuse_settings(spec, format)?;
        let Opened { slots, source } = match format {
            TraceFormat::Ids => fixed::ids(spec)?,
            TraceFormat::Raw => fixed::raw(spec)?,
            TraceFormat::Npy => npy::open(spec)?,
            TraceFormat::Npz => npz::open(spec)?,
            TraceFormat::Csv => csv::open(spec)?,
            TraceFormat::Norm => norm::open(spec)?,
            TraceFormat::Parquet => parquet::open(spec)?,
            TraceFormat::Tokens => tokens::open(spec)?,
        };
        let sizes = prefixes(spec, slots.len())?;
        let all = slots.len();
        let mut slots = slots;
        let only = spec.slot.as_ref().map(|name| find(&slots, name).ok_or_else(|| no_slot(spec, &slots, name)));
        let only = only.transpose()?;
        if let Some(only) = only {
            slots = vec![slots.swap_remove(only)];
        }
        Ok(Self { spec: spec.clone(), format, slots, source, sizes, all, only, samples: 0, ended: false })
    }

    /// The names of the slots that a trace can have: the columns that `spec` names; of text without any, all columns, of which
    /// [`open`](Self::open) wants a choice; else the slots that `open` finds. A file without a byte, and text that ends with its
    /// header line, have no look-ups, which is an error ([`empty`](Self::empty)).
    pub fn columns(spec: &TraceSpec) -> Result<Vec<String>, FileError> {
        if std::fs::metadata(&spec.path).is_ok_and(|file| file.is_file() && file.len() == 0) {
            return Err(Self::empty(spec));
        }
        match TraceFormat::of(spec)? {
            TraceFormat::Csv if spec.columns.is_empty() && spec.slot.is_none() => {
                refuse_settings(spec, TraceFormat::Csv)?;
                csv::columns(spec)
            }
            _ => Ok(Self::open(spec)?.slots.into_iter().map(|slot| slot.name).collect()),
        }
    }

    /// What whoever wants look-ups says of a trace that has none ([`FileErrorKind::Empty`]). `open` takes such a trace: it may be a list of
    /// keys that happens to be empty.
    pub fn empty(spec: &TraceSpec) -> FileError {
        spec.no_look_ups()
    }

    /// What it was read as.
    pub fn format(&self) -> TraceFormat {
        self.format
    }

    /// The slots of each sample: at least one.
    pub fn slots(&self) -> &[TraceSlot] {
        &self.slots
    }

    /// The slot of a name, or of a number from 0.
    pub fn slot(&self, name: &str) -> Option<usize> {
        find(&self.slots, name)
    }

    /// Samples read so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Bytes read so far, and bytes of all files; of compressed ones, about.
    pub fn progress(&self) -> (u64, u64) {
        self.source.progress()
    }

    /// Replaces what is in `block` by the next samples; `false` if there are no more.
    pub fn next_block(&mut self, block: &mut TraceBlock) -> Result<bool, FileError> {
        block.reset(self.all);
        if self.ended {
            return Ok(false);
        }
        let filled = self.source.fill(block).and_then(|()| self.shift(block));
        self.ended = filled.is_err() || block.is_empty();
        if let Err(error) = filled {
            block.reset(self.slots.len());
            return Err(error);
        }
        self.samples += block.len() as u64;
        let signed = self.source.signed();
        for (slot, known) in self.slots.iter_mut().zip(signed.iter().skip(self.only.unwrap_or(0))) {
            slot.signed |= known;
        }
        if let Some(only) = self.only {
            block.keep(only);
        }
        Ok(!self.ended)
    }

    fn shift(&self, block: &mut TraceBlock) -> Result<(), FileError> {
        block.shift(&self.sizes).map_err(|(sample, slot, key)| {
            let size = self.sizes.get(slot).map_or(0, |(_, size)| *size);
            let sample = self.samples + sample as u64;
            let what = format!(
                "sample {sample} has the key {key} in slot {slot}, of which the sizes say that it has {size} keys"
            );
            FileError::new(
                FileErrorKind::Disagree,
                &self.spec.path,
                what,
                "look at the order of the sizes, and at the data set",
            )
        })
    }
}

/// The blocks of a trace, each in memory of its own.
impl Iterator for Trace {
    type Item = Result<TraceBlock, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut block = TraceBlock::default();
        match self.next_block(&mut block) {
            Ok(true) => Some(Ok(block)),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }
}

fn find(slots: &[TraceSlot], name: &str) -> Option<usize> {
    let named = slots.iter().position(|slot| slot.name == name);
    named.or_else(|| name.parse().ok().filter(|&slot| slot < slots.len()))
}

fn no_slot(spec: &TraceSpec, slots: &[TraceSlot], name: &str) -> FileError {
    let names: Vec<&str> = slots.iter().map(|slot| &*slot.name).take(40).collect();
    let what = format!("it has no slot {name:?}; its {} slots are: {}", slots.len(), names.join(", "));
    FileError::new(FileErrorKind::Missing, &spec.path, what, "name one of these")
}

/// Where the keys of each slot begin among all, if sizes are given.
fn prefixes(spec: &TraceSpec, slots: usize) -> Result<Vec<(u64, u64)>, FileError> {
    let refuse = |what: String| FileError::new(FileErrorKind::Unclear, &spec.path, what, "give one size for each slot");
    if !spec.sizes.is_empty() && spec.sizes.len() != slots {
        return Err(refuse(format!("it has {slots} slots, and {} sizes are given", spec.sizes.len())));
    }
    let mut before = 0u64;
    let mut prefixes = Vec::new();
    for &size in &spec.sizes {
        prefixes.push((before, size));
        before = before.checked_add(size).ok_or_else(|| refuse("the sizes of its slots pass 2⁶⁴".into()))?;
    }
    Ok(prefixes)
}

/// Settings that say nothing about such a trace would be lost.
fn refuse_settings(spec: &TraceSpec, format: TraceFormat) -> Result<(), FileError> {
    let is = |formats: &[TraceFormat]| formats.contains(&format);
    use TraceFormat::{Csv, Ids, Norm, Npy, Npz, Parquet, Raw, Tokens};
    let lost = [
        ("a column", !spec.columns.is_empty() && !is(&[Csv, Parquet, Npz])),
        ("query=COLUMN", matches!(spec.query, Some(QueryBy::Column(_))) && !is(&[Csv])),
        ("ids=", matches!(spec.query, Some(QueryBy::Ids(_))) && !is(&[Ids, Npy])),
        ("labels=, dense=, slots= or hotness=", spec.labels + spec.dense > 0 && format != Raw),
        ("slots= or hotness=", !spec.hotness.is_empty() && format != Raw),
        ("hash=, map= or end=", spec.ngrams != NgramSpec::default() && format != Tokens),
        ("sizes=", !spec.sizes.is_empty() && format == Tokens),
        ("a type of keys", spec.keys.is_some() && is(&[Npy, Npz, Csv, Parquet])),
        (
            "a type of 32-bit signed or 64-bit unsigned keys",
            matches!(spec.keys, Some(KeyType::I32 | KeyType::U64)) && is(&[Norm, Raw]),
        ),
    ];
    match lost.iter().find(|(_, lost)| *lost) {
        None => Ok(()),
        Some((setting, _)) => {
            let what = format!("{setting} does not belong to such a trace");
            Err(FileError::new(
                FileErrorKind::Unclear,
                &spec.path,
                what,
                "leave it out, or say what kind it is: KIND:PATH",
            ))
        }
    }
}
