//! Running the command, to its end or to a kill, and what must hold of every run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::tracer;

/// What befalls a run of the command.
pub(crate) enum Fate {
    Runs,
    /// The process is killed before the write, erasure or flush of that number, the first being 1, if it comes to that.
    KilledBefore(u64),
    /// The process is killed after that time.
    KilledAfter(Duration),
    /// Before that write, while it has the store open, another command is run.
    Beside(u64, Vec<String>),
    /// Writes behind that many blocks of 512 bytes of any file fail, by the system's limit on the size of files.
    FailsBehind(u64),
}

/// How a run of the command ended.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    /// `None`: it was killed.
    pub(crate) exit: Option<i32>,
    /// What it printed; null if it was killed.
    pub(crate) json: Value,
    /// Writes that it began, where they were counted.
    pub(crate) writes: Option<u64>,
    /// The other command's exit code, if it was run.
    pub(crate) beside: Option<i32>,
}

impl Ended {
    pub(crate) fn is_done(&self) -> bool {
        self.exit == Some(0)
    }

    pub(crate) fn message(&self) -> &str {
        self.json["error"]["message"].as_str().unwrap_or("")
    }
}

/// Exit codes that `docs/command.md` has for a run that nobody stops; 1 is a bug.
const DOCUMENTED: [i32; 8] = [0, 2, 3, 4, 5, 6, 7, 8];

/// A folder in which the command is run, and the account of its runs.
pub(crate) struct Fixture {
    warprow: PathBuf,
    folder: PathBuf,
    limit: Duration,
    aloud: bool,
    /// Children may be traced.
    pub(crate) traces: bool,
    /// Each run with what it said.
    log: Vec<String>,
    /// How many runs of each command ended how.
    pub(crate) counts: BTreeMap<(String, String), u64>,
}

impl Fixture {
    pub(crate) fn new(warprow: &Path, folder: &Path, limit: Duration, aloud: bool) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        Ok(Self {
            warprow: warprow.to_owned(),
            folder: folder.canonicalize()?,
            limit,
            aloud,
            traces: tracer::is_possible(),
            log: Vec::new(),
            counts: BTreeMap::new(),
        })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The last runs, with what they said.
    pub(crate) fn log(&self) -> &[String] {
        &self.log
    }

    pub(crate) fn note(&mut self, line: impl Into<String>) {
        let line = line.into();
        if self.aloud {
            eprintln!("{line}");
        }
        if let Ok(mut file) = File::options().create(true).append(true).open(self.path("storm.log")) {
            let _ = writeln!(file, "{line}");
        }
        self.log.push(line);
    }

    fn count(&mut self, command: &str, ended: &str) {
        *self.counts.entry((command.to_owned(), ended.to_owned())).or_default() += 1;
    }

    fn spawn(&self, args: &[String], fate: &Fate, out: &str) -> Result<Child> {
        let shell = |script: &str| {
            let mut shell = Command::new("sh");
            shell.arg("-c").arg(script).arg(&self.warprow);
            shell
        };
        let mut command = match fate {
            Fate::KilledBefore(_) | Fate::Beside(..) if self.traces => shell(tracer::WAIT_THEN_RUN),
            Fate::FailsBehind(blocks) => shell(&format!("ulimit -f {blocks}; exec \"$0\" \"$@\"")),
            _ => Command::new(&self.warprow),
        };
        let file = |name: &str| File::create(self.path(name)).with_context(|| name.to_owned());
        command.args(args).args(["--json", "-q"]).current_dir(&self.folder).env("TMPDIR", &self.folder);
        command.env_remove("WARPROW_DRIVES").env_remove("WARPROW_LOG").stdin(Stdio::null());
        command.stdout(file(&format!("{out}.out"))?).stderr(file(&format!("{out}.err"))?);
        command.spawn().with_context(|| format!("{} cannot be run", self.warprow.display()))
    }

