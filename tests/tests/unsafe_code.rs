//! `docs/architecture.md` says which packages have unsafe code, and `CONTRIBUTING.md` which folders: both name all that have some,
//! and none that has none.

mod rust_source;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rust_source::tokens;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
/// How the item of `CONTRIBUTING.md` begins that names the folders.
const ITEM: &str = "\n- **`unsafe`**";

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Whether a source file has unsafe code: a block, an implementation, or a function, also one of another language or of a trait.
/// The type of a function that is unsafe is none, nor is an attribute.
fn has_unsafe_code(source: &str) -> bool {
    let tokens = tokens(source);
    let mut marked = (0..tokens.len()).filter(|&at| tokens[at] == "unsafe").map(|at| &tokens[at + 1..]);
    marked.any(|behind| {
        let behind = match behind {
            ["extern", abi, rest @ ..] if abi.starts_with('"') => rest,
            ["extern", rest @ ..] => rest,
            rest => rest,
        };
        match behind {
            ["{" | "impl" | "trait", ..] => true,
            // A type's parameters stand behind `fn`, without a name.
            ["fn", next, ..] => *next != "(",
            _ => false,
        }
    })
}

/// The files below `folder` that have unsafe code, from the repository's root.
fn files_below(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(Path::new(ROOT).join(&next)).expect("a folder").flatten() {
            let path = next.join(entry.file_name());
            let name = entry.file_name();
            if entry.path().is_dir() {
                folders.extend((name != "target" && name != ".git").then_some(path));
            } else if path.extension().is_some_and(|extension| extension == "rs") && has_unsafe_code(&read(&path)) {
                found.insert(path);
            }
        }
    }
    found
}

/// The rows of the table of packages: the folder, and what the page says of unsafe code there.
fn rows(page: &str) -> Vec<(PathBuf, String)> {
    let table = page.split_once("| package | floor | folder | unsafe |").expect("the page has a table of packages").1;
    let row = |line: &str| {
        let mut cells = line.split('|').map(str::trim);
        let folder = cells.nth(3)?.trim_matches('`');
        let says = cells.next()?;
        Some((PathBuf::from(folder), says.to_owned()))
    };
    table.lines().skip(2).map_while(row).collect()
}

/// The folders of `rows` in which there is some of `files`. A folder within another package's has its files to itself.
fn folders_with<'a>(rows: &'a [(PathBuf, String)], files: &BTreeSet<PathBuf>) -> BTreeSet<&'a Path> {
    let owner = |file: &PathBuf| {
        let around = rows.iter().map(|(folder, _)| folder.as_path()).filter(|folder| file.starts_with(folder));
        around
            .max_by_key(|folder| folder.components().count())
            .unwrap_or_else(|| panic!("{} is in no package of the table", file.display()))
    };
    files.iter().map(owner).collect()
}

#[test]
fn the_page_says_which_packages_have_unsafe_code() {
    let rows = rows(&read("docs/architecture.md"));
    assert!(rows.len() > 20, "the table was not understood: {rows:?}");
    let files = files_below(Path::new(""));
    assert!(files.len() > 20, "the sources were not understood: {files:?}");
    let there = folders_with(&rows, &files);
    for (folder, says) in &rows {
        let of_it: Vec<_> = files
            .iter()
            .filter(|file| folders_with(&rows, &BTreeSet::from([(*file).clone()])).contains(&**folder))
            .collect();
        let is_said = !says.starts_with("none");
        assert_eq!(
            is_said,
            there.contains(&**folder),
            "the page says of {}: {says:?}; it has {of_it:?}",
            folder.display()
        );
    }
}

#[test]
fn the_rule_for_changes_names_the_same_folders() {
    let rows = rows(&read("docs/architecture.md"));
    let said: BTreeSet<&Path> =
        rows.iter().filter(|(_, says)| !says.starts_with("none")).map(|pair| &*pair.0).collect();
    let page = read("CONTRIBUTING.md");
    let item = page.split_once(ITEM).expect("an item on unsafe code").1;
    let item = item.split("\n- ").next().unwrap_or(item);
    let is_folder = |name: &&Path| rows.iter().any(|(folder, _)| folder == name);
    let named: BTreeSet<&Path> = item.split('`').skip(1).step_by(2).map(Path::new).filter(is_folder).collect();
    assert_eq!(named, said);
}

#[test]
fn unsafe_code_is_found_and_words_about_it_are_not() {
    for code in [
        "fn f() { unsafe { g() } }",
        "unsafe impl Send for A {}",
        "pub(crate) unsafe fn f() {}",
        "trait A { unsafe fn f(); }",
        "unsafe extern \"C\" { fn f(); }",
        "pub unsafe extern \"C\" fn f() {}",
        "unsafe /* why */\n{ g() }",
    ] {
        assert!(has_unsafe_code(code), "{code}");
    }
    for code in [
        "// unsafe { g() }\nfn f() {}",
        "/* unsafe impl */ fn f() {}",
        "const A: &str = \"unsafe fn f()\"; const B: &str = r#\"unsafe {\"#;",
        "#![deny(unsafe_code)] #[allow(unsafe_code)] fn f() {}",
        "type F = unsafe fn(*const u8); type G = unsafe extern \"C\" fn(u8);",
        "fn not_unsafe() {}",
    ] {
        assert!(!has_unsafe_code(code), "{code}");
    }
}
