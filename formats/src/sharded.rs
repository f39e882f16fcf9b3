//! Safetensors in several files, with an index that says which tensor is in which.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, Visitor};

use crate::error::{FileError, FileErrorKind};
use crate::found::Found;
use crate::input::Input;
use crate::listed::refuse_elsewhere;
use crate::open::ChooseTensors;
use crate::place::Place;
use crate::read_options::ReadOptions;
use crate::safetensors::{self, key_array_of, table_of};

/// How the names of index files end.
pub(crate) const ENDING: &str = ".safetensors.index.json";
/// The longest index that is read.
const MAX_INDEX: u64 = 100_000_000;

/// The index in a folder; several are refused.
pub(crate) fn index_of(folder: &Path) -> Result<Option<PathBuf>, FileError> {
    let cannot = |error| FileError::io(folder, "cannot be listed", error);
    let mut found = None;
    for entry in std::fs::read_dir(folder).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        if !entry.file_name().to_string_lossy().ends_with(ENDING) {
            continue;
        }
        if found.replace(entry.path()).is_some() {
            let what = format!("holds several files that end in {ENDING}");
            return Err(FileError::new(FileErrorKind::Unclear, folder, what, "give the one that is meant"));
        }
    }
    Ok(found)
}

/// Which file each tensor is in, by the tensor's name.
pub fn parse_index(text: &[u8]) -> Result<BTreeMap<String, String>, String> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Map,
    }
    let Index { weight_map: Map(map) } = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    match map.iter().find(|(_, file)| !is_plain(file)) {
        Some((name, file)) => Err(format!("it says that tensor {name:?} is in {file:?}, which is no plain file name")),
        None => Ok(map),
    }
}

/// Whether a name leads to no other folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', '\0'])
}

/// A JSON object of strings in which no name comes twice.
struct Map(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Map {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Map;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Map, A::Error> {
                let mut members = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    if members.contains_key(&name) {
                        map.next_value::<IgnoredAny>()?;
                        return Err(serde::de::Error::custom(format!("tensor {name:?} is listed twice")));
                    }
                    members.insert(name, map.next_value()?);
                }
                Ok(Map(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

pub(crate) fn open(path: &Path, options: &ReadOptions, choose: Option<&ChooseTensors<'_>>) -> Result<Found, FileError> {
    let check_link = |folder: &Path, listed: &Path| match options.follow_links {
        true => Ok(()),
        false => refuse_elsewhere(folder, listed),
    };
    let missing =
        || FileError::new(FileErrorKind::Missing, path, "holds no index of safetensors", "give the index itself");
    let path = match path.is_dir() {
        true => {
            let index = index_of(path)?.ok_or_else(missing)?;
            check_link(path, &index)?;
            index
        }
        false => path.to_owned(),
    };
    let index = Input::open(&path)?;
    let map = parse_index(&index.whole(MAX_INDEX)?).map_err(|what| index.damaged(what))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    // Which tensors the index lists in each file.
    let mut files: BTreeMap<&String, Vec<&String>> = BTreeMap::new();
    map.iter().for_each(|(name, file)| files.entry(file).or_default().push(name));
    if let Some(choose) = choose {
        let chosen = choose(&map.keys().map(|name| &**name).collect::<Vec<_>>());
        files.retain(|_, listed| listed.iter().any(|name| chosen.contains(*name)));
    }
    let mut found = Found::default();
    for (input, (file, listed)) in files.into_iter().enumerate() {
        let shard = folder.join(file);
        if !shard.exists() {
            let what = format!("{} lists it, and it is missing", path.display());
            return Err(FileError::new(FileErrorKind::Missing, &shard, what, "fetch the missing file"));
        }
        check_link(folder, &shard)?;
        let shard = Input::open(&shard)?;
        let tensors = safetensors::tensors(&shard)?;
        let disagree = |what: String| shard.error(FileErrorKind::Disagree, what, "fetch the index and its files again");
        for tensor in &tensors {
            match map.get(&tensor.name) {
                Some(listed) if listed == file => {}
                Some(listed) => {
                    return Err(disagree(format!(
                        "it holds tensor {:?}, which the index lists in {listed}",
                        tensor.name
                    )));
                }
                None => {
                    return Err(disagree(format!("it holds tensor {:?}, which the index does not list", tensor.name)));
                }
            }
            found.key_arrays.extend(key_array_of(tensor, input));
            found.tensors.insert(tensor.name.clone(), (input, tensor.clone()));
            match table_of(tensor) {
                Ok(mut table) => {
                    if let Place::Flat(extents) = &mut table.place {
                        extents.iter_mut().for_each(|extent| extent.input = input);
                    }
                    found.tables.push(table);
                }
                Err(reason) => found.skipped.push((tensor.name.clone(), reason)),
            }
        }
        let there: HashSet<&str> = tensors.iter().map(|tensor| &*tensor.name).collect();
        if let Some(name) = listed.into_iter().find(|name| !there.contains(&***name)) {
            return Err(disagree(format!("the index lists tensor {name:?} in it, and it is not there")));
        }
        found.inputs.push(shard);
    }
    Ok(found)
}
