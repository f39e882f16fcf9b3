//! Files of tables as drives, by their address:
//! `attached:PATH[,tensor=[NAME=]GLOB[,scales=GLOB][,global=GLOB][,dim=N][,rows=LO..HI]]...`.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use warprow_formats::{ChooseTensors, FileTable, LockedFile, ReadOptions, TableFile, TableFormat};
use warprow_layout::{DType, RowSource, Table, TableSpec, VolumeError};
use wildmatch::WildMatch;

use crate::attach::{AttachOptions, AttachedTable, refusal};
use crate::attach_error::AttachError;
use crate::attached_choice::{choose, needed};
use crate::attached_files::LookAtNames;
use crate::attached_tensor::{AttachedTensor, TensorScales};
use crate::device::Device;
use crate::error::StoreError;
use crate::property::{Known, stranger};
use crate::skipped_tensor::SkippedTensor;

/// How such an address begins.
const SCHEME: &str = "attached:";
/// What separates a file from the names of tensors, and these from each other.
const TENSOR: &str = ",tensor=";
/// What comes before what is said of a tensor.
const SCALES: &str = ",scales=";
const GLOBAL: &str = ",global=";
const ROUND: &str = ",round=";
const DIM: &str = ",dim=";
const ROWS: &str = ",rows=";
/// What comes before other properties.
const DIRECT: &str = ",direct=";
const DEPTH: &str = ",depth=";
const WORKERS: &str = ",workers=";
const RESIDENT: &str = ",resident=";
const LINKS: &str = ",links=";
const PROPERTIES: [&str; 11] = [TENSOR, SCALES, GLOBAL, ROUND, DIM, ROWS, DIRECT, DEPTH, WORKERS, RESIDENT, LINKS];
/// What a file of tables may have in its address.
const FILE: Known = Known {
    kind: "a file of tables",
    names: &["tensor", "direct", "depth", "workers", "resident", "links", "scales", "global", "round", "dim", "rows"],
};

/// A file of tables that stay where they are, as a drive to be read: `attached:PATH`, or `attached:PATH,tensor=GLOB` for some of its
/// tensors, where `*` stands for any characters and `?` for one; `tensor=NAME=GLOB` gives the only one that matches another name.
///
/// ```
/// # use warprow_lookup::*;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("m.safetensors");
/// # let mut file = br#"{"emb.a":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},"step":{"dtype":"I64","shape":[1],"data_offsets":[24,32]}}"#.to_vec();
/// # file.splice(0..0, (file.len() as u64).to_le_bytes());
/// # file.extend((0..6).flat_map(|i| (i as f32).to_le_bytes()).chain([0; 8]));
/// # std::fs::write(&path, file)?;
/// // A safetensors file with a table of three rows, and with a tensor that is none.
/// let address: DriveAddress = format!("attached:{},tensor=a=emb.*", path.display()).parse()?;
/// let device = Device::open(&address, CreateDrive::Never)?;
/// let store = Store::open(&[device], &OpenOptions::default().with_read_only())?;
/// let host = HostExecutor::attach(&store, HostOptions::default())?;
/// let plan = host.plan(&[Feature::new("f", "a")], PlanOptions::default())?;
/// let mut rows = [0.0f32; 4];
/// plan.slot()?.lookup(&Batch::new(&[2i64, 0], 2), &mut Output::new(OutputRows::F32(&mut rows), 2))?;
/// assert_eq!(rows, [4.0, 5.0, 0.0, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttachedFile {
    /// The file, or the folder of several that belong together.
    pub path: PathBuf,
    /// Which of its tensors. Empty: all that can be read where they are, shards put together, with the scales that they have.
    pub tensors: Vec<AttachedTensor>,
    /// How its rows are read: `depth=`, `workers=`. `direct` is set by the field of that name.
    pub options: AttachOptions,
    /// Whether scales in tensors of their own are read into memory when the file is opened, rather than with each row:
    /// `resident=`.
    pub resident: bool,
    /// Whether files are read past the page cache, as [`AttachOptions::direct`]. `None`: those of a folder or an index are, where
    /// that can be done, and a single file is read through it.
    pub direct: Option<bool>,
    /// Whether files may be symbolic links out of the folder: `links=`.
    pub links: bool,
}

