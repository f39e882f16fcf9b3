//! Queue placement B′: a host thread rings the doorbells for the GPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use warprow_gpu::{DoorbellAccess, GpuError, GpuOptions, GpuPlan, QueuePlacement};
use warprow_gpu_queues::Gpu;
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::{AdminOpcode, NvmOpcode, StatusCode};

use crate::fixture::{Fixture, Flat, Stream, gpu, short, wait};
use crate::lookups::whole_lookups;

#[test]
fn match_the_naive_look_up() {
    let Some(gpu) = gpu() else { return };
    for seed in 2000..2008 {
        eprintln!("seed {seed}");
        whole_lookups(&gpu, seed, |options| options.with_doorbells(DoorbellAccess::HostThread));
    }
}

#[test]
fn the_placement_says_who_rings() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(2);
    let placements =
        |doorbells| fixture.attach(&gpu, GpuOptions::default().with_doorbells(doorbells)).queue_placements();
    for (doorbells, rung, words) in [
        (DoorbellAccess::Memory, QueuePlacement::C, "placement C"),
        (DoorbellAccess::HostThread, QueuePlacement::BPrime, "host thread for the GPU, as asked for"),
    ] {
        let placements = placements(doorbells);
        assert_eq!((placements.placement, placements.drives.len()), (rung, 2));
        let text = placements.to_string();
        assert!(text.contains(gpu.name()) && text.contains(words) && text.contains("unproven"), "{text}");
        eprintln!("{text}");
    }
}

/// Look-ups on a slot of the plan's, one after another, while others break the drive: no row is ever garbage. How many
/// were whole.
fn keep_looking(gpu: &Arc<Gpu>, fixture: &Fixture, plan: &GpuPlan, seed: u64, whole: &AtomicUsize) {
    let slot = plan.slot().unwrap();
    let stream = Stream::new(gpu);
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..40 {
        let flat = Flat::new(gpu, Fixture::ids(800, &mut random));
        let ticket = match flat.launch(&slot, &stream) {
            Ok(ticket) => ticket,
            // The controller is being reset by the other, or its queues came and went.
            Err(error @ (GpuError::Gpu(_) | GpuError::Driver(_))) => {
                eprintln!("slot {seed}, look-up {round}: {error}");
                flat.assert_untouched(&round);
                std::thread::sleep(short() / 10);
                continue;
            }
            Err(other) => panic!("slot {seed}, look-up {round}: {other}"),
        };
        let result = wait(&ticket);
        let lost = flat.check(fixture, &(seed, round));
        match result {
            Ok(report) => {
                assert!(lost.is_empty() && report.failed == 0);
                whole.fetch_add(1, Ordering::Relaxed);
            }
            Err(GpuError::RowsFailed { failed, .. }) => assert_eq!(failed, lost.len() as u64),
            Err(other) => panic!("slot {seed}, look-up {round}: {other}"),
        }
    }
    // All is well again, whatever the other does.
    let flat = Flat::new(gpu, Fixture::ids(1000, &mut random));
    fixture.drives[0].faults().clear();
    let found = (0..20).any(|_| {
        flat.reset();
        let whole = flat.launch(&slot, &stream).is_ok_and(|ticket| wait(&ticket).is_ok());
        whole && flat.check(fixture, &"at last").is_empty()
    });
    assert!(found, "slot {seed} does not come back");
}

/// A queue that a drive does not delete costs a reset of its controller, while another slot's look-ups are under way on
/// it.
#[test]
fn a_reset_meets_look_ups_under_way() {
    let Some(gpu) = gpu() else { return };
    for doorbells in [DoorbellAccess::HostThread, DoorbellAccess::Memory] {
        let fixture = Fixture::new(2);
        let options = GpuOptions::default().with_timeout(short()).with_doorbells(doorbells);
        let plan = fixture.plan(&gpu, options, 2);
        let faults = fixture.drives[0].faults();
        let refusal = Fault::Status(StatusCode::InternalError.into());
        let refused = faults.inject(Rule::new(refusal).admin(AdminOpcode::DELETE_IO_SQ).times(3));
        for nth in [2000, 6000, 10_000] {
            faults.inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).nth(nth));
        }
        let whole = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for seed in [1, 2] {
                let gpu = &gpu;
                let fixture = &fixture;
                let plan = &plan;
                let whole = &whole;
                scope.spawn(move || keep_looking(gpu, fixture, plan, seed, whole));
            }
        });
        let resets = faults.fired(refused);
        let whole = whole.into_inner();
        eprintln!("{whole} of 80 look-ups were whole, {resets} queues were not deleted");
        assert!(resets > 0 && whole > 30, "{whole} whole, {resets} queues were not deleted");
    }
}
