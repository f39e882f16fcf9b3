//! Archives of NumPy's arrays: labels and dense features in arrays of numbers, of one or two dimensions; the ids of a sparse feature in an
//! array of integers, `[samples]` or `[samples, n]`, or `[ids]` beside one of offsets.

use std::path::Path;

use warprow_formats::{ArchivedArray, ArrayArchive, ArrayReader, FileError, FileErrorKind, KeyType};

use super::files::{DataFiles, FileSamples};
use super::opened::OpenedData;
use super::roles::Roles;
use super::shape::{DataFeature, DataShape, numbered};
use super::spec::{DataColumns, DataSpec};
use super::staging::{MAX_BATCH_IDS, Staging};

/// The names that our own writer gives.
pub(super) const LABELS: &str = "labels";
pub(super) const DENSE: &str = "dense";
/// What the name of an array of offsets has behind the feature's.
pub(super) const OFFSETS: &str = ".offsets";

/// Types of numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    F4,
    F8,
    I1,
    U1,
    I4,
    I8,
    U4,
    U8,
}

impl Kind {
    fn of(array: &ArchivedArray) -> Option<Self> {
        Some(match &*array.descr {
            "<f4" => Self::F4,
            "<f8" => Self::F8,
            "|i1" => Self::I1,
            "|u1" | "|b1" => Self::U1,
            "<i4" => Self::I4,
            "<i8" => Self::I8,
            "<u4" => Self::U4,
            "<u8" => Self::U8,
            _ => return None,
        })
    }

    fn is_float(self) -> bool {
        matches!(self, Self::F4 | Self::F8)
    }

    /// As the type of keys.
    fn key(self) -> Option<KeyType> {
        Some(match self {
            Self::I4 => KeyType::I32,
            Self::I8 => KeyType::I64,
            Self::U4 => KeyType::U32,
            Self::U8 => KeyType::U64,
            _ => return None,
        })
    }

    /// Appends the numbers of `bytes` as floats.
    fn floats(self, bytes: &[u8], to: &mut Vec<f32>) {
        match self {
            Self::F4 => to.extend(bytes.as_chunks().0.iter().map(|&it| f32::from_le_bytes(it))),
            Self::F8 => to.extend(bytes.as_chunks().0.iter().map(|&it| f64::from_le_bytes(it) as f32)),
            Self::I1 => to.extend(bytes.iter().map(|&it| f32::from(it as i8))),
            Self::U1 => to.extend(bytes.iter().map(|&it| f32::from(it))),
            Self::I4 => to.extend(bytes.as_chunks().0.iter().map(|&it| i32::from_le_bytes(it) as f32)),
            Self::I8 => to.extend(bytes.as_chunks().0.iter().map(|&it| i64::from_le_bytes(it) as f32)),
            Self::U4 => to.extend(bytes.as_chunks().0.iter().map(|&it| u32::from_le_bytes(it) as f32)),
            Self::U8 => to.extend(bytes.as_chunks().0.iter().map(|&it| u64::from_le_bytes(it) as f32)),
        }
    }
}

/// What an archive has, by its arrays' names.
#[derive(Debug, Clone, PartialEq)]
struct Layout {
    shape: DataShape,
    roles: Roles,
}

/// An array of floats: how many each sample has.
struct Floats {
    reader: ArrayReader,
    kind: Kind,
    size: usize,
    width: usize,
}

/// An array of ids.
struct Ids {
    name: String,
    reader: ArrayReader,
    key: KeyType,
    /// How many each sample has, or where they end.
    each: Result<usize, Ends>,
}

/// Offsets, of which those before were taken.
struct Ends {
    reader: ArrayReader,
    key: KeyType,
    last: u64,
    ids: u64,
}

struct Arrays {
    path: std::path::PathBuf,
    labels: Vec<Floats>,
    dense: Vec<Floats>,
    features: Vec<Ids>,
    left: u64,
    bytes: Vec<u8>,
    floats: Vec<f32>,
    keys: Vec<u64>,
    lengths: Vec<u32>,
}

