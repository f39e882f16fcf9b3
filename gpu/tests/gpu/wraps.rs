//! Everything that counts is about to wrap.

use warprow_gpu::{DoorbellAccess, GpuOptions};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::NvmOpcode;

use crate::fixture::{Fixture, Flat, Stream, failed, gpu, patient, short, wait};

/// Generations of command identifiers, turns of completion queues, anomalies, commands, doorbells, launches, tickets:
/// at 16 or 32 bits, within 200 look-ups.
#[test]
fn look_ups_go_on_past_every_wrap() {
    let Some(gpu) = gpu() else { return };
    for (sets, doorbells) in [(1, DoorbellAccess::Memory), (2, DoorbellAccess::Memory), (2, DoorbellAccess::HostThread)]
    {
        let fixture = Fixture::new(2);
        let options = patient().with_queue_sets(sets);
        let plan = fixture.plan(&gpu, options.with_doorbells(doorbells), 1);
        let slot = plan.slot().unwrap();
        let stream = Stream::new(&gpu);
        slot.age().unwrap();
        let mut random = fastrand::Rng::with_seed(u64::from(sets));
        for round in 0..200 {
            let flat = Flat::new(&gpu, Fixture::ids(random.usize(1..=1000), &mut random));
            let report = flat.assert_found(&fixture, &slot, &stream, &round);
            assert_eq!((report.commands, report.anomalies), (flat.ids.len() as u64, 0), "look-up {round}");
            assert_eq!(report.runs, 1, "look-up {round}");
        }
        assert!(slot.age().is_err(), "it has launched");
    }
}

/// A fault names its launch across the wrap, and a queue that is started anew begins at zero.
#[test]
fn faults_at_the_wrap() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.plan(&gpu, GpuOptions::default().with_timeout(short()), 1);
    let slot = plan.slot().unwrap();
    let stream = Stream::new(&gpu);
    slot.age().unwrap();
    let flat = Flat::new(&gpu, Fixture::ids(900, &mut fastrand::Rng::with_seed(3)));
    for round in 0..60 {
        if round % 10 != 5 {
            flat.assert_found(&fixture, &slot, &stream, &round);
            continue;
        }
        flat.reset();
        fixture.drives[0].faults().inject(Rule::new(Fault::Swallow).io(NvmOpcode::READ).nth(round * 10));
        let it = failed(wait(&flat.launch(&slot, &stream).unwrap()), &round);
        let lost = flat.check(&fixture, &round);
        assert_eq!(it.ids, lost.len() as u64);
        assert!(lost.iter().any(|&id| fixture.home(id as u64).1 == it.first.command.1), "{}", it.first);
    }
}
