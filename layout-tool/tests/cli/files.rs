//! The files that drives depend on: never written over, never waited for, for their user alone.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use warprow_passes::{PassOptions, Passes};
use warprow_store::{Create, Device, Store};

use crate::rig::{Rig, Run};

/// Runs it, and fails if it takes longer than anything here can.
fn in_time(rig: &Rig, args: &[&str]) -> Run {
    let mut child = rig.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
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

fn loaded(rig: &Rig, more: &[&str]) -> String {
    let drive = rig.drive("a.drive", "64M");
    let file = rig.npy("t.npy", 100, 4, |r, c| (r * 4 + c) as f32);
    rig.ok(&[&["load", "-d", &drive, &file], more].concat());
    drive
}

#[test]
fn no_command_writes_over_what_a_drive_in_use_depends_on() {
    let rig = Rig::new();
    let drive = loaded(&rig, &[]);
    fs::write(rig.path("ids.i64"), (0..64i64).flat_map(i64::to_le_bytes).collect::<Vec<_>>()).unwrap();
    for (link, target) in [
        ("link.npy", "a.drive.nvme.toml"),
        ("image.npy", "a.drive"),
        ("new.npy", "a.drive.nvme.toml.new"),
        ("link.svg", "a.drive.nvme.toml"),
        ("link.safetensors", "link.npy"),
    ] {
        symlink(target, rig.path(link)).unwrap();
    }
    let kept = |name: &str| fs::read(rig.path(name)).unwrap();
    let before = (kept("a.drive.nvme.toml"), kept("a.drive"));
    let refused = |args: &[&str], out: &str| {
        let error = rig.fails(&[args, &[out]].concat(), 4);
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
    assert_ne!(rig.json(&["scrub", "-d", &drive, "--state", "a.drive.nvme.toml"]).1, 0);
    assert_eq!(rig.json(&["inspect", "-d", &drive, "--force", "--svg", "link.svg"]).1, 3, "a link is no file");
    assert!((kept("a.drive.nvme.toml"), kept("a.drive")) == before);
    // Not even where nothing is yet: the next open would take it for the drive's.
    fs::remove_file(rig.path("a.drive.nvme.toml")).unwrap();
    rig.fails(&["inspect", "-d", &drive, "--svg", "a.drive.nvme.toml"], 4);
    assert!(!rig.path("a.drive.nvme.toml").exists());
    fs::write(rig.path("a.drive.nvme.toml"), &before.0).unwrap();
    // What is nobody's may be written.
    rig.ok(&["export", "-d", &drive, "--table", "t", "--out", "b.drive.npy"]);
    rig.ok(&["inspect", "-d", &drive, "--svg", "b.drive.nvme.toml"]);
    rig.ok(&["verify", "-d", &drive, "--table", "t", "--against", "t.npy"]);
}

#[test]
fn tables_that_stay_in_their_file_are_not_written_over_meanwhile() {
    let rig = Rig::new();
    let drive = loaded(&rig, &[]);
    rig.ok(&["export", "-d", &drive, "--table", "t", "--out", "m.safetensors"]);
    symlink("m.safetensors", rig.path("link.safetensors")).unwrap();
    let before = fs::read(rig.path("m.safetensors")).unwrap();
    for out in ["m.safetensors", "link.safetensors"] {
        let error = rig.fails(&["export", "-d", "attached:m.safetensors", "--table", "t", "--force", "--out", out], 4);
        assert!(error["message"].as_str().unwrap().contains("is in use"), "{error}");
    }
    assert!(fs::read(rig.path("m.safetensors")).unwrap() == before);
    rig.ok(&["export", "-d", &drive, "--table", "t", "--force", "--out", "m.safetensors"]);
}

#[test]
fn a_journal_that_passes_keep_is_not_written_over_meanwhile() {
    let rig = Rig::new();
    loaded(&rig, &[]);
    rig.drive("b.drive", "64M");
    rig.ok(&["load", "-d", "emulated:b.drive", "t.npy"]);
    let open = |name: &str| {
        let drive = format!("emulated:{}", rig.path(name).display());
        let device = Device::open(&drive.parse().unwrap(), Create::Never).unwrap();
        Store::open(&[device], &Default::default()).unwrap()
    };
    let store = open("a.drive");
    let passes = Passes::open(&store, "t", PassOptions::staged(1 << 20).with_journal(rig.path("journal"))).unwrap();
    let before = fs::read(rig.path("journal")).unwrap();
    let error = rig.fails(&["inspect", "-d", "emulated:b.drive", "--svg", "journal", "--force"], 4);
    assert!(error["message"].as_str().unwrap().contains("is in use"), "{error}");
    assert_eq!(fs::read(rig.path("journal")).unwrap(), before);
    drop((passes, store));
    rig.ok(&["inspect", "-d", "emulated:b.drive", "--svg", "journal", "--force"]);
}

#[test]
fn what_is_no_regular_file_hangs_nothing() {
    let rig = Rig::new();
    let drive = loaded(&rig, &[]);
    let fifo = |name: &str| mkfifo(&rig.path(name), Mode::S_IRWXU).unwrap();
    for make in
        [&|| fifo("a.drive.nvme.toml") as (), &|| symlink("/dev/zero", rig.path("a.drive.nvme.toml")).unwrap(), &|| {
            fs::write(rig.path("a.drive.nvme.toml"), [0x89, b'P', b'N', b'G', 0xff]).unwrap()
        }] as [&dyn Fn(); 3]
    {
        fs::remove_file(rig.path("a.drive.nvme.toml")).unwrap();
        make();
        for args in [&["inspect", "-d", &drive][..], &["verify", "-d", &drive], &["format", "-d", &drive, "--yes"]] {
            let run = in_time(&rig, args);
            assert_eq!(run.exit, 6, "{args:?}: {run:?}");
            assert!(run.stderr.contains("remove that file"), "{args:?}: {run:?}");
        }
    }
    fs::remove_file(rig.path("a.drive.nvme.toml")).unwrap();
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
        let run = in_time(&rig, args);
        assert!([2, 3].contains(&run.exit), "{args:?}: {run:?}");
    }
    rig.ok(&["verify", "-d", &drive, "--table", "t", "--against", "t.npy"]);
}

#[test]
fn drives_are_for_their_user_and_exports_for_whom_the_umask_says() {
    let rig = Rig::new();
    let mode = |name: &str| fs::metadata(rig.path(name)).unwrap().permissions().mode() & 0o777;
    let file = rig.npy("t.npy", 100, 4, |r, c| (r * 4 + c) as f32);
    for (umask, exported) in [("000", 0o666), ("022", 0o644), ("027", 0o640), ("077", 0o600)] {
        let run = |args: &str| {
            let script = format!("umask {umask}; exec {} {args}", env!("CARGO_BIN_EXE_warprow"));
            let done = Command::new("sh").current_dir(rig.dir()).args(["-c", &script]).output().unwrap();
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
