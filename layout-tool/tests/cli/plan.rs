//! `plan`, and `load --plan`.

use std::fs;

use crate::fixture::CliFixture;

const ROWS: u64 = 5000;

/// A trace of 4 ids a query: squares make the low residues hot.
fn trace(fixture: &CliFixture, name: &str, queries: u64) -> String {
    let path = fixture.path(name);
    let id = |at: u64| {
        let x = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        (((x * x) >> 24) * ROWS) >> 24
    };
    let bytes: Vec<u8> = (0..queries * 4).flat_map(|at| (id(at) as u32).to_le_bytes()).collect();
    fs::write(&path, bytes).unwrap();
    format!("{}:ids=4", path.display())
}

#[test]
fn a_plan_is_made_and_applied() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let trace = trace(&fixture, "t.u32", 8000);
    let table = fixture.npy("items.npy", ROWS, 32, |r, c| (r * 100 + c) as f32);
    let shape = format!("items={ROWS}x32:f32");
    let plan = ["plan", "--table", &shape, "--trace", &trace, "--dram", "64K", "--batch", "256", "--typical-host"];
    let made =
        fixture.ok(&[&plan[..], &["--out", "p.safetensors", "--svg", "p.svg", "--on", "2*p5800x:1.6T"]].concat());
    let of_table = &made["plan"]["tables"][0];
    assert_eq!(
        (&of_table["name"], &of_table["dram_rows"], &of_table["count_error"]),
        (&"items".into(), &512.into(), &0.into())
    );
    let expected = &made["plan"]["expected"];
    // A tenth of the rows, of which the first tenth takes the root of a tenth of what is asked for.
    let hit = expected["dram"].as_f64().unwrap();
    assert!((hit - 0.32).abs() < 0.02, "{expected}");
    assert!(expected["ids_per_second"].as_f64().unwrap() > 0.0, "{expected}");
    // Where it will be, of as many queries as were held out and as the trace has, and for how many traces that holds.
    let intervals = expected["intervals"].as_array().unwrap();
    assert_eq!(intervals.len(), 2, "{expected}");
    for (interval, queries) in intervals.iter().zip(["held_out", "queries"]) {
        let of = |name: &str| interval[name].as_f64().unwrap();
        assert_eq!(interval["queries"], made["plan"]["trace"][queries]);
        assert!(of("low") < hit && hit < of("high") && of("coverage") == 0.9 && of("measured") > 0.85, "{interval}");
    }
    let text = fixture.run(&plan).stdout;
    assert!(text.contains(" for 90% of unseen traces (") && text.contains("% measured)"), "{text}");
    let curve = made["plan"]["curve"].as_array().unwrap();
    assert!(curve.windows(2).all(|pair| pair[0]["hit"].as_f64() <= pair[1]["hit"].as_f64()), "{curve:?}");
    assert_eq!((&curve[0]["hit"], &curve.last().unwrap()["hit"]), (&0.0.into(), &1.0.into()));
    // The plan's own budget is a point of the curve like any other: rates with other numbers of drives go with it.
    let own = curve.iter().position(|point| point["bytes"] == 64 << 10).unwrap();
    let near = |found: &serde_json::Value, wanted: f64| (found.as_f64().unwrap() / wanted - 1.0).abs() < 1e-9;
    assert!(near(&curve[own]["hit"], 1.0 - expected["ssd"].as_f64().unwrap()), "{curve:?}");
    assert!(near(&curve[own]["commands"], expected["commands"].as_f64().unwrap()), "{curve:?}");
    assert!(curve.windows(2).all(|pair| pair[0]["commands"].as_f64() >= pair[1]["commands"].as_f64()), "{curve:?}");
    let rates = |point: &serde_json::Value| -> Vec<f64> {
        point["rates"].as_array().unwrap().iter().map(|rate| rate["ids_per_second"].as_f64().unwrap()).collect()
    };
    assert!(near(&curve[own]["rates"][1]["ids_per_second"], expected["ids_per_second"].as_f64().unwrap()), "{curve:?}");
    for (at, &rate) in rates(&curve[own]).iter().enumerate() {
        let below = rates(&curve[own - 1])[at];
        let above = rates(&curve[own + 1])[at];
        assert!(below * 0.98 <= rate && rate <= above * 1.02, "{below}, {rate}, {above}");
    }
    let svg = fs::read_to_string(fixture.path("p.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.contains("8 drives"));
    // GPU memory to the hottest of them, DRAM to the next; both are told, and drawn.
    let on_gpu = fixture.ok(&[&plan[..], &["--hbm", "16K", "--svg", "g.svg"]].concat());
    let placed =
        ["hbm_rows", "hbm_bytes", "dram_rows", "dram_bytes"].map(|text| on_gpu["plan"]["tables"][0][text].as_u64());
    assert_eq!(placed, [128, 128 << 7, 512, 512 << 7].map(Some), "{on_gpu}");
    assert!(fs::read_to_string(fixture.path("g.svg")).unwrap().contains("128 (16 KiB), 512 (64 KiB), 4360 of 5000"));
    let text = fixture.run(&plan);
    assert!(text.exit == 0 && text.stdout.contains("64.0 KiB *"), "{text:?}");
    // More than all rows take.
    let ample: Vec<&str> = plan.iter().map(|plan| if *plan == "64K" { "64M" } else { plan }).collect();
    let text = fixture.run(&ample);
    assert!(text.exit == 0 && text.stdout.contains("625 KiB *"), "{text:?}");

    let loaded = fixture.ok(&["load", "-d", &drive, &table, "--plan", "p.safetensors"]);
    assert_eq!((&loaded["tables"][0]["hot_rows"], &loaded["tables"][0]["order"]), (&512.into(), &"plan".into()));
    let shown = fixture.ok(&["inspect", "-d", &drive]);
    assert!(shown.to_string().contains("\"hot_rows\":512"), "{shown}");
    let looked = fixture.ok(&["lookup", "-d", &drive, "--table", "items", "--ids", "0,4999,17"]);
    assert_eq!(looked["report"]["ids"].as_u64().or(looked["ids"].as_u64()), Some(3), "{looked}");
    fixture.ok(&["export", "-d", &drive, "--table", "items", "--out", "back.npy"]);
    let rows = |name: &str| {
        let bytes = fs::read(fixture.path(name)).unwrap();
        bytes[bytes.len() - ROWS as usize * 128..].to_vec()
    };
    assert!(rows("back.npy") == rows("items.npy"));
    // A store's own tables can be planned for.
    let again =
        fixture.ok(&["plan", "-d", &drive, "--trace", &trace, "--dram", "64K", "--batch", "256", "--typical-host"]);
    assert_eq!(again["plan"]["tables"], made["plan"]["tables"]);
}

#[test]
fn a_table_with_keys_is_planned_and_loaded() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    // Row i has the key of i; the rows divisible by 97 take half of what is looked up, and one key is of no row.
    let key = |row: u64| (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64) ^ -7;
    let table = fixture.npy("items.npy", ROWS, 32, |r, c| (r * 100 + c) as f32);
    let bytes = |keys: &mut dyn Iterator<Item = i64>| keys.flat_map(i64::to_le_bytes).collect::<Vec<u8>>();
    let mut keys = warprow_formats::npy::head_of_list("<i8", ROWS);
    keys.extend(bytes(&mut (0..ROWS).map(key)));
    fs::write(fixture.path("k.npy"), keys).unwrap();
    let row = |at: u64| {
        let x = at.wrapping_mul(0xd134_2543_de82_ef95) >> 33;
        if at.is_multiple_of(2) { x % (ROWS / 97) * 97 } else { x % (ROWS + 1) }
    };
    fs::write(fixture.path("t.i64"), bytes(&mut (0..40_000).map(|at| key(row(at))))).unwrap();
    let shape = format!("items={ROWS}x32:f32");
    let plan =
        ["plan", "--table", &shape, "--keyed", "items", "--trace", "t.i64:ids=4", "--batch", "256", "--typical-host"];
    // What an index takes is not there for rows.
    let made = fixture.ok(&[&plan[..], &["--dram", "18525", "--allow-missing", "--out", "p"]].concat());
    let of_table = &made["plan"]["tables"][0];
    let index = of_table["index_bytes"].as_u64().unwrap();
    assert_eq!(of_table["dram_rows"], (18525 - index) / 128, "{made}");
    assert_eq!(of_table["dram_rows"], 50);
    let hit = made["plan"]["expected"]["dram"].as_f64().unwrap();
    assert!((0.49..0.53).contains(&hit), "{made}");

    let load = ["load", "-d", &drive, &table, "--keys", "k.npy", "--key-index", "always", "--plan", "p"];
    let loaded = fixture.ok(&load);
    assert_eq!((&loaded["tables"][0]["hot_rows"], &loaded["tables"][0]["order"]), (&50.into(), &"plan".into()));
    let ids: Vec<String> = (0..ROWS).step_by(37).map(|row| key(row).to_string()).collect();
    let ids = format!("--ids={}", ids.join(","));
    let found = fixture.ok(&["lookup", "-d", &drive, "--table", "items", &ids, "--check-keys"]);
    for (at, row) in (0..ROWS).step_by(37).enumerate() {
        assert_eq!(found["rows"][at][3].as_f64(), Some((row * 100 + 3) as f64), "row {row}");
    }
    // The keys of the first ranks are the hottest.
    let device = format!("emulated:{}", fixture.path("a.drive").display()).parse().unwrap();
    let device = warprow_store::Device::open(&device, warprow_store::CreateDrive::Never).unwrap();
    let store = warprow_store::Store::open(&[device], &Default::default()).unwrap();
    let by_rank = store.keys("items").unwrap().unwrap();
    let hottest: Vec<u64> = (0..ROWS / 97).map(|nth| key(nth * 97) as u64).collect();
    assert!(by_rank[..50].iter().all(|key| hottest.contains(key)), "{:?}", &by_rank[..50]);
    drop(store);
    // The store's own table, with the index that it has; and plans that are not for its like.
    let again = fixture.ok(&[
        "plan",
        "-d",
        &drive,
        "--trace",
        "t.i64:ids=4",
        "--batch",
        "256",
        "--typical-host",
        "--dram",
        "64K",
        "--allow-missing",
    ]);
    assert!(again["plan"]["tables"][0]["index_bytes"].as_u64().unwrap() > 0, "{again}");
    let error = fixture.fails(&[&load[..4], &["--replace", "--plan", "p"]].concat(), 3);
    assert!(error["message"].as_str().unwrap().contains("looked up by keys"), "{error}");
    let few = ["plan", "--table", "items=100x32:f32", "--keyed", "items", "--trace", "t.i64:ids=4", "--typical-host"];
    let error = fixture.fails(&few, 3);
    assert!(error["message"].as_str().unwrap().contains("different keys, the table only 100 rows"), "{error}");
    for (args, exit, named) in [
        (&["--dram", "1000", "--allow-missing"][..], 3, "indices"),
        (&["--dram", "64K", "--keyed", "users"], 2, "users"),
    ] {
        let error = fixture.fails(&[&plan[..], args].concat(), exit);
        let said = format!("{} {}", error["subject"].as_str().unwrap(), error["message"].as_str().unwrap());
        assert!(said.contains(named), "{error}");
    }
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let fixture = CliFixture::new();
    let good = trace(&fixture, "t.u32", 100);
    let shape = format!("items={ROWS}x32:f32");
    fs::write(fixture.path("cut.u32"), [1, 2, 3]).unwrap();
    fs::write(fixture.path("empty.u32"), []).unwrap();
    fs::write(fixture.path("other.u64"), vec![0; 8 * 7]).unwrap();
    let of = |trace: &str, more: &[&str]| {
        let shape = shape.clone();
        let args: Vec<String> = ["plan", "--table", &shape, "--trace", trace, "--typical-host"]
            .iter()
            .chain(more)
            .map(|&text| text.to_owned())
            .collect();
        args
    };
    for (args, exit, named) in [
        (of(&good, &["--dram", "127"]), 3, "127 bytes does not hold the hottest row"),
        (of(&good, &["--hbm", "100"]), 3, "GPU memory of 100"),
        (of(&good, &["--on", "gen5-tlc:100000"]), 3, "bytes on drives"),
        (of(&good, &["--on", "49*gen5-tlc"]), 2, "1 to 48 drives"),
        (of(&good, &["--on", "floppy"]), 2, "profiles"),
        (of(&good, &["--held-out", "0.9"]), 2, "up to 0.5"),
        (of(&good, &["--lba", "1000"]), 2, "512 or 4096"),
        (of("cut.u32", &[]), 3, "cut.u32"),
        (of("empty.u32", &[]), 3, "holds no look-ups"),
        (of("other.u64", &[]), 3, "7 queries"),
        (of("absent.u32", &[]), 3, "absent.u32"),
        (of("a.u32:colour=red", &[]), 2, "colour"),
        (of(&good, &["--table", "users=5x4:f32"]), 2, "t"),
        (of(&format!("items={good}"), &["--table", "users=5x4:f32"]), 2, "users"),
        (of(&good, &["--trace", &good]), 2, "second trace"),
    ] {
        let error = fixture.fails(&args.iter().map(|arg| &**arg).collect::<Vec<_>>(), exit);
        let said = format!("{} {}", error["subject"].as_str().unwrap(), error["message"].as_str().unwrap());
        assert!(said.contains(named), "{args:?} does not say {named:?}: {error}");
        assert!(!error["remedy"].as_str().unwrap().is_empty(), "{args:?}: no remedy in {error}");
    }
    // Ids outside: refused, or counted as asked.
    let few = ["plan", "--table", "t=100x32:f32", "--trace", &good, "--typical-host", "--batch", "8"];
    let error = fixture.fails(&few, 3);
    assert!(error["message"].as_str().unwrap().contains("none of its 100 rows"), "{error}");
    // Ids past the rows are keys: that is proposed, for all tables at once, and works.
    assert!(error["remedy"].as_str().unwrap().contains("--keyed t;"), "{error}");
    assert!(!error["remedy"].as_str().unwrap().contains("missing"), "{error}");
    let both = ["--table", "u=9x4:f32", "--trace", &format!("u={good}")];
    let named = format!("t={good}");
    let error = fixture.fails(
        &[&["plan", "--table", "t=100x32:f32", "--typical-host", "--batch", "8", "--trace", &named], &both[..]]
            .concat(),
        3,
    );
    assert_eq!(error["sparse"], serde_json::json!(["t", "u"]), "{error}");
    assert!(error["remedy"].as_str().unwrap().contains("--keyed t --keyed u"), "{error}");
    let keyed = ["plan", "--table", &shape, "--keyed", "items", "--trace", &good, "--typical-host", "--batch", "8"];
    fixture.ok(&keyed);
    let below: Vec<u8> = (0..400i64).flat_map(|at| (if at == 7 { -1 } else { at % 90 }).to_le_bytes()).collect();
    fs::write(fixture.path("below.i64"), below).unwrap();
    let error = fixture.fails(&["plan", "--table", "t=100x32:f32", "--trace", "below.i64:ids=4", "--typical-host"], 3);
    assert!(error["remedy"].as_str().unwrap().contains("--allow-missing"), "{error}");
    let counted = fixture.ok(&[&few[..], &["--allow-missing"]].concat());
    assert!(counted["plan"]["trace"]["missing"].as_u64().unwrap() > 0);

    // Plans that are not for what is loaded, and none at all.
    let drive = fixture.drive("a.drive", "64M");
    let table = fixture.npy("items.npy", ROWS, 32, |r, c| (r + c) as f32);
    let wide = fixture.npy("wide.npy", ROWS, 64, |r, c| (r + c) as f32);
    fixture.ok(&[
        &["plan", "--table", &shape, "--trace", &good, "--typical-host", "--batch", "8", "--out", "p"][..],
        &[],
    ]
    .concat());
    let whole = fs::read(fixture.path("p")).unwrap();
    fs::write(fixture.path("half"), &whole[..whole.len() / 2]).unwrap();
    for (file, plan, named) in [
        (&table, "half", "damaged or cut off"),
        (&table, "absent", "cannot be read"),
        (&table, "items.npy", "no plan"),
        (&wide, "p", "no table \"wide\""),
    ] {
        let error = fixture.fails(&["load", "-d", &drive, file, "--plan", plan], 3);
        assert!(error["message"].as_str().unwrap().contains(named), "{plan}: {error}");
    }
    let error = fixture.fails(&["load", "-d", &drive, &wide, "--tensor", "items=wide", "--plan", "p"], 3);
    assert!(error["message"].as_str().unwrap().contains("5000 × 64 f32"), "{error}");
    assert!(!fixture.ok(&["inspect", "-d", &drive]).to_string().contains("items"));
    let exists = ["plan", "--table", &shape, "--trace", &good, "--typical-host", "--out", "p"];
    fixture.fails(&exists, 4);
}

