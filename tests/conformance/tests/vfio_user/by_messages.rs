//! Memory without a file: the server reaches it by messages, and the client answers them.

use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warprow_conformance::{CHECKS, Subject, Verdict};
use warprow_dma::{
    AllocateError, DmaMemory, Doorbell, Function, FunctionError, Interrupt, MemoryKind, PAGE, SystemClock,
};
use warprow_driver::{BlockIo, Controller, ControllerOptions, QueueOptions};
use warprow_spec::identify::Cns;
use warprow_spec::{Cqe, Sqe};
use warprow_vfio_user::VfioUserFunction;
use warprow_vfio_user_proto::wire::{DmaAccess, DmaMap, RegionAccess, command, dma_flags, region};
use warprow_vfio_user_proto::{Channel, Message, PeerCapabilities, Version};
use zerocopy::{FromBytes, IntoBytes};

use crate::fixture::{Served, drive};

const TIME: Duration = Duration::from_secs(5);

/// Memory of the function is this process's alone.
#[derive(Debug)]
struct Fileless(Arc<VfioUserFunction>);

impl Function for Fileless {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn read_u32(&self, offset: u64) -> Result<u32, FunctionError> {
        self.0.read_u32(offset)
    }
    fn read_u64(&self, offset: u64) -> Result<u64, FunctionError> {
        self.0.read_u64(offset)
    }
    fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.0.write_u32(offset, value)
    }
    fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError> {
        self.0.write_u64(offset, value)
    }
    fn doorbell(&self, offset: u64) -> Result<Doorbell, FunctionError> {
        self.0.doorbell(offset)
    }
    fn allocate(&self, len: usize) -> Result<DmaMemory, AllocateError> {
        DmaMemory::allocate(len, MemoryKind::Anonymous)
    }
    fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError> {
        assert!(memory.file().is_none());
        self.0.map(memory)
    }
    fn unmap(&self, iova: u64) -> Result<(), FunctionError> {
        self.0.unmap(iova)
    }
    fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError> {
        self.0.set_bus_master(enabled)
    }
    fn reset(&self) -> Result<(), FunctionError> {
        self.0.reset()
    }
    fn interrupt(&self) -> Result<Arc<dyn Interrupt>, FunctionError> {
        self.0.interrupt()
    }
}

/// Every check, with rings, lists and data all by messages.
#[test]
fn every_check() {
    for workers in [1, 2] {
        let served = Served::new(drive().workers(workers).queue_pairs(8));
        let subject = Subject { function: Arc::new(Fileless(served.connect())), clock: Arc::new(SystemClock::new()) };
        let mut wrong = Vec::new();
        for check in CHECKS {
            match check.run(&subject) {
                Ok(Verdict::Passed) => {}
                Ok(Verdict::Skipped(_)) if check.name == "the volatile write cache is switched" => {}
                Ok(Verdict::Skipped(why)) => wrong.push(format!("{}: skipped: {why}", check.name)),
                Err(error) => wrong.push(format!("{}: {error:#}", check.name)),
            }
        }
        assert!(wrong.is_empty(), "{workers} workers: {}", wrong.join("\n"));
    }
}

#[test]
fn much_at_a_time() {
    let served = Served::new(drive().workers(2).seed(3).permute());
    let function = Arc::new(Fileless(served.connect()));
    let controller =
        Controller::open(function, Arc::new(SystemClock::new()), ControllerOptions::default()).expect("a controller");
    let namespace = controller.namespace(1).expect("a namespace");
    let mut io = BlockIo::new(&controller, namespace, &QueueOptions::default()).expect("a queue pair");
    let mut written = vec![0; 3 << 20];
    let mut read = vec![0; 3 << 20];
    warprow_conformance::fill(77, 8, 512, &mut written);
    io.write(8, &written).expect("a write");
    io.read(8, &mut read).expect("a read");
    assert!(read == written && served.drive.dma_faults() == 0);
}

/// A client by hand, whose memory is a vector.
struct Host {
    channel: Channel,
    memory: Vec<u8>,
    /// What the server asked for.
    asked: Vec<(u16, DmaAccess)>,
}

