use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use warprow_dma::{Clock, MappedMemory};
use warprow_driver::prp::Data;
use warprow_driver::{BlockIo, CommandEnd, Controller, DriverError, Namespace, PushError, QueueOptions, QueuePair};
use warprow_spec::{AdminOpcode, NvmOpcode, StatusCode};

use crate::device::{Device, Reply};
use crate::{assert_error, open};

pub(crate) struct Fixture {
    pub(crate) device: Device,
    pub(crate) controller: Arc<Controller>,
    pub(crate) namespace: Namespace,
    pub(crate) buffer: Arc<MappedMemory>,
}

impl Fixture {
    pub(crate) fn new() -> (Self, QueuePair) {
        let device = Device::new();
        let controller = open(&device).unwrap();
        let namespace = controller.namespace(1).unwrap();
        let mut pair = controller.queue_pair(&small()).unwrap();
        let buffer = controller.allocate(1 << 16).unwrap();
        pair.keep(buffer.clone());
        (Self { device, controller, namespace, buffer }, pair)
    }

    pub(crate) fn block(&self, index: u64) -> Data<'static> {
        Data::Contiguous { iova: self.buffer.iova() + index * 512, len: 512 }
    }

    /// The device leaves I/O commands unanswered; their CIDs come through the channel.
    pub(crate) fn silence(&self) -> Receiver<u16> {
        let (sender, cids) = channel();
        self.device.script(move |qid, sqe| {
            if qid == 0 {
                return Reply::Default;
            }
            let _ = sender.send(sqe.cid());
            Reply::Silent
        });
        cids
    }
}

fn small() -> QueueOptions {
    QueueOptions { entries: 8, completion_entries: 8, ..Default::default() }
}

#[test]
fn what_is_written_is_read() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let options = QueueOptions { entries: 4, max_transfer: 8192, ..Default::default() };
    let mut io = BlockIo::new(&controller, namespace, &options).unwrap();
    let data: Vec<u8> = (0..512 * 100).map(|i| (i % 251) as u8 ^ (i / 512) as u8).collect();
    for lba in [0, 17, 4096 - 100] {
        io.write(lba, &data).unwrap();
        io.flush().unwrap();
        let mut got = vec![0; data.len()];
        io.read(lba, &mut got).unwrap();
        assert!(got == data);
    }
    assert_error!(
        io.read(4000, &mut vec![0; data.len()]),
        DriverError::Push { .. },
        "100 blocks from LBA 4000",
        "4096 blocks"
    );
    let before = device.state().io_count;
    assert_error!(io.write(4000, &data), DriverError::Push { .. }, "LBA 4000");
    assert_eq!(device.state().io_count, before, "nothing of it was written");
    assert_error!(io.write(0, &data[..700]), DriverError::NotWholeBlocks { .. }, "700", "512");
    io.read(0, &mut []).unwrap();
    drop(io);
    drop(controller);
    assert_eq!((device.mapped(), device.state().dma_faults), (0, 0));
}

