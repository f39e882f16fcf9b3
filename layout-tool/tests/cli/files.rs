//! The files that drives depend on: never written over, never waited for, for their user alone.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use warprow_passes::{PassOptions, Passes};
use warprow_store::{CreateDrive, Device, Store};

use crate::fixture::{CliFixture, Run};

/// Runs it, and fails if it takes longer than anything here can.
fn in_time(fixture: &CliFixture, args: &[&str]) -> Run {
    let mut child = fixture.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("{args:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap().into()
}

fn loaded(fixture: &CliFixture, more: &[&str]) -> String {
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 100, 4, |r, c| (r * 4 + c) as f32);
    fixture.ok(&[&["load", "-d", &drive, &file], more].concat());
    drive
}

#[test]
fn no_command_writes_over_what_a_drive_in_use_depends_on() {
    let fixture = CliFixture::new();
    let drive = loaded(&fixture, &[]);
    fs::write(fixture.path("ids.i64"), (0..64i64).flat_map(i64::to_le_bytes).collect::<Vec<_>>()).unwrap();
    for (link, target) in [
        ("link.npy", "a.drive.nvme.toml"),
        ("image.npy", "a.drive"),
        ("new.npy", "a.drive.nvme.toml.new"),
        ("link.svg", "a.drive.nvme.toml"),
        ("link.safetensors", "link.npy"),
    ] {
        symlink(target, fixture.path(link)).unwrap();
    }
    let kept = |name: &str| fs::read(fixture.path(name)).unwrap();
    let before = (kept("a.drive.nvme.toml"), kept("a.drive"));
    let refused = |args: &[&str], out: &str| {
        let error = fixture.fails(&[args, &[out]].concat(), 4);
        assert!(error["message"].as_str().unwrap().contains("was left as it is"), "{args:?} {out}: {error}");
        assert_eq!(error["class"], "refused");
        assert!(!error["remedy"].as_str().unwrap().is_empty());
        assert!((kept("a.drive.nvme.toml"), kept("a.drive")) == before, "{args:?} {out}: written over");
    };
    for out in ["a.drive", "a.drive.nvme.toml"] {
        refused(&["inspect", "-d", &drive, "--force", "--svg"], out);
        refused(&["plan", "-d", &drive, "--trace", "t=ids.i64", "--typical-host", "--force", "--out"], out);
        refused(&["plan", "-d", &drive, "--trace", "t=ids.i64", "--typical-host", "--force", "--svg"], out);
        refused(&["load", "-d", &drive, "t.npy", "--replace", "--resume"], out);
    }
    refused(&["inspect", "-d", &drive, "--force", "--svg"], "a.drive.nvme.toml.new");
    for out in ["link.npy", "image.npy", "new.npy", "link.safetensors"] {
        refused(&["export", "-d", &drive, "--table", "t", "--force", "--out"], out);
        refused(&["lookup", "-d", &drive, "--table", "t", "--ids", "1,2", "--force", "--out"], out);
    }
    // A state of a scrub is read first: that it is none is reason enough.
    assert_ne!(fixture.json(&["scrub", "-d", &drive, "--state", "a.drive.nvme.toml"]).1, 0);
    assert_eq!(fixture.json(&["inspect", "-d", &drive, "--force", "--svg", "link.svg"]).1, 3, "a link is no file");
    assert!((kept("a.drive.nvme.toml"), kept("a.drive")) == before);
    // Not even where nothing is yet: the next open would take it for the drive's.
    fs::remove_file(fixture.path("a.drive.nvme.toml")).unwrap();
    fixture.fails(&["inspect", "-d", &drive, "--svg", "a.drive.nvme.toml"], 4);
    assert!(!fixture.path("a.drive.nvme.toml").exists());
    fs::write(fixture.path("a.drive.nvme.toml"), &before.0).unwrap();
    // What is nobody's may be written.
    fixture.ok(&["export", "-d", &drive, "--table", "t", "--out", "b.drive.npy"]);
    fixture.ok(&["inspect", "-d", &drive, "--svg", "b.drive.nvme.toml"]);
    fixture.ok(&["verify", "-d", &drive, "--table", "t", "--against", "t.npy"]);
}

#[test]
fn tables_that_stay_in_their_file_are_not_written_over_meanwhile() {
    let fixture = CliFixture::new();
    let drive = loaded(&fixture, &[]);
    fixture.ok(&["export", "-d", &drive, "--table", "t", "--out", "m.safetensors"]);
    symlink("m.safetensors", fixture.path("link.safetensors")).unwrap();
    let before = fs::read(fixture.path("m.safetensors")).unwrap();
    for out in ["m.safetensors", "link.safetensors"] {
        let error =
            fixture.fails(&["export", "-d", "attached:m.safetensors", "--table", "t", "--force", "--out", out], 4);
        assert!(error["message"].as_str().unwrap().contains("is in use"), "{error}");
    }
    assert!(fs::read(fixture.path("m.safetensors")).unwrap() == before);
    fixture.ok(&["export", "-d", &drive, "--table", "t", "--force", "--out", "m.safetensors"]);
}

