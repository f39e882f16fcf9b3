//! A picture of where tables lie on each drive, for `warprow inspect --svg`.

use std::collections::HashMap;

use svg::node::element::{Definitions, Group, Line, Pattern, Rectangle, Text, Title};
use svg::{Document, Node};
use warprow_layout::{DriveMap, GenerationInspection, Inspection, MapKind, TableMap};

use crate::report::printable;
use crate::units;

/// Pixels: the page, the bars of drives and generations, and where these begin.
const WIDTH: usize = 1240;
const BAR: usize = 960;
const LEFT: usize = 260;
const ROW: usize = 40;
/// Generations that are drawn table by table, at most: the largest.
const DRAWN: usize = 24;
/// Tables that are named below a generation, at most: the largest.
const NAMED: usize = 12;
/// Tables that get a title of their own to point at. More are drawn without.
const TITLED: usize = 2000;

const FREE: &str = "#eceff1";
const UNUSED: &str = "#ffffff";
const META: &str = "#37474f";
const CATALOGUE: &str = "#78909c";

/// Colours of generations, told apart by people who see few colours too (Okabe and Ito's, and lighter ones).
const COLOURS: [&str; 10] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b8a800", "#7b6bb5", "#4daf8c", "#a05a2c"];

fn colour(index: usize) -> &'static str {
    COLOURS.get(index % COLOURS.len()).copied().unwrap_or(FREE)
}

/// What lies in one pixel of a drive's bar, if anything of a chunk does.
type Pixel = (MapKind, Option<u64>);

/// The picture, as the text of an SVG file.
pub(crate) fn draw(store: &Inspection, drives: &[DriveMap], tables: &[TableMap]) -> String {
    let colours: HashMap<u64, usize> = store.generations.iter().enumerate().map(|(index, it)| (it.id, index)).collect();
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
    legend(&mut page);

    let largest = drives.iter().map(|drive| drive.bytes).max().unwrap_or(0).max(1);
    for drive in drives {
        bar_of_drive(&mut page, store, drive, largest, &colours);
    }
    page.y += 10;

    let mut drawn: Vec<&GenerationInspection> = store.generations.iter().collect();
    drawn.sort_by_key(|it| (std::cmp::Reverse(it.bytes), it.id));
    drawn.truncate(DRAWN);
    drawn.sort_by_key(|it| it.id);
    for generation in &drawn {
        let tables: Vec<&TableMap> = tables.iter().filter(|it| it.generation == generation.id).collect();
        let index = colours.get(&generation.id).copied().unwrap_or(0);
        bar_of_generation(&mut page, store, generation, &tables, index);
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

fn legend(page: &mut Page) {
    let mut x = 20;
    let y = page.y;
    for (fill, over, words) in [
        (META, None, "superblocks"),
        (CATALOGUE, None, "catalogue"),
        (COLOURS[0], None, "tables that are found"),
        (COLOURS[0], Some("url(#standby)"), "tables on standby"),
        (COLOURS[0], Some("url(#log)"), "log of updates"),
        (FREE, None, "free"),
    ] {
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
    page.add(label(20, y + 29, &format!("{}, {} free", units::bytes(drive.bytes), units::bytes(free)), 11));
    let mut group = Group::new();
    let lba = u64::from(store.lba_size);
    let pixels = pixels(drive, width, lba);
    let mut x = 0;
    for run in pixels.chunk_by(|a, b| a == b) {
        let Some(&(kind, generation)) = run.first() else { continue };
        let owner = generation.and_then(|id| store.generations.iter().find(|it| it.id == id));
        let fill = match kind {
            MapKind::Free => FREE,
            MapKind::Tables | MapKind::Log => {
                generation.and_then(|id| colours.get(&id)).map_or(FREE, |&index| colour(index))
            }
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

fn bar_of_generation(
    page: &mut Page,
    store: &Inspection,
    generation: &GenerationInspection,
    tables: &[&TableMap],
    index: usize,
) {
    let chunks: u64 = generation.chunks.iter().sum();
    let standby = if generation.shown == 0 { ", standby" } else { "" };
    page.add(rectangle(20, page.y + 2, 14, 14, colour(index)));
    let head = format!(
        "generation {} of {}{standby}: {} in {} of {}, in each of which its tables lie like this:",
        generation.id,
        short(&generation.name, 40),
        units::bytes(generation.bytes),
        units::plural(chunks, "chunk"),
        units::bytes(store.chunk_size),
    );
    page.text(40, &head, 13, "normal");
    page.y += 24;
    let (y, width) = (page.y, WIDTH - 40);
    let scale = |bytes: u64| (u128::from(bytes) * width as u128 / u128::from(store.chunk_size.max(1))) as usize;
    let mut group = Group::new().add(rectangle(20, y, width, 22, FREE));
    for (number, table) in tables.iter().enumerate() {
        // Neighbours share stripe units of the same height in different chunks.
        let next = tables.get(number + 1).map_or(u64::MAX, |it| it.in_chunk.0);
        let (from, to) = (scale(table.in_chunk.0), scale(table.in_chunk.1.min(next)));
        let wide = (to - from.min(to)).max(1);
        let bytes: u64 = table.bytes.iter().sum();
        let mut segment = rectangle(20 + from, y, wide, 22, colour(index + number))
            .set("fill-opacity", if number % 2 == 0 { 1.0 } else { 0.6 });
        if tables.len() <= TITLED {
            segment = segment.add(Title::new(legal(&format!("{}: {}", table.table, units::bytes(bytes)))));
        }
        group = group.add(segment);
        let words = short(&table.table, 24);
        if wide > words.chars().count() * 8 + 6 {
            let ink = if number % 2 == 0 { "#ffffff" } else { "#212121" };
            group = group.add(label(23 + from, y + 15, &words, 12).set("fill", ink));
        }
    }
    page.add(group.add(rectangle(20, y, width, 22, "none").set("stroke", META)));
    page.y += 28;

    let mut largest: Vec<(u64, usize)> =
        tables.iter().enumerate().map(|(number, it)| (it.bytes.iter().sum(), number)).collect();
    largest.sort_by_key(|&(bytes, number)| (std::cmp::Reverse(bytes), number));
    let named = &largest[..largest.len().min(NAMED)];
    for (position, &(bytes, number)) in named.iter().enumerate() {
        let (x, y) = (20 + position % 3 * 400, page.y + position / 3 * 17);
        let name = tables.get(number).map(|it| short(&it.table, 32)).unwrap_or_default();
        let shape =
            generation.tables.get(number).map(|it| format!("{} × {} {}", units::count(it.rows), it.dim, it.dtype));
        page.add(
            rectangle(x, y + 2, 10, 10, colour(index + number))
                .set("fill-opacity", if number % 2 == 0 { 1.0 } else { 0.6 }),
        );
        let words = format!("{name}: {}, {}", shape.unwrap_or_default(), units::bytes(bytes));
        page.add(label(x + 15, y + 11, &words, 11));
    }
    page.y += named.len().div_ceil(3) * 17;
    let rest = &largest[named.len()..];
    if !rest.is_empty() {
        let bytes = units::bytes(rest.iter().map(|(bytes, _)| bytes).sum());
        page.text(
            20,
            &format!("and {}, {bytes} together", units::plural(rest.len() as u64, "smaller table")),
            11,
            "normal",
        );
        page.y += 17;
    }
    page.y += 14;
}

/// The end of a name that is too long: where paths and tensors differ.
fn short(name: &str, most: usize) -> String {
    let name = printable(name);
    let count = name.chars().count();
    if count <= most { name } else { format!("…{}", name.chars().skip(count + 1 - most).collect::<String>()) }
}
