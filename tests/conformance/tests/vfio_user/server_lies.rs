//! A server that lies or stalls: somebody between client and server spoils one message, each in turn, in every way. The client has
//! an error or is none the wiser, in bounded time, and never a panic.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warprow_dma::{Function, FunctionError, SystemClock};
use warprow_driver::{Controller, ControllerOptions};
use warprow_vfio_user::{AnswerTimeouts, OpenError, VfioUserFunction};
use warprow_vfio_user_proto::wire::MessageHeader;
use warprow_vfio_user_proto::{Channel, Message};
use zerocopy::IntoBytes;

use crate::fixture::{Served, drive, works};

const PATIENCE: AnswerTimeouts =
    AnswerTimeouts { answer: Duration::from_millis(150), reset: Duration::from_millis(300) };
const TIME: Duration = Duration::from_secs(5);

/// What becomes of one answer.
#[derive(Clone, Copy, Debug)]
enum Spoil {
    Dropped,
    Truncated,
    Empty,
    OtherId,
    OtherCommand,
    Refused(u32),
    AskedInstead,
    Ones,
    Bits(u64),
    Endless,
    WithoutFiles,
    Closed,
}

const SPOILS: [Spoil; 14] = [
    Spoil::Dropped,
    Spoil::Truncated,
    Spoil::Empty,
    Spoil::OtherId,
    Spoil::OtherCommand,
    Spoil::Refused(0),
    Spoil::Refused(22),
    Spoil::AskedInstead,
    Spoil::Ones,
    Spoil::Bits(1),
    Spoil::Bits(2),
    Spoil::Endless,
    Spoil::WithoutFiles,
    Spoil::Closed,
];

