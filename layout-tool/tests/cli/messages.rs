//! What failed look-ups and refusals say.

use std::fs;

use serde_json::json;

use crate::fixture::CliFixture;
use crate::mending::{flip, place};

#[test]
fn a_look_up_that_fails_counts_and_places_ids_among_all() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 1000, 4, |r, c| (r * 4 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file, "--row-crc"]);
    let (_, _, at) = place(std::slice::from_ref(&drive), "t", 999);
    flip(&fixture, &drive, at);
    for (count, so_far) in [(70_000u64, "70,000 ids"), (140_000, "the first 131,072 of 140,000 ids")] {
        let id = |at: u64| if at == 66_000 || at == 66_007 { 999 } else { at % 999 };
        fs::write(fixture.path("ids.i64"), (0..count).flat_map(|at| id(at).to_le_bytes()).collect::<Vec<_>>()).unwrap();
        let args = ["lookup", "-d", &drive, "--table", "t", "--ids-file", "ids.i64", "--out", "rows.npy"];
        let error = fixture.fails(&args, 6);
        assert_eq!(error["positions"], json!([66_000, 66_007]), "{error}");
        let said = error["message"].as_str().unwrap();
        let want = format!("the rows of 2 of {so_far} could not be read, the first at position 66,000: ");
        assert!(said.starts_with(&want), "{said}");
        assert_eq!(said.ends_with("the other ids were not looked up"), count > 131_072, "{said}");
        assert!(!fixture.path("rows.npy").exists());
    }
    // Missing ones likewise.
    fs::write(fixture.path("ids.i64"), (0..140_000u64).flat_map(|at| (at / 140).to_le_bytes()).collect::<Vec<_>>())
        .unwrap();
    let rows = fixture.npy("few.npy", 500, 4, |r, c| (r * 4 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &rows]);
    let args =
        ["lookup", "-d", &drive, "--table", "few", "--ids-file", "ids.i64", "--out", "r.npy", "--missing", "error"];
    let said = fixture.fails(&args, 3)["message"].as_str().unwrap().to_owned();
    let want =
        "61,072 of the first 131,072 of 140,000 ids are missing from their tables, the first at position 70,000;";
    assert!(said.starts_with(want), "{said}");
}

#[test]
fn a_remedy_is_given_once() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 100, 4, |r, c| (r * 4 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file, "--row-crc"]);
    let again = fixture.fails(&["load", "-d", &drive, &file], 4);
    assert_eq!(again["message"], "table \"t\" exists");
    assert!(again["remedy"].as_str().unwrap().contains("--replace"));
    let other = fixture.fails(&["inspect", "-d", "/dev/nvme0n1"], 2);
    assert!(!other["message"].as_str().unwrap().contains("give a PCI address"), "{other}");
    assert!(other["remedy"].as_str().unwrap().contains("give a PCI address"), "{other}");
    let nobody = fixture.fails(&["inspect", "-d", "vfio-user:nobody.sock"], 7);
    assert!(!nobody["message"].as_str().unwrap().contains("start the server"), "{nobody}");
    assert!(nobody["message"].as_str().unwrap().contains("nobody.sock") && nobody["remedy"] != "", "{nobody}");
    let said = fixture.run(&["load", "-d", &drive, &file, "--replace", "--to", "f16"]).stdout;
    assert!(said.contains("f32 to f16 changes no number") && !said.contains("0.000e0"), "{said}");
}

