//! The threads that step a controller.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use warprow_dma::order;

use crate::builder::ControllerBuildError;
use crate::core::Core;

/// How long it waits for an engine at a time.
const RELAX: Duration = Duration::from_micros(50);
/// Looks at the doorbells between two looks at the clock.
const LOOKS: u32 = 64;

/// Starts a thread for each worker.
pub(crate) fn start(core: &Arc<Core>) -> Result<Vec<JoinHandle<()>>, ControllerBuildError> {
    if core.config.workers > 0 {
        // A process's first barrier of this kind takes milliseconds. No command shall wait for it.
        order::between_sleep_and_doorbell();
    }
    let spawn = |worker| {
        let core = core.clone();
        Builder::new()
            .name(format!("nvme-{worker}"))
            .spawn(move || run(&core, worker))
            .map_err(ControllerBuildError::Thread)
    };
    (0..core.config.workers).map(spawn).collect()
}

fn run(core: &Core, worker: usize) {
    core.seats[worker].parker.adopt();
    while !core.stop.load(Ordering::Relaxed) {
        let mut idle_since = None;
        let vigil = core.vigil(worker);
        // Work, and look for work for a while.
        loop {
            if !core.step(worker, LOOKS).is_idle() {
                idle_since = None;
                continue;
            }
            if idle_since.get_or_insert_with(Instant::now).elapsed() >= vigil {
                break;
            }
            core.relax(worker, RELAX);
        }
        if worker == 0 {
            core.lock_control().check_stray_doorbells(core);
        }
        // Sleep, with a glance now and then.
        core.note_quiet(worker);
        while !core.rest(worker).is_zero() {
            core.seats[worker].parker.park(|| core.rest(worker));
        }
    }
}
