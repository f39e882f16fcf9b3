//! The chunks of a generation, and who lies in them.

use std::collections::HashMap;

use svg::node::element::{Group, Line, Rectangle, Text, Title};
use warprow_layout::{GenerationInspection, StoreInspection, TableMap};
use warprow_workload::units;

use super::page::{BAR, COLOURS, FREE, GREY, LEFT, META, Page, colour, ink_on, label, legal, rectangle, short, tidy};
use super::plot::{CHUNK, Plot, ROWS, labels_of_chunks, point};

/// Tables of a generation that have a colour, a number and a line in its legend, at most: the largest.
const NAMED: usize = COLOURS.len();

/// Tables that get a title of their own to point at. More are drawn without.
const TITLED: usize = 2000;
/// A part of a table that is less than so many pixels wide, or high, is pointed at.
const SEEN: f64 = 3.0;

/// A generation with its tables, of which some are named.
struct Shown<'a> {
    store: &'a StoreInspection,
    generation: &'a GenerationInspection,
    tables: &'a [&'a TableMap],
    /// Chunks of the generation.
    chunks: u64,
    /// The tables that are named, the largest, in the order in which they lie.
    named: Vec<usize>,
    /// The numbers of these tables, by their places in `tables`.
    numbers: HashMap<usize, usize>,
}

/// The chunks of a generation, one below another, and which bytes of each hold which table; then who these are.
pub(super) fn plot_of_generation(
    page: &mut Page,
    store: &StoreInspection,
    generation: &GenerationInspection,
    tables: &[&TableMap],
    index: Option<usize>,
) {
    let chunks: u64 = generation.chunks.iter().sum();
    let named = largest(tables);
    let numbers = named.iter().enumerate().map(|(number, &place)| (place, number)).collect();
    let it = Shown { store, generation, tables, chunks, named, numbers };
    it.head(page, index);
    let rows = (chunks as usize).clamp(1, ROWS);
    let plot = Plot { y: page.y + 16, height: rows * CHUNK, chunks, chunk_size: store.chunk_size };
    labels_of_chunks(page, store, generation, &plot);
    let mut group = Group::new().add(rectangle(LEFT, plot.y, BAR, plot.height, FREE));
    let mut pointed: Vec<(f64, usize)> = Vec::new();
    for place in 0..tables.len() {
        group = it.table(group, &plot, place, &mut pointed);
    }
    if rows as u64 == chunks {
        for row in 1..rows {
            let y = plot.y + row * CHUNK;
            let line = Line::new().set("x1", LEFT).set("x2", LEFT + BAR).set("y1", y).set("y2", y);
            group = group.add(line.set("stroke", "#ffffff").set("stroke-width", 0.5));
        }
    }
    page.add(group.add(rectangle(LEFT, plot.y, BAR, plot.height, "none").set("stroke", META)));
    point(page, &plot, pointed);
    page.y = plot.y + plot.height + 8;
    it.legend(page);
    page.y += 18;
}

/// The places of the tables with most bytes, as many as are named, in the order in which they lie.
fn largest(tables: &[&TableMap]) -> Vec<usize> {
    let mut largest: Vec<(u64, usize)> =
        tables.iter().enumerate().map(|(place, it)| (it.bytes.iter().sum(), place)).collect();
    largest.sort_by_key(|&(bytes, place)| (std::cmp::Reverse(bytes), place));
    let mut named: Vec<usize> = largest.into_iter().take(NAMED).map(|(_, place)| place).collect();
    named.sort_unstable();
    named
}

