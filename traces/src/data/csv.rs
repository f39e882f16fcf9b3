//! Text with a line of names, and a line for each sample.

use std::collections::HashSet;
use std::path::Path;

use csv::{ByteRecord, Position, Reader};
use warprow_formats::{FileError, FileErrorKind};

use super::files::{DataFiles, FileSamples};
use super::opened::OpenedData;
use super::roles::Roles;
use super::shape::{DataFeature, DataShape};
use super::spec::DataSpec;
use super::staging::Staging;
use crate::csv::{Header, Lines, header, wrong};
use crate::spec::TraceSpec;

/// What stands between the ids of a list.
pub(super) const LIST_SEPARATOR: char = '|';

/// The lines of a file.
struct Text {
    spec: TraceSpec,
    reader: Reader<Lines>,
    names: Vec<String>,
    labels: Vec<usize>,
    dense: Vec<usize>,
    features: Vec<usize>,
    radix: u32,
    record: ByteRecord,
    ids: Vec<i64>,
}

pub(super) fn open(spec: &DataSpec) -> Result<OpenedData, FileError> {
    let files = spec.files()?;
    let mut first: Option<(Vec<String>, Roles)> = None;
    for file in &files {
        let names = names(file)?.1;
        let roles = Roles::of(spec, file, Vec::new(), names.clone(), None)?;
        let (of_first, _) = first.get_or_insert((names.clone(), roles));
        if *of_first != names {
            let what = format!("its columns have other names than those of {}", spec.path().display());
            return Err(FileError::new(FileErrorKind::Disagree, file, what, "list only files of one data set"));
        }
    }
    let Some((names, roles)) = first else {
        return Err(FileError::new(FileErrorKind::Missing, spec.path(), "lists no file", "look at the list"));
    };
    let features = roles.features.iter().map(|name| DataFeature { name: name.clone(), hotness: None }).collect();
    let shape = DataShape { labels: roles.labels.clone(), dense: roles.dense.clone(), features };
    let radix = if spec.hex { 16 } else { 10 };
    let open = move |path: &Path| -> Result<Box<dyn FileSamples>, FileError> {
        let (reader, now) = self::names(path)?;
        if now != names {
            return Err(FileError::new(FileErrorKind::Changed, path, "changed since it was opened", "open it again"));
        }
        let at = |wanted: &Vec<String>| {
            wanted.iter().filter_map(|name| names.iter().position(|it| it == name)).collect::<Vec<_>>()
        };
        Ok(Box::new(Text {
            spec: TraceSpec::new(path),
            reader,
            labels: at(&roles.labels),
            dense: at(&roles.dense),
            features: at(&roles.features),
            names: names.clone(),
            radix,
            record: ByteRecord::new(),
            ids: Vec::new(),
        }))
    };
    Ok(OpenedData { shape, samples: None, files: DataFiles::new(files, Box::new(open)), left_out: Vec::new() })
}

/// A file, and the names of its columns, which differ.
fn names(path: &Path) -> Result<(Reader<Lines>, Vec<String>), FileError> {
    let Header { reader, names, .. } = header(&TraceSpec::new(path))?;
    let refuse = |what: String, remedy: &str| FileError::new(FileErrorKind::Unclear, path, what, remedy);
    // Features without a name are called by their numbers.
    let is_numbered = || names.iter().zip(0..).all(|(name, nth)| name.parse() == Ok(nth));
    if names.is_empty() || (names.iter().all(|name| name.is_empty() || name.parse::<f64>().is_ok()) && !is_numbered()) {
        let what = "it has no line of names: its first line has numbers alone".to_owned();
        return Err(refuse(what, "put the names of its columns in front, as a line of its own"));
    }
    let mut seen = HashSet::new();
    if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
        return Err(refuse(format!("it has two columns called {twice:?}"), "give its columns names of their own"));
    }
    Ok((reader, names))
}

impl Text {
    /// That the cell of column `index` is not what it should be.
    fn refuse(&self, index: usize, what: &str) -> FileError {
        let line = self.record.position().map_or(0, Position::line);
        let name = self.names.get(index).map_or("", |name| name);
        let cell = self.record.get(index).unwrap_or_default();
        let text: String = String::from_utf8_lossy(cell).chars().take(40).collect();
        let what = format!("line {line}: column {name}: {text:?} {what}");
        FileError::new(FileErrorKind::Damaged, &self.spec.path, what, "mend or leave out the line")
    }

    fn cell(&self, index: usize) -> Option<&str> {
        std::str::from_utf8(self.record.get(index)?).ok()
    }

    fn number(&self, index: usize) -> Result<f32, FileError> {
        let number = self.cell(index).and_then(|text| text.parse().ok());
        number.ok_or_else(|| self.refuse(index, "is no number"))
    }

    /// Takes the line that was read.
    fn take(&mut self, staging: &mut Staging) -> Result<(), FileError> {
        for &index in &self.labels {
            staging.labels.push(self.number(index)?);
        }
        for &index in &self.dense {
            staging.dense.push(self.number(index)?);
        }
        let mut all = 0;
        let mut ids = std::mem::take(&mut self.ids);
        for (&index, lists) in self.features.iter().zip(&mut staging.features) {
            ids.clear();
            let text = self.cell(index).ok_or_else(|| self.refuse(index, "is no text"))?;
            if !text.is_empty() {
                for id in text.split(LIST_SEPARATOR) {
                    let parsed = i64::from_str_radix(id.trim(), self.radix);
                    let id = parsed.map_err(|_| self.refuse(index, "is no integer of 64 bits, and no list of them"))?;
                    ids.push(id);
                }
            }
            all += ids.len();
            lists.push_ids(&ids);
        }
        self.ids = ids;
        staging.added(1, all);
        Ok(())
    }
}

impl FileSamples for Text {
    fn read(&mut self, staging: &mut Staging) -> Result<(), FileError> {
        while staging.has_room() {
            self.reader.get_mut().line = 0;
            if !self.reader.read_byte_record(&mut self.record).map_err(|error| wrong(&self.spec, &error))? {
                break;
            }
            self.take(staging)?;
        }
        Ok(())
    }
}
