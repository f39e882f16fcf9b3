//! Rows of n-gram tables: which rows of a table the tokens of a text ask for.

use std::ops::Range;
use std::sync::Arc;

use crate::error::NgramError;
use crate::primes::primes_from;
use crate::token_batch::TokenBatch;

/// In [`NgramRules::words`]: a token that takes no part in any n-gram, such as a part of an image. N-grams end at it.
pub const DEAD_TOKEN: u32 = u32::MAX;
/// Tokens of the longest n-gram there may be.
pub const MAX_ORDER: usize = 8;
/// The most heads of all tables of a model up to the one that is hashed for.
const MAX_HEADS: usize = 4096;
/// Primes are below this.
const MAX_PRIME: u64 = 1 << 32;

/// How a model hashes n-grams of tokens. An n-gram of *order* n is a token with the n − 1 tokens before it. Its tokens are multiplied by
/// a number each, and the products are combined by exclusive or. Of the result, each *head* of that order takes the remainder by a prime
/// of its own, which is the row in the head's part of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramRules {
    /// The multipliers of an n-gram's tokens, that of the latest token first. There are n-grams of each order from 2 to their number.
    pub multipliers: Vec<u64>,
    /// How many heads each order has.
    pub heads_per_order: usize,
    /// The heads of all tables of a model have the primes from this number on, one after the other.
    pub first_prime: u64,
    /// Which of the model's tables is meant, from 0 on: the heads of the tables before it have the smaller primes.
    pub table: usize,
    /// The word in the place of a token that is missing, or that an n-gram does not reach.
    pub fill: u64,
    /// The word that ends a text: an n-gram that comes after it does not reach it.
    pub stop: Option<u64>,
    /// The word of each token, which is hashed in the token's place; [`DEAD_TOKEN`] for a token that takes no part. `None`: tokens are
    /// their own words.
    pub words: Option<Arc<[u32]>>,
}

impl NgramRules {
    /// The rules of Qwen3.8-Flash-Next: 16 ids a token, of which 8 are for orders 2 and 3 each, in a table of 320,001,446 rows and 90
    /// that no token asks for. The multipliers are those that its checkpoint has as `layer_multipliers`.
    pub fn qwen38_flash_next() -> Self {
        const END_OF_TEXT: u64 = 248_044;
        Self {
            multipliers: vec![23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071],
            heads_per_order: 8,
            first_prime: 20_000_000,
            table: 0,
            fill: END_OF_TEXT,
            stop: Some(END_OF_TEXT),
            words: None,
        }
    }

    /// The rules of DeepSeek-V4.1-Flash for the table of layer 1 (`table` 0) or of layer 14 (`table` 1): 24 ids a token, of which 8 are
    /// for orders 2, 3 and 4 each. `words` has the number in the compressed vocabulary for each token of the tokenizer, and
    /// [`DEAD_TOKEN`] for tokens of images.
    ///
    /// # Errors
    /// [`NgramError::Rules`], if there is no such table; [`NgramError::Words`], if `words` are not the words of that model.
    pub fn deepseek_v41_flash(table: usize, words: Arc<[u32]>) -> Result<Self, NgramError> {
        const COMPRESSED: u32 = 99_092;
        const PADDING: usize = 2;
        const MULTIPLIERS: [[u64; 4]; 2] = [
            [76_632_096_046_245, 4_839_876_093_313, 35_959_672_319_349, 73_987_337_458_391],
            [67_716_810_739_261, 51_510_806_800_915, 30_921_347_202_721, 82_619_226_485_591],
        ];
        let Some(multipliers) = MULTIPLIERS.get(table) else {
            return Err(NgramError::Rules("DeepSeek-V4.1-Flash has table 0 (of layer 1) and table 1 (of layer 14)"));
        };
        if let Some(token) = words.iter().position(|&word| word != DEAD_TOKEN && word >= COMPRESSED) {
            return Err(NgramError::Words { token, limit: COMPRESSED });
        }
        match words.get(PADDING) {
            Some(&fill) if fill != DEAD_TOKEN => Ok(Self {
                multipliers: multipliers.to_vec(),
                heads_per_order: 8,
                first_prime: 16_000_000,
                table,
                fill: fill.into(),
                stop: None,
                words: Some(words),
            }),
            _ => Err(NgramError::Words { token: PADDING, limit: COMPRESSED }),
        }
    }
}

/// A head of an order: its part of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NgramHead {
    /// How many rows it has.
    pub prime: u64,
    /// The first of them in the table.
    pub first_row: u64,
}

/// The hash of n-grams for one table of a model: tokens to rows. Which *columns* it gives, one id for each token and column, can be
/// chosen: by default a column for each head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NgramHash {
    rules: NgramRules,
    heads: Vec<NgramHead>,
    columns: Range<usize>,
    first_row: u64,
}

impl NgramHash {
    /// The hash with these rules, for all heads.
    ///
    /// # Errors
    /// [`NgramError::Rules`], if no model can have such rules.
    pub fn new(rules: NgramRules) -> Result<Self, NgramError> {
        let wrong = |what| Err(NgramError::Rules(what));
        let order = rules.multipliers.len();
        if !(2..=MAX_ORDER).contains(&order) {
            return wrong("there are 2 to 8 multipliers, one for each token of the longest n-gram");
        }
        let count = rules.heads_per_order.saturating_mul(order - 1);
        let all = rules.table.saturating_add(1).saturating_mul(count);
        if count == 0 || all > MAX_HEADS {
            return wrong("the tables up to this one have 1 to 4,096 heads together");
        }
        if !(2..MAX_PRIME).contains(&rules.first_prime) {
            return wrong("primes lie between 2 and 2³²");
        }
        // The highest two numbers say that a token has no word.
        if [Some(rules.fill), rules.stop].into_iter().flatten().any(|word| word > i64::MAX as u64) {
            return wrong("words are below 2⁶³");
        }
        let mut rows = 0;
        let primes = primes_from(rules.first_prime, all).skip(all - count);
        let heads: Vec<_> = primes
            .map(|prime| {
                let first_row = rows;
                rows += prime;
                NgramHead { prime, first_row }
            })
            .collect();
        let columns = 0..heads.len();
        Ok(Self { rules, heads, columns, first_row: 0 })
    }

