//! Which of the tables in files are loaded, and how they are called.

use std::collections::HashMap;

use serde_json::{Value, json};
use warprow_formats::{FileTable, TableFile, tensor_types};
use warprow_workload::units;
use wildmatch::WildMatch;

use crate::drives::shell;
use crate::failure::Failure;
use crate::report::printable;

/// What the user said about tables.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Each `[NAME=]GLOB`, where `*` stands for any characters and `?` for one.
    pub tensors: Vec<String>,
    /// All tables there are.
    pub all: bool,
    /// Cut from the names that begin with it.
    pub strip_prefix: Option<String>,
}

/// A table that is to be loaded.
#[derive(Debug, Clone)]
pub struct Chosen<'a> {
    /// The file it is in.
    pub file: &'a TableFile,
    /// The table in its file.
    pub table: &'a FileTable,
    /// What it shall be called.
    pub name: String,
}

impl Selection {
    /// The tables chosen from `files`, in their order, no two of one name. Without a choice, a file must hold just one.
    /// `command` is how the user's command begins, for examples.
    pub fn choose<'a>(&self, files: &'a [TableFile], command: &str) -> Result<Vec<Chosen<'a>>, Failure> {
        let candidates: Vec<(&TableFile, &FileTable)> =
            files.iter().flat_map(|file| file.tables.iter().map(move |table| (file, table))).collect();
        let mut chosen = Vec::new();
        if self.all || self.tensors.is_empty() {
            for file in files {
                match &file.tables[..] {
                    [] => return Err(nothing_in(file)),
                    [_, _, ..] if !self.all => return Err(ambiguous(file, command)),
                    _ => {}
                }
            }
            chosen.extend(candidates.iter().map(|&(file, table)| (file, table, None)));
        }
        for pattern in &self.tensors {
            // A name may contain an equals sign: if the whole matches, it is a pattern.
            let matches = |glob: &str| {
                let glob = WildMatch::new(glob);
                candidates.iter().copied().filter(|(_, table)| glob.matches(&table.name)).collect::<Vec<_>>()
            };
            let (name, found) = match (matches(pattern), pattern.split_once('=')) {
                (found, Some((name, glob))) if found.is_empty() && !name.is_empty() => (Some(name), matches(glob)),
                (found, _) => (None, found),
            };
            match (name, &found[..]) {
                (_, []) => return Err(no_match(pattern, files)),
                (Some(name), [_, _, ..]) => {
                    return Err(Failure::input(
                        pattern,
                        format!("{} tensors match, one can be called {name:?}", found.len()),
                    )
                    .remedy("give the pattern without NAME=, or one that only one tensor matches")
                    .detail("matches", names(found.iter().map(|(_, table)| *table))));
                }
                _ => chosen.extend(found.iter().map(|&(file, table)| (file, table, name))),
            }
        }
        self.name(chosen)
    }

    /// Gives names. The same tensor chosen twice in the same way counts once.
    fn name<'a>(&self, chosen: Vec<(&'a TableFile, &'a FileTable, Option<&str>)>) -> Result<Vec<Chosen<'a>>, Failure> {
        let prefix = self.strip_prefix.as_deref().unwrap_or("");
        let mut by_name: HashMap<String, (&TableFile, &FileTable)> = HashMap::new();
        let mut named = Vec::new();
        let mut stripped = prefix.is_empty();
        for (file, table, name) in chosen {
            let short = table.name.strip_prefix(prefix);
            stripped |= short.is_some();
            let name = name.or(short).unwrap_or(&table.name).to_owned();
            if table.name.is_empty() && name.is_empty() {
                let what = format!("{} holds a tensor without a name", file.path.display());
                return Err(Failure::input("", what).remedy("leave it out with --tensor"));
            }
            if name.is_empty() {
                return Err(Failure::input(&table.name, "nothing of its name is left without the prefix")
                    .remedy("strip less, or name it: --tensor NAME=GLOB"));
            }
            match by_name.insert(name.clone(), (file, table)) {
                None => named.push(Chosen { file, table, name }),
                Some((other_file, other)) if other_file.path == file.path && other.name == table.name => {}
                Some((other_file, other)) => {
                    let place =
                        |file: &TableFile, table: &FileTable| format!("{} in {}", table.name, file.path.display());
                    let both = format!("{} and {}", place(other_file, other), place(file, table));
                    return Err(Failure::input(&name, format!("two tables would be called {name:?}: {both}"))
                        .remedy("strip less, or name them: --tensor NAME=GLOB"));
                }
            }
        }
        if !stripped {
            return Err(
                Failure::input(prefix, "no name begins with the prefix").remedy("look at the names with --dry-run")
            );
        }
        Ok(named)
    }
}