#[test]
fn refusals_before_anything_is_sent() {
    let (fixture, mut pair) = Fixture::new();
    let ns = &fixture.namespace;
    let of = |len| Data::Contiguous { iova: fixture.buffer.iova(), len };
    assert_eq!(
        pair.read(ns, 4096, 1, of(512), 0),
        Err(PushError::OutOfRange { lba: 4096, blocks: 1, lba_count: 4096 })
    );
    let wrap = PushError::OutOfRange { lba: u64::MAX, blocks: 2, lba_count: 4096 };
    assert_eq!(pair.read(ns, u64::MAX, 2, of(1024), 0), Err(wrap));
    assert_eq!(pair.read(ns, 0, 0, of(0), 0), Err(PushError::BlockCount { blocks: 0 }));
    assert_eq!(pair.read(ns, 0, 65537, of(0), 0), Err(PushError::BlockCount { blocks: 65537 }));
    assert_eq!(pair.read(ns, 0, 1, of(513), 0), Err(PushError::WrongLength { len: 513, bytes: 512 }));
    // MDTS 5: 32 pages.
    assert_eq!(pair.max_transfer(), 128 << 10);
    assert_eq!(
        pair.write(ns, 0, 257, of(257 << 9), false, 0),
        Err(PushError::TooLong { bytes: 257 << 9, max: 128 << 10 })
    );
    let unaligned = Data::Contiguous { iova: fixture.buffer.iova() + 2, len: 512 };
    assert!(matches!(pair.read(ns, 0, 1, unaligned, 0), Err(PushError::Prp(_))));
    let buffer = fixture.buffer.iova();
    let (first, last) = (buffer.wrapping_sub(512), buffer + fixture.buffer.memory().len() as u64 - 512);
    pair.write(ns, 0, 1, Data::Contiguous { iova: last, len: 512 }, false, 0).unwrap();
    let unkept = fixture.controller.allocate(512).unwrap();
    for (iova, len) in [(first, 1024), (last, 1024), (last + 4, 512), (unkept.iova(), 512), (u64::MAX - 3, 512)] {
        let data = Data::Contiguous { iova, len };
        let pushed = pair.read(ns, 0, (len / 512) as u32, data, 0);
        assert_eq!(pushed, Err(PushError::NotKept { iova, len }), "{iova:#x}");
    }
    assert_eq!(pair.wait(|completion| assert!(completion.is_success())).unwrap(), 1);
    assert_eq!(pair.compare(ns, 0, 1, of(512), 0), Err(PushError::Unsupported { what: "Compare" }));
    assert_eq!(pair.deallocate(ns, &[], 0), Err(PushError::RangeCount { ranges: 0, max: 32 }));
    assert_eq!(pair.deallocate(ns, &[(0, 1); 33], 0), Err(PushError::RangeCount { ranges: 33, max: 32 }));
    assert_eq!(pair.outstanding(), 0);

    let mut data = crate::device::namespace(4096);
    data.flbas = data.flbas.with_index_lower(1);
    fixture.device.state().namespaces.insert(1, data);
    let with_metadata = fixture.controller.namespace(1).unwrap();
    assert_eq!(pair.read(&with_metadata, 0, 1, of(512), 0), Err(PushError::Metadata { nsid: 1, bytes: 8 }));
    let bad = fixture.controller.queue_pair(&QueueOptions { entries: 2048, ..small() });
    assert_error!(bad, DriverError::QueueSize { asked: 2048, max: 1024, .. }, "2048", "1024");
    let bad = fixture.controller.queue_pair(&QueueOptions { entries: 1, ..small() });
    assert_error!(bad, DriverError::QueueSize { asked: 1, .. }, "2 to 1024");
}

/// How much a command moves hangs on the namespace, so one that another controller has described is none.
#[test]
fn namespaces_are_of_the_queue_s_controller() {
    let (fixture, mut pair) = Fixture::new();
    let before = fixture.device.state().io_count;
    let other = open(&Device::new()).unwrap().namespace(1).unwrap();
    let same = fixture.controller.namespace(1).unwrap();
    assert_eq!(other, same, "they differ in whose they are alone");
    let made_up = fixture.controller.identify_namespace(1).unwrap();
    let made_up = Namespace::from_identify(fixture.controller.name(), 1, &made_up).unwrap();
    for ns in [&other, &made_up] {
        let data = fixture.block(0);
        assert_eq!(pair.read(ns, 0, 1, data, 0), Err(PushError::Foreign { nsid: 1 }));
        assert_eq!(pair.write(ns, 0, 1, data, false, 0), Err(PushError::Foreign { nsid: 1 }));
        assert_eq!(pair.write_zeroes(ns, 0, 1, false, 0), Err(PushError::Foreign { nsid: 1 }));
        assert_eq!(pair.deallocate(ns, &[(0, 1)], 0), Err(PushError::Foreign { nsid: 1 }));
    }
    assert_eq!((pair.outstanding(), fixture.device.state().io_count), (0, before));
    pair.read(&same, 0, 1, fixture.block(0), 0).unwrap();
    assert_eq!(pair.wait(|completion| assert!(completion.is_success())).unwrap(), 1);
}

#[test]
fn a_failed_status_names_the_command() {
    let (fixture, mut pair) = Fixture::new();
    let reply = |qid| if qid == 0 { Reply::Default } else { Reply::Fail(StatusCode::UnrecoveredReadError) };
    fixture.device.script(move |qid, _| reply(qid));
    pair.read(&fixture.namespace, 77, 1, fixture.block(0), 5).unwrap();
    let mut ended = Vec::new();
    assert_eq!(pair.wait(|completion| ended.push(completion)).unwrap(), 1);
    let error = pair.error(&ended[0]).unwrap().to_string();
    for word in ["scripted:0", "Read (02h)", "queue 1", "namespace 1", "LBA 77", "Unrecovered Read Error"] {
        assert!(error.contains(word), "{word:?} is not in: {error}");
    }
}

