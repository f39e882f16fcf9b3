//! Tables in every format: loaded, converted, attached, exported.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use warprow_formats::TableFile;
use warprow_lookup::HostExecutor;
use warprow_lookup::{Batch, Feature, HostOptions, Output, OutputRows, PlanOptions, Pooling};
use warprow_store::{CreateDrive, Device, OpenOptions, Store};

use crate::fixture::CliFixture;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../formats/tests/golden");

/// All rows of the only table of a file, or of the one of that name.
fn rows_of(path: &Path, name: &str) -> Vec<u8> {
    let file = TableFile::open(path).unwrap();
    let table = file.tables.iter().find(|table| table.name == name || file.tables.len() == 1).unwrap();
    let mut rows = vec![0; table.rows as usize * table.row_bytes()];
    file.rows(table).fill(0, &mut rows).unwrap();
    rows
}

#[test]
fn what_others_wrote_goes_in_and_comes_out() {
    let expected: Value = serde_json::from_slice(&fs::read(format!("{GOLDEN}/expected.json")).unwrap()).unwrap();
    for drives in 1..=3 {
        let fixture = CliFixture::new();
        let names: Vec<String> = (0..drives)
            .map(|number| format!("emulated:{}", fixture.path(&format!("{number}.drive")).display()))
            .collect();
        let sized: Vec<String> =
            names.iter().enumerate().map(|(i, it)| format!("{it},size={}M", 24 + 13 * i)).collect();
        fixture.ok(&["format", "-d", &sized.join(","), "--yes"]);
        let drive = names.join(",");
        for (file, tables) in expected.as_object().unwrap() {
            let path = format!("{GOLDEN}/{file}");
            let loaded = fixture.ok(&["load", "-d", &drive, &path, "--all", "--replace", "--row-crc"]);
            assert_eq!(loaded["tables"].as_array().unwrap().len(), tables.as_object().unwrap().len(), "{file}");
            for (name, table) in tables.as_object().unwrap() {
                for out in ["out.npy", "out.safetensors"] {
                    fixture.ok(&["export", "-d", &drive, "--table", name, "--out", out, "--force"]);
                    let row_bytes =
                        table["data"].as_str().unwrap().len() / 2 / table["rows"].as_u64().unwrap() as usize;
                    let got = rows_of(&fixture.path(out), name);
                    let rows: Vec<String> = got
                        .chunks(row_bytes)
                        .map(|row| row.iter().map(|byte| format!("{byte:02x}")).collect())
                        .collect();
                    let data = table["data"].as_str().unwrap().as_bytes();
                    for (row, want) in data.chunks(row_bytes * 2).enumerate() {
                        let id = table["keys"].get(row).map_or(row, |key| key.as_u64().unwrap() as usize);
                        assert_eq!(rows[id].as_bytes(), want, "{file} {name} row {row}");
                    }
                }
                let compared =
                    fixture.ok(&["verify", "-d", &drive, "--table", name, "--against", &path, "--tensor", name]);
                assert_eq!(compared["differing"], 0, "{file} {name}");
            }
        }
    }
}