const BASE: u64 = 0x10_0000;

impl Host {
    fn new(served: &Served, most: u64) -> Self {
        let channel = Channel::new(UnixStream::connect(&served.path).expect("a server")).expect("a channel");
        let mut host = Self { channel, memory: vec![0; 8 * PAGE], asked: Vec::new() };
        let capabilities = PeerCapabilities { max_data_xfer_size: most, ..PeerCapabilities::default() };
        host.ask(command::VERSION, &Version { major: 0, minor: 1, capabilities }.encode());
        let flags = dma_flags::READ | dma_flags::WRITE;
        let map = DmaMap { argsz: 32, flags, offset: 0, addr: BASE, size: host.memory.len() as u64 };
        host.ask(command::DMA_MAP, map.as_bytes());
        host
    }

    /// Admin queues of 16 entries in the first two pages.
    fn enable(&mut self) {
        self.store(region::CONFIG, 4, &0x0406u16.to_le_bytes());
        self.store(region::BAR0, 0x24, &0x000f_000fu32.to_le_bytes());
        self.store(region::BAR0, 0x28, &BASE.to_le_bytes());
        self.store(region::BAR0, 0x30, &(BASE + PAGE as u64).to_le_bytes());
        self.store(region::BAR0, 0x14, &0x0046_0001u32.to_le_bytes());
        let begin = Instant::now();
        loop {
            let access = RegionAccess { offset: 0x1c, region: region::BAR0, count: 4 };
            if self.ask(command::REGION_READ, access.as_bytes())[16] & 1 != 0 {
                return;
            }
            assert!(begin.elapsed() < TIME, "RDY does not come");
        }
    }

    fn store(&mut self, region: u32, offset: u64, bytes: &[u8]) {
        let access = RegionAccess { offset, region, count: bytes.len() as u32 };
        self.ask(command::REGION_WRITE, &[access.as_bytes(), bytes].concat());
    }

    fn ask(&mut self, command: u16, payload: &[u8]) -> Vec<u8> {
        self.channel.command(9, command, &[payload], &[], TIME).expect("sent");
        loop {
            let message = self.channel.receive(Instant::now() + TIME, TIME).expect("an answer");
            if message.is_reply() {
                assert_eq!((message.failure(), message.header.command), (None, command));
                return message.payload;
            }
            self.serve(&message);
        }
    }

    /// The next question of the server's, or nothing when it ends.
    fn question(&mut self) -> Option<Message> {
        loop {
            let message = self.channel.receive(Instant::now() + TIME, TIME).ok()?;
            if !message.is_reply() {
                return Some(message);
            }
        }
    }

    fn access(message: &Message) -> DmaAccess {
        DmaAccess::read_from_prefix(&message.payload).expect("an access").0
    }

    /// Does what the server asks for.
    fn serve(&mut self, message: &Message) {
        let access = Self::access(message);
        self.asked.push((message.header.command, access));
        let begin = (access.addr - BASE) as usize;
        let place = &mut self.memory[begin..begin + access.count as usize];
        let data = match message.header.command {
            command::DMA_READ => place.to_vec(),
            command::DMA_WRITE => {
                place.copy_from_slice(&message.payload[16..]);
                Vec::new()
            }
            other => panic!("command {other}"),
        };
        self.channel.reply(&message.header, &[access.as_bytes(), &data], &[], TIME).expect("sent");
    }

    /// Identify Controller to the third page, as admin command 0: the server's first question, which may come before the doorbell's
    /// answer.
    fn identify(&mut self) -> Message {
        let mut sqe = Sqe::identify(Cns::CONTROLLER, 0).with_prps(BASE + 2 * PAGE as u64, 0);
        sqe.cdw0.set_cid(0);
        self.memory[..64].copy_from_slice(sqe.as_bytes());
        let access = RegionAccess { offset: 0x1000, region: region::BAR0, count: 4 };
        let bell = [access.as_bytes(), &1u32.to_le_bytes()];
        self.channel.command(9, command::REGION_WRITE, &bell, &[], TIME).expect("sent");
        self.question().expect("a question")
    }

