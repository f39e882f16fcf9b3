//! What rows that miss cost a cache of the host: `cargo bench -p warprow-cache -- [LINES] [BATCHES]`. As look-ups do it, by one thread: all
//! keys of a batch of 1,024 are looked for, and then each is given a line, to which its row of 512 B is copied. Lines lie in shards behind
//! locks. Beside it the copies alone, each to a place that the loop has not touched for as long. Medians of batches; every row of every line
//! is compared at the end.

use std::sync::Mutex;
use std::time::Instant;

use warprow_cache::{Admission, Cache, Eviction, Found};

const BATCH: usize = 1024;
const ROW: usize = 512;
/// Lines of a shard.
const EACH: usize = 1024;

struct Shard {
    cache: Cache,
    rows: Vec<u8>,
    /// The key of the row that each line has.
    held: Vec<u64>,
}

/// The row of a key: its bytes begin with the key, and go on with its lowest byte.
fn fill(key: u64, row: &mut [u8]) {
    row.fill(key as u8);
    row[..8].copy_from_slice(&key.to_le_bytes());
}

fn shard_of(key: u64, shards: &[Mutex<Shard>]) -> &Mutex<Shard> {
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &shards[((u128::from(hash) * shards.len() as u128) >> 64) as usize]
}

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let lines = numbers.next().unwrap_or(36_000).max(EACH);
    let batches = numbers.next().unwrap_or(2000);
    let shards: Vec<Mutex<Shard>> = (0..lines / EACH)
        .map(|_| {
            let cache = Cache::new(EACH, Eviction::S3Fifo, Admission::Always);
            Mutex::new(Shard { cache, rows: vec![1; EACH * ROW], held: vec![0; EACH] })
        })
        .collect();
    // No key comes again before as many others came as make it unknown.
    let keys_in_all = 16 * lines as u64;
    let key_of = |number: u64| number.wrapping_mul(0x9e37_79b1) % keys_in_all;
    let mut rows = vec![0u8; BATCH * ROW];
    let mut copies = vec![1u8; lines * ROW];
    let mut times: [Vec<f64>; 3] = Default::default();
    for batch in 0..batches as u64 {
        let keys: Vec<u64> = (batch * BATCH as u64..).map(key_of).take(BATCH).collect();
        keys.iter().zip(rows.chunks_exact_mut(ROW)).for_each(|(&key, row)| fill(key, row));
        let began = Instant::now();
        let mut hits = 0;
        for &key in &keys {
            let mut shard = shard_of(key, &shards).lock().expect("no thread panics");
            hits += usize::from(shard.cache.find(key).is_some());
        }
        let found = Instant::now();
        for (&key, row) in keys.iter().zip(rows.chunks_exact(ROW)) {
            let mut shard = shard_of(key, &shards).lock().expect("no thread panics");
            let Shard { cache, rows, held } = &mut *shard;
            let Found::Line(line) = cache.admit(key) else { panic!("key {key} has a line, and was not found") };
            rows[line as usize * ROW..][..ROW].copy_from_slice(row);
            held[line as usize] = key;
        }
        let kept = Instant::now();
        for (&key, row) in keys.iter().zip(rows.chunks_exact(ROW)) {
            let hash = key.wrapping_mul(0xd6e8_feb8_6659_fd93);
            let place = ((u128::from(hash) * lines as u128) >> 64) as usize;
            copies[place * ROW..][..ROW].copy_from_slice(row);
        }
        assert_eq!(hits, 0, "a key came back while it was known");
        // Until then there were free lines.
        if batch as usize * BATCH > 2 * lines {
            let steps = [found - began, kept - found, kept.elapsed()];
            times.iter_mut().zip(steps).for_each(|(times, step)| times.push(step.as_nanos() as f64 / BATCH as f64));
        }
    }
    let mut row = [0; ROW];
    for shard in &shards {
        let shard = shard.lock().expect("no thread panics");
        for (&key, line) in shard.held.iter().zip(shard.rows.chunks_exact(ROW)) {
            fill(key, &mut row);
            assert!(line == row, "the line of key {key} has another row");
            assert!(shard.cache.peek(key).is_some(), "key {key} has lost its line");
        }
    }
    let [find, keep, copy] = times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
    });
    println!(
        "{} lines: a row that misses takes {find:.0} ns to be looked for, and {keep:.0} ns to be kept; its copy alone takes {copy:.0} ns",
        shards.len() * EACH
    );
}
