//! One click log for many tables: columns that are called as tables are, in `load --hotness`, `plan --trace` and `lookup --trace`.

use std::fs;

use serde_json::{Value, json};
use warprow_layout::DType;

use crate::fixture::CliFixture;

/// Rows of the tables of [`model`].
const ROWS: u64 = 2000;

/// A safetensors file of tables of [`ROWS`] rows of 8 numbers.
fn model(fixture: &CliFixture, name: &str, tables: &[&str]) -> String {
    let data: Vec<u8> = (0..ROWS * 8).flat_map(|at| (at as f32).to_le_bytes()).collect();
    let view =
        |_| safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![ROWS as usize, 8], &data).unwrap();
    let views = tables.iter().map(|&table| (table, view(())));
    fs::write(fixture.path(name), safetensors::serialize(views, None).unwrap()).unwrap();
    assert_eq!(DType::F32.row_bytes(8), Some(32));
    name.to_owned()
}

/// Where the cube of a number below one comes to lie, so that few ids take most of the look-ups; which ids these are is another thing for
/// each seed.
fn id(seed: u64, at: u64) -> u64 {
    let x =
        ((seed << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995).wrapping_mul(0xd134_2543_de82_ef95) >> 40;
    let rank = (((x * x) >> 24) * x) >> 24;
    ((rank * ROWS) >> 24).wrapping_mul(607 + 2 * seed) % ROWS
}

/// A click log of `lines` lines: a time that is no integer, users, a label, items, and a column of no table.
fn clicks(fixture: &CliFixture, name: &str, first: u64, lines: u64) -> String {
    let line = |at: u64| format!("2026-01-01T00:{at},{},1,{},{}\n", id(1, at), id(2, at), at % 7);
    let text: String = (first..first + lines).map(line).collect();
    fs::write(fixture.path(name), format!("time,user_id,click,item_id,page\n{text}")).unwrap();
    name.to_owned()
}

const NAMES: [&str; 3] = ["embeddings.user_id.weight", "item_id_embedding.weight", "other.weight"];

#[test]
fn a_click_log_is_the_hotness_of_all_tables_that_its_columns_are_called_like() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let model = model(&fixture, "m.safetensors", &NAMES);
    let log = clicks(&fixture, "clicks.csv", 0, 4000);
    let hotness = format!("trace:{log}");
    let loaded = fixture.ok(&["load", "-d", &drive, &model, "--all", "--hotness", &hotness]);
    let of =
        |name: &str| loaded["tables"].as_array().unwrap().iter().find(|value| value["name"] == name).unwrap().clone();
    for (table, column) in [(NAMES[0], json!("user_id")), (NAMES[1], json!("item_id"))] {
        let it = of(table);
        assert_eq!((&it["order"], &it["column"], &it["trace_ids"]), (&json!("hotness"), &column, &json!(4000)), "{it}");
    }
    assert_eq!((&of(NAMES[2])["order"], &of(NAMES[2])["column"]), (&json!("identity"), &Value::Null));
    let trace = json!({
        "trace": "clicks.csv",
        "columns": [
            {"column": "user_id", "table": NAMES[0], "by": "stripped"},
            {"column": "item_id", "table": NAMES[1], "by": "stripped"},
        ],
        "unused": ["time", "click", "page"],
    });
    assert_eq!(loaded["traces"], json!([trace]));
    // By content: the order is that of the columns, each of its own table.
    let store = warprow_store::Store::open(
        &[warprow_store::Device::open(&drive.parse().unwrap(), warprow_store::CreateDrive::Never).unwrap()],
        &warprow_store::OpenOptions::default().with_read_only(),
    )
    .unwrap();
    for (table, seed) in [(NAMES[0], 1), (NAMES[1], 2)] {
        let mut counts = vec![0u64; ROWS as usize];
        (0..4000).for_each(|at| counts[id(seed, at) as usize] += 1);
        assert_eq!(store.ranks(table).unwrap(), Some(warprow_layout::Ranks::by_hotness(&counts)), "{table}");
    }
    drop(store);
    let text = fixture.run(&["load", "-d", &drive, &model, "--all", "--replace", "--hotness", &hotness]).stdout;
    assert!(text.contains("by --hotness, user_id") && text.contains("not used: time, click, page"), "{text}");

    // A pattern leaves tables out; a column that is named, others.
    let some = format!("*user*=trace:{log}");
    let loaded =
        fixture.ok(&["load", "-d", &drive, &model, "--all", "--replace", "--forget-order", "--hotness", &some]);
    let orders: Vec<&str> =
        loaded["tables"].as_array().unwrap().iter().map(|value| value["order"].as_str().unwrap()).collect();
    assert_eq!(orders.iter().filter(|order| **order == "hotness").count(), 1, "{loaded}");
    let named = format!("{}=trace:{log}:page", NAMES[2]);
    let both = ["--hotness", &hotness, "--hotness", &named];
    let loaded = fixture.ok(&[&["load", "-d", &drive, &model, "--all", "--replace"][..], &both].concat());
    assert!(loaded["tables"].as_array().unwrap().iter().all(|value| value["order"] == "hotness"), "{loaded}");
}

