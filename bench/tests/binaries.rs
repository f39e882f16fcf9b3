//! The binaries as their callers meet them: help that teaches, and one clear line where there is no GPU.

use assert_cmd::Command;

fn run(binary: &str, arguments: &[&str]) -> (bool, String, String) {
    let mut command = Command::new(match binary {
        "dram" => env!("CARGO_BIN_EXE_dram"),
        "ring" => env!("CARGO_BIN_EXE_ring"),
        "lookup" => env!("CARGO_BIN_EXE_lookup"),
        "hbm" => env!("CARGO_BIN_EXE_hbm"),
        "elements" => env!("CARGO_BIN_EXE_elements"),
        "ssd" => env!("CARGO_BIN_EXE_ssd"),
        "switch" => env!("CARGO_BIN_EXE_switch"),
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
            "dram",
            &[
                "--quick",
                "--full",
                "--sms",
                "--torch",
                "hidden",
                "F.embedding",
                "cuMemcpyBatchAsync",
                "--experiments",
                "Examples:",
            ][..],
        ),
        ("ring", &["--gpu", "--commands", "Examples:", "a soak"]),
        ("ssd", &["threads", "io_uring", "first doorbell", "--limit", "Examples:", "p5800x"]),
        ("hbm", &["embedding_bag", "F.embedding", "--torch", "of a copy", "Examples:"]),
        ("elements", &["q4", "check_rows", "--only", "bags", "Examples:"]),
        ("switch", &["p99.9", "--rate", "prepares", "Examples:"]),
        ("lookup", &["cached", "direct", "growth", "Examples:", "lookup --gpu"]),
        ("lookup --gpu", &["tables", "small", "split", "call", "--scale", "Examples:", "Criteo", "hidden", "nve"]),
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
        ("dram", &["--quick"][..]),
        ("dram", &["--sms"]),
        ("dram", &["--experiments"]),
        ("ring", &["--gpu", "--commands", "1e3"]),
        ("hbm", &[]),
        ("elements", &[]),
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
        ("dram", &["--quick", "--full"][..]),
        ("dram", &["--quick", "--size", "1G"]),
        ("dram", &["--ids", "many"]),
        ("dram", &["--torch", "perhaps"]),
        // Refused for what they are, where there is no GPU too.
        ("dram", &["--row-bytes", "130"]),
        ("dram", &["--size", "64", "--row-bytes", "128"]),
        ("dram", &["--runs", "0"]),
        ("dram", &["--ids", "0"]),
        ("dram", &["--alpha=-1"]),
        ("dram", &["--sms", "0,1"]),
        ("dram", &["--experiments", "--quick"]),
        ("dram", &["--experiments", "--alpha", "1.05"]),
        ("dram", &["--experiments", "--size", "1G,2G"]),
        ("dram", &["--experiments", "--row-bytes", "100"]),
        ("elements", &["--elements", "f33"]),
        ("elements", &["--dim", "127"]),
        ("elements", &["--runs", "0"]),
        ("elements", &["--only", "nothing"]),
        ("elements", &["--row-bytes", "130"]),
        ("ssd", &["--drives", "0"]),
        ("ssd", &["--ids", "1e9"]),
        ("ssd", &["--profile", "floppy"]),
        ("ssd", &["--media", "cached", "--profile", "p5800x"]),
        ("ssd", &["--media", "direct", "--dir", "/no/such/directory", "--drives", "1"]),
        ("ssd", &["--seconds=-1"]),
        ("ssd", &["--threads", "65"]),
        ("hbm", &["--rows", "0"]),
        ("hbm", &["--bags", "0"]),
        ("hbm", &["--runs", "0"]),
        ("hbm", &["--alpha=-1"]),
        ("lookup", &["--gpu", "--shape", "round"]),
        ("switch", &["--switches", "0"]),
        ("switch", &["--hot", "2"]),
        ("ring", &["--seconds", "0"]),
        ("ring", &["--seconds", "nan"]),
        ("ring", &["--seconds=-1"]),
        ("ring", &["--seconds", "1e9"]),
        ("ring", &["--depth", "0"]),
        ("ring", &["--on", "/dev/null"]),
        ("ring", &["--on", "emulated:x", "--overwrite"]),
        ("ring", &["--commands", "1G"]),
        ("ring", &["--gpu", "--host"]),
        ("lookup", &["--gpu", "--scale", "0"]),
        ("lookup", &["--gpu", "--only", "cached"]),
        ("lookup", &["--dim", "3", "--gpu"]),
    ] {
        let (done, _, complaint) = run(binary, arguments);
        assert!(!done && complaint.contains("error:"), "{binary} {arguments:?}: {complaint}");
        assert!(!complaint.contains("libcuda"), "{binary} {arguments:?}: the GPU was asked first: {complaint}");
    }
}