#[test]
fn a_lost_completion_times_out_and_stays_in_quarantine() {
    let (fixture, mut pair) = Fixture::new();
    let cids = fixture.silence();
    pair.read(&fixture.namespace, 1, 1, fixture.block(0), 100).unwrap();
    pair.ring().unwrap();
    fixture.device.obey();
    // Others go on, and the clock with them.
    let mut timed_out = Vec::new();
    let mut done = 0;
    while timed_out.is_empty() {
        pair.read(&fixture.namespace, 2, 1, fixture.block(1), 200).unwrap();
        fixture.device.clock().sleep(Duration::from_millis(300));
        pair.wait(|completion| match completion.ended {
            CommandEnd::TimedOut => timed_out.push(completion),
            ended => {
                assert!(completion.is_success() && completion.tag == 200, "{ended:?}");
                done += 1;
            }
        })
        .unwrap();
    }
    assert!((30..40).contains(&done), "{done} commands of 0.3 s in ten seconds");
    assert_eq!(timed_out[0].tag, 100);
    assert_eq!(pair.quarantined(), 1);
    assert_error!(
        Err::<(), _>(pair.error(&timed_out[0]).unwrap()),
        DriverError::TimedOut { .. },
        "Read (02h)",
        "LBA 1",
        "10s",
        "CSTS 0x1: ready",
    );
    // Its answer, at last: noted, but nothing is released by it.
    fixture.device.answer(1, cids.recv().unwrap(), 0, StatusCode::Success);
    while pair.outstanding() != 0 {
        pair.wait(|completion| assert_eq!(completion.tag, 200)).unwrap();
    }
    pair.poll(|_| panic!("nothing is outstanding")).unwrap();
    assert_eq!((pair.anomalies().late, pair.quarantined()), (1, 1));

    let mut released = Vec::new();
    pair.recreate(|completion| released.push((completion.tag, completion.ended))).unwrap();
    assert_eq!((released, pair.quarantined()), (vec![(100, CommandEnd::Released)], 0));
    pair.read(&fixture.namespace, 3, 1, fixture.block(0), 300).unwrap();
    pair.wait(|completion| assert!(completion.is_success() && completion.tag == 300)).unwrap();
}

#[test]
fn memory_is_let_go_when_no_command_can_reach_it() {
    let (fixture, mut pair) = Fixture::new();
    let memory = fixture.controller.allocate(512).unwrap();
    let data = Data::Contiguous { iova: memory.iova(), len: 512 };
    let holders = || Arc::strong_count(&memory);
    assert!(pair.release(&memory), "it was never kept");
    pair.keep(memory.clone());
    pair.read(&fixture.namespace, 1, 1, data, 1).unwrap();
    assert!(!pair.release(&memory), "a command is under way");
    pair.wait(|completion| assert!(completion.is_success())).unwrap();
    assert_eq!(holders(), 2);
    assert!(pair.release(&memory) && holders() == 1);
    assert_eq!(pair.read(&fixture.namespace, 1, 1, data, 2), Err(PushError::NotKept { iova: memory.iova(), len: 512 }));
    pair.read(&fixture.namespace, 1, 1, fixture.block(0), 3).unwrap();
    pair.wait(|completion| assert!(completion.is_success())).unwrap();

    // One that timed out may come late, for as long as its queue is there.
    pair.keep(memory.clone());
    let cids = fixture.silence();
    pair.read(&fixture.namespace, 1, 1, data, 4).unwrap();
    pair.wait(|completion| assert_eq!(completion.ended, CommandEnd::TimedOut)).unwrap();
    assert!(!pair.release(&memory) && holders() == 2);
    fixture.device.obey();
    fixture.device.answer(1, cids.recv().unwrap(), 0, StatusCode::Success);
    pair.poll(|_| panic!("nothing is outstanding")).unwrap();
    assert!(!pair.release(&memory), "the answer may be meant for another command");
    pair.recreate(|_| {}).unwrap();
    assert!(pair.release(&memory) && holders() == 1);
}

#[test]
fn a_queue_full_of_quarantine_is_stuck_not_hung() {
    let (fixture, mut pair) = Fixture::new();
    let _cids = fixture.silence();
    while pair.read(&fixture.namespace, 1, 1, fixture.block(0), 1) != Err(PushError::Full) {}
    let mut timed_out = 0;
    pair.wait(|completion| timed_out += u32::from(completion.ended == CommandEnd::TimedOut)).unwrap();
    assert_eq!((timed_out, pair.outstanding(), pair.quarantined()), (7, 0, 7));
    assert_error!(pair.wait(|_| {}), DriverError::Stuck { quarantined: 7, .. }, "queue 1", "recreate");
    fixture.device.obey();
    let mut released = 0;
    pair.recreate(|completion| released += u32::from(completion.ended == CommandEnd::Released)).unwrap();
    assert_eq!(released, 7);
    assert_eq!(pair.wait(|_| {}).unwrap(), 0, "nothing to wait for");
}

