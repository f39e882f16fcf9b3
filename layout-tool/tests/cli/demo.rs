//! The demo, in small.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::fixture::CliFixture;
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
    let fixture = CliFixture::new();
    let value = fixture.ok(&with(&[]));
    assert_eq!(value["verified"], true);
    assert_eq!((number(&value, "ids"), number(&value, "rows_checked")), (20_480.0, 20_480.0));
    for name in ["ids_per_second", "p50_us", "p99_us", "rows_dram", "rows_ssd", "commands", "doorbells"] {
        assert!(number(&value, name) > 0.0, "{name} is {}", value[name]);
    }
    let absent = value["rivals_absent"].as_object().unwrap();
    for rival in ["pread", "uring", "mapped", "numpy", "pread_equal", "uring_equal"] {
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
    assert_eq!(fs::read_dir(fixture.dir()).unwrap().count(), 0, "nothing is left behind");

    let again = fixture.ok(&with(&["--no-rivals"]));
    for name in ["ids_dram", "rows_dram", "rows_ssd", "commands", "unique"] {
        assert_eq!(value[name], again[name], "{name} follows from the seed");
    }
    assert_eq!((&again["pread_ids_per_second"], &again["cold"]), (&json!(null), &json!(null)));
    let other = fixture.ok(&with(&["--no-rivals", "--seed", "2"]));
    assert_ne!(value["unique"], other["unique"]);
}

/// What the cold race says, which has to have taken place: its contenders.
fn cold(value: &Value) -> &serde_json::Map<String, Value> {
    let cold = &value["cold"];
    let contenders = cold["contenders"].as_object().unwrap_or_else(|| panic!("{cold}"));
    assert_eq!(contenders.len(), 5);
    let batch = number(cold, "batch");
    let rounds = number(cold, "rounds");
    assert!((8.0..=1024.0).contains(&batch) && (3.0..=5.0).contains(&rounds), "{cold}");
    let mut ran = 0.0;
    for (name, contender) in contenders {
        if contender["absent"].is_string() {
            assert!(matches!(&**name, "direct" | "numpy"), "{name}: {contender}");
            continue;
        }
        let ms: Vec<f64> = contender["ms"].as_array().unwrap().iter().map(|ms| ms.as_f64().unwrap()).collect();
        assert!(ms.len() as f64 == rounds && ms.iter().all(|&ms| ms > 0.0), "{name}: {contender}");
        assert!(ms.contains(&number(contender, "median_ms")) || rounds == 4.0, "{name}: {contender}");
        assert!(number(contender, "times") > 0.0, "{name}: {contender}");
        ran += 1.0;
    }
    assert_eq!(contenders["warprow"]["times"], 1.0);
    // One smaller batch of each is not timed.
    let rows = number(cold, "rows_checked") - ran * batch * rounds;
    assert!(rows >= ran * 8.0 && rows % ran == 0.0, "{cold}");
    contenders
}

#[test]
fn rows_that_the_page_cache_does_not_hold() {
    let fixture = CliFixture::new();
    let args = ["demo", "--rows", "30000", "--batches", "20", "--batch", "512", "--keep", "kept.drive"];
    let value = fixture.ok(&args);
    assert_eq!(value["verified"], true);
    if let Some(reason) = value["cold"]["absent"].as_str() {
        assert!(reason.contains("does not forget"), "{reason}");
        return eprintln!("skipped: {reason}");
    }
    cold(&value);
    // The drive is as it was.
    fixture.ok(&["verify", "-d", "emulated:kept.drive"]);
    // Too few pages, and too few ids.
    for (args, why) in [
        (["demo", "--rows", "1000", "--batches", "3", "--batch", "64"], "too few pages"),
        (["demo", "--rows", "30000", "--batches", "3", "--batch", "7"], "a batch has 7 ids"),
    ] {
        let value = fixture.ok(&args);
        assert!(value["cold"]["absent"].as_str().unwrap().contains(why), "{}", value["cold"]);
        let run = fixture.run(&args);
        assert!(run.stdout.contains("from disk  left out: ") && run.stdout.contains(why), "{run:?}");
    }
    let run = fixture.run(&["demo", "--rows", "30000", "--batches", "3"]);
    assert!(run.stdout.contains("from disk  ") && run.stdout.contains("warprow, direct=1"), "{run:?}");
}

