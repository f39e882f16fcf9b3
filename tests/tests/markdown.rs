//! Pages wrap at 100 columns, but for tables, code and links, which cannot.

use std::path::Path;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const COLUMNS: usize = 100;

/// Lines of a page that are too long, by their numbers.
fn too_long(page: &str) -> Vec<usize> {
    let mut is_code = false;
    let mut found = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        let text = line.trim_start();
        if text.starts_with("```") {
            is_code = !is_code;
        }
        let is_free = is_code || text.starts_with('|') || line.starts_with("    ") || !text.contains(' ');
        if !is_free && line.chars().count() > COLUMNS {
            found.push(number);
        }
    }
    found
}

#[test]
fn long_lines_are_found() {
    let long = "word ".repeat(30);
    assert_eq!(too_long(&format!("short\n{long}\n| {long}\n```\n{long}\n```\n    {long}\n")), [2]);
}

#[test]
fn pages_wrap_at_100_columns() {
    let root = Path::new(ROOT);
    let mut pages = vec![
        root.join("README.md"),
        root.join("CHANGELOG.md"),
        root.join("CONTRIBUTING.md"),
        root.join("examples/README.md"),
    ];
    for folder in ["docs", "docs/performance"] {
        pages.extend(std::fs::read_dir(root.join(folder)).expect(folder).map(|entry| entry.expect("a page").path()));
    }
    let mut wrong = Vec::new();
    for page in pages.iter().filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        // A test writes this one (tests/fault_matrix/render.rs).
        if page.ends_with("docs/faults.md") {
            continue;
        }
        let text = std::fs::read_to_string(page).expect("a page");
        wrong.extend(too_long(&text).into_iter().map(|line| format!("{}:{line}", page.display())));
    }
    assert!(wrong.is_empty(), "longer than {COLUMNS} columns:\n{}", wrong.join("\n"));
}