#[test]
fn those_that_come_together_are_waited_for_together_and_no_longer_than_a_moment() {
    let (fixture, mut pair) = Fixture::new();
    assert_eq!(pair.wait_for(5, |_| {}).unwrap(), 0, "nothing to wait for");
    for tag in 0..5 {
        pair.read(&fixture.namespace, tag, 1, fixture.block(0), tag).unwrap();
    }
    let mut tags = Vec::new();
    // More than are outstanding: all of them.
    assert_eq!(pair.wait_for(100, |completion| tags.push(completion.tag)).unwrap(), 5);
    assert_eq!(tags, [0, 1, 2, 3, 4]);
    // One of two never comes: the other is given all the same, and then that its time is up.
    fixture.device.script(|_, sqe| if sqe.cdw10 == 1 { Reply::Silent } else { Reply::Default });
    for lba in 0..2 {
        pair.read(&fixture.namespace, lba, 1, fixture.block(0), lba).unwrap();
    }
    assert_eq!(pair.wait_for(2, |completion| assert!(completion.tag == 0 && completion.is_success())).unwrap(), 1);
    assert_eq!(pair.wait_for(2, |completion| assert_eq!(completion.ended, CommandEnd::TimedOut)).unwrap(), 1);
}

#[test]
fn a_queue_that_the_device_does_not_delete_keeps_its_memory() {
    let (fixture, mut pair) = Fixture::new();
    let _cids = fixture.silence();
    pair.read(&fixture.namespace, 1, 1, fixture.block(0), 1).unwrap();
    pair.wait(|_| {}).unwrap();
    fixture.device.script(|qid, sqe| {
        let delete = qid == 0 && sqe.opcode() == AdminOpcode::DELETE_IO_SQ.0;
        if delete { Reply::Fail(StatusCode::InternalError) } else { Reply::Default }
    });
    let nothing = |_| panic!("nothing may be released");
    assert_error!(pair.recreate(nothing), DriverError::Command { .. }, "Delete I/O Submission Queue");
    assert_error!(pair.ring(), DriverError::Stale { .. }, "queue 1");
    let before = fixture.device.mapped();
    drop(pair);
    drop(fixture.buffer);
    assert_eq!(fixture.device.mapped(), before, "rings and landing memory are kept");
    assert_eq!(fixture.controller.queue_pair(&small()).unwrap().id(), 2, "the identifier is not used again");
    fixture.device.obey();
    fixture.controller.reset(Default::default()).unwrap();
    assert_eq!(fixture.device.mapped(), before - 2, "after RDY = 0 they go");
    assert_eq!(fixture.controller.queue_pair(&small()).unwrap().id(), 1);
}

#[test]
fn a_queue_is_drained_while_its_doorbells_exist() {
    let (fixture, mut pair) = Fixture::new();
    for tag in 0..5 {
        pair.read(&fixture.namespace, tag, 1, fixture.block(tag), tag).unwrap();
    }
    pair.ring().unwrap();
    let mut answered = Vec::new();
    pair.recreate(|completion| {
        assert!(completion.is_success());
        answered.push(completion.tag);
    })
    .unwrap();
    assert_eq!((answered, fixture.device.state().stray_doorbells), (vec![0, 1, 2, 3, 4], 0));
}

