//! A seeded simulation: drives, driver, layout and store on one thread under a virtual clock, with random work, faults, delays,
//! power cuts and resets, checked against a naive model. A seed decides everything.

mod model;
mod session;
mod trace;
mod work;
mod world;

/// A way in which drives lie, for proving that the simulation notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// During each operation, one drive acknowledges Flush and does not carry it out.
    Flush,
    /// Some Read is answered without bringing data.
    StaleRead,
    /// Some Write is acknowledged and not carried out.
    LostWrite,
    /// Some Write stores a bit wrong.
    DamagedWrite,
}

/// What to simulate besides the seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Tell every event on standard error.
    pub aloud: bool,
    /// Drives lie.
    pub lie: Option<Lie>,
}

/// What a simulation came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Hash of all events and their times: the same for the same seed.
    pub hash: u64,
    /// Events.
    pub events: u64,
    /// Operations that something befell.
    pub incidents: u64,
    /// Rows that look-ups had from drives, every one compared.
    pub rows_read: u64,
    /// What must not be, if anything.
    pub violation: Option<String>,
}

/// Simulates one seed.
pub fn run(seed: u64, options: Options) -> Outcome {
    work::run(seed, options)
}
