use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Value, json};
use warprow_layout::DType;
use zerocopy::IntoBytes;
use zerocopy::little_endian::I64;

use super::buffers::check;
use super::error::RivalError;
use super::interface::Rival;
use super::plain::PlainFile;

/// What Python runs.
const SCRIPT: &str = include_str!("numpy.py");
/// What the rival is called.
const NAME: &str = "numpy.memmap";
/// How long Python may take until it has numpy.
const START: Duration = Duration::from_secs(20);
/// How long Python may take until the next byte of an answer.
const ANSWER: Duration = Duration::from_secs(60);
/// How often whoever waits looks whether it should.
const MOMENT: u16 = 50;
/// How long a process that was killed is waited for.
const REST: Duration = Duration::from_secs(1);
/// Bytes of a line that Python may say.
const LINE: usize = 4096;

/// Python with numpy, in a process of its own, which has no file yet.
///
/// It ends when this is dropped, and by itself when this process ends, in whatever way. It is in a process group of its own: Ctrl-C on a terminal does
/// not reach it.
#[derive(Debug)]
pub struct NumpyProcess {
    python: Python,
    version: String,
}

/// `numpy.memmap` of a [`PlainFile`], in a process of its own, which is told ids and answers with their rows. Rows of missing ids
/// are zeros, and numpy is not asked for them.
///
/// No wait for the process is longer than a minute; then it has failed ([`RivalError::Process`]).
#[derive(Debug)]
pub struct NumpyMemmap {
    python: Python,
    rows: u64,
    row_bytes: usize,
    took: Duration,
    /// The ids of a batch that the table has, and their positions.
    found: Vec<I64>,
    positions: Vec<u32>,
    answer: Vec<u8>,
}

impl NumpyProcess {
    /// Starts `python3`, which imports numpy. All waiting for it ends once `stop` says so, from now on. Fails with
    /// [`RivalError::Unavailable`] where there is no Python or no numpy.
    pub fn start(stop: impl Fn() -> bool + Send + 'static) -> Result<Self, RivalError> {
        Self::of("python3", START, stop)
    }

    fn of(program: &str, patience: Duration, stop: impl Fn() -> bool + Send + 'static) -> Result<Self, RivalError> {
        let unavailable = |source| RivalError::Unavailable { what: NAME, source };
        let mut command = Command::new(program);
        command.args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command
            .process_group(0)
            .spawn()
            .map_err(|error| unavailable(io::Error::new(error.kind(), format!("{program} cannot be run: {error}"))))?;
        let mut python = Python::new(child, patience, stop).map_err(unavailable)?;
        let said = python.line().map_err(unavailable)?;
        let text = |member: &str| said.get(member).and_then(Value::as_str).map(str::to_owned);
        if let Some(missing) = text("missing") {
            return Err(unavailable(io::Error::new(io::ErrorKind::NotFound, missing)));
        }
        let version = text("version").ok_or_else(|| unavailable(python.nonsense(&said)))?;
        Ok(Self { python, version })
    }

    /// The version of numpy.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Has numpy map a file of rows of elements of type `dtype`. `cold`: before each batch and behind it the page cache is asked
    /// to forget the file, and it is mapped anew, so that each batch comes from the disk. The time for that does not count.
    pub fn map(self, plain: &PlainFile, dtype: DType, cold: bool) -> Result<NumpyMemmap, RivalError> {
        let Self { mut python, .. } = self;
        let asked = json!({
            "path": plain.path(),
            "rows": plain.rows(),
            "row_bytes": plain.row_bytes(),
            // Bits are moved, whatever they mean: numpy has not all of our types.
            "dtype": match dtype.size() {
                4 => "<f4",
                2 => "<f2",
                _ => "|u1",
            },
            "cold": cold,
        });
        let failed = |source| RivalError::Process { what: NAME, source };
        let said = python.write_all(format!("{asked}\n").as_bytes()).and_then(|()| python.line()).map_err(failed)?;
        if let Some(reason) = said.get("failed").and_then(Value::as_str) {
            return Err(failed(io::Error::other(reason.to_owned())));
        }
        python.patience = ANSWER;
        let found = Vec::new();
        let positions = Vec::new();
        let answer = Vec::new();
        let rows = plain.rows();
        let row_bytes = plain.row_bytes();
        Ok(NumpyMemmap { python, rows, row_bytes, took: Duration::ZERO, found, positions, answer })
    }
}

impl NumpyMemmap {
    /// What numpy answers for `ids`, all of which the table has, and how long it took for that.
    fn ask(python: &mut Python, ids: &[I64], rows: &mut [u8]) -> io::Result<Duration> {
        python.write_all(&(ids.len() as u64).to_le_bytes())?;
        python.write_all(ids.as_bytes())?;
        let mut took = [0; 8];
        python.read_exact(&mut took)?;
        python.read_exact(rows)?;
        Ok(Duration::from_nanos(u64::from_le_bytes(took)))
    }
}