fn names<'a>(tables: impl Iterator<Item = &'a FileTable>) -> Vec<Value> {
    tables.map(|table| table.name.clone().into()).collect()
}

/// What a file holds, for people.
fn listing(file: &TableFile) -> String {
    let mut text = String::new();
    for table in &file.tables {
        text +=
            &format!("\n    {}  {} × {} {}", printable(&table.name), units::count(table.rows), table.dim, table.dtype);
    }
    for (name, reason) in &file.skipped {
        text += &format!("\n    {}  (skipped: {})", printable(name), printable(reason));
    }
    text
}

fn with_listing(failure: Failure, file: &TableFile) -> Failure {
    let table = |table: &FileTable| json!({ "name": table.name, "rows": table.rows, "dim": table.dim, "dtype": table.dtype.name() });
    let skipped = |(name, reason): &(String, String)| json!({ "name": name, "reason": reason });
    failure
        .detail("tables", file.tables.iter().map(table).collect::<Vec<_>>())
        .detail("skipped", file.skipped.iter().map(skipped).collect::<Vec<_>>())
}

fn nothing_in(file: &TableFile) -> Failure {
    let path = file.path.display().to_string();
    let failure = Failure::input(&path, format!("{} holds no table:{}", printable(&path), listing(file))).in_lines();
    with_listing(failure.remedy(format!("a table is a tensor [rows, dim] of {}", tensor_types())), file)
}

fn no_match(pattern: &str, files: &[TableFile]) -> Failure {
    let skipped = files.iter().flat_map(|file| &file.skipped);
    let glob = WildMatch::new(pattern.split_once('=').map_or(pattern, |(_, glob)| glob));
    if let Some((name, reason)) = skipped.clone().find(|(name, _)| glob.matches(name)) {
        return Failure::input(name, format!("{name} is no table: {reason}"))
            .remedy(format!("a table is a tensor [rows, dim] of {}", tensor_types()));
    }
    let all: String = files.iter().map(listing).collect();
    Failure::input(pattern, format!("no tensor matches {pattern:?}; there are:{all}"))
        .remedy("* stands for any characters and ? for one; quote the pattern")
        .in_lines()
        .detail("tables", names(files.iter().flat_map(|file| &file.tables)))
}

fn ambiguous(file: &TableFile, command: &str) -> Failure {
    let path = file.path.display().to_string();
    let prefix = family(&file.tables);
    let mut example = format!("{command} {} --tensor {}", shell(&path), shell(&format!("{prefix}*")));
    if !prefix.is_empty() {
        example += &format!(" --strip-prefix {}", shell(&prefix));
    }
    let count = file.tables.len();
    let what = format!("{} holds {count} tables, and none was chosen:{}", printable(&path), listing(file));
    let remedy = format!("choose with --tensor, or take --all; for example\n    {}", printable(&example));
    with_listing(Failure::input(path, what).remedy(remedy).in_lines(), file).detail("example", example)
}

