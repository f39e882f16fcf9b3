//! The command `warprow`, as a library so that its parts can be tested.

#![forbid(unsafe_code)]

pub mod drives;
pub mod failure;
pub mod file;
pub mod hotness;
pub mod interrupt;
pub mod screen;
pub mod select;
pub mod units;
