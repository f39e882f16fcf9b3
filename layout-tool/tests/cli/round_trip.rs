//! Tables go in and come out as they were.

use std::fs;

use crate::fixture::CliFixture;
use serde_json::{Value, json};

fn names(tables: &Value) -> Vec<&str> {
    tables.as_array().unwrap().iter().map(|table| table["name"].as_str().unwrap()).collect()
}

#[test]
fn a_table_is_loaded_looked_up_checked_and_exported() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let value = |r, c| (r * 10 + c) as f32 / 8.0;
    let file = fixture.npy("items.npy", 1000, 5, value);
    let counts = fixture.path("counts.csv");
    fs::write(
        &counts,
        std::iter::once("n".to_owned()).chain((0..1000).map(|i| (i % 7).to_string())).collect::<Vec<_>>().join("\n"),
    )
    .unwrap();

    let dry = fixture.ok(&["load", "-d", &drive, &file, "--dry-run"]);
    assert_eq!((&dry["dry_run"], &dry["rows"]), (&json!(true), &json!(1000)));
    let blank = fixture.ok(&["inspect", "-d", &drive]);
    assert_eq!(blank["store"]["generations"], json!([]), "a dry run loads nothing");

    let hotness = format!("items={}", counts.display());
    let loaded = fixture.ok(&["load", "-d", &drive, &file, "--hotness", &hotness, "--row-crc", "--default", "id:3"]);
    assert_eq!(loaded["tables"][0]["order"], "hotness");
    assert_eq!(loaded["bytes"], 20_000);

    let seen = fixture.ok(&["inspect", "-d", &drive]);
    let table = &seen["store"]["generations"][0]["tables"][0];
    assert_eq!(
        (&table["name"], &table["rows"], &table["dim"], &table["row_crc"]),
        (&json!("items"), &json!(1000), &json!(5), &json!(true))
    );
    assert_eq!((&seen["state"], &seen["missing"]), (&json!("healthy"), &json!([])));

    let looked_up = fixture.ok(&["lookup", "-d", &drive, "--table", "items", "--ids", "0,999,-1,1000,999"]);
    let row = |r: u64| json!((0..5).map(|c| f64::from(value(r, c))).collect::<Vec<_>>());
    assert_eq!(looked_up["rows"], json!([row(0), row(999), row(3), row(3), row(999)]));
    assert_eq!(looked_up["found"], json!([true, true, false, false, true]));
    assert_eq!((&looked_up["missing"], &looked_up["unique"]), (&json!(2), &json!(2)));

    let twice = fixture.ok(&["verify", "-d", &drive, "--table", "items", "--table", "items"]);
    assert_eq!(twice["tables"].as_array().unwrap().len(), 1);
    let verified = fixture.ok(&["verify", "-d", &drive]);
    assert_eq!((&verified["contents_checked"], &verified["differing"]), (&json!(true), &json!(0)));
    let against = fixture.ok(&["verify", "-d", &drive, "--against", &file]);
    assert_eq!(against["tables"][0]["rows"], 1000);

    for out in ["out.npy", "out.safetensors"] {
        fixture.ok(&["export", "-d", &drive, "--table", "items", "--out", out]);
        assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", out])["differing"], 0, "{out}");
    }
    // What was exported in the order of the ids is, but for the padding of the header, what was loaded.
    let data = |name: &str| fs::read(fixture.path(name)).unwrap()[128..].to_vec();
    assert_eq!(data("out.npy"), data("items.npy"));
}

