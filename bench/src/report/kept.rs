//! Results in a folder: `NAME.json` as a program prints it, `NAME.err` what it said, `machine.json`, `parts.json`.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::machine::Described;
use super::parts::{Outcome, Part, Report, outcome_of};
use crate::results::machine_of;

/// Why a folder could not be read or written.
#[derive(Debug, Error)]
pub enum KeptError {
    /// A file or the folder.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file that describes the others.
    #[error("{path} is not what `bench-report --keep` writes: {source}; mend it, or delete it and do without")]
    Described {
        /// Which.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// Nothing there.
    #[error("{0} holds no *.json: give the folder into which `--json` outputs were written")]
    Empty(PathBuf),
}

const MACHINE: &str = "machine.json";
const PARTS: &str = "parts.json";

/// What is known of a part beside its result.
#[derive(Serialize, Deserialize)]
struct Listed {
    name: String,
    command: Option<String>,
    failed: Option<String>,
    not_run: Option<String>,
}

/// The machine and when, beside results.
#[derive(Serialize, Deserialize)]
struct Place {
    date: String,
    machine: Described,
}

fn pretty<T: Serialize>(value: &T) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default() + "\n"
}

fn file<T>(path: &Path, result: std::io::Result<T>) -> Result<T, KeptError> {
    result.map_err(|source| KeptError::File { path: path.to_owned(), source })
}

/// Writes what `load` reads.
pub fn keep(report: &Report, folder: &Path) -> Result<(), KeptError> {
    file(folder, fs::create_dir_all(folder))?;
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        file(&path, fs::write(&path, text))
    };
    let place = Place { date: report.date.clone(), machine: report.machine.clone() };
    write(MACHINE, pretty(&place))?;
    let mut listed = Vec::new();
    for part in &report.parts {
        let Part { name, command, outcome, said } = part;
        let mut failed = None;
        let mut not_run = None;
        match outcome {
            Outcome::Done(value) => write(&format!("{name}.json"), format!("{value}\n"))?,
            Outcome::Failed(reason) => failed = Some(reason.clone()),
            Outcome::NotRun(reason) => not_run = Some(reason.clone()),
        }
        if !said.is_empty() {
            write(&format!("{name}.err"), format!("{said}\n"))?;
        }
        listed.push(Listed { name: name.clone(), command: command.clone(), failed, not_run });
    }
    write(PARTS, pretty(&listed))
}

/// Results that lie in a folder, in the order of the set, then others by name. `programs` are the names of a whole set: those that the
/// folder does not have are parts that were not run.
pub fn load(folder: &Path, programs: &[&str], date: &str) -> Result<Report, KeptError> {
    let described = |name: &str| {
        let path = folder.join(name);
        if path.exists() { file(&path, fs::read_to_string(&path)).map(|text| Some((path, text))) } else { Ok(None) }
    };
    let place: Option<Place> = described(MACHINE)?.map(parsed).transpose()?;
    let listed: Vec<Listed> = described(PARTS)?.map(parsed).transpose()?.unwrap_or_default();
    let mut names: Vec<String> = listed.iter().map(|listed| listed.name.clone()).collect();
    let mut found = Vec::new();
    for entry in file(folder, fs::read_dir(folder))? {
        let path = file(folder, entry)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")) else { continue };
        if ![MACHINE, PARTS].contains(&format!("{name}.json").as_str()) {
            found.push(name.to_owned());
        }
    }
    if found.is_empty() && names.is_empty() {
        return Err(KeptError::Empty(folder.to_owned()));
    }
    names.extend(found.iter().filter(|name| !listed.iter().any(|listed| listed.name == **name)).cloned());
    names.extend(
        programs
            .iter()
            .filter(|name| !names.iter().any(|text| text == *name))
            .map(|&name| name.to_owned())
            .collect::<Vec<_>>(),
    );
    let rank = |name: &str| programs.iter().position(|program| *program == name).unwrap_or(programs.len());
    names.sort_by(|a, b| (rank(a), a).cmp(&(rank(b), b)));
    let part = |name: String| {
        let listed = listed.iter().find(|listed| listed.name == name);
        let outcome = match listed {
            Some(Listed { failed: Some(reason), .. }) => Outcome::Failed(reason.clone()),
            Some(Listed { not_run: Some(reason), .. }) => Outcome::NotRun(reason.clone()),
            _ if found.contains(&name) => match fs::read_to_string(folder.join(format!("{name}.json"))) {
                Ok(text) => outcome_of(&text),
                Err(error) => Outcome::Failed(format!("{name}.json: {error}")),
            },
            Some(_) => Outcome::Failed(format!("{PARTS} lists it, and {name}.json is not there")),
            None => Outcome::NotRun("the folder has no result of it".to_owned()),
        };
        let said = fs::read_to_string(folder.join(format!("{name}.err"))).unwrap_or_default().trim().to_owned();
        Part { command: listed.and_then(|listed| listed.command.clone()), outcome, said, name }
    };
    let parts: Vec<Part> = names.into_iter().map(part).collect();
    let (date, machine) = match place {
        Some(Place { date, machine }) => (date, machine),
        None => (format!("put together {date}; when it was measured was not recorded"), machine_of_parts(&parts)),
    };
    Ok(Report { date, machine, parts })
}