#[test]
fn no_write_is_accepted_while_one_may_come_late() {
    let (fixture, mut pair) = Fixture::new();
    let mut other = fixture.controller.queue_pair(&small()).unwrap();
    other.keep(fixture.buffer.clone());
    let refused = PushError::LateWrites { count: 1 };
    let cids = fixture.silence();
    // A late read harms nobody who writes.
    pair.read(&fixture.namespace, 9, 1, fixture.block(0), 9).unwrap();
    pair.wait(|completion| assert_eq!(completion.ended, CommandEnd::TimedOut)).unwrap();
    fixture.controller.check_late_writes().unwrap();
    pair.write(&fixture.namespace, 1, 1, fixture.block(0), false, 1).unwrap();
    pair.wait(|completion| assert_eq!(completion.ended, CommandEnd::TimedOut)).unwrap();
    fixture.device.obey();
    for pair in [&mut pair, &mut other] {
        assert_eq!(pair.write(&fixture.namespace, 1, 1, fixture.block(1), false, 2), Err(refused));
        assert_eq!(pair.write(&fixture.namespace, 1, 1, fixture.block(1), true, 2), Err(refused));
        assert_eq!(pair.write_zeroes(&fixture.namespace, 1, 1, false, 2), Err(refused));
        assert_eq!(pair.deallocate(&fixture.namespace, &[(1, 1)], 2), Err(refused));
    }
    other.read(&fixture.namespace, 1, 1, fixture.block(1), 3).unwrap();
    other.flush(&fixture.namespace, 3).unwrap();
    while other.outstanding() != 0 {
        other.wait(|completion| assert!(completion.is_success())).unwrap();
    }
    assert_error!(
        fixture.controller.check_late_writes(),
        DriverError::LateWrites { count: 1, .. },
        "recreate",
        "reset"
    );
    // Its answer proves nothing: it may be another command's.
    fixture.device.answer(1, cids.try_iter().last().unwrap(), 0, StatusCode::Success);
    pair.poll(|_| panic!("nothing is outstanding")).unwrap();
    assert_eq!(other.write(&fixture.namespace, 1, 1, fixture.block(1), false, 2), Err(refused));

    pair.recreate(|completion| assert_eq!(completion.ended, CommandEnd::Released)).unwrap();
    fixture.controller.check_late_writes().unwrap();
    other.write(&fixture.namespace, 1, 1, fixture.block(1), false, 4).unwrap();
    other.wait(|completion| assert!(completion.is_success())).unwrap();
}

#[test]
fn writes_left_in_a_queue_that_stays_hold_off_others_until_a_reset() {
    let (fixture, mut pair) = Fixture::new();
    let mut other = fixture.controller.queue_pair(&small()).unwrap();
    other.keep(fixture.buffer.clone());
    let _cids = fixture.silence();
    pair.write(&fixture.namespace, 1, 1, fixture.block(0), false, 1).unwrap();
    pair.wait(|completion| assert_eq!(completion.ended, CommandEnd::TimedOut)).unwrap();
    fixture.device.script(|qid, sqe| match qid {
        0 if sqe.opcode() == AdminOpcode::DELETE_IO_SQ.0 => Reply::Fail(StatusCode::InternalError),
        _ => Reply::Default,
    });
    drop(pair);
    assert_error!(fixture.controller.check_late_writes(), DriverError::LateWrites { count: 1, .. }, "timed out");
    // Nor is what nobody waited for at all forgotten.
    let mut third = fixture.controller.queue_pair(&small()).unwrap();
    third.keep(fixture.buffer.clone());
    let _cids = fixture.silence();
    third.read(&fixture.namespace, 1, 1, fixture.block(0), 1).unwrap();
    third.ring().unwrap();
    fixture.device.script(|_, sqe| {
        let delete = sqe.opcode() == AdminOpcode::DELETE_IO_SQ.0;
        if delete { Reply::Fail(StatusCode::InternalError) } else { Reply::Default }
    });
    drop(third);
    assert_eq!(
        other.write(&fixture.namespace, 1, 1, fixture.block(1), false, 2),
        Err(PushError::LateWrites { count: 1 }),
        "a read is no write"
    );
    other.leave();
    fixture.device.obey();
    fixture.controller.reset(Default::default()).unwrap();
    fixture.controller.check_late_writes().unwrap();
    other.recreate(|_| {}).unwrap();
    other.write(&fixture.namespace, 1, 1, fixture.block(1), false, 3).unwrap();
    other.wait(|completion| assert!(completion.is_success())).unwrap();

    // A write that had not timed out when its queue was dropped.
    fixture.device.script(|qid, sqe| match qid {
        0 if sqe.opcode() == AdminOpcode::DELETE_IO_SQ.0 => Reply::Fail(StatusCode::InternalError),
        0 => Reply::Default,
        _ => Reply::Silent,
    });
    other.write(&fixture.namespace, 1, 1, fixture.block(1), false, 4).unwrap();
    other.ring().unwrap();
    drop(other);
    assert_error!(fixture.controller.check_late_writes(), DriverError::LateWrites { count: 1, .. }, "1 writes");
}

