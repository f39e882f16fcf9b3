//! Which tables an attached file gives: tensors, shards of them put together, with their scales.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use warprow_formats::{FileTable, ScaleError, ScaleTensors, TableFile};
use warprow_layout::DType;
use wildmatch::WildMatch;

use crate::attach_error::AttachError;
use crate::attached_tensor::{AttachedTensor, TensorScales};
use crate::shards::{ShardPattern, Shards, usual};
use crate::skipped_tensor::SkippedTensor;

/// What a file gives.
#[derive(Default)]
pub(crate) struct Choice {
    /// Tables, with the names that they get.
    pub tables: Vec<(String, FileTable)>,
    /// Tensors that were not asked for by name, and can be none.
    pub skipped: Vec<SkippedTensor>,
}

/// The most tables that a file gives if it is asked for none by name, and is not a whole model.
const MANY: usize = 256;

/// Tensors that are one table.
struct Unit<'a> {
    name: String,
    /// What it is called if nobody gives it a name.
    default_name: String,
    parts: Vec<&'a FileTable>,
}

impl<'a> Unit<'a> {
    /// A tensor by itself.
    fn of(table: &'a FileTable) -> Self {
        Self { name: table.name.clone(), default_name: table.name.clone(), parts: vec![table] }
    }
}

/// The tables of `file` that `tensors` name; all that there can be if it names none.
pub(crate) fn choose(file: &TableFile, tensors: &[AttachedTensor]) -> Result<Choice, AttachError> {
    match tensors {
        [] => Ok(Choosing::new(file).everything()),
        tensors => Choosing::new(file).named(tensors),
    }
}

struct Choosing<'a> {
    file: &'a TableFile,
    tables: HashMap<&'a str, &'a FileTable>,
    /// Names whose last part speaks of a scale, by what comes before it.
    scale_names: HashMap<&'a str, &'a str>,
}

