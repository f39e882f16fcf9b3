//! The set of programs, and running them.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::parts::{Outcome, Part, outcome_of};

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Small tables, few repetitions: minutes.
    Quick,
    /// Every program's defaults: an hour or more.
    Full,
}

/// What a program cannot do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// A processor.
    Nothing,
    /// A GPU.
    Gpu,
}

/// A program of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Of the part.
    pub name: &'static str,
    /// Of the binary.
    pub binary: &'static str,
    /// Without `--json`, separated by blanks.
    pub arguments: &'static str,
    /// Without it, it is not run.
    pub needs: Needs,
}

/// All programs, in the order of the page.
pub fn set(extent: Extent) -> Vec<Program> {
    let quick = extent == Extent::Quick;
    let program = |name, binary, needs, short, long| {
        let arguments = if quick { short } else { long };
        Program { name, binary, arguments, needs }
    };
    let host = Needs::Nothing;
    let gpu = Needs::Gpu;
    vec![
        program("ring", "bench-ring", host, "--host --seconds 2", "--host"),
        program("lookup", "bench-lookup", host, "--size 256M --seconds 1 --growth 1G,4G,16G --runs 2", ""),
        program("load", "bench-load", host, "--size 256M --pairs 3", ""),
        program("plan-rate", "bench-plan", host, "rate --seconds 0.5 --ids 1000000 --profile gen5-tlc", "rate"),
        program(
            "plan-speed",
            "bench-plan",
            host,
            "speed --ids 4000000 --rows 4000000",
            "speed --ids 100000000 --rows 100000000",
        ),
        program("switch", "bench-switch", host, "--switches 100", ""),
        program("passes", "bench-passes", host, "--rows 65536", ""),
        program(
            "ssd",
            "bench-ssd",
            host,
            "--drives 1,4 --ids 100,1e4,1e6 --seconds 0.05 --limit 40",
            "--seconds 0.5 --limit 1800",
        ),
        program(
            "ring-resident",
            "bench-ring",
            gpu,
            "--gpu --controller gpu --size 1G",
            "--gpu --controller gpu --size 4G",
        ),
        program("ring-gpu", "bench-ring", gpu, "--gpu --size 128M --rounds 5", "--gpu"),
        program("dram", "bench-dram", gpu, "--quick --runs 5 --torch no", "--quick"),
        program(
            "dram-sms",
            "bench-dram",
            gpu,
            "--sms 1,4,8,16,66 --size 1G --ids 2M --alpha 0",
            "--sms --size 16G --ids 2M --alpha 0",
        ),
        program("elements", "bench-elements", gpu, "--rows 512K --bags 2K --size 256M --ids 1K,64K --runs 5", ""),
        program("dedupe", "bench-dedupe", gpu, "--rows 1M,16M --ids 1K,64K,512K --runs 3", ""),
        program("hbm", "bench-hbm", gpu, "--rows 2M --runs 7 --torch no", "--rows 32M"),
        program(
            "lookup-gpu",
            "bench-lookup",
            gpu,
            "--gpu --scale 64 --batch 256,4K --runs 5 --batches 1000 --calls 200 --size 1G",
            "--gpu",
        ),
        program(
            "lookup-dynamicemb",
            "bench-lookup",
            gpu,
            "--gpu --only tables --shape dynamicemb --scale 64 --runs 5",
            "--gpu --only tables --shape dynamicemb",
        ),
        program(
            "lookup-nve",
            "bench-lookup",
            gpu,
            "--gpu --only tables --shape nve --scale 128 --runs 5",
            "--gpu --only tables --shape nve",
        ),
    ]
}

/// Most of what a program says that is kept: the end.
const SAID: usize = 4000;

/// Runs a program from `binaries`, for `limit` at most, with its scratch files in `scratch`.
pub fn run(program: &Program, binaries: &Path, scratch: &Path, limit: Duration) -> Part {
    let command = format!("{} {} --json", program.binary, program.arguments).replace("  ", " ");
    let mut part = Part {
        name: program.name.to_owned(),
        command: Some(command),
        outcome: Outcome::Failed(String::new()),
        said: String::new(),
    };
    part.outcome = attempt(program, binaries, scratch, limit, &mut part.said).unwrap_or_else(Outcome::Failed);
    part
}

