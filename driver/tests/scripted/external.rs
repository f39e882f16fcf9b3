//! Queue pairs whose rings somebody else drives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use warprow_dma::{DmaMemory, Doorbell, MappedMemory};
use warprow_driver::queue::{NEVER, Ring, RingMemory};
use warprow_driver::{
    CommandEnd, Controller, DriverError, ExternalMemory, ExternalQueue, QueuePairMemory, ResetKind, RingSizes,
    Submitter,
};
use warprow_spec::{AdminOpcode, NvmOpcode, Sqe, StatusCode};

use crate::device::{Device, Reply};
use crate::{assert_error, open};

const SIZES: RingSizes = RingSizes { entries: 8, completion_entries: 16 };
const LANDING: usize = 2 * 4096;
const BYTES: usize = LANDING + 4096;

/// A submitter that leaves when it is told to, unless it is stubborn.
#[derive(Debug, Default)]
struct Door {
    closings: AtomicI32,
    stubborn: AtomicBool,
}

impl Submitter for Door {
    fn close(&self) {
        self.closings.fetch_add(1, Ordering::SeqCst);
    }
    fn has_left(&self) -> bool {
        assert!(self.is_closed(), "nobody asks whether it has left without having closed it");
        !self.stubborn.load(Ordering::SeqCst)
    }
    fn open(&self) {
        assert!(self.closings.fetch_sub(1, Ordering::SeqCst) > 0, "opened more often than closed");
    }
}

impl Door {
    fn is_closed(&self) -> bool {
        self.closings.load(Ordering::SeqCst) > 0
    }
    fn set_stubborn(&self, stubborn: bool) {
        self.stubborn.store(stubborn, Ordering::SeqCst);
    }
}

/// Makes a queue for the test that holds it.
#[allow(unsafe_code, reason = "rings of their own")]
fn external_queue(
    controller: &Arc<Controller>,
    memory: Arc<MappedMemory>,
    sizes: RingSizes,
    door: &Arc<Door>,
) -> Result<ExternalQueue, DriverError> {
    // SAFETY: commands land behind the rings ([`command`]); no memory of these tests is ever plain bytes.
    unsafe { controller.external_queue(ExternalMemory::together(memory, sizes), sizes, door.clone()) }
}

fn fixture() -> (Device, Arc<Controller>, Arc<Door>, ExternalQueue) {
    let device = Device::new();
    let controller = open(&device).unwrap();
    let door = Arc::new(Door::default());
    let memory = controller.allocate(BYTES).unwrap();
    memory.memory().fill(0, BYTES, 0xff);
    let queue = external_queue(&controller, memory, SIZES, &door).unwrap();
    (device, controller, door, queue)
}

/// The host's memory that the rings lie in.
fn host(queue: &ExternalQueue) -> &DmaMemory {
    match &queue.memory().sq.memory {
        QueuePairMemory::Host(memory) => memory.memory(),
        QueuePairMemory::Peer(_) => panic!("the rings lie in memory of the host"),
    }
}

fn ring(queue: &ExternalQueue) -> Ring<RingMemory, Doorbell> {
    let words = |at| RingMemory::new(host(queue).clone(), at);
    let RingSizes { entries, completion_entries } = queue.sizes();
    let cq = words(queue.sizes().cq_offset());
    Ring::new(queue.id(), (words(0), entries, queue.tail().clone()), (cq, completion_entries, queue.head().clone()))
}

fn command(opcode: NvmOpcode, queue: &ExternalQueue, lba: u64) -> Sqe {
    let landing = queue.memory().sq.iova() + LANDING as u64 + lba * 512;
    Sqe::new(opcode.0, 1).with_slba(lba).with_prps(landing, 0)
}

/// Reads LBAs 0 to 7 through rings that are as after creation, and compares; `turn` makes contents differ.
fn assert_reads(queue: &ExternalQueue, turn: u8) {
    let memory = host(queue);
    let mut ring = ring(queue);
    for (opcode, byte) in [(NvmOpcode::WRITE, turn), (NvmOpcode::READ, 0xee)] {
        for lba in 0..8u64 {
            let at = LANDING + lba as usize * 512;
            memory.fill(at, 512, if opcode == NvmOpcode::WRITE { byte ^ lba as u8 } else { byte });
            ring.push(command(opcode, queue, lba), lba, NEVER).unwrap();
            ring.ring();
            assert_eq!(ring.poll(|end| assert_eq!((end.tag, end.is_success()), (lba, true))), 1);
        }
    }
    for lba in 0..8 {
        let mut got = [0; 512];
        memory.read(LANDING + lba * 512, &mut got);
        assert_eq!(got, [turn ^ lba as u8; 512], "LBA {lba}");
    }
    assert_eq!(ring.anomalies().total(), 0);
}