/// Passes messages on, but for the answer number `nth`. Ends with either side.
fn between(client: UnixStream, server: &Path, nth: usize, spoil: Spoil) {
    let (Ok(mut client), Ok(mut server)) = (Channel::new(client), UnixStream::connect(server).and_then(Channel::new))
    else {
        return;
    };
    for answer in 0.. {
        let Ok(asked) = client.receive(Instant::now() + TIME, TIME) else { return };
        let fds: Vec<_> = asked.fds.iter().map(AsFd::as_fd).collect();
        if server.command(asked.header.id, asked.header.command, &[&asked.payload], &fds, TIME).is_err() {
            return;
        }
        let Ok(got) = server.receive(Instant::now() + TIME, TIME) else { return };
        if answer == nth {
            if !spoiled(&mut client, got, spoil) {
                return;
            }
            continue;
        }
        let fds: Vec<_> = got.fds.iter().map(AsFd::as_fd).collect();
        let sent = match got.failure() {
            Some(errno) => client.refuse(&asked.header, rustix::io::Errno::from_raw_os_error(errno), TIME),
            None => client.reply(&asked.header, &[&got.payload], &fds, TIME),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// False if that is the end.
fn spoiled(client: &mut Channel, mut got: Message, spoil: Spoil) -> bool {
    let whole = got.header.size;
    let mut head: MessageHeader = got.header;
    let mut after = Vec::new();
    match spoil {
        Spoil::Dropped => return true,
        Spoil::Closed => return false,
        Spoil::Truncated => got.payload.truncate(got.payload.len() / 2),
        Spoil::Empty => (got.payload, head.size) = (Vec::new(), 16),
        Spoil::OtherId => head.id = head.id.wrapping_add(1),
        Spoil::OtherCommand => head.command = head.command % 14 + 1,
        Spoil::Refused(errno) => (head.flags, head.error, got.payload, head.size) = (0x21, errno, Vec::new(), 16),
        Spoil::AskedInstead => head.flags = 0,
        Spoil::Ones => got.payload.fill(0xff),
        Spoil::Bits(seed) => {
            let mut rng = fastrand::Rng::with_seed(seed);
            got.payload.iter_mut().for_each(|byte| *byte ^= rng.u8(..) & rng.u8(..));
        }
        Spoil::Endless => {
            // Questions for ever.
            let ask = MessageHeader { flags: 0x10, size: 16, ..head };
            after = ask.as_bytes().repeat(2000);
            got.payload.clear();
            head = ask;
        }
        Spoil::WithoutFiles => {}
    }
    assert!(head.size == whole || head.size == 16);
    let bytes = [head.as_bytes(), &got.payload, &after].concat();
    let mut socket = client.socket();
    socket.set_nonblocking(false).unwrap();
    socket.set_write_timeout(Some(TIME)).unwrap();
    let sent = socket.write_all(&bytes);
    socket.set_nonblocking(true).unwrap();
    sent.is_ok()
}

/// A socket behind which the `nth` answer of `served` is spoilt.
fn spoiling(served: &Served, nth: usize, spoil: Spoil) -> (PathBuf, std::thread::JoinHandle<()>) {
    let path = served.path.with_extension(format!("{nth}"));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).unwrap();
    let to = served.path.clone();
    (path, std::thread::spawn(move || between(listener.accept().unwrap().0, &to, nth, spoil)))
}

/// Everything that a driver asks of a function, until something fails.
fn use_it(path: &Path) -> Result<(), String> {
    let function = VfioUserFunction::open_with(path, PATIENCE).map_err(|error| error.to_string())?;
    let options = ControllerOptions { admin_timeout: Duration::from_millis(400), ..ControllerOptions::default() };
    let controller =
        Controller::open(function.clone(), Arc::new(SystemClock::new()), options).map_err(|error| error.to_string())?;
    controller.namespace(1).map_err(|error| error.to_string())?;
    drop(controller);
    function.reset().map_err(|error| error.to_string())
}

#[test]
fn any_answer_spoilt_in_any_way_is_an_error_or_nothing() {
    // The first answers are those of the greeting, each of its own kind; the rest are registers, mappings and the reset.
    let answers: Vec<usize> = (0..14).chain([18, 25, 31]).collect();
    let answers = &answers;
    let spoil_each = move |spoil| {
        let served = Served::new(drive());
        let mut noticed = 0;
        for &nth in answers {
            let (path, thread) = spoiling(&served, nth, spoil);
            let start = Instant::now();
            let used = use_it(&path);
            let took = start.elapsed();
            assert!(took < Duration::from_secs(10), "answer {nth}, {spoil:?}: {took:?}, {used:?}");
            if let Err(error) = used {
                assert!(error.contains("vfio-user") || error.contains(path.to_str().unwrap()), "nameless: {error}");
                noticed += 1;
            }
            thread.join().unwrap();
        }
        works(served.connect(), 10);
        noticed
    };
    // Most of the time goes by waiting for what does not come.
    let noticed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = SPOILS.into_iter().map(|spoil| scope.spawn(move || spoil_each(spoil))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(noticed > answers.len() * SPOILS.len() / 2, "only {noticed} of them were noticed");
}

/// As on QEMU's server, which lets nothing be mapped.
#[test]
fn doorbells_go_by_message_where_none_are_shared() {
    let served = Served::new(drive());
    // The answer with the doorbells' file, which gets lost.
    let (path, thread) = spoiling(&served, 3, Spoil::WithoutFiles);
    let function = VfioUserFunction::open(&path).unwrap();
    assert!(function.doorbell_memory().is_none());
    works(function, 11);
    thread.join().unwrap();
}

#[test]
fn what_is_no_vfio_user_server_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let open = |path: &Path| VfioUserFunction::open_with(path, PATIENCE).unwrap_err();
    let nobody = folder.path().join("nobody");
    assert!(matches!(open(&nobody), OpenError::Connect { .. }));
    std::fs::write(&nobody, "a file").unwrap();
    assert!(matches!(open(&nobody), OpenError::Connect { .. }));
    assert!(matches!(open(Path::new(&"x".repeat(200))), OpenError::Connect { .. }));
    for (name, said) in [
        ("silent", &b""[..]),
        ("http", b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        ("zeros", &[0; 64]),
        ("ones", &[0xff; 64]),
    ] {
        let path = folder.path().join(name);
        let listener = UnixListener::bind(&path).unwrap();
        let start = Instant::now();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(said).unwrap();
            std::thread::sleep(PATIENCE.answer * 2);
        });
        let error = open(&path);
        assert!(matches!(error, OpenError::Foreign { .. }), "{name}: {error}");
        assert!(start.elapsed() < Duration::from_secs(2), "{name}");
        server.join().unwrap();
    }
    // Nobody takes the connection up.
    let path = folder.path().join("full");
    let _listener = UnixListener::bind(&path).unwrap();
    let start = Instant::now();
    assert!(matches!(open(&path), OpenError::Foreign { .. }));
    assert!(start.elapsed() < Duration::from_secs(2));
}

/// A server that stops answering in the midst of things: one error that says so, and quick ones from then on.
#[test]
fn silence_is_given_up_once() {
    let served = Served::new(drive());
    let (path, thread) = spoiling(&served, 40, Spoil::Dropped);
    let function = VfioUserFunction::open_with(&path, PATIENCE).unwrap();
    let error = loop {
        if let Err(error) = function.read_u32(0x1c) {
            break error;
        }
    };
    assert!(
        matches!(&error, FunctionError::Os { source, .. } if source.kind() == std::io::ErrorKind::TimedOut),
        "{error}"
    );
    let start = Instant::now();
    for _ in 0..100 {
        assert!(matches!(function.read_u32(0x1c), Err(FunctionError::Gone { .. })));
    }
    assert!(start.elapsed() < PATIENCE.answer);
    drop(function);
    thread.join().unwrap();
}
