//! A picture of where tables lie on each drive, for `warprow inspect --svg`.

mod drives;
mod generation;
mod page;
mod plot;

use std::collections::HashMap;

use svg::Document;
use warprow_layout::{DriveMap, GenerationInspection, StoreInspection, TableMap};

use drives::{bar_of_drive, legend, patterns};
use generation::plot_of_generation;
use page::{COLOURS, Page, WIDTH};
use warprow_workload::units;

/// Generations that are drawn table by table, at most: the largest. As many as there are colours.
const DRAWN: usize = COLOURS.len();

/// The picture, as the text of an SVG file.
pub(crate) fn draw(store: &StoreInspection, drives: &[DriveMap], tables: &[TableMap]) -> String {
    let mut drawn: Vec<&GenerationInspection> = store.generations.iter().collect();
    drawn.sort_by_key(|generation| (std::cmp::Reverse(generation.bytes), generation.id));
    drawn.truncate(DRAWN);
    drawn.sort_by_key(|generation| generation.id);
    let colours: HashMap<u64, usize> = drawn.iter().enumerate().map(|(index, it)| (it.id, index)).collect();
    let mut page = Page { document: Document::new().add(patterns()), y: 20 };
    page.text(20, &format!("Store {}, epoch {}", store.store, store.epoch), 18, "bold");
    page.y += 26;
    let free: u64 = store.members.iter().map(|member| member.free_chunks * store.chunk_size).sum();
    let all: u64 = store.members.iter().map(|member| member.bytes).sum();
    let line = format!(
        "{} of {} free; chunks of {}, LBAs of {} B; drawn to scale, the largest drive over the whole width",
        units::bytes(free),
        units::bytes(all),
        units::bytes(store.chunk_size),
        store.lba_size
    );
    page.text(20, &line, 13, "normal");
    page.y += 20;
    legend(&mut page, store.generations.len() > drawn.len());

    let largest = drives.iter().map(|drive| drive.bytes).max().unwrap_or(0).max(1);
    for drive in drives {
        bar_of_drive(&mut page, store, drive, largest, &colours);
    }
    page.y += 10;

    for generation in &drawn {
        let tables: Vec<&TableMap> = tables.iter().filter(|table| table.generation == generation.id).collect();
        plot_of_generation(&mut page, store, generation, &tables, colours.get(&generation.id).copied());
    }
    let left = store.generations.len() - drawn.len();
    if left > 0 {
        page.text(
            20,
            &format!("and {}, which --json lists", units::plural(left as u64, "smaller generation")),
            13,
            "normal",
        );
        page.y += 20;
    }
    if store.generations.is_empty() {
        page.text(20, "No tables yet.", 13, "normal");
        page.y += 20;
    }
    let document = page.document.set("viewBox", (0, 0, WIDTH, page.y + 10)).set("width", WIDTH);
    let document = document.set("height", page.y + 10).set("font-family", "sans-serif");
    document.to_string() + "\n"
}
