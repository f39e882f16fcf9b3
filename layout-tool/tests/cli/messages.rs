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