impl Rival for NumpyMemmap {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn lookup(&mut self, ids: &[i64], rows: &mut [u8], mask: &mut [u8]) -> Result<(), RivalError> {
        let Self { python, row_bytes, found, positions, answer, .. } = self;
        check(ids, rows, mask, u32::MAX as usize, *row_bytes)?;
        found.clear();
        positions.clear();
        for ((position, &id), mask) in (0..).zip(ids).zip(&mut *mask) {
            *mask = u8::from(u64::try_from(id).is_ok_and(|id| id < self.rows));
            if *mask == 1 {
                found.push(id.into());
                positions.push(position);
            }
        }
        let failed = |source| RivalError::Process { what: NAME, source };
        if found.len() == ids.len() {
            self.took = Self::ask(python, found, rows).map_err(failed)?;
            return Ok(());
        }
        answer.resize(found.len() * *row_bytes, 0);
        self.took = Self::ask(python, found, answer).map_err(failed)?;
        rows.fill(0);
        for (row, &position) in answer.chunks_exact(*row_bytes).zip(&*positions) {
            rows[position as usize * *row_bytes..][..*row_bytes].copy_from_slice(row);
        }
        Ok(())
    }

    fn took(&self) -> Option<Duration> {
        Some(self.took)
    }
}

/// A process and its pipes, none of which is waited for without end.
struct Python {
    child: Child,
    input: ChildStdin,
    output: ChildStdout,
    complaints: ChildStderr,
    patience: Duration,
    stop: Box<dyn Fn() -> bool + Send>,
}

impl fmt::Debug for Python {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Python").field("child", &self.child).finish_non_exhaustive()
    }
}

