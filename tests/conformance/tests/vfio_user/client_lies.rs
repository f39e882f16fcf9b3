//! A client that lies, stalls, floods: it is answered or seen off, and the next one is served.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use warprow_dma::{DmaMemory, Function};
use warprow_vfio_user::{OpenError, VfioUserFunction};
use warprow_vfio_user_proto::wire::{
    DmaMap, DmaUnmap, IrqInfo, IrqSet, MessageHeader, RegionAccess, RegionInfo, command, header_flags, irq_set_flags,
    region_flags,
};
use warprow_vfio_user_proto::{Channel, ChannelError, Message, PeerCapabilities, Version, region_info};
use warprow_vfio_user_server::ServerEvent;
use zerocopy::{FromBytes, IntoBytes};

use crate::fixture::{Served, drive, works};

const TIME: Duration = Duration::from_secs(5);
/// What a stalling client is given.
const SHORT: Duration = Duration::from_millis(150);

/// A client that sends what it likes.
struct Raw {
    channel: Channel,
}

impl Raw {
    fn new(served: &Served) -> Self {
        Self { channel: Channel::new(UnixStream::connect(&served.path).unwrap()).unwrap() }
    }

    fn greeted(served: &Served) -> Self {
        let mut raw = Self::new(served);
        let version = Version { major: 0, minor: 0, capabilities: PeerCapabilities::default() };
        let answer = raw.ask(command::VERSION, &version.encode(), &[]).unwrap();
        assert_eq!(answer.failure(), None);
        assert_eq!(Version::decode(&answer.payload).unwrap().minor, 0, "not above what was proposed");
        raw
    }

    fn ask(&mut self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Message, ChannelError> {
        self.channel.command(77, command, &[payload], fds, TIME)?;
        let answer = self.channel.receive(Instant::now() + TIME, TIME)?;
        assert!(answer.is_reply() && (answer.header.id, answer.header.command) == (77, command), "{answer:?}");
        Ok(answer)
    }

    fn refused(&mut self, command: u16, payload: &[u8], fds: &[BorrowedFd<'_>]) -> Errno {
        let answer = self.ask(command, payload, fds).unwrap();
        assert!(answer.payload.is_empty(), "an error reply has a head and nothing else");
        Errno::from_raw_os_error(answer.failure().expect("an error"))
    }
}

fn memfd(len: u64) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, len).unwrap();
    fd
}

fn map(addr: u64, size: u64) -> DmaMap {
    DmaMap { argsz: 32, flags: 3, offset: 0, addr, size }
}