    fn completion(&self) -> Cqe {
        let words = [0, 8].map(|at| u64::from_le_bytes(self.memory[PAGE + at..][..8].try_into().expect("8 bytes")));
        Cqe::from_words(words)
    }
}

#[test]
fn data_comes_before_its_completion_in_pieces_of_the_clients_choice() {
    let served = Served::new(drive());
    let mut host = Host::new(&served, 1000);
    host.enable();
    let first = host.identify();
    host.serve(&first);
    while host.memory[PAGE + 14] & 1 == 0 {
        let message = host.question().expect("a question");
        host.serve(&message);
    }
    assert!(host.completion().status().is_success());
    let asked: Vec<_> =
        host.asked.iter().map(|(command, access)| (*command, access.addr - BASE, access.count)).collect();
    let read = command::DMA_READ;
    let write = command::DMA_WRITE;
    let page = PAGE as u64;
    let data = (0..5).map(|i| (write, 2 * page + i * 1000, if i < 4 { 1000 } else { 96 }));
    let due: Vec<_> = [(read, 0, 64)].into_iter().chain(data).chain([(write, page, 16)]).collect();
    assert_eq!(asked, due);
    // What Identify Controller says, by the other way to see it.
    let controller =
        Controller::open(served_again(), Arc::new(SystemClock::new()), ControllerOptions::default()).expect("one");
    assert_eq!(host.memory[2 * PAGE + 4..][..20], controller.info().as_bytes()[4..24]);
}

/// A second drive alike.
fn served_again() -> Arc<dyn Function> {
    drive().build().expect("a controller")
}

/// A client that answers one message as `answer` does, and all others as it should; why the session ended, and how soon.
fn ends(answer: impl Fn(&mut Host, &Message)) -> (String, Duration) {
    let served = Served::with_time(drive(), Duration::from_millis(300));
    let mut host = Host::new(&served, 1 << 20);
    host.enable();
    let message = host.identify();
    let begin = Instant::now();
    answer(&mut host, &message);
    let why = served.await_end(0);
    drop(host);
    // Another client is served as if nothing had been.
    crate::fixture::works(served.connect(), 5);
    (why, begin.elapsed())
}

#[test]
fn answers_that_make_no_sense_end_the_session() {
    let reply = |host: &mut Host, message: &Message, access: DmaAccess, len: usize| {
        let _ = host.channel.reply(&message.header, &[access.as_bytes(), &vec![0; len]], &[], TIME);
    };
    type Lie<'a> = Box<dyn Fn(&mut Host, &Message) + 'a>;
    let lies: Vec<(&str, Lie<'_>)> = vec![
        ("other memory", Box::new(|host, message| reply(host, message, DmaAccess { addr: 0, count: 64 }, 64))),
        ("less data", Box::new(|host, message| reply(host, message, Host::access(message), 63))),
        ("more data", Box::new(|host, message| reply(host, message, Host::access(message), 65))),
        ("a short answer", Box::new(|host, message| drop(host.channel.reply(&message.header, &[&[0; 15]], &[], TIME)))),
        (
            "another's answer",
            Box::new(|host, message| {
                let mut header = message.header;
                header.id = header.id.wrapping_add(1);
                let _ = host.channel.reply(&header, &[Host::access(message).as_bytes(), &[0; 64]], &[], TIME);
            }),
        ),
        ("silence", Box::new(|_, _| {})),
        ("half an answer", Box::new(|host, _| drop(host.channel.socket().write_all(&[0; 9])))),
        (
            "questions instead of an answer",
            Box::new(|host, _| {
                for _ in 0..300 {
                    let _ = host.channel.command(1, command::DEVICE_GET_INFO, &[&[16, 0, 0, 0], &[0; 12]], &[], TIME);
                }
            }),
        ),
    ];
    for (what, lie) in lies {
        let (why, took) = ends(lie);
        assert!(why.contains("the client's memory cannot be reached"), "{what}: {why}");
        assert!(took < Duration::from_secs(10), "{what}: {took:?}");
    }
}

