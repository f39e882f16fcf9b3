//! The demo, in small.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::rig::Rig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const SMALL: [&str; 7] = ["demo", "--rows", "20000", "--batches", "40", "--batch", "512"];

fn with(more: &[&'static str]) -> Vec<&'static str> {
    [&SMALL[..], more].concat()
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("{name} is {}", value[name]))
}

#[test]
fn every_row_is_right_and_every_figure_there() {
    let rig = Rig::new();
    let value = rig.ok(&with(&[]));
    assert_eq!(value["verified"], true);
    assert_eq!((number(&value, "ids"), number(&value, "rows_checked")), (20_480.0, 20_480.0));
    for name in ["ids_per_second", "p50_us", "p99_us", "rows_dram", "rows_ssd", "commands", "doorbells"] {
        assert!(number(&value, name) > 0.0, "{name} is {}", value[name]);
    }
    let absent = value["rivals_absent"].as_object().unwrap();
    for rival in ["pread", "uring", "mapped", "pread_equal", "uring_equal"] {
        let rate = &value[format!("{rival}_ids_per_second")];
        assert!(
            rate.as_f64().is_some_and(|rate| rate > 0.0) || rate.is_null() && absent.contains_key(rival),
            "{rival}: {value}"
        );
    }
    assert_eq!(number(&value, "commands"), number(&value, "rows_ssd") - number(&value, "merges"));
    assert_eq!(number(&value, "unique"), number(&value, "rows_dram") + number(&value, "rows_ssd"));
    assert_eq!(number(&value, "ids"), number(&value, "ids_dram") + number(&value, "ids_ssd"));
    assert_eq!(value["rows_in_dram"], 1000);
    assert_eq!(fs::read_dir(rig.dir()).unwrap().count(), 0, "nothing is left behind");

    let again = rig.ok(&with(&["--no-rivals"]));
    for name in ["ids_dram", "rows_dram", "rows_ssd", "commands", "unique"] {
        assert_eq!(value[name], again[name], "{name} follows from the seed");
    }
    assert_eq!(again["pread_ids_per_second"], json!(null));
    let other = rig.ok(&with(&["--no-rivals", "--seed", "2"]));
    assert_ne!(value["unique"], other["unique"]);
}

#[test]
fn a_flipped_bit_is_found() {
    let rig = Rig::new();
    let (value, exit) = rig.json(&with(&["--inject", "corrupt"]));
    assert_eq!((exit, &value["verified"], &value["error"]["class"]), (5, &json!(false), &json!("mismatch")));
    assert!(value["error"]["message"].as_str().unwrap().contains("element"), "{value}");
    assert!(value["error"]["remedy"].as_str().unwrap().contains("--inject"), "{value}");
    assert_eq!(value["injected"], 1);
    // Nothing is read, so nothing can go wrong.
    let (value, exit) = rig.json(&with(&["--inject", "corrupt", "--dram", "100", "--no-rivals"]));
    assert_eq!((exit, &value["verified"], &value["injected"]), (3, &json!(true), &json!(0)));
    assert!(value["error"]["message"].as_str().unwrap().contains("nothing was injected"), "{value}");
}

#[test]
fn it_can_be_kept_but_nothing_is_overwritten() {
    let rig = Rig::new();
    rig.ok(&with(&["--no-rivals", "--keep", "kept.drive"]));
    let seen = rig.ok(&["inspect", "-d", "emulated:kept.drive"]);
    assert_eq!(seen["store"]["generations"][0]["tables"][0]["rows"], 20_000);
    let before = fs::read(rig.path("kept.drive")).unwrap();
    let error = rig.fails(&with(&["--keep", "kept.drive"]), 4);
    assert!(error["message"].as_str().unwrap().contains("exists already"), "{error}");
    assert_eq!(fs::read(rig.path("kept.drive")).unwrap(), before);
    assert_eq!(rig.fails(&["demo", "--rows", "4000000000", "--dim", "16384"], 8)["class"], "resources");
    assert_eq!(rig.fails(&with(&["--dir", "absent"]), 3)["class"], "input");
}

#[test]
fn a_users_table_and_trace() {
    let rig = Rig::new();
    let table = rig.npy("t.npy", 500, 6, |r, c| (r * 6 + c) as f32);
    // Two users' clicks: ids up to 999, half of them not in the table.
    let trace: Vec<String> = (0..4000u64).map(|i| format!("{},{}", i % 3, (i * i * 31 + i * 7) % 1000)).collect();
    fs::write(rig.path("clicks.csv"), format!("user,item\n{}\n", trace.join("\n"))).unwrap();
    let run = |map: &str| {
        let args = [
            "demo",
            "--table",
            &table,
            "--trace",
            "clicks.csv:item",
            "--map",
            map,
            "--batches",
            "30",
            "--batch",
            "256",
        ];
        rig.ok(&args)
    };
    let strict = run("strict");
    assert_eq!((&strict["verified"], &strict["map"]), (&json!(true), &json!("strict")));
    assert!(number(&strict, "missing") > 0.0 && number(&strict, "missing_share") > 0.1, "{strict}");
    let modulo = run("modulo");
    assert_eq!((&modulo["verified"], &modulo["missing"]), (&json!(true), &json!(0)));
    assert_eq!(run("dense")["verified"], true);
    fs::write(rig.path("strange.csv"), "id\n500\n-1\n777\n888\n").unwrap();
    let args = ["demo", "--table", &table, "--trace", "strange.csv"];
    assert!(rig.fails(&args, 3)["message"].as_str().unwrap().contains("none of its 4 ids is in the table"));
    fs::write(rig.path("short.csv"), "id\n1\n2\n3\n4\n").unwrap();
    let run = rig.run(&["demo", "--table", &table, "--trace", "short.csv", "--batches", "3", "--no-rivals"]);
    assert!(run.stdout.contains("3 batches of 2 ids") && run.stdout.contains("replayed 3.0 times over"), "{run:?}");
    assert!(run.stdout.contains("shorter than a batch of 4,096 ids"), "{run:?}");
    assert_eq!(rig.fails(&["demo", "--table", &table, "--trace", "short.csv", "--rows", "5000"], 2)["class"], "usage");
    let args = ["demo", "--table", &table, "--trace", "clicks.csv"];
    assert!(rig.fails(&args, 3)["message"].as_str().unwrap().contains("user, item"));
}

#[test]
fn the_public_model_and_trace() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let model = shared.join("deepfm-avazu/deepfm_avazu.safetensors");
    let trace = shared.join("movielens-small/ratings.csv");
    if !model.is_file() || !trace.is_file() {
        return eprintln!("skipped: no public test data beside the repository");
    }
    let (rig, model) = (Rig::new(), model.to_str().unwrap());
    let trace = format!("{}:Id", trace.display());
    let value = rig.ok(&["demo", "--table", model, "--trace", &trace, "--map", "modulo", "--seconds", "0.3"]);
    assert_eq!(
        (&value["verified"], &value["table"]["rows"], &value["table"]["dim"]),
        (&json!(true), &json!(615), &json!(40))
    );
    let value = rig.ok(&["demo", "--table", model, "--trace", &trace, "--batches", "20"]);
    assert!(number(&value, "missing_share") > 0.5, "{value}");

    let drive = rig.drive("a.drive", "64M");
    let error = rig.fails(&["load", "-d", &drive, model], 3);
    assert_eq!(error["tables"].as_array().unwrap().len(), 52);
    let example = error["example"].as_str().unwrap().replacen("warprow", env!("CARGO_BIN_EXE_warprow"), 1);
    let pasted = std::process::Command::new("sh").arg("-c").arg(format!("{example} --json")).output().unwrap();
    let loaded: Value = serde_json::from_slice(&pasted.stdout).unwrap();
    assert_eq!(loaded["tables"].as_array().unwrap().len(), 24, "{example}: {loaded}");
    assert_eq!(rig.ok(&["verify", "-d", &drive, "--table", "C14.weight", "--against", model])["differing"], 0);
}

#[test]
fn ctrl_c_stops_it_and_nothing_is_left() {
    // In the load of a drive that is to be kept, and in the replay.
    for (signal, exit, class, rows, more) in [
        (Signal::SIGINT, 130, "interrupted", "3000000", &["--keep", "kept.drive"][..]),
        (Signal::SIGTERM, 143, "terminated", "20000", &[]),
    ] {
        let rig = Rig::new();
        let args = ["demo", "--rows", rows, "--batches", "100000000", "--seconds", "600", "--no-rivals", "--json"];
        let args = [&args[..], more].concat();
        let mut child = rig.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(700));
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let begin = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &value["error"]["class"]), (Some(exit), &json!(class)), "{value}");
        assert_eq!(fs::read_dir(rig.dir()).unwrap().count(), 0);
    }
}
