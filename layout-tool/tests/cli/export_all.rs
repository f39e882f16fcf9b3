//! `export --all`: all tables in one file, and back.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::CliFixture;
use crate::mending::{flip, place};

fn of<'a>(value: &'a Value, name: &str) -> &'a Value {
    value["tables"]
        .as_array()
        .unwrap()
        .iter()
        .find(|value| value["table"] == name)
        .unwrap_or_else(|| panic!("{name}: {value}"))
}

#[test]
fn all_tables_are_exported_to_one_file_and_loaded_from_it() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let rows = 500u64;
    let items = fixture.npy("items.npy", rows, 5, |r, c| (r * 5 + c) as f32);
    let hot = fixture.npy("hot.npy", rows, 1, |r, _| (r % 7) as f32);
    fixture.ok(&["load", "-d", &drive, &items, "--hotness", &hot, "--row-crc"]);
    let keyed = fixture.npy("keyed.npy", 40, 3, |r, c| (r * 3 + c) as f32);
    let mut keys = warprow_formats::npy::head_of_list("<i8", 40);
    keys.extend((0..40i64).flat_map(|row| ((row << 40) - 77).to_le_bytes()));
    fs::write(fixture.path("k.npy"), keys).unwrap();
    fixture.ok(&["load", "-d", &drive, &keyed, "--keys", "k.npy", "--to", "f16"]);
    let small = fixture.npy("small.npy", 9, 8, |r, c| (r + c) as f32);
    fixture.ok(&["load", "-d", &drive, &small, "--to", "q8"]);

    let out = fixture.ok(&["export", "-d", &drive, "--all", "--out", "all.safetensors"]);
    assert_eq!((&out["rows"], out["tables"].as_array().unwrap().len()), (&json!(549), 3), "{out}");
    let parts = |name: &str| ["checked", "order", "keys", "dtype"].map(|text| of(&out, name)[text].clone());
    assert_eq!(parts("items"), [json!(true), json!("id"), Value::Null, json!("f32")]);
    assert_eq!(parts("keyed"), [json!(false), json!("rank"), json!("keyed.keys"), json!("f16")]);
    assert_eq!(parts("small"), [json!(false), json!("id"), Value::Null, json!("f32")]);
    let bytes = fs::read(fixture.path("all.safetensors")).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let want: Vec<u8> = (0..rows * 5).flat_map(|at| (at as f32).to_le_bytes()).collect();
    assert!(theirs.tensor("items").unwrap().data() == want && theirs.len() == 4);
    assert_eq!(theirs.tensor("keyed.keys").unwrap().dtype(), safetensors::Dtype::I64);

    // Back again, into another store, keys and all.
    let second = fixture.drive("b.drive", "64M");
    let keys = ["--keys", "keyed=keyed.keys"];
    fixture.ok(&[&["load", "-d", &second, "all.safetensors", "--all"][..], &keys].concat());
    let looked = |drive: &str, table: &str, ids: &str| {
        fixture.ok(&["lookup", "-d", drive, "--table", table, &format!("--ids={ids}")])["rows"].clone()
    };
    for (table, ids) in [("items", "0,499,77"), ("keyed", "-77,1099511627699,42880953483187"), ("small", "8,0")] {
        assert_eq!(looked(&drive, table, ids), looked(&second, table, ids), "{table}");
    }
    let same = ["verify", "-d", &second, "--against", "all.safetensors"];
    assert_eq!(fixture.ok(&[&same[..], &keys].concat())["differing"], 0);

    // What is there stays, and nothing comes of what fails.
    fixture.fails(&["export", "-d", &drive, "--all", "--out", "all.safetensors"], 4);
    fixture.ok(&["export", "-d", &drive, "--all", "--out", "all.safetensors", "--force"]);
    assert!(fs::read(fixture.path("all.safetensors")).unwrap() == bytes);
    fixture.fails(&["export", "-d", &drive, "--all", "--out", "all.npy"], 2);
    fixture.fails(&["export", "-d", &drive, "--all", "--table", "items", "--out", "x.safetensors"], 2);
    fixture.fails(&["export", "-d", &drive, "--out", "x.safetensors"], 2);
    let empty = fixture.drive("empty.drive", "64M");
    fixture.fails(&["export", "-d", &empty, "--all", "--out", "x.safetensors"], 3);
    let (_, _, at) = place(std::slice::from_ref(&drive), "items", 250);
    flip(&fixture, &drive, at);
    let before = fs::read_dir(fixture.dir()).unwrap().count();
    let error = fixture.fails(&["export", "-d", &drive, "--all", "--out", "x.safetensors"], 6);
    assert_eq!((&error["subject"], &error["rank"]), (&json!("items"), &json!(250)), "{error}");
    assert_eq!(fs::read_dir(fixture.dir()).unwrap().count(), before);
}

#[test]
fn a_kill_leaves_nothing_or_all_of_it() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "96M");
    for name in ["a", "b", "c"] {
        let file = fixture.npy(&format!("{name}.npy"), 100_000, 32, |r, c| (r * 32 + c) as f32);
        fixture.ok(&["load", "-d", &drive, &file, "--row-crc"]);
    }
    fs::create_dir(fixture.path("out")).unwrap();
    let unnamed = warprow_formats::NewFile::create(&fixture.path("out/x")).unwrap().is_unnamed();
    let mut cut = 0;
    for milliseconds in [0, 3, 10, 30, 100] {
        let args = ["export", "-d", &drive, "--all", "--out", "out/all.safetensors", "--force"];
        let mut child = fixture.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        let _ = child.kill();
        cut += usize::from(!child.wait().unwrap().success());
        let there: Vec<_> =
            fs::read_dir(fixture.path("out")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        let whole = fixture.path("out/all.safetensors").exists();
        assert!(!unnamed || there.len() == usize::from(whole), "after {milliseconds} ms: {there:?}");
        if whole {
            assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", "out/all.safetensors"])["differing"], 0);
            fs::remove_file(fixture.path("out/all.safetensors")).unwrap();
        }
    }
    assert!(cut > 0, "the first is killed before it has begun");
}

/// The one name that a safetensors file keeps for itself.
#[test]
fn a_table_called_metadata_is_not_written_to_safetensors() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "16M");
    let file = fixture.npy("__metadata__.npy", 4, 4, |r, _| r as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    fixture.fails(&["export", "-d", &drive, "--all", "--out", "x.safetensors"], 2);
    fixture.fails(&["export", "-d", &drive, "--table", "__metadata__", "--out", "x.safetensors"], 2);
    assert!(!fixture.path("x.safetensors").exists());
    fixture.ok(&["export", "-d", &drive, "--table", "__metadata__", "--out", "x.npy"]);
}
