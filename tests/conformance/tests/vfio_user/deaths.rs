//! Either side is killed; memory is taken back while commands are under way.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warprow_dma::{DmaMemory, Function, FunctionError, Mapped, SystemClock};
use warprow_driver::prp::Data;
use warprow_driver::{BlockIo, Controller, Options, QueueOptions, QueuePair};
use warprow_soft_controller::{Fault, Rule};
use warprow_spec::NvmOpcode;
use warprow_vfio_user::VfioUserFunction;

use crate::rig::{Served, drive, works};

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
    let options = Options { admin_timeout: Duration::from_secs(2), ..Options::default() };
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
        let server = warprow_vfio_user_server::Server::bind(&socket, drive).expect("a socket");
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

/// Reads into `memory`, under way when this returns.
fn reads_under_way(function: &Arc<VfioUserFunction>, memory: DmaMemory) -> (QueuePair, Mapped) {
    let clock = Arc::new(SystemClock::new());
    // What is left of it is torn down when nobody answers any more.
    let options = Options { admin_timeout: Duration::from_millis(300), ..Options::default() };
    let controller = Controller::open(function.clone(), clock, options).expect("a controller");
    let namespace = controller.namespace(1).expect("a namespace");
    let mut pair = controller.queue_pair(&QueueOptions::default()).expect("a queue pair");
    let mapped = Mapped::new(function.clone(), memory).expect("a mapping");
    for i in 0..LANDING as u64 / 1024 {
        let data = Data::Contiguous { iova: mapped.iova() + i * 1024, len: 1024 };
        pair.read(&namespace, 8 + i * 2, 2, data, i).expect("room");
    }
    pair.ring().expect("a doorbell");
    std::thread::sleep(LATE / 4);
    (pair, mapped)
}

fn delayed() -> Served {
    let served = Served::new(drive());
    works(served.connect(), 40);
    served.await_end(0);
    served.drive.faults().inject(Rule::new(Fault::Delay(LATE)).always().io(NvmOpcode::READ));
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
        let served = delayed();
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
    let served = delayed();
    let function = served.connect();
    let memory = function.allocate(LANDING).expect("memory");
    let (mut pair, _mapped) = reads_under_way(&function, memory.clone());
    while pair.outstanding() != 0 {
        pair.wait(|_| {}).expect("completions");
    }
    let (mut read, mut written) = (vec![0; LANDING], vec![0; LANDING]);
    memory.read(0, &mut read);
    warprow_conformance::fill(40, 8, 512, &mut written);
    assert!(read == written, "other content");
}

/// The same when the client is killed: its memory, which somebody else has too, is left alone once the server has noticed.
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
        let under_way = reads_under_way(&function, share(&socket).0);
        say_ready();
        std::thread::sleep(Duration::from_secs(60));
        drop(under_way);
        return;
    }
    let served = delayed();
    let mut client = child(test, "client", &served.path);
    client.kill().expect("it can be killed");
    client.wait().expect("it is dead");
    served.await_end(1);
    let (memory, path) = share(&served.path);
    std::fs::remove_file(path).expect("removed");
    stays_untouched(&memory, "killed");
    works(served.connect(), 41);
}
