//! Batches of a data set, made on a thread of their own.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use warprow_formats::{FileError, FileErrorKind};

use super::batch::DataBatch;
use super::options::{DataOptions, MAX_AHEAD, MAX_BATCH};
use super::shape::DataShape;
use super::source::DataSource;
use super::spec::{DataFormat, DataSpec};

/// A data set that is read batch by batch, from the first sample to the last, or to the first error.
///
/// A thread reads ahead while batches are used. It holds [`DataOptions::ahead`] batches and one that is being made, whatever the size of
/// the files. Dropping the reader ends the thread, after the batch that it is making.
pub struct DataReader {
    path: PathBuf,
    format: DataFormat,
    shape: DataShape,
    samples: Option<u64>,
    left_out: Vec<String>,
    /// Gone only while the reader is dropped: then the thread ends.
    batches: Option<Receiver<Result<DataBatch, FileError>>>,
    used: UsedBatches,
    thread: Option<JoinHandle<()>>,
    given: u64,
    ended: bool,
}

/// Takes batches that nobody uses any more, whose memory a reader then uses again.
#[derive(Debug, Clone)]
pub struct UsedBatches(SyncSender<DataBatch>);

/// What a reader has.
#[derive(Debug)]
pub enum NextBatch {
    /// The next batch.
    Batch(DataBatch),
    /// Nothing yet: the next batch is being made.
    Waiting,
    /// No further batch: all samples were given.
    Ended,
}

impl std::fmt::Debug for DataReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataReader").field("path", &self.path).field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl UsedBatches {
    /// Takes `batch`. If as many wait as the reader needs, or the reader is gone, the memory is freed.
    pub fn put(&self, batch: DataBatch) {
        let _ = self.0.try_send(batch);
    }
}

impl DataReader {
    /// Opens a data set, reads the headers of its files, and begins to read samples.
    ///
    /// # Errors
    /// What the files contradict themselves or each other in, settings that do not fit them, and batches of more samples, or more batches
    /// ahead, than [`DataOptions`] allows.
    pub fn open(spec: &DataSpec, options: &DataOptions) -> Result<Self, FileError> {
        let path = spec.path().to_owned();
        let unclear = |what: String, remedy: String| FileError::new(FileErrorKind::Unclear, &path, what, remedy);
        let DataOptions { batch, ahead, drop_last } = *options;
        for (value, most, of) in [(batch, MAX_BATCH, "samples of a batch"), (ahead, MAX_AHEAD, "batches ahead")] {
            if !(1..=most).contains(&value) {
                return Err(unclear(format!("{value} {of} are asked for"), format!("ask for 1 to {most}")));
            }
        }
        let mut source = DataSource::open(spec, batch)?;
        let (format, shape, samples) = (source.format(), source.shape().clone(), source.samples());
        let left_out = source.left_out().to_vec();
        let (made, batches) = sync_channel(ahead);
        let (used, empty) = sync_channel::<DataBatch>(ahead + 2);
        let make = move || {
            loop {
                let mut next = empty.try_recv().unwrap_or_default();
                let filled = source.fill(&mut next);
                let is_wanted = |next: &DataBatch| !drop_last || next.samples() == batch;
                let next = match filled {
                    Ok(true) if is_wanted(&next) => Ok(next),
                    Ok(_) => return,
                    Err(error) => Err(error),
                };
                let failed = next.is_err();
                if made.send(next).is_err() || failed {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("warprow-data".to_owned())
            .spawn(make)
            .map_err(|error| FileError::io(&path, "cannot be read on a thread of its own", error))?;
        let samples = samples.map(|samples| if drop_last { samples - samples % batch as u64 } else { samples });
        Ok(Self {
            path,
            format,
            shape,
            samples,
            left_out,
            batches: Some(batches),
            used: UsedBatches(used),
            thread: Some(thread),
            given: 0,
            ended: false,
        })
    }

    /// What it was read as.
    pub fn format(&self) -> DataFormat {
        self.format
    }

    /// What each sample has.
    pub fn shape(&self) -> &DataShape {
        &self.shape
    }

    /// The names of columns, or of arrays of an archive, that are left out because no label, dense feature or sparse feature can have their type:
    /// strings, dates, floating-point numbers of 16 bits.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// The samples of all batches together, where the files' headers tell; `None`: only reading tells.
    pub fn samples(&self) -> Option<u64> {
        self.samples
    }

    /// Where to put batches that are used up.
    pub fn used(&self) -> UsedBatches {
        self.used.clone()
    }

    /// The next batch; `None` behind the last. Waits for the thread that reads.
    pub fn next_batch(&mut self) -> Result<Option<DataBatch>, FileError> {
        loop {
            match self.wait(Duration::from_secs(1))? {
                NextBatch::Batch(batch) => return Ok(Some(batch)),
                NextBatch::Waiting => {}
                NextBatch::Ended => return Ok(None),
            }
        }
    }

    /// The next batch, if it is there within `patience`.
    pub fn wait(&mut self, patience: Duration) -> Result<NextBatch, FileError> {
        if self.ended {
            return Ok(NextBatch::Ended);
        }
        let Some(batches) = &self.batches else { return Ok(NextBatch::Ended) };
        let next = match batches.recv_timeout(patience) {
            Err(RecvTimeoutError::Timeout) => return Ok(NextBatch::Waiting),
            Ok(next) => next.map(Some),
            Err(RecvTimeoutError::Disconnected) => self.end(),
        };
        self.ended = !matches!(next, Ok(Some(_)));
        Ok(match next? {
            Some(batch) => {
                self.given += batch.samples() as u64;
                NextBatch::Batch(batch)
            }
            None => NextBatch::Ended,
        })
    }

    /// What it means that the thread has ended: that there are no more samples, unless it has panicked.
    fn end(&mut self) -> Result<Option<DataBatch>, FileError> {
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => {
                let what = format!("the thread that reads it ended after {} samples", self.given);
                let remedy = "this is a bug of Warprow: report it, with the file";
                Err(FileError::new(FileErrorKind::Io, &self.path, what, remedy))
            }
            _ => Ok(None),
        }
    }
}

impl Iterator for DataReader {
    type Item = Result<DataBatch, FileError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}

impl Drop for DataReader {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // What it panicked at, if it did, no longer matters.
            let _ = thread.join();
        }
    }
}
