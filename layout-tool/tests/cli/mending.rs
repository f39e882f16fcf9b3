//! Scrub, repair, and the picture of `inspect`.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use svg::parser::Event;
use warprow_store::{CreateDrive, Device, DriveAddress, OpenOptions, Store};

use crate::fixture::{CliFixture, Run};

/// A store on so many drives of different sizes.
fn drives(fixture: &CliFixture, count: usize) -> Vec<String> {
    let sized: Vec<String> = (0..count)
        .map(|n| format!("emulated:{},size={}M", fixture.path(&format!("{n}.drive")).display(), 24 + 9 * (n % 4)))
        .collect();
    fixture.ok(&["format", "-d", &sized.join(",")]);
    (0..count).map(|n| format!("emulated:{}", fixture.path(&format!("{n}.drive")).display())).collect()
}

pub(crate) fn flip(fixture: &CliFixture, drive: &str, byte: u64) {
    let path = drive.strip_prefix("emulated:").unwrap();
    let file = fs::File::options().read(true).write(true).open(fixture.path(path)).unwrap();
    let mut was = [0];
    file.read_exact_at(&mut was, byte).unwrap();
    file.write_all_at(&[was[0] ^ 4], byte).unwrap();
}

/// Drive, LBA and first byte of a row.
pub(crate) fn place(drives: &[String], table: &str, rank: u64) -> (String, u64, u64) {
    let devices: Vec<Device> = drives
        .iter()
        .map(|drive| Device::open(&drive.parse::<DriveAddress>().unwrap(), CreateDrive::Never).unwrap())
        .collect();
    let store = Store::open(&devices, &OpenOptions::default().with_read_only()).unwrap();
    let (generation, index) = store.generation(table).unwrap();
    let at = generation.row(index, rank).unwrap();
    let name = store.drives()[usize::from(at.drive)].clone().unwrap();
    (name, at.lba, at.lba * 512 + u64::from(at.byte))
}

#[test]
fn a_scrub_names_every_bad_place() {
    let fixture = CliFixture::new();
    let given = drives(&fixture, 3);
    let all = given.join(",");
    let file = fixture.npy("t.npy", 20_000, 16, |row, column| (row * 16 + column) as f32);
    fixture.ok(&["load", "-d", &all, &file, "--row-crc"]);
    let plain = fixture.npy("plain.npy", 100, 16, |row, _| row as f32);
    fixture.ok(&["load", "-d", &all, &plain]);
    let sound = fixture.ok(&["scrub", "-d", &all]);
    let counts = ["rows", "checked_rows", "unchecked_rows", "bad_units"].map(|name| sound[name].as_u64().unwrap());
    assert_eq!(
        (counts, &sound["complete"], &sound["position"]),
        ([20_100, 20_000, 100, 0], &json!(true), &json!(null))
    );

    let (drive, lba, byte) = place(&given, "t", 12_345);
    flip(&fixture, &drive, byte + 7);
    let (scrubbed, exit) = fixture.json(&["scrub", "-d", &all]);
    assert_eq!((exit, &scrubbed["error"]["class"]), (5, &json!("mismatch")), "{scrubbed}");
    let [bad] = &scrubbed["bad"].as_array().unwrap()[..] else { panic!("{scrubbed}") };
    let said = (&bad["what"], &bad["drive"], &bad["lba"], &bad["table"], &bad["ranks"], &bad["unreadable"]);
    assert_eq!(
        said,
        (&json!("rows"), &json!(drive), &json!(lba), &json!("t"), &json!([12_345]), &json!(false)),
        "{scrubbed}"
    );
    let run = fixture.run(&["scrub", "-d", &all]);
    assert!(run.stdout.contains("1 bad place") && run.stdout.contains("12345"), "{run:?}");
    let (verified, exit) = fixture.json(&["verify", "-d", &all]);
    assert_eq!((exit, &verified["bad"]), (5, &scrubbed["bad"]), "{verified}");
    flip(&fixture, &drive, byte + 7);

    // A superblock: nothing is lost, and it is said what to do.
    flip(&fixture, &given[1], 500);
    for command in ["scrub", "verify"] {
        let (found, exit) = fixture.json(&[command, "-d", &all]);
        let error = &found["error"];
        assert_eq!((exit, &found["bad"][0]["what"], &found["bad"][0]["lba"]), (6, &json!("superblock"), &json!(0)));
        assert!(error["remedy"].as_str().unwrap().contains("warprow repair"), "{error}");
    }
    assert_eq!(fixture.ok(&["repair", "-d", &all, "--yes"])["mended"], 1);
    assert_eq!(fixture.ok(&["verify", "-d", &all])["metadata_sound"], true);
}