impl Shown<'_> {
    /// The line above the chunks.
    fn head(&self, page: &mut Page, index: Option<usize>) {
        let Self { store, generation, chunks, .. } = *self;
        let standby = if generation.shown == 0 { ", standby" } else { "" };
        page.add(rectangle(20, page.y + 2, 14, 14, colour(index)));
        let rows = match chunks {
            1 => "its chunk, from its first byte to its last:",
            2..=16 => "each row is one of its chunks, from its first byte to its last:",
            _ => "its chunks from the first of its map down to the last, each from its first byte to its last:",
        };
        let head = format!(
            "generation {} of {}{standby}: {} in {} of {}; {rows}",
            generation.id,
            short(&generation.name, 40),
            units::bytes(generation.bytes),
            units::plural(chunks, "chunk"),
            units::bytes(store.chunk_size),
        );
        page.text(40, &head, 13, "normal");
        page.y += 24;
    }

    /// The parts of a table. Its number stands in the largest of them, or else in `pointed`, with where that is.
    fn table(&self, mut group: Group, plot: &Plot, place: usize, pointed: &mut Vec<(f64, usize)>) -> Group {
        let Some(table) = self.tables.get(place) else { return group };
        let number = self.numbers.get(&place).copied();
        let bytes: u64 = table.bytes.iter().sum();
        let words = format!("{}: {}, {}", table.table, units::bytes(bytes), self.lies(table));
        for part in &table.parts {
            let (x, y, width, height) = plot.place(part);
            let drawn = Rectangle::new().set("x", tidy(x)).set("y", tidy(y)).set("width", tidy(width));
            let mut drawn = drawn.set("height", tidy(height)).set("fill", colour(number));
            if self.tables.len() <= TITLED {
                drawn = drawn.add(Title::new(legal(&words)));
            }
            group = group.add(drawn);
        }
        let places = table.parts.iter().map(|part| plot.place(part));
        let best = places.max_by(|a, b| (a.2 * a.3).total_cmp(&(b.2 * b.3)));
        let (Some(number), Some((x, y, width, height))) = (number, best) else { return group };
        let is_seen = width >= SEEN && height >= SEEN;
        if !is_seen || width <= 16.0 || height < 9.0 {
            pointed.push((x + width / 2.0, number));
            return group;
        }
        let x = (x + width / 2.0) as usize;
        let y = (y + height / 2.0) as usize + 4;
        group.add(number_at(x, y, number))
    }

    /// Who the named tables are, and how many others there are.
    fn legend(&self, page: &mut Page) {
        for (number, &place) in self.named.iter().enumerate() {
            let x = 20 + number % 2 * 610;
            let y = page.y + number / 2 * 17;
            page.add(rectangle(x, y, 18, 14, colour(Some(number))));
            page.add(number_at(x + 9, y + 11, number));
            let Some(table) = self.tables.get(place) else { continue };
            let spec = self.generation.tables.get(place);
            let shape = spec.map(|table| format!("{} × {} {}", units::count(table.rows), table.dim, table.dtype));
            let words = format!(
                "{}: {}, {}, {}",
                short(&table.table, 32),
                shape.unwrap_or_default(),
                units::bytes(table.bytes.iter().sum()),
                self.lies(table)
            );
            page.add(label(x + 24, y + 11, &words, 11));
        }
        page.y += self.named.len().div_ceil(2) * 17;
        let unnamed = self.tables.iter().enumerate().filter(|(place, _)| !self.numbers.contains_key(place));
        let unnamed: Vec<_> = unnamed.map(|(_, table)| table.bytes.iter().sum::<u64>()).collect();
        if !unnamed.is_empty() {
            let bytes = units::bytes(unnamed.iter().sum());
            page.add(rectangle(20, page.y, 18, 14, GREY));
            let words = format!("{}, {bytes} together, in grey", units::plural(unnamed.len() as u64, "more table"));
            page.add(label(44, page.y + 11, &words, 11));
            page.y += 17;
        }
    }

    /// In which chunks a table lies, in words.
    fn lies(&self, table: &TableMap) -> String {
        let store = self.store;
        let mut on = (0u16..).zip(&table.bytes).filter(|(_, bytes)| **bytes > 0).map(|(member, _)| member);
        let alone = match (on.next(), on.next()) {
            (Some(member), None) if store.members.len() > 1 => {
                let name = store
                    .members
                    .get(usize::from(member))
                    .and_then(|member| member.drive.as_deref())
                    .unwrap_or("MISSING");
                format!(" on {}", short(name, 24))
            }
            _ => String::new(),
        };
        match (table.chunks, self.chunks) {
            (1, 1) => format!("in the one chunk{alone}"),
            (held, all) if held == all => format!("in all {} chunks{alone}", units::count(all)),
            (held, all) => format!("in {} of {} chunks{alone}", units::count(held), units::count(all)),
        }
    }
}

/// The number of a table on its colour.
fn number_at(x: usize, y: usize, number: usize) -> Text {
    let words = (number + 1).to_string();
    label(x, y, &words, 10).set("text-anchor", "middle").set("fill", ink_on(colour(Some(number))))
}