impl Python {
    fn new(mut child: Child, patience: Duration, stop: impl Fn() -> bool + Send + 'static) -> io::Result<Self> {
        let input = child.stdin.take();
        let output = child.stdout.take();
        let complaints = child.stderr.take();
        let (Some(input), Some(output), Some(complaints)) = (input, output, complaints) else {
            end(&mut child);
            return Err(io::Error::other("a process without pipes"));
        };
        let python = Self { child, input, output, complaints, patience, stop: Box::new(stop) };
        for pipe in [python.input.as_fd(), python.output.as_fd(), python.complaints.as_fd()] {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(python)
    }

    /// Waits until `pipe` can be read or written, or has come to its end.
    fn wait(&self, pipe: BorrowedFd<'_>, what: PollFlags, begin: Instant) -> io::Result<()> {
        loop {
            if (self.stop)() {
                return Err(io::Error::other("it was asked to stop"));
            }
            if begin.elapsed() > self.patience {
                let what = format!("python3 has not answered for {} s", self.patience.as_secs_f32());
                return Err(io::Error::new(io::ErrorKind::TimedOut, what));
            }
            match poll(&mut [PollFd::new(pipe, what)], PollTimeout::from(MOMENT)) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        let mut begin = Instant::now();
        while !bytes.is_empty() {
            match self.input.write(bytes) {
                Ok(written) if written > 0 => (bytes, begin) = (&bytes[written..], Instant::now()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(self.input.as_fd(), PollFlags::POLLOUT, begin)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(self.ended()),
            }
        }
        Ok(())
    }

    fn read_exact(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        let mut begin = Instant::now();
        while !bytes.is_empty() {
            match self.output.read(bytes) {
                Ok(read) if read > 0 => (bytes, begin) = (&mut bytes[read..], Instant::now()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(self.output.as_fd(), PollFlags::POLLIN, begin)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => return Err(self.ended()),
            }
        }
        Ok(())
    }

    /// A line of JSON.
    fn line(&mut self) -> io::Result<Value> {
        let mut line = Vec::new();
        let mut byte = [0];
        loop {
            self.read_exact(&mut byte)?;
            match byte {
                [b'\n'] => break,
                [byte] if line.len() < LINE => line.push(byte),
                _ => return Err(io::Error::other("python3 says too much")),
            }
        }
        serde_json::from_slice(&line).map_err(|_| self.nonsense(&String::from_utf8_lossy(&line)))
    }

    fn nonsense(&self, said: &impl fmt::Display) -> io::Error {
        io::Error::other(format!("python3 says {said}"))
    }

    /// The error that the script has closed a pipe, with the script's last words, if it has any.
    fn ended(&mut self) -> io::Error {
        let begin = Instant::now();
        let mut words = Vec::new();
        let mut part = [0; LINE];
        while begin.elapsed() < REST {
            match self.complaints.read(&mut part) {
                Ok(0) => break,
                Ok(read) => words.extend_from_slice(&part[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let _ =
                        poll(&mut [PollFd::new(self.complaints.as_fd(), PollFlags::POLLIN)], PollTimeout::from(MOMENT));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
            // The last ones count.
            words.drain(..words.len().saturating_sub(LINE));
        }
        let words = String::from_utf8_lossy(&words);
        let last = words.lines().rev().map(str::trim).find(|line| !line.is_empty());
        let what = last.map_or_else(|| "python3 has ended".to_owned(), |last| format!("python3 has ended: {last}"));
        io::Error::new(io::ErrorKind::UnexpectedEof, what)
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Ends a process. One that waits for a disk ends when that has answered, which is not waited for.
fn end(child: &mut Child) {
    let begin = Instant::now();
    let _ = child.kill();
    while begin.elapsed() < REST && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use nix::sys::signal::kill;
    use nix::unistd::Pid;

    use super::*;

    /// A program that is no Python.
    fn impostor(directory: &Path, script: &str) -> String {
        let path = directory.join("python3");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        path.display().to_string()
    }

    fn plain(directory: &Path) -> PlainFile {
        let content = crate::ContentOracle::new(3, 0, 100, 5, DType::F32);
        PlainFile::new(directory, 100, 20, &content, &mut |_| std::ops::ControlFlow::Continue(())).unwrap()
    }

    #[test]
    fn what_is_no_python_with_numpy_is_unavailable_and_says_why() {
        let directory = tempfile::tempdir().unwrap();
        for (script, why) in [
            ("exit 3", "has ended"),
            ("echo 'a: b' >&2; echo >&2; exit 3", "has ended: a: b"),
            ("echo hello", "says hello"),
            ("echo '{}'", "says {}"),
            ("echo '{\"missing\": \"python3 has no numpy: it is not there\"}'", "no numpy: it is not there"),
            ("yes hello | tr -d '\\n'", "says too much"),
            ("exec sleep 1000", "not answered for 0.2 s"),
        ] {
            let begin = Instant::now();
            let program = impostor(directory.path(), script);
            let patience = Duration::from_millis(if script.contains("sleep") { 200 } else { 20_000 });
            let error = NumpyProcess::of(&program, patience, || false).unwrap_err();
            assert!(matches!(error, RivalError::Unavailable { .. }), "{error}");
            assert!(error.to_string().contains(why), "{script}: {error}");
            assert!(begin.elapsed() < Duration::from_secs(15), "{script}");
        }
        let error = NumpyProcess::of("/no/such/python3", START, || false).unwrap_err().to_string();
        assert!(error.contains("/no/such/python3 cannot be run"), "{error}");
    }

    #[test]
    fn one_that_hangs_is_left_when_asked_and_killed() {
        let directory = tempfile::tempdir().unwrap();
        let plain = plain(directory.path());
        // It has numpy, maps the file, and then neither reads nor answers.
        let script = "echo '{\"version\": \"1\"}'; read line; echo '{}'; exec sleep 1000";
        let program = impostor(directory.path(), script);
        let begin = Instant::now();
        let stop = move || begin.elapsed() > Duration::from_millis(600);
        let process = NumpyProcess::of(&program, START, stop).unwrap();
        assert_eq!(process.version(), "1");
        let mut numpy = process.map(&plain, DType::F32, false).unwrap();
        let id = Pid::from_raw(numpy.python.child.id() as i32);
        // More than a pipe holds.
        let ids = vec![1; 100_000];
        let answer = numpy.lookup(&ids, &mut vec![0; 2_000_000], &mut vec![0; 100_000]);
        assert!(matches!(&answer, Err(RivalError::Process { .. })), "{answer:?}");
        assert!(begin.elapsed() < Duration::from_secs(15));
        assert!(kill(id, None).is_ok());
        drop(numpy);
        assert_eq!(kill(id, None), Err(Errno::ESRCH), "it is still there");
    }

    #[test]
    fn one_that_is_slow_runs_out_of_time_and_one_that_dies_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let plain = plain(directory.path());
        let hello = "echo '{\"version\": \"1\"}'; read line";
        let program = impostor(directory.path(), &format!("{hello}; echo '{{}}'; exec sleep 1000"));
        let mut numpy = NumpyProcess::of(&program, START, || false).unwrap().map(&plain, DType::F32, false).unwrap();
        numpy.python.patience = Duration::from_millis(100);
        let error = numpy.lookup(&[1], &mut [0; 20], &mut [0]).unwrap_err().to_string();
        assert!(error.contains("not answered"), "{error}");
        let program = impostor(directory.path(), &format!("{hello}; echo '{{}}'; echo 'Killed' >&2; exit 1"));
        let mut numpy = NumpyProcess::of(&program, START, || false).unwrap().map(&plain, DType::F32, false).unwrap();
        let error = numpy.lookup(&[1], &mut [0; 20], &mut [0]).unwrap_err().to_string();
        assert!(error.contains("has ended: Killed"), "{error}");
        let program = impostor(directory.path(), &format!("{hello}; echo '{{\"failed\": \"no such file\"}}'"));
        let error = NumpyProcess::of(&program, START, || false).unwrap().map(&plain, DType::F32, false).unwrap_err();
        assert!(error.to_string().contains("no such file"), "{error}");
    }
}