/// Samples, and ids, that are read at once.
const SAMPLES: usize = 2048;
const IDS: usize = 1 << 20;

pub(super) fn open(spec: &DataSpec) -> Result<OpenedData, FileError> {
    let files = spec.files()?;
    let mut first: Option<Layout> = None;
    let mut samples = 0u64;
    let mut left_out = Vec::new();
    for file in &files {
        let archive = ArrayArchive::open(file)?;
        if first.is_none() {
            let others = archive.arrays().iter().filter(|array| Kind::of(array).is_none());
            left_out = others.map(|array| array.name.clone()).collect();
        }
        let (layout, count) = layout(spec, file, &archive)?;
        samples = samples.saturating_add(count);
        if *first.get_or_insert(layout.clone()) != layout {
            let what =
                format!("its arrays are of other names, shapes or types than those of {}", spec.path().display());
            return Err(FileError::new(FileErrorKind::Disagree, file, what, "list only files of one data set"));
        }
    }
    let Some(layout) = first else {
        return Err(FileError::new(FileErrorKind::Missing, spec.path(), "lists no file", "look at the list"));
    };
    let shape = layout.shape.clone();
    let spec = spec.clone();
    let open = move |path: &Path| -> Result<Box<dyn FileSamples>, FileError> {
        let archive = ArrayArchive::open(path)?;
        let (now, samples) = self::layout(&spec, path, &archive)?;
        if now != layout {
            return Err(FileError::new(FileErrorKind::Changed, path, "changed since it was opened", "open it again"));
        }
        Ok(Box::new(Arrays::open(path, &archive, &now.roles, samples)?))
    };
    Ok(OpenedData { shape, samples: Some(samples), files: DataFiles::new(files, Box::new(open)), left_out })
}

/// What an archive has, and how many samples.
fn layout(spec: &DataSpec, path: &Path, archive: &ArrayArchive) -> Result<(Layout, u64), FileError> {
    let offsets_of = |name: &str| find(archive, &format!("{name}{OFFSETS}"));
    let is_offsets = |name: &str| name.strip_suffix(OFFSETS).is_some_and(|of| find(archive, of).is_some());
    let known = |wanted: fn(Kind) -> bool| {
        let arrays = archive.arrays().iter().filter(|it| Kind::of(it).is_some_and(wanted) && !is_offsets(&it.name));
        arrays.map(|array| array.name.clone()).collect::<Vec<_>>()
    };
    // How many columns there are shows in the arrays' shapes.
    let uncounted = DataSpec { labels: named(&spec.labels), dense: named(&spec.dense), ..spec.clone() };
    // Archives of other programs have further arrays, such as counts: those of whole numbers with one dimension are taken for features.
    let roles = Roles::of(&uncounted, path, known(Kind::is_float), known(|kind| !kind.is_float()), None)?;
    let mut samples: Option<(u64, String)> = None;
    let mut agree = |count: u64, name: &str| match samples.get_or_insert((count, name.to_owned())) {
        (first, _) if *first == count => Ok(()),
        (first, of) => {
            let what = format!("its array {name:?} is of {count} samples, {of:?} of {first}");
            Err(FileError::new(FileErrorKind::Disagree, path, what, "name the arrays that belong together"))
        }
    };
    let refuse = |name: &str, what: String| {
        let what = format!("its array {name:?} {what}");
        FileError::new(FileErrorKind::Unsupported, path, what, "name the arrays that are meant, or write it again")
    };
    let mut columns = |names: &[String], plain: &str, said: &DataColumns| {
        let mut all = Vec::new();
        for name in names {
            let array = find(archive, name).ok_or_else(|| refuse(name, "is not there".to_owned()))?;
            let width = match *array.shape {
                [count] => agree(count, name).map(|()| 1)?,
                [count, width] if width <= 1 << 22 => agree(count, name).map(|()| width as usize)?,
                _ => return Err(refuse(name, format!("has the shape {:?}; columns are [B] or [B, n]", array.shape))),
            };
            let plain = if *name == LABELS || *name == DENSE { plain } else { name };
            all.extend(numbered(plain, width));
        }
        match said {
            DataColumns::Count(count) if *count as usize != all.len() => {
                let what = format!("it has {} columns of {plain}, and {count} are said", all.len());
                Err(FileError::new(FileErrorKind::Disagree, path, what, "name the arrays"))
            }
            _ => Ok(all),
        }
    };
    let labels = columns(&roles.labels, "label", &spec.labels)?;
    let dense = columns(&roles.dense, "dense", &spec.dense)?;
    let mut features = Vec::new();
    for name in &roles.features {
        let array = find(archive, name).ok_or_else(|| refuse(name, "is not there".to_owned()))?;
        if Kind::of(array).and_then(Kind::key).is_none() {
            return Err(refuse(
                name,
                format!("has elements of the type {}; ids are <i4, <i8, <u4 or <u8", array.descr),
            ));
        }
        let hotness = match (&*array.shape, offsets_of(name)) {
            ([_], Some(offsets)) => {
                let entries = match *offsets.shape {
                    [entries] if entries > 0 && Kind::of(offsets).and_then(Kind::key).is_some() => entries,
                    _ => return Err(refuse(&offsets.name, "is no list of B + 1 integers".to_owned())),
                };
                agree(entries - 1, &offsets.name)?;
                None
            }
            (&[count], None) => agree(count, name).map(|()| Some(1))?,
            (&[count, each], None) if (1..=1 << 24).contains(&each) => {
                agree(count, name).map(|()| Some(each as u32))?
            }
            _ => return Err(refuse(name, format!("has the shape {:?}; ids are [B], [B, n] or a list", array.shape))),
        };
        features.push(DataFeature { name: name.clone(), hotness });
    }
    let samples = samples.map_or(0, |(count, _)| count);
    Ok((Layout { shape: DataShape { labels, dense, features }, roles }, samples))
}