#[test]
fn not_a_number_is_data() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    // A signalling NaN with a payload, infinities, a negative zero, a subnormal.
    let odd = [0x7f80_dead, 0x7f80_0000, 0xff80_0000, 0x8000_0000, 0x0000_0001];
    let file = fixture.npy("odd.npy", 300, 5, |r, c| f32::from_bits(odd[((r + c) % 5) as usize]));
    fixture.ok(&["load", "-d", &drive, &file]);
    assert_eq!(fixture.ok(&["verify", "-d", &drive, "--against", &file])["differing"], 0);
    let looked_up = fixture.ok(&["lookup", "-d", &drive, "--table", "odd", "--ids", "0"]);
    let row = looked_up["rows"][0].as_array().unwrap();
    assert_eq!(row[..4], [json!("NaN"), json!("Infinity"), json!("-Infinity"), json!(-0.0)]);
    assert_eq!(row[4].as_f64().unwrap() as f32, f32::from_bits(1));
    let out = fixture.ok(&["lookup", "-d", &drive, "--table", "odd", "--ids", "0,1,2", "--out", "rows.npy"]);
    assert!(out.get("rows").is_none());
    let rows = fs::read(fixture.path("rows.npy")).unwrap();
    let table = fs::read(&file).unwrap();
    assert_eq!(rows[rows.len() - 60..], table[128..188], "bit for bit");
}

#[test]
fn bags_are_pooled() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 10, 2, |r, c| (r + 100 * c) as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    fs::write(fixture.path("o.i64"), [0i64, 2, 2].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    let pooled = |how: &str, more: &[&str]| {
        let mut args =
            vec!["lookup", "-d", &drive, "--table", "t", "--ids", "1,3,5,-7", "--pooling", how, "--offsets", "o.i64"];
        args.extend(more);
        fixture.ok(&args)["rows"].clone()
    };
    assert_eq!(pooled("sum", &[]), json!([[4.0, 204.0], [0.0, 0.0], [5.0, 105.0]]));
    assert_eq!(pooled("mean", &[]), json!([[2.0, 102.0], [0.0, 0.0], [2.5, 52.5]]));
    assert_eq!(pooled("mean", &["--missing", "skip"]), json!([[2.0, 102.0], [0.0, 0.0], [5.0, 105.0]]));
    assert_eq!(pooled("sum", &["--padding", "5"]), json!([[4.0, 204.0], [0.0, 0.0], [0.0, 0.0]]));

    fs::write(fixture.path("all.i64"), [0i64, 4].iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    let all = ["lookup", "-d", &drive, "--table", "t", "--ids", "1,3,5,-7", "--pooling", "sum", "--offsets", "all.i64"];
    assert_eq!(fixture.ok(&all)["rows"], json!([[9.0, 309.0], [0.0, 0.0]]));
    assert_eq!(fixture.ok(&[&all[..], &["--include-last-offset"]].concat())["rows"], json!([[9.0, 309.0]]));
    fs::write(fixture.path("none.i64"), "").unwrap();
    let none = ["lookup", "-d", &drive, "--table", "t", "--ids-file", "none.i64"];
    assert_eq!(fixture.ok(&none)["rows"], json!([]));
    assert_eq!(fixture.ok(&[&none[..], &["--pooling", "sum", "--offsets", "none.i64"]].concat())["rows"], json!([]));

    use npyz::WriterBuilder;
    let mut bytes = Vec::new();
    let mut writer = npyz::WriteOptions::new().default_dtype().shape(&[4]).writer(&mut bytes).begin_nd().unwrap();
    writer.extend([2f32, 0.5, -1.0, 9.0]).unwrap();
    writer.finish().unwrap();
    fs::write(fixture.path("w.npy"), bytes).unwrap();
    assert_eq!(pooled("sum", &["--weights", "w.npy"]), json!([[3.5, 253.5], [0.0, 0.0], [-5.0, -105.0]]));
}

#[test]
fn tensors_are_chosen_renamed_and_replaced() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let path = fixture.path("m.safetensors");
    let data: Vec<u8> = (0..6 * 4 * 4).collect();
    let view = |rows, offset| {
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![rows, 4], &data[offset..offset + rows * 16])
            .unwrap()
    };
    let bias = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![4], &data[..16]).unwrap();
    let tensors = [("emb.user", view(2, 0)), ("emb.item", view(3, 32)), ("bias", bias), ("mlp", view(1, 80))];
    fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    let file = path.to_str().unwrap();

    let error = fixture.fails(&["load", "-d", &drive, file], 3);
    assert_eq!(error["tables"].as_array().unwrap().len(), 3);
    assert!(error["remedy"].as_str().unwrap().contains(error["example"].as_str().unwrap()));
    let loaded = fixture.ok(&["load", "-d", &drive, file, "--tensor", "emb.*", "--strip-prefix", "emb."]);
    assert_eq!(names(&loaded["tables"]), ["item", "user"]);
    assert_eq!(loaded["skipped"][0]["reason"], "rank 1");
    let error = fixture.fails(&["load", "-d", &drive, file, "--tensor", "user=emb.item"], 4);
    assert_eq!(error["subject"], "user");
    let replace = ["load", "-d", &drive, file, "--tensor", "user=emb.item", "--replace", "--model", "second"];
    let dry = fixture.ok(&[&replace[..], &["--dry-run"]].concat());
    let old = json!([{"name": "user", "rows": 2, "dim": 4, "dtype": "f32", "generation": loaded["generation"]}]);
    assert_eq!((&dry["replaced"], &dry["replaced_generations"]), (&old, &json!([])), "item stays");
    assert_eq!(fixture.ok(&replace)["replaced"], old);
    let row = fixture.ok(&["lookup", "-d", &drive, "--table", "user", "--ids", "2"]);
    let want: Vec<f64> = data[64..80].as_chunks().0.iter().map(|&v| f64::from(f32::from_le_bytes(v))).collect();
    let got: Vec<f64> = row["rows"][0].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    assert!(got.iter().zip(&want).all(|(got, want)| *got as f32 == *want as f32), "{got:?} {want:?}");
    fixture.ok(&["load", "-d", &drive, file, "--all", "--replace"]);
}