#[test]
fn keyed_tables_are_put_in_the_order_of_their_keys() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let rows = 3000u64;
    let key = |row: u64| (row * 7 + 5) % rows;
    let keys: Vec<u8> = (0..rows).flat_map(|row| key(row).to_le_bytes()).collect();
    let vectors: Vec<u8> = (0..rows).flat_map(|row| [key(row) as f32, 0.5]).flat_map(f32::to_le_bytes).collect();
    let counts: Vec<String> = (0..rows).map(|id| (id * 13 % 101).to_string()).collect();
    fs::write(fixture.path("counts.csv"), format!("n\n{}", counts.join("\n"))).unwrap();
    fs::create_dir(fixture.path("m")).unwrap();
    fs::write(fixture.path("m/key"), &keys).unwrap();
    fs::write(fixture.path("m/emb_vector"), &vectors).unwrap();
    for more in [&[][..], &["--hotness", "counts.csv", "--row-crc"]] {
        let args = [&["load", "-d", &drive, "m", "--replace", "--default", "id:7"][..], more].concat();
        let loaded = fixture.ok(&args);
        assert_eq!((&loaded["tables"][0]["format"], &loaded["tables"][0]["keys"]), (&json!("hugectr"), &json!(true)));
        let found = fixture.ok(&["lookup", "-d", &drive, "--table", "m", "--ids", "0,17,2999,-1"]);
        assert_eq!(found["rows"], json!([[0.0, 0.5], [17.0, 0.5], [2999.0, 0.5], [7.0, 0.5]]));
        assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", "m"])["differing"], 0);
    }
    let refused = fixture.fails(&["inspect", "-d", "attached:m"], 3);
    assert!(refused["message"].as_str().unwrap().contains("another order"), "{refused}");

    let mut sparse = keys.clone();
    sparse[..8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    fs::write(fixture.path("m/key"), &sparse).unwrap();
    let refused = fixture.fails(&["load", "-d", &drive, "m", "--replace", "--key-index", "never"], 3);
    assert!(refused["message"].as_str().unwrap().contains("row 0 has the key 1099511627776"), "{refused}");
    let double: Vec<u8> = [&keys[8..16], &keys[8..]].concat();
    fs::write(fixture.path("m/key"), double).unwrap();
    let refused = fixture.fails(&["load", "-d", &drive, "m", "--replace"], 3);
    assert!(refused["message"].as_str().unwrap().contains("the key 12 twice, in rows 0 and 1"), "{refused}");
    assert_eq!(
        fixture.ok(&["lookup", "-d", &drive, "--table", "m", "--ids", "17"])["rows"],
        json!([[17.0, 0.5]]),
        "still there"
    );
}

#[test]
fn raw_rows_are_compared_by_their_shape() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let rows: Vec<u8> = (0..1000u32 * 4).flat_map(|at| (at as f32).to_le_bytes()).collect();
    fs::write(fixture.path("r.bin"), &rows).unwrap();
    fixture.ok(&["load", "-d", &drive, "r.bin", "--shape", "4:f32"]);
    let verify = ["verify", "-d", &drive, "--against", "r.bin", "--shape"];
    assert_eq!(fixture.ok(&[&verify[..], &["4:f32"]].concat())["tables"][0]["differing"], 0);
    fs::write(fixture.path("r.bin"), [&rows[..8000], &[1], &rows[8001..]].concat()).unwrap();
    let (found, exit) = fixture.json(&[&verify[..], &["4:f32"]].concat());
    assert_eq!((exit, &found["tables"][0]["differing"]), (5, &json!(1)), "{found}");
    // What says how a file is to be read has a file.
    fixture.fails(&["verify", "-d", &drive, "--shape", "4:f32"], 2);
}