fn named(columns: &DataColumns) -> DataColumns {
    match columns {
        DataColumns::Count(_) => DataColumns::Unsaid,
        other => other.clone(),
    }
}

fn find<'a>(archive: &'a ArrayArchive, name: &str) -> Option<&'a ArchivedArray> {
    archive.arrays().iter().find(|array| array.name == name)
}

impl Arrays {
    fn open(path: &Path, archive: &ArrayArchive, roles: &Roles, samples: u64) -> Result<Self, FileError> {
        let gone = |name: &str| FileError::damaged(path, format!("the array {name} is gone"));
        let array = |name: &String| {
            let array = find(archive, name).ok_or_else(|| gone(name))?;
            Ok((array, Kind::of(array).ok_or_else(|| gone(name))?))
        };
        let floats = |name: &String| {
            let (found, kind) = array(name)?;
            let width = found.shape.get(1).copied().unwrap_or(1) as usize;
            Ok(Floats { reader: archive.read(found)?, kind, size: found.size as usize, width })
        };
        let ids = |name: &String| {
            let (found, kind) = array(name)?;
            let each = match find(archive, &format!("{name}{OFFSETS}")) {
                None => Ok(found.shape.get(1).copied().unwrap_or(1) as usize),
                Some(offsets) => {
                    let key = Kind::of(offsets).and_then(Kind::key).ok_or_else(|| gone(&offsets.name))?;
                    let mut reader = archive.read(offsets)?;
                    let mut first = [0; 8];
                    reader.fill(&mut first[..key.size() as usize])?;
                    if first != [0; 8] {
                        let what = format!("the array {} does not begin with 0", offsets.name);
                        return Err(FileError::damaged(path, what));
                    }
                    Err(Ends { reader, key, last: 0, ids: found.shape.first().copied().unwrap_or(0) })
                }
            };
            let key = kind.key().ok_or_else(|| gone(name))?;
            Ok(Ids { name: name.clone(), reader: archive.read(found)?, key, each })
        };
        Ok(Self {
            path: path.to_owned(),
            labels: roles.labels.iter().map(floats).collect::<Result<_, FileError>>()?,
            dense: roles.dense.iter().map(floats).collect::<Result<_, FileError>>()?,
            features: roles.features.iter().map(ids).collect::<Result<_, FileError>>()?,
            left: samples,
            bytes: Vec::new(),
            floats: Vec::new(),
            keys: Vec::new(),
            lengths: Vec::new(),
        })
    }

