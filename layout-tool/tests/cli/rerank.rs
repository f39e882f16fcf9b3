//! Rows that are listed for DRAM by recorded look-ups, or by a plan.

use std::fs;

use crate::fixture::CliFixture;

const ROWS: u64 = 2000;

/// 3,000 look-ups, of which two thirds are of rows 1000, 1007, 1014 … 1063.
fn clicks(fixture: &CliFixture, name: &str, id: impl Fn(u64) -> i64) {
    let line = |n: u64| if n.is_multiple_of(3) { n * 7 % ROWS } else { 1000 + n % 10 * 7 };
    let lines: String = (0..3000).map(|n| format!("{n},{}\n", id(line(n)))).collect();
    fs::write(fixture.path(name), format!("time,items\n{lines}")).unwrap();
}

/// The ids of a look-up that lay in DRAM, of `bytes` bytes.
fn in_dram(fixture: &CliFixture, drive: &str, bytes: &str, ids: &str) -> u64 {
    let looked = fixture.ok(&["lookup", "-d", drive, "--table", "items", "--ids", ids, "--dram", bytes]);
    looked["ids_dram"].as_u64().unwrap()
}

#[test]
fn a_trace_lists_rows_and_look_ups_find_them_in_dram() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    let table = fixture.npy("items.npy", ROWS, 16, |r, c| (r * 16 + c) as f32);
    fixture.ok(&["load", "-d", &drive, &table, "--row-crc"]);
    clicks(&fixture, "clicks.csv", |row| row as i64);
    // Ten rows of 64 B: the first ten without a list.
    let hot = "1000,1007,1014,1063";
    assert_eq!((in_dram(&fixture, &drive, "640", hot), in_dram(&fixture, &drive, "640", "0,1,9")), (0, 3));
    let listed = fixture.ok(&["rerank", "items", "-d", &drive, "--trace", "clicks.csv", "--dram", "640"]);
    assert_eq!((&listed["listed"], &listed["bytes"], &listed["added"]), (&10.into(), &640.into(), &10.into()));
    assert_eq!((&listed["trace_ids"], &listed["trace_ids_missing"]), (&3000.into(), &0.into()));
    assert!(listed["trace_ids_listed"].as_u64().unwrap() >= 2000 && listed["before"].is_null(), "{listed}");
    assert_eq!((in_dram(&fixture, &drive, "640", hot), in_dram(&fixture, &drive, "640", "0,1,9")), (4, 0));
    let looked = fixture.ok(&["lookup", "-d", &drive, "--table", "items", "--ids", "1063,5", "--dram", "640"]);
    let row = |r: u64| (0..16).map(|c| (r * 16 + c) as f64).collect::<Vec<_>>();
    assert_eq!(looked["rows"], serde_json::json!([row(1063), row(5)]));
    // It is shown, and is no model of its own; checks find it whole.
    let shown = fixture.ok(&["inspect", "-d", &drive]);
    assert_eq!(shown["dram_lists"], serde_json::json!([{"table": "items", "rows": 10, "bytes": 640, "damaged": null}]));
    assert!(fixture.run(&["inspect", "-d", &drive]).stdout.contains("Rows listed for DRAM"));
    assert_eq!(fixture.ok(&["generations", "-d", &drive])["generations"].as_array().unwrap().len(), 1);
    assert_eq!(fixture.ok(&["verify", "-d", &drive])["tables"].as_array().unwrap().len(), 1);
    fixture.ok(&["scrub", "-d", &drive]);
    // All that was looked up, fewer of them, and none.
    let all = fixture.ok(&["rerank", "items", "-d", &drive, "--trace", "clicks.csv"]);
    assert!(all["listed"].as_u64().unwrap() > 900 && all["before"] == 10, "{all}");
    assert_eq!(all["trace_ids_listed"], 3000);
    assert_eq!(fixture.ok(&["rerank", "items", "-d", &drive, "--trace", "clicks.csv", "--rows", "3"])["listed"], 3);
    let text = fixture.run(&["rerank", "items", "-d", &drive, "--trace", "clicks.csv", "--rows", "10"]).stdout;
    assert!(text.contains("10 rows listed for DRAM (640 B), 7 of them new; 3 were listed before"), "{text}");
    assert_eq!(fixture.ok(&["rerank", "items", "-d", &drive, "--none"])["before"], 10);
    assert_eq!((in_dram(&fixture, &drive, "640", hot), in_dram(&fixture, &drive, "640", "0,1,9")), (0, 3));
    assert_eq!(fixture.ok(&["inspect", "-d", &drive])["dram_lists"], serde_json::json!([]));

    for (args, exit, says) in [
        (&["rerank", "absent", "--trace", "clicks.csv"][..], 3, "absent"),
        (&["rerank", "items", "--trace", "gone.csv"], 3, "gone.csv"),
        (&["rerank", "items", "--trace", "ids:clicks.csv:ids=0"], 2, "at least one id"),
        (&["rerank", "items"], 2, "--trace"),
        (&["rerank", "items", "--none", "--trace", "clicks.csv"], 2, "cannot be used with"),
        (&["rerank", "items", "--none", "--rows", "3"], 2, "cannot be used with"),
        (&["rerank", "items", "--plan", "items.npy"], 3, "plan"),
    ] {
        let refused = fixture.fails(&[args, &["-d", &drive]].concat(), exit);
        assert!(refused.to_string().contains(says), "{args:?}: {refused}");
    }
}

