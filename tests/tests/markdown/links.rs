//! Links lead to files and headings that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::pages::{ROOT, pages, prose};

/// Targets of the links in a page, with the numbers of their lines. What stands between backticks is no link.
pub(crate) fn links(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(page) {
        let text: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        for rest in text.split("](").skip(1) {
            found.extend(rest.split_once(')').map(|(target, _)| (number, target.to_owned())));
        }
    }
    found
}

/// The name by which a link reaches a heading, as GitHub and mdBook make it of the heading's text.
fn slug(heading: &str) -> String {
    // Of a link in a heading its text counts.
    let mut text = String::new();
    let mut rest = heading;
    while let Some((before, link)) = rest.split_once("](") {
        text += before;
        rest = link.split_once(')').map_or("", |(_, after)| after);
    }
    text += rest;
    let kept = text.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// The names of a page's headings. A second heading of the same text has "-1" behind its name.
pub(crate) fn slugs(page: &str) -> BTreeSet<String> {
    let mut times: BTreeMap<String, u32> = BTreeMap::new();
    let mut found = BTreeSet::new();
    for (_, line) in prose(page) {
        let level = line.chars().take_while(|&c| c == '#').count();
        let Some(heading) = line.get(level..).filter(|rest| (1..=6).contains(&level) && rest.starts_with(' ')) else {
            continue;
        };
        let slug = slug(heading);
        let before = times.entry(slug.clone()).or_default();
        found.insert(if *before == 0 { slug } else { format!("{slug}-{before}") });
        *before += 1;
    }
    found
}

/// A path without "..".
fn plain(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(found.pop()),
            Component::CurDir => {}
            part => found.push(part),
        }
    }
    found
}

/// What is wrong with a link of a page; `None`: nothing.
fn flaw(page: &Path, target: &str, headings: &BTreeMap<PathBuf, BTreeSet<String>>) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let path = if file.is_empty() { page.to_owned() } else { plain(&page.with_file_name("").join(file)) };
    if !Path::new(ROOT).join(&path).exists() {
        return Some(format!("there is no file {}", path.display()));
    }
    let heading = heading?;
    match headings.get(&path) {
        None => Some(format!("{} is no page, and has no headings", path.display())),
        Some(known) if known.contains(heading) => None,
        Some(_) => Some(format!("{} has no heading #{heading}", path.display())),
    }
}

#[test]
fn links_lead_somewhere() {
    let pages = pages();
    let headings: BTreeMap<_, _> = pages.iter().map(|(path, text)| (path.clone(), slugs(text))).collect();
    let mut wrong = Vec::new();
    let mut count = 0;
    for (path, text) in &pages {
        for (line, target) in links(text) {
            count += 1;
            let flaw = flaw(path, &target, &headings);
            wrong.extend(flaw.map(|flaw| format!("{}:{line}: {target}: {flaw}", path.display())));
        }
    }
    assert!(count > 200, "the links were not understood: {count} found");
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn wrong_links_are_found() {
    let page = "# A *b*, `c`: [d](e.md)\n## Two\n## Two\nSee [x](#two-1), [y](b.md#z) and `[no](no.md)`.\n```\n[no](no.md)\n```\n";
    assert_eq!(slugs(page).into_iter().collect::<Vec<_>>(), ["a-b-c-d", "two", "two-1"]);
    let targets: Vec<_> = links(page).into_iter().map(|(_, target)| target).collect();
    assert_eq!(targets, ["e.md", "#two-1", "b.md#z"]);
    let path = Path::new("docs/a.md");
    let headings = BTreeMap::from([(path.to_owned(), slugs(page)), ("README.md".into(), BTreeSet::new())]);
    let is_wrong = |target| flaw(path, target, &headings).is_some();
    // There is a page docs/store.md; its headings are not given here.
    for target in ["store.md", "../README.md", "../docs/./store.md", "https://example.org/#x", "../Cargo.toml"] {
        assert!(!is_wrong(target), "{target}");
    }
    for target in ["nowhere.md", "#three", "../README.md#x", "../Cargo.toml#x", "docs/store.md", "store.md#x"] {
        assert!(is_wrong(target), "{target}");
    }
}
