//! The pages of the repository.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub(crate) const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Every page, by its path below the root, with its text.
pub(crate) fn pages() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for page in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md", "python/README.md"] {
        found.push(PathBuf::from(page));
    }
    let mut folders = vec![PathBuf::from("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(Path::new(ROOT).join(&folder)).expect("a folder of pages") {
            let entry = entry.expect("a page");
            let path = folder.join(entry.file_name());
            if entry.path().is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(Path::new(ROOT).join(&path));
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path, text)
    };
    found.into_iter().map(read).collect()
}

/// The lines of a page that are not in a block of code, with their numbers.
pub(crate) fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(page.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

#[test]
fn prose_is_what_is_no_code() {
    let lines: Vec<usize> = prose("one\n```text\ntwo\n```\nthree\n").map(|(number, _)| number).collect();
    assert_eq!(lines, [1, 5]);
}
