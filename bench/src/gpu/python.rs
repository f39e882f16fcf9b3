//! Rivals in Python, each in a process of its own.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Runs `script` with `asked` as its only argument, for `limit` at most, and reads the JSON object that it prints. `Err` of a text: there
/// is no Python, or the object has a `missing` that says what else there is not.
pub(super) fn ask<T: DeserializeOwned>(
    script: &str,
    asked: &Value,
    limit: Duration,
) -> anyhow::Result<Result<T, String>> {
    let mut command = Command::new("python3");
    command.arg("-").arg(asked.to_string());
    let mut child = match command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => return Ok(Err(format!("python3 cannot be run: {error}"))),
    };
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends early says why below.
        let _ = stdin.write_all(script.as_bytes());
    }
    let began = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if began.elapsed() > limit => {
                child.kill()?;
                child.wait()?;
                bail!("PyTorch has not ended within {limit:?}");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let mut said = String::new();
    let mut complaint = String::new();
    child.stdout.take().map(|mut out| out.read_to_string(&mut said)).transpose()?;
    child.stderr.take().map(|mut err| err.read_to_string(&mut complaint)).transpose()?;
    if !status.success() {
        bail!("PyTorch has failed: {}", complaint.trim().lines().last().unwrap_or("it does not say why"));
    }
    let answer: Value = serde_json::from_str(&said).with_context(|| format!("PyTorch's answer: {said}"))?;
    match answer.get("missing").and_then(Value::as_str) {
        Some(missing) => Ok(Err(missing.to_owned())),
        None => Ok(Ok(serde_json::from_value(answer).with_context(|| format!("PyTorch's answer: {said}"))?)),
    }
}

/// Whether something that may be missing takes part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Asked {
    /// If it is there; else a line says why not.
    #[default]
    Auto,
    /// What may be missing must take part.
    Yes,
    /// No.
    No,
}

/// What was answered, if it was asked for; `note` is told who took part, and why somebody does not.
pub(super) fn taking_part<T>(
    asked: Asked,
    answer: impl FnOnce() -> anyhow::Result<Result<T, String>>,
    version: fn(&T) -> &str,
    note: &mut dyn FnMut(&str),
) -> anyhow::Result<Option<T>> {
    if asked == Asked::No {
        return Ok(None);
    }
    match (answer(), asked) {
        (Ok(Ok(torch)), _) => {
            note(&format!("PyTorch {} took part", version(&torch)));
            Ok(Some(torch))
        }
        (Err(failed), Asked::Yes) => Err(failed),
        (Ok(Err(missing)), Asked::Yes) => bail!("PyTorch was asked for: {missing}"),
        (Err(failed), _) => {
            note(&format!("PyTorch does not take part: {failed:#}"));
            Ok(None)
        }
        (Ok(Err(missing)), _) => {
            note(&format!("PyTorch does not take part: {missing}"));
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Sum {
        sum: u64,
    }

    fn run(script: &str, limit: Duration) -> Option<anyhow::Result<Result<Sum, String>>> {
        let there = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
        there.then(|| ask(script, &json!({ "a": 1, "b": 2 }), limit))
    }

    #[test]
    fn a_script_answers_or_says_why_not() {
        let long = Duration::from_secs(120);
        let begin = "import json, sys, time\nasked = json.loads(sys.argv[1])\n";
        let of = |line: &str, limit| run(&format!("{begin}{line}"), limit);
        let Some(answer) = of("print(json.dumps({'sum': asked['a'] + asked['b']}))", long) else {
            return eprintln!("skipped: there is no python3");
        };
        assert_eq!(answer.unwrap().unwrap().sum, 3);
        let missing = of("print(json.dumps({'missing': 'a tooth'}))", long).unwrap().unwrap();
        assert_eq!(missing.unwrap_err(), "a tooth");
        let failed = of("raise SystemExit('7 elements are wrong')", long).unwrap().unwrap_err();
        assert!(failed.to_string().contains("7 elements are wrong"), "{failed}");
        assert!(of("print('rubbish')", long).unwrap().is_err());
        let late = of("time.sleep(1000)", Duration::ZERO).unwrap().unwrap_err();
        assert!(late.to_string().contains("not ended"), "{late}");
    }

    #[test]
    fn what_may_be_missing_is_noted_and_what_must_not_fails() {
        let take = |asked, answer: Result<u8, &str>| {
            let mut notes = Vec::new();
            let answer = answer.map_err(str::to_owned);
            let taken = taking_part(asked, || Ok(answer), |_| "2.9", &mut |text| notes.push(text.to_owned()));
            (taken, notes.concat())
        };
        let (taken, notes) = take(Asked::Auto, Ok(7));
        assert_eq!((taken.unwrap(), notes.as_str()), (Some(7), "PyTorch 2.9 took part"));
        let (taken, notes) = take(Asked::Auto, Err("no GPU"));
        assert!(taken.unwrap().is_none() && notes.contains("no GPU"));
        assert!(take(Asked::Yes, Err("no GPU")).0.unwrap_err().to_string().contains("no GPU"));
        let (taken, notes) = take(Asked::No, Ok(7));
        assert!(taken.unwrap().is_none() && notes.is_empty());
    }
}
