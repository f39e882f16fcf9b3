//! What tests that cross rooms share: a virtual clock that steps emulated drives.
#![forbid(unsafe_code)]

mod clock;

pub use clock::VirtualClock;
