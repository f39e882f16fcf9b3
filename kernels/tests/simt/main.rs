//! The kernels on the CPU: `simt/` compiles `cuda/lookup.cu` as C++ and runs each lane as a fiber, in orders that seeds decide.
//! `simt/simt.h` says what that cannot see. Where there is no C++ compiler, every test here says so and passes.

use warprow_simt::{batch, buffer, oracle, rig, shim, sparse, world};

mod abi;
mod ablations;
mod adopt;
mod ahead;
mod cache;
mod covered;
mod dedupe;
mod few;
mod ghosts;
mod keys;
mod listed;
mod lookups;
mod mutants;
mod ngrams;
mod overlay;
mod planted;
mod queues;
mod rich;
mod ring;
mod ring_test;
mod sample;
mod sets;
mod touches;
mod windows;
mod written;