/// What the names of the likeliest embeddings have in common: of the tables that agree in type and width, and in their names
/// up to the last part but one, those that are most, or have the most bytes.
fn family(tables: &[FileTable]) -> String {
    let mut families: HashMap<(&str, u32, &str), (u64, Vec<&str>)> = HashMap::new();
    for table in tables {
        let parent = table.name.rsplitn(3, '.').nth(2).unwrap_or("");
        let family = families.entry((parent, table.dim, table.dtype.name())).or_default();
        family.0 = family.0.saturating_add(table.rows.saturating_mul(table.row_bytes() as u64));
        family.1.push(&table.name);
    }
    let largest = families.iter().max_by_key(|(key, (bytes, names))| (names.len(), *bytes, std::cmp::Reverse(*key)));
    match largest {
        Some(((parent, ..), _)) if !parent.is_empty() => format!("{parent}."),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;
    use warprow_formats::TableWriter;
    use warprow_layout::DType;

    /// A safetensors file of tensors with a name and a shape each.
    fn file(dir: &Path, tensors: &[(&str, &[usize])]) -> TableFile {
        let path = dir.join("m.safetensors");
        let data = vec![0; 1 << 16];
        let views = tensors.iter().map(|&(name, shape)| {
            let bytes = shape.iter().product::<usize>() * 4;
            (
                name,
                safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), &data[..bytes]).unwrap(),
            )
        });
        fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
        TableFile::open(&path).unwrap()
    }

    fn select(tensors: &[&str], all: bool, strip: &str) -> Selection {
        let tensors = tensors.iter().map(|&tensor| tensor.to_owned()).collect();
        Selection { tensors, all, strip_prefix: (!strip.is_empty()).then(|| strip.to_owned()) }
    }

    #[test]
    fn one_table_needs_no_choice_and_several_do() {
        let dir = tempfile::tempdir().unwrap();
        let one = [file(dir.path(), &[("emb.weight", &[8, 4]), ("bias", &[4])])];
        let chosen = Selection::default().choose(&one, "warprow load").unwrap();
        assert_eq!(chosen.iter().map(|chosen| &*chosen.name).collect::<Vec<_>>(), ["emb.weight"]);

        let deep = [file(
            dir.path(),
            &[
                ("e.layers.a.weight", &[100, 4]),
                ("e.layers.b.weight", &[50, 4]),
                ("fm.layers.a.weight", &[100, 1]),
                ("mlp.0.weight", &[30, 40]),
                ("mlp.0.bias", &[30]),
            ],
        )];
        let failure = Selection::default().choose(&deep, "warprow load -d x").unwrap_err();
        assert_eq!(failure.details["tables"].as_array().unwrap().len(), 4);
        assert!(failure.message.contains("mlp.0.bias  (skipped: rank 1)"), "{failure}");
        let example = failure.details["example"].as_str().unwrap();
        assert!(example.starts_with("warprow load -d x /"), "{example}");
        assert!(example.ends_with("m.safetensors --tensor 'e.layers.*' --strip-prefix e.layers."), "{example}");
        let follow = select(&["e.layers.*"], false, "e.layers.").choose(&deep, "").unwrap();
        assert_eq!(follow.iter().map(|chosen| &*chosen.name).collect::<Vec<_>>(), ["a.weight", "b.weight"]);
    }

    #[test]
    fn collisions_and_typos_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let files = [file(dir.path(), &[("x.a", &[2, 2]), ("a", &[2, 2]), ("x.b", &[2, 2]), ("bias", &[2])])];
        let fails = |selection: Selection| selection.choose(&files, "").unwrap_err().to_string();
        assert!(fails(select(&[], true, "x.")).contains("two tables would be called \"a\""));
        assert!(fails(select(&["y*"], false, "")).contains("no tensor matches"));
        assert!(fails(select(&["bias"], false, "")).contains("rank 1"));
        assert!(fails(select(&["b=x.*"], false, "")).contains("2 tensors match"));
        assert!(fails(select(&["a"], false, "x.")).contains("no name begins with the prefix"));
        assert!(fails(select(&["a"], false, "a")).contains("nothing of its name is left"));
        let named = select(&["user=x.a", "x.b", "x.*b"], false, "x.").choose(&files, "").unwrap();
        assert_eq!(named.iter().map(|chosen| &*chosen.name).collect::<Vec<_>>(), ["user", "b"]);
    }

    #[test]
    fn files_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let tables = file(dir.path(), &[("t", &[2, 2])]);
        let path = dir.path().join("t.npy");
        let writer = TableWriter::create(&path, false, "", 3, 1, DType::U8).unwrap();
        writer.write(0, &[1, 2, 3]).unwrap();
        writer.finish().unwrap();
        let files = [tables, TableFile::open(&path).unwrap()];
        let failure = Selection::default().choose(&files, "").unwrap_err();
        assert!(failure.message.contains("m.safetensors") && failure.message.contains("t.npy"), "{failure}");
    }
}