    fn take(&mut self, count: usize, staging: &mut Staging) -> Result<(), FileError> {
        let Self { path, labels, dense, features, bytes, floats, keys, lengths, .. } = self;
        for (arrays, to) in [(labels, &mut staging.labels), (dense, &mut staging.dense)] {
            let all: usize = arrays.iter().map(|array| array.width).sum();
            let begin = to.len();
            to.resize(begin + count * all, 0.0);
            let mut before = 0;
            for Floats { reader, kind, size, width } in arrays {
                floats.clear();
                fill(reader, bytes, count * *width * *size)?;
                kind.floats(bytes, floats);
                for (row, floats) in to[begin..].chunks_exact_mut(all.max(1)).zip(floats.chunks_exact((*width).max(1)))
                {
                    row[before..before + *width].copy_from_slice(floats);
                }
                before += *width;
            }
        }
        let mut taken = 0;
        for (nth, Ids { name, reader, key, each }) in features.iter_mut().enumerate() {
            lengths.clear();
            match each {
                Ok(each) => lengths.resize(count, *each as u32),
                Err(ends) => ends.take(path, name, count, bytes, lengths)?,
            }
            let all = lengths.iter().map(|&length| length as usize).sum::<usize>();
            taken += all;
            if taken > MAX_BATCH_IDS {
                return Err(staging.too_large(path));
            }
            keys.clear();
            while keys.len() < all {
                fill(reader, bytes, (all - keys.len()).min(IDS) * key.size() as usize)?;
                keys.extend(crate::stream::numbers(bytes, *key));
            }
            if let Some(lists) = staging.features.get_mut(nth) {
                lists.extend(keys, lengths, key.is_signed());
            }
        }
        self.left -= count as u64;
        staging.added(count, taken);
        Ok(())
    }
}

/// Fills `bytes` with the next `count`.
fn fill(reader: &mut ArrayReader, bytes: &mut Vec<u8>, count: usize) -> Result<(), FileError> {
    bytes.resize(count, 0);
    reader.fill(bytes)
}

impl Ends {
    /// Adds how many ids each of the next `count` samples has.
    fn take(
        &mut self,
        path: &Path,
        name: &str,
        count: usize,
        bytes: &mut Vec<u8>,
        lengths: &mut Vec<u32>,
    ) -> Result<(), FileError> {
        fill(&mut self.reader, bytes, count * self.key.size() as usize)?;
        for end in crate::stream::numbers(bytes, self.key) {
            let length = end.checked_sub(self.last).filter(|&length| end <= self.ids && length <= 1 << 24);
            let Some(length) = length else {
                let what = format!(
                    "the array {name}{OFFSETS} goes from {} to {end}: offsets ascend, by at most 2^24, to the {} ids of {name}",
                    self.last, self.ids
                );
                return Err(FileError::damaged(path, what));
            };
            lengths.push(length as u32);
            self.last = end;
        }
        let is_over = self.reader.left() == 0;
        if is_over && self.last != self.ids {
            let what = format!("the array {name}{OFFSETS} ends with {}, and {name} has {} ids", self.last, self.ids);
            return Err(FileError::damaged(path, what));
        }
        Ok(())
    }
}

impl FileSamples for Arrays {
    fn read(&mut self, staging: &mut Staging) -> Result<(), FileError> {
        while self.left > 0 && staging.has_room() {
            let count = staging.room().min(SAMPLES).min(usize::try_from(self.left).unwrap_or(SAMPLES));
            self.take(count, staging)?;
        }
        Ok(())
    }
}
