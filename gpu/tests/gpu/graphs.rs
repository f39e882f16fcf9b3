//! Captured look-ups, and launches that meet in one slot.

use warprow_gpu::GpuExecutor;
use warprow_gpu::{BatchLen, GpuBatch, GpuError, GpuOutput, IdType};
use warprow_gpu_queues::DeviceMemory;
use warprow_lookup::{Feature, PlanOptions, Pooling};
use warprow_soft_controller::{Fault, Rule, SoftController};
use warprow_spec::NvmOpcode;
use warprow_store::{DType, LoadOptions};

use crate::common::random::Buffer;
use crate::common::{self, Table};
use crate::fixture::{Fixture, Flat, Graph, Stream, fill_buffer, gpu, millis, patient, wait};

#[test]
fn graphs_are_replayed_with_other_ids_and_counts() {
    let Some(gpu) = gpu() else { return };
    let mut random = fastrand::Rng::with_seed(5);
    let (_drives, store) = common::store(2, 24 << 20, 512);
    let tables = [Table::random("t", 3000, 40, DType::F16, &mut random)];
    common::load(&store, &tables, &LoadOptions::default());
    let attach = patient().with_hbm_bytes(20_000).with_dram_bytes(80_000);
    let executor = GpuExecutor::attach(&store, gpu.clone(), attach).unwrap();
    for max in [4000, 20_000] {
        let features = [Feature::new("f", "t").pooling(Pooling::Sum)];
        let options = PlanOptions::default().with_max(400, max);
        let plan = executor.plan(&features, options.clone()).unwrap();
        let (slot, stream) = (plan.slot().unwrap(), Stream::new(&gpu));
        // One set of arrays, large enough for all cases.
        let ids = DeviceMemory::new(&gpu, max as u64 * 8).unwrap();
        let offsets = DeviceMemory::new(&gpu, 401 * 8).unwrap();
        let counts = DeviceMemory::new(&gpu, 16).unwrap();
        let rows = DeviceMemory::new(&gpu, 400 * 40 * 4).unwrap();
        let batch = GpuBatch::new(ids.address(), BatchLen::Device(counts.address()), 400)
            .with_offsets(offsets.address(), IdType::I64);
        let mut ticket = None;
        let graph = stream.capture(&gpu, || {
            // SAFETY: the arrays outlive the graph's launches.
            ticket = Some(unsafe { slot.lookup(stream.0, &batch, &GpuOutput::new(rows.address(), 40)) }.unwrap());
        });
        let ticket = ticket.unwrap();
        assert!(ticket.is_captured() && ticket.poll().is_none());
        for run in 1..=5 {
            let bags: Vec<Vec<i64>> = (0..random.usize(1..400))
                .map(|_| (0..random.usize(..10)).map(|_| random.i64(0..3000)).collect())
                .collect();
            let flat: Vec<u8> = bags.iter().flatten().flat_map(|id| id.to_le_bytes()).collect();
            let begins: Vec<i64> = std::iter::once(0)
                .chain(bags.iter().scan(0, |sum, bag| {
                    *sum += bag.len() as i64;
                    Some(*sum)
                }))
                .collect();
            ids.write(0, &flat).unwrap();
            offsets.write(0, &begins.iter().flat_map(|begin| begin.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
            let both = [begins[bags.len()] as u64, bags.len() as u64];
            counts.write(0, &both.iter().flat_map(|count| count.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
            stream.launch(&gpu, &graph);
            stream.wait(&gpu);
            let report = wait(&ticket).unwrap();
            assert_eq!((report.runs, report.ids), (run, both[0]));
            let mut got = vec![0; bags.len() * 160];
            rows.read(0, &mut got).unwrap();
            let wide: Vec<Vec<i128>> = bags.iter().map(|bag| bag.iter().map(|&id| id.into()).collect()).collect();
            let wanted = common::look_up(&tables, &features, &options, &wide, None, 40, 40);
            let mut buffer = Buffer::new(DType::F32, bags.len() * 40);
            fill_buffer(&mut buffer, &got);
            for (index, &value) in wanted.rows.iter().enumerate() {
                assert!(buffer.matches(index, value), "run {run}, element {index}");
            }
        }
    }
}

/// The next read takes its time, so that whatever is launched now is under way when the next is.
fn hold_up(drive: &SoftController) {
    drive.faults().inject(Rule::new(Fault::Delay(millis(300))).io(NvmOpcode::READ));
}

/// Long enough for a launch to have begun.
fn let_it_begin() {
    std::thread::sleep(millis(50));
}

#[test]
fn a_slot_serves_one_launch_at_a_time() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.plan(&gpu, patient(), 1);
    let slot = plan.slot().unwrap();
    assert!(matches!(plan.slot(), Err(GpuError::NoFreeSlot { slots: 1 })));
    let (first, second) = (Stream::new(&gpu), Stream::new(&gpu));
    let mut random = fastrand::Rng::with_seed(2);
    let [one, two] = [600, 400].map(|count| Flat::new(&gpu, Fixture::ids(count, &mut random)));
    for round in 0..3 {
        hold_up(&fixture.drives[0]);
        let ticket = one.launch(&slot, &first).unwrap();
        let_it_begin();
        let busy = two.launch(&slot, &second).unwrap();
        assert!(matches!(wait(&busy), Err(GpuError::Busy(_))));
        wait(&ticket).unwrap();
        assert!(one.check(&fixture, &round).is_empty());
        two.assert_untouched(&round);
        one.reset();
    }
    // One after another on one stream, without waiting: both succeed.
    let tickets = [&one, &two].map(|flat| flat.launch(&slot, &first).unwrap());
    for ticket in &tickets {
        wait(ticket).unwrap();
    }
    for flat in [&one, &two] {
        assert!(flat.check(&fixture, &"one after another").is_empty());
    }
}

/// A captured look-up, on a stream of its own.
struct Captured<'a> {
    flat: &'a Flat,
    stream: Stream,
    graph: Graph,
    ticket: warprow_gpu::Ticket,
}

/// Two graphs on one slot, on two streams: of a pair that overlaps exactly one does the work, and the other says so and
/// touches nothing. (Two graphs have a ticket each; one graph CUDA itself does not run beside itself.)
#[test]
fn of_two_graphs_that_meet_in_a_slot_one_runs() {
    let Some(gpu) = gpu() else { return };
    for queue_sets in [1, 2] {
        let fixture = Fixture::new(2);
        let options = patient().with_queue_sets(queue_sets);
        let plan = fixture.plan(&gpu, options, 1);
        let slot = plan.slot().unwrap();
        let mut random = fastrand::Rng::with_seed(3);
        let flats = [700, 500].map(|count| Flat::new(&gpu, Fixture::ids(count, &mut random)));
        let captured = flats.each_ref().map(|flat| {
            let stream = Stream::new(&gpu);
            let (graph, ticket) = flat.capture(&gpu, &slot, &stream);
            Captured { flat, stream, graph, ticket }
        });
        let run = |it: &Captured<'_>| it.stream.launch(&gpu, &it.graph);
        // What became of each, after both have ended: whether it did the work.
        let outcomes = |what: &str| {
            captured.iter().for_each(|it| it.stream.wait(&gpu));
            captured.each_ref().map(|it| match it.ticket.poll().expect("it has ended") {
                Ok(_) => {
                    assert!(it.flat.check(&fixture, &what).is_empty());
                    it.flat.reset();
                    true
                }
                Err(GpuError::Busy(_)) => {
                    it.flat.assert_untouched(&what);
                    false
                }
                Err(other) => panic!("{what}: {other}"),
            })
        };
        for round in 0..6 {
            let (first, second) = (round % 2, 1 - round % 2);
            fixture.drives.iter().for_each(|drive| hold_up(drive));
            run(&captured[first]);
            let_it_begin();
            run(&captured[second]);
            let ran = outcomes("held up");
            assert!(ran[first] && !ran[second], "round {round}: {ran:?}");
            fixture.drives.iter().for_each(|drive| drive.faults().clear());
        }
        // As it comes: they may overlap or not.
        let mut met = 0;
        for round in 0..100 {
            run(&captured[round % 2]);
            run(&captured[1 - round % 2]);
            let ran = outcomes("as it comes");
            assert!(ran.contains(&true), "round {round}: neither ran");
            met += usize::from(ran.contains(&false));
        }
        eprintln!("{met} of 100 pairs of graphs overlapped");
        // The slot is as it was.
        Flat::new(&gpu, Fixture::ids(900, &mut random)).assert_found(
            &fixture,
            &slot,
            &captured[0].stream,
            &"afterwards",
        );
    }
}

#[test]
fn a_launch_and_a_graph_that_meet_in_a_slot() {
    let Some(gpu) = gpu() else { return };
    let fixture = Fixture::new(1);
    let plan = fixture.plan(&gpu, patient(), 1);
    let (slot, stream, other) = (plan.slot().unwrap(), Stream::new(&gpu), Stream::new(&gpu));
    let mut random = fastrand::Rng::with_seed(4);
    let [in_graph, direct] = [600, 800].map(|count| Flat::new(&gpu, Fixture::ids(count, &mut random)));
    let (graph, captured) = in_graph.capture(&gpu, &slot, &stream);
    for round in 0..4 {
        let graph_first = round % 2 == 0;
        hold_up(&fixture.drives[0]);
        let launch_graph = || stream.launch(&gpu, &graph);
        let launch = || direct.launch(&slot, &other).unwrap();
        let ticket = if graph_first {
            launch_graph();
            let_it_begin();
            launch()
        } else {
            let ticket = launch();
            let_it_begin();
            launch_graph();
            ticket
        };
        stream.wait(&gpu);
        other.wait(&gpu);
        let results = [captured.poll().expect("it has ended"), wait(&ticket)];
        let [ran, busy] = if graph_first { [0, 1] } else { [1, 0] };
        assert!(results[ran].is_ok() && matches!(results[busy], Err(GpuError::Busy(_))), "{round}: {results:?}");
        let flats = [&in_graph, &direct];
        assert!(flats[ran].check(&fixture, &round).is_empty());
        flats[busy].assert_untouched(&round);
        flats[ran].reset();
    }
}
