//! What a machine lets threads copy side by side: random blocks out of memory, without a ring, a drive or a GPU. Where that does not scale,
//! nothing that moves the same data can.

use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use warprow_dma::DmaMemory;
use warprow_soft_controller::{Backing, RamBacking};
use warprow_workload::SeededRandom;

use crate::Cores;

/// Blocks whose data is fetched ahead of the one that is copied.
const AHEAD: u64 = 16;
/// Places that blocks are copied to, in turn.
const PLACES: u64 = 256;
/// Blocks between two looks at the clock.
const TURN: u64 = 64;

/// Threads, each with memory of its own.
#[derive(Debug)]
pub struct Copies {
    sources: Vec<Source>,
    block: usize,
}

#[derive(Debug)]
struct Source {
    memory: RamBacking,
    blocks: u64,
    landing: DmaMemory,
}

impl Copies {
    /// `threads`, each of which copies blocks of `block` bytes (a multiple of 8) out of `bytes`. Where drives keep theirs, in the same kind
    /// of memory.
    pub fn new(threads: u32, bytes: u64, block: usize) -> anyhow::Result<Self> {
        ensure!(block >= 8 && block.is_multiple_of(8), "blocks of {block} B: multiples of 8 are possible");
        let blocks = bytes / block as u64;
        ensure!(blocks > 0, "{bytes} B are no block of {block} B");
        let source = |_| {
            let memory = RamBacking::new(blocks * block as u64)?;
            let landing = DmaMemory::allocate(PLACES as usize * block, warprow_dma::MemoryKind::Anonymous)?;
            for number in 0..blocks {
                landing.store_u64(0, number);
                memory.write(number * block as u64, &landing, 0, block)?;
            }
            anyhow::Ok(Source { memory, blocks, landing })
        };
        Ok(Self { sources: (0..threads).map(source).collect::<anyhow::Result<_>>()?, block })
    }

    /// All of them for `time`, thread `n` where `cores` has its nth that answers: blocks a second of each. Every block is compared by its number.
    pub fn round(&self, cores: Option<&Cores>, time: Duration, seed: u64) -> anyhow::Result<Vec<f64>> {
        // All begin when the last is there; if one cannot be had, none does.
        let go = OnceLock::new();
        let go = &go;
        thread::scope(|scope| {
            let threads: Vec<_> = (self.sources.iter().enumerate())
                .map(|(nth, source)| {
                    let random = SeededRandom::new(seed ^ nth as u64);
                    let work = move || if *go.wait() { source.copy(self.block, time, random) } else { Ok(0.0) };
                    Cores::answering(cores, nth, || thread::Builder::new().spawn_scoped(scope, work))
                })
                .collect();
            let _ = go.set(threads.iter().all(Result::is_ok));
            let joined = |thread: std::io::Result<thread::ScopedJoinHandle<'_, _>>| {
                thread?.join().ok().context("a thread that copies panicked")?
            };
            threads.into_iter().map(joined).collect()
        })
    }
}

impl Source {
    fn copy(&self, block: usize, time: Duration, mut random: SeededRandom) -> anyhow::Result<f64> {
        let mut next = || random.below(self.blocks);
        let mut ahead = [0; AHEAD as usize];
        ahead.fill_with(&mut next);
        let began = Instant::now();
        let mut done = 0u64;
        while began.elapsed() < time {
            for _ in 0..TURN {
                let slot = &mut ahead[(done % AHEAD) as usize];
                let number = std::mem::replace(slot, next());
                self.memory.prefetch(*slot * block as u64, block);
                let place = (done % PLACES) as usize * block;
                self.memory.read(number * block as u64, &self.landing, place, block)?;
                ensure!(self.landing.load_u64(place) == number, "block {number} was copied wrong");
                done += 1;
            }
        }
        Ok(done as f64 / began.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_threads_copy_what_is_theirs() {
        let copies = Copies::new(2, 1 << 20, 512).unwrap();
        let rates = copies.round(None, Duration::from_millis(2), 7).unwrap();
        assert_eq!(rates.len(), 2);
        assert!(rates.iter().all(|&rate| rate > 0.0), "{rates:?}");
        assert!(Copies::new(1, 100, 512).is_err());
        assert!(Copies::new(1, 4096, 12).is_err());
    }
}