/// A commit that is cut off between its superblocks, as a kill does it.
#[test]
fn an_interrupted_commit_is_no_damage() {
    let fixture = CliFixture::new();
    let given = drives(&fixture, 2);
    let all = given.join(",");
    let load = |name: &str| {
        let file = fixture.npy(&format!("{name}.npy"), 1000, 16, |row, column| (row * 16 + column) as f32);
        fixture.ok(&["load", "-d", &all, &file, "--row-crc"]);
    };
    load("first");
    let image = |n: usize| fixture.path(&format!("{n}.drive"));
    let before: Vec<Vec<u8>> = (0..2).map(|n| fs::read(image(n)).unwrap()).collect();
    load("second");
    let whole: Vec<Vec<u8>> = (0..2).map(|n| fs::read(image(n)).unwrap()).collect();
    let epoch = fixture.ok(&["inspect", "-d", &all])["store"]["epoch"].as_u64().unwrap() as usize;
    // Of drive, and of which copy: units of the slot, at the start and at the end.
    let unit = |n: usize, tail: bool| {
        let units = before[n].len() / 4096;
        (if tail { units - 2 } else { 0 } + epoch % 2) * 4096
    };
    for undone in [&[(1, true)][..], &[(0, true), (1, true)], &[(0, true), (1, true), (1, false)]] {
        let mut images = whole.clone();
        for &(n, tail) in undone {
            let at = unit(n, tail);
            images[n][at..at + 4096].copy_from_slice(&before[n][at..at + 4096]);
            assert_ne!(images[n], whole[n], "{undone:?}");
        }
        (0..2).for_each(|n| fs::write(image(n), &images[n]).unwrap());
        for command in ["verify", "scrub"] {
            let found = fixture.ok(&[command, "-d", &all]);
            assert_eq!(found["unfinished_commit"].as_array().unwrap().len(), undone.len(), "{command}: {found}");
            assert_eq!(found["bad"], json!([]));
            let run = fixture.run(&[command, "-d", &all]);
            assert!(run.stdout.contains("interrupted commit") && !run.stdout.contains("DAMAGED"), "{run:?}");
        }
        assert!((0..2).all(|n| fs::read(image(n)).unwrap() == images[n]), "nothing is written");
        // What writes next finishes it.
        fixture.ok(&["compact", "-d", &all]);
        assert_eq!(fixture.ok(&["verify", "-d", &all])["unfinished_commit"], json!([]));
        // What else stands there is damage still.
        (0..2).for_each(|n| fs::write(image(n), &images[n]).unwrap());
        flip(&fixture, &given[0], unit(0, false) as u64 + 700);
        if undone.len() == 1 {
            assert_eq!(fixture.json(&["verify", "-d", &all]).1, 6);
        }
    }
}

