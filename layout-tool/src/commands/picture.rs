//! A picture of where tables lie on each drive, for `warprow inspect --svg`.

use std::collections::HashMap;

use svg::node::element::{Definitions, Group, Line, Pattern, Rectangle, Text, Title};
use svg::{Document, Node};
use warprow_layout::{DriveMap, GenerationInspection, Inspection, MapKind, TableMap, TablePart};

use crate::report::printable;
use crate::units;

/// Pixels: the page, the bars of drives and generations, and where these begin.
const WIDTH: usize = 1240;
const BAR: usize = 960;
const LEFT: usize = 260;
const ROW: usize = 40;
/// Generations that are drawn table by table, at most: the largest. As many as there are colours.
const DRAWN: usize = COLOURS.len();
/// Tables of a generation that have a colour, a number and a line in its legend, at most: the largest.
const NAMED: usize = COLOURS.len();
/// Tables that get a title of their own to point at. More are drawn without.
const TITLED: usize = 2000;
/// Chunks of a generation that get a row that can be seen and labelled, at most. More share the height of so many.
const ROWS: usize = 16;
/// Pixels of such a row.
const CHUNK: usize = 12;
/// A part of a table that is less than so many pixels wide, or high, is pointed at.
const SEEN: f64 = 3.0;

const FREE: &str = "#eceff1";
const UNUSED: &str = "#ffffff";
const META: &str = "#37474f";
const CATALOGUE: &str = "#78909c";
const INK: &str = "#212121";
/// Of what has no colour of its own: generations and tables that are not among the largest.
const GREY: &str = "#9e9e9e";

/// Colours of generations, and of tables within one: as many as are named, so that none means two. The first are told apart by people
/// who see few colours too (Okabe and Ito's); all have numbers besides.
const COLOURS: [&str; 24] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#e6d200", "#7b6bb5", "#8c564b", "#1b4f72",
    "#a6d854", "#e41a1c", "#17becf", "#5d4037", "#f781bf", "#00441b", "#c2a5cf", "#ffbf7f", "#4a1486", "#80cdc1",
    "#7f7f00", "#99000d", "#b3cde3", "#ff00a8",
];

fn colour(number: Option<usize>) -> &'static str {
    number.and_then(|number| COLOURS.get(number)).copied().unwrap_or(GREY)
}

/// Black or white: what can be read on a colour.
fn ink_on(colour: &str) -> &'static str {
    let part = |at: usize| colour.get(at..at + 2).and_then(|hex| u32::from_str_radix(hex, 16).ok()).unwrap_or(0);
    // ITU-R BT.601.
    if 299 * part(1) + 587 * part(3) + 114 * part(5) > 150_000 { INK } else { "#ffffff" }
}

/// What lies in one pixel of a drive's bar, if anything of a chunk does.
type Pixel = (MapKind, Option<u64>);

