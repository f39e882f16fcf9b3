//! The binaries as their callers meet them: help that teaches, and one clear line where there is no GPU.

use assert_cmd::Command;

fn run(binary: &str, arguments: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(match binary {
        "bench-dram" => env!("CARGO_BIN_EXE_bench-dram"),
        "bench-ring" => env!("CARGO_BIN_EXE_bench-ring"),
        "bench-lookup" => env!("CARGO_BIN_EXE_bench-lookup"),
        "bench-hbm" => env!("CARGO_BIN_EXE_bench-hbm"),
        "bench-elements" => env!("CARGO_BIN_EXE_bench-elements"),
        "bench-ssd" => env!("CARGO_BIN_EXE_bench-ssd"),
        "bench-cache" => env!("CARGO_BIN_EXE_bench-cache"),
        "bench-switch" => env!("CARGO_BIN_EXE_bench-switch"),
        other => panic!("{other} is no binary of this package"),
    });
    let output = command.args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

#[test]
fn help_teaches() {
    for (binary, words) in [
        (
            "bench-dram",
            &["--quick", "--full", "--sms", "--torch", "hidden", "F.embedding", "cuMemcpyBatchAsync", "Examples:"][..],
        ),
        ("bench-ring", &["--gpu", "--commands", "Examples:", "a soak"]),
        ("bench-ssd", &["threads", "io_uring", "first doorbell", "--limit", "Examples:", "p5800x"]),
        ("bench-hbm", &["embedding_bag", "F.embedding", "--torch", "of a copy", "Examples:"]),
        ("bench-elements", &["q4", "check_rows", "--only", "bags", "Examples:"]),
        ("bench-cache", &["Belady", "deduplicated", "--drift", "--hold", "Examples:", "movielens"]),
        ("bench-switch", &["p99.9", "--rate", "prepares", "Examples:"]),
        ("bench-lookup", &["cached", "direct", "growth", "Examples:", "bench-lookup --gpu"]),
        (
            "bench-lookup --gpu",
            &["tables", "small", "split", "call", "--scale", "Examples:", "Criteo", "hidden", "nve"],
        ),
    ] {
        let (name, mode) = binary.split_once(' ').map_or((binary, None), |(name, mode)| (name, Some(mode)));
        let (done, help, _) = run(name, &mode.into_iter().chain(["--help"]).collect::<Vec<_>>());
        assert!(done);
        for word in words {
            assert!(help.contains(word), "{binary} --help does not speak of {word}");
        }
        let widest = help.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(widest <= 140, "{binary} --help has lines of {widest} characters");
    }
}

#[test]
fn without_a_gpu_there_is_one_line() {
    if warprow_gpu_queues::Gpu::count() > 0 {
        return eprintln!("skipped: there is a GPU");
    }
    for (binary, arguments) in [
        ("bench-dram", &["--quick"][..]),
        ("bench-dram", &["--sms"]),
        ("bench-ring", &["--gpu", "--commands", "1e3"]),
        ("bench-hbm", &[]),
        ("bench-elements", &[]),
    ] {
        let (done, out, complaint) = run(binary, arguments);
        assert!(!done && out.is_empty(), "{binary}: {out}");
        assert!(complaint.starts_with("error: ") && complaint.lines().count() == 1, "{binary}: {complaint}");
        let (done, out, _) = run(binary, &[arguments, &["--json"]].concat());
        assert!(!done);
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(complaint.contains(json["error"]["message"].as_str().unwrap()), "{out}");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (binary, arguments) in [
        ("bench-dram", &["--quick", "--full"][..]),
        ("bench-dram", &["--quick", "--size", "1G"]),
        ("bench-dram", &["--ids", "many"]),
        ("bench-dram", &["--torch", "perhaps"]),
        // Refused for what they are, where there is no GPU too.
        ("bench-dram", &["--row-bytes", "130"]),
        ("bench-dram", &["--size", "64", "--row-bytes", "128"]),
        ("bench-dram", &["--runs", "0"]),
        ("bench-dram", &["--ids", "0"]),
        ("bench-dram", &["--alpha=-1"]),
        ("bench-dram", &["--sms", "0,1"]),
        ("bench-elements", &["--elements", "f33"]),
        ("bench-elements", &["--dim", "127"]),
        ("bench-elements", &["--runs", "0"]),
        ("bench-elements", &["--only", "nothing"]),
        ("bench-elements", &["--row-bytes", "130"]),
        ("bench-ssd", &["--drives", "0"]),
        ("bench-ssd", &["--lba", "4096"]),
        ("bench-ssd", &["--media", "ram", "--lba", "513"]),
        ("bench-ssd", &["--without", "luck"]),
        ("bench-ssd", &["--alpha=-1"]),
        ("bench-ssd", &["--room", "0"]),
        ("bench-ssd", &["--ids", "1e9"]),
        ("bench-ssd", &["--profile", "floppy"]),
        ("bench-ssd", &["--media", "cached", "--profile", "p5800x"]),
        ("bench-ssd", &["--media", "direct", "--dir", "/no/such/directory", "--drives", "1"]),
        ("bench-ssd", &["--seconds=-1"]),
        ("bench-ssd", &["--threads", "65"]),
        ("bench-hbm", &["--rows", "0"]),
        ("bench-hbm", &["--bags", "0"]),
        ("bench-hbm", &["--runs", "0"]),
        ("bench-hbm", &["--alpha=-1"]),
        ("bench-lookup", &["--gpu", "--shape", "round"]),
        ("bench-switch", &["--switches", "0"]),
        ("bench-switch", &["--hot", "2"]),
        ("bench-ring", &["--seconds", "0"]),
        ("bench-ring", &["--seconds", "nan"]),
        ("bench-ring", &["--seconds=-1"]),
        ("bench-ring", &["--seconds", "1e9"]),
        ("bench-ring", &["--depth", "0"]),
        ("bench-ring", &["--on", "/dev/null"]),
        ("bench-ring", &["--on", "emulated:x", "--overwrite"]),
        ("bench-ring", &["--commands", "1G"]),
        ("bench-ring", &["--gpu", "--host"]),
        ("bench-lookup", &["--gpu", "--scale", "0"]),
        ("bench-lookup", &["--gpu", "--only", "cached"]),
        ("bench-lookup", &["--dim", "3", "--gpu"]),
    ] {
        let (done, _, complaint) = run(binary, arguments);
        assert!(!done && complaint.contains("error:"), "{binary} {arguments:?}: {complaint}");
        assert!(!complaint.contains("libcuda"), "{binary} {arguments:?}: the GPU was asked first: {complaint}");
    }
}
