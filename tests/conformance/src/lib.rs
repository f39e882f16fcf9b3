//! Checks that the driver and a controller must pass together, over any transport.
//!
//! The same list runs against QEMU's NVMe model through the real VFIO (`tests/guest`) and against the software
//! controller, so that the second may stand in for the first. Every check takes the controller over from whatever
//! state it is in, **destroys the data of its namespaces**, and leaves it disabled. Data is compared by content.

mod admin;
mod bring_up;
mod checks;
mod data;
mod dma;
mod features;
mod fixture;
mod format;
mod identify;
mod interrupts;
mod load;
mod nvm;
mod pattern;
mod queues;
mod reset;
mod subject;
mod tally;

pub use checks::{CHECKS, Check};
pub use pattern::fill;
pub use subject::{Subject, Verdict};
pub use tally::Tally;
