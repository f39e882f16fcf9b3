//! The bars of drives, to scale, and what they show.

use std::collections::HashMap;

use svg::node::element::{Definitions, Group, Line, Pattern, Title};
use warprow_layout::{DriveMap, MapKind, StoreInspection};
use warprow_workload::units;

use super::page::{
    BAR, CATALOGUE, COLOURS, FREE, GREY, LEFT, META, Page, ROW, UNUSED, colour, label, legal, rectangle, short,
};

/// What lies in one pixel of a drive's bar, if anything of a chunk does.
type Pixel = (MapKind, Option<u64>);

/// Hatching over what stands by, dots over logs.
pub(super) fn patterns() -> Definitions {
    let line = Line::new().set("x1", 0).set("y1", 0).set("x2", 0).set("y2", 6);
    let hatch = Pattern::new().set("id", "standby").set("width", 6).set("height", 6);
    let hatch = hatch.set("patternUnits", "userSpaceOnUse").set("patternTransform", "rotate(45)");
    let hatch = hatch.add(line.set("stroke", "#ffffff").set("stroke-width", 5));
    let dots = Pattern::new().set("id", "log").set("width", 4).set("height", 4).set("patternUnits", "userSpaceOnUse");
    let dots = dots.add(rectangle(0, 0, 2, 2, "#212121"));
    Definitions::new().add(hatch).add(dots)
}

/// What the bars of drives show. Each generation has a colour there.
pub(super) fn legend(page: &mut Page, others: bool) {
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

pub(super) fn bar_of_drive(
    page: &mut Page,
    store: &StoreInspection,
    drive: &DriveMap,
    largest: u64,
    colours: &HashMap<u64, usize>,
) {
    let scale = |bytes: u64| (u128::from(bytes) * BAR as u128 / u128::from(largest)) as usize;
    let y = page.y;
    let width = scale(drive.bytes).max(12);
    let member = store.members.get(usize::from(drive.member));
    let name = drive.drive.as_deref().unwrap_or("MISSING");
    let free = member.map_or(0, |member| member.free_chunks * store.chunk_size);
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
        let owner = generation.and_then(|id| store.generations.iter().find(|generation| generation.id == id));
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
        let over = match (kind, owner.is_some_and(|generation| generation.shown == 0)) {
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
        let from = at(run.lba * lba);
        let to = at((run.lba + run.lbas) * lba);
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