#[test]
fn rows_are_converted_and_the_error_is_told() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let value = |r: u64, c: u64| ((r * 31 + c * 7) % 1000) as f32 / 333.0 - 1.5;
    let file = fixture.npy("t.npy", 500, 16, value);
    for (to, most) in
        [("f32", 0.0), ("f16", 1e-3), ("bf16", 6e-3), ("f8e4m3", 0.07), ("f8e5m2", 0.13), ("q8", 0.007), ("q4", 0.12)]
    {
        let loaded = fixture.ok(&["load", "-d", &drive, &file, "--replace", "--row-crc", "--to", to]);
        let told = loaded["converted"][0]["max_abs"].as_f64();
        assert_eq!(loaded["tables"][0]["dtype"], to);
        let found = fixture.ok(&["lookup", "-d", &drive, "--table", "t", "--ids", "0,1,499"]);
        let mut worst = 0f64;
        for (row, id) in [0u64, 1, 499].into_iter().enumerate() {
            for c in 0..16 {
                let got = f64::from(found["rows"][row][c as usize].as_f64().unwrap() as f32);
                worst = worst.max((got - f64::from(value(id, c))).abs());
            }
        }
        assert!(worst <= most, "{to}: {worst}");
        assert_eq!(told.is_none(), to == "f32", "{loaded}");
        assert!(told.is_none_or(|told| told >= worst * 0.999_999 && told <= most), "{to}: {told:?}, {worst}");
        let pooled = fixture.ok(&["lookup", "-d", &drive, "--table", "t", "--ids", "0,0", "--pooling", "sum"]);
        let one = found["rows"][0][3].as_f64().unwrap();
        let two = pooled["rows"][0][3].as_f64().unwrap();
        assert!((two - 2.0 * one).abs() < 1e-6, "{to}");
        fixture.ok(&["export", "-d", &drive, "--table", "t", "--out", "out.safetensors", "--force"]);
        let out = TableFile::open(&fixture.path("out.safetensors")).unwrap();
        let kept = if to.starts_with('q') { "f32" } else { to };
        assert_eq!(out.tables[0].dtype.name(), kept);
        assert_eq!(fixture.ok(&["verify", "-d", &drive])["differing"], 0);
    }
    let refused = fixture.fails(&["load", "-d", &drive, &file, "--to", "i8"], 2);
    assert!(refused["message"].as_str().unwrap().contains("f8e4m3"), "{refused}");
    let large = fixture.npy("large.npy", 4, 2, |r, _| 10f32.powi(4 + r as i32));
    let loaded = fixture.ok(&["load", "-d", &drive, &large, "--to", "f16"]);
    assert_eq!(loaded["converted"][0]["overflowed"], 6, "100 000 and more");
    let odd = fixture.npy("odd.npy", 4, 3, |_, _| 1.0);
    fixture.fails(&["load", "-d", &drive, &odd, "--to", "q4"], 3);
    let nan = fixture.npy("nan.npy", 4, 2, |r, _| if r == 2 { f32::NAN } else { 1.0 });
    let refused = fixture.fails(&["load", "-d", &drive, &nan, "--to", "q8"], 3);
    assert!(refused["message"].as_str().unwrap().contains("row 2"), "{refused}");
    assert_eq!(fixture.fails(&["lookup", "-d", &drive, "--table", "nan", "--ids", "0"], 3)["class"], "input");
}

#[test]
fn a_target_too_small_is_said_before_keys_are_read() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "8M");
    fs::create_dir(fixture.path("m")).unwrap();
    // Keys that would be refused, had they been read.
    fs::write(fixture.path("m/key"), vec![7; 8 * 40_000]).unwrap();
    fs::write(fixture.path("m/emb_vector"), vec![0; 40_000 * 1024]).unwrap();
    let before = fs::read(fixture.path("a.drive")).unwrap();
    let refused = fixture.fails(&["load", "-d", &drive, "m"], 8);
    assert_eq!(refused["class"], "resources", "{refused}");
    assert!(fs::read(fixture.path("a.drive")).unwrap() == before, "nothing was written");
}