/// Questions that come while the server awaits an answer are answered afterwards.
#[test]
fn questions_may_cross() {
    let served = Served::new(drive());
    let mut host = Host::new(&served, 1 << 20);
    host.enable();
    let message = host.identify();
    for id in 20..40 {
        host.channel.command(id, command::DEVICE_GET_INFO, &[&[16, 0, 0, 0], &[0; 12]], &[], TIME).expect("sent");
    }
    host.serve(&message);
    let mut answered = Vec::new();
    while answered.len() < 20 || host.memory[PAGE + 14] & 1 == 0 {
        let message = host.channel.receive(Instant::now() + TIME, TIME).expect("a message");
        match message.is_reply() {
            true if message.header.id == 9 => {}
            true => answered.push(message.header.id),
            false => host.serve(&message),
        }
    }
    assert_eq!(answered, (20..40).collect::<Vec<_>>());
}

/// What the client refuses is an error of the command, or of its queue, and no more than that.
#[test]
fn refusals_end_commands() {
    let served = Served::new(drive());
    let mut host = Host::new(&served, 1 << 20);
    host.enable();
    let first = host.identify();
    host.serve(&first);
    while host.memory[PAGE + 14] & 1 == 0 {
        let message = host.question().expect("a question");
        if Host::access(&message).addr == BASE + 2 * PAGE as u64 {
            host.channel.refuse(&message.header, rustix::io::Errno::FAULT, TIME).expect("sent");
        } else {
            host.serve(&message);
        }
    }
    assert_eq!(host.completion().status().code(), warprow_spec::StatusCode::DataTransferError);
    assert!(served.drive.dma_faults() > 0);
}

#[test]
fn memory_without_files_is_limited() {
    let served = Served::new(drive());
    let mut host = Host::new(&served, 1 << 20);
    let map = |addr: u64, size: u64| DmaMap { argsz: 32, flags: 3, offset: 0, addr, size };
    let mut errno = |map: DmaMap| {
        host.channel.command(3, command::DMA_MAP, &[map.as_bytes()], &[], TIME).expect("sent");
        host.channel.receive(Instant::now() + TIME, TIME).expect("an answer").failure()
    };
    let no_space = Some(rustix::io::Errno::NOSPC.raw_os_error());
    assert_eq!(errno(map(1 << 40, 1 << 30)), no_space);
    assert_eq!(errno(map(1 << 40, 1 << 50)), no_space);
    assert_eq!(errno(map(1 << 40, 1 << 29)), None);
    assert_eq!(errno(map(1 << 41, 1 << 29)), no_space);
}