#[test]
fn a_journal_that_passes_keep_is_not_written_over_meanwhile() {
    let fixture = CliFixture::new();
    loaded(&fixture, &[]);
    fixture.drive("b.drive", "64M");
    fixture.ok(&["load", "-d", "emulated:b.drive", "t.npy"]);
    let open = |name: &str| {
        let drive = format!("emulated:{}", fixture.path(name).display());
        let device = Device::open(&drive.parse().unwrap(), CreateDrive::Never).unwrap();
        Store::open(&[device], &Default::default()).unwrap()
    };
    let store = open("a.drive");
    let passes = Passes::open(&store, "t", PassOptions::staged(1 << 20).with_journal(fixture.path("journal"))).unwrap();
    let before = fs::read(fixture.path("journal")).unwrap();
    let error = fixture.fails(&["inspect", "-d", "emulated:b.drive", "--svg", "journal", "--force"], 4);
    assert!(error["message"].as_str().unwrap().contains("is in use"), "{error}");
    assert_eq!(fs::read(fixture.path("journal")).unwrap(), before);
    drop((passes, store));
    fixture.ok(&["inspect", "-d", "emulated:b.drive", "--svg", "journal", "--force"]);
}

#[test]
fn what_is_no_regular_file_hangs_nothing() {
    let fixture = CliFixture::new();
    let drive = loaded(&fixture, &[]);
    let fifo = |name: &str| mkfifo(&fixture.path(name), Mode::S_IRWXU).unwrap();
    for make in [
        &|| fifo("a.drive.nvme.toml") as (),
        &|| symlink("/dev/zero", fixture.path("a.drive.nvme.toml")).unwrap(),
        &|| fs::write(fixture.path("a.drive.nvme.toml"), [0x89, b'P', b'N', b'G', 0xff]).unwrap(),
    ] as [&dyn Fn(); 3]
    {
        fs::remove_file(fixture.path("a.drive.nvme.toml")).unwrap();
        make();
        for args in [&["inspect", "-d", &drive][..], &["verify", "-d", &drive], &["format", "-d", &drive, "--yes"]] {
            let run = in_time(&fixture, args);
            assert_eq!(run.exit, 6, "{args:?}: {run:?}");
            assert!(run.stderr.contains("remove that file"), "{args:?}: {run:?}");
        }
    }
    fs::remove_file(fixture.path("a.drive.nvme.toml")).unwrap();
    for name in ["p", "p.npy", "p.safetensors"] {
        fifo(name);
    }
    for args in [
        &["inspect", "-d", "emulated:p"][..],
        &["inspect", "-d", "attached:p.safetensors"],
        &["load", "-d", &drive, "p.npy"],
        &["load", "-d", &drive, "t.npy", "--replace", "--plan", "p"],
        &["load", "-d", &drive, "t.npy", "--replace", "--resume", "p"],
        &["scrub", "-d", &drive, "--state", "p"],
        &["inspect", "-d", &drive, "--svg", "p", "--force"],
        &["export", "-d", &drive, "--table", "t", "--out", "p.npy", "--force"],
    ] {
        let run = in_time(&fixture, args);
        assert!([2, 3].contains(&run.exit), "{args:?}: {run:?}");
    }
    fixture.ok(&["verify", "-d", &drive, "--table", "t", "--against", "t.npy"]);
}

#[test]
fn drives_are_for_their_user_and_exports_for_whom_the_umask_says() {
    let fixture = CliFixture::new();
    let mode = |name: &str| fs::metadata(fixture.path(name)).unwrap().permissions().mode() & 0o777;
    let file = fixture.npy("t.npy", 100, 4, |r, c| (r * 4 + c) as f32);
    for (umask, exported) in [("000", 0o666), ("022", 0o644), ("027", 0o640), ("077", 0o600)] {
        let run = |args: &str| {
            let script = format!("umask {umask}; exec {} {args}", env!("CARGO_BIN_EXE_warprow"));
            let done = Command::new("sh").current_dir(fixture.dir()).args(["-c", &script]).output().unwrap();
            assert!(done.status.success(), "{args}: {done:?}");
        };
        let name = |what: &str| format!("{umask}{what}");
        run(&format!("format -d emulated:{umask}.drive,size=64M"));
        run(&format!("load -d emulated:{umask}.drive {file}"));
        run(&format!("export -d emulated:{umask}.drive --table t --out {umask}.npy"));
        run(&format!("export -d emulated:{umask}.drive --table t --out {umask}.npy --force"));
        run(&format!("inspect -d emulated:{umask}.drive --svg {umask}.svg"));
        run(&format!("add-drive emulated:{umask}.more,size=64M -d emulated:{umask}.drive"));
        for drive in [".drive", ".drive.nvme.toml", ".more", ".more.nvme.toml"] {
            assert_eq!(mode(&name(drive)), 0o600, "{umask} {drive}");
        }
        assert_eq!((mode(&name(".npy")), mode(&name(".svg"))), (exported, exported), "{umask}");
    }
}