#[test]
fn files_are_attached_where_they_are() {
    let fixture = CliFixture::new();
    // 160 bytes a row, which fits no block.
    let rows = 700u64;
    let data: Vec<u8> = (0..rows * 160).map(|at| ((at * 2_654_435_761) >> 13) as u8).collect();
    let other: Vec<u8> = (0..40).collect();
    let header = format!(
        r#"{{"ngram":{{"dtype":"F8_E4M3","shape":[{rows},160],"data_offsets":[0,{0}]}},"b":{{"dtype":"U8","shape":[20,2],"data_offsets":[{0},{1}]}}}}"#,
        data.len(),
        data.len() + 40
    );
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data, &other].concat();
    fs::write(fixture.path("m.safetensors"), &bytes).unwrap();
    let drive = "attached:m.safetensors";
    let seen = fixture.ok(&["inspect", "-d", drive]);
    assert_eq!(seen["store"]["generations"][0]["tables"].as_array().unwrap().len(), 2);
    assert_eq!(fixture.ok(&["verify", "-d", drive, "--against", "m.safetensors"])["differing"], 0);
    fixture.ok(&["export", "-d", drive, "--table", "ngram", "--out", "out.safetensors"]);
    assert_eq!(rows_of(&fixture.path("out.safetensors"), "ngram"), data);
    fixture.ok(&["lookup", "-d", drive, "--table", "ngram", "--ids", "699,0,-1", "--out", "rows.safetensors"]);
    let want = [&data[699 * 160..], &data[..160], &[0; 160]].concat();
    assert_eq!(rows_of(&fixture.path("rows.safetensors"), ""), want);
    // One type, whether rows are printed or written; and the table's name.
    let written = fixture.ok(&["lookup", "-d", drive, "--table", "ngram", "--ids", "699", "--out", "f8.safetensors"]);
    let printed = fixture.ok(&["lookup", "-d", drive, "--table", "ngram", "--ids", "699"]);
    assert_eq!((&written["dtype"], &printed["dtype"]), (&json!("f8e4m3"), &json!("f8e4m3")));
    let bytes_of = fs::read(fixture.path("f8.safetensors")).unwrap();
    let theirs = safetensors::SafeTensors::deserialize(&bytes_of).unwrap();
    assert_eq!(theirs.names(), ["ngram"]);
    assert_eq!(theirs.tensor("ngram").unwrap().dtype(), safetensors::Dtype::F8_E4M3);
    let pooled = fixture.ok(&["lookup", "-d", drive, "--table", "ngram", "--ids", "699", "--pooling", "sum"]);
    assert_eq!((&pooled["dtype"], &pooled["rows"]), (&json!("f32"), &printed["rows"]), "a sum is of f32");
    let one = fixture.ok(&["lookup", "-d", "attached:m.safetensors,tensor=b", "--table", "b", "--ids", "19"]);
    assert_eq!(one["rows"], json!([[38.0, 39.0]]));

    // However the file is read.
    let tensors = "attached:m.safetensors,tensor=ngram,depth=3,tensor=b";
    assert_eq!(
        fixture.ok(&["inspect", "-d", tensors])["store"]["generations"][0]["tables"].as_array().unwrap().len(),
        2
    );
    for properties in ["depth=1", "direct=0", "direct=1", "direct=1,depth=2"] {
        let drive = format!("attached:m.safetensors,{properties}");
        let ids = ["--ids", "699,0,-1", "--out", "again.safetensors", "--force"];
        let (said, exit) = fixture.json(&[&["lookup", "-d", &drive, "--table", "ngram"][..], &ids].concat());
        if exit != 0 && said.to_string().contains("past the page cache") {
            eprintln!("skipped: {said}");
            continue;
        }
        assert_eq!(exit, 0, "{properties}: {said}");
        assert_eq!(rows_of(&fixture.path("again.safetensors"), ""), want, "{properties}");
    }
    for (properties, accepted) in
        [("direct=2", "0 or 1"), ("direct=", "0 or 1"), ("depth=0", "1 to 1024"), ("depth=x", "1 to 1024")]
    {
        let refused = fixture.fails(&["inspect", "-d", &format!("attached:m.safetensors,{properties}")], 2);
        assert!(refused.to_string().contains(accepted), "{properties}: {refused}");
    }

    // Properties in another form, twice, or of other drives.
    for (address, says) in [
        ("m.safetensors?depth=4", "attached:m.safetensors,depth=4"),
        ("m.safetensors?depth=4&direct=1", "attached:m.safetensors,depth=4,direct=1"),
        ("m.safetensors?tensor=b,depth=4", "attached:m.safetensors,tensor=b"),
        ("m.safetensors?lba=512", "no property \"lba\"; it has tensor, direct, depth"),
        ("m.safetensors,lba=512", "no property \"lba\"; it has tensor, direct, depth"),
        ("m.safetensors,size=1G,depth=4", "no property \"size\"; it has tensor, direct, depth"),
        ("m.safetensors,depth=4,lba=512", "no property \"lba\"; it has tensor, direct, depth"),
        ("m.safetensors,tensor=b,lba=512", "no property \"lba\"; it has tensor, direct, depth"),
        ("m.safetensors,depth=1,depth=2", "depth is given twice"),
        ("m.safetensors,direct=0,tensor=b,direct=0", "direct is given twice"),
    ] {
        let refused = fixture.fails(&["inspect", "-d", &format!("attached:{address}")], 2);
        assert!(refused["message"].as_str().unwrap().contains(says), "{address}: {refused}");
        assert!(refused["remedy"].as_str().unwrap().contains(",name=value"), "{address}: {refused}");
    }
    for (address, says) in [
        ("emulated:x,depth=1,depth=2", "depth is given twice"),
        ("vfio-user:x?namespace=1&namespace=2", "namespace is given twice"),
        ("vfio-user:x,namespace=1,namespace=1", "namespace is given twice"),
        ("vfio-user:x,lba=512", "no property \"lba\"; it has namespace"),
        ("vfio-user:x?size=1G", "no property \"size\"; it has namespace"),
    ] {
        let refused = fixture.fails(&["inspect", "-d", address], 2);
        assert!(refused["message"].as_str().unwrap().contains(says), "{address}: {refused}");
    }
    // Files that are called so are meant as they stand.
    for name in ["m?depth=4", "m,lba=512", "what?"] {
        fs::copy(fixture.path("m.safetensors"), fixture.path(name)).unwrap();
        for properties in ["", ",tensor=b,depth=2"] {
            let drive = format!("attached:{name}{properties}");
            assert_eq!(
                fixture.ok(&["lookup", "-d", &drive, "--table", "b", "--ids", "19"])["rows"],
                json!([[38.0, 39.0]]),
                "{drive}"
            );
        }
    }

    assert_eq!(fixture.fails(&["load", "-d", drive, "m.safetensors", "--all"], 4)["class"], "refused");
    fixture.fails(&["lookup", "-d", drive, "-d", "emulated:x", "--table", "b", "--ids", "1"], 2);
    fixture.fails(&["inspect", "-d", "attached:"], 2);
    fixture.fails(&["inspect", "-d", "attached:absent"], 3);
    let pages = concat!("attached:", env!("CARGO_MANIFEST_DIR"), "/../formats/tests/golden/plain2.parquet");
    let error = fixture.fails(&["inspect", "-d", pages], 3);
    assert!(error["message"].as_str().unwrap().contains("pages of a Parquet file"), "{error}");
    assert_eq!(fs::read(fixture.path("m.safetensors")).unwrap(), bytes);
}

