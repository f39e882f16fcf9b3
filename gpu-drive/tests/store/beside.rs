//! What goes on beside look-ups on played drives, and what holds neither up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use warprow_gpu::{Gpu, GpuOptions, MemoryPlacement};
use warprow_gpu_queues::kept_memory;
use warprow_lookup::{Feature, PlanOptions};

use crate::fixture::{Fixture, Replayed, ids, plan_of};

/// Executors, plans and slots come and go beside look-ups on played drives: none of them frees anything that holds the
/// drives up, and what they give up is used again.
#[test]
fn executors_that_come_and_go_hold_nobody_up() {
    let Some(fixture) = Fixture::new(2, ",profile=p5800x") else { return };
    let options = GpuOptions::default().with_queue_memory(MemoryPlacement::A).with_timeout(Duration::from_millis(150));
    let executor = fixture.attach(options.clone());
    let plan = plan_of(&executor, 2_000);
    let done = AtomicBool::new(false);
    let mut kept = Vec::new();
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut looked_up = 0u64;
            while !done.load(Ordering::SeqCst) {
                fixture.look_up(&plan, &ids(2_000, looked_up), 0);
                looked_up += 1;
            }
            looked_up
        });
        for turn in 0..24 {
            let other = fixture.attach(options.clone());
            let plan = other.plan(&[Feature::new("t", "t")], PlanOptions::default().with_max(500, 500).with_slots(2));
            drop((plan.unwrap().slot().unwrap(), other));
            kept.push(kept_memory(&Gpu::open(0).unwrap()));
            if looking.is_finished() {
                println!("the look-ups have ended at turn {turn}");
                break;
            }
        }
        done.store(true, Ordering::SeqCst);
        println!("{} look-ups; kept {:?}", looking.join().unwrap(), kept.last());
    });
    assert_eq!(kept[4..].iter().max_by_key(|kept| kept.device.1), Some(&kept[4]), "{kept:?}");
}

/// Sixteen drives, and graphs on four streams at once: more streams than CUDA has hardware queues, so that some of the drives' launches
/// come behind a look-up.
#[test]
fn many_drives_on_the_gpu_that_looks_up_answer_in_time() {
    let Some(fixture) = Fixture::new(16, ",profile=p5800x") else { return };
    let options = GpuOptions::default().with_queue_sets(2).with_queue_memory(MemoryPlacement::A);
    let executor = fixture.attach(options.with_timeout(Duration::from_millis(150)));
    let options = PlanOptions::default().with_max(512, 512).with_slots(4);
    let plan = executor.plan(&[Feature::new("t", "t")], options).unwrap();
    let mut replayed: Vec<Replayed> = (0..4).map(|_| Replayed::new(&fixture, &plan, 512)).collect();
    let mut longest = Duration::ZERO;
    for round in 0..40 {
        let wanted: Vec<_> = (0..4).map(|slot| ids(512, round * 4 + slot)).collect();
        replayed.iter_mut().zip(&wanted).for_each(|(it, wanted)| it.ask(wanted));
        let began = Instant::now();
        replayed.iter().for_each(Replayed::launch);
        replayed.iter().for_each(|it| it.stream.synchronize().unwrap());
        longest = longest.max(began.elapsed());
        for (it, wanted) in replayed.iter().zip(&wanted) {
            it.result(wanted).unwrap_or_else(|error| panic!("round {round}: {error}"));
        }
    }
    println!("four look-ups took {longest:?} at most");
}
