//! Rows of n-grams, compared with those that `ngram/goldens.py` computes by the publishers' formulas, and with each other: in sequences,
//! with history, by heads.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use warprow_keys::{DEAD_TOKEN, NgramError, NgramHash, NgramRules, TokenBatch};

/// Tokens, and the ids of each.
type Text = (Vec<i64>, Vec<i64>);

/// The texts of a model.
fn goldens(model: &str) -> Vec<Text> {
    let mut texts = BTreeMap::<u64, Text>::new();
    for line in include_str!("ngram/goldens.txt").lines() {
        let Some(numbers) = line.strip_prefix(model).and_then(|rest| rest.strip_prefix(' ')) else { continue };
        let numbers: Vec<i64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
        let (tokens, ids) = texts.entry(numbers[0] as u64).or_default();
        tokens.push(numbers[1]);
        ids.extend(&numbers[2..]);
    }
    assert!(texts.len() >= 3, "{model}");
    texts.into_values().collect()
}

/// The stand-in of goldens.py for the map of the tokenizer.
fn words() -> Arc<[u32]> {
    const IMAGE: u32 = 128_799;
    (0..129_280).map(|token| if token == IMAGE { DEAD_TOKEN } else { (token * 7 + 3) % 99_092 }).collect()
}

fn engram(table: usize) -> NgramHash {
    NgramHash::new(NgramRules::deepseek_v41_flash(table, words()).unwrap()).unwrap()
}

fn qwen() -> NgramHash {
    NgramHash::new(NgramRules::qwen38_flash_next()).unwrap()
}

fn ids<T: Copy + Into<i64>>(hash: &NgramHash, batch: &TokenBatch<'_, T>) -> Vec<i64> {
    let mut ids = vec![7; batch.tokens.len() * hash.columns().len()];
    hash.ids(batch, &mut ids).unwrap();
    ids
}

#[test]
fn published_formulas_give_the_same() {
    for (model, hash) in [("qwen", qwen()), ("engram0", engram(0)), ("engram1", engram(1))] {
        for (number, (tokens, expected)) in goldens(model).into_iter().enumerate() {
            assert_eq!(ids(&hash, &TokenBatch::new(&tokens)), expected, "{model}, text {number}");
            let narrow: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
            assert_eq!(ids(&hash, &TokenBatch::new(&narrow)), expected, "{model}, text {number}, i32");
        }
    }
}

/// Sums of the primes are the rows of the checkpoints' tables.
#[test]
fn tables_have_as_many_rows_as_the_checkpoints() {
    assert_eq!((engram(0).rows(), engram(1).rows()), (384_006_168, 384_016_682));
    assert_eq!((qwen().rows(), qwen().rows().next_multiple_of(128)), (320_001_446, 320_001_536));
    assert_eq!((engram(0).order(), engram(0).columns(), qwen().order(), qwen().columns()), (4, 0..24, 3, 0..16));
}

/// A text that comes in several pieces, beside others, gives the ids of the whole; tokens outside of all sequences, and negative ones,
/// are padding.
#[test]
fn pieces_with_their_history_are_the_whole() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let hash = [qwen(), engram(rng.usize(0..2))][usize::from(rng.bool())].clone();
        let (kept, columns) = (hash.order() - 1, hash.columns().len());
        let mut token = || [248_044, 128_799, 1, rng.i64(0..129_280)][rng.usize(0..4)];
        let texts: Vec<Vec<i64>> = (0..4).map(|number| (0..number * 5 + 1).map(|_| token()).collect()).collect();
        let wholes: Vec<Vec<i64>> = texts.iter().map(|text| ids(&hash, &TokenBatch::new(text))).collect();
        let before = rng.usize(0..3);
        let newest_first = rng.bool();
        let (mut tokens, mut starts, mut history) = (vec![9; before], vec![before as u32], Vec::new());
        let mut expected = vec![-1; before * columns];
        for (text, whole) in texts.iter().zip(&wholes) {
            let begin = rng.usize(0..=text.len());
            let end = rng.usize(begin..=text.len());
            tokens.extend(&text[begin..end]);
            expected.extend(&whole[begin * columns..end * columns]);
            starts.push(tokens.len() as u32);
            let mut known: Vec<i64> = (1..=kept).map(|age| begin.checked_sub(age).map_or(-1, |at| text[at])).collect();
            if !newest_first {
                known.reverse();
            }
            history.extend(known);
        }
        let after = rng.usize(0..3);
        tokens.extend(vec![9; after]);
        expected.extend(vec![-1; after * columns]);
        let batch = TokenBatch { tokens: &tokens, starts: &starts, history: &history, newest_first };
        assert_eq!(ids(&hash, &batch), expected, "seed {seed}");
    }
}

