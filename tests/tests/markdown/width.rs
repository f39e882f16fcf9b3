//! Pages wrap at 100 columns, but for tables, code and links, which cannot.

use super::pages::{pages, prose};

const COLUMNS: usize = 100;

/// Lines of a page that are too long, by their numbers.
fn too_long(page: &str) -> Vec<usize> {
    let is_long = |(number, line): (usize, &str)| {
        let text = line.trim_start();
        let is_free = text.starts_with('|') || line.starts_with("    ") || !text.contains(' ');
        (!is_free && line.chars().count() > COLUMNS).then_some(number)
    };
    prose(page).filter_map(is_long).collect()
}

#[test]
fn long_lines_are_found() {
    let long = "word ".repeat(30);
    assert_eq!(too_long(&format!("short\n{long}\n| {long}\n```\n{long}\n```\n    {long}\n")), [2]);
}

#[test]
fn pages_wrap_at_100_columns() {
    let mut wrong = Vec::new();
    for (path, text) in pages() {
        // A test writes this one (tests/fault_matrix/render.rs).
        if path.ends_with("docs/faults.md") {
            continue;
        }
        wrong.extend(too_long(&text).into_iter().map(|line| format!("{}:{line}", path.display())));
    }
    assert!(wrong.is_empty(), "longer than {COLUMNS} columns:\n{}", wrong.join("\n"));
}
