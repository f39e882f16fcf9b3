//! Files of tables as drives, by their address: `attached:PATH[,tensor=[NAME=]GLOB]...`.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use warprow_formats::{FileTable, LockedFile, TableFile};
use warprow_layout::{RowSource, Table, TableSpec, VolumeError};
use wildmatch::WildMatch;

use crate::attach::{AttachOptions, AttachedTable, refusal};
use crate::attach_error::AttachError;
use crate::device::Device;
use crate::error::StoreError;
use crate::property::{Known, stranger};
use crate::skipped_tensor::SkippedTensor;

/// How such an address begins.
const SCHEME: &str = "attached:";
/// What separates a file from the names of tensors, and these from each other.
const TENSOR: &str = ",tensor=";
/// What comes before other properties.
const DIRECT: &str = ",direct=";
const DEPTH: &str = ",depth=";
const PROPERTIES: [&str; 3] = [TENSOR, DIRECT, DEPTH];
/// What a file of tables may have in its address.
const FILE: Known = Known { kind: "a file of tables", names: &["tensor", "direct", "depth"] };

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
    /// Which of its tensors: each `[NAME=]GLOB`. Empty: all that can be read where they are.
    pub tensors: Vec<String>,
    /// How its rows are read: `direct=`, `depth=`.
    pub options: AttachOptions,
}

impl AttachedFile {
    /// All tables of the file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), tensors: Vec::new(), options: AttachOptions::default() }
    }

    /// With the tensors that match, besides those before.
    #[must_use]
    pub fn with_tensor(mut self, pattern: impl Into<String>) -> Self {
        self.tensors.push(pattern.into());
        self
    }

    /// Whether `address` is one of a file of tables.
    pub fn is_address(address: &str) -> bool {
        address.starts_with(SCHEME)
    }

    /// The drive.
    pub(crate) fn open(&self) -> Result<Device, StoreError> {
        let file = TableFile::open(&self.path).map_err(|error| {
            let mistaken = FILE.mistaken(&self.to_string(), &self.path).filter(|_| !self.path.exists());
            mistaken.unwrap_or_else(|| AttachError::from(error).into())
        })?;
        let mut skipped: Vec<SkippedTensor> = file
            .skipped
            .iter()
            .map(|(name, reason)| SkippedTensor { name: name.clone(), reason: reason.clone() })
            .collect();
        let mut tables = Vec::new();
        for (name, table) in self.choose(&file)? {
            let spec = TableSpec::new(name, table.rows, table.dim, table.dtype);
            // By its shape and name first: the order of its ids may be a file to be read.
            let reason = match refusal(&spec) {
                None => elsewhere(&file, table)?.map(str::to_owned),
                refused => refused,
            };
            match reason {
                None => tables.push((spec, table.clone())),
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
        let locked = Arc::new(file.lock());
        let file = Arc::new(file);
        let attached = tables.into_iter().map(|(spec, table)| AttachedTable {
            spec,
            source: Arc::new(Kept { file: file.clone(), table, _locked: locked.clone() }),
        });
        Ok(Device::attached_with(&self.to_string(), attached.collect(), &self.options)?.with_skipped(skipped))
    }

    /// The tables that are meant, with what they are called.
    fn choose<'a>(&self, file: &'a TableFile) -> Result<Vec<(String, &'a FileTable)>, StoreError> {
        if self.tensors.is_empty() {
            return Ok(file.tables.iter().map(|table| (table.name.clone(), table)).collect());
        }
        let path = || self.path.clone();
        let mut names: HashMap<String, &str> = HashMap::new();
        let mut chosen = Vec::new();
        for pattern in &self.tensors {
            let matching = |glob: &str| {
                let glob = WildMatch::new(glob);
                file.tables.iter().filter(|table| glob.matches(&table.name)).collect::<Vec<_>>()
            };
            // A name may contain an equals sign: if the whole matches, it is a pattern.
            let (called, found) = match (matching(pattern), pattern.split_once('=')) {
                (found, Some((name, glob))) if found.is_empty() && !name.is_empty() => (Some(name), matching(glob)),
                (found, _) => (None, found),
            };
            match (called, found.len()) {
                (_, 0) => return Err(self.no_match(file, pattern)),
                (Some(_), matches @ 2..) => {
                    return Err(AttachError::Several { file: path(), pattern: pattern.clone(), matches }.into());
                }
                _ => {}
            }
            for table in found {
                let name = called.unwrap_or(&table.name).to_owned();
                match names.insert(name.clone(), &table.name) {
                    None => chosen.push((name, table)),
                    // A tensor that is chosen twice in the same way counts once.
                    Some(other) if other == table.name => {}
                    Some(_) => return Err(AttachError::SameName { file: path(), name }.into()),
                }
            }
        }
        Ok(chosen)
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
            let wrong = |accepted: &str| match stranger(value) {
                Some(name) => FILE.unknown(address, name),
                None => wrong(format!("{}{value} is not possible: give {accepted}", name.trim_start_matches(','))),
            };
            if name != TENSOR && seen.contains(&name) {
                return Err(Known::twice(address, name.trim_matches([',', '='])));
            }
            seen.push(name);
            match name {
                DIRECT => {
                    let direct = matches!(value, "0" | "1").then_some(value == "1");
                    file.options.direct = direct.ok_or_else(|| wrong("0 or 1"))?;
                }
                DEPTH => {
                    let depth = value.parse().ok().filter(|depth| (1..=1024).contains(depth));
                    file.options.depth = depth.ok_or_else(|| wrong("1 to 1024"))?;
                }
                _ => file.tensors.push(value.to_owned()),
            }
        }
        Ok(file)
    }
}

impl fmt::Display for AttachedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.path.display())?;
        self.tensors.iter().try_for_each(|tensor| write!(f, "{TENSOR}{tensor}"))?;
        let given = &self.options;
        let usual = AttachOptions::default();
        if given.direct != usual.direct {
            write!(f, "{DIRECT}{}", u8::from(given.direct))?;
        }
        if given.depth != usual.depth {
            write!(f, "{DEPTH}{}", given.depth)?;
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
}
