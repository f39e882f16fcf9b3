//! A mapped file of rows, as people keep tables who have no store: one row after another, in the order of ids.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde_json::{Value, json};
use warprow_dma::FileMapping;
use warprow_workload::{Content, Oracle};
use zerocopy::{FromBytes, IntoBytes};

use crate::lookup::Contender;

/// What numpy runs.
const SCRIPT: &str = include_str!("mapped.py");
/// Bytes that are written at a time.
const PART: usize = 1 << 20;

/// A file with the rows of a table, without a name.
#[derive(Debug)]
pub(crate) struct PlainFile {
    file: File,
    rows: u64,
    row_bytes: usize,
}

impl PlainFile {
    /// Writes all rows of `content` to a new file in `directory`, durably.
    pub(crate) fn new(directory: &Path, content: &Oracle) -> anyhow::Result<Self> {
        let (rows, row_bytes) = (content.rows(), content.row_bytes());
        let file = tempfile::tempfile_in(directory).with_context(|| directory.display().to_string())?;
        let at_once = (PART / row_bytes).max(1);
        let mut part = vec![0; at_once * row_bytes];
        for first in (0..rows).step_by(at_once) {
            let count = (rows - first).min(at_once as u64) as usize;
            let part = &mut part[..count * row_bytes];
            part.chunks_exact_mut(row_bytes).zip(first..).for_each(|(row, id)| content.fill(id, row));
            file.write_all_at(part, first * row_bytes as u64).context("the plain file cannot be written")?;
        }
        // A mapping of ours has whole words.
        file.set_len((rows * row_bytes as u64).next_multiple_of(4096))?;
        file.sync_all()?;
        Ok(Self { file, rows, row_bytes })
    }

    /// How any process opens it.
    fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Rows from `first` on.
    pub(crate) fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        self.file.read_exact_at(rows, first * row_bytes as u64)
    }

    /// Reads all of it once, so that the page cache has it.
    pub(crate) fn warm(&self) -> anyhow::Result<()> {
        let (mut part, mut at) = (vec![0; PART], 0);
        loop {
            match self.file.read_at(&mut part, at)? {
                0 => return Ok(()),
                read => at += read as u64,
            }
        }
    }

    /// Has the page cache forget what nobody has mapped of it.
    pub(crate) fn evict(&self) -> anyhow::Result<()> {
        evict(&self.file)
    }
}

/// Has the page cache forget what nobody has mapped of a file.
pub(crate) fn evict(file: &File) -> anyhow::Result<()> {
    file.sync_all()?;
    Ok(posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?)
}

/// A loop in Rust that copies rows from a mapping.
#[derive(Debug)]
pub(crate) struct Loop {
    mapping: FileMapping,
    rows: u64,
    row_bytes: usize,
}

impl Loop {
    pub(crate) fn new(plain: &PlainFile) -> anyhow::Result<Self> {
        let mapping = FileMapping::new(&plain.file, plain.file.metadata()?.len())?;
        Ok(Self { mapping, rows: plain.rows, row_bytes: plain.row_bytes })
    }
}

impl Contender for Loop {
    fn answer(&mut self, ids: &[i64], rows: &mut [f32], mask: &mut [u8]) -> anyhow::Result<()> {
        for ((&id, row), mask) in ids.iter().zip(rows.as_mut_bytes().chunks_exact_mut(self.row_bytes)).zip(mask) {
            ensure!((0..self.rows as i64).contains(&id), "id {id} is not in the file");
            self.mapping.read(id as usize * self.row_bytes, row)?;
            *mask = 1;
        }
        Ok(())
    }
}

/// `numpy.memmap` in a process of its own, which is told ids and answers with rows. What counts is the time that it takes for them,
/// not that of the pipes.
#[derive(Debug)]
pub(crate) struct Numpy {
    process: Child,
    ids: ChildStdin,
    answers: BufReader<ChildStdout>,
    took: Duration,
    /// Its version.
    pub(crate) version: String,
}