impl<'a> Choosing<'a> {
    fn new(file: &'a TableFile) -> Self {
        let scale = |name: &'a str| {
            name.rsplit_once('.').filter(|(_, last)| last.contains("scale")).map(|(stem, _)| (stem, name))
        };
        Self {
            file,
            tables: file.tables.iter().map(|table| (&*table.name, table)).collect(),
            scale_names: file.tensor_names().filter_map(scale).collect(),
        }
    }

    fn path(&self) -> &'a Path {
        &self.file.path
    }

    /// The tables of tensors by their names, all of which are there.
    fn unit(&self, shards: &Shards<'a>) -> Unit<'a> {
        let parts = shards.tensors.iter().filter_map(|name| self.tables.get(name).copied());
        Unit { name: shards.name.clone(), default_name: shards.name.clone(), parts: parts.collect() }
    }

    /// All tables: shards put together, tensors with their scales, and not the scales themselves.
    fn everything(&self) -> Choice {
        let mut choice = Choice::default();
        let mut units = Vec::new();
        let mut joined = HashSet::new();
        for (tensors, shards) in usual(self.file.tables.iter().map(|table| &*table.name)) {
            match shards {
                // A tensor of that name is another table.
                Ok(shards) if self.tables.contains_key(&*shards.name) => continue,
                Ok(shards) => units.push(self.unit(&shards)),
                Err(reason) => {
                    let name = tensors.first().copied().unwrap_or_default().to_owned();
                    choice.skipped.push(SkippedTensor { name, reason });
                }
            }
            joined.extend(tensors);
        }
        let alone = self.file.tables.iter().filter(|table| !joined.contains(&*table.name));
        units.extend(alone.map(Unit::of));
        units.sort_by(|one, other| one.name.cmp(&other.name));
        // Of a whole model, what is called an embedding; its matrices are no tables to be looked up.
        let is_embedding = |unit: &Unit<'_>| unit.parts.len() > 1 || unit.name.to_lowercase().contains("embed");
        if units.len() > MANY && units.iter().any(is_embedding) {
            let (kept, left) = units.into_iter().partition(is_embedding);
            units = kept;
            let reason =
                format!("the file has more than {MANY} tables, and its name has no \"embed\": ask for it, tensor=NAME");
            choice.skipped.extend(
                left.into_iter().map(|unit: Unit<'_>| SkippedTensor { name: unit.name, reason: reason.clone() }),
            );
        }
        let usual = AttachedTensor::new("*");
        let mut used = HashSet::new();
        let made: Vec<_> = units
            .into_iter()
            .map(|unit| {
                let table = self.table(&unit, &usual, &mut used);
                (unit, table)
            })
            .collect();
        for (Unit { name, parts, .. }, table) in made {
            match table {
                _ if parts.iter().all(|part| used.contains(&part.name)) => {}
                Ok(table) => choice.tables.push((name, table)),
                Err(error) => {
                    let reason = match error {
                        AttachError::Scales { source, .. } => source.to_string(),
                        AttachError::Shards { reason, .. } | AttachError::Stays { reason, .. } => reason,
                        other => other.to_string(),
                    };
                    choice.skipped.push(SkippedTensor { name, reason });
                }
            }
        }
        choice
    }

    /// Those that are named.
    fn named(&self, tensors: &[AttachedTensor]) -> Result<Choice, AttachError> {
        let mut choice = Choice::default();
        let mut names: HashMap<String, (&AttachedTensor, String)> = HashMap::new();
        for tensor in tensors {
            for unit in self.units(tensor)? {
                let of = unit.parts.first().map_or_else(String::new, |part| part.name.clone());
                match names.insert(unit.name.clone(), (tensor, of.clone())) {
                    None => {
                        let table = self.table(&unit, tensor, &mut HashSet::new())?;
                        choice.tables.push((unit.name, table));
                    }
                    // A tensor that is chosen twice in the same way counts once.
                    Some((before, other)) if other == of && same_way(before, tensor) => {}
                    Some(_) => {
                        return Err(AttachError::SameName { file: self.path().to_owned(), name: unit.name });
                    }
                }
            }
        }
        Ok(choice)
    }

    /// The tensors that a pattern names, as they become tables.
    fn units(&self, tensor: &AttachedTensor) -> Result<Vec<Unit<'a>>, AttachError> {
        let pattern = &tensor.pattern;
        let matching = |glob: &str| self.matching(glob).map_err(|reason| self.shards_refused(pattern, reason));
        // A name may contain an equals sign: if the whole matches, it is a pattern.
        let (called, found) = match (matching(pattern)?, pattern.split_once('=')) {
            (found, Some((name, glob))) if found.is_empty() && !name.is_empty() => (Some(name), matching(glob)?),
            (found, _) => (None, found),
        };
        match (called, found.len()) {
            (_, 0) => Err(AttachError::NoMatch {
                file: self.path().to_owned(),
                pattern: pattern.clone(),
                tensors: self.file.tables.iter().map(|table| table.name.clone()).collect(),
            }),
            (Some(_), matches @ 2..) => {
                Err(AttachError::Several { file: self.path().to_owned(), pattern: pattern.clone(), matches })
            }
            (Some(name), _) => Ok(found.into_iter().map(|unit| Unit { name: name.to_owned(), ..unit }).collect()),
            (None, _) => Ok(found),
        }
    }

    fn matching(&self, glob: &str) -> Result<Vec<Unit<'a>>, String> {
        let names = self.file.tables.iter().map(|table| &*table.name);
        Ok(match ShardPattern::of(glob) {
            Some(shards) => shards.tables(names)?.iter().map(|shards| self.unit(shards)).collect(),
            None => {
                let glob = WildMatch::new(glob);
                let tables = self.file.tables.iter().filter(|table| glob.matches(&table.name));
                tables.map(Unit::of).collect()
            }
        })
    }

    fn shards_refused(&self, pattern: &str, reason: String) -> AttachError {
        AttachError::Shards { file: self.path().to_owned(), pattern: pattern.to_owned(), reason }
    }

    /// The table of a unit: each part with its scales, all parts behind each other, seen and cut as is wanted. The names of tensors that
    /// have scales for it go to `used`.
    fn table(
        &self,
        unit: &Unit<'a>,
        tensor: &AttachedTensor,
        used: &mut HashSet<String>,
    ) -> Result<FileTable, AttachError> {
        let file = || self.path().to_owned();
        let mut parts = Vec::with_capacity(unit.parts.len());
        for (index, part) in unit.parts.iter().enumerate() {
            let scaled = self.scaled(unit, index, part, tensor, used);
            parts.push(scaled.map_err(|source| AttachError::Scales {
                file: file(),
                tensor: part.name.clone(),
                source: Box::new(source),
            })?);
        }
        let table = match &parts[..] {
            [alone] => alone.clone(),
            several => FileTable::joined(&unit.name, &several.iter().collect::<Vec<_>>())
                .map_err(|error| self.shards_refused(&unit.name, error.to_string()))?,
        };
        let stays = |reason: String| AttachError::Stays { file: file(), tensor: unit.name.clone(), reason };
        let table = match tensor.dim {
            None => table,
            Some(dim) => table.viewed(dim).ok_or_else(|| {
                let (width, dtype) = (table.dim, table.dtype);
                stays(format!("rows of {width} × {dtype} are no whole number of rows of {dim}: correct dim="))
            })?,
        };
        match &tensor.rows {
            None => Ok(table),
            Some(rows) => table.cut(rows.clone()).ok_or_else(|| {
                stays(format!(
                    "it has {} rows, and rows={}..{} are wanted: correct rows=",
                    table.rows, rows.start, rows.end
                ))
            }),
        }
    }

    /// A part with its scales, or as it is if it has none.
    fn scaled(
        &self,
        unit: &Unit<'a>,
        index: usize,
        part: &FileTable,
        tensor: &AttachedTensor,
        used: &mut HashSet<String>,
    ) -> Result<FileTable, ScaleError> {
        let scales = match &tensor.scales {
            TensorScales::None => None,
            TensorScales::Of(pattern) => Some(self.only(&at(pattern, index))?),
            TensorScales::Usual => self.usual(unit, part, &SCALES),
        };
        // Bytes that are nobody's codes may have a tensor beside them that is called so.
        let scales = scales.filter(|name| match (part.dtype, &tensor.scales) {
            (_, TensorScales::Of(_)) | (DType::F8E4M3 | DType::F8E5M2, _) => true,
            (DType::U8, _) => self.file.tensor(name).is_some_and(|tensor| tensor.dtype == "F8_E4M3"),
            _ => false,
        });
        let Some(scales) = scales else {
            return match &tensor.global {
                Some(global) => Err(ScaleError::Missing { tensor: format!("the scales that {global:?} is beside") }),
                None => self.unscaled(part, tensor),
            };
        };
        let (global, divides) = match &tensor.global {
            Some(pattern) => {
                let divisor = pattern.strip_prefix("1/");
                (Some(self.only(&at(divisor.unwrap_or(pattern), index))?), divisor.is_some())
            }
            None if part.dtype == DType::U8 => match self.usual(unit, part, &["weight_global_scale"]) {
                Some(global) => return Err(ScaleError::Direction { global }),
                None => (self.usual(unit, part, &["weight_scale_2"]), false),
            },
            None => (None, false),
        };
        let round = tensor.round.unwrap_or(DType::F32);
        let tensors = ScaleTensors { scales: &scales, global: global.as_deref(), divides, round };
        let scaled = self.file.scaled(part, &tensors)?;
        used.extend([Some(scales), global].into_iter().flatten());
        Ok(scaled)
    }

    /// A part as it is, unless something beside it seems to be its scales: codes are not to pass for numbers.
    fn unscaled(&self, part: &FileTable, tensor: &AttachedTensor) -> Result<FileTable, ScaleError> {
        let is_code = matches!(part.dtype, DType::U8 | DType::F8E4M3 | DType::F8E5M2);
        let stem = part.name.rsplit_once('.').map(|(stem, _)| stem);
        let near = stem
            .filter(|_| is_code && tensor.scales == TensorScales::Usual)
            .and_then(|stem| self.scale_names.get(stem).copied());
        match near {
            Some(near) if near != part.name => Err(ScaleError::Unknown { near: near.to_owned() }),
            _ => Ok(part.clone()),
        }
    }

    /// The first tensor that is there of those with such names beside a part, or beside the table that the part is a shard of.
    fn usual(&self, unit: &Unit<'a>, part: &FileTable, ends: &[&str]) -> Option<String> {
        let whole = (unit.parts.len() > 1).then_some(&*unit.default_name);
        let around = std::iter::once(&*part.name).chain(whole);
        let mut named = around.flat_map(|name| beside(name, ends));
        named.find(|name| *name != part.name && self.file.tensor(name).is_some())
    }

    /// The name of the only tensor that `glob` matches.
    fn only(&self, glob: &str) -> Result<String, ScaleError> {
        if self.file.tensor(glob).is_some() {
            return Ok(glob.to_owned());
        }
        let pattern = WildMatch::new(glob);
        let mut names = self.file.tensor_names().filter(|name| pattern.matches(name));
        match (names.next(), names.next()) {
            (Some(name), None) => Ok(name.to_owned()),
            (Some(one), Some(other)) => {
                Err(ScaleError::Several { pattern: glob.to_owned(), one: one.to_owned(), other: other.to_owned() })
            }
            _ => Err(ScaleError::Missing { tensor: glob.to_owned() }),
        }
    }
}

