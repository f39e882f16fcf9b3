//! Files that tables are compared with, and which tensor is which table's.

use std::path::Path;

use warprow_formats::{FileError, FileTable, TableFile};
use warprow_store::TableInfo;
use wildmatch::WildMatch;

use crate::columns::is_called;
use crate::commands::load::name_keys;
use crate::failure::Failure;
use crate::named;
use crate::reading::ReadingArgs;

/// The files that were given, each for all tables or for some: `[NAME=]FILE`.
#[derive(Debug)]
pub struct GivenFiles {
    files: Vec<TableFile>,
    /// For which tables each is: a name or a pattern; `None`: for those that none is given for.
    whose: Vec<Option<String>>,
    /// What the user said of tensors: of which tables, and which: `[NAME=]GLOB`.
    tensors: Vec<(Option<String>, String)>,
}

impl GivenFiles {
    /// Opens `files`; `tables` are the names that may stand before an equals sign.
    pub fn open(
        files: &[String],
        tensors: &[String],
        keys: &[String],
        reading: &ReadingArgs,
        tables: &[&str],
    ) -> Result<Self, Failure> {
        let owned = |(name, rest): (Option<&str>, &str)| (name.map(str::to_owned), rest.to_owned());
        let named = files.iter().map(|argument| match Path::new(argument).exists() {
            true => (None, argument.clone()),
            false => owned(named::split(argument, tables)),
        });
        let (whose, paths): (Vec<_>, Vec<_>) = named.unzip();
        for (path, _) in paths.iter().zip(&whose).filter(|(path, whose)| whose.is_none() && !Path::new(path).exists()) {
            if let Some((name, _)) = path.split_once('=') {
                let what = format!("there is no such file, and the store has no table {name:?}");
                return Err(Failure::input(path, what).remedy(format!("the tables are {}", tables.join(", "))));
            }
        }
        let options = reading.options();
        let files = paths.iter().map(|path| TableFile::open_with(Path::new(path), &options));
        let mut files = files.collect::<Result<Vec<_>, FileError>>()?;
        keys.iter().try_for_each(|argument| name_keys(&mut files, argument))?;
        let tensors = tensors.iter().map(|argument| owned(named::split(argument, tables))).collect();
        Ok(Self { files, whose, tensors })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Whether a file is for that table, or none is for any.
    pub fn is_for(&self, table: &str) -> bool {
        self.is_empty() || !self.of(table).is_empty()
    }

    /// The files for a table: those that were given for it, else those that were given for all.
    fn of(&self, table: &str) -> Vec<(&TableFile, bool)> {
        let of = |named: bool| {
            let is = move |whose: &Option<String>| match whose {
                Some(name) => named && !named::matching(name, &[table]).is_empty(),
                None => !named,
            };
            self.files
                .iter()
                .zip(&self.whose)
                .filter(move |(_, whose)| is(whose))
                .map(move |(file, whose)| (file, whose.as_deref() == Some(table)))
        };
        let named: Vec<_> = of(true).collect();
        if named.is_empty() { of(false).collect() } else { named }
    }

    /// What `table` is compared with: a tensor that the user named, or that is called like it, or whose name is its own but for what
    /// names of tensors have around them and whose shape is the same, or the only one on either side. `several`: tables are
    /// compared.
    pub fn counterpart(&self, table: &TableInfo, several: bool) -> Result<(&TableFile, &FileTable), Failure> {
        let said = self.tensors.iter().filter(|(name, _)| match name {
            Some(name) => !named::matching(name, &[&table.name]).is_empty(),
            None => true,
        });
        // What was said of this table alone counts.
        let tensor = said.max_by_key(|(name, _)| name.is_some()).map(|(_, glob)| &**glob);
        let files = self.of(&table.name);
        let found = files.iter().filter_map(|&(file, own)| Some((file, find(table, file, tensor, several && !own)?)));
        match &found.collect::<Vec<_>>()[..] {
            [only] => Ok(*only),
            [] => Err(none(table, files.iter().map(|(file, _)| *file), tensor)),
            several => {
                let place = |(file, it): &(&TableFile, &FileTable)| format!("{} in {}", it.name, file.path.display());
                let places: Vec<String> = several.iter().map(place).collect();
                let what = format!("table {:?} could be compared with several: {}", table.name, places.join(", "));
                let remedy = "say which file is its own: --against TABLE=FILE";
                Err(Failure::usage(&table.name, what).remedy(remedy).detail("candidates", places))
            }
        }
    }
}

fn find<'a>(table: &TableInfo, file: &'a TableFile, tensor: Option<&str>, several: bool) -> Option<&'a FileTable> {
    let only = |matches: &dyn Fn(&FileTable) -> bool| {
        let mut found = file.tables.iter().filter(|table| matches(table));
        found.next().filter(|_| found.next().is_none())
    };
    let alike = |other: &FileTable| (other.rows, other.dim, other.dtype) == (table.rows, table.dim, table.dtype);
    match tensor.map(WildMatch::new) {
        Some(glob) => only(&|table| glob.matches(&table.name)),
        None => only(&|other| other.name == table.name)
            .or_else(|| only(&|other| other.name.ends_with(&table.name) && alike(other)))
            .or_else(|| only(&|other| is_called(&other.name, &table.name) && alike(other)))
            .or_else(|| only(&|_| !several)),
    }
}

fn none<'a>(table: &TableInfo, files: impl Iterator<Item = &'a TableFile>, tensor: Option<&str>) -> Failure {
    let (paths, names): (Vec<String>, Vec<String>) = files
        .map(|file| {
            let names: Vec<&str> = file.tables.iter().map(|table| &*table.name).collect();
            (file.path.display().to_string(), names.join(", "))
        })
        .unzip();
    let paths = paths.join(", ");
    let names = names.join(", ");
    let what = match (tensor, &*paths) {
        (_, "") => format!("no file was given for table {:?}", table.name),
        (Some(glob), _) => format!("{glob:?} does not match one tensor of {paths}; it has {names}"),
        (None, _) => format!("no one tensor of {paths} is called like table {:?}; it has {names}", table.name),
    };
    let remedy =
        "say which is its own: --against TABLE=FILE, and --tensor TABLE=GLOB; or choose other tables with --table";
    Failure::input(&table.name, what).remedy(remedy)
}