#[test]
fn a_scrub_that_was_stopped_goes_on() {
    let fixture = CliFixture::new();
    let given = drives(&fixture, 2);
    let all = given.join(",");
    let file = fixture.npy("t.npy", 100_000, 64, |row, column| (row * 64 + column) as f32);
    fixture.ok(&["load", "-d", &all, &file, "--row-crc"]);
    let (drive, _, byte) = place(&given, "t", 3);
    flip(&fixture, &drive, byte);
    // 24 MiB at 16 MiB a second: steps of 16 MiB at least.
    let args = ["scrub", "-d", &all, "--rate", "16MiB", "--state", "state.json", "--json"];
    let child = fixture.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(400));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let began = Instant::now();
    let run: Run = child.wait_with_output().unwrap().into();
    assert!(began.elapsed() < Duration::from_secs(5), "it stops at once");
    let stopped: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((run.exit, &stopped["complete"]), (130, &json!(false)), "{run:?}");
    assert!(stopped["error"]["remedy"].as_str().unwrap().contains("state.json"), "{stopped}");
    assert!(fixture.path("state.json").exists());

    let other = CliFixture::new();
    let elsewhere = other.drive("o.drive", "24M");
    let state = fixture.path("state.json").display().to_string();
    let refused = other.fails(&["scrub", "-d", &elsewhere, "--state", &state], 3);
    assert!(refused["message"].as_str().unwrap().contains("this is store"), "{refused}");

    let (through, exit) = fixture.json(&args[..args.len() - 1]);
    assert_eq!((exit, &through["resumed"], &through["complete"]), (5, &json!(true), &json!(true)), "{through}");
    assert_eq!((&through["rows"], &through["bad"][0]["ranks"]), (&json!(100_000), &json!([3])), "{through}");
    assert!(through["bad"].as_array().unwrap().len() == 1 && !fixture.path("state.json").exists(), "{through}");

    fs::write(fixture.path("state.json"), "{\"scrub\": 1, \"store\": 7}").unwrap();
    fixture.fails(&["scrub", "-d", &all, "--state", "state.json"], 3);
    fs::remove_file(fixture.path("state.json")).unwrap();
    fixture.fails(&["scrub", "-d", &all, "--state", "nodir/state.json"], 3);
    fixture.fails(&["scrub", "-d", &all, "--state", "."], 3);
    // Most of a drive is gone: that is said in seconds.
    let path = drive.strip_prefix("emulated:").unwrap();
    let size = fs::metadata(path).unwrap().len();
    let args = ["scrub", "-d", &all, "--rate", "8MiB", "--json"];
    let child = fixture.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(2 << 20).unwrap();
    let run: Run = child.wait_with_output().unwrap().into();
    file.set_len(size).unwrap();
    let cut: Value = serde_json::from_str(&run.stdout).unwrap();
    assert!([5, 6, 7].contains(&run.exit) && cut["bad_units"].as_u64().unwrap() > 0, "{run:?}");
    for bad in [&["--rate", "1kB"][..], &["--share", "0"], &["--share", "120%"], &["--rate", "1MB", "--share", "5"]] {
        fixture.fails(&[&["scrub", "-d", &all], bad].concat(), 2);
    }
    fixture.fails(&["scrub", "-d", "attached:t.npy"], 2);
}

#[test]
fn a_repair_writes_nothing_until_it_is_told_to_and_guesses_nothing() {
    let fixture = CliFixture::new();
    let given = drives(&fixture, 3);
    let all = given.join(",");
    let file = fixture.npy("t.npy", 3000, 16, |row, column| (row * 16 + column) as f32);
    fixture.ok(&["load", "-d", &all, &file, "--row-crc"]);
    let whole = fixture.ok(&["repair", "-d", &all]);
    assert_eq!((&whole["mends"], &whole["dry_run"]), (&json!([]), &json!(true)));

    // All four superblocks of a drive; the store cannot be opened.
    let path = fixture.path("1.drive");
    let size = fs::metadata(&path).unwrap().len();
    let file_of = || fs::File::options().write(true).open(&path).unwrap();
    let wipe = || [0, 4096, size - 8192, size - 4096].map(|at| file_of().write_all_at(&[0x55; 4096], at).unwrap());
    wipe();
    let error = fixture.fails(&["verify", "-d", &all], 6);
    assert!(!error["remedy"].as_str().unwrap().is_empty());
    let before = fs::read(&path).unwrap();
    let plan = fixture.ok(&["repair", "-d", &all]);
    assert!(fs::read(&path).unwrap() == before, "a dry run writes nothing");
    assert_eq!((&plan["mended"], plan["mends"].as_array().unwrap().len()), (&json!(0), 4));
    let run = fixture.run(&["repair", "-d", &all]);
    assert!(run.stdout.contains("Nothing was changed") && run.stdout.contains("--yes"), "{run:?}");
    assert_eq!(fixture.ok(&["repair", "-d", &all, "--yes"])["mended"], 4);
    assert_eq!(fixture.ok(&["repair", "-d", &all])["mends"], json!([]));
    assert_eq!(fixture.ok(&["verify", "-d", &all, "--against", &file])["differing"], 0);

    // Without its catalogue nothing tells which drive it is.
    wipe();
    file_of().write_all_at(&vec![0; 1 << 20], 64 << 10).unwrap();
    let error = fixture.fails(&["repair", "-d", &all, "--yes"], 6);
    assert!(error["message"].as_str().unwrap().contains("does not prove it"), "{error}");
    let error = fixture.fails(&["repair", "-d", &given[0], "--yes"], 6);
    assert!(error["message"].as_str().unwrap().contains("lacks"), "{error}");
    let blank = format!("emulated:{}", fixture.path("blank").display());
    fs::write(fixture.path("blank"), vec![0; 24 << 20]).unwrap();
    fixture.fails(&["repair", "-d", &blank], 6);
}