/// How the names of tensors of scales end, beside tensors of codes.
const SCALES: [&str; 3] = ["scale", "weight_scale", "weight_scale_inv"];
/// How the names of tensors of codes end.
const CODES: [&str; 2] = ["weight", "weight_packed"];

/// The names with these ends beside that of a tensor of codes.
fn beside(name: &str, ends: &[&str]) -> impl Iterator<Item = String> {
    let stem =
        CODES.iter().find_map(|end| name.strip_suffix(end).filter(|stem| stem.is_empty() || stem.ends_with('.')));
    let named = stem.map(|stem| ends.iter().map(|end| format!("{stem}{end}")).collect::<Vec<_>>());
    named.into_iter().flatten()
}

/// The names, among those of an index, that tables may need which `tensors` name: theirs, and those of their scales.
pub(crate) fn needed(names: &[&str], tensors: &[AttachedTensor]) -> HashSet<String> {
    let glob = |pattern: &str| {
        let begin = pattern.find('{').filter(|_| ShardPattern::of(pattern).is_some());
        let end = pattern.find('}').map(|end| end + 1);
        match begin.zip(end) {
            Some((begin, end)) => {
                let (before, after) = (pattern.get(..begin), pattern.get(end..));
                WildMatch::new(&format!("{}*{}", before.unwrap_or_default(), after.unwrap_or_default()))
            }
            None => WildMatch::new(pattern),
        }
    };
    let mut patterns = Vec::new();
    for tensor in tensors {
        patterns.push(glob(&tensor.pattern));
        patterns.extend(tensor.pattern.split_once('=').map(|(_, pattern)| glob(pattern)));
        if let TensorScales::Of(pattern) = &tensor.scales {
            patterns.push(glob(pattern));
        }
        patterns.extend(tensor.global.iter().map(|pattern| glob(pattern.strip_prefix("1/").unwrap_or(pattern))));
    }
    let matched: Vec<&str> =
        names.iter().copied().filter(|name| patterns.iter().any(|pattern| pattern.matches(name))).collect();
    let mut needed: HashSet<String> = matched.iter().map(|&name| name.to_owned()).collect();
    let whole = usual(matched.iter().copied()).into_iter().filter_map(|(_, shards)| Some(shards.ok()?.name));
    let ends = [&SCALES[..], &["weight_scale_2", "weight_global_scale"]].concat();
    let around: Vec<String> = matched.iter().map(|&name| name.to_owned()).chain(whole).collect();
    needed.extend(around.iter().flat_map(|name| beside(name, &ends)));
    needed
}

/// A pattern for the shard of that number.
fn at(pattern: &str, index: usize) -> String {
    pattern.replacen("{}", &index.to_string(), 1)
}

/// Whether two ask for the same rows of the same tensor.
fn same_way(one: &AttachedTensor, other: &AttachedTensor) -> bool {
    let how = |it: &AttachedTensor| (it.scales.clone(), it.global.clone(), it.round, it.dim, it.rows.clone());
    how(one) == how(other)
}
