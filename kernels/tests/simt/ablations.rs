//! Look-ups that do without deduplication, shared commands, or shared doorbells: rows are right, and no fewer commands and doorbells
//! are sent than that takes.

use warprow_kernels::abi::{ablated, dedupe};

use crate::batch::Batch;
use crate::ring::{Scene, TIMEOUT};
use crate::shim::{Shim, seeds};

/// Random look-ups on drives that permute and delay completions, each without some of the parts.
pub(crate) fn case(shim: &mut Shim, seed: u64) -> Result<(), String> {
    let mut scene = Scene::random(seed, true, TIMEOUT);
    for _ in 0..3 {
        let world = &mut scene.world;
        world.repeats = scene.rng.bool();
        world.ablated = scene.rng.u32(0..=ablated::SHARED_COMMANDS | ablated::SHARED_DOORBELLS);
        if world.repeats {
            world.dedupe = dedupe::RADIX;
        }
        let without = (world.repeats, world.ablated);
        let batch = Batch::new(&mut scene.rng, &scene.world);
        let launched = scene.run(shim, batch, |_, _| ())?;
        if !launched.lost.is_empty() {
            return Err(format!("{without:?}: {} rows were not read", launched.lost.len()));
        }
        let told = scene.check(shim, &launched)?;
        let due = scene.commands(&launched.expected);
        let sent = (told.counters.commands, told.counters.bytes);
        if sent != due || told.counters.anomalies != 0 || told.faults != 0 {
            return Err(format!("{without:?}: {told:?}, where {due:?} are due"));
        }
        // Heads have doorbells too, at most one for each command.
        let tails = if without.1 & ablated::SHARED_DOORBELLS == 0 { 0 } else { sent.0 };
        if !(tails..=2 * sent.0).contains(&told.counters.doorbells) {
            return Err(format!("{without:?}: {} doorbells of {} commands", told.counters.doorbells, sent.0));
        }
    }
    Ok(())
}

#[test]
fn rows_are_right_without_a_part() {
    let Some(mut shim) = Shim::new() else { return };
    for seed in seeds(24) {
        case(&mut shim, seed).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}