#[test]
fn a_store_of_several_drives_is_opened_in_any_order() {
    let fixture = CliFixture::new();
    let drives: Vec<String> =
        (0..3).map(|i| format!("emulated:{}", fixture.path(&format!("{i}.drive")).display())).collect();
    let sized: Vec<String> = drives.iter().map(|drive| format!("{drive},size=32M,lba=4096")).collect();
    fixture.ok(&["format", "-d", &sized[0], "-d", &sized[1], "-d", &sized[2]]);
    let file = fixture.npy("t.npy", 20_000, 32, |r, c| (r * 32 + c) as f32);
    fixture.ok(&["load", "-d", &drives.join(","), &file]);
    let environment = format!("{},{},{}", drives[2], drives[0], drives[1]);
    let run =
        fixture.command(&["verify", "--against", &file, "--json"]).env("WARPROW_DRIVES", environment).output().unwrap();
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stdout));
}

#[test]
fn people_get_tables_and_programs_one_object() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 100, 3, |r, _| r as f32);
    let run = fixture.run(&["load", "-d", &drive, &file]);
    assert!(run.stdout.contains("Loaded 1 table, 100 rows"), "{run:?}");
    assert!(run.stdout.contains("identity: hot tier = first ids"), "{run:?}");
    assert_eq!(run.stderr, "", "no progress where there is no terminal");
    let run = fixture.run(&["verify", "-d", &drive]);
    assert!(run.stdout.contains("row contents NOT checked"), "{run:?}");
    let run = fixture.run(&["lookup", "-d", &drive, "--table", "t", "--ids", "7"]);
    assert!(run.stdout.contains("7  7  7"), "{run:?}");
    for args in [&["--help"][..], &["load", "--help"], &["demo", "-h"], &["--version"]] {
        let run = fixture.run(args);
        assert_eq!((run.exit, run.stderr.as_str()), (0, ""), "{args:?}");
        assert!(run.stdout.contains("warprow"), "{args:?}: {run:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    use std::io::Read;
    use std::process::Stdio;
    let fixture = CliFixture::new();
    let mut child = fixture.command(&["lookup", "--help"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0; 1]).unwrap();
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(0));

    let drive = fixture.drive("a.drive", "64M");
    let file = fixture.npy("t.npy", 20_000, 8, |r, _| r as f32);
    fixture.ok(&["load", "-d", &drive, &file]);
    let ids: Vec<String> = (0..20_000).map(|id| id.to_string()).collect();
    fs::write(fixture.path("ids.csv"), format!("id\n{}", ids.join("\n"))).unwrap();
    let args = ["lookup", "-d", &drive, "--table", "t", "--ids-file", "ids.csv", "--json"];
    let mut child = fixture.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
}
