//! Either side is killed; memory is taken back while commands are under way.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warprow_dma::{DmaMemory, Function, FunctionError, MappedMemory, SystemClock};
use warprow_driver::{BlockIo, Controller, ControllerOptions, QueueOptions, QueuePair};
use warprow_soft_controller::{Fault, QueueMatch, Rule};
use warprow_spec::Sqe;
use warprow_vfio_user::VfioUserFunction;

use crate::fixture::{Served, drive, works};

const ROLE: &str = "WARPROW_TEST_ROLE";

/// Runs a test of this binary in a process of its own, in a role; it says "ready" when it is.
fn child(test: &str, role: &str, socket: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", test, "--nocapture"]).env(ROLE, role).env("WARPROW_TEST_SOCKET", socket);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    while !lines.next().expect("it ended before it was ready").expect("a line").contains("ready") {}
    child
}

fn role() -> Option<(String, std::path::PathBuf)> {
    Some((std::env::var(ROLE).ok()?, std::env::var_os("WARPROW_TEST_SOCKET")?.into()))
}

fn say_ready() {
    println!("ready");
    use std::io::Write;
    std::io::stdout().flush().expect("stdout");
}

/// Keeps commands under way until something fails.
fn load(function: Arc<VfioUserFunction>, mut each: impl FnMut()) -> String {
    let options = ControllerOptions { admin_timeout: Duration::from_secs(2), ..ControllerOptions::default() };
    let run = || -> Result<(), Box<dyn std::error::Error>> {
        let controller = Controller::open(function, Arc::new(SystemClock::new()), options)?;
        let namespace = controller.namespace(1)?;
        let queue = QueueOptions { timeout: Duration::from_secs(1), ..QueueOptions::default() };
        let mut io = BlockIo::new(&controller, namespace, &queue)?;
        let mut block = vec![0; 256 << 10];
        loop {
            warprow_conformance::fill(3, 0, 512, &mut block);
            io.write(0, &block)?;
            io.read(0, &mut block)?;
            each();
        }
    };
    run().expect_err("it goes on until something fails").to_string()
}

#[test]
fn a_killed_server_is_an_error() {
    let test = "deaths::a_killed_server_is_an_error";
    if let Some((_, socket)) = role() {
        let drive = drive().shared_doorbells().build().expect("a controller");
        let server = warprow_vfio_user_server::VfioUserServer::bind(&socket, drive).expect("a socket");
        say_ready();
        server.run(&std::sync::atomic::AtomicBool::new(false), &|_| {}).expect("it serves");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let mut server = child(test, "server", &socket);
    let function = VfioUserFunction::open(&socket).expect("a client");
    let mut rounds = 0;
    let mut killed = None;
    let error = load(function.clone(), || {
        rounds += 1;
        if rounds == 50 {
            server.kill().expect("it can be killed");
            killed = Some(Instant::now());
        }
    });
    server.wait().expect("it is dead");
    let took = killed.expect("it was killed").elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}: {error}");
    assert!(matches!(function.read_u32(0x1c), Err(FunctionError::Gone { .. })), "{error}");
    assert!(function.reset().is_err());

    // Its socket lies there still; the next server takes its place.
    let mut server = child(test, "server", &socket);
    works(VfioUserFunction::open(&socket).expect("a client of the next one"), 20);
    server.kill().expect("it can be killed");
    server.wait().expect("it is dead");
}

#[test]
fn a_killed_client_leaves_the_server_to_the_next() {
    let test = "deaths::a_killed_client_leaves_the_server_to_the_next";
    if let Some((_, socket)) = role() {
        let mut rounds = 0;
        let error = load(VfioUserFunction::open(socket).expect("a client"), || {
            rounds += 1;
            if rounds == 5 {
                say_ready();
            }
        });
        panic!("{error}");
    }
    let served = Served::new(drive());
    for round in 0..4 {
        let mut client = child(test, "client", &served.path);
        std::thread::sleep(Duration::from_millis(20));
        client.kill().expect("it can be killed");
        client.wait().expect("it is dead");
        assert!(served.await_end(round * 2).contains("closed"), "it is noticed");
        works(served.connect(), 30 + round as u64);
        served.await_end(round * 2 + 1);
    }
}

/// Commands that the controller holds back for so long.
const LATE: Duration = Duration::from_millis(60);
const LANDING: usize = 64 << 10;

/// Pushes a command as it is: the driver itself would keep its memory mapped.
#[allow(unsafe_code, reason = "commands that outlive the mapping they name")]
fn push(pair: &mut QueuePair, sqe: Sqe, tag: u64) {
    // SAFETY: no memory of these tests is ever plain bytes, so that wherever it lands it is under no reference.
    unsafe { pair.push(sqe, tag) }.expect("room");
}

/// Reads into `memory`, under way when this returns.
fn reads_under_way(function: &Arc<VfioUserFunction>, memory: DmaMemory) -> (QueuePair, MappedMemory) {
    let clock = Arc::new(SystemClock::new());
    // What is left of it is torn down when nobody answers any more.
    let options = ControllerOptions { admin_timeout: Duration::from_millis(300), ..ControllerOptions::default() };
    let controller = Controller::open(function.clone(), clock, options).expect("a controller");
    let namespace = controller.namespace(1).expect("a namespace");
    let queue = QueueOptions { entries: 256, ..QueueOptions::default() };
    let mut pair = controller.queue_pair(&queue).expect("a queue pair");
    let mapped = MappedMemory::new(function.clone(), memory).expect("a mapping");
    for i in 0..LANDING as u64 / 1024 {
        let read = Sqe::read(namespace.nsid(), 8 + i * 2, 1, false);
        push(&mut pair, read.with_prps(mapped.iova() + i * 1024, 0), i);
    }
    pair.ring().expect("a doorbell");
    std::thread::sleep(LATE / 4);
    (pair, mapped)
}

