//! Texts one after the other, read in parts, as ids of n-grams.

use crate::error::NgramError;
use crate::ngram::NgramHash;
use crate::token_batch::TokenBatch;

/// Hashes the n-grams of texts that come in parts of any length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextHash {
    hash: NgramHash,
    /// The token that ends a text.
    end: Option<i64>,
    /// The latest tokens, as many as n-grams reach back, the oldest first; −1: there is none.
    recent: Vec<i64>,
}

impl TextHash {
    /// At the beginning of a text. No n-gram reaches across a token `end`.
    pub fn new(hash: NgramHash, end: Option<u32>) -> Self {
        let recent = vec![-1; hash.order() - 1];
        Self { hash, end: end.map(i64::from), recent }
    }

    /// The hash.
    pub fn hash(&self) -> &NgramHash {
        &self.hash
    }

    /// The token that ends a text, if one does.
    pub fn end(&self) -> Option<i64> {
        self.end
    }

    /// Ids of a token.
    pub fn heads(&self) -> usize {
        self.hash.columns().len()
    }

    /// Appends the ids of the next tokens.
    ///
    /// # Errors
    /// [`NgramError::NoWord`], if a token is none, or has no word; then nothing was read.
    pub fn push(&mut self, tokens: &[i64], ids: &mut Vec<i64>) -> Result<(), NgramError> {
        let words = self.hash.rules().words.as_ref().map_or(i64::MAX, |words| words.len() as i64);
        if let Some(&token) = tokens.iter().find(|&&token| token < 0 || token >= words) {
            return Err(NgramError::NoWord { token });
        }
        if u32::try_from(tokens.len()).is_err() {
            return Err(NgramError::Batch("a part of a text has more than 2³² tokens"));
        }
        let ends = (1u32..).zip(tokens).filter(|(_, token)| Some(**token) == self.end).map(|(behind, _)| behind);
        let mut starts: Vec<u32> = std::iter::once(0).chain(ends).collect();
        let last = starts.last().copied().unwrap_or(0) as usize;
        if last < tokens.len() || tokens.is_empty() {
            starts.push(tokens.len() as u32);
        }
        let mut history = vec![-1; self.recent.len() * (starts.len() - 1)];
        history.iter_mut().zip(&self.recent).for_each(|(place, &token)| *place = token);
        let first = ids.len();
        ids.resize(first + tokens.len() * self.heads(), -1);
        let batch = TokenBatch { tokens, starts: &starts, history: &history, newest_first: false };
        self.hash.ids(&batch, ids.get_mut(first..).unwrap_or_default())?;
        if last > 0 {
            self.recent.fill(-1);
        }
        self.recent.extend_from_slice(tokens.get(last..).unwrap_or_default());
        self.recent.drain(..self.recent.len() - (self.hash.order() - 1));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NgramModel;

    #[test]
    fn texts_may_come_in_parts() {
        for name in NgramModel::names() {
            let new = || NgramModel::named(name).unwrap().text(None, Some(9)).unwrap();
            let tokens: Vec<i64> = (0..60).map(|at| if at % 17 == 16 { 9 } else { at * 1999 % 99_000 }).collect();
            let mut whole = Vec::new();
            new().push(&tokens, &mut whole).unwrap();
            assert_eq!(whole.len(), 60 * new().heads());
            for size in [1, 2, 3, 7, 16, 17, 59] {
                let (mut text, mut ids) = (new(), Vec::new());
                tokens.chunks(size).for_each(|part| text.push(part, &mut ids).unwrap());
                text.push(&[], &mut ids).unwrap();
                assert_eq!(ids, whole, "{name}, parts of {size}");
            }
            // Each text by itself.
            let (mut apart, heads) = (Vec::new(), new().heads());
            for part in tokens.split_inclusive(|&token| token == 9) {
                new().push(part, &mut apart).unwrap();
            }
            assert_eq!(apart, whole, "{name}");
            assert!(whole.chunks(heads).all(|ids| ids.iter().all(|&id| id >= 0)));
        }
    }

    #[test]
    fn tokens_without_a_word_are_refused() {
        let mut text = NgramModel::EngramLayer1.text(Some([5, 6, 9].into()), None).unwrap();
        let mut ids = Vec::new();
        assert_eq!(text.push(&[0, 3], &mut ids), Err(NgramError::NoWord { token: 3 }));
        assert_eq!(text.push(&[-1], &mut ids), Err(NgramError::NoWord { token: -1 }));
        assert!(ids.is_empty());
        let new = || NgramModel::EngramLayer1.text(Some([5, 6, 9].into()), None).unwrap();
        let mut wanted = Vec::new();
        new().push(&[1], &mut wanted).unwrap();
        text.push(&[1], &mut ids).unwrap();
        assert_eq!(ids, wanted);
    }
}