#[test]
fn what_the_submitter_wrote_it_reads() {
    let (device, controller, door, queue) = fixture();
    assert_eq!((queue.id(), queue.sizes(), queue.doorbell_offsets()), (4, SIZES, (0x1020, 0x1024)));
    assert!(!queue.is_stale());
    assert_reads(&queue, 1);
    assert!(!door.is_closed());
    drop(queue);
    assert!(door.is_closed(), "nobody comes back into a queue that is gone");
    drop(controller);
    assert_eq!(device.mapped(), 0);
    let state = device.state();
    assert_eq!((state.dma_faults, state.stray_doorbells), (0, 0));
}

#[test]
fn refusals_before_anything_is_sent() {
    let (device, controller, door, _queue) = fixture();
    let other = open(&Device::new()).unwrap();
    let before = device.state().admin_log.len();
    let refused = |memory: Arc<MappedMemory>, sizes| external_queue(&controller, memory, sizes, &door);
    let foreign = other.allocate(BYTES).unwrap();
    assert_error!(refused(foreign, SIZES), DriverError::QueueMemory { .. }, "mapped for scripted:0");
    let small = controller.allocate(4096).unwrap();
    assert_error!(
        refused(small, SIZES),
        DriverError::QueueMemory { .. },
        "completion queue",
        "from byte 4096 on",
        "has 4096 bytes"
    );
    let memory = controller.allocate(1 << 20).unwrap();
    for (entries, completion_entries, word) in [(1, 8, "1 entries"), (8, 0, "0 entries"), (8, 1025, "1025 entries")] {
        let sizes = RingSizes { entries, completion_entries };
        assert_error!(refused(memory.clone(), sizes), DriverError::QueueSize { max: 1024, .. }, word);
    }
    assert_eq!(device.state().admin_log.len(), before);
    let _others: Vec<_> = (2..=4).map(|_| refused(memory.clone(), SIZES).unwrap()).collect();
    assert_error!(refused(memory, SIZES), DriverError::NoQueueLeft { granted: 4, .. }, "in use");
    assert!(!door.is_closed());
}

#[test]
fn a_queue_that_is_not_created_costs_nothing() {
    let (device, controller, door, _queue) = fixture();
    let memory = controller.allocate(BYTES).unwrap();
    device.script(|_, sqe| {
        let refused = sqe.opcode() == AdminOpcode::CREATE_IO_SQ.0;
        if refused { Reply::Fail(StatusCode::InvalidQueueSize) } else { Reply::Default }
    });
    let refused = external_queue(&controller, memory.clone(), SIZES, &door);
    assert_error!(refused, DriverError::Command { .. }, "Create I/O Submission Queue");
    assert!(!door.is_closed(), "the submitter's other queues go on");
    device.obey();
    let queue = external_queue(&controller, memory, SIZES, &door).unwrap();
    assert_eq!(queue.id(), 3);
    assert_reads(&queue, 2);
}

#[test]
fn recreation_starts_from_nothing() {
    let (device, _controller, door, mut queue) = fixture();
    assert_reads(&queue, 3);
    device.script(|qid, _| if qid == 0 { Reply::Default } else { Reply::Silent });
    let mut ring = ring(&queue);
    ring.push(command(NvmOpcode::READ, &queue, 0), 0, NEVER).unwrap();
    ring.ring();
    device.obey();
    let before = device.state().admin_log.len();
    queue.recreate().unwrap();
    let steps = device.state().admin_log.split_off(before);
    use AdminOpcode as Op;
    assert_eq!(steps, [Op::DELETE_IO_SQ, Op::DELETE_IO_CQ, Op::CREATE_IO_CQ, Op::CREATE_IO_SQ]);
    assert!(!door.is_closed());
    // No entry of the SQ does anything, and none of the CQ has come.
    let (sq, cq) = (queue.memory().sq.iova(), queue.memory().cq.iova());
    for entry in device.memory(sq, SIZES.entries as usize * 64).chunks(64) {
        assert_eq!((entry[0], &entry[2..4]), (0x7c, &[0xff, 0xff][..]));
        assert!(entry[1] == 0 && entry[4..].iter().all(|&byte| byte == 0));
    }
    assert_eq!(
        device.memory(cq, SIZES.completion_entries as usize * 16),
        vec![0; SIZES.completion_entries as usize * 16]
    );
    assert_reads(&queue, 4);
}

#[test]
fn deletion_is_undone_by_recreation() {
    let (device, controller, door, mut queue) = fixture();
    queue.delete().unwrap();
    queue.delete().unwrap();
    assert!(queue.is_stale() && door.is_closed());
    assert_eq!(device.state().admin_log.iter().filter(|&&op| op == AdminOpcode::DELETE_IO_CQ).count(), 1);
    controller.reset(ResetKind::Controller).unwrap();
    queue.recreate().unwrap();
    assert!(!queue.is_stale() && !door.is_closed());
    assert_reads(&queue, 5);
}

