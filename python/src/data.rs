//! Batches of data sets.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use warprow_traces::KeyType;
use warprow_traces::data::{
    self, DataColumns, DataFormat, DataOptions, DataSpec, DataWriteOptions, NextBatch, UsedBatches,
};
use warprow_workload::{GeneratedData, PublishedData};

use crate::error::{Kind, invalid, of_file, raise};
use crate::interrupt::Interrupt;

/// Labels or dense features: how many, or their names.
#[derive(FromPyObject)]
pub(crate) enum ColumnsArg {
    Count(u32),
    Named(Vec<String>),
}

impl ColumnsArg {
    fn columns(of: Option<Self>) -> DataColumns {
        match of {
            None => DataColumns::Unsaid,
            Some(Self::Count(count)) => DataColumns::Count(count),
            Some(Self::Named(names)) => DataColumns::Named(names),
        }
    }
}

/// What a data set is, by the names of Python's arguments.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct SpecArgs {
    format: Option<String>,
    keys: Option<String>,
    labels: Option<ColumnsArg>,
    dense: Option<ColumnsArg>,
    features: Vec<String>,
    hotness: Vec<u32>,
    integers: bool,
    log: bool,
    hex: bool,
    rows: Vec<u64>,
    sizes: Vec<u64>,
}

impl SpecArgs {
    fn spec(self, paths: Vec<PathBuf>) -> PyResult<DataSpec> {
        let format = self.format.map(|name| format_of("format", &name));
        let keys = self.keys.map(|name| keys_of(&name));
        Ok(DataSpec {
            paths,
            format: format.transpose()?,
            keys: keys.transpose()?,
            labels: ColumnsArg::columns(self.labels),
            dense: ColumnsArg::columns(self.dense),
            features: self.features,
            hotness: self.hotness,
            integers: self.integers,
            log: self.log,
            hex: self.hex,
            rows: self.rows,
            sizes: self.sizes,
        })
    }
}

fn format_of(argument: &str, name: &str) -> PyResult<DataFormat> {
    DataFormat::named(name).ok_or_else(|| {
        let known = DataFormat::ALL.map(DataFormat::name).join(", ");
        invalid(argument, format!("{argument}: {name:?} is no format of data sets; they are {known}"))
    })
}

fn keys_of(name: &str) -> PyResult<KeyType> {
    match name {
        "u32" => Ok(KeyType::U32),
        "i64" => Ok(KeyType::I64),
        _ => Err(invalid("keys", format!("keys: {name:?}: give u32 or i64"))),
    }
}

/// A file that is to be written: its path and format, the type of its keys, whether samples have sums, whether it replaces another.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct OutArgs {
    path: PathBuf,
    to: String,
    keys: String,
    sums: bool,
    replace: bool,
}

impl OutArgs {
    fn options(&self) -> PyResult<(DataFormat, DataWriteOptions)> {
        let options = DataWriteOptions { keys: keys_of(&self.keys)?, sums: self.sums, force: self.replace };
        Ok((format_of("to", &self.to)?, options))
    }
}

/// Writes a data set in another format. Returns how many samples it has.
#[pyfunction]
pub(crate) fn convert_data(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    args: SpecArgs,
    out: OutArgs,
    progress: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let spec = args.spec(paths)?;
    let (to, options) = out.options()?;
    let mut interrupt = Interrupt::new(progress);
    let done = py.detach(|| {
        let mut tick = |samples: u64, total: Option<u64>| interrupt.flow(samples, total.unwrap_or(samples));
        data::convert(&spec, &out.path, to, &options, &mut tick)
    });
    match done.map_err(of_file)? {
        Some(done) => Ok(done.samples),
        None => Err(interrupt.or(closed)),
    }
}