#[test]
fn keys_and_plans_list_rows_too() {
    let fixture = CliFixture::new();
    let drive = fixture.drive("a.drive", "64M");
    fixture.npy("items.npy", ROWS, 16, |r, c| (r * 16 + c) as f32);
    // Keys far from 0 on, in an order of hotness that has nothing to do with the trace.
    let keys: String = (0..ROWS).map(|row| format!("{}\n", key(row))).collect();
    fs::write(fixture.path("keys.csv"), format!("key\n{keys}")).unwrap();
    let numbers: Vec<u8> = (0..ROWS).flat_map(|row| key(row).to_le_bytes()).collect();
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    let shape = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({ROWS},), }}");
    file.extend(shape.bytes().chain(std::iter::repeat(b' ')).take(0x75).chain([b'\n']));
    file.extend(numbers);
    fs::write(fixture.path("keys.npy"), file).unwrap();
    fixture.ok(&["load", "-d", &drive, "items.npy", "--keys", "keys.npy", "--hotness", "items=trace:keys.csv"]);
    clicks(&fixture, "clicks.csv", key);
    let hot = [1000, 1007, 1014, 1063].map(|row| key(row).to_string()).join(",");
    let listed = fixture.ok(&["rerank", "items", "-d", &drive, "--trace", "clicks.csv", "--rows", "10"]);
    assert_eq!(listed["listed"], 10);
    assert_eq!(in_dram(&fixture, &drive, "640", &hot), 4);
    fixture.ok(&["rerank", "items", "-d", &drive, "--none"]);
    let made = [
        "plan",
        "-d",
        &drive,
        "--trace",
        "clicks.csv",
        "--dram",
        "32K",
        "--batch",
        "10",
        "--group",
        "off",
        "--typical-host",
        "--out",
        "hot.safetensors",
    ];
    let plan = fixture.ok(&made);
    let kept = plan["plan"]["tables"][0]["dram_rows"].as_u64().unwrap();
    let listed = fixture.ok(&["rerank", "items", "-d", &drive, "--plan", "hot.safetensors"]);
    assert!(kept > 100 && listed["listed"] == kept && listed["missing"] == 0, "{plan} {listed}");
    let listed = fixture.ok(&["rerank", "items", "-d", &drive, "--plan", "hot.safetensors", "--rows", "10"]);
    assert_eq!((&listed["listed"], &listed["before"], &listed["added"]), (&10.into(), &kept.into(), &0.into()));
    assert_eq!(in_dram(&fixture, &drive, "640", &hot), 4);
    let other = fixture.npy("other.npy", 50, 16, |_, _| 0.0);
    fixture.ok(&["load", "-d", &drive, &other]);
    let refused = fixture.fails(&["rerank", "other", "-d", &drive, "--plan", "hot.safetensors"], 3);
    assert!(refused.to_string().contains("no table"), "{refused}");
}

fn key(row: u64) -> i64 {
    row as i64 * 1_000_003 - 5_000_000
}

#[test]
fn an_attached_file_has_its_list_beside_it() {
    let fixture = CliFixture::new();
    fixture.npy("items.npy", ROWS, 16, |r, c| (r * 16 + c) as f32);
    clicks(&fixture, "clicks.csv", |row| row as i64);
    let drive = format!("attached:{}", fixture.path("items.npy").display());
    let listed = fixture.ok(&["rerank", "items", "-d", &drive, "--trace", "clicks.csv", "--rows", "10"]);
    assert_eq!(listed["listed"], 10);
    let lists = || {
        let all = fs::read_dir(fixture.dir()).unwrap().map(|it| it.unwrap().path());
        all.filter(|path| path.to_string_lossy().contains(".items.npy.warprow-dram-")).collect::<Vec<_>>()
    };
    let [list] = &lists()[..] else { panic!("one list") };
    assert_eq!(in_dram(&fixture, &drive, "640", "1000,1007,1014,1063,0"), 4);
    assert_eq!(fixture.ok(&["inspect", "-d", &drive])["dram_lists"][0]["rows"], 10);
    // Damaged: look-ups do without it, and it is told.
    let mut bytes = fs::read(list).unwrap();
    bytes[65] ^= 1;
    fs::write(list, bytes).unwrap();
    assert_eq!(in_dram(&fixture, &drive, "640", "1000,1007,1014,1063,0"), 1);
    let shown = fixture.ok(&["inspect", "-d", &drive]);
    assert!(shown["dram_lists"][0]["damaged"].as_str().unwrap().contains("checksum"), "{shown}");
    let (report, exit) = fixture.json(&["verify", "-d", &drive]);
    assert!(exit == 6 && report.to_string().contains("list of rows in DRAM"), "{report}");
    fixture.ok(&["rerank", "items", "-d", &drive, "--none"]);
    assert!(lists().is_empty());
    fixture.ok(&["verify", "-d", &drive]);
}