/// The picture, as the text of an SVG file.
pub(crate) fn draw(store: &Inspection, drives: &[DriveMap], tables: &[TableMap]) -> String {
    let mut drawn: Vec<&GenerationInspection> = store.generations.iter().collect();
    drawn.sort_by_key(|it| (std::cmp::Reverse(it.bytes), it.id));
    drawn.truncate(DRAWN);
    drawn.sort_by_key(|it| it.id);
    let colours: HashMap<u64, usize> = drawn.iter().enumerate().map(|(index, it)| (it.id, index)).collect();
    let mut page = Page { document: Document::new().add(patterns()), y: 20 };
    page.text(20, &format!("Store {}, epoch {}", store.store, store.epoch), 18, "bold");
    page.y += 26;
    let free: u64 = store.members.iter().map(|it| it.free_chunks * store.chunk_size).sum();
    let all: u64 = store.members.iter().map(|it| it.bytes).sum();
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
        let tables: Vec<&TableMap> = tables.iter().filter(|it| it.generation == generation.id).collect();
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

struct Page {
    document: Document,
    /// Where the next thing goes.
    y: usize,
}

impl Page {
    fn add(&mut self, node: impl Into<Box<dyn Node>>) {
        self.document.append(node);
    }

    fn text(&mut self, x: usize, words: &str, size: usize, weight: &str) {
        let y = self.y + size;
        self.add(label(x, y, words, size).set("font-weight", weight));
    }
}

fn label(x: usize, y: usize, words: &str, size: usize) -> Text {
    Text::new(legal(words)).set("x", x).set("y", y).set("font-size", size).set("fill", "#212121")
}

/// Without characters that XML has no way to say.
fn legal(words: &str) -> String {
    printable(words).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

fn rectangle(x: usize, y: usize, width: usize, height: usize, fill: &str) -> Rectangle {
    Rectangle::new().set("x", x).set("y", y).set("width", width).set("height", height).set("fill", fill)
}

/// Hatching over what stands by, dots over logs.
fn patterns() -> Definitions {
    let line = Line::new().set("x1", 0).set("y1", 0).set("x2", 0).set("y2", 6);
    let hatch = Pattern::new().set("id", "standby").set("width", 6).set("height", 6);
    let hatch = hatch.set("patternUnits", "userSpaceOnUse").set("patternTransform", "rotate(45)");
    let hatch = hatch.add(line.set("stroke", "#ffffff").set("stroke-width", 5));
    let dots = Pattern::new().set("id", "log").set("width", 4).set("height", 4).set("patternUnits", "userSpaceOnUse");
    let dots = dots.add(rectangle(0, 0, 2, 2, "#212121"));
    Definitions::new().add(hatch).add(dots)
}

/// What the bars of drives show. Each generation has a colour there.
fn legend(page: &mut Page, others: bool) {
    let mut x = 20;
    let y = page.y;
    let all = [
        (META, None, "superblocks"),
        (CATALOGUE, None, "catalogue"),
        (COLOURS[0], None, "a generation's tables that are found"),
        (COLOURS[0], Some("url(#standby)"), "on standby"),
        (COLOURS[0], Some("url(#log)"), "its log of updates"),
        (FREE, None, "free"),
        (GREY, None, "smaller generations"),
    ];
    for (fill, over, words) in all.into_iter().take(if others { 7 } else { 6 }) {
        page.add(rectangle(x, y + 4, 14, 12, fill).set("stroke", "#90a4ae"));
        if let Some(over) = over {
            page.add(rectangle(x, y + 4, 14, 12, over));
        }
        page.add(label(x + 20, y + 14, words, 12));
        x += 44 + words.len() * 7;
    }
    page.y += 32;
}

fn bar_of_drive(page: &mut Page, store: &Inspection, drive: &DriveMap, largest: u64, colours: &HashMap<u64, usize>) {
    let scale = |bytes: u64| (u128::from(bytes) * BAR as u128 / u128::from(largest)) as usize;
    let (y, width) = (page.y, scale(drive.bytes).max(12));
    let member = store.members.get(usize::from(drive.member));
    let name = drive.drive.as_deref().unwrap_or("MISSING");
    let free = member.map_or(0, |it| it.free_chunks * store.chunk_size);
    page.add(label(20, y + 14, &short(name, 34), 12).set("font-weight", "bold"));
    let logs = drive.runs.iter().filter(|run| run.what == MapKind::Log).map(|run| run.lbas).sum::<u64>();
    let logs = match logs * u64::from(store.lba_size) {
        0 => String::new(),
        bytes => format!(", logs {}", units::bytes(bytes)),
    };
    page.add(label(20, y + 29, &format!("{}, {} free{logs}", units::bytes(drive.bytes), units::bytes(free)), 11));
    let mut group = Group::new();
    let lba = u64::from(store.lba_size);
    let pixels = pixels(drive, width, lba);
    let mut x = 0;
    for run in pixels.chunk_by(|a, b| a == b) {
        let Some(&(kind, generation)) = run.first() else { continue };
        let owner = generation.and_then(|id| store.generations.iter().find(|it| it.id == id));
        let fill = match kind {
            MapKind::Free => FREE,
            MapKind::Tables | MapKind::Log => colour(generation.and_then(|id| colours.get(&id)).copied()),
            _ => UNUSED,
        };
        let words = match (kind, owner) {
            (MapKind::Log, Some(it)) => format!("log of generation {} of {}", it.id, it.name),
            (_, Some(it)) => format!(
                "generation {} of {}, {}, {}",
                it.id,
                it.name,
                units::plural(it.tables.len() as u64, "table"),
                if it.shown == 0 { "standby" } else { "found" }
            ),
            (MapKind::Free, None) => "free".to_owned(),
            _ => "not used".to_owned(),
        };
        let title = || Title::new(legal(&words));
        group = group.add(rectangle(LEFT + x, y, run.len(), 26, fill).add(title()));
        let over = match (kind, owner.is_some_and(|it| it.shown == 0)) {
            (MapKind::Log, _) => Some("url(#log)"),
            (MapKind::Tables, true) => Some("url(#standby)"),
            _ => None,
        };
        if let Some(over) = over {
            group = group.add(rectangle(LEFT + x, y, run.len(), 26, over).add(title()));
        }
        x += run.len();
    }
    // Metadata is too small to be seen at scale: its marks have a width of their own.
    let mark = |x: usize, width: usize, fill: &str, words: &str| {
        rectangle(LEFT + x, y, width, 26, fill).add(Title::new(words))
    };
    group = group
        .add(mark(0, 2, META, "superblocks A and B"))
        .add(mark(2, 2, CATALOGUE, "catalogue, two extents"))
        .add(mark(width.saturating_sub(2), 2, META, "superblocks A and B, copies"))
        .add(rectangle(LEFT, y, width, 26, "none").set("stroke", META));
    page.add(group);
    page.y += ROW;
}

/// What each pixel of a bar shows: that which most of its bytes hold.
fn pixels(drive: &DriveMap, width: usize, lba: u64) -> Vec<Pixel> {
    let at = |bytes: u64| (u128::from(bytes) * width as u128) as f64 / drive.bytes.max(1) as f64;
    let mut most: Vec<(f64, Pixel)> = vec![(0.0, (MapKind::Unused, None)); width];
    let mut sums: HashMap<(usize, Pixel), f64> = HashMap::new();
    for run in &drive.runs {
        let pixel = match run.what {
            MapKind::Superblocks | MapKind::Catalogue => (MapKind::Unused, None),
            what => (what, run.generation),
        };
        let (from, to) = (at(run.lba * lba), at((run.lba + run.lbas) * lba));
        for x in from as usize..(to.ceil() as usize).min(width) {
            let part = to.min(x as f64 + 1.0) - from.max(x as f64);
            let sum = sums.entry((x, pixel)).or_default();
            *sum += part;
            if let Some(best) = most.get_mut(x).filter(|best| best.0 < *sum) {
                *best = (*sum, pixel);
            }
        }
    }
    most.into_iter().map(|(_, pixel)| pixel).collect()
}

/// The chunks of a generation, one below another, and which bytes of each hold which table; then who these are.
fn plot_of_generation(
    page: &mut Page,
    store: &Inspection,
    generation: &GenerationInspection,
    tables: &[&TableMap],
    index: Option<usize>,
) {
    let chunks: u64 = generation.chunks.iter().sum();
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

    // Who is named: the largest, in the order in which they lie.
    let mut largest: Vec<(u64, usize)> =
        tables.iter().enumerate().map(|(place, it)| (it.bytes.iter().sum(), place)).collect();
    largest.sort_by_key(|&(bytes, place)| (std::cmp::Reverse(bytes), place));
    let (named, rest) = largest.split_at(largest.len().min(NAMED));
    let mut named: Vec<usize> = named.iter().map(|&(_, place)| place).collect();
    named.sort_unstable();
    let numbers: HashMap<usize, usize> = named.iter().enumerate().map(|(number, &place)| (place, number)).collect();

    let shown = (chunks as usize).clamp(1, ROWS);
    let plot = Plot { y: page.y + 16, height: shown * CHUNK, chunks, chunk_size: store.chunk_size };
    labels_of_chunks(page, store, generation, &plot);
    let mut group = Group::new().add(rectangle(LEFT, plot.y, BAR, plot.height, FREE));
    let mut pointed: Vec<(f64, usize)> = Vec::new();
    for (place, table) in tables.iter().enumerate() {
        let number = numbers.get(&place).copied();
        let bytes: u64 = table.bytes.iter().sum();
        let words = format!("{}: {}, {}", table.table, units::bytes(bytes), lies(store, table, chunks));
        for part in &table.parts {
            let (x, y, width, height) = plot.place(part);
            let drawn = Rectangle::new().set("x", tidy(x)).set("y", tidy(y)).set("width", tidy(width));
            let mut drawn = drawn.set("height", tidy(height)).set("fill", colour(number));
            if tables.len() <= TITLED {
                drawn = drawn.add(Title::new(legal(&words)));
            }
            group = group.add(drawn);
        }
        let places = table.parts.iter().map(|part| plot.place(part));
        let best = places.max_by(|a, b| (a.2 * a.3).total_cmp(&(b.2 * b.3)));
        let (Some(number), Some((x, y, width, height))) = (number, best) else { continue };
        if width < SEEN || height < SEEN {
            pointed.push((x + width / 2.0, number));
        } else if width > 16.0 && height >= 9.0 {
            let at = ((x + width / 2.0) as usize, (y + height / 2.0) as usize + 4);
            let words = (number + 1).to_string();
            group = group.add(
                label(at.0, at.1, &words, 10).set("text-anchor", "middle").set("fill", ink_on(colour(Some(number)))),
            );
        } else {
            pointed.push((x + width / 2.0, number));
        }
    }
    if shown as u64 == chunks {
        for row in 1..shown {
            let y = plot.y + row * CHUNK;
            let line = Line::new().set("x1", LEFT).set("x2", LEFT + BAR).set("y1", y).set("y2", y);
            group = group.add(line.set("stroke", "#ffffff").set("stroke-width", 0.5));
        }
    }
    page.add(group.add(rectangle(LEFT, plot.y, BAR, plot.height, "none").set("stroke", META)));
    point(page, &plot, pointed);
    page.y = plot.y + plot.height + 8;

    for (number, &place) in named.iter().enumerate() {
        let (x, y) = (20 + number % 2 * 610, page.y + number / 2 * 17);
        let fill = colour(Some(number));
        page.add(rectangle(x, y, 18, 14, fill));
        let words = (number + 1).to_string();
        page.add(label(x + 9, y + 11, &words, 10).set("text-anchor", "middle").set("fill", ink_on(fill)));
        let Some(table) = tables.get(place) else { continue };
        let shape =
            generation.tables.get(place).map(|it| format!("{} × {} {}", units::count(it.rows), it.dim, it.dtype));
        let words = format!(
            "{}: {}, {}, {}",
            short(&table.table, 32),
            shape.unwrap_or_default(),
            units::bytes(table.bytes.iter().sum()),
            lies(store, table, chunks)
        );
        page.add(label(x + 24, y + 11, &words, 11));
    }
    page.y += named.len().div_ceil(2) * 17;
    if !rest.is_empty() {
        let bytes = units::bytes(rest.iter().map(|(bytes, _)| bytes).sum());
        page.add(rectangle(20, page.y, 18, 14, GREY));
        let words = format!("{}, {bytes} together, in grey", units::plural(rest.len() as u64, "more table"));
        page.add(label(44, page.y + 11, &words, 11));
        page.y += 17;
    }
    page.y += 18;
}

/// In which chunks a table lies, in words.
fn lies(store: &Inspection, table: &TableMap, chunks: u64) -> String {
    let mut on = (0u16..).zip(&table.bytes).filter(|(_, bytes)| **bytes > 0).map(|(member, _)| member);
    let alone = match (on.next(), on.next()) {
        (Some(member), None) if store.members.len() > 1 => {
            let name = store.members.get(usize::from(member)).and_then(|it| it.drive.as_deref()).unwrap_or("MISSING");
            format!(" on {}", short(name, 24))
        }
        _ => String::new(),
    };
    match (table.chunks, chunks) {
        (1, 1) => format!("in the one chunk{alone}"),
        (held, all) if held == all => format!("in all {} chunks{alone}", units::count(all)),
        (held, all) => format!("in {} of {} chunks{alone}", units::count(held), units::count(all)),
    }
}

/// Where the chunks of a generation are drawn.
struct Plot {
    y: usize,
    height: usize,
    chunks: u64,
    chunk_size: u64,
}

impl Plot {
    /// Of a part of a table: left, top, width and height, to scale.
    fn place(&self, part: &TablePart) -> (f64, f64, f64, f64) {
        let x = |bytes: u64| LEFT as f64 + bytes as f64 * BAR as f64 / self.chunk_size.max(1) as f64;
        let y = |chunk: u64| self.y as f64 + chunk as f64 * self.height as f64 / self.chunks.max(1) as f64;
        let ((left, right), (top, bottom)) = ((x(part.bytes.0), x(part.bytes.1)), (y(part.chunks.0), y(part.chunks.1)));
        (left, top, right - left, bottom - top)
    }
}

/// With as many digits as a pixel needs.
fn tidy(pixels: f64) -> f64 {
    (pixels * 1000.0).round() / 1000.0
}

/// On which drive each row of a plot lies, where rows are chunks; where it begins and ends.
fn labels_of_chunks(page: &mut Page, store: &Inspection, generation: &GenerationInspection, plot: &Plot) {
    let name =
        |member: u16| store.members.get(usize::from(member)).and_then(|it| it.drive.as_deref()).unwrap_or("MISSING");
    if plot.chunks as usize <= ROWS {
        for (row, &member) in generation.chunk_members.iter().enumerate() {
            let words = format!("on {}", short(name(member), 36));
            page.add(label(LEFT - 6, plot.y + row * CHUNK + 10, &words, 10).set("text-anchor", "end"));
        }
        return;
    }
    let turns = |member: usize| generation.chunks.get(member).copied().unwrap_or(0);
    let on: Vec<usize> = (0..store.members.len()).filter(|&member| turns(member) > 0).collect();
    for (row, &member) in on.iter().take(ROWS).enumerate() {
        let words = format!("{} on {}", units::plural(turns(member), "chunk"), short(name(member as u16), 26));
        page.add(label(LEFT - 6, plot.y + row * CHUNK + 10, &words, 10).set("text-anchor", "end"));
    }
}

/// Points from above at tables that are too small to be seen; those that stand close together share a pointer.
fn point(page: &mut Page, plot: &Plot, mut pointed: Vec<(f64, usize)>) {
    pointed.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut groups: Vec<(f64, f64, Vec<usize>)> = Vec::new();
    for (x, number) in pointed {
        let width = |numbers: usize| 8.0 + 7.0 * numbers as f64;
        match groups.last_mut().filter(|(_, right, numbers)| x - right < width(words_of(numbers).len())) {
            Some((_, right, numbers)) => {
                *right = x;
                numbers.push(number);
            }
            None => groups.push((x, x, vec![number])),
        }
    }
    for (left, right, mut numbers) in groups {
        numbers.sort_unstable();
        let words = words_of(&numbers);
        let x = ((left + right) / 2.0) as usize;
        let (from, to) = (tidy(left), tidy(right.max(left + 0.5)));
        let bracket = Line::new().set("x1", from).set("x2", to).set("y1", plot.y - 3).set("y2", plot.y - 3);
        page.add(bracket.set("stroke", INK).set("stroke-width", 1));
        for x in [from, to] {
            let tick = Line::new().set("x1", x).set("x2", x).set("y1", plot.y - 3).set("y2", plot.y + 3);
            page.add(tick.set("stroke", INK).set("stroke-width", 1));
        }
        page.add(label(x, plot.y - 6, &words, 10).set("text-anchor", "middle"));
    }
}

/// `3`, `3, 7`, `3–7, 9`.
fn words_of(numbers: &[usize]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    let runs = sorted.chunk_by(|a, b| a + 1 == *b);
    let words = runs.map(|run| match *run {
        [one] => (one + 1).to_string(),
        [first, .., last] => format!("{}–{}", first + 1, last + 1),
        [] => String::new(),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// The end of a name that is too long: where paths and tensors differ.
fn short(name: &str, most: usize) -> String {
    let name = printable(name);
    let count = name.chars().count();
    if count <= most { name } else { format!("…{}", name.chars().skip(count + 1 - most).collect::<String>()) }
}