#[test]
fn a_reset_closes_the_submitter_until_the_queue_is_recreated() {
    let (_device, controller, door, mut queue) = fixture();
    let memory = controller.allocate(BYTES).unwrap();
    let mut second = external_queue(&controller, memory, SIZES, &door).unwrap();
    assert_reads(&queue, 6);
    for _ in 0..2 {
        // The second time they are closed already.
        controller.reset(ResetKind::Controller).unwrap();
        assert!(queue.is_stale() && second.is_stale() && door.is_closed());
    }
    queue.recreate().unwrap();
    assert!(door.is_closed(), "the other queue is not there yet");
    second.recreate().unwrap();
    assert!(!door.is_closed());
    assert_reads(&queue, 7);
    assert_reads(&second, 8);
}

#[test]
fn a_submitter_that_stays_holds_off_a_reset() {
    let (device, controller, door, mut queue) = fixture();
    door.set_stubborn(true);
    assert_error!(controller.reset(ResetKind::Controller), DriverError::QueuesInUse { .. }, "[4]", "kernel");
    assert_eq!(controller.resets(), 0);
    assert!(!door.is_closed() && !queue.is_stale(), "nothing was reset");
    assert_reads(&queue, 9);

    let before = device.state().admin_log.len();
    assert_error!(queue.recreate(), DriverError::QueuesInUse { .. }, "[4]");
    assert!(door.is_closed(), "it is wanted out");
    assert_error!(controller.reset(ResetKind::Controller), DriverError::QueuesInUse { .. }, "[4]");
    assert!(door.is_closed(), "the reset takes back only what it closed itself");
    assert_eq!(device.state().admin_log.len(), before);
    door.set_stubborn(false);
    queue.recreate().unwrap();
    assert!(!door.is_closed());
    assert_reads(&queue, 10);
}

#[test]
fn memory_stays_mapped_while_the_submitter_is_inside() {
    let (device, controller, door, queue) = fixture();
    door.set_stubborn(true);
    let before = device.mapped();
    drop(queue);
    assert_eq!(device.mapped(), before);
    assert_error!(controller.reset(ResetKind::Controller), DriverError::QueuesInUse { .. }, "[4]");
    door.set_stubborn(false);
    controller.reset(ResetKind::Controller).unwrap();
    assert_eq!(device.mapped(), before - 1);
    let queue = external_queue(&controller, controller.allocate(BYTES).unwrap(), SIZES, &Arc::default()).unwrap();
    assert_eq!(queue.id(), 4);
    assert_reads(&queue, 11);
}

#[test]
fn a_queue_that_the_device_does_not_delete_needs_a_reset() {
    let (device, controller, door, mut queue) = fixture();
    let refuse = |_, sqe: &Sqe| {
        let refused = sqe.opcode() == AdminOpcode::DELETE_IO_SQ.0;
        if refused { Reply::Fail(StatusCode::InternalError) } else { Reply::Default }
    };
    device.script(refuse);
    assert_error!(queue.recreate(), DriverError::Command { .. }, "Delete I/O Submission Queue");
    assert!(door.is_closed());
    controller.reset(ResetKind::Controller).unwrap();
    queue.recreate().unwrap();
    assert!(!door.is_closed());
    assert_reads(&queue, 12);

    let before = device.mapped();
    drop(queue);
    assert_eq!(device.mapped(), before);
    controller.reset(ResetKind::Controller).unwrap();
    assert_eq!(device.mapped(), before - 1);
}

#[test]
fn a_reset_waits_for_a_submitter_at_work() {
    let (_device, controller, door, mut queue) = fixture();
    door.set_stubborn(true);
    let mut rings = ring(&queue);
    let read = command(NvmOpcode::READ, &queue, 3);
    let inside = door.clone();
    let submitter = std::thread::spawn(move || {
        let mut done = 0u64;
        while !inside.is_closed() {
            rings.push(read, done, NEVER).unwrap();
            rings.ring();
            rings.poll(|end| {
                assert_eq!((end.tag, end.ended), (done, CommandEnd::Answered(StatusCode::Success.into())));
                done += 1;
            });
        }
        inside.set_stubborn(false);
        done
    });
    // The clock of the test turns fast: the submitter may need more than one try.
    while controller.reset(ResetKind::Controller).is_err() {
        std::thread::yield_now();
    }
    submitter.join().unwrap();
    assert!(door.is_closed());
    queue.recreate().unwrap();
    assert_reads(&queue, 13);
}