#[test]
fn the_default_queue_fits_small_controllers() {
    let device = Device::new();
    let cap = device.state().cap.with_mqes_z(255);
    device.state().cap = cap;
    let controller = open(&device).unwrap();
    let mut io = BlockIo::new(&controller, controller.namespace(1).unwrap(), &QueueOptions::default()).unwrap();
    assert_eq!(io.queue_pair().depth(), 127);
    io.write(8, &[3; 512]).unwrap();
}

#[test]
fn half_a_queue_pair_is_taken_back() {
    let (fixture, pair) = Fixture::new();
    drop(pair);
    let before = fixture.device.mapped();
    fixture.device.script(|_, sqe| {
        let refuse = sqe.opcode() == AdminOpcode::CREATE_IO_SQ.0;
        if refuse { Reply::Fail(StatusCode::InvalidQueueSize) } else { Reply::Default }
    });
    assert_error!(fixture.controller.queue_pair(&small()), DriverError::Command { .. }, "Create I/O Submission Queue");
    let log = fixture.device.state().admin_log.clone();
    assert_eq!(log.last(), Some(&AdminOpcode::DELETE_IO_CQ), "only what was created is deleted");
    assert_eq!(fixture.device.mapped(), before);
    fixture.device.obey();
    assert_eq!(fixture.controller.queue_pair(&small()).unwrap().id(), 1);
}

#[test]
fn a_time_out_poisons_synchronous_io_until_recovery() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let mut io = BlockIo::new(&controller, controller.namespace(1).unwrap(), &small()).unwrap();
    device.script(|_, sqe| if sqe.opcode() == NvmOpcode::WRITE.0 { Reply::Silent } else { Reply::Default });
    assert_error!(io.write(8, &[1; 512]), DriverError::TimedOut { .. }, "Write (01h)", "LBA 8");
    device.obey();
    assert_error!(io.read(8, &mut [0; 512]), DriverError::Stuck { quarantined: 1, .. }, "quarantine");
    assert_error!(io.flush(), DriverError::Stuck { .. }, "quarantine");
    io.recover().unwrap();
    io.write(8, &[2; 512]).unwrap();
    let mut got = [0; 512];
    io.read(8, &mut got).unwrap();
    assert_eq!(got, [2; 512]);
}

#[test]
fn an_unfinished_command_holds_the_buffer_of_synchronous_io() {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let mut io = BlockIo::new(&controller, controller.namespace(1).unwrap(), &small()).unwrap();
    device.script(|_, sqe| if sqe.opcode() == NvmOpcode::READ.0 { Reply::Silent } else { Reply::Default });
    device.state().csts.set_cfs(true);
    assert_error!(io.read(8, &mut [0; 512]), DriverError::Fatal { .. }, "fatal error");
    assert_error!(io.write(8, &[2; 512]), DriverError::Stuck { outstanding: 1, quarantined: 0, .. }, "1 unfinished");
    io.leave();
    device.obey();
    controller.reset(Default::default()).unwrap();
    io.recover().unwrap();
    io.write(8, &[2; 512]).unwrap();
}

#[test]
fn a_device_that_fails_is_noticed_before_the_time_out() {
    let (fixture, mut pair) = Fixture::new();
    let _cids = fixture.silence();
    pair.read(&fixture.namespace, 1, 1, fixture.block(0), 1).unwrap();
    fixture.device.state().csts.set_cfs(true);
    let began = fixture.device.clock().now();
    assert_error!(pair.wait(|_| {}), DriverError::Fatal { .. }, "fatal error");
    fixture.device.state().gone = true;
    assert_error!(pair.wait(|_| {}), DriverError::Gone { .. }, "gone");
    assert!(fixture.device.clock().now() - began < Duration::from_secs(1));
}

#[test]
fn ranges_reach_the_device() {
    let (fixture, mut pair) = Fixture::new();
    let (sender, seen) = channel();
    fixture.device.script(move |qid, sqe| {
        if qid != 0 {
            sender.send(*sqe).unwrap();
        }
        Reply::Default
    });
    pair.deallocate(&fixture.namespace, &[(5, 7), (4095, 1)], 1).unwrap();
    pair.wait(|completion| assert!(completion.is_success())).unwrap();
    let sqe = seen.recv().unwrap();
    assert_eq!((sqe.opcode(), sqe.cdw10, sqe.cdw11), (NvmOpcode::DATASET_MANAGEMENT.0, 1, 4));
    let bytes = fixture.device.memory(sqe.prp1, 32);
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    assert_eq!(words, [7 << 32, 5, 1 << 32, 4095]);
}