#[test]
fn what_could_be_either_is_refused_with_the_candidates() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let log = clicks(&fixture, "clicks.csv", 0, 400);
    let twice = model(&fixture, "twice.safetensors", &["a.user_id.weight", "b.user_id.weight", "item_id"]);
    let hotness = format!("trace:{log}");
    let error = fixture.fails(&["load", "-d", &drive, &twice, "--all", "--hotness", &hotness], 2);
    assert_eq!(error["candidates"], json!(["a.user_id.weight", "b.user_id.weight"]), "{error}");
    assert!(error["message"].as_str().unwrap().contains("\"user_id\" is called like several tables"), "{error}");
    assert!(error["remedy"].as_str().unwrap().contains("--hotness TABLE="), "{error}");
    // Each pattern has one of them.
    let [a, b] = ["a.*", "b.*"].map(|pattern| format!("{pattern}=trace:{log}"));
    fixture.ok(&["load", "-d", &drive, &twice, "--all", "--hotness", &a, "--hotness", &b]);
    for (command, option) in [("plan", "--trace"), ("lookup", "--trace")] {
        let error = fixture.fails(&[command, "-d", &drive, option, &log], 2);
        assert_eq!(error["candidates"], json!(["a.user_id.weight", "b.user_id.weight"]), "{error}");
    }
    fs::write(fixture.path("two.csv"), "id,a.id,x\n1,1,1\n").unwrap();
    let one = model(&fixture, "one.safetensors", &["net.a.id.weight", "x"]);
    let error = fixture.fails(&["load", "-d", &drive, &one, "--all", "--hotness", "trace:two.csv"], 2);
    assert_eq!(error["candidates"], json!(["id", "a.id"]), "{error}");
    let none = model(&fixture, "none.safetensors", &["x1", "x2"]);
    let error = fixture.fails(&["load", "-d", &drive, &none, "--all", "--hotness", &hotness], 2);
    let said = error["message"].as_str().unwrap();
    assert!(
        said.contains("none is called like a table") && said.contains("user_id") && said.contains("x1, x2"),
        "{said}"
    );
}

