//! Building and evaluating indexes: `cargo bench -p warprow-keys -- [KEYS] [THREADS]`. Medians of five; every slot is checked.

use std::ops::ControlFlow;
use std::time::Instant;

use warprow_keys::{FingerprintWidth, IndexOptions, KeyIndex};

const ROUNDS: usize = 5;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<usize>().ok());
    let keys = numbers.next().unwrap_or(10_000_000);
    let threads = numbers.next().unwrap_or(0);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut all: Vec<u64> = (0..keys).map(|_| rng.u64(..)).collect();
    all.sort_unstable();
    all.dedup();
    rng.shuffle(&mut all);
    let options = IndexOptions::default().with_threads(threads).with_fingerprint(FingerprintWidth::Bits16);
    let (seconds, index) = median(|| KeyIndex::build(&all[..], &options, &mut |_| ControlFlow::Continue(())).unwrap());
    let threads = if threads == 0 { std::thread::available_parallelism().map_or(1, usize::from) } else { threads };
    println!(
        "{} keys, {threads} threads: built in {seconds:.3} s, {:.1} M keys/s, {:.1} M keys/s/core; {:.3} bits a key and 16 of fingerprint",
        all.len(),
        all.len() as f64 / seconds / 1e6,
        all.len() as f64 / seconds / 1e6 / threads as f64,
        index.bits_per_key()
    );
    let (decode, _) = median(|| KeyIndex::from_bytes(index.as_bytes().to_vec()).unwrap());
    println!("copied and checked in {decode:.3} s, {:.2} GB/s", index.as_bytes().len() as f64 / decode / 1e9);

    let mut seen = vec![false; all.len()];
    let placed: Vec<u64> = index.place(&all[..], 0).unwrap();
    placed.iter().for_each(|&slot| assert!(!std::mem::replace(&mut seen[slot as usize], true)));
    assert!(seen.iter().all(|&seen| seen));
    // Fresh keys in each round, or caches would answer.
    let asked: usize = 2_000_000.min(all.len());
    let mut rounds = all.chunks_exact(asked).cycle();
    let mut slots = vec![0; asked];
    let (batch, ()) = median(|| index.positions(rounds.next().unwrap(), &mut slots));
    let mut sum = 0;
    let (single, ()) = median(|| {
        sum += rounds.next().unwrap().iter().map(|&key| index.position(key).unwrap()).sum::<u64>();
    });
    let foreign: Vec<u64> = (0..asked).map(|_| rng.u64(..)).collect();
    let (absent, ()) = median(|| index.positions(&foreign, &mut slots));
    let passed = slots.iter().filter(|&&slot| slot != KeyIndex::ABSENT).count();
    let ns = |seconds: f64| seconds * 1e9 / asked as f64;
    println!(
        "one thread, {asked} keys: {:.1} ns a key in batches, {:.1} ns one by one, {:.1} ns a foreign key, of which {passed} passed ({:.1} expected); sum {sum}",
        ns(batch),
        ns(single),
        ns(absent),
        asked as f64 / 65536.0
    );
}

fn median<T>(mut run: impl FnMut() -> T) -> (f64, T) {
    let mut times = Vec::new();
    let mut last = None;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        last = Some(run());
        times.push(began.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    (times[ROUNDS / 2], last.unwrap())
}