/// The elements of a picture, by name, and its texts; it is well-formed, and everything lies on the page.
fn read_svg(fixture: &CliFixture, name: &str) -> (HashMap<String, usize>, Vec<String>) {
    let text = fs::read_to_string(fixture.path(name)).unwrap();
    let mut open = Vec::new();
    let mut counts = HashMap::new();
    let mut texts = Vec::new();
    let mut page = (0.0, 0.0);
    for event in svg::read(&text).unwrap() {
        match event {
            Event::Tag(name, kind, attributes) => {
                use svg::node::element::tag::Type;
                match kind {
                    Type::Start => open.push(name.to_owned()),
                    Type::End => assert_eq!(open.pop().as_deref(), Some(name)),
                    Type::Empty => {}
                }
                if !matches!(kind, Type::End) {
                    *counts.entry(name.to_owned()).or_default() += 1;
                }
                let number = |key: &str| attributes.get(key).and_then(|value| value.parse::<f64>().ok());
                if name == "svg" && matches!(kind, Type::Start) {
                    page = (number("width").unwrap(), number("height").unwrap());
                }
                if let (Some(x), Some(y)) = (number("x"), number("y")) {
                    let width = number("width").unwrap_or(0.0);
                    let height = number("height").unwrap_or(0.0);
                    assert!(x + width <= page.0 && y + height <= page.1, "{attributes:?} is off the page {page:?}");
                }
            }
            Event::Text(text) => texts.push(text.to_owned()),
            Event::Error(error) => panic!("{error}"),
            _ => {}
        }
    }
    assert!(open.is_empty() && page.1 < 6000.0);
    (counts, texts)
}