    /// Runs the command and checks what must hold of every run: that it ends in time, with an exit code that is documented, one
    /// object, no panic.
    pub(crate) fn run(&mut self, args: &[String], fate: Fate) -> Result<Ended> {
        let traced = self.traces && matches!(fate, Fate::KilledBefore(_) | Fate::Beside(..));
        let began = Instant::now();
        let mut child = self.spawn(args, &fate, "run")?;
        let pid = Pid::from_raw(child.id().cast_signed());
        let limit = Watch::new(pid, self.limit);
        let moment = match fate {
            Fate::KilledAfter(delay) => Some(Watch::new(pid, delay)),
            _ => None,
        };
        let mut ended = Ended::default();
        let mut was_killed = false;
        let mut other = None;
        let mut followed = None;
        if traced {
            let at = match fate {
                Fate::KilledBefore(at) | Fate::Beside(at, _) => at,
                _ => u64::MAX,
            };
            let ran = tracer::run(&child, at, &mut || {
                if let Fate::Beside(_, args) = &fate {
                    let run = self.spawn(args, &Fate::Runs, "beside")?.wait_in(self.limit)?;
                    other = Some((run, args.clone()));
                    return Ok(false);
                }
                was_killed = true;
                Ok(true)
            });
            followed = match ran {
                Ok(followed) => followed,
                Err(error) => {
                    // Nobody waits for it any more.
                    let _ = child.kill();
                    return Err(error.context("a child could not be traced"));
                }
            };
            if followed.is_none() {
                self.traces = false;
                self.note("children may not be traced here: kills come after some time");
            }
        }
        let (exit, signal) = match followed {
            Some(run) => {
                ended.writes = Some(run.writes);
                (run.exit, run.signal)
            }
            None => {
                let status = child.wait()?;
                (status.code(), if status.code().is_none() { Some(Signal::SIGKILL) } else { None })
            }
        };
        was_killed |= moment.is_some_and(Watch::fired) && exit.is_none();
        let is_late = limit.fired();
        ended.exit = exit;
        let out = self.said("run.out");
        let err = self.said("run.err");
        ended.json = serde_json::from_str(&out).unwrap_or(Value::Null);
        let name = args.first().cloned().unwrap_or_default();
        let how = match exit {
            None if was_killed => match fate {
                Fate::KilledBefore(at) => format!("killed before write {at}"),
                _ => format!("killed after {} ms", began.elapsed().as_millis()),
            },
            None => format!("ended by {signal:?}"),
            Some(exit) => format!("exit {exit}"),
        };
        let mut line = format!("  {} ms: {how}: warprow", began.elapsed().as_millis());
        if let Fate::FailsBehind(blocks) = fate {
            line = format!("  {} ms: {how}: ulimit -f {blocks}; warprow", began.elapsed().as_millis());
        }
        args.iter().for_each(|arg| {
            let _ = write!(line, " {}", if arg.contains('*') { format!("'{arg}'") } else { arg.clone() });
        });
        for said in [&out, &err] {
            if !said.is_empty() {
                let _ =
                    write!(line, "\n    {}", said.trim().chars().take(600).collect::<String>().replace('\n', "\n    "));
            }
        }
        self.note(line);
        self.count(&name, exit.map_or("killed".to_owned(), |exit| format!("exit {exit}")).as_str());
        if let Some((exit, args)) = other {
            let said = self.said("beside.out");
            self.note(format!("  beside it: exit {exit:?}: warprow {}\n    {}", args.join(" "), said.trim()));
            self.count("(beside another)", &format!("exit {}", exit.unwrap_or(-1)));
            ended.beside = Some(exit.unwrap_or(-1));
            ensure!(exit == Some(4), "while the store was in use, a second command ended with {exit:?}, not 4");
        }
        ensure!(!is_late, "`{name}` had not ended after {:?}", self.limit);
        let words = format!("{out}{err}");
        ensure!(!words.contains("panicked"), "`{name}` panicked: {words}");
        let Some(exit) = exit else {
            ensure!(was_killed, "`{name}` was ended by {signal:?}, which nobody sent");
            ended.json = Value::Null;
            return Ok(ended);
        };
        ensure!(DOCUMENTED.contains(&exit), "`{name}` ended with exit code {exit}");
        let told = ended.json.get("error").map_or(Some(0), |error| error["exit"].as_i64());
        ensure!(ended.json["schema"] == 1, "`{name}` printed no object: {out:?}");
        ensure!(told == Some(exit.into()), "`{name}` ended with exit code {exit} and tells {told:?}");
        if exit != 0 {
            ensure!(!ended.message().is_empty(), "`{name}` failed without a word");
        }
        Ok(ended)
    }

    fn said(&self, name: &str) -> String {
        fs::read(self.path(name)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

/// Kills a process after some time, unless it is dropped before.
struct Watch {
    done: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<bool>>,
}

impl Watch {
    fn new(pid: Pid, after: Duration) -> Self {
        let (done, waits) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let fires = waits.recv_timeout(after) == Err(RecvTimeoutError::Timeout);
            fires && kill(pid, Signal::SIGKILL).is_ok()
        });
        Self { done: Some(done), thread: Some(thread) }
    }

    /// Ends it: whether it has killed.
    fn fired(mut self) -> bool {
        drop(self.done.take());
        self.thread.take().is_some_and(|thread| thread.join().unwrap_or(false))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waiting with an end.
trait WaitIn {
    fn wait_in(self, limit: Duration) -> Result<Option<i32>>;
}

impl WaitIn for Child {
    fn wait_in(mut self, limit: Duration) -> Result<Option<i32>> {
        let watch = Watch::new(Pid::from_raw(self.id().cast_signed()), limit);
        let status = self.wait()?;
        if watch.fired() {
            bail!("a command beside another had not ended after {limit:?}");
        }
        Ok(status.code())
    }
}