#[test]
fn the_hit_rates_of_several_tables_are_as_planned() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let model = model(&fixture, "m.safetensors", &NAMES);
    let seen = clicks(&fixture, "seen.csv", 0, 30_000);
    let unseen = clicks(&fixture, "unseen.csv", 50_000, 10_000);
    fixture.ok(&["load", "-d", &drive, &model, "--all", "--row-crc"]);
    let planning = ["plan", "-d", &drive, "--trace", &seen, "--dram", "20K", "--batch", "256", "--typical-host"];
    let planned = fixture.ok(&[&planning[..], &["--out", "p"]].concat());
    assert_eq!(planned["traces"][0]["columns"].as_array().unwrap().len(), 2, "{planned}");
    let expected = &planned["plan"]["expected"];
    let hit = expected["dram"].as_f64().unwrap();
    let error = expected["error"].as_f64().unwrap();
    assert!((0.2..0.9).contains(&hit) && error < 0.1, "{expected}");
    // The table that has no column stays as it is.
    let two = ["--tensor", NAMES[0], "--tensor", NAMES[1], "--replace", "--row-crc", "--plan", "p"];
    fixture.ok(&[&["load", "-d", &drive, &model][..], &two].concat());

    for log in [&unseen, &seen] {
        let looked = fixture.ok(&["lookup", "-d", &drive, "--trace", log, "--dram", "20K", "--batch", "256"]);
        let lines = if log == "seen.csv" { 30_000 } else { 10_000 };
        let rate = |of: &Value| of["hit_rate"].as_f64().unwrap();
        assert_eq!((&looked["queries"], &looked["ids"]), (&json!(lines), &json!(2 * lines)), "{looked}");
        assert!(
            (rate(&looked) - hit).abs() < error + 0.02,
            "{log}: {} looked up, {hit} ± {error} planned",
            rate(&looked)
        );
        let tables = looked["tables"].as_array().unwrap();
        let hits: f64 = tables.iter().map(|table| table["ids_dram"].as_f64().unwrap()).sum();
        assert!((hits / (2 * lines) as f64 - rate(&looked)).abs() < 1e-9);
        for (table, seed, column) in [(NAMES[0], 1, "user_id"), (NAMES[1], 2, "item_id")] {
            let found = tables.iter().find(|value| value["table"] == table).unwrap();
            assert_eq!((&found["columns"], &found["ids"]), (&json!([column]), &json!(lines)));
            // The rows in memory are the hottest of the log that was planned by: counted by hand.
            let rows = found["rows_in_dram"].as_u64().unwrap();
            let mut counts = vec![0u64; ROWS as usize];
            (0..30_000).for_each(|at| counts[id(seed, at) as usize] += 1);
            let ranks = warprow_layout::Ranks::by_hotness(&counts);
            let first = if log == "seen.csv" { 0 } else { 50_000 };
            let hot = (first..first + lines).filter(|&at| ranks.get(id(seed, at)).unwrap() < rows).count();
            assert_eq!(found["ids_dram"], json!(hot), "{table} of {log}, {rows} rows in memory");
        }
    }
    let by_plan = fixture.ok(&["lookup", "-d", &drive, "--trace", &unseen, "--plan", "p"]);
    assert_eq!((&by_plan["dram_bytes"], &by_plan["planned"]["hit_rate"]), (&json!(20 << 10), &expected["dram"]));
    let text = fixture.run(&planning).stdout;
    let said =
        |line: &str| ["user_id", NAMES[0]].iter().all(|part| line.split_whitespace().any(|other| other == *part));
    assert!(text.lines().any(said) && text.contains("seen.csv: not used: time, click, page"), "{text}");
    let text = fixture.run(&["lookup", "-d", &drive, "--trace", &unseen, "--plan", "p"]).stdout;
    assert!(text.contains("planned: ") && text.contains("user_id") && text.contains("from DRAM"), "{text}");
    let none = fixture.ok(&["lookup", "-d", &drive, "--trace", &unseen, "--table", "*user*"]);
    assert_eq!((&none["hit_rate"], &none["ids_ssd"]), (&json!(0.0), &json!(10_000)));
    assert_eq!(none["tables"].as_array().unwrap().len(), 1);
    // A cache needs no counts: it keeps what was read, and the hit rate counts what it answers.
    let cached = fixture.ok(&["lookup", "-d", &drive, "--trace", &unseen, "--cache", "64K", "--batch", "256"]);
    let number = |name: &str| cached[name].as_u64().unwrap();
    assert_eq!(number("ids"), number("ids_cached") + number("ids_ssd") + number("missing"), "{cached}");
    let rate = number("ids_cached") as f64 / (number("ids_cached") + number("ids_ssd")) as f64;
    assert!(rate > 0.2 && (rate - cached["hit_rate"].as_f64().unwrap()).abs() < 1e-9, "{cached}");
    let (hits, misses) = (cached["cache"]["hits"].as_u64().unwrap(), cached["cache"]["misses"].as_u64().unwrap());
    assert_eq!((hits, misses), (number("rows_cached"), number("rows_ssd")));
    let text = fixture.run(&["lookup", "-d", &drive, "--trace", &unseen, "--cache", "64K"]).stdout;
    assert!(text.contains("cache: ") && text.contains("evicted"), "{text}");
    // A single table has its share as well.
    let one = fixture.ok(&["lookup", "-d", &drive, "--table", NAMES[0], "--ids", "0,1,5000", "--dram", "64M"]);
    assert_eq!((&one["hit_rate"], &one["ids_dram"], &one["missing"]), (&json!(1.0), &json!(2), &json!(1)));

    for (args, exit, named) in [
        (&["--table", "other.weight", "--trace", &unseen][..], 2, "none is called \"other.weight\""),
        (&["--table", "other.weight", "--table", "*user*", "--trace", &unseen], 2, "no column of the trace"),
        (&["--table", "absent", "--trace", &unseen], 3, "absent"),
        (&["--trace", &unseen, "--trace", &seen], 2, "a second trace"),
        (&["--trace", "gone.csv"], 3, "gone.csv"),
        (&["--trace", &unseen, "--ids", "1"], 2, ""),
        (&["--trace", &unseen, "--out", "x.npy"], 2, ""),
        (&["--table", NAMES[0], "--table", NAMES[1], "--ids", "1"], 2, "2 tables"),
        (&["--table", NAMES[0], "--ids", "1", "--batch", "7"], 2, ""),
    ] {
        let error = fixture.fails(&[&["lookup", "-d", &drive][..], args].concat(), exit);
        let said = format!("{} {}", error["subject"].as_str().unwrap(), error["message"].as_str().unwrap());
        assert!(said.contains(named), "{args:?} does not say {named:?}: {error}");
    }
}

