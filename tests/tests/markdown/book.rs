//! The book names all its chapters, and all of them are there.

use std::collections::BTreeSet;
use std::path::Path;

use super::links::links;
use super::pages::pages;

#[test]
fn the_summary_names_every_chapter() {
    let source = Path::new("docs/book/src");
    let pages = pages();
    let (chapters, summary): (Vec<_>, Vec<_>) =
        pages.iter().filter(|(path, _)| path.starts_with(source)).partition(|(path, _)| !path.ends_with("SUMMARY.md"));
    let [(_, summary)] = summary[..] else { panic!("the book has no SUMMARY.md") };
    let named: Vec<_> = links(summary).into_iter().map(|(_, target)| source.join(target)).collect();
    let there: BTreeSet<_> = chapters.iter().map(|(path, _)| path.clone()).collect();
    assert!(there.len() > 5, "the book was not found: {there:?}");
    assert_eq!(named.iter().cloned().collect::<BTreeSet<_>>(), there, "named chapters, and pages of the book");
    assert_eq!(named.len(), there.len(), "a chapter is named twice");
}