#[test]
fn garbage_ends_the_connection_and_not_the_server() {
    let served = Served::with_time(drive(), SHORT);
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..40 {
        let mut stream = UnixStream::connect(&served.path).unwrap();
        let mut bytes = vec![0; rng.usize(1..300)];
        rng.fill(&mut bytes);
        stream.write_all(&bytes).unwrap();
        if rng.bool() {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        stream.set_read_timeout(Some(TIME)).unwrap();
        // The end of the connection, or its reset: in bounded time.
        let mut rest = Vec::new();
        let read = stream.read_to_end(&mut rest);
        assert!(
            !read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
            "round {round}: the server waits for more"
        );
        served.await_end(round);
    }
    works(served.connect(), 1);
}

#[test]
fn a_stalled_client_is_seen_off() {
    let served = Served::with_time(drive(), SHORT);
    let head = MessageHeader { id: 0, command: 1, size: 100, flags: 0, error: 0 };
    let version = Version { major: 0, minor: 1, capabilities: PeerCapabilities::default() };
    for (round, bytes) in
        [&[][..], &head.as_bytes()[..7], head.as_bytes(), &[head.as_bytes(), &[0; 50]].concat()].into_iter().enumerate()
    {
        let start = Instant::now();
        let mut stream = UnixStream::connect(&served.path).unwrap();
        stream.write_all(bytes).unwrap();
        let why = served.await_end(round);
        assert!(why.contains("within its time"), "{why}");
        assert!(start.elapsed() < Duration::from_secs(3));
    }
    // Once it is let in it may be silent as long as it likes, but not in the middle of a message.
    let mut raw = Raw::new(&served);
    assert_eq!(raw.ask(command::VERSION, &version.encode(), &[]).unwrap().failure(), None);
    std::thread::sleep(SHORT * 3);
    assert_eq!(raw.ask(command::DEVICE_GET_INFO, &[0; 16], &[]).unwrap().failure(), None);
    raw.channel.socket().write_all(&head.as_bytes()[..9]).unwrap();
    assert!(served.await_end(4).contains("rest of a message"));

    // One that asks and never reads the answers.
    let flood = Raw::new(&served);
    let mut stream = flood.channel.socket();
    stream.set_nonblocking(false).unwrap();
    stream.set_write_timeout(Some(TIME)).unwrap();
    let asked = version.encode();
    stream.write_all(MessageHeader { size: 16 + asked.len() as u32, ..head }.as_bytes()).unwrap();
    stream.write_all(&asked).unwrap();
    let read = RegionAccess { offset: 0, region: 7, count: 4096 };
    let message =
        [MessageHeader { command: command::REGION_READ, size: 32, ..head }.as_bytes(), read.as_bytes()].concat();
    let start = Instant::now();
    while stream.write_all(&message).is_ok() {
        assert!(start.elapsed() < Duration::from_secs(10), "the server reads on, and keeps all answers?");
    }
    assert!(served.await_end(5).contains("room for a message"));
    works(served.connect(), 2);
}

#[test]
fn one_client_at_a_time() {
    let served = Served::new(drive());
    let first = served.connect();
    let start = Instant::now();
    for _ in 0..3 {
        let error = VfioUserFunction::open(&served.path).unwrap_err();
        assert!(matches!(error, OpenError::Busy { .. }), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(4));
    // One that says nothing is not waited for.
    let _silent = UnixStream::connect(&served.path).unwrap();
    served.await_events(|events| events.iter().filter(|event| **event == ServerEvent::TurnedAway).count() == 4);
    works(first, 3);
    works(served.connect(), 4);
}

#[test]
fn lies_about_memory_are_refused() {
    let served = Served::new(drive());
    let mut raw = Raw::greeted(&served);
    let fd = memfd(64 << 10);
    let small = memfd(4096);
    let (pipe, _write) = std::io::pipe().unwrap();
    let disk = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    disk.set_len(1 << 20).unwrap();
    let good = map(1 << 32, 64 << 10);
    for (what, wrong, fds) in [
        ("a pipe", good, vec![pipe.as_fd()]),
        ("a file that is too short", good, vec![small.as_fd()]),
        ("an offset past its end", DmaMap { offset: 4096, ..good }, vec![fd.as_fd()]),
        ("two files", good, vec![fd.as_fd(), fd.as_fd()]),
        ("no whole pages", DmaMap { size: 100, ..good }, vec![fd.as_fd()]),
        ("addresses that wrap", DmaMap { addr: !0xffff, ..good }, vec![fd.as_fd()]),
        ("a length that nobody has", DmaMap { size: 1 << 62, addr: 0, ..good }, vec![fd.as_fd()]),
    ] {
        assert_eq!(raw.refused(command::DMA_MAP, wrong.as_bytes(), &fds), Errno::INVAL, "{what}");
    }
    let on_disk = raw.ask(command::DMA_MAP, good.as_bytes(), &[disk.as_fd()]).unwrap().failure();
    if rustix::fs::fstatfs(&disk).unwrap().f_type as i64 != 0x0102_1994 {
        assert_eq!(on_disk, Some(Errno::INVAL.raw_os_error()), "memory on a disk");
        assert_eq!(raw.ask(command::DMA_MAP, good.as_bytes(), &[fd.as_fd()]).unwrap().failure(), None);
    }
    for (addr, size) in [(good.addr, good.size), (good.addr - 4096, 8192), (good.addr + 4096, 4096)] {
        assert_eq!(raw.refused(command::DMA_MAP, map(addr, size).as_bytes(), &[fd.as_fd()]), Errno::EXIST);
    }
    // Without a file it is noted, and overlaps all the same.
    assert_eq!(raw.ask(command::DMA_MAP, map(0, 4096).as_bytes(), &[]).unwrap().failure(), None);
    assert_eq!(raw.refused(command::DMA_MAP, map(0, 4096).as_bytes(), &[fd.as_fd()]), Errno::EXIST);
    let unmap = |addr, size| DmaUnmap { argsz: 24, flags: 0, addr, size };
    for (addr, size, errno) in [
        (good.addr, 4096, Errno::INVAL),
        (good.addr + 4096, good.size, Errno::INVAL),
        (1 << 40, 4096, Errno::NOENT),
        (good.addr, 0, Errno::INVAL),
        (u64::MAX, 2, Errno::INVAL),
    ] {
        assert_eq!(raw.refused(command::DMA_UNMAP, unmap(addr, size).as_bytes(), &[]), errno, "{addr:#x} {size:#x}");
    }
    // With a file, as SPDK's client does it.
    let all = unmap(0, good.addr + good.size);
    assert_eq!(raw.refused(command::DMA_UNMAP, all.as_bytes(), &[fd.as_fd(), fd.as_fd()]), Errno::INVAL);
    assert_eq!(raw.ask(command::DMA_UNMAP, all.as_bytes(), &[fd.as_fd()]).unwrap().failure(), None);
    assert_eq!(
        raw.ask(command::DMA_UNMAP, DmaUnmap { flags: 2, ..unmap(0, 0) }.as_bytes(), &[]).unwrap().failure(),
        None
    );
    // As many as were agreed on, and one more.
    for i in 0..4096 {
        assert_eq!(raw.ask(command::DMA_MAP, map(i << 12, 4096).as_bytes(), &[]).unwrap().failure(), None, "{i}");
    }
    assert_eq!(raw.refused(command::DMA_MAP, map(1 << 40, 4096).as_bytes(), &[]), Errno::NOSPC);
    // Descriptors do not pile up, neither those kept nor those refused.
    drop(raw);
    served.await_end(0);
    works(served.connect(), 5);
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let served = Served::new(drive());
    let mut raw = Raw::greeted(&served);
    let file = memfd(4096);
    let read = |region, offset, count| RegionAccess { offset, region, count };
    for access in [
        read(0, 0x4000, 4),
        read(0, u64::MAX, 4),
        read(0, 0, 1 << 20),
        read(7, 4095, 2),
        read(4, 1 << 40, 1),
        read(1, 0, 4),
        read(99, 0, 4),
    ] {
        assert_eq!(raw.refused(command::REGION_READ, access.as_bytes(), &[]), Errno::INVAL, "{access:?}");
        let write = [access.as_bytes(), &vec![0; (access.count as usize).min(8)]].concat();
        assert_eq!(raw.refused(command::REGION_WRITE, &write, &[]), Errno::INVAL, "{access:?}");
    }
    for (count, len) in [(4, 3), (4, 0), (3, 3), (16, 16)] {
        let write = [read(0, 0x14, count).as_bytes(), &vec![0; len]].concat();
        assert_eq!(raw.refused(command::REGION_WRITE, &write, &[]), Errno::INVAL, "{count} {len}");
    }
    for (command, errno) in [
        (command::DIRTY_PAGES, Errno::OPNOTSUPP),
        (command::DEVICE_FEATURE, Errno::OPNOTSUPP),
        (command::DEVICE_GET_REGION_IO_FDS, Errno::OPNOTSUPP),
        (command::REGION_WRITE_MULTI, Errno::OPNOTSUPP),
        (0, Errno::OPNOTSUPP),
        (999, Errno::OPNOTSUPP),
        (command::VERSION, Errno::INVAL),
    ] {
        assert_eq!(raw.refused(command, &[0; 64], &[]), errno, "{command}");
    }
    assert_eq!(raw.refused(command::DEVICE_GET_INFO, &[0; 16], &[file.as_fd()]), Errno::INVAL);
    let region = |index, argsz| RegionInfo { argsz, index, ..RegionInfo::default() };
    assert_eq!(raw.refused(command::DEVICE_GET_REGION_INFO, region(9, 32).as_bytes(), &[]), Errno::INVAL);
    assert_eq!(raw.refused(command::DEVICE_GET_REGION_INFO, region(0, 31).as_bytes(), &[]), Errno::INVAL);
    assert_eq!(
        raw.refused(command::DEVICE_GET_IRQ_INFO, IrqInfo { index: 5, ..IrqInfo::default() }.as_bytes(), &[]),
        Errno::INVAL
    );
    let set = |flags, start, count| IrqSet { argsz: 20, flags, index: 2, start, count };
    let eventfds = irq_set_flags::DATA_EVENTFD | irq_set_flags::ACTION_TRIGGER;
    for (set, fds) in [
        (set(eventfds, 0, 1), 1),
        (set(eventfds, 0, 2), 1),
        (set(eventfds, 500, 1), 0),
        (set(eventfds, u32::MAX, 2), 0),
        (set(0, 0, 1), 0),
        (set(irq_set_flags::DATA_BOOL | irq_set_flags::ACTION_MASK, 0, 9), 0),
        (IrqSet { index: 1, ..set(eventfds, 0, 1) }, 1),
    ] {
        let fds = vec![file.as_fd(); fds];
        assert_eq!(raw.refused(command::DEVICE_SET_IRQS, set.as_bytes(), &fds), Errno::INVAL, "{set:?}");
    }

    // Long requests and small rooms for answers are somebody's habit: BAR0's file comes when there is room for all of it.
    for (argsz, files) in [(32, 0), (63, 0), (64, 1), (4096, 1)] {
        let long = [region(0, argsz).as_bytes(), &[0; 500]].concat();
        let answer = raw.ask(command::DEVICE_GET_REGION_INFO, &long, &[]).unwrap();
        let info = RegionInfo::read_from_prefix(&answer.payload).unwrap().0;
        assert_eq!((answer.fds.len(), info.argsz, answer.payload.len()), (files, 64, if files == 0 { 32 } else { 64 }));
        assert_ne!(info.flags & region_flags::MMAP, 0);
        if files == 1 {
            assert_eq!(region_info(&answer.payload, 0, argsz).unwrap().areas[0].offset, 0x1000);
        }
    }
    // No answer where none is wanted, not even a refusal; the next one is in step.
    let silent = MessageHeader { id: 5, command: 999, size: 16, flags: header_flags::NO_REPLY, error: 0 };
    raw.channel.socket().write_all(silent.as_bytes()).unwrap();
    assert_eq!(raw.ask(command::DEVICE_RESET, &[], &[]).unwrap().failure(), None);
    let refused = served.events().iter().filter(|event| matches!(event, ServerEvent::Refused { .. })).count();
    assert_eq!(refused, 16, "so many are told");
    drop(raw);
    works(served.connect(), 6);
}

/// Whole messages with any content: each is answered, and nothing breaks.
#[test]
fn a_flood_of_nonsense_changes_nothing() {
    let served = Served::new(drive());
    let mut rng = fastrand::Rng::with_seed(0x5eed);
    let mut raw = Raw::greeted(&served);
    let fd = memfd(1 << 20);
    for _ in 0..20_000 {
        let command = rng.u16(0..20);
        let mut payload = vec![0; rng.usize(0..64)];
        for byte in payload.iter_mut().filter(|_| rng.u8(..) < 100) {
            *byte = [0, 1, 2, 3, 4, 7, 16, 32, 0xff, 0x10][fastrand::usize(..10)];
        }
        let fds = if rng.u8(..) < 40 { vec![fd.as_fd()] } else { Vec::new() };
        raw.ask(command, &payload, &fds).unwrap();
    }
    drop(raw);
    served.await_end(0);
    works(served.connect(), 7);
}

/// The page vanishes under the server's own hands.
#[test]
fn a_file_that_is_shortened_ends_the_session_only() {
    let served = Served::new(drive());
    let function = served.connect();
    let fd = memfd(1 << 20);
    let memory = DmaMemory::import(fd.try_clone().unwrap(), 0, 1 << 20, true).unwrap();
    let iova = function.map(&memory).unwrap();
    function.set_bus_master(true).unwrap();
    // The admin queues lie there; the controller reads them as soon as it is told to.
    function.write_u32(0x24, 0x001f_001f).unwrap();
    function.write_u64(0x28, iova).unwrap();
    function.write_u64(0x30, iova + 4096).unwrap();
    function.write_u32(0x14, 0x0046_0001).unwrap();
    ftruncate(&fd, 0).unwrap();
    function.doorbell(0x1000).unwrap().ring(5);
    let why = served.await_end(0);
    assert!(why.contains("shortened"), "{why}");
    assert!(function.read_u32(0x1c).is_err());
    works(served.connect(), 8);
}
