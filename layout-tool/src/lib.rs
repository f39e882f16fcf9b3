//! The command `warprow`, as a library so that its parts can be tested.

#![forbid(unsafe_code)]

pub mod failure;
pub mod file;
