//! Checkpoints as others write them, byte by byte, and looking their rows up.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use warprow_layout::DType;
use warprow_lookup::{Batch, Feature, HostExecutor, HostOptions, Ids, Output, OutputRows, PlanOptions};
use warprow_store::{AttachError, CreateDrive, Device, DriveAddress, OpenOptions, Store, StoreError};

/// A tensor to be written.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    pub(crate) fn new(name: impl Into<String>, dtype: &'static str, shape: &[u64], bytes: Vec<u8>) -> Self {
        Self { name: name.into(), dtype, shape: shape.to_vec(), bytes }
    }
}

/// A safetensors file. `padding` spaces lie behind its header, which nobody has to round up: data may begin at any byte.
pub(crate) fn safetensors(tensors: &[Tensor], padding: usize) -> Vec<u8> {
    let mut header = String::from("{");
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.bytes.len();
        let comma = if at > 0 || header.len() > 1 { "," } else { "" };
        let Tensor { name, dtype, shape, .. } = tensor;
        write!(header, r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#)
            .unwrap();
        at = end;
    }
    header.push('}');
    header.extend(std::iter::repeat_n(' ', padding));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    tensors.iter().for_each(|tensor| bytes.extend(&tensor.bytes));
    bytes
}

/// A folder for files that can be read past the page cache, if there is one.
pub(crate) fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Writes files, each with its tensors, and an index of them.
pub(crate) fn checkpoint(folder: &Path, files: &[Vec<Tensor>]) -> PathBuf {
    let mut map = Vec::new();
    for (number, tensors) in files.iter().enumerate() {
        let name = format!("model-{number:05}.safetensors");
        let file = std::fs::File::create(folder.join(&name)).unwrap();
        std::io::Write::write_all(&mut &file, &safetensors(tensors, number * 3 % 8)).unwrap();
        file.sync_all().unwrap();
        map.extend(tensors.iter().map(|tensor| format!(r#""{}":"{name}""#, tensor.name)));
    }
    let index = folder.join("model.safetensors.index.json");
    std::fs::write(&index, format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#, map.join(","))).unwrap();
    index
}

/// Opens `attached:` of a folder with properties, such as `tensor=a`.
pub(crate) fn try_open(folder: &Path, properties: &str) -> Result<Store, StoreError> {
    let comma = if properties.is_empty() { "" } else { "," };
    let address: DriveAddress = format!("attached:{}{comma}{properties}", folder.display()).parse()?;
    let device = Device::open(&address, CreateDrive::Never)?;
    Store::open(&[device], &OpenOptions::default().with_read_only())
}

pub(crate) fn open(folder: &Path, properties: &str) -> Store {
    try_open(folder, properties).unwrap_or_else(|error| panic!("{properties}: {error}"))
}

/// What opening is refused with.
pub(crate) fn refused(folder: &Path, properties: &str) -> AttachError {
    match try_open(folder, properties) {
        Err(StoreError::Attached(error)) => error,
        Err(other) => panic!("{properties}: {other}"),
        Ok(_) => panic!("{properties}: it was attached"),
    }
}

/// All rows of a table, as they are stored.
pub(crate) fn stored(store: &Store, table: &str) -> Vec<u8> {
    let mut rows = Vec::new();
    store
        .scan(table, 0..u64::MAX, &mut |id, row| {
            assert_eq!(id * row.len() as u64, rows.len() as u64);
            rows.extend_from_slice(row);
            ControlFlow::Continue(())
        })
        .unwrap();
    rows
}

/// The bytes of the rows of ids, in outputs of type `out`.
pub(crate) fn look_up<'a>(store: &Store, table: &str, ids: impl Into<Ids<'a>>, out: DType, dram: u64) -> Vec<u8> {
    let ids = ids.into();
    let host = HostExecutor::attach(store, HostOptions::default().with_dram_bytes(dram)).unwrap();
    let options = PlanOptions::default().with_max(ids.len().max(1), ids.len().max(1)).with_out(out);
    let plan = host.plan(&[Feature::new("f", table)], options).unwrap();
    let mut slot = plan.slot().unwrap();
    let elements = ids.len() * plan.width();
    let batch = Batch::new(ids, ids.len());
    match out {
        DType::F32 => {
            let mut rows = vec![0f32; elements];
            slot.lookup(&batch, &mut Output::new(OutputRows::F32(&mut rows), plan.width())).unwrap();
            rows.iter().flat_map(|number| number.to_le_bytes()).collect()
        }
        DType::BF16 => {
            let mut rows = vec![half::bf16::ZERO; elements];
            slot.lookup(&batch, &mut Output::new(OutputRows::Bf16(&mut rows), plan.width())).unwrap();
            rows.iter().flat_map(|number| number.to_le_bytes()).collect()
        }
        DType::I8 => {
            let mut rows = vec![0i8; elements];
            slot.lookup(&batch, &mut Output::new(OutputRows::I8(&mut rows), plan.width())).unwrap();
            rows.iter().map(|number| number.cast_unsigned()).collect()
        }
        _ => {
            let mut rows = vec![0u8; elements];
            slot.lookup(&batch, &mut Output::new(OutputRows::U8(&mut rows), plan.width())).unwrap();
            rows
        }
    }
}

pub(crate) fn random_bytes(random: &mut fastrand::Rng, count: usize) -> Vec<u8> {
    std::iter::repeat_with(|| random.u8(..)).take(count).collect()
}