impl Numpy {
    /// Starts it. `Err` of a text: there is no Python, or no numpy for it.
    pub(crate) fn new(plain: &PlainFile, cold: bool) -> anyhow::Result<Result<Self, String>> {
        let asked = json!({
            "path": plain.path(),
            "rows": plain.rows,
            "row_bytes": plain.row_bytes,
            "cold": cold,
        });
        let mut command = Command::new("python3");
        command.args(["-c", SCRIPT]).arg(asked.to_string());
        let mut process = match command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() {
            Ok(process) => process,
            Err(error) => return Ok(Err(format!("python3 cannot be run: {error}"))),
        };
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (ids, answers) = pipes.context("a process without pipes")?;
        let mut numpy =
            Self { process, ids, answers: BufReader::new(answers), took: Duration::ZERO, version: String::new() };
        let mut line = Vec::new();
        loop {
            let mut byte = [0];
            numpy.answers.read_exact(&mut byte).context("python3 has ended before it said anything")?;
            match byte {
                [b'\n'] => break,
                [byte] if line.len() < 4096 => line.push(byte),
                _ => bail!("python3 says too much"),
            }
        }
        let said: Value = serde_json::from_slice(&line).context("what python3 says is no JSON")?;
        if let Some(missing) = said.get("missing").and_then(Value::as_str) {
            return Ok(Err(missing.to_owned()));
        }
        numpy.version = said.get("version").and_then(Value::as_str).unwrap_or("?").to_owned();
        Ok(Ok(numpy))
    }
}

impl Contender for Numpy {
    fn answer(&mut self, ids: &[i64], rows: &mut [f32], mask: &mut [u8]) -> anyhow::Result<()> {
        let ended = "numpy has ended";
        self.ids.write_all(&(ids.len() as u64).to_le_bytes()).context(ended)?;
        self.ids.write_all(ids.as_bytes()).context(ended)?;
        self.ids.flush().context(ended)?;
        let mut took = 0u64;
        self.answers.read_exact(took.as_mut_bytes()).context(ended)?;
        self.answers.read_exact(rows.as_mut_bytes()).context(ended)?;
        let took = u64::read_from_bytes(took.as_bytes()).unwrap_or(0);
        self.took = Duration::from_nanos(u64::from_le(took));
        mask.fill(1);
        Ok(())
    }

    fn took(&self) -> Option<Duration> {
        Some(self.took)
    }
}

impl Drop for Numpy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use warprow_layout::DType;

    use super::*;

    #[test]
    fn all_answer_with_what_the_file_has() {
        let directory = tempfile::tempdir().unwrap();
        let content = Oracle::new(3, 0, 3001, 5, DType::F32);
        let plain = PlainFile::new(directory.path(), &content).unwrap();
        plain.warm().unwrap();
        let mut contenders: Vec<Box<dyn Contender>> = vec![Box::new(Loop::new(&plain).unwrap())];
        for cold in [false, true] {
            match Numpy::new(&plain, cold).unwrap() {
                Ok(numpy) => contenders.push(Box::new(numpy)),
                Err(reason) => eprintln!("skipped: {reason}"),
            }
        }
        let ids: Vec<i64> = [0, 3000, 7, 7].into_iter().chain((0..2000).map(|id| id * 17 % 3001)).collect();
        let mut wanted = vec![0f32; ids.len() * 5];
        wanted.as_mut_bytes().chunks_exact_mut(20).zip(&ids).for_each(|(row, &id)| content.fill(id as u64, row));
        for contender in &mut contenders {
            for _ in 0..2 {
                let (mut rows, mut mask) = (vec![0f32; wanted.len()], vec![0; ids.len()]);
                plain.evict().unwrap();
                contender.answer(&ids, &mut rows, &mut mask).unwrap();
                assert!(rows.as_bytes() == wanted.as_bytes() && mask.iter().all(|&it| it == 1));
                assert!(contender.took().is_none_or(|took| !took.is_zero()));
            }
        }
        assert!(Loop::new(&plain).unwrap().answer(&[3001], &mut [0.0; 5], &mut [0]).is_err());
    }
}
