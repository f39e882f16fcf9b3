//! `warprow convert`, and traces that other commands take of what it writes.

use std::fs;

use serde_json::json;

use crate::fixture::CliFixture;

/// Raw: a label, two dense features, an id of the first slot and two of the second, 300 times.
fn raw() -> Vec<u8> {
    let sample = |at: u32| {
        let floats = [(at % 2) as f32, at as f32 / 3.0, -0.5].map(f32::to_bits);
        [floats[0], floats[1], floats[2], at * at % 500, at % 7, at * 31 % 500]
    };
    (0..300).flat_map(sample).flat_map(u32::to_le_bytes).collect()
}

const SOURCE: &str = "raw:t.bin:labels=1,dense=2,hotness=1/2,features=user/item";

#[test]
fn a_data_set_goes_through_all_formats_and_comes_back() {
    let fixture = CliFixture::new();
    fs::write(fixture.path("t.bin"), raw()).unwrap();
    let value = fixture.ok(&["convert", SOURCE, "t.parquet"]);
    assert_eq!((&value["samples"], &value["from"], &value["to"]), (&json!(300), &json!("raw"), &json!("parquet")));
    assert_eq!(value["features"], json!([{ "name": "user", "hotness": 1 }, { "name": "item", "hotness": 2 }]));
    assert_eq!((&value["labels"], &value["dense"]), (&json!(["label"]), &json!(["dense0", "dense1"])));
    let steps = [
        ("t.parquet", "t.csv", "csv"),
        ("t.csv", "t.npz", "npz"),
        ("t.npz", "t.norm", "norm"),
        ("norm:t.norm:rows=500/500", "back.bin", "raw"),
    ];
    for (from, to, format) in steps {
        let value = fixture.ok(&["convert", from, to, "--to", format]);
        assert_eq!((&value["samples"], &value["to"]), (&json!(300), &json!(format)), "{from}");
    }
    assert!(fs::read(fixture.path("back.bin")).unwrap() == raw());
    let text = fs::read_to_string(fixture.path("t.csv")).unwrap();
    assert!(text.starts_with("label,dense0,dense1,user,item\n0,0,-0.5,0,0|0\n1,0.33333334,-0.5,1,1|31\n"), "{text}");
    let run = fixture.run(&["convert", "t.csv", "u.parquet"]);
    assert!(run.stdout.contains("Wrote 300 samples") && run.stdout.contains("sparse feature"), "{run:?}");
}

#[test]
fn what_cannot_be_converted_is_said() {
    let fixture = CliFixture::new();
    fs::write(fixture.path("t.bin"), raw()).unwrap();
    fs::write(fixture.path("odd.csv"), "label,user\n1,5\n0,6|7\n").unwrap();
    fs::write(fixture.path("bad.csv"), "label,user\n1,5\n0,x\n").unwrap();
    fs::write(fixture.path("list.txt"), "1\nodd.csv\n").unwrap();
    for (args, exit, words) in [
        (&["convert", SOURCE, "out.bin"][..], 2, "its name does not tell the format"),
        (&["convert", "raw:t.bin:colour=red", "t.csv"], 2, "settings are"),
        (&["convert", SOURCE, "t.bin", "--to", "raw", "--force"], 2, "is the file of DATA as well"),
        (&["convert", "csv:list.txt", "odd.csv", "--force"], 2, "is the file of DATA as well"),
        (&["convert", "absent.csv", "t.parquet"], 3, "No such file"),
        (&["convert", "bad.csv", "t.parquet"], 3, "in sample 1: line 3: column user: \"x\" is no integer"),
        (&["convert", "odd.csv", "t.raw", "--to", "raw"], 2, "how many ids each sample has of feature \"user\""),
        (
            &["convert", "raw:t.bin:labels=1,dense=2,hotness=3,rows=400", "t.csv"],
            3,
            "which it is said that it has 400 rows",
        ),
        (&["convert", "raw:t.bin:labels=1,slots=6", "t.csv"], 3, "not a whole number of samples"),
        (&["convert", SOURCE, "odd.csv"], 4, "exists already"),
    ] {
        let error = fixture.fails(args, exit);
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(words), "{args:?}: {message}");
        assert!(!error["remedy"].as_str().unwrap().is_empty(), "{args:?}");
    }
    let mut left: Vec<_> = fs::read_dir(fixture.dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["bad.csv", "list.txt", "odd.csv", "t.bin"]);
}

#[test]
fn the_demo_looks_up_what_data_sets_have() {
    let fixture = CliFixture::new();
    let table = fixture.npy("user.npy", 500, 6, |r, c| (r * 6 + c) as f32);
    fs::write(fixture.path("t.bin"), raw()).unwrap();
    for to in ["t.npz", "t.parquet", "t.norm"] {
        fixture.ok(&["convert", SOURCE, to, "--to", to.split_once('.').unwrap().1]);
    }
    let wanted =
        fixture.ok(&["demo", "--table", &table, "--trace", "t.npz", "--batches", "5", "--batch", "64", "--no-rivals"]);
    assert_eq!((&wanted["verified"], &wanted["missing"]), (&json!(true), &json!(0)));
    let raw = "raw:t.bin:labels=1,dense=2,hotness=1/2,slot=0";
    for trace in ["t.parquet", "norm:t.norm:slot=0", raw] {
        let args = ["demo", "--table", &table, "--trace", trace, "--batches", "5", "--batch", "64", "--no-rivals"];
        let value = fixture.ok(&args);
        // Ids are looked up in one order from every format.
        for member in ["verified", "missing", "rows", "batches"] {
            assert_eq!(value[member], wanted[member], "{trace}: {member}");
        }
    }
    let args = ["demo", "--table", &table, "--trace", "norm:t.norm"];
    assert_eq!(fixture.fails(&args, 2)["class"], "usage");
}
