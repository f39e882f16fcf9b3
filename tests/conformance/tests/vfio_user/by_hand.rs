//! A host that uses what our driver does not: interrupts, doorbells by message, memory that may only be read, addresses of its own choice.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use warprow_dma::{DmaMemory, MemoryKind, PAGE};
use warprow_spec::admin::QueuePriority;
use warprow_spec::identify::Cns;
use warprow_spec::{Sqe, Status, StatusCode};
use warprow_vfio_user_proto::wire::{
    DmaMap, DmaUnmap, IrqSet, RegionAccess, command, dma_flags, irq_set_flags, region,
};
use warprow_vfio_user_proto::{Channel, PeerCapabilities, Version};
use zerocopy::{FromBytes, IntoBytes};

use crate::fixture::{Served, drive};

const TIME: Duration = Duration::from_secs(5);
/// Below 4 GiB, as a guest's memory.
const QUEUES: u64 = 0x10_0000;
const READABLE: u64 = 0x80_0000;

struct Host {
    channel: Channel,
    queues: DmaMemory,
    /// Commands sent, by queue.
    sent: [u32; 2],
}

impl Host {
    fn ask(&mut self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Vec<u8> {
        self.channel.command(9, command, &[payload], fds, TIME).expect("sent");
        let answer = self.channel.receive(Instant::now() + TIME, TIME).expect("an answer");
        assert_eq!(answer.failure(), None, "command {command}");
        answer.payload
    }

    fn map(&mut self, memory: &DmaMemory, addr: u64, flags: u32) {
        let map = DmaMap { argsz: 32, flags, offset: 0, addr, size: memory.len() as u64 };
        self.ask(command::DMA_MAP, map.as_bytes(), &[memory.file().expect("a memfd").0]);
    }

    fn store(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        let access = RegionAccess { offset, region, count: bytes.len() as u32 };
        self.ask(command::REGION_WRITE, &[access.as_bytes(), bytes].concat(), &[]);
    }

    fn load(&mut self, region: u32, offset: u64) -> u32 {
        let access = RegionAccess { offset, region, count: 4 };
        let answer = self.ask(command::REGION_READ, access.as_bytes(), &[]);
        u32::from_le_bytes(RegionAccess::read_from_prefix(&answer).expect("a head").1.try_into().expect("four bytes"))
    }

    /// Connected, with the controller enabled: admin queues in the first two pages, I/O queue 1 in the next two, with vector 3.
    fn new(served: &Served, vectors: &[OwnedFd]) -> Self {
        let channel = Channel::new(UnixStream::connect(&served.path).expect("a server")).expect("a channel");
        let queues = DmaMemory::allocate(16 * PAGE, MemoryKind::Memfd).expect("memory");
        let mut host = Self { channel, queues: queues.clone(), sent: [0; 2] };
        host.ask(
            command::VERSION,
            &Version { major: 0, minor: 0, capabilities: PeerCapabilities::default() }.encode(),
            &[],
        );
        host.map(&queues, QUEUES, dma_flags::READ | dma_flags::WRITE);
        let flags = irq_set_flags::DATA_EVENTFD | irq_set_flags::ACTION_TRIGGER;
        let set = IrqSet { argsz: 20, flags, index: 2, start: 0, count: vectors.len() as u32 };
        host.ask(command::DEVICE_SET_IRQS, set.as_bytes(), &vectors.iter().map(AsFd::as_fd).collect::<Vec<_>>());
        host.store(region::CONFIG, 4, &0x0406u16.to_le_bytes());
        host.store(region::BAR0, 0x24, &0x000f_000fu32.to_le_bytes());
        host.store(region::BAR0, 0x28, &QUEUES.to_le_bytes());
        host.store(region::BAR0, 0x30, &(QUEUES + PAGE as u64).to_le_bytes());
        host.store(region::BAR0, 0x14, &0x0046_0001u32.to_le_bytes());
        let start = Instant::now();
        while host.load(region::BAR0, 0x1c) & 1 == 0 {
            assert!(start.elapsed() < TIME, "RDY does not come");
        }
        let mut cq = Sqe::create_io_cq(1, 15).with_prps(QUEUES + 3 * PAGE as u64, 0);
        // Physically contiguous, interrupts enabled, vector 3.
        cq.cdw11 = 3 << 16 | 3;
        assert_eq!(host.run(0, cq), Status::SUCCESS);
        let sq = Sqe::create_io_sq(1, 15, 1, QueuePriority::URGENT).with_prps(QUEUES + 2 * PAGE as u64, 0);
        assert_eq!(host.run(0, sq), Status::SUCCESS);
        host
    }

    /// Sends one command to queue 0 or 1, by a message for the doorbell, and waits for its end.
    fn run(&mut self, queue: usize, mut sqe: Sqe) -> Status {
        let n = self.sent[queue];
        self.sent[queue] += 1;
        sqe.cdw0.set_cid(n as u16);
        let sq = 2 * queue * PAGE;
        let cq = (2 * queue + 1) * PAGE;
        self.queues.write(sq + (n % 16) as usize * 64, sqe.as_bytes());
        self.store(region::BAR0, 0x1000 + 8 * queue as u64, &((n + 1) % 16).to_le_bytes());
        let at = cq + (n % 16) as usize * 16;
        let phase = 1 - n / 16 % 2;
        let start = Instant::now();
        let word = loop {
            let word = self.queues.load_u64(at + 8);
            if (word >> 48) as u32 & 1 == phase {
                break word;
            }
            assert!(start.elapsed() < TIME, "command {n} of queue {queue} does not end");
            std::thread::yield_now();
        };
        assert_eq!((word >> 32) as u16, n as u16, "another command ended");
        self.store(region::BAR0, 0x1004 + 8 * queue as u64, &((n + 1) % 16).to_le_bytes());
        Status::from_bits((word >> 49) as u16)
    }
}

fn count(fd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    rustix::io::read(fd, &mut bytes).map_or(0, |_| u64::from_ne_bytes(bytes))
}

fn await_one(fd: &OwnedFd) {
    let start = Instant::now();
    while count(fd) == 0 {
        assert!(start.elapsed() < TIME, "no interrupt");
        std::thread::yield_now();
    }
}

#[test]
fn completions_are_announced_by_their_vector() {
    let served = Served::new(drive());
    let vectors: Vec<OwnedFd> = (0..5).map(|_| eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd")).collect();
    let mut host = Host::new(&served, &vectors);
    await_one(&vectors[0]);
    let data = QUEUES + 8 * PAGE as u64;
    host.queues.fill(8 * PAGE, PAGE, 0xc3);
    // Around the rings, so that both phases are seen.
    for lba in 0..40 {
        assert_eq!(host.run(1, Sqe::write(1, lba, 0, false).with_prps(data, 0)), Status::SUCCESS);
        await_one(&vectors[3]);
    }
    host.queues.fill(8 * PAGE, PAGE, 0);
    assert_eq!(host.run(1, Sqe::read(1, 39, 0, false).with_prps(data, 0)), Status::SUCCESS);
    await_one(&vectors[3]);
    assert_eq!(host.queues.load_u64(8 * PAGE), 0xc3c3_c3c3_c3c3_c3c3);
    assert_eq!(host.queues.load_u64(8 * PAGE + 512), 0);
    for quiet in [1, 2, 4] {
        assert_eq!(count(&vectors[quiet]), 0, "vector {quiet}");
    }
    // A reset takes them away, and the queues with them.
    count(&vectors[0]);
    host.ask(command::DEVICE_RESET, &[], &[]);
    assert_eq!(host.load(region::BAR0, 0x1c) & 1, 0);
    assert_eq!(host.load(region::CONFIG, 4) & 0xffff, 0);
    assert_eq!(count(&vectors[0]) + count(&vectors[3]), 0);
}

#[test]
fn memory_that_may_only_be_read_is_only_read() {
    let served = Served::new(drive());
    let mut host = Host::new(&served, &[]);
    let memory = DmaMemory::allocate(2 * PAGE, MemoryKind::Memfd).expect("memory");
    memory.fill(0, memory.len(), 0x77);
    host.map(&memory, READABLE, dma_flags::READ);
    assert_eq!(host.run(1, Sqe::write(1, 5, 15, false).with_prps(READABLE, READABLE + PAGE as u64)), Status::SUCCESS);
    // What the host writes later is seen too.
    memory.fill(0, PAGE, 0x78);
    assert_eq!(host.run(1, Sqe::write(1, 5, 7, false).with_prps(READABLE, 0)), Status::SUCCESS);
    let refused = |status: Status| assert_eq!(status.code(), StatusCode::DataTransferError, "{status}");
    memory.fill(0, memory.len(), 0x5a);
    refused(host.run(1, Sqe::read(1, 5, 0, false).with_prps(READABLE, 0)));
    refused(host.run(1, Sqe::read(1, 5, 15, false).with_prps(READABLE, READABLE + PAGE as u64)));
    // Half of it may be written.
    let data = QUEUES + 8 * PAGE as u64;
    refused(host.run(1, Sqe::read(1, 5, 15, false).with_prps(data, READABLE)));
    refused(host.run(0, Sqe::identify(Cns::CONTROLLER, 0).with_prps(READABLE, 0)));
    // Without a file too: nothing is even asked.
    let map = DmaMap { argsz: 32, flags: dma_flags::READ, offset: 0, addr: 0, size: PAGE as u64 };
    host.ask(command::DMA_MAP, map.as_bytes(), &[]);
    refused(host.run(1, Sqe::read(1, 5, 0, false).with_prps(0, 0)));
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0x5a), "the controller wrote");
    assert_eq!(host.run(1, Sqe::read(1, 5, 15, false).with_prps(data, data + PAGE as u64)), Status::SUCCESS);
    assert_eq!([0, PAGE].map(|at| host.queues.load_u8(8 * PAGE + at)), [0x78, 0x77]);
    assert_eq!(served.drive.dma_faults(), 5);
    host.ask(
        command::DMA_UNMAP,
        DmaUnmap { argsz: 24, flags: 0, addr: READABLE, size: memory.len() as u64 }.as_bytes(),
        &[],
    );
    refused(host.run(1, Sqe::write(1, 5, 0, false).with_prps(READABLE, 0)));
}