#[test]
fn small_failures_name_what_helps() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 100, 4, |r, c| (r * 4 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    let shown = fixture.fails(&["drop", "0", "-d", &drive], 4);
    assert!(shown["remedy"].as_str().unwrap().contains("--allow-vanishing"), "{shown}");
    fs::write(fixture.path("offsets.i64"), [0, 5].map(i64::to_le_bytes).as_flattened()).unwrap();
    let offsets = fixture.path("offsets.i64").display().to_string();
    let lookup = ["lookup", "-d", &drive, "--table", "t", "--ids", "1", "--pooling", "sum", "--offsets", &offsets];
    assert_eq!(fixture.fails(&lookup, 3)["remedy"], "there is 1 id");
    fs::write(fixture.path("b.drive"), "").unwrap();
    let new = format!("emulated:{}", fixture.path("b.drive").display());
    let empty = fixture.fails(&["add-drive", &new, "-d", &drive], 3);
    assert!(empty["remedy"].as_str().unwrap().contains(&format!("add-drive {new},size=")), "{empty}");
    assert!(!empty["message"].as_str().unwrap().contains("format"), "{empty}");
    let infinite = fixture.npy("inf.npy", 100, 4, |r, c| if (r, c) == (1, 3) { f32::INFINITY } else { 1.0 });
    let said = fixture.run(&["load", "-d", &drive, &infinite, "--to", "f8e4m3"]).stdout;
    assert!(said.contains("1 infinite element LOST") && !said.contains("changes no number"), "{said}");
}

#[test]
fn a_drive_that_grew_is_whole() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "24M");
    let file = fixture.npy("t.npy", 100, 4, |r, c| (r * 4 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file, "--row-crc"]);
    fs::File::options().write(true).open(fixture.path("a.drive")).unwrap().set_len(25 << 20).unwrap();
    assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", &file])["differing"], 0);
    // Commits go to where the store ends, and are found there.
    fixture.ok(&["load", "-d", &drive, &file, "--replace"]);
    fixture.ok(&["verify", "-d", &drive]);
    fs::File::options().write(true).open(fixture.path("a.drive")).unwrap().set_len(24 << 20).unwrap();
    fixture.ok(&["verify", "-d", &drive]);
}

#[test]
fn options_of_a_table_in_a_file_are_never_ignored() {
    let fixture = CliFixture::new();
    for given in [&["--trace", "t.csv"][..], &["--map", "dense"], &["--tensor", "x"]] {
        for made_up in [&[][..], &["--rows", "5000"], &["--dim", "4"], &["--alpha", "1"]] {
            fixture.fails(&[&["demo"][..], given, made_up].concat(), 2);
        }
    }
}

#[test]
fn a_command_keeps_its_own_inputs() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "24M");
    let file = fixture.npy("t.npy", 100, 4, |r, c| (r * 4 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    let ids: Vec<u8> = (0..4000u32).flat_map(|at| (at % 100).to_le_bytes()).collect();
    let path = fixture.path("ids.u32");
    fs::write(&path, &ids).unwrap();
    std::os::unix::fs::symlink(&path, fixture.path("link.u32")).unwrap();
    let (path, link) = (path.display().to_string(), fixture.path("link.u32").display().to_string());
    let trace = format!("ids:{path}");
    for out in [&path, &link] {
        let plan = ["plan", "--table", "100x4:f32", "--trace", &trace, "--out", out, "--force", "--typical-host"];
        let refused = fixture.fails(&plan, 2);
        assert_eq!(refused["subject"], "--out", "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("the file of --trace"), "{refused}");
        let lookup = ["lookup", "-d", &drive, "--table", "t", "--ids-file", &path, "--out", out, "--force"];
        assert!(fixture.fails(&lookup, 2)["message"].as_str().unwrap().contains("the file of --ids-file"));
        assert_eq!(fs::read(&path).unwrap(), ids);
    }
}

#[test]
fn files_that_are_too_long_are_wrong_input() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "24M");
    fs::File::create(fixture.path("state.json")).unwrap().set_len(1 << 40).unwrap();
    let state = fixture.path("state.json").display().to_string();
    let refused = fixture.fails(&["scrub", "-d", &drive, "--state", &state], 3);
    assert!(refused["message"].as_str().unwrap().contains("64.0 MiB"), "{refused}");
    let line = format!("id\n{}\n", "1".repeat(17 << 20));
    fs::write(fixture.path("t.csv"), line).unwrap();
    let trace = fixture.path("t.csv").display().to_string();
    let long = fixture.fails(&["plan", "--table", "100x4:f32", "--trace", &trace, "--typical-host"], 3);
    assert!(long["message"].as_str().unwrap().contains("16 MiB"), "{long}");
    assert!(!long["remedy"].as_str().unwrap().contains("ulimit"), "{long}");
}
