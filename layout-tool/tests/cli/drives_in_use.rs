//! Drives that somebody else has, that were removed, or that the list of drives lacks: who, from where, and which.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use warprow_soft_controller::DriveUri;

use crate::fixture::{CliFixture, Run};

/// Another process that has a drive.
fn holding(fixture: &CliFixture, drive: &str) -> Child {
    let mut child = fixture
        .command(&["serve", "--socket", "s", drive])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut stdout = BufReader::new(child.stdout.as_mut().unwrap());
    while !said.contains("-device") {
        assert_ne!(stdout.read_line(&mut said).unwrap(), 0, "it ended: {said}");
    }
    child
}

fn end(mut child: Child) {
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    child.wait().unwrap();
}

#[test]
fn whoever_has_a_drive_is_named_and_can_be_waited_for() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let holder = holding(&fixture, &drive);
    let pid = holder.id();
    // Where the system lists locks.
    let listed = std::fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains(&pid.to_string()));
    assert!(listed, "no locks are listed here");
    let error = fixture.fails(&["inspect", "-d", &drive], 4);
    assert_eq!((&error["class"], &error["holder"]["pid"]), (&json!("refused"), &json!(pid)));
    assert!(error["holder"]["command"].as_str().unwrap().contains("serve --socket s"), "{error}");
    let plain = fixture.run(&["inspect", "-d", &drive]);
    assert!(plain.stderr.contains(&format!("process {pid} (")) && plain.stderr.contains("--wait"), "{plain:?}");

    // For a bounded time.
    let begun = Instant::now();
    let waited = fixture.run(&["inspect", "-d", &drive, "--wait=1"]);
    assert!(waited.exit == 4 && begun.elapsed() >= Duration::from_secs(1), "{waited:?}");
    assert!(waited.stderr.starts_with("waiting for "), "{waited:?}");
    assert!(waited.stderr.contains(&format!("process {pid} (")), "{waited:?}");
    assert!(waited.stderr.contains("it was waited for 1 s"), "{waited:?}");
    let quiet = fixture.run(&["inspect", "-d", &drive, "--wait=1", "--quiet"]);
    assert!(quiet.exit == 4 && quiet.stderr.starts_with("error: "), "{quiet:?}");
    assert_eq!(fixture.run(&["inspect", "-d", &drive, "--wait=x"]).exit, 2);

    // Ctrl-C ends it.
    let mut waiting = spawn_waiting(&fixture, &drive, "--wait");
    kill(Pid::from_raw(waiting.id() as i32), Signal::SIGINT).unwrap();
    assert_eq!(waiting.wait().unwrap().code(), Some(130));

    // Once the drive is free, the command does what it was to do.
    let waiting = spawn_waiting(&fixture, &drive, "--wait=300");
    end(holder);
    let done: Run = waiting.wait_with_output().unwrap().into();
    assert!(done.exit == 0 && done.stdout.contains("No tables yet"), "{done:?}");
    fixture.ok(&["inspect", "-d", &drive, "--wait"]);
}

#[test]
fn commands_that_read_share_a_drive_and_keep_writers_out() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 1000, 16, |r, c| (r * 16 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    let before = std::fs::read(fixture.path("a.drive")).unwrap();
    // This process reads it, as long as the test needs.
    let reader = drive.parse::<DriveUri>().unwrap().for_reading().open().unwrap();
    let reads: [&[&str]; 5] = [
        &["lookup", "-d", &drive, "--table", "t", "--ids", "3,999"],
        &["lookup", "-d", &drive, "--table", "t", "--ids", "0", "--degraded"],
        &["verify", "-d", &drive, "--table", "t", "--against", &file],
        &["inspect", "-d", &drive],
        &["generations", "-d", &drive],
    ];
    // All of them at once.
    let spawn = |args: &[&str]| fixture.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let children: Vec<Child> = reads.iter().chain(&reads).map(|args| spawn(args)).collect();
    for child in children {
        let run: Run = child.wait_with_output().unwrap().into();
        assert_eq!(run.exit, 0, "{run:?}");
    }
    let pid = std::process::id();
    for args in [
        &["load", "-d", &drive, &file, "--model", "other"][..],
        &["format", "-d", &drive, "--yes"],
        &["repair", "-d", &drive],
        &["remove-drive", &drive, "-d", &drive],
        &["serve", "--socket", "s", &drive],
    ] {
        let error = fixture.fails(args, 4);
        assert_eq!((&error["class"], &error["holder"]["pid"]), (&json!("refused"), &json!(pid)), "{args:?}");
        assert_eq!(
            (&error["holders"][0]["pid"], &error["holders"][0]["reads"]),
            (&json!(pid), &json!(true)),
            "{args:?}"
        );
        assert!(error["message"].as_str().unwrap().contains("open for reading"), "{error}");
    }
    // A rate is divided among those who say so, and nobody else has it too.
    let error = fixture.fails(&["lookup", "-d", &format!("{drive},profile=p5800x"), "--table", "t", "--ids", "3"], 4);
    assert!(error["message"].as_str().unwrap().contains("sharers=2"), "{error}");
    fixture.ok(&["lookup", "-d", &format!("{drive},profile=p5800x,sharers=2"), "--table", "t", "--ids", "3"]);
    assert!(std::fs::read(fixture.path("a.drive")).unwrap() == before, "somebody has written");
    drop(reader);
    fixture.ok(&["load", "-d", &drive, &file, "--replace"]);
}

