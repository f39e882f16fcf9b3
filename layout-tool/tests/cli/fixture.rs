//! Running the command as a user does.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A directory, and the command run in it.
pub(crate) struct CliFixture {
    dir: TempDir,
}

/// What a run of the command came to.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) exit: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CliFixture {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The command, to be run in the directory.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_warprow"));
        command.current_dir(self.dir.path()).env_remove("WARPROW_DRIVES").env("TMPDIR", self.dir.path()).args(args);
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Run {
        self.command(args).output().unwrap().into()
    }

    /// Runs it with `--json`: the one object on stdout, and the exit code.
    pub(crate) fn json(&self, args: &[&str]) -> (Value, i32) {
        let mut args = args.to_vec();
        args.push("--json");
        let run = self.run(&args);
        let value: Value =
            serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{args:?}: {error}: {run:?}"));
        assert_eq!(value["schema"], 1, "{args:?}");
        assert_eq!(
            value.get("error").map_or(0, |error| error["exit"].as_i64().unwrap()),
            i64::from(run.exit),
            "{args:?}"
        );
        (value, run.exit)
    }

    /// Runs it and expects success.
    pub(crate) fn ok(&self, args: &[&str]) -> Value {
        let (value, exit) = self.json(args);
        assert_eq!(exit, 0, "{args:?}: {value}");
        value
    }

    /// Runs it and expects a failure of that exit code: its object, whose message and remedy are not empty. The same without
    /// `--json` says it on stderr.
    pub(crate) fn fails(&self, args: &[&str], exit: i32) -> Value {
        let (value, got) = self.json(args);
        let error = value["error"].clone();
        assert_eq!(got, exit, "{args:?}: {value}");
        for part in ["class", "message"] {
            assert!(!error[part].as_str().unwrap().is_empty(), "{args:?}: no {part} in {error}");
        }
        error
    }

    /// Formats a drive of that name and size.
    pub(crate) fn drive(&self, name: &str, size: &str) -> String {
        let drive = format!("emulated:{}", self.path(name).display());
        self.ok(&["format", "-d", &format!("{drive},size={size}"), "--yes"]);
        drive
    }

    /// A `.npy` file of `rows` × `dim` f32 whose element (r, c) is `value(r, c)`.
    pub(crate) fn npy(&self, name: &str, rows: u64, dim: u64, value: impl Fn(u64, u64) -> f32) -> String {
        use npyz::WriterBuilder;
        let path = self.path(name);
        let file = std::io::BufWriter::new(std::fs::File::create(&path).unwrap());
        let mut writer = npyz::WriteOptions::new().default_dtype().shape(&[rows, dim]).writer(file).begin_nd().unwrap();
        (0..rows).for_each(|r| (0..dim).for_each(|c| writer.push(&value(r, c)).unwrap()));
        writer.finish().unwrap();
        path.display().to_string()
    }
}

impl From<Output> for Run {
    fn from(output: Output) -> Self {
        Self {
            exit: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}
