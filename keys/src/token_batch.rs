//! Tokens of several texts, as engines give them.

use std::ops::Range;

use crate::error::NgramError;

/// Tokens of one or several sequences, one after the other, to be hashed ([`NgramHash::ids`](crate::NgramHash::ids)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBatch<'a, T> {
    /// The tokens, `i32` or `i64`. Negative ones are padding.
    pub tokens: &'a [T],
    /// Where each sequence begins among them, and behind it where the last one ends; tokens outside are padding. Empty: all tokens are
    /// one sequence.
    pub starts: &'a [u32],
    /// For each sequence, the tokens before its first one: one fewer than the longest n-gram has. A negative one is missing, and so are
    /// those before it. Empty: each sequence begins a text.
    pub history: &'a [T],
    /// Whether a sequence's history begins with the latest of its tokens.
    pub newest_first: bool,
}

impl<'a, T: Copy + Into<i64>> TokenBatch<'a, T> {
    /// One sequence that begins a text.
    pub fn new(tokens: &'a [T]) -> Self {
        Self { tokens, starts: &[], history: &[], newest_first: false }
    }

    pub(crate) fn sequences(&self) -> usize {
        if self.starts.is_empty() { 1 } else { self.starts.len() - 1 }
    }

    /// The positions of a sequence.
    pub(crate) fn range(&self, sequence: usize) -> Range<usize> {
        match (self.starts.get(sequence), self.starts.get(sequence + 1)) {
            (Some(&begin), Some(&end)) => begin as usize..end as usize,
            _ => 0..self.tokens.len(),
        }
    }

    /// The token so many places before a position of a sequence, its history included; `None`: there is none.
    pub(crate) fn token(&self, order: usize, sequence: usize, position: usize, back: usize) -> Option<i64> {
        let within = position - self.range(sequence).start;
        if back <= within {
            return self.tokens.get(position - back).map(|&token| token.into());
        }
        let (kept, age) = (order - 1, back - within - 1);
        if self.history.is_empty() || age >= kept {
            return None;
        }
        let place = if self.newest_first { age } else { kept - 1 - age };
        self.history.get(sequence * kept + place).map(|&token| token.into())
    }

    pub(crate) fn check(&self, order: usize) -> Result<(), NgramError> {
        if !self.starts.is_sorted() || self.starts.last().is_some_and(|&end| end as usize > self.tokens.len()) {
            return Err(NgramError::Batch("sequences begin before the one before them, or end behind the last token"));
        }
        if !self.history.is_empty() && self.history.len() != self.sequences() * (order - 1) {
            return Err(NgramError::Batch(
                "the history has another number of tokens than one fewer than the longest n-gram for each sequence",
            ));
        }
        Ok(())
    }
}
