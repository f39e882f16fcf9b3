//! Drives that `add-drive` and `format` make: with the store's LBAs, whole or not at all.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::{CliFixture, Run};

/// A store with a table on drive "a.drive", with LBAs of that size.
fn store(fixture: &CliFixture, lba: &str) -> (String, String) {
    let drive = format!("emulated:{}", fixture.path("a.drive").display());
    fixture.ok(&["format", "-d", &format!("{drive},size=32M"), "--lba", lba]);
    let file = fixture.npy("t.npy", 3000, 16, |r, c| (r * 16 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file, "--row-crc"]);
    (drive, file)
}

/// What lies in the folder: names, sizes, and of sidecars the content.
fn snapshot(folder: &Path) -> Vec<(String, u64, String)> {
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let content =
            if name.contains(".nvme.toml") { fs::read_to_string(entry.path()).unwrap() } else { String::new() };
        (name, entry.metadata().unwrap().len(), content)
    };
    let mut all: Vec<_> = fs::read_dir(folder).unwrap().map(entry).collect();
    all.sort();
    all
}

fn is_member(fixture: &CliFixture, drives: [&str; 2], file: &str, lba: &str) {
    let args = ["-d", drives[0], "-d", drives[1]];
    let inspected = fixture.ok(&[&["inspect"][..], &args].concat());
    assert_eq!(inspected["store"]["lba_size"].to_string(), lba);
    assert_eq!(inspected["store"]["members"].as_array().unwrap().len(), 2);
    assert_eq!(fixture.ok(&[&["verify"][..], &args, &["--against", file]].concat())["differing"], 0);
}

#[test]
fn a_drive_that_add_drive_makes_has_the_store_s_lbas() {
    for lba in ["512", "4096"] {
        let fixture = CliFixture::new();
        let (drive, file) = store(&fixture, lba);
        let new = format!("emulated:{}", fixture.path("b.drive").display());
        let sidecar = fixture.path("b.drive.nvme.toml");
        // Files that were not there, with the properties in either form; and such as `mktemp` and `truncate` make.
        for (property, there) in
            [(",size=24M", None), ("?size=24M", None), (",size=24M", Some(0)), ("", Some(24 << 20))]
        {
            if let Some(bytes) = there {
                fs::File::create(fixture.path("b.drive")).unwrap().set_len(bytes).unwrap();
            }
            fixture.ok(&["add-drive", &format!("{new}{property}"), "-d", &drive]);
            assert!(fs::read_to_string(&sidecar).unwrap().contains(&format!("lba = {lba}\n")));
            is_member(&fixture, [&drive, &new], &file, lba);
            fixture.ok(&["remove-drive", &new, "-d", &drive, "-d", &new]);
            fs::remove_file(fixture.path("b.drive")).unwrap();
            fs::remove_file(&sidecar).unwrap();
        }
        // As named, where that is the same.
        fixture.ok(&["add-drive", &format!("{new},size=24M,lba={lba}"), "-d", &drive]);
        is_member(&fixture, [&drive, &new], &file, lba);
    }
}

#[test]
fn other_lbas_are_refused_before_anything_is_made() {
    for (lba, other) in [("512", "4096"), ("4096", "512")] {
        let fixture = CliFixture::new();
        let (drive, file) = store(&fixture, lba);
        fs::write(fixture.path("empty.drive"), "").unwrap();
        fs::File::create(fixture.path("blank.drive")).unwrap().set_len(24 << 20).unwrap();
        fixture.ok(&[
            "format",
            "-d",
            &format!("emulated:{},size=24M", fixture.path("other.drive").display()),
            "--lba",
            other,
        ]);
        let before = snapshot(fixture.dir());
        let properties = format!(",size=24M,lba={other}");
        for name in ["b.drive", "empty.drive", "blank.drive"] {
            let new = format!("emulated:{}{properties}", fixture.path(name).display());
            let failure = fixture.fails(&["add-drive", &new, "-d", &drive], 3);
            let said = failure["message"].as_str().unwrap();
            assert!(said.contains(&format!("lba={other}")) && said.contains(&format!("LBAs of {lba} B")), "{failure}");
            assert!(failure["remedy"].as_str().unwrap().contains(&format!("lba={lba}")), "{failure}");
            assert_eq!(snapshot(fixture.dir()), before, "{name}");
        }
        // A drive that is one keeps its own.
        let new = format!("emulated:{}", fixture.path("other.drive").display());
        let failure = fixture.fails(&["add-drive", &new, "-d", &drive, "--overwrite"], 3);
        assert!(failure["remedy"].as_str().unwrap().contains("warprow format --lba"), "{failure}");
        assert_eq!(snapshot(fixture.dir()), before);
        assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", &file])["differing"], 0);
    }
}