/// Tokens of a text: a few phrases that come again and again, and others that do not.
fn text(tokens: u32) -> Vec<u8> {
    let token = |at: u32| if at % 40 < 30 { at % 40 } else { 100 + (at.wrapping_mul(2_654_435_761) >> 12) % 90_000 };
    (0..tokens).flat_map(|at| token(at).to_le_bytes()).collect()
}

#[test]
fn hot_rows_of_a_text_are_planned() {
    let fixture = CliFixture::new();
    fs::write(fixture.path("text.u32"), text(20_000)).unwrap();
    let plan = [
        "plan",
        "--table",
        "l1=384006168x256:mxfp8",
        "--trace",
        "tokens:text.u32:hash=engram-1",
        "--dram",
        "1M",
        "--batch",
        "500",
        "--memory",
        "512M",
        "--group",
        "off",
        "--typical-host",
    ];
    let made = fixture.ok(&[&plan[..], &["--rates", "256K,64M", "--out", "hot.safetensors"]].concat());
    assert_eq!(made["plan"]["trace"]["ids"], 20_000 * 24);
    let rates = &made["rates"];
    let share = |of: &serde_json::Value| of.as_f64().unwrap();
    // The held-out fifth has 4,000 tokens. Of 40 tokens 30 are of the phrase, and its first three reach back to others: 27 in 40 have all
    // of their n-grams in the phrase, one more each those of 2 and of 3 tokens.
    assert_eq!(rates["ids"], 4_000 * 24);
    let known = (27.0 + 1.0 / 3.0 + 2.0 / 3.0) / 40.0;
    assert!((share(&rates["known"]) - known).abs() < 0.01, "{rates}");
    // The phrase's rows are 28 · 24 of 264 B: they fit 256 KiB, and a cache of that size keeps most of them.
    let [small, large] = [0, 1].map(|at| &rates["rates"][at]);
    assert!((share(&small["dram"]) - known).abs() < 0.01 && (share(&large["dram"]) - known).abs() < 0.01, "{rates}");
    assert!(share(&large["cache"]) > known - 0.01, "{rates}");
    let text = fixture.run(&[&plan[..], &["--rates", "256K"]].concat()).stdout;
    assert!(text.contains("held out: 96,000 ids") && text.contains("row cache"), "{text}");
    // A row cache beside a DRAM tier, of the same bytes.
    let compared = fixture.ok(&[&plan[..], &["--cache", "64M"]].concat());
    assert!((share(&compared["cache"]["tier"]) - share(&large["dram"])).abs() < 1e-12, "{compared}");
    assert!((share(&compared["cache"]["cache"]) - share(&large["cache"])).abs() < 1e-12, "{compared}");
    assert!(made["cache"].is_null() && compared["cache"]["bytes"] == 64 << 20, "{compared}");
    let text = fixture.run(&[&plan[..], &["--cache", "256K"]].concat()).stdout;
    assert!(text.contains("256 KiB of memory, of the ids held out: ") && text.contains(" as a row cache, "), "{text}");
    assert!(text.contains("is ahead by more than the error") || text.contains("cannot be told"), "{text}");
    let refused = fixture.fails(&[&plan[..], &["--cache", "64M", "--hbm", "1M"]].concat(), 2);
    assert!(refused.to_string().contains("leave --hbm out"), "{refused}");
    let refused = fixture.fails(&[&plan[..], &["--cache", "16K"]].concat(), 3);
    assert!(refused.to_string().contains("has too few lines"), "{refused}");
    // A cache in GPU memory beside a tier there.
    let on_gpu = fixture.ok(&[&plan[..], &["--gpu-cache", "64M"]].concat());
    let of = |name: &str| share(&on_gpu["gpu_cache"][name]);
    assert!(of("always") > known - 0.01 && of("sketch") > known - 0.01, "{on_gpu}");
    assert!((of("tier") - share(&large["hbm"])).abs() < 1e-12, "{on_gpu}");
    let least = on_gpu["gpu_cache"]["least"].as_u64().unwrap();
    assert!(least > 100_000 && least < 64 << 20 && made["gpu_cache"].is_null(), "{on_gpu}");
    let text = fixture.run(&[&plan[..], &["--gpu-cache", "64M"]].concat()).stdout;
    assert!(text.contains("64.0 MiB of GPU memory") && text.contains(" as a cache with a sketch, "), "{text}");
    let refused = fixture.fails(&[&plan[..], &["--gpu-cache", "100000"]].concat(), 3);
    assert!(refused.to_string().contains("bytes have enough"), "{refused}");

    let wrong = fixture.fails(&["plan", "--table", "t=100x4:f32", "--trace", "tokens:text.u32", "--typical-host"], 2);
    assert!(wrong.to_string().contains("add :hash=NAME"), "{wrong}");
    // The rows of another model's table.
    let wrong =
        fixture.fails(&["plan", "--table", "t=100x4:f32", "--trace", "tokens:text.u32:hash=ple", "--typical-host"], 3);
    assert!(wrong.to_string().contains("are none of its 100 rows"), "{wrong}");
}