/// A server that, when a mapping was made without a file, asks for memory in every way before it answers.
#[test]
fn clients_give_what_they_mapped_and_nothing_else() {
    let served = Served::new(drive());
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("between.sock");
    let listener = UnixListener::bind(&path).expect("a socket");
    // Between client and server, message by message, so that the client meets a device that works.
    let between = std::thread::spawn({
        let server = served.path.clone();
        move || {
            let mut client = Channel::new(listener.accept().expect("a client").0).expect("a channel");
            let mut server = Channel::new(UnixStream::connect(server).expect("a server")).expect("a channel");
            let ask = |client: &mut Channel, command: u16, access: DmaAccess, data: &[u8]| {
                client.command(77, command, &[access.as_bytes(), data], &[], TIME).expect("sent");
                let answer = client.receive(Instant::now() + TIME, TIME).expect("an answer");
                assert!(answer.is_reply() && answer.header.id == 77);
                match answer.failure() {
                    Some(errno) => Err(errno),
                    None => Ok(answer.payload[16..].to_vec()),
                }
            };
            let mut asked = 0;
            let mut msix = Vec::new();
            while let Ok(message) = client.receive(Instant::now() + TIME, TIME) {
                let map =
                    (message.header.command == command::DMA_MAP).then(|| DmaMap::read_from_prefix(&message.payload));
                if let Some(Ok((map, _))) = map {
                    assert!(message.fds.is_empty());
                    let at = |addr: u64, count: u64| DmaAccess { addr, count };
                    for write in [false, true] {
                        let (command, data) =
                            if write { (command::DMA_WRITE, vec![9; 70000]) } else { (command::DMA_READ, vec![]) };
                        let mut errno = |access: DmaAccess| {
                            let data = data.get(..access.count.min(65536) as usize).unwrap_or_default();
                            ask(&mut client, command, access, data).expect_err("a refusal")
                        };
                        let fault = 14;
                        let invalid = 22;
                        let too_big = 7;
                        assert_eq!(errno(at(map.addr - 1, 1)), fault);
                        assert_eq!(errno(at(map.addr + map.size, 1)), fault);
                        assert_eq!(errno(at(map.addr + map.size - 8, 16)), fault);
                        assert_eq!(errno(at(0, 8)), fault);
                        assert_eq!(errno(at(map.addr, 0)), invalid);
                        assert_eq!(errno(at(u64::MAX, 8)), invalid);
                        assert_eq!(errno(at(map.addr, 65537)), too_big);
                        assert_eq!(errno(at(map.addr, u64::MAX / 2)), too_big);
                    }
                    // Odd sizes at odd places.
                    for (offset, count) in [(0, 16), (3, 5), (8, 8), (4093, 1), (0, 4096)] {
                        let data: Vec<u8> = (0..count).map(|i| (i * 7 + offset) as u8).collect();
                        let here = at(map.addr + offset, count);
                        let before = ask(&mut client, command::DMA_READ, here, &[]).expect("memory");
                        ask(&mut client, command::DMA_WRITE, here, &data).expect("memory");
                        assert_eq!(ask(&mut client, command::DMA_READ, here, &[]).expect("memory"), data);
                        ask(&mut client, command::DMA_WRITE, here, &before).expect("memory");
                    }
                    // Other commands are none of a server's.
                    client.command(78, command::DEVICE_RESET, &[], &[], TIME).expect("sent");
                    let refused = client.receive(Instant::now() + TIME, TIME).expect("an answer");
                    assert_eq!(refused.failure(), Some(95));
                    asked += 1;
                    client.reply(&message.header, &[], &[], TIME).expect("sent");
                    continue;
                }
                if message.header.command == command::DMA_UNMAP {
                    client.reply(&message.header, &[], &[], TIME).expect("sent");
                    continue;
                }
                if message.header.command == command::REGION_WRITE {
                    let (access, data) = RegionAccess::read_from_prefix(&message.payload).expect("an access");
                    if access.region == region::CONFIG && access.offset == 0x52 {
                        msix.push(u16::from_le_bytes(data.try_into().expect("two bytes")) >> 14);
                    }
                }
                let fds: Vec<_> = message.fds.iter().map(std::os::fd::AsFd::as_fd).collect();
                let id = message.header.id;
                let number = message.header.command;
                server.command(id, number, &[&message.payload], &fds, TIME).expect("sent");
                let answer = server.receive(Instant::now() + TIME, TIME).expect("an answer");
                match answer.failure() {
                    Some(errno) => client.refuse(&message.header, rustix::io::Errno::from_raw_os_error(errno), TIME),
                    None => {
                        let fds: Vec<_> = answer.fds.iter().map(std::os::fd::AsFd::as_fd).collect();
                        client.reply(&message.header, &[&answer.payload], &fds, TIME)
                    }
                }
                .expect("sent");
            }
            (asked, msix)
        }
    });
    let function = VfioUserFunction::open(&path).expect("a client");
    for pages in [1, 3] {
        let memory = DmaMemory::allocate(pages * PAGE, MemoryKind::Anonymous).expect("memory");
        memory.fill(0, memory.len(), 0x5a);
        let iova = function.map(&memory).expect("a mapping");
        assert!((0..memory.len()).all(|at| memory.load_u8(at) == 0x5a), "what was written was put back");
        function.unmap(iova).expect("it was mapped");
    }
    function.interrupt().expect("an interrupt");
    drop(function);
    let (asked, msix) = between.join().expect("no panic");
    assert_eq!(asked, 2);
    // Twice armed, since somebody else might have been first; off at the end, for the next client.
    assert_eq!(msix, [0b10, 0b00], "MSI-X is enabled, not masked, and disabled again");
}