/// A safetensors file of `count` tables of different sizes.
fn many(fixture: &CliFixture, name: &str, count: usize) -> String {
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for table in 0..count {
        let rows = 1 + table % 37;
        header.insert(
            format!("emb.<{table}>&\"table\""),
            json!({"dtype": "U8", "shape": [rows, 8], "data_offsets": [at, at + rows * 8]}),
        );
        at += rows * 8;
    }
    let header = Value::from(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend((0..at).map(|byte| byte as u8));
    fs::write(fixture.path(name), bytes).unwrap();
    fixture.path(name).display().to_string()
}

/// The colours of legends: what has the size of their swatches.
fn swatches(picture: &str) -> Vec<String> {
    let mut colours = Vec::new();
    for event in svg::read(picture).unwrap() {
        if let Event::Tag("rect", _, attributes) = event {
            let is = |key: &str, value: &str| attributes.get(key).is_some_and(|found| **found == *value);
            if is("width", "18") && is("height", "14") {
                colours.push(attributes.get("fill").unwrap().to_string());
            }
        }
    }
    colours
}

/// Parts of tables have no byte in common, are as many as the tables have, and lie in as many chunks as is said.
fn check_parts(seen: &Value) {
    let chunk_size = seen["store"]["chunk_size"].as_u64().unwrap();
    let pair = |value: &Value| (value[0].as_u64().unwrap(), value[1].as_u64().unwrap());
    for generation in seen["store"]["generations"].as_array().unwrap() {
        let all: u64 = generation["chunks"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).sum();
        let mut taken: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
        for table in seen["tables"].as_array().unwrap().iter().filter(|value| value["generation"] == generation["id"]) {
            let mut bytes = 0;
            let mut chunks = HashSet::new();
            for part in table["parts"].as_array().unwrap() {
                let ((first, last), (from, to)) = (pair(&part["chunks"]), pair(&part["bytes"]));
                assert!(first < last && last <= all && from < to && to <= chunk_size, "{table}");
                bytes += (last - first) * (to - from);
                chunks.extend(first..last);
                (first..last).for_each(|chunk| taken.entry(chunk).or_default().push((from, to)));
            }
            assert_eq!(
                bytes,
                table["bytes"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap()).sum::<u64>()
            );
            assert_eq!(table["chunks"], chunks.len(), "{table}");
        }
        for parts in taken.values_mut() {
            parts.sort_unstable();
            assert!(parts.windows(2).all(|two| two[0].1 <= two[1].0), "tables overlap: {parts:?}");
        }
    }
}

#[test]
fn a_picture_shows_every_drive_and_table() {
    for (count, tables) in [(1, 1), (5, 24), (16, 500)] {
        let fixture = CliFixture::new();
        let all = drives(&fixture, count).join(",");
        let empty = fixture.ok(&["inspect", "-d", &all, "--svg", "empty.svg"]);
        assert_eq!(empty["tables"], json!([]));
        assert!(read_svg(&fixture, "empty.svg").1.iter().any(|text| text.contains("No tables yet")));
        let file = many(&fixture, "m.safetensors", tables);
        fixture.ok(&["load", "-d", &all, &file, "--all", "--model", "ctr<1>"]);
        fixture.ok(&["load", "-d", &all, &file, "--all", "--model", "ctr<1>", "--beside"]);
        let seen = fixture.ok(&["inspect", "-d", &all, "--svg", "a.svg"]);
        let (counts, texts) = read_svg(&fixture, "a.svg");
        assert!(counts["rect"] > 2 * tables && counts["pattern"] == 2);
        let says = |what: &str| texts.iter().any(|text| text.contains(what));
        assert!(says("generation 0 of ctr&lt;1&gt;") && says("standby") && says("&lt;0&gt;&amp;"), "{texts:?}");
        for drive in 0..count {
            assert!(says(&format!("{drive}.drive")), "{texts:?}");
        }
        // The same in numbers.
        let map = seen["map"].as_array().unwrap();
        assert_eq!((map.len(), seen["tables"].as_array().unwrap().len()), (count, 2 * tables));
        for (drive, member) in map.iter().zip(seen["store"]["members"].as_array().unwrap()) {
            let sum = |what: &str| {
                let runs = drive["runs"].as_array().unwrap();
                let of = runs.iter().filter(|run| what.is_empty() || run["what"] == what);
                of.map(|run| run["lbas"].as_u64().unwrap() * 512).sum::<u64>()
            };
            assert_eq!((json!(sum("")), &drive["drive"]), (member["bytes"].clone(), &member["drive"]));
            assert_eq!(
                sum("free"),
                member["free_chunks"].as_u64().unwrap() * seen["store"]["chunk_size"].as_u64().unwrap()
            );
        }
        check_parts(&seen);
        // Each of up to 24 tables has a number and a colour of its own.
        let named = tables.min(24);
        for number in 1..=named {
            assert!(texts.contains(&number.to_string()), "{number}: {texts:?}");
        }
        let picture = fs::read_to_string(fixture.path("a.svg")).unwrap();
        let colours = swatches(&picture);
        assert_eq!(colours.iter().collect::<HashSet<_>>().len(), named + usize::from(tables > named), "{colours:?}");
        let refused = fixture.fails(&["inspect", "-d", &all, "--svg", "a.svg"], 4);
        assert_eq!(refused["subject"], "a.svg");
        fixture.ok(&["inspect", "-d", &all, "--svg", "a.svg", "--force"]);
        fixture.fails(&["inspect", "-d", &all, "--svg", "0.drive", "--force"], 4);
        fixture.fails(&["inspect", "-d", &all, "--svg", "nodir/a.svg"], 3);
        // Not over a device, a folder or a link.
        std::os::unix::fs::symlink("a.svg", fixture.path("link")).unwrap();
        for special in ["link", "."] {
            fixture.fails(&["inspect", "-d", &all, "--svg", special, "--force"], 3);
        }
        fixture.fails(&["inspect", "-d", &all, "--force"], 2);
    }
}