fn attempt(
    program: &Program,
    binaries: &Path,
    scratch: &Path,
    limit: Duration,
    said: &mut String,
) -> Result<Outcome, String> {
    let path = binaries.join(program.binary);
    // Files rather than pipes, which a program that prints much would fill.
    let file = |ending: &str| {
        let path = scratch.join(format!("{}.{ending}", program.name));
        File::create(&path).map(|file| (path.clone(), file)).map_err(|error| format!("{}: {error}", path.display()))
    };
    let ((out, stdout), (err, stderr)) = (file("out")?, file("err")?);
    let arguments = program.arguments.split_whitespace().chain(["--json"]);
    let mut command = Command::new(&path);
    command.args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
    let mut child =
        command.spawn().map_err(|error| format!("{}: {error}; build it beside this program", path.display()))?;
    let began = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if began.elapsed() < limit => std::thread::sleep(Duration::from_millis(20)),
            over => {
                let _ = child.kill();
                let _ = child.wait();
                *said = tail(&err);
                return Err(match over {
                    Err(error) => format!("waiting for it has failed: {error}"),
                    _ => format!("it took longer than {} s and was ended (--limit)", limit.as_secs()),
                });
            }
        }
    };
    *said = tail(&err);
    let printed = fs::read_to_string(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    if printed.trim().is_empty() {
        let last = said.lines().last().unwrap_or("it said nothing");
        return Err(format!("it printed no result ({status}): {last}"));
    }
    match outcome_of(&printed) {
        Outcome::Done(_) if !status.success() => Err(format!("it printed a result, and failed ({status})")),
        outcome => Ok(outcome),
    }
}

fn tail(path: &Path) -> String {
    let text = String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let skipped = text.char_indices().rev().nth(SAID).map_or(0, |(at, _)| at);
    text.get(skipped..).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn script(text: &str, limit: Duration) -> Part {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program { name: "p", binary: "program", arguments: "a b", needs: Needs::Nothing };
        run(&program, folder.path(), folder.path(), limit)
    }

    #[test]
    fn what_a_program_does_is_told() {
        let long = Duration::from_secs(60);
        let done = script("echo hello >&2; echo '{\"arguments\":\"'\"$*\"'\"}'", long);
        assert_eq!(done.outcome, Outcome::Done(serde_json::json!({ "arguments": "a b --json" })));
        assert_eq!((done.said.as_str(), done.command.as_deref()), ("hello", Some("program a b --json")));
        let reason = |text, limit| match script(text, limit).outcome {
            Outcome::Failed(reason) => reason,
            other => panic!("{other:?}"),
        };
        assert!(reason("echo 'disk full' >&2; exit 3", long).contains("disk full"));
        assert!(reason("echo '{\"error\":{\"message\":\"no GPU\"}}'; exit 1", long).contains("no GPU"));
        assert!(reason("echo '{}'; exit 1", long).contains("failed"));
        assert!(reason("echo rubbish", long).contains("no JSON"));
        let began = Instant::now();
        assert!(reason("exec sleep 100", Duration::from_millis(100)).contains("longer than"));
        assert!(began.elapsed() < Duration::from_secs(50));
        let program = Program { name: "p", binary: "missing", arguments: "", needs: Needs::Nothing };
        let folder = tempfile::tempdir().unwrap();
        let missing = run(&program, folder.path(), folder.path(), long);
        assert!(matches!(missing.outcome, Outcome::Failed(reason) if reason.contains("missing")));
    }

    #[test]
    fn every_program_has_a_name_of_its_own() {
        for extent in [Extent::Quick, Extent::Full] {
            let programs = set(extent);
            let names: std::collections::BTreeSet<_> = programs.iter().map(|program| program.name).collect();
            assert_eq!(names.len(), programs.len());
            for binary in
                ["ring", "lookup", "load", "plan", "switch", "passes", "ssd", "dram", "dedupe", "hbm", "elements"]
            {
                let binary = format!("bench-{binary}");
                assert!(programs.iter().any(|program| program.binary == binary), "{binary} is not in the set");
            }
        }
    }
}