    /// Makes a hash for the columns of some heads, as a rank of tensor parallelism wants them. Columns past the last head have the id
    /// −1, so that each of several ranks can have as many.
    ///
    /// # Errors
    /// [`NgramError::Rules`], if there are no columns, or more than heads can be.
    pub fn with_heads(self, heads: Range<usize>) -> Result<Self, NgramError> {
        if heads.is_empty() || heads.end > MAX_HEADS {
            return Err(NgramError::Rules("a hash has 1 column or more, and none past the 4,096th head"));
        }
        Ok(Self { columns: heads, ..self })
    }

    /// Makes a hash for a table that has the rows from `first_row` on alone, and counts them from 0.
    ///
    /// # Errors
    /// [`NgramError::Rules`], if heads of the columns have rows before that.
    pub fn with_first_row(self, first_row: u64) -> Result<Self, NgramError> {
        match self.head_rows() {
            rows if rows.start < first_row => Err(NgramError::Rules("heads of the columns have rows before the first")),
            _ => Ok(Self { first_row, ..self }),
        }
    }

    /// The rules.
    pub fn rules(&self) -> &NgramRules {
        &self.rules
    }

    /// Tokens of the longest n-gram.
    pub fn order(&self) -> usize {
        self.rules.multipliers.len()
    }

    /// All heads of the table, those of the smallest order first.
    pub fn heads(&self) -> &[NgramHead] {
        &self.heads
    }

    /// The heads whose ids the hash gives, a column each; those past the last head are none.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// How many rows all heads have together: a table with fewer rows is not the model's.
    pub fn rows(&self) -> u64 {
        self.heads.last().map_or(0, |head| head.first_row + head.prime)
    }

    /// The rows of the whole table that the heads of the columns have: what `rows=` of an attached table takes.
    pub fn head_rows(&self) -> Range<u64> {
        let edge = |head: usize| self.heads.get(head).map_or(self.rows(), |head| head.first_row);
        edge(self.columns.start)..edge(self.columns.end)
    }

    /// The row that has the id 0.
    pub fn first_row(&self) -> u64 {
        self.first_row
    }

    /// Ids of the n-grams that end at each token, a row of ids for each token, one for each column. −1 for tokens that are padding: those
    /// that belong to no sequence, and those that are negative or have no word.
    ///
    /// # Errors
    /// [`NgramError::Batch`], if the batch's parts do not fit each other, or there is not an id in `ids` for each token and column.
    pub fn ids<T: Copy + Into<i64>>(&self, batch: &TokenBatch<'_, T>, ids: &mut [i64]) -> Result<(), NgramError> {
        batch.check(self.order())?;
        let columns = self.columns.len();
        if batch.tokens.len().checked_mul(columns) != Some(ids.len()) {
            return Err(NgramError::Batch("the ids have another number of places than tokens times columns"));
        }
        ids.fill(-1);
        for sequence in 0..batch.sequences() {
            for position in batch.range(sequence) {
                let Some(mixed) = self.mix(|back| batch.token(self.order(), sequence, position, back)) else {
                    continue;
                };
                let row = ids.get_mut(position * columns..(position + 1) * columns).unwrap_or_default();
                for (id, column) in row.iter_mut().zip(self.columns.clone()) {
                    let Some(head) = self.heads.get(column) else { continue };
                    let mixed = mixed.get(column / self.rules.heads_per_order).copied().unwrap_or_default();
                    *id = (mixed % head.prime + head.first_row - self.first_row) as i64;
                }
            }
        }
        Ok(())
    }

    /// What the n-grams of orders 2 and up come to that end at a token, of which `token` gives the one so many places back, or `None` if
    /// there is none; `None`: the token itself has no word.
    fn mix(&self, token: impl Fn(usize) -> Option<i64>) -> Option<[u64; MAX_ORDER - 1]> {
        let mut mixed = [0; MAX_ORDER - 1];
        let mut sum = 0;
        let mut is_cut = false;
        for (back, multiplier) in self.rules.multipliers.iter().enumerate() {
            let word = if is_cut { Word::None } else { token(back).map_or(Word::None, |token| self.word(token)) };
            let word = match word {
                Word::None if back == 0 => return None,
                Word::Is(word) if back == 0 || Some(word) != self.rules.stop => word,
                _ => {
                    is_cut = true;
                    self.rules.fill
                }
            };
            sum ^= word.wrapping_mul(*multiplier);
            if let Some(mixed) = back.checked_sub(1).and_then(|order| mixed.get_mut(order)) {
                *mixed = sum;
            }
        }
        Some(mixed)
    }

    fn word(&self, token: i64) -> Word {
        let Ok(token) = u64::try_from(token) else { return Word::None };
        let Some(words) = &self.rules.words else { return Word::Is(token) };
        match usize::try_from(token).ok().and_then(|token| words.get(token)) {
            None => Word::None,
            Some(&DEAD_TOKEN) => Word::Dead,
            Some(&word) => Word::Is(word.into()),
        }
    }
}

/// What is hashed in a token's place.
enum Word {
    /// Nothing: there is no token, or it has no word.
    None,
    /// The fill, and in the place of all tokens before it: the token takes no part.
    Dead,
    Is(u64),
}
