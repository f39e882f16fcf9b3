//! Building an index: keys are hashed and sorted into parts, each small enough for a processor's cache; then pilots are found
//! for each part by itself, on all cores.

mod attempt;
mod memory;
mod options;
mod place;
mod place_keys;
mod read;
mod remap;
mod scatter;
mod worker_threads;

pub use options::IndexOptions;
pub use place_keys::KeyPosition;