/// A command that has said that it waits.
fn spawn_waiting(fixture: &CliFixture, drive: &str, wait: &str) -> Child {
    let mut command = fixture.command(&["inspect", "-d", drive, wait]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = Vec::new();
    let stderr = child.stderr.as_mut().unwrap();
    while !said.ends_with(b"\n") {
        let mut byte = [0];
        stderr.read_exact(&mut byte).unwrap();
        said.extend(byte);
    }
    assert!(said.starts_with(b"waiting for "), "{}", String::from_utf8_lossy(&said));
    child
}

#[test]
fn the_drive_to_add_is_named_and_a_removed_one_says_so() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 1000, 16, |r, c| (r * 16 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    let more = format!("emulated:{}", fixture.path("b.drive").display());
    fixture.ok(&["add-drive", &format!("{more},size=64M,serial=SECOND"), "-d", &drive]);
    let error = fixture.fails(&["verify", "-d", &drive], 6);
    assert!(error["message"].as_str().unwrap().contains("lacks SECOND"), "{error}");
    let remedy = error["remedy"].as_str().unwrap();
    assert!(remedy.contains(&format!("add -d {more}")), "{error}");
    assert_eq!(error["missing"], json!([{ "serial": "SECOND", "member": 1, "found": [more] }]));
    let error = fixture.fails(&["inspect", "-d", &drive], 6);
    assert!(error["remedy"].as_str().unwrap().contains(&format!("add -d {more}")), "{error}");
    // Where it is not beside the others, its serial number has to do.
    std::fs::create_dir(fixture.path("away")).unwrap();
    std::fs::rename(fixture.path("b.drive"), fixture.path("away/b.drive")).unwrap();
    let error = fixture.fails(&["verify", "-d", &drive], 6);
    assert_eq!(error["missing"], json!([{ "serial": "SECOND", "member": 1, "found": [] }]));
    std::fs::rename(fixture.path("away/b.drive"), fixture.path("b.drive")).unwrap();

    fixture.ok(&["remove-drive", &drive, "-d", &drive, "-d", &more]);
    let store = fixture.ok(&["inspect", "-d", &more])["store"]["store"].as_str().unwrap().to_owned();
    for args in [&["verify", "-d", &drive][..], &["verify", "-d", &drive, "-d", &more]] {
        let error = fixture.fails(args, 6);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("was removed from store {store}")), "{error}");
        assert!(error["remedy"].as_str().unwrap().contains("leave it out"), "{error}");
    }
    // That there is no store on it is no error where one only looks.
    let seen = fixture.ok(&["inspect", "-d", &drive]);
    assert_eq!((&seen["store"], &seen["removed"][0]["from"]), (&json!(null), &json!(store)));
    assert!(fixture.run(&["inspect", "-d", &drive]).stdout.contains("was removed from store"));
    fixture.ok(&["verify", "-d", &more, "--table", "t", "--against", &file]);
    // It can be added again, and is a member then.
    fixture.ok(&["add-drive", &drive, "-d", &more]);
    fixture.ok(&["verify", "-d", &drive, "-d", &more, "--table", "t", "--against", &file]);
}

#[test]
fn a_file_of_tables_gets_no_drive_and_is_none() {
    let fixture = CliFixture::new();
    let file = fixture.npy("t.npy", 100, 4, |r, _| r as f32);
    let drive = fixture.drive("a.drive", "16M");
    fixture.ok(&["load", "-d", &drive, &file]);
    let attached = format!("attached:{file}");
    fixture.fails(&["add-drive", "-d", &attached, &drive, "--overwrite"], 4);
    fixture.fails(&["add-drive", "-d", &drive, &attached, "--overwrite"], 4);
    fixture.fails(&["add-drive", "-d", &attached, "emulated:new.drive,size=16M"], 4);
    assert!(!fixture.path("new.drive").exists());
    fixture.ok(&["verify", "-d", &drive, "--against", &file]);
}
