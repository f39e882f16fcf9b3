//! The files that CONTRIBUTING.md names exist: a reader who looks for a first change begins at them.

use std::path::Path;

use super::pages::{ROOT, pages};

/// Names of files, with their folders, that a page quotes.
fn files_named(page: &str) -> impl Iterator<Item = &str> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted.filter(|name| {
        name.contains('/') && !name.contains(char::is_whitespace) && Path::new(name).extension().is_some()
    })
}

#[test]
fn quoted_files_are_found() {
    let page = "Begin at `a/b.rs` and `c/d.txt`, not `e.rs`, `a/b`\nor `git log\na/b.rs`; `x/y.md`\n";
    assert_eq!(files_named(page).collect::<Vec<_>>(), ["a/b.rs", "c/d.txt", "x/y.md"]);
}

#[test]
fn files_that_contributing_names_exist() {
    let pages = pages();
    let (_, page) = pages.iter().find(|(path, _)| path.ends_with("CONTRIBUTING.md")).expect("the page");
    let named: Vec<_> = files_named(page).collect();
    assert!(named.len() > 15, "the page was not understood: {named:?}");
    let missing: Vec<_> = named.iter().filter(|name| !Path::new(ROOT).join(name).exists()).collect();
    assert!(missing.is_empty(), "CONTRIBUTING.md names files that do not exist: {missing:?}");
}