#[test]
fn a_file_in_memory_cannot_be_forgotten() {
    let memory = Path::new("/dev/shm");
    let kind = warprow_workload::FileSystem::of(memory).map(|found| found.kind);
    let Some(dir) = tempfile::tempdir_in(memory).ok().filter(|_| kind.as_deref() == Some("tmpfs")) else {
        return eprintln!("skipped: /dev/shm is no tmpfs that can be written");
    };
    let fixture = CliFixture::new();
    let dir = dir.path().to_str().unwrap();
    let value = fixture.ok(&[&["demo", "--rows", "20000", "--batches", "3", "--dir"], &[dir][..]].concat());
    let reason = value["cold"]["absent"].as_str().unwrap();
    assert!(value["verified"] == true && reason.contains("tmpfs") && reason.contains("does not forget"), "{reason}");
}

/// A `numpy` of this test's own in a folder for PYTHONPATH, which has as much of it as is asked for. `row` makes an answer's row
/// of the bytes at `begin` of the file's `data`; `batch` is the number of the batch. `None`: there is no Python here.
fn numpy_of_ours(fixture: &CliFixture, row: &str) -> Option<String> {
    let there =
        std::process::Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("skipped: there is no python3");
        return None;
    }
    let folder = fixture.path("python");
    fs::create_dir_all(&folder).unwrap();
    let module = format!(
        "\
import mmap, struct
__version__ = '0 of a test'
batch = 0
class dtype:
    def __init__(self, name):
        self.itemsize = int(name[-1])
def frombuffer(data, dtype):
    return struct.unpack('<%dq' % (len(data) // 8), data)
class Rows(bytes):
    def tobytes(self):
        return self
class memmap:
    def __init__(self, file, dtype, mode, shape):
        assert mode == 'r'
        self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.rows, self.row_bytes = shape[0], shape[1] * dtype.itemsize
    def __getitem__(self, ids):
        global batch
        batch += 1
        assert all(0 <= id < self.rows for id in ids)
        return Rows(b''.join(self.row(id * self.row_bytes) for id in ids))
    def row(self, begin):
        data = self.data[begin:begin + self.row_bytes]
        {row}
        return data
"
    );
    fs::write(folder.join("numpy.py"), module).unwrap();
    Some(folder.display().to_string())
}

/// Runs the demo with `--json` and that numpy.
fn with_numpy(fixture: &CliFixture, folder: &str, args: &[&str]) -> (Value, i32) {
    let args = [args, &["--json"]].concat();
    let output = fixture.command(&args).env("PYTHONPATH", folder).output().unwrap();
    let value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    (value, output.status.code().unwrap())
}

#[test]
fn numpys_rows_are_compared_as_all_others() {
    let fixture = CliFixture::new();
    let Some(folder) = numpy_of_ours(&fixture, "pass") else { return };
    let (value, exit) = with_numpy(&fixture, &folder, &with(&[]));
    assert_eq!((exit, &value["verified"]), (0, &json!(true)), "{value}");
    assert!(number(&value, "numpy_ids_per_second") > 0.0 && number(&value, "times_numpy") > 0.0);
    let is_cold = value["cold"]["absent"].is_null();
    if is_cold {
        assert!(number(&cold(&value)["numpy"], "median_ms") > 0.0);
    }
    // Rows of 7 f16, ids that the table does not have.
    let table = fixture.npy("t.npy", 3000, 7, |r, c| (r * 7 + c) as f32);
    let trace: Vec<String> = (0..4000u64).map(|i| ((i * i * 31 + i * 7) % 4000).to_string()).collect();
    fs::write(fixture.path("ids.csv"), format!("id\n{}\n", trace.join("\n"))).unwrap();
    let args = ["demo", "--table", &table, "--trace", "ids.csv", "--batches", "20", "--batch", "256"];
    let (value, exit) = with_numpy(&fixture, &folder, &args);
    assert_eq!((exit, &value["verified"]), (0, &json!(true)), "{value}");
    assert!(number(&value, "missing") > 0.0 && number(&value, "numpy_ids_per_second") > 0.0, "{value}");

    // A wrong bit in the tenth batch, which is a timed one.
    let wrong = "if batch == 10: data = data[:-1] + bytes([data[-1] ^ 1])";
    let folder = numpy_of_ours(&fixture, wrong).unwrap();
    let (value, exit) = with_numpy(&fixture, &folder, &with(&[]));
    assert_eq!((exit, &value["verified"], &value["error"]["class"]), (5, &json!(false), &json!("mismatch")));
    assert_eq!(value["error"]["subject"], "numpy.memmap", "{value}");
    assert!(value["cold"]["absent"].is_string(), "{}", value["cold"]);
    // One that is wrong in the cold race alone, for which it begins anew: of the warm one the third batch is not timed.
    if !is_cold {
        return eprintln!("skipped: {}", value["cold"]);
    }
    let folder = numpy_of_ours(&fixture, "data = bytes(len(data)) if batch == 3 else data").unwrap();
    let (value, exit) = with_numpy(&fixture, &folder, &["demo", "--rows", "30000", "--batches", "1", "--batch", "64"]);
    assert_eq!((exit, &value["verified"], &value["error"]["subject"]), (5, &json!(false), &json!("numpy.memmap")));
    assert!(value["error"]["message"].as_str().unwrap().contains("not in the page cache"), "{value}");
}

#[test]
fn a_numpy_that_dies_or_is_not_there_is_left_out_with_the_reason() {
    let fixture = CliFixture::new();
    let Some(folder) = numpy_of_ours(&fixture, "if batch == 10: raise MemoryError('no more of it')") else { return };
    let (value, exit) = with_numpy(&fixture, &folder, &with(&[]));
    assert_eq!((exit, &value["verified"], &value["numpy_ids_per_second"]), (0, &json!(true), &json!(null)), "{value}");
    let reason = value["rivals_absent"]["numpy"].as_str().unwrap();
    assert!(reason.contains("no more of it"), "{reason}");
    fs::write(Path::new(&folder).join("numpy.py"), "raise ImportError('no such thing')").unwrap();
    let (value, exit) = with_numpy(&fixture, &folder, &with(&[]));
    assert_eq!((exit, &value["verified"]), (0, &json!(true)), "{value}");
    let reason = value["rivals_absent"]["numpy"].as_str().unwrap();
    assert!(reason.contains("no such thing"), "{reason}");
    let run = fixture.command(&with(&[])).env("PATH", "/nonexistent").output().unwrap();
    let text = String::from_utf8(run.stdout).unwrap();
    let said = text.matches("without    numpy.memmap: ").count();
    assert!(run.status.success() && said == 1 && text.contains("python3 cannot be run"), "{text}");
}

#[test]
fn numpy_ends_with_a_demo_that_is_killed() {
    let fixture = CliFixture::new();
    let Some(folder) = numpy_of_ours(&fixture, "pass") else { return };
    let module = Path::new(&folder).join("numpy.py");
    let told = format!("open({:?}, 'w').write(str(os.getpid()))\n", fixture.path("pid"));
    fs::write(&module, format!("import os\n{told}{}", fs::read_to_string(&module).unwrap())).unwrap();
    let args = ["demo", "--rows", "20000", "--batches", "100000000", "--seconds", "600"];
    let mut child = fixture.command(&args).env("PYTHONPATH", &folder).stdout(Stdio::null()).spawn().unwrap();
    let python = told_pid(&fixture);
    // Somewhere in the race.
    std::thread::sleep(Duration::from_millis(1500));
    assert!(lives(python) && child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    let begin = Instant::now();
    while lives(python) {
        assert!(begin.elapsed() < Duration::from_secs(60), "it lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether there is such a process that has not ended, be it that nobody has asked for its exit code.
fn lives(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// What a process has written to the file `pid`, once it has.
fn told_pid(fixture: &CliFixture) -> Pid {
    let begin = Instant::now();
    loop {
        match fs::read_to_string(fixture.path("pid")).ok().and_then(|text| text.trim().parse().ok()) {
            Some(id) => return Pid::from_raw(id),
            None => assert!(begin.elapsed() < Duration::from_secs(60), "it was never started"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_python_that_hangs_is_ended_by_ctrl_c() {
    use std::os::unix::fs::PermissionsExt;
    // In the search for numpy, and in the race.
    for answers in ["", "echo '{\"version\": \"1\"}'; read line; echo '{}'"] {
        let fixture = CliFixture::new();
        let bin = fixture.path("bin");
        let drives = fixture.path("drives");
        fs::create_dir(&bin).unwrap();
        fs::create_dir(&drives).unwrap();
        let python = bin.join("python3");
        let script = format!("#!/bin/sh\necho $$ > {}\n{answers}\nexec sleep 1000\n", fixture.path("pid").display());
        fs::write(&python, script).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o700)).unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let args = [&with(&["--json", "--dir"])[..], &[drives.to_str().unwrap()]].concat();
        let mut child =
            fixture.command(&args).env("PATH", path).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let python = told_pid(&fixture);
        std::thread::sleep(Duration::from_millis(500));
        kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        let begin = Instant::now();
        while child.try_wait().unwrap().is_none() {
            // Less than it would wait by itself.
            assert!(begin.elapsed() < Duration::from_secs(15), "it does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &value["error"]["class"]), (Some(130), &json!("interrupted")), "{value}");
        assert!(!lives(python), "python is left behind");
        assert_eq!(fs::read_dir(&drives).unwrap().count(), 0);
    }
}

#[test]
fn a_flipped_bit_is_found() {
    let fixture = CliFixture::new();
    let (value, exit) = fixture.json(&with(&["--inject", "corrupt"]));
    assert_eq!((exit, &value["verified"], &value["error"]["class"]), (5, &json!(false), &json!("mismatch")));
    assert!(value["error"]["message"].as_str().unwrap().contains("element"), "{value}");
    assert!(value["error"]["remedy"].as_str().unwrap().contains("--inject"), "{value}");
    assert_eq!(value["injected"], 1);
    // Nothing is read, so nothing can go wrong.
    let (value, exit) = fixture.json(&with(&["--inject", "corrupt", "--dram", "100", "--no-rivals"]));
    assert_eq!((exit, &value["verified"], &value["injected"]), (3, &json!(true), &json!(0)));
    assert!(value["error"]["message"].as_str().unwrap().contains("nothing was injected"), "{value}");
}

#[test]
fn it_can_be_kept_but_nothing_is_overwritten() {
    let fixture = CliFixture::new();
    fixture.ok(&with(&["--no-rivals", "--keep", "kept.drive"]));
    let seen = fixture.ok(&["inspect", "-d", "emulated:kept.drive"]);
    assert_eq!(seen["store"]["generations"][0]["tables"][0]["rows"], 20_000);
    let before = fs::read(fixture.path("kept.drive")).unwrap();
    let error = fixture.fails(&with(&["--keep", "kept.drive"]), 4);
    assert!(error["message"].as_str().unwrap().contains("exists already"), "{error}");
    assert_eq!(fs::read(fixture.path("kept.drive")).unwrap(), before);
    assert_eq!(fixture.fails(&["demo", "--rows", "4000000000", "--dim", "16384"], 8)["class"], "resources");
    assert_eq!(fixture.fails(&with(&["--dir", "absent"]), 3)["class"], "input");
}

#[test]
fn a_users_table_and_trace() {
    let fixture = CliFixture::new();
    let table = fixture.npy("t.npy", 500, 6, |r, c| (r * 6 + c) as f32);
    // Two users' clicks: ids up to 999, half of them not in the table.
    let trace: Vec<String> = (0..4000u64).map(|i| format!("{},{}", i % 3, (i * i * 31 + i * 7) % 1000)).collect();
    fs::write(fixture.path("clicks.csv"), format!("user,item\n{}\n", trace.join("\n"))).unwrap();
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
        fixture.ok(&args)
    };
    let strict = run("strict");
    assert_eq!((&strict["verified"], &strict["map"]), (&json!(true), &json!("strict")));
    assert!(number(&strict, "missing") > 0.0 && number(&strict, "missing_share") > 0.1, "{strict}");
    let modulo = run("modulo");
    assert_eq!((&modulo["verified"], &modulo["missing"]), (&json!(true), &json!(0)));
    assert_eq!(run("dense")["verified"], true);
    fs::write(fixture.path("strange.csv"), "id\n500\n-1\n777\n888\n").unwrap();
    let args = ["demo", "--table", &table, "--trace", "strange.csv"];
    assert!(fixture.fails(&args, 3)["message"].as_str().unwrap().contains("none of its 4 ids is in the table"));
    fs::write(fixture.path("short.csv"), "id\n1\n2\n3\n4\n").unwrap();
    let run = fixture.run(&["demo", "--table", &table, "--trace", "short.csv", "--batches", "3", "--no-rivals"]);
    assert!(run.stdout.contains("3 batches of 2 ids") && run.stdout.contains("replayed 3.0 times over"), "{run:?}");
    assert!(run.stdout.contains("shorter than a batch of 4,096 ids"), "{run:?}");
    assert_eq!(
        fixture.fails(&["demo", "--table", &table, "--trace", "short.csv", "--rows", "5000"], 2)["class"],
        "usage"
    );
    let args = ["demo", "--table", &table, "--trace", "clicks.csv"];
    assert!(fixture.fails(&args, 3)["message"].as_str().unwrap().contains("user, item"));
}

#[test]
fn the_public_model_and_trace() {
    let shared = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    let model = shared.join("deepfm-avazu/deepfm_avazu.safetensors");
    let trace = shared.join("movielens-small/ratings.csv");
    if !model.is_file() || !trace.is_file() {
        return eprintln!("skipped: no public test data beside the repository");
    }
    let fixture = CliFixture::new();
    let model = model.to_str().unwrap();
    let trace = format!("{}:Id", trace.display());
    let value = fixture.ok(&["demo", "--table", model, "--trace", &trace, "--map", "modulo", "--seconds", "0.3"]);
    assert_eq!(
        (&value["verified"], &value["table"]["rows"], &value["table"]["dim"]),
        (&json!(true), &json!(615), &json!(40))
    );
    let value = fixture.ok(&["demo", "--table", model, "--trace", &trace, "--batches", "20"]);
    assert!(number(&value, "missing_share") > 0.5, "{value}");

    let drive = fixture.drive("a.drive", "64M");
    let error = fixture.fails(&["load", "-d", &drive, model], 3);
    assert_eq!(error["tables"].as_array().unwrap().len(), 52);
    let example = error["example"].as_str().unwrap().replacen("warprow", env!("CARGO_BIN_EXE_warprow"), 1);
    let pasted = std::process::Command::new("sh").arg("-c").arg(format!("{example} --json")).output().unwrap();
    let loaded: Value = serde_json::from_slice(&pasted.stdout).unwrap();
    assert_eq!(loaded["tables"].as_array().unwrap().len(), 24, "{example}: {loaded}");
    assert_eq!(fixture.ok(&["verify", "-d", &drive, "--table", "C14.weight", "--against", model])["differing"], 0);
}

#[test]
fn ctrl_c_stops_it_and_nothing_is_left() {
    // In the load of a drive that is to be kept, and in the replay.
    for (signal, exit, class, rows, more) in [
        (Signal::SIGINT, 130, "interrupted", "3000000", &["--keep", "kept.drive"][..]),
        (Signal::SIGTERM, 143, "terminated", "20000", &[]),
    ] {
        let fixture = CliFixture::new();
        let args = ["demo", "--rows", rows, "--batches", "100000000", "--seconds", "600", "--no-rivals", "--json"];
        let args = [&args[..], more].concat();
        let mut child = fixture.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(700));
        // Twice within a moment, as `timeout` of GNU does, which is no second Ctrl-C.
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        let begin = Instant::now();
        while child.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not stop");
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        let value: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &value["error"]["class"]), (Some(exit), &json!(class)), "{value}");
        assert_eq!(fs::read_dir(fixture.dir()).unwrap().count(), 0);
    }
}
