//! What tests that cross rooms share: a virtual clock that steps emulated drives, drives for the layout, models.
#![forbid(unsafe_code)]

mod clock;
mod drive;
pub mod simulation;
pub mod storm;
pub mod versions;

pub use clock::VirtualClock;
pub use drive::DrivenDrive;