/// With a limit on the size of files, in KiB.
fn limited(fixture: &CliFixture, kib: u64, args: &[&str]) -> (Value, i32) {
    let line = format!("ulimit -f {}; exec \"$0\" \"$@\"", kib * 2);
    let mut command = std::process::Command::new("sh");
    command
        .current_dir(fixture.dir())
        .env_remove("WARPROW_DRIVES")
        .arg("-c")
        .arg(line)
        .arg(env!("CARGO_BIN_EXE_warprow"));
    let run: Run = command.args(args).arg("--json").output().unwrap().into();
    let value: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {run:?}"));
    (value["error"].clone(), run.exit)
}

#[test]
fn a_drive_that_is_not_added_leaves_nothing() {
    let fixture = CliFixture::new();
    let (drive, file) = store(&fixture, "4096");
    fs::write(fixture.path("empty.drive"), "").unwrap();
    let before = snapshot(fixture.dir());
    let address = |name: &str, properties: &str| format!("emulated:{}{properties}", fixture.path(name).display());
    for name in ["b.drive", "empty.drive"] {
        for (properties, exit) in [(",size=64K", 3), (",size=8388607T", 3), (",size=16M,backing=ram", 2)] {
            let failure = fixture.fails(&["add-drive", &address(name, properties), "-d", &drive], exit);
            assert!(!failure["remedy"].as_str().unwrap().is_empty(), "{failure}");
            assert_eq!(snapshot(fixture.dir()), before, "{name}{properties}: {failure}");
        }
        // No room: for the drive's size, and for what lies beside it.
        for kib in [1024, 0] {
            let new = address(name, ",size=16M");
            let (failure, exit) = limited(&fixture, kib, &["add-drive", &new, "-d", &drive]);
            assert_eq!((exit, &failure["class"]), (8, &json!("resources")), "{failure}");
            assert!(failure["remedy"].as_str().unwrap().contains("ulimit"), "{failure}");
            assert_eq!(snapshot(fixture.dir()), before, "{name}: {failure}");
        }
    }
    // Nor where the store lacks another drive.
    fixture.ok(&["add-drive", &address("c.drive", ",size=24M"), "-d", &drive]);
    let before = snapshot(fixture.dir());
    for name in ["b.drive", "empty.drive"] {
        let failure = fixture.fails(&["add-drive", &address(name, ",size=16M"), "-d", &drive], 6);
        assert!(failure["missing"][0]["found"][0].as_str().unwrap().ends_with("c.drive"), "{failure}");
        assert_eq!(snapshot(fixture.dir()), before, "{name}");
    }
    is_member(&fixture, [&drive, &address("c.drive", "")], &file, "4096");
}

#[test]
fn a_file_that_cannot_be_sized_for_lack_of_room_is_that_to_format_too() {
    let fixture = CliFixture::new();
    fs::write(fixture.path("empty.drive"), "").unwrap();
    let before = snapshot(fixture.dir());
    for name in ["b.drive", "empty.drive"] {
        let new = format!("emulated:{},size=16M", fixture.path(name).display());
        for more in [&[][..], &["--dry-run"]] {
            let (failure, exit) = limited(&fixture, 1024, &[&["format", "-d", &new][..], more].concat());
            assert_eq!((exit, &failure["class"]), (8, &json!("resources")), "{more:?}: {failure}");
            let said = failure["message"].as_str().unwrap();
            assert!(said.contains("16777216 bytes") && said.contains("1048576"), "{more:?}: {failure}");
            assert!(failure["remedy"].as_str().unwrap().contains("ulimit -f"), "{failure}");
            assert_eq!(snapshot(fixture.dir()), before, "{name} {more:?}");
        }
    }
    // A limit that comes later, and that rows do not fit under; so with a note of what is loaded.
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 200_000, 16, |r, c| (r * 16 + c) as f32);
    let (failure, exit) = limited(&fixture, 4096, &["load", "-d", &drive, &file]);
    assert_eq!((exit, &failure["class"]), (8, &json!("resources")), "{failure}");
    assert!(failure["remedy"].as_str().unwrap().contains("ulimit -f"), "{failure}");
    fixture.ok(&["load", "-d", &drive, &file]);
    assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", &file])["differing"], 0);
}