impl AttachedFile {
    /// All tables of the file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            tensors: Vec::new(),
            options: AttachOptions::default(),
            resident: false,
            direct: None,
            links: false,
        }
    }

    /// With the tensors that match, besides those before.
    #[must_use]
    pub fn with_tensor(mut self, tensor: impl Into<AttachedTensor>) -> Self {
        self.tensors.push(tensor.into());
        self
    }

    /// With scales in memory, if `resident` is set.
    #[must_use]
    pub fn with_resident_scales(self, resident: bool) -> Self {
        Self { resident, ..self }
    }

    /// Whether `address` is one of a file of tables.
    pub fn is_address(address: &str) -> bool {
        address.starts_with(SCHEME)
    }

    /// The drive.
    pub(crate) fn open(&self) -> Result<Device, StoreError> {
        let read = ReadOptions { follow_links: self.links, ..ReadOptions::default() };
        let needed = |names: &[&str]| needed(names, &self.tensors);
        let choose_files: Option<&ChooseTensors<'_>> = if self.tensors.is_empty() { None } else { Some(&needed) };
        let file = TableFile::open_choosing(&self.path, &read, choose_files).map_err(|error| {
            let mistaken = FILE.mistaken(&self.to_string(), &self.path).filter(|_| !self.path.exists());
            mistaken.unwrap_or_else(|| AttachError::from(error).into())
        })?;
        let mut skipped: Vec<SkippedTensor> = file
            .skipped
            .iter()
            .map(|(name, reason)| SkippedTensor { name: name.clone(), reason: reason.clone() })
            .collect();
        let choice = choose(&file, &self.tensors).map_err(|error| match error {
            AttachError::NoMatch { pattern, .. } => self.no_match(&file, &pattern),
            other => other.into(),
        })?;
        skipped.extend(choice.skipped);
        let mut tables = Vec::new();
        for (name, table) in choice.tables {
            let spec = TableSpec::new(name, table.rows, table.dim, table.dtype);
            // By its shape and name first: the order of its ids may be a file to be read.
            let reason = match refusal(&spec) {
                None => elsewhere(&file, &table)?.map(str::to_owned),
                refused => refused,
            };
            match reason {
                None => tables.push((spec, table)),
                Some(reason) if self.tensors.is_empty() => skipped.push(SkippedTensor { name: spec.name, reason }),
                Some(reason) => {
                    let file = self.path.clone();
                    let tensor = table.name.clone();
                    return Err(AttachError::Stays { file, tensor, reason }.into());
                }
            }
        }
        if tables.is_empty() {
            return Err(AttachError::Nothing { file: self.path.clone(), skipped }.into());
        }
        // Nobody is to write over it meanwhile.
        let locked = Arc::new(file.lock_for_reading().map_err(AttachError::from)?);
        if self.resident {
            for (_, table) in &mut tables {
                *table = file.with_resident_scales(table).map_err(AttachError::from)?;
            }
        }
        let file = Arc::new(file);
        let attached = tables.into_iter().map(|(spec, table)| AttachedTable {
            spec,
            source: Arc::new(Kept { file: file.clone(), table, _locked: locked.clone() }),
        });
        let attached: Vec<AttachedTable> = attached.collect();
        let open = |direct: bool| {
            let names: Arc<TableFile> = file.clone();
            let names: LookAtNames = Box::new(move || names.replaced());
            let options = self.options.with_direct(direct);
            Device::attached_by(&self.to_string(), attached.clone(), &options, Some(names), Some(&self.path))
        };
        // Checkpoints are larger than memory, and their rows are to push nothing else out of it.
        let is_checkpoint = matches!(file.format, TableFormat::SafetensorsIndex) || self.path.is_dir();
        let device = match self.direct {
            Some(direct) => open(direct)?,
            None if is_checkpoint => open(true).or_else(|error| {
                tracing::warn!("{}: rows are read through the page cache: {error}", self.path.display());
                open(false)
            })?,
            None => open(false)?,
        };
        // The device takes files that were written to since their headers were read for what they are now.
        file.unchanged().map_err(AttachError::from)?;
        Ok(device.with_skipped(skipped))
    }

    fn no_match(&self, file: &TableFile, pattern: &str) -> StoreError {
        // Names may have commas and equals signs; of none that matches, it is another property.
        if let Some(name) = stranger(pattern) {
            return FILE.unknown(&self.to_string(), name);
        }
        let glob = WildMatch::new(pattern.split_once('=').map_or(pattern, |(_, glob)| glob));
        let error = match file.skipped.iter().find(|(name, _)| glob.matches(name)) {
            Some((name, reason)) => AttachError::Stays {
                file: self.path.clone(),
                tensor: name.clone(),
                reason: format!("it is no table: {reason}"),
            },
            None => AttachError::NoMatch {
                file: self.path.clone(),
                pattern: pattern.to_owned(),
                tensors: file.tables.iter().map(|table| table.name.clone()).collect(),
            },
        };
        error.into()
    }
}

/// Why rows cannot be read where they are, by their ids; `None`: they can.
fn elsewhere(file: &TableFile, table: &FileTable) -> Result<Option<&'static str>, AttachError> {
    Ok(match table {
        _ if table.is_in_pages() => Some("it stands in pages of a Parquet file: its rows are not one after another"),
        _ if table.is_sequential() => Some("it is compressed: its rows cannot be read where they are"),
        _ if file.order(table)?.is_some() => Some("it has its rows in another order than that of their ids"),
        _ => None,
    })
}

impl FromStr for AttachedFile {
    type Err = StoreError;

