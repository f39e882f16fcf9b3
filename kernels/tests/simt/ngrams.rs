//! The kernel that hashes tokens, against the hash on the host.

use std::sync::Arc;

use fastrand::Rng;
use warprow_kernels::abi::{NgramHead, NgramTokens, id};
use warprow_keys::{DEAD_TOKEN, NgramHash, NgramRules, TokenBatch};

use crate::buffer::Buffer;
use crate::shim::{Launch, Shim, seeds};

/// Tokens below this have a word, where tokens have words.
const VOCABULARY: i64 = 500;

/// The hash of a model, or of one like it.
fn hash(rng: &mut Rng) -> NgramHash {
    let words = || -> Vec<u32> { (0..VOCABULARY as u32).map(|token| token * 7 % 300).collect() };
    let rules = match rng.u32(0..4) {
        0 => NgramRules::qwen38_flash_next(),
        1 => {
            let mut words = words();
            words[31] = DEAD_TOKEN;
            NgramRules::deepseek_v41_flash(rng.usize(0..2), words.into()).unwrap()
        }
        _ => NgramRules {
            multipliers: (0..rng.usize(2..=8)).map(|_| rng.u64(..)).collect(),
            heads_per_order: rng.usize(1..4),
            first_prime: rng.u64(2..2000),
            table: rng.usize(0..3),
            fill: rng.u64(0..40),
            stop: rng.bool().then(|| rng.u64(0..40)),
            words: rng.bool().then(|| words().into()),
        },
    };
    let hash = NgramHash::new(rules).unwrap();
    let heads = hash.heads().len();
    match rng.u32(0..3) {
        0 => hash,
        1 => {
            let first = rng.usize(0..heads + 2);
            let last = first + rng.usize(1..heads + 3);
            hash.with_heads(first..last).unwrap()
        }
        _ => {
            let first = rng.usize(0..heads);
            let hash = hash.with_heads(first..heads).unwrap();
            let row = hash.head_rows().start;
            hash.with_first_row(row).unwrap()
        }
    }
}

fn numbers(values: &[i64], wide: bool) -> Buffer {
    Buffer::of_all(
        values
            .iter()
            .map(|value| value.to_le_bytes())
            .map(|bytes| bytes[..if wide { 8 } else { 4 }].to_vec())
            .collect::<Vec<_>>()
            .iter()
            .map(|bytes| &bytes[..]),
    )
}

