//! `warprow serve`, and the other commands on what it serves.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::CliFixture;

/// A server, and what it says.
struct Serving {
    child: Child,
    stdout: BufReader<ChildStdout>,
    announced: String,
}

impl Serving {
    fn new(fixture: &CliFixture, args: &[&str]) -> Self {
        let mut command = fixture.command(&[&["serve"], args].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut announced = String::new();
        // It can be used when this has been said.
        while !announced.contains("-device") {
            assert_ne!(stdout.read_line(&mut announced).unwrap(), 0, "it ended: {announced}");
        }
        Self { child, stdout, announced }
    }

    fn end(mut self, signal: Signal) -> (i32, String, String) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        let start = Instant::now();
        let status = self.child.wait().unwrap();
        assert!(start.elapsed() < Duration::from_secs(5), "it took its time to end");
        let mut out = String::new();
        let mut err = String::new();
        self.stdout.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (status.code().unwrap_or(-1), out, err)
    }
}

#[test]
fn a_store_is_made_filled_and_read_over_a_socket() {
    let fixture = CliFixture::new();
    let value = |r: u64, c: u64| ((r * 16 + c).wrapping_mul(2_654_435_761) >> 9 & 0xffff) as f32;
    fixture.npy("items.npy", 3000, 16, value);

    let serving = Serving::new(&fixture, &["--socket", "s.sock", "emulated:a.drive,size=64M"]);
    let drive = ["-d", "vfio-user:s.sock"];
    let format = |more: &[&'static str]| [&["format"], &drive[..], &["--row-bytes", "64"], more].concat();
    let token = fixture.ok(&format(&["--dry-run"]))["token"].as_str().unwrap().to_owned();
    let mut agree: Vec<&str> = format(&["--consent"]);
    agree.push(&token);
    fixture.ok(&agree);
    fixture.ok(&[&["load"], &drive[..], &["items.npy"]].concat());
    let verified = fixture.ok(&[&["verify"], &drive[..], &["--table", "items", "--against", "items.npy"]].concat());
    assert_eq!(verified["command"], "verify");
    let looked = fixture.ok(&[&["lookup"], &drive[..], &["--table", "items", "--ids", "0,2999,7"]].concat());
    let row = |r| (0..16).map(|c| value(r, c)).collect::<Vec<f32>>();
    assert_eq!(looked["rows"], serde_json::json!([row(0), row(2999), row(7)]));
    // While it is served, the file is nobody else's.
    fixture.fails(&["inspect", "-d", "emulated:a.drive"], 4);
    let (exit, out, err) = serving.end(Signal::SIGINT);
    assert_eq!(exit, 0, "{err}");
    assert!(out.contains("Served") && out.contains("clients"), "{out}");
    assert!(err.contains("a client has connected"), "{err}");
    assert!(!fixture.path("s.sock").exists(), "the socket was left");

    // The same store, without the socket.
    fixture.ok(&["verify", "-d", "emulated:a.drive", "--table", "items", "--against", "items.npy"]);
    fixture.fails(&[&["inspect"], &drive[..]].concat(), 7);
}

#[test]
fn a_drive_that_does_not_answer_is_named_and_the_others_are_inspected() {
    let fixture = CliFixture::new();
    fixture.npy("items.npy", 500, 16, |r, _| r as f32);
    let first = Serving::new(&fixture, &["--socket", "a.sock", "emulated:a.drive,size=64M"]);
    let second = Serving::new(&fixture, &["--socket", "b.sock", "emulated:b.drive,size=64M"]);
    let drives = ["-d", "vfio-user:a.sock", "-d", "vfio-user:b.sock"];
    let format = |more: &[&'static str]| [&["format"], &drives[..], &["--row-bytes", "64"], more].concat();
    let token = fixture.ok(&format(&["--dry-run"]))["token"].as_str().unwrap().to_owned();
    let mut agree: Vec<&str> = format(&["--consent"]);
    agree.push(&token);
    fixture.ok(&agree);
    fixture.ok(&[&["load"], &drives[..], &["items.npy"]].concat());
    let inspect = [&["inspect"], &drives[..]].concat();
    let healthy = fixture.ok(&inspect);
    assert_eq!((&healthy["state"], &healthy["failed"]), (&"healthy".into(), &serde_json::json!([])));

    assert_eq!(second.end(Signal::SIGKILL).0, -1);
    let (seen, exit) = fixture.json(&inspect);
    assert_eq!((exit, &seen["state"]), (6, &"degraded".into()), "{seen}");
    let [failed] = &seen["failed"].as_array().unwrap()[..] else { panic!("{seen}") };
    assert_eq!(failed["drive"], "vfio-user:b.sock");
    assert!(failed["why"].as_str().unwrap().contains("b.sock"), "{failed}");
    assert_eq!(seen["store"]["generations"][0]["tables"][0]["name"], "items");
    let shown = fixture.command(&inspect).output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("FAILED vfio-user:b.sock: ") && shown.contains("items"), "{shown}");
    assert_eq!(first.end(Signal::SIGINT).0, 0);
    fixture.fails(&inspect, 7);
}

#[test]
fn it_says_how_it_is_reached() {
    let fixture = CliFixture::new();
    let serving = Serving::new(&fixture, &["--socket", "a b.sock", "emulated:x,backing=ram,size=16M"]);
    let path = fixture.path("a b.sock");
    let path = path.file_name().unwrap().to_str().unwrap();
    assert!(serving.announced.contains("-d 'vfio-user:/") && serving.announced.contains(path), "{}", serving.announced);
    assert!(serving.announced.contains("vfio-user-pci") && serving.announced.contains("share=on"));
    let blank = fixture.ok(&["inspect", "-d", "vfio-user:a b.sock"]);
    assert!(blank["store"].is_null());
    fixture.fails(&["inspect", "-d", "vfio-user:a b.sock?namespace=2"], 3);
    assert_eq!(serving.end(Signal::SIGTERM).0, 0);
}

#[test]
fn a_socket_in_use_is_refused_and_a_stale_one_replaced() {
    let fixture = CliFixture::new();
    let serve = |drive: &'static str| ["serve", "--socket", "s.sock", drive];
    let serving = Serving::new(&fixture, &serve("emulated:x,backing=ram,size=16M")[1..]);
    let refused = fixture.fails(&serve("emulated:y,backing=ram,size=16M"), 4);
    assert!(refused["message"].as_str().unwrap().contains("in use"), "{refused}");
    // Nothing was made for it.
    fixture.fails(&serve("emulated:new.drive,size=16M"), 4);
    assert!(!fixture.path("new.drive").exists() && !fixture.path("new.drive.nvme.toml").exists());
    assert!(fixture.path("s.sock").exists());
    // Killed, it leaves its socket, which the next one replaces.
    assert_eq!(serving.end(Signal::SIGKILL).0, -1);
    assert!(fixture.path("s.sock").exists());
    let serving = Serving::new(&fixture, &serve("emulated:x,backing=ram,size=16M")[1..]);
    assert_eq!(serving.end(Signal::SIGINT).0, 0);
    assert!(!fixture.path("s.sock").exists() && !fixture.path("s.sock.lock").exists());

    std::fs::write(fixture.path("s.sock"), "precious").unwrap();
    fixture.fails(&serve("emulated:x,backing=ram,size=16M"), 4);
    assert_eq!(std::fs::read(fixture.path("s.sock")).unwrap(), b"precious");
    std::fs::remove_file(fixture.path("s.sock")).unwrap();
    // Somebody answers there, who is not one of us.
    let _other = UnixListener::bind(fixture.path("s.sock")).unwrap();
    fixture.fails(&serve("emulated:x,backing=ram,size=16M"), 4);
}

/// Who serves a socket is not known: another program may.
#[test]
fn a_server_that_does_not_answer_may_be_any() {
    let fixture = CliFixture::new();
    let advice = |path: &str, exit| {
        let error = fixture.fails(&["inspect", "-d", &format!("vfio-user:{path}")], exit);
        let [message, remedy] = ["message", "remedy"].map(|text| error[text].as_str().unwrap().to_owned());
        assert!(!message.contains("warprow serve"), "{message}");
        for server in ["SPDK", "QEMU", "`warprow serve"] {
            assert!(remedy.contains(server), "{remedy}");
        }
        remedy
    };
    assert!(advice("nobody.sock", 7).contains("start what serves the socket"));
    // Somebody takes clients and says nothing.
    let silent = UnixListener::bind(fixture.path("silent.sock")).unwrap();
    assert!(advice("silent.sock", 3).contains("log of the process that serves it"));
    drop(silent);
    // The socket is there, and nobody listens.
    assert!(advice("silent.sock", 7).contains("start what serves the socket"));
}

#[test]
fn bad_input_is_named() {
    let fixture = CliFixture::new();
    std::fs::write(fixture.path("file"), "").unwrap();
    let long = "x".repeat(200);
    for (args, exit) in [
        (&["serve", "--socket", "s", "0000:41:00.0"][..], 2),
        (&["serve", "--socket", "s", "vfio-user:t"], 2),
        (&["serve", "--socket", "s", "nonsense"], 2),
        (&["serve", "--socket", "s", "emulated:"], 2),
        (&["serve", "--socket", "s", "emulated:nothing"], 6),
        (&["serve", "--socket", &long, "emulated:x,backing=ram,size=16M"], 2),
        (&["serve", "--socket", "nowhere/s", "emulated:x,backing=ram,size=16M"], 3),
        (&["serve", "--socket", "nowhere/s", "emulated:new,size=16M"], 3),
        (&["serve", "--socket", &long, "emulated:new,size=16M"], 2),
        (&["serve", "--socket", "file", "emulated:new,size=16M"], 4),
        (&["serve", "--socket", "file/s", "emulated:x,backing=ram,size=16M"], 3),
        (&["inspect", "-d", "vfio-user:nobody"], 7),
        (&["inspect", "-d", "vfio-user:file"], 7),
        (&["inspect", "-d", "vfio-user:"], 2),
        (&["inspect", "-d", "vfio-user:s?namespace=no"], 2),
    ] {
        let error = fixture.fails(args, exit);
        let message = error["message"].as_str().unwrap();
        assert!(
            args[0] != "serve" || exit != 2 || !message.contains("PCI"),
            "only emulated drives are served: {message}"
        );
    }
    for left in ["s", "s.lock", "new", "file.lock"] {
        assert!(!fixture.path(left).exists(), "{left} was left");
    }
}
