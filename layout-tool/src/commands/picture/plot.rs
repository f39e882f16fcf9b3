//! Where the chunks of a generation are drawn, and what stands around them.

use svg::node::element::Line;
use warprow_layout::{GenerationInspection, StoreInspection, TablePart};
use warprow_workload::units;

use super::page::{BAR, INK, LEFT, Page, label, short, tidy};

/// Chunks of a generation that get a row that can be seen and labelled, at most. More share the height of so many.
pub(super) const ROWS: usize = 16;
/// Pixels of such a row.
pub(super) const CHUNK: usize = 12;

/// Where the chunks of a generation are drawn.
pub(super) struct Plot {
    pub(super) y: usize,
    pub(super) height: usize,
    pub(super) chunks: u64,
    pub(super) chunk_size: u64,
}

impl Plot {
    /// The rectangle of a part of a table: left, top, width and height, to scale.
    pub(super) fn place(&self, part: &TablePart) -> (f64, f64, f64, f64) {
        let x = |bytes: u64| LEFT as f64 + bytes as f64 * BAR as f64 / self.chunk_size.max(1) as f64;
        let y = |chunk: u64| self.y as f64 + chunk as f64 * self.height as f64 / self.chunks.max(1) as f64;
        let ((left, right), (top, bottom)) = ((x(part.bytes.0), x(part.bytes.1)), (y(part.chunks.0), y(part.chunks.1)));
        (left, top, right - left, bottom - top)
    }
}

/// On which drive each row of a plot lies, where rows are chunks; where it begins and ends.
pub(super) fn labels_of_chunks(
    page: &mut Page,
    store: &StoreInspection,
    generation: &GenerationInspection,
    plot: &Plot,
) {
    let name = |member: u16| {
        store.members.get(usize::from(member)).and_then(|member| member.drive.as_deref()).unwrap_or("MISSING")
    };
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
pub(super) fn point(page: &mut Page, plot: &Plot, mut pointed: Vec<(f64, usize)>) {
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
        let from = tidy(left);
        let to = tidy(right.max(left + 0.5));
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
