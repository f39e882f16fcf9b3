//! The rules of n-grams by the names of models' tables.

use std::sync::Arc;

use crate::error::NgramError;
use crate::ngram::{NgramHash, NgramRules};
use crate::text_hash::TextHash;

/// An n-gram table of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NgramModel {
    /// DeepSeek-V4.1-Flash, the table of layer 1.
    EngramLayer1,
    /// DeepSeek-V4.1-Flash, the table of layer 14.
    EngramLayer14,
    /// Qwen3.8-Flash-Next.
    Ple,
}

/// Words of DeepSeek's tokens.
const ENGRAM_WORDS: u32 = 99_092;

impl NgramModel {
    const ALL: [(Self, &'static str); 3] =
        [(Self::EngramLayer1, "engram-1"), (Self::EngramLayer14, "engram-14"), (Self::Ple, "ple")];

    /// What they are called.
    pub fn names() -> [&'static str; 3] {
        Self::ALL.map(|(_, name)| name)
    }

    /// The model of a name.
    ///
    /// # Errors
    /// [`NgramError::Model`], if there is none.
    pub fn named(name: &str) -> Result<Self, NgramError> {
        let found = Self::ALL.into_iter().find(|(_, known)| *known == name);
        found.map(|(model, _)| model).ok_or_else(|| NgramError::Model { names: Self::names().join(", ") })
    }

    /// The hash of texts, of tokens with these words; without, a token is its own word. `end` is the token that ends a text, if it is not
    /// the model's own.
    ///
    /// # Errors
    /// [`NgramError::Words`], if the words are not the model's; [`NgramError::NoWord`], if `end` has none.
    pub fn text(self, words: Option<Arc<[u32]>>, end: Option<u32>) -> Result<TextHash, NgramError> {
        let own_words = || (0..ENGRAM_WORDS).collect();
        let mut rules = match self {
            Self::EngramLayer1 => NgramRules::deepseek_v41_flash(0, words.unwrap_or_else(own_words))?,
            Self::EngramLayer14 => NgramRules::deepseek_v41_flash(1, words.unwrap_or_else(own_words))?,
            Self::Ple => NgramRules { words, ..NgramRules::qwen38_flash_next() },
        };
        if let (Some(end), Some(_)) = (end, rules.stop) {
            // Such a model has one token that ends texts, and stands for those before their beginnings.
            let word = rules.words.as_ref().map_or(Some(end), |words| words.get(end as usize).copied());
            let word = word.ok_or(NgramError::NoWord { token: end.into() })?;
            (rules.fill, rules.stop) = (word.into(), Some(word.into()));
        }
        Ok(TextHash::new(NgramHash::new(rules)?, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_names() {
        let rows: Vec<u64> = NgramModel::names()
            .iter()
            .map(|name| NgramModel::named(name).unwrap().text(None, None).unwrap().hash().rows())
            .collect();
        assert_eq!(rows, [384_006_168, 384_016_682, 320_001_446]);
        let error = NgramModel::named("gemma").unwrap_err().to_string();
        assert_eq!(error, "no such model is known here: there are engram-1, engram-14, ple");
    }

    #[test]
    fn an_end_of_ones_own_fills_too() {
        let text = NgramModel::Ple.text(None, Some(7)).unwrap();
        assert_eq!((text.hash().rules().fill, text.hash().rules().stop), (7, Some(7)));
        let text = NgramModel::Ple.text(Some([5, 6, 9].into()), Some(2)).unwrap();
        assert_eq!((text.hash().rules().fill, text.hash().rules().stop), (9, Some(9)));
        assert_eq!(NgramModel::Ple.text(Some([5, 6, 9].into()), Some(3)), Err(NgramError::NoWord { token: 3 }));
        // Of DeepSeek's the filler is the word of token 2, whatever ends a text.
        let text = NgramModel::EngramLayer1.text(Some([5, 6, 9].into()), Some(1)).unwrap();
        assert_eq!((text.hash().rules().fill, text.hash().rules().stop), (9, None));
    }
}