fn delayed(by: Duration) -> Served {
    let served = Served::new(drive());
    works(served.connect(), 40);
    served.await_end(0);
    served.drive.faults().inject(Rule::new(Fault::Delay(by)).always().on(QueueMatch::Io));
    served
}

fn stays_untouched(memory: &DmaMemory, how: &str) {
    memory.fill(0, memory.len(), 0x5a);
    std::thread::sleep(LATE * 3);
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0x5a), "{how}: the controller wrote");
}

/// Reads are under way when their memory is taken from the controller, by itself or with all else.
#[test]
fn nothing_lands_after_the_end_of_a_mapping() {
    for how in ["unmap", "bus master", "reset"] {
        let served = delayed(LATE);
        let function = served.connect();
        let memory = function.allocate(LANDING).expect("memory");
        let (_pair, mapped) = reads_under_way(&function, memory.clone());
        match how {
            "unmap" => drop(mapped),
            "bus master" => function.set_bus_master(false).expect("off"),
            _ => function.reset().expect("a reset"),
        }
        stays_untouched(&memory, how);
    }
    // The yardstick: left alone, they do land.
    let served = delayed(LATE);
    let function = served.connect();
    let memory = function.allocate(LANDING).expect("memory");
    let (mut pair, _mapped) = reads_under_way(&function, memory.clone());
    while pair.outstanding() != 0 {
        pair.wait(|_| {}).expect("completions");
    }
    let mut read = vec![0; LANDING];
    let mut written = vec![0; LANDING];
    memory.read(0, &mut read);
    warprow_conformance::fill(40, 8, 512, &mut written);
    assert!(read == written, "other content");
}

/// Where writes are under way when a client is killed, and what with.
const WRITTEN: u64 = 1000;
const BLOCKS: usize = LANDING / 512;
const OLD: u64 = 60;
const NEW: u64 = 61;
/// Long enough that nothing has been carried out when the client is dead.
const VERY_LATE: Duration = Duration::from_millis(600);

fn content(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; LANDING];
    warprow_conformance::fill(seed, WRITTEN, 512, &mut bytes);
    bytes
}

/// Writes beside the reads, under way when this returns; as many again.
fn writes_under_way(pair: &mut QueuePair, function: &Arc<VfioUserFunction>) -> MappedMemory {
    let memory = function.allocate(LANDING).expect("memory");
    memory.write(0, &content(NEW));
    let mapped = MappedMemory::new(function.clone(), memory).expect("a mapping");
    for i in 0..BLOCKS as u64 / 2 {
        let write = Sqe::write(1, WRITTEN + i * 2, 1, i % 2 == 0);
        push(pair, write.with_prps(mapped.iova() + i * 1024, 0), i);
    }
    pair.ring().expect("a doorbell");
    mapped
}

/// A client is killed with reads and writes under way. Its memory, which somebody else has too, is left alone once the
/// server has noticed; no write of its comes late, over what the next client writes.
#[test]
fn nothing_lands_after_a_client_was_killed() {
    let test = "deaths::nothing_lands_after_a_client_was_killed";
    let share = |socket: &Path| {
        let name = socket.parent().and_then(Path::file_name).expect("a folder").to_owned();
        let path = Path::new("/dev/shm").join(name);
        let file =
            std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path).expect("a file");
        file.set_len(LANDING as u64).expect("a length");
        (DmaMemory::import(file.into(), 0, LANDING as u64, true).expect("memory"), path)
    };
    if let Some((_, socket)) = role() {
        let function = VfioUserFunction::open(&socket).expect("a client");
        let (mut pair, landing) = reads_under_way(&function, share(&socket).0);
        let written = writes_under_way(&mut pair, &function);
        assert!(pair.outstanding() >= 128, "all of them under way");
        say_ready();
        std::thread::sleep(Duration::from_secs(60));
        drop((pair, landing, written));
        return;
    }
    let served = Served::new(drive());
    let connect = || {
        let controller = Controller::open(served.connect(), Arc::new(SystemClock::new()), ControllerOptions::default())
            .expect("a controller");
        let namespace = controller.namespace(1).expect("a namespace");
        BlockIo::new(&controller, namespace, &QueueOptions::default()).expect("a queue pair")
    };
    connect().write(WRITTEN, &content(OLD)).expect("a write");
    served.await_end(0);
    served.drive.faults().inject(Rule::new(Fault::Delay(VERY_LATE)).always().on(QueueMatch::Io));
    let mut client = child(test, "client", &served.path);
    client.kill().expect("it can be killed");
    client.wait().expect("it is dead");
    served.await_end(1);
    let (memory, path) = share(&served.path);
    std::fs::remove_file(path).expect("removed");
    served.drive.faults().clear();
    memory.fill(0, memory.len(), 0x5a);
    // The next client: whatever became of the writes, each block is old or new; and then as this client has it.
    let mut io = connect();
    let mut found = vec![0; LANDING];
    let old = content(OLD);
    let new = content(NEW);
    let own = content(62);
    io.read(WRITTEN, &mut found).expect("a read");
    for (block, found) in found.chunks(512).enumerate() {
        let is = |content: &[u8]| content[block * 512..][..512] == *found;
        assert!(is(&old) || is(&new), "block {block} holds what nobody wrote there");
    }
    io.write(WRITTEN, &own).expect("a write");
    std::thread::sleep(VERY_LATE);
    io.read(WRITTEN, &mut found).expect("a read");
    assert!(found == own, "a write of the client that was killed came late");
    stays_untouched(&memory, "killed");
    drop(io);
    works(served.connect(), 41);
}