/// What a kill can leave of making a drive, now and by earlier versions, and the same line again.
#[test]
fn the_same_line_goes_on_with_what_a_kill_left() {
    let foreign = "version = 1\nserial = \"OTHER\"\nuuid = \"0e8dc1fe-6c9b-4cf8-a1c5-8c4dbb3f5f21\"\nlba = 512\n";
    let own = foreign.replace("512", "4096");
    let size = Some(24u64 << 20);
    for (image, sidecar, new) in [
        (Some(0), None, None),
        (Some(0), None, Some("")),
        (Some(0), None, Some(&*own)),
        (Some(0), Some(foreign), None),
        (Some(0), Some(&*own), Some(&own[..20])),
        (None, Some(foreign), None),
        (size, None, None),
        (size, None, Some(&own[..8])),
        (size, Some(&*own), Some(foreign)),
    ] {
        let what = format!("{image:?} {sidecar:?} {new:?}");
        let fixture = CliFixture::new();
        let (drive, file) = store(&fixture, "4096");
        let path = fixture.path("b.drive");
        if let Some(bytes) = image {
            fs::File::create(&path).unwrap().set_len(bytes).unwrap();
        }
        for (ending, left) in [(".nvme.toml", sidecar), (".nvme.toml.new", new)] {
            if let Some(left) = left {
                fs::write(format!("{}{ending}", path.display()), left).unwrap();
            }
        }
        let added = format!("emulated:{}", path.display());
        let (said, exit) = fixture.json(&["add-drive", &format!("{added},size=24M"), "-d", &drive]);
        assert_eq!(exit, 0, "{what}: {said}");
        is_member(&fixture, [&drive, &added], &file, "4096");
        assert!(!fixture.path("b.drive.nvme.toml.new").exists(), "{what}");
    }
}

/// The command killed after a while, in every state that it comes to.
#[test]
fn add_drive_killed_at_any_time_goes_on() {
    let mut killed = 0;
    for turn in 0..24u64 {
        let fixture = CliFixture::new();
        let (drive, file) = store(&fixture, "4096");
        let added = format!("emulated:{}", fixture.path("b.drive").display());
        let line = ["add-drive", &format!("{added},size=24M"), "-d", &drive];
        let mut child = fixture.command(&line).stdout(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(turn * 3));
        killed += u64::from(child.try_wait().unwrap().is_none());
        child.kill().unwrap();
        child.wait().unwrap();
        let (said, exit) = fixture.json(&line);
        assert_eq!(exit, 0, "killed after {} ms: {said}", turn * 3);
        is_member(&fixture, [&drive, &added], &file, "4096");
        let left = snapshot(fixture.dir()).into_iter().map(|pair| pair.0).filter(|name| name.ends_with(".new"));
        assert_eq!(left.collect::<Vec<_>>(), [""; 0]);
    }
    assert!(killed > 0, "none was killed");
}

#[test]
fn of_several_formats_at_once_one_makes_the_drive_and_none_removes_it() {
    for round in 0..12 {
        let fixture = CliFixture::new();
        let drive = format!("emulated:{}", fixture.path("n.drive").display());
        let new = format!("{drive},size=24M");
        let formats: Vec<_> = (0..4)
            .map(|_| {
                let mut command = fixture.command(&["-q", "format", "-d", &new]);
                command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
            })
            .collect();
        let succeeded =
            formats.into_iter().filter_map(|mut format| format.wait().unwrap().success().then_some(())).count();
        let bytes = fs::metadata(fixture.path("n.drive")).map(|file| file.len()).ok();
        assert_eq!((succeeded, bytes), (1, Some(24 << 20)), "round {round}");
        assert_eq!(fixture.ok(&["inspect", "-d", &drive])["store"]["members"].as_array().unwrap().len(), 1);
    }
}