/// What a file holds besides its tables is named, and no room is claimed beside them.
#[test]
fn what_is_not_attached_is_said() {
    let fixture = CliFixture::new();
    let header = concat!(
        r#"{"emb.a":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},"bias":{"dtype":"F32","shape":[2],"data_offsets":[24,32]},"#,
        r#""emb.b":{"dtype":"U8","shape":[4,2],"data_offsets":[32,40]},"step":{"dtype":"I64","shape":[1,1],"data_offsets":[40,48]}}"#
    );
    let data: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).chain(0..24).collect();
    fs::write(fixture.path("m.safetensors"), [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat())
        .unwrap();
    let seen = fixture.ok(&["inspect", "-d", "attached:m.safetensors", "--svg", "m.svg"]);
    let skipped = seen["skipped"].as_array().unwrap();
    let names: Vec<_> = skipped.iter().map(|skipped| skipped["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["bias", "step"], "{seen}");
    assert!(skipped[0]["reason"].as_str().unwrap().contains("rank 1"), "{seen}");
    assert!(!skipped[1]["reason"].as_str().unwrap().is_empty(), "{seen}");
    assert_eq!((&seen["free_bytes"], &seen["store"]["members"][0]["free_chunks"]), (&json!(0), &json!(0)), "{seen}");
    let text = fixture.run(&["inspect", "-d", "attached:m.safetensors"]).stdout;
    assert!(text.contains("Not attached:") && text.contains("bias") && text.contains("rank 1"), "{text}");
    assert!(text.contains("emb.a") && !text.contains("free"), "{text}");
    // By name, under another, and in the words of what is wrong.
    let one = ["lookup", "-d", "attached:m.safetensors,tensor=it=*.b", "--table", "it", "--ids", "3"];
    assert_eq!(fixture.ok(&one)["rows"], json!([[14.0, 15.0]]));
    for (tensors, says) in [
        (",tensor=bias", "rank 1"),
        (",tensor=no*", "there are: emb.a, emb.b"),
        (",tensor=x=emb.*", "2 tensors of m.safetensors match"),
        (",tensor=x=emb.a,tensor=x=emb.b", "would be called"),
    ] {
        let error = fixture.fails(&["inspect", "-d", &format!("attached:m.safetensors{tensors}")], 3);
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
        assert!(!error["remedy"].as_str().unwrap().is_empty() && error["subject"] == "m.safetensors", "{error}");
    }
    // It is a drive of no other command's.
    for command in ["format", "devices"] {
        let drive: &[&str] = if command == "format" { &["-d"] } else { &[] };
        let error = fixture.fails(&[&[command], drive, &["attached:m.safetensors"]].concat(), 2);
        assert!(error["message"].as_str().unwrap().contains(if command == "format" {
            "never written"
        } else {
            "no device"
        }));
    }
}

/// One tensor that no table can be made of does not keep the others from being attached.
#[test]
fn tensors_that_cannot_be_attached_are_skipped_by_name() {
    let fixture = CliFixture::new();
    // A row of 160 kB, a name of no letter, and one that is too long.
    let wide = 40_000u64;
    let long = "n".repeat(300);
    let header = format!(
        r#"{{"good":{{"dtype":"U8","shape":[3,2],"data_offsets":[0,6]}},"wide":{{"dtype":"F32","shape":[1,{wide}],"data_offsets":[6,{0}]}},"":{{"dtype":"U8","shape":[2,2],"data_offsets":[{0},{1}]}},"{long}":{{"dtype":"U8","shape":[1,2],"data_offsets":[{1},{2}]}}}}"#,
        6 + wide * 4,
        6 + wide * 4 + 4,
        6 + wide * 4 + 6,
    );
    let data: Vec<u8> = (0..6).chain(std::iter::repeat_n(7, wide as usize * 4)).chain(20..26).collect();
    let file = |header: &str, data: &[u8]| [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat();
    fs::write(fixture.path("m.safetensors"), file(&header, &data)).unwrap();
    let rows = |drive: &str, table: &str, ids: &str| {
        fixture.ok(&["lookup", "-d", drive, "--table", table, "--ids", ids])["rows"].clone()
    };
    assert_eq!(rows("attached:m.safetensors", "good", "2,0"), json!([[4.0, 5.0], [0.0, 1.0]]));
    let seen = fixture.ok(&["inspect", "-d", "attached:m.safetensors"]);
    let skipped: Vec<(&str, &str)> = seen["skipped"]
        .as_array()
        .unwrap()
        .iter()
        .map(|value| (value["name"].as_str().unwrap(), value["reason"].as_str().unwrap()))
        .collect();
    assert_eq!(skipped.len(), 3, "{seen}");
    let reason =
        |name: &str| skipped.iter().find(|pair| pair.0 == name).unwrap_or_else(|| panic!("{name:?}: {seen}")).1;
    assert!(reason("wide").contains("131072 bytes"), "{seen}");
    assert!(reason("").contains("0 bytes") && reason("").contains("tensor=NAME=GLOB"), "{seen}");
    assert!(reason(&long).contains("300 bytes") && reason(&long).contains("tensor=NAME=GLOB"), "{seen}");
    let text = fixture.run(&["inspect", "-d", "attached:m.safetensors"]).stdout;
    assert!(text.contains("Not attached:") && text.contains("wide") && text.contains("131072 bytes"), "{text}");
    // Under names that tables can have.
    assert_eq!(rows("attached:m.safetensors,tensor=x=,tensor=long=nn*", "x", "1"), json!([[22.0, 23.0]]));
    assert_eq!(rows("attached:m.safetensors,tensor=x=,tensor=long=nn*", "long", "0"), json!([[24.0, 25.0]]));
    // Asked for, they are errors.
    for (tensor, says) in [("wide", "131072 bytes"), ("nn*", "300 bytes"), ("good,tensor=wide", "131072 bytes")] {
        let error = fixture.fails(&["inspect", "-d", &format!("attached:m.safetensors,tensor={tensor}")], 3);
        assert!(error["message"].as_str().unwrap().contains(says), "{error}");
        assert_eq!(error["subject"], "m.safetensors", "{error}");
        let remedy = error["remedy"].as_str().unwrap();
        assert!(remedy.contains("tensor=") && !remedy.contains("--tensor"), "{error}");
    }
    // So is a file of nothing else.
    let header = format!(r#"{{"wide":{{"dtype":"F32","shape":[1,{wide}],"data_offsets":[0,{}]}}}}"#, wide * 4);
    fs::write(fixture.path("w.safetensors"), file(&header, &data[6..6 + wide as usize * 4])).unwrap();
    let error = fixture.fails(&["inspect", "-d", "attached:w.safetensors"], 3);
    assert!(error["message"].as_str().unwrap().contains("\"wide\": a row takes more than the 131072 bytes"), "{error}");
    assert!(!error["remedy"].as_str().unwrap().contains("--tensor"), "{error}");
}

#[test]
fn a_load_notes_how_far_it_is() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 3000, 64, |r, c| (r * 64 + c) as f32);
    let args = ["load", "-d", &drive, &file, "--replace", "--resume", "journal"];
    let loaded = fixture.ok(&args);
    assert_eq!((&loaded["bytes_resumed"], fixture.path("journal").exists()), (&json!(0), false));
    assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", &file])["differing"], 0);
    fs::write(fixture.path("journal"), [0; 100]).unwrap();
    let loaded = fixture.run(&args);
    assert!(loaded.exit == 0 && loaded.stdout.contains("journal noted nothing of this load"), "{loaded:?}");
    fs::write(fixture.path("journal"), "precious").unwrap();
    assert_eq!(fixture.fails(&args, 3)["class"], "input");
    assert_eq!(fs::read(fixture.path("journal")).unwrap(), b"precious");
}

#[test]
fn raw_rows_take_a_shape() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    fs::write(fixture.path("rows.bin"), (0..48u8).collect::<Vec<_>>()).unwrap();
    fixture.ok(&["load", "-d", &drive, "rows.bin", "--shape", "5x8:u8@8"]);
    let found = fixture.ok(&["lookup", "-d", &drive, "--table", "rows", "--ids", "4"]);
    assert_eq!(found["rows"], json!([[40.0, 41.0, 42.0, 43.0, 44.0, 45.0, 46.0, 47.0]]));
    fixture.fails(&["load", "-d", &drive, "rows.bin", "--shape", "5x8:u8"], 3);
    fixture.fails(&["load", "-d", &drive, "rows.bin", "--format", "raw"], 2);
    assert_eq!(fixture.fails(&["load", "-d", &drive, "rows.bin", "--format", "npy"], 3)["class"], "input");
    fixture.fails(&["load", "-d", &drive, "rows.bin", "--format", "arrow"], 2);
}

/// The model's tables in the order in which its first layer wants them.
const FIELDS: [&str; 24] = [
    "hour",
    "C1",
    "banner_pos",
    "site_id",
    "site_domain",
    "site_category",
    "app_id",
    "app_domain",
    "app_category",
    "device_id",
    "device_ip",
    "device_model",
    "device_type",
    "device_conn_type",
    "C14",
    "C15",
    "C16",
    "C17",
    "C18",
    "C19",
    "C20",
    "C21",
    "mday",
    "wday",
];

/// A trained model's dense half, and its click probability.
struct DeepFm(Vec<(Vec<f32>, Vec<f32>, usize)>, f32);

impl DeepFm {
    /// `vectors` are 24 of 40 numbers, `first` those of the first order.
    fn probability(&self, vectors: &[f32], first: &[f32]) -> f64 {
        let pairs: f64 = (0..40)
            .map(|c| {
                let column = || (0..24).map(|field| f64::from(vectors[field * 40 + c]));
                let sum = column().sum::<f64>();
                let squares = column().map(|v| v * v).sum::<f64>();
                (sum * sum - squares) / 2.0
            })
            .sum();
        let linear = first.iter().map(|&v| f64::from(v)).sum::<f64>() + f64::from(self.1);
        let mut layer: Vec<f64> = vectors.iter().map(|&v| f64::from(v)).collect();
        for (number, (weights, bias, width)) in self.0.iter().enumerate() {
            let next = weights.chunks(*width).zip(bias).map(|(row, bias)| {
                let sum: f64 = row.iter().zip(&layer).map(|(&w, v)| f64::from(w) * v).sum();
                let value = sum + f64::from(*bias);
                if number + 1 < self.0.len() { value.max(0.0) } else { value }
            });
            layer = next.collect();
        }
        1.0 / (1.0 + (-(linear + pairs + layer[0])).exp())
    }
}

#[test]
fn a_real_model_answers_as_its_file_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/deepfm-avazu/deepfm_avazu.safetensors");
    let Ok(bytes) = fs::read(&path) else {
        println!("skipped: there is no {}", path.display());
        return;
    };
    let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let numbers = |name: &str| -> Vec<f32> {
        theirs.tensor(name).unwrap().data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
    };
    let layer = |index: usize| {
        let weights = format!("mlp.mlp.{index}.weight");
        (numbers(&weights), numbers(&format!("mlp.mlp.{index}.bias")), theirs.tensor(&weights).unwrap().shape()[1])
    };
    let model = DeepFm([0, 2, 4, 6].map(layer).into(), numbers("fm.lr_layer.bias")[0]);
    let vector = |field: &str| format!("embedding_layer.embedding_layer.embedding_layers.{field}.weight");
    let first = |field: &str| format!("fm.lr_layer.embedding_layer.embedding_layer.embedding_layers.{field}.weight");

    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = path.to_str().unwrap();
    fixture.ok(&["load", "-d", &drive, file, "--tensor", "*embedding_layers.*", "--row-crc"]);
    let attached = format!("attached:{file},tensor=*embedding_layers.*");
    assert_eq!(fixture.ok(&["verify", "-d", &attached, "--against", file])["differing"], 0);

    let device = Device::open(&drive.parse().unwrap(), CreateDrive::Never).unwrap();
    let store = Store::open(&[device], &OpenOptions::default().with_read_only()).unwrap();
    let host = HostExecutor::attach(&store, HostOptions::default().with_checked_rows()).unwrap();
    let names: Vec<String> =
        FIELDS.iter().map(|text| vector(text)).chain(FIELDS.iter().map(|text| first(text))).collect();
    let features: Vec<Feature> = names.iter().map(|name| Feature::new(name, name).pooling(Pooling::Sum)).collect();
    const SAMPLES: usize = 50;
    let plan = host.plan(&features, PlanOptions::default().with_max(SAMPLES, SAMPLES * 48)).unwrap();
    assert_eq!(plan.width(), 24 * 41);
    // Every id of the tables comes up: sample s has id s · 13 modulo the rows.
    let rows = |name: &str| theirs.tensor(name).unwrap().shape()[0];
    let id = |name: &str, sample: usize| sample * 13 % rows(name);
    let ids: Vec<i64> = names
        .iter()
        .flat_map(|name| (0..SAMPLES).map(move |sample| (name, sample)))
        .map(|(name, sample)| id(name, sample) as i64)
        .collect();
    let mut out = vec![0f32; SAMPLES * plan.width()];
    plan.slot()
        .unwrap()
        .lookup(&Batch::new(&ids[..], SAMPLES), &mut Output::new(OutputRows::F32(&mut out), plan.width()))
        .unwrap();
    let mut seen = Vec::new();
    for (sample, row) in out.chunks(plan.width()).enumerate() {
        let straight: Vec<f32> = names
            .iter()
            .flat_map(|name| {
                let width = theirs.tensor(name).unwrap().shape()[1];
                numbers(name)[id(name, sample) * width..][..width].to_vec()
            })
            .collect();
        let want = model.probability(&straight[..960], &straight[960..]);
        let got = model.probability(&row[..960], &row[960..]);
        assert_eq!(got.to_bits(), want.to_bits(), "sample {sample}: {got}, not {want}");
        assert!(want > 0.0 && want < 1.0);
        seen.push(want);
    }
    let spread = seen.iter().copied().fold(0.0, f64::max) - seen.iter().copied().fold(1.0, f64::min);
    assert!(spread > 0.01, "the samples differ: {seen:?}");
}