/// What the kernel writes, by the host's names for it.
fn by_kernel(
    shim: &mut Shim,
    (hash, batch): (&NgramHash, &TokenBatch<'_, i64>),
    (wide_tokens, wide_ids): (bool, bool),
    seed: u64,
) -> Result<Vec<i64>, String> {
    let rules = hash.rules();
    let (columns, order) = (hash.columns(), hash.order());
    let places = batch.tokens.len() * columns.len();
    let heads = hash
        .heads()
        .iter()
        .map(|head| NgramHead { prime: head.prime, first_row: head.first_row.wrapping_sub(hash.first_row()) });
    let heads = Buffer::of_all(heads.collect::<Vec<_>>().iter().map(NgramHead::as_bytes));
    let tokens = numbers(batch.tokens, wide_tokens);
    let history = numbers(batch.history, wide_tokens);
    let starts = Buffer::of(&batch.starts.iter().flat_map(|start| start.to_le_bytes()).collect::<Vec<u8>>());
    let no_words = Arc::<[u32]>::default();
    let words = rules.words.as_ref().unwrap_or(&no_words);
    let words_there = Buffer::of(&words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>());
    let size = if wide_ids { 8 } else { 4 };
    let ids = Buffer::new(places * size);
    let at = |buffer: &Buffer| if buffer.is_empty() { 0 } else { buffer.address() };
    let mut multipliers = [0; 8];
    multipliers[..order].copy_from_slice(&rules.multipliers);
    let id_type = |wide: bool| if wide { id::I64 } else { id::I32 };
    let parameter = NgramTokens {
        tokens: at(&tokens),
        starts: at(&starts),
        history: at(&history),
        words: at(&words_there),
        heads: heads.address(),
        ids: at(&ids),
        token_count: batch.tokens.len() as u64,
        word_count: words.len() as u64,
        fill: rules.fill,
        stop: rules.stop.unwrap_or(u64::MAX),
        multipliers,
        sequences: batch.starts.len().saturating_sub(1) as u32,
        order: order as u32,
        heads_per_order: rules.heads_per_order as u32,
        head_count: hash.heads().len() as u32,
        first_head: columns.start as u32,
        columns: columns.len() as u32,
        token_type: id_type(wide_tokens),
        id_type: id_type(wide_ids),
        newest_first: batch.newest_first.into(),
        unused: 0,
    };
    let blocks = 1 + (seed % 3) as u32;
    shim.hash_ngrams(&Launch::new("warprow_ngrams", blocks, 256), &parameter, seed)?;
    if ![&tokens, &history, &starts, &words_there, &heads, &ids].iter().all(|buffer| buffer.is_sound()) {
        return Err("something was written behind the end of a buffer".to_owned());
    }
    Ok(match wide_ids {
        true => ids.longs().iter().map(|&id| id as i64).collect(),
        false => ids.words().iter().map(|&id| i64::from(id as i32)).collect(),
    })
}

pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut rng = Rng::with_seed(seed);
    let hash = hash(&mut rng);
    let mut token = || match rng.u32(0..12) {
        0 => -1,
        1 => 248_044,
        2 => i64::from(i32::MIN),
        3 => 31,
        4 => VOCABULARY,
        _ => rng.i64(0..60),
    };
    let tokens: Vec<i64> = (0..1 + seed as usize % 40).map(|_| token()).collect();
    let sequences = seed as usize % 5;
    let history: Vec<i64> = (0..sequences.max(1) * (hash.order() - 1)).map(|_| token()).collect();
    let mut starts: Vec<u32> = (0..=sequences).map(|_| rng.u32(0..=tokens.len() as u32)).collect();
    starts.sort_unstable();
    let starts = if sequences == 0 { &[][..] } else { &starts };
    let batch = TokenBatch {
        tokens: &tokens,
        starts,
        history: if rng.bool() { &history } else { &[] },
        newest_first: rng.bool(),
    };
    let mut expected = vec![0; tokens.len() * hash.columns().len()];
    hash.ids(&batch, &mut expected).map_err(|error| error.to_string())?;
    // Primes of random rules are small, so that all ids fit.
    let given = by_kernel(shim, (&hash, &batch), (rng.bool(), rng.bool()), seed)?;
    let differs = given.iter().zip(&expected).position(|(given, expected)| given != expected);
    match differs {
        None => Ok(()),
        Some(at) => {
            let (position, column) = (at / hash.columns().len(), at % hash.columns().len());
            let (given, expected) = (given[at], expected[at]);
            Err(format!("position {position}, column {column}: {given}, not {expected} ({batch:?})"))
        }
    }
}

#[test]
fn ids_are_those_of_the_host() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(400) {
        case(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

/// The host refuses such batches; the kernel, which is given starts that it cannot trust, reads and writes nothing outside.
#[test]
fn starts_that_lie_harm_nobody() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(100) {
        let mut rng = Rng::with_seed(seed);
        let hash = hash(&mut rng);
        let tokens: Vec<i64> = (0..rng.usize(1..30)).map(|_| rng.i64(0..60)).collect();
        let starts: Vec<u32> = (0..rng.usize(2..8)).map(|_| [rng.u32(..), rng.u32(0..40)][rng.usize(0..2)]).collect();
        let batch = TokenBatch { tokens: &tokens, starts: &starts, history: &[], newest_first: false };
        let ids = by_kernel(&mut shim, (&hash, &batch), (true, true), seed)
            .unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        let rows = hash.rows() as i64;
        assert!(ids.iter().all(|id| (-1..rows).contains(id)), "seed {seed}: {ids:?}");
    }
}