#[test]
fn slots_without_names_are_called_by_their_numbers() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let model = model(&fixture, "m.safetensors", &["emb_l.0.weight", "emb_l.1.weight"]);
    let words: Vec<u8> =
        (0..3000).flat_map(|at| [1, 0, id(1, at) as u32, id(2, at) as u32]).flat_map(u32::to_le_bytes).collect();
    fs::write(fixture.path("t.bin"), words).unwrap();
    fs::write(fixture.path("seven.u32"), [3u8, 0, 0, 0].repeat(3000)).unwrap();
    let raw = "raw:t.bin:labels=1,dense=1,slots=2";
    let loaded = fixture.ok(&["load", "-d", &drive, &model, "--all", "--hotness", raw]);
    let columns: Vec<&str> =
        loaded["tables"].as_array().unwrap().iter().map(|value| value["column"].as_str().unwrap()).collect();
    assert_eq!(columns, ["0", "1"], "{loaded}");
    let looked = fixture.ok(&["lookup", "-d", &drive, "--trace", raw, "--dram", "12800"]);
    assert!(looked["hit_rate"].as_f64().unwrap() > 0.3, "{looked}");
    let planned = fixture.ok(&["plan", "-d", &drive, "--trace", raw, "--batch", "64", "--typical-host"]);
    assert_eq!(planned["traces"][0]["columns"][1], json!({"column": "1", "table": "emb_l.1.weight", "by": "stripped"}));
    // Of a slot that no table has nothing is counted, nor looked up.
    let one = "emb_l.1.weight=2000x8:f32";
    let planned =
        fixture.ok(&["plan", "--table", one, "--table", "x.7.weight=5x8:f32", "--trace", raw, "--typical-host"]
            .iter()
            .chain(&["--trace", "x.7.weight=seven.u32"])
            .copied()
            .collect::<Vec<_>>());
    assert_eq!(
        (&planned["plan"]["tables"][0]["name"], &planned["traces"][0]["unused"]),
        (&json!("emb_l.1.weight"), &json!(["0"]))
    );
    let mut counts = vec![0u64; ROWS as usize];
    (0..3000).for_each(|at| counts[id(2, at) as usize] += 1);
    let seen = counts.iter().filter(|&&count| count > 0).count();
    assert_eq!(planned["plan"]["tables"][0]["seen_rows"], json!(seen), "the ids of slot 1, and not of slot 0");
}

#[test]
fn more_tables_than_are_looked_up_in_one_reading_and_tables_in_a_file() {
    let fixture = CliFixture::new();
    let names: Vec<String> = (0..40).map(|number| format!("e.C{number}.weight")).collect();
    let model = model(&fixture, "m.safetensors", &names.iter().map(|name| &**name).collect::<Vec<_>>());
    let header: Vec<String> = (0..40).map(|number| format!("C{number}")).collect();
    let line = |at: u64| (0..40).map(|seed| id(seed, at).to_string()).collect::<Vec<_>>().join(",") + "\n";
    fs::write(fixture.path("log.csv"), header.join(",") + "\n" + &(0..500).map(line).collect::<String>()).unwrap();
    let looked = fixture.ok(&["lookup", "-d", &format!("attached:{model}"), "--trace", "log.csv", "--dram", "1280000"]);
    let tables = looked["tables"].as_array().unwrap();
    assert_eq!((tables.len(), &looked["ids"], &looked["queries"]), (40, &json!(20_000), &json!(500)), "{looked}");
    for (number, name) in (0..).zip(&names) {
        let found = tables.iter().find(|value| value["table"] == **name).unwrap();
        // Attached tables are in the order of their ids.
        let rows = found["rows_in_dram"].as_u64().unwrap();
        let hot = (0..500).filter(|&at| id(number, at) < rows).count();
        assert_eq!((&found["ids"], &found["ids_dram"], rows), (&json!(500), &json!(hot), 1000), "{name}");
    }
}