/// What has no word is padding, and for the tokens behind it as if the text began there.
#[test]
fn tokens_without_a_word_are_padding() {
    for hash in [qwen(), engram(1)] {
        let columns = hash.columns().len();
        let whole = ids(&hash, &TokenBatch::new(&[5, -1, 6, 7]));
        let behind = ids(&hash, &TokenBatch::new(&[6, 7]));
        assert_eq!(whole[columns..2 * columns], vec![-1; columns]);
        assert_eq!(whole[2 * columns..], behind);
    }
    let columns = 24;
    let whole = ids(&engram(0), &TokenBatch::new(&[5, 129_280, 6]));
    assert_eq!(whole[columns..2 * columns], vec![-1; columns]);
    assert_eq!(whole[2 * columns..], ids(&engram(0), &TokenBatch::new(&[6])));
}

/// Ranks of tensor parallelism have the columns of their heads, and tables of their rows.
#[test]
fn ranks_have_their_heads() {
    let tokens: Vec<i64> = (0..50).map(|number| number * 2_003 % 129_280).collect();
    for hash in [qwen(), engram(0)] {
        let all = ids(&hash, &TokenBatch::new(&tokens));
        let heads = hash.columns().len();
        for ranks in [2, 3, 5, 7] {
            let share = heads.div_ceil(ranks);
            let mut rows = Vec::new();
            for rank in 0..ranks {
                let columns = rank * share..(rank + 1) * share;
                let mine = hash.clone().with_heads(columns.clone()).unwrap();
                rows.push(mine.head_rows());
                let first = mine.head_rows().start;
                let from_zero = mine.clone().with_first_row(first).unwrap();
                let (given, shifted) =
                    (ids(&mine, &TokenBatch::new(&tokens)), ids(&from_zero, &TokenBatch::new(&tokens)));
                for (position, whole) in all.chunks(heads).enumerate() {
                    for (column, head) in columns.clone().enumerate() {
                        let expected = whole.get(head).copied().unwrap_or(-1);
                        let at = position * share + column;
                        assert_eq!(given[at], expected, "{ranks} ranks, rank {rank}, head {head}");
                        let expected = if expected < 0 { -1 } else { expected - first as i64 };
                        assert_eq!(shifted[at], expected, "{ranks} ranks, rank {rank}, head {head}");
                    }
                }
            }
            assert!(rows.windows(2).all(|pair| pair[0].end == pair[1].start), "{rows:?}");
            assert_eq!((rows[0].start, rows[ranks - 1].end), (0, hash.rows()));
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let hash = qwen();
    let tokens = [1i64, 2, 3];
    let refused = |batch: &TokenBatch<'_, i64>, places: usize| {
        let error = hash.ids(batch, &mut vec![0; places]).unwrap_err();
        assert!(matches!(error, NgramError::Batch(_)), "{error}");
    };
    let batch = TokenBatch::new(&tokens);
    refused(&batch, 47);
    refused(&TokenBatch { starts: &[0, 4], ..batch }, 48);
    refused(&TokenBatch { starts: &[2, 1, 3], ..batch }, 48);
    refused(&TokenBatch { history: &[1], ..batch }, 48);
    refused(&TokenBatch { starts: &[0, 1, 3], history: &[1, 2], ..batch }, 48);
    hash.ids(&TokenBatch { starts: &[3], ..batch }, &mut [0; 48]).unwrap();
    let rules = NgramRules::qwen38_flash_next();
    for wrong in [
        NgramRules { multipliers: vec![1], ..rules.clone() },
        NgramRules { multipliers: vec![1; 9], ..rules.clone() },
        NgramRules { heads_per_order: 0, ..rules.clone() },
        NgramRules { heads_per_order: usize::MAX, ..rules.clone() },
        NgramRules { table: usize::MAX, ..rules.clone() },
        NgramRules { first_prime: 1, ..rules.clone() },
        NgramRules { first_prime: u64::MAX, ..rules.clone() },
        NgramRules { fill: u64::MAX, ..rules.clone() },
        NgramRules { stop: Some(1 << 63), ..rules },
    ] {
        assert!(matches!(NgramHash::new(wrong.clone()), Err(NgramError::Rules(_))), "{wrong:?}");
    }
    assert!(matches!(hash.clone().with_heads(3..3), Err(NgramError::Rules(_))));
    assert!(matches!(hash.clone().with_heads(0..usize::MAX), Err(NgramError::Rules(_))));
    assert!(matches!(hash.clone().with_first_row(1), Err(NgramError::Rules(_))));
    assert!(matches!(NgramRules::deepseek_v41_flash(2, words()), Err(NgramError::Rules(_))));
    for (token, spoilt) in [(5, 99_092), (2, DEAD_TOKEN)] {
        let mut words = words().to_vec();
        words[token] = spoilt;
        let refused = NgramRules::deepseek_v41_flash(0, words.into());
        assert!(matches!(refused, Err(NgramError::Words { token: it, limit: 99_092 }) if it == token), "{refused:?}");
    }
    assert!(NgramRules::deepseek_v41_flash(0, Arc::default()).is_err());
}