/// Writes samples of random numbers, of the shape of a published data set. Returns the rows of its features' tables by name.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "one a Python argument")]
pub(crate) fn generate_data(
    py: Python<'_>,
    name: &str,
    samples: u64,
    scale: u64,
    alpha: f64,
    seed: u64,
    out: OutArgs,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<(String, u64)>> {
    let published = PublishedData::named(name).ok_or_else(|| {
        let known = PublishedData::ALL.map(PublishedData::name).join(", ");
        invalid("name", format!("name: {name:?} is no published data set; they are {known}"))
    })?;
    let generated = GeneratedData::new(published, scale, alpha, seed).ok_or_else(|| {
        invalid("alpha", format!("alpha: {alpha}: give a number of 0 and more, and a scale of 1 and more"))
    })?;
    let (to, options) = out.options()?;
    let mut interrupt = Interrupt::new(progress);
    let done = py.detach(|| {
        let mut tick = |samples: u64, total: Option<u64>| interrupt.flow(samples, total.unwrap_or(samples));
        generated.write(&out.path, to, samples, &options, &mut tick)
    });
    match done.map_err(of_file)? {
        true => {
            let names = generated.shape().features.into_iter().map(|feature| feature.name);
            Ok(names.zip(generated.rows().iter().copied()).collect())
        }
        false => Err(interrupt.or(closed)),
    }
}

/// A data set that is read batch by batch.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct DataReader {
    /// `None`: closed.
    reader: Mutex<Option<data::DataReader>>,
    format: DataFormat,
    shape: data::DataShape,
    samples: Option<u64>,
    left_out: Vec<String>,
}

/// How long to wait before signals are looked for.
const EVERY: Duration = Duration::from_millis(50);

#[pymethods]
impl DataReader {
    #[new]
    fn new(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        args: SpecArgs,
        batch: usize,
        ahead: usize,
        drop_last: bool,
    ) -> PyResult<Self> {
        let spec = args.spec(paths)?;
        let options = DataOptions { batch, ahead, drop_last };
        let reader = py.detach(|| data::DataReader::open(&spec, &options)).map_err(of_file)?;
        let (format, shape, samples) = (reader.format(), reader.shape().clone(), reader.samples());
        let left_out = reader.left_out().to_vec();
        Ok(Self { reader: Mutex::new(Some(reader)), format, shape, samples, left_out })
    }

    /// What each sample has: the format, the names of labels and of dense features, names and hotness of sparse features; and what is left out.
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let features: Vec<_> = self.shape.features.iter().map(|it| (it.name.clone(), it.hotness)).collect();
        let shape = PyDict::new(py);
        shape.set_item("format", self.format.name())?;
        shape.set_item("labels", &self.shape.labels)?;
        shape.set_item("dense", &self.shape.dense)?;
        shape.set_item("features", features)?;
        shape.set_item("samples", self.samples)?;
        shape.set_item("left_out", &self.left_out)?;
        Ok(shape)
    }

    /// The next batch; `None` behind the last.
    fn next(&self, py: Python<'_>) -> PyResult<Option<DataBatch>> {
        loop {
            let next = py.detach(|| {
                let mut reader = self.reader.lock().map_err(|_| closed())?;
                let reader = reader.as_mut().ok_or_else(closed)?;
                Ok::<_, PyErr>((reader.wait(EVERY).map_err(of_file)?, reader.used()))
            })?;
            match next {
                (NextBatch::Batch(batch), used) => return Ok(Some(DataBatch::new(batch, used))),
                (NextBatch::Ended, _) => return Ok(None),
                (NextBatch::Waiting, _) => py.check_signals()?,
            }
        }
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.reader.lock().map(|mut reader| reader.take())));
    }
}

fn closed() -> PyErr {
    raise(Kind::Closed, "the reader of the data set is closed: open it again".to_owned())
}

/// A batch, whose memory arrays of Python's use where it is.
#[pyclass(frozen, module = "warprow._native")]
pub(crate) struct DataBatch {
    samples: usize,
    first: u64,
    /// Address and number of labels, dense features, ids and offsets.
    arrays: [(usize, usize); 4],
    /// Only ever taken, when no array refers to it any more.
    batch: Mutex<Option<data::DataBatch>>,
    used: UsedBatches,
}

impl DataBatch {
    fn new(mut batch: data::DataBatch, used: UsedBatches) -> Self {
        let (samples, first) = (batch.samples(), batch.first());
        let arrays = batch.addresses();
        Self { samples, first, arrays, batch: Mutex::new(Some(batch)), used }
    }
}

#[pymethods]
impl DataBatch {
    #[getter]
    fn samples(&self) -> usize {
        self.samples
    }

    #[getter]
    fn first(&self) -> u64 {
        self.first
    }

    /// Address and number of labels and dense features (f32), of ids and offsets (i64). They are valid while this object lives, which
    /// neither reads nor writes there meanwhile.
    fn arrays(&self) -> [(usize, usize); 4] {
        self.arrays
    }
}

impl Drop for DataBatch {
    fn drop(&mut self) {
        if let Some(batch) = self.batch.get_mut().ok().and_then(Option::take) {
            self.used.put(batch);
        }
    }
}