    fn from_str(address: &str) -> Result<Self, StoreError> {
        let wrong = |reason: String| StoreError::Address { address: address.to_owned(), reason };
        let mut rest = address.strip_prefix(SCHEME).unwrap_or_default();
        let mut properties = Vec::new();
        // From the last to the first. A comma belongs to the path, or to the name before it, unless a property follows.
        while let Some((at, name)) = PROPERTIES.iter().filter_map(|name| Some((rest.rfind(name)?, *name))).max() {
            properties.push((name, rest.get(at + name.len()..).unwrap_or_default()));
            rest = rest.get(..at).unwrap_or_default();
        }
        if rest.is_empty() {
            return Err(wrong(format!("it names no file: give {SCHEME}PATH")));
        }
        let mut file = Self::new(rest);
        let mut seen = Vec::new();
        for (name, value) in properties.into_iter().rev() {
            let known = name.trim_matches([',', '=']);
            let wrong = |accepted: &str| match stranger(value) {
                Some(name) => FILE.unknown(address, name),
                None => wrong(format!("{known}={value} is not possible: give {accepted}")),
            };
            let number = |most: u32| value.parse().ok().filter(|number| (1..=most).contains(number));
            let bit = || matches!(value, "0" | "1").then_some(value == "1");
            if name == TENSOR {
                // What is said of the tensor before is said of it alone.
                seen.retain(|name| ![SCALES, GLOBAL, ROUND, DIM, ROWS].contains(name));
                file.tensors.push(value.into());
                continue;
            }
            if seen.contains(&name) {
                return Err(Known::twice(address, known));
            }
            seen.push(name);
            match name {
                DIRECT => file.direct = Some(bit().ok_or_else(|| wrong("0 or 1"))?),
                LINKS => file.links = bit().ok_or_else(|| wrong("0 or 1"))?,
                RESIDENT => file.resident = bit().ok_or_else(|| wrong("0 or 1"))?,
                DEPTH => file.options.depth = number(1024).ok_or_else(|| wrong("1 to 1024"))?,
                WORKERS => file.options.workers = number(64).ok_or_else(|| wrong("1 to 64"))?,
                _ => {
                    let tensor = file.tensors.last_mut().ok_or_else(|| Known::no_tensor(address, known))?;
                    match name {
                        SCALES if value.is_empty() => tensor.scales = TensorScales::None,
                        SCALES => tensor.scales = TensorScales::Of(value.to_owned()),
                        GLOBAL => tensor.global = Some(value.to_owned()),
                        ROUND => {
                            let types = [DType::F32, DType::F16, DType::BF16];
                            let dtype = types.into_iter().find(|dtype| dtype.name() == value);
                            tensor.round = Some(dtype.ok_or_else(|| wrong("f32, f16 or bf16"))?);
                        }
                        DIM => tensor.dim = Some(number(u32::MAX).ok_or_else(|| wrong("a number from 1 on"))?),
                        _ => tensor.rows = Some(range(value).ok_or_else(|| wrong("LO..HI, two numbers"))?),
                    }
                }
            }
        }
        Ok(file)
    }
}

/// `LO..HI`, of which the first is smaller.
fn range(text: &str) -> Option<Range<u64>> {
    let (begin, end) = text.split_once("..")?;
    let range = begin.parse().ok()?..end.parse().ok()?;
    (!range.is_empty()).then_some(range)
}

impl fmt::Display for AttachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.path.display())?;
        self.tensors.iter().try_for_each(|tensor| write!(f, "{TENSOR}{tensor}"))?;
        let given = &self.options;
        let usual = AttachOptions::default();
        if let Some(direct) = self.direct {
            write!(f, "{DIRECT}{}", u8::from(direct))?;
        }
        if given.depth != usual.depth {
            write!(f, "{DEPTH}{}", given.depth)?;
        }
        if given.workers != usual.workers {
            write!(f, "{WORKERS}{}", given.workers)?;
        }
        if self.resident {
            write!(f, "{RESIDENT}1")?;
        }
        if self.links {
            write!(f, "{LINKS}1")?;
        }
        Ok(())
    }
}

/// A table in a file that it holds open.
struct Kept {
    file: Arc<TableFile>,
    table: FileTable,
    _locked: Arc<Vec<LockedFile>>,
}

impl RowSource for Kept {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> io::Result<()> {
        self.file.rows(&self.table).read(first, row_bytes, rows)
    }

    fn check(&self, table: &Table) -> Result<(), VolumeError> {
        self.file.rows(&self.table).check(table)
    }

    fn stretches(&self, first: u64, count: u64, row_bytes: usize, each: &mut dyn FnMut(&File, u64, u64)) {
        self.file.rows(&self.table).stretches(first, count, row_bytes, each);
    }

    fn stored_bytes(&self) -> Option<usize> {
        self.file.rows(&self.table).stored_bytes()
    }

    fn assemble(&self, first: u64, row_bytes: usize, stored: &[u8], rows: &mut [u8]) -> io::Result<()> {
        self.file.rows(&self.table).assemble(first, row_bytes, stored, rows)
    }
}