/// What the first result says of its machine.
fn machine_of_parts(parts: &[Part]) -> Described {
    let result = |part: &Part| match &part.outcome {
        Outcome::Done(value) => Some(Described::of_result(machine_of(value)?)),
        _ => None,
    };
    let unknown = || "not recorded".to_owned();
    parts.iter().find_map(result).unwrap_or_else(|| Described {
        cpu: unknown(),
        cores: 0,
        memory: None,
        kernel: unknown(),
        gpu: Err(unknown()),
        drives: None,
    })
}

fn parsed<T: for<'de> Deserialize<'de>>((path, text): (PathBuf, String)) -> Result<T, KeptError> {
    serde_json::from_str(&text).map_err(|source| KeptError::Described { path, source })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report() -> Report {
        let part = |name: &str, outcome| Part {
            name: name.to_owned(),
            command: Some(format!("{name} --json")),
            outcome,
            said: "said".to_owned(),
        };
        let parts = vec![
            part("ring", Outcome::Done(json!({ "ratio": 2.5 }))),
            part("load", Outcome::Failed("full".to_owned())),
            part("dram", Outcome::NotRun("no GPU".to_owned())),
        ];
        Report { date: "then".to_owned(), machine: Described::this(), parts }
    }

    #[test]
    fn what_is_kept_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        keep(&report(), folder.path()).unwrap();
        assert_eq!(load(folder.path(), &["ring", "load", "dram"], "now").unwrap(), report());
    }

    #[test]
    fn a_folder_of_results_alone_will_do() {
        let folder = tempfile::tempdir().unwrap();
        let machine = json!({ "cpu": "C", "cores": 2, "kernel": "6.1", "load": 0.5 });
        fs::write(folder.path().join("zebra.json"), json!({ "machine": machine }).to_string()).unwrap();
        fs::write(folder.path().join("broken.json"), "{").unwrap();
        let report = load(folder.path(), &["ring", "zebra"], "now").unwrap();
        let names: Vec<_> = report.parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["ring", "zebra", "broken"]);
        assert!(matches!(&report.parts[0].outcome, Outcome::NotRun(reason) if reason.contains("no result")));
        assert!(matches!(report.parts[1].outcome, Outcome::Done(_)));
        assert_eq!(report.failed(), ["broken"]);
        assert_eq!((report.machine.cpu.as_str(), report.machine.memory), ("C", None));
        assert!(report.date.contains("not recorded"));
    }

    #[test]
    fn folders_without_results_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(load(folder.path(), &["ring"], "now"), Err(KeptError::Empty(_))));
        fs::write(folder.path().join(PARTS), "[1]").unwrap();
        assert!(matches!(load(folder.path(), &["ring"], "now"), Err(KeptError::Described { .. })));
        assert!(matches!(load(&folder.path().join("none"), &[], "now"), Err(KeptError::File { .. })));
    }
}
