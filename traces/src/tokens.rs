//! Text as token ids, each of which looks up rows of an n-gram table.

use std::path::Path;
use std::sync::Arc;

use warprow_formats::{FileError, FileErrorKind, KeyType};
use warprow_keys::{NgramModel, TextHash};

use crate::block::TraceBlock;
use crate::sample_source::{Opened, SampleSource};
use crate::slot::TraceSlot;
use crate::spec::{QueryBy, TraceSpec};
use crate::stream::stem;
use crate::{fixed, npy};

/// The most tokens that a tokenizer is believed to have.
const MOST_TOKENS: usize = 1 << 24;

/// A text's tokens, as the rows of their n-grams.
struct Tokens {
    spec: TraceSpec,
    /// The tokens, as keys.
    text: Box<dyn SampleSource>,
    hash: TextHash,
    /// Tokens of the text that were read.
    read: TraceBlock,
    /// How many of these were hashed.
    hashed: usize,
    /// Tokens before those.
    before: u64,
    part: Vec<i64>,
    ids: Vec<i64>,
}

pub(crate) fn open(spec: &TraceSpec) -> Result<Opened, FileError> {
    let refuse = |what: String, remedy: String| FileError::new(FileErrorKind::Unclear, &spec.path, what, remedy);
    let hint = format!("add :hash=NAME, one of {}", NgramModel::names().join(", "));
    let Some(name) = &spec.ngrams.hash else {
        return Err(refuse("nothing says which rows its tokens look up".to_owned(), hint));
    };
    let model = NgramModel::named(name).map_err(|error| refuse(error.to_string(), hint))?;
    let words = spec.ngrams.map.as_deref().map(read_map).transpose()?.map(Arc::from);
    let hash = model.text(words, spec.ngrams.end);
    let hash = hash.map_err(|error| refuse(error.to_string(), "look at map= and end=".to_owned()))?;
    let text = spec_of_integers(&spec.path, spec.keys.unwrap_or(KeyType::U32));
    let text = if spec.ending() == "npy" { npy::open(&text)? } else { fixed::ids(&text)? };
    let slots = vec![TraceSlot { name: stem(&spec.path), signed: false }];
    let source = Tokens {
        spec: spec.clone(),
        text: text.source,
        hash,
        read: TraceBlock::default(),
        hashed: 0,
        before: 0,
        part: Vec::new(),
        ids: Vec::new(),
    };
    Ok(Opened { slots, source: Box::new(source) })
}

/// A file of integers, each a sample. What its ending says comes first.
fn spec_of_integers(path: &Path, keys: KeyType) -> TraceSpec {
    let spec = TraceSpec { query: Some(QueryBy::Every), ..TraceSpec::new(path) };
    let ending = spec.ending();
    let told = ending == "npy" || crate::spec::key_type(&ending).is_some();
    TraceSpec { keys: (!told).then_some(keys), ..spec }
}

/// The words of a tokenizer's tokens.
fn read_map(path: &Path) -> Result<Vec<u32>, FileError> {
    let spec = spec_of_integers(path, KeyType::U32);
    let Opened { mut source, .. } = if spec.ending() == "npy" { npy::open(&spec)? } else { fixed::ids(&spec)? };
    let mut map = Vec::new();
    let mut block = TraceBlock::default();
    loop {
        block.reset(1);
        source.fill(&mut block)?;
        if block.is_empty() {
            return Ok(map);
        }
        for &number in block.keys() {
            let number =
                u32::try_from(number).map_err(|_| FileError::damaged(path, format!("{number} is no token")))?;
            map.push(number);
        }
        if map.len() > MOST_TOKENS {
            let what = format!("it has more than {MOST_TOKENS} tokens");
            return Err(FileError::new(FileErrorKind::Unsupported, path, what, "give a number for each token"));
        }
    }
}

impl Tokens {
    /// Hashes the next tokens of those that were read, at most so many.
    fn hash(&mut self, most: usize) -> Result<(), FileError> {
        self.part.clear();
        let keys = self.read.keys().iter().skip(self.hashed).take(most);
        // Those past 2⁶³ are no tokens either.
        self.part.extend(keys.map(|&key| key as i64));
        self.ids.clear();
        self.hash.push(&self.part, &mut self.ids).map_err(|error| {
            let from = self.before + self.hashed as u64;
            let what = format!("of its tokens {from} to {}: {error}", from + self.part.len() as u64 - 1);
            let remedy = "where the model hashes words of its tokens, give these by map=FILE";
            FileError::new(FileErrorKind::Disagree, &self.spec.path, what, remedy)
        })?;
        self.hashed += self.part.len();
        Ok(())
    }
}

impl SampleSource for Tokens {
    fn fill(&mut self, block: &mut TraceBlock) -> Result<(), FileError> {
        let heads = self.hash.heads().max(1);
        while !block.is_full() {
            if self.hashed == self.read.keys().len() {
                self.before += self.hashed as u64;
                self.hashed = 0;
                self.read.reset(1);
                self.text.fill(&mut self.read)?;
                if self.read.is_empty() {
                    break;
                }
            }
            self.hash(block.room().div_ceil(heads))?;
            block.push_even(self.ids.iter().map(|&id| id as u64), heads);
        }
        Ok(())
    }

    fn progress(&self) -> (u64, u64) {
        self.text.progress()
    }
}
