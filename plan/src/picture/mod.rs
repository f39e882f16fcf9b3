//! What other budgets would give, drawn.

mod axes;
mod figures;

use svg::node::element::{Group, Line, Rectangle};
use svg::{Document, Node};

use crate::tier_proposal::{BudgetPoint, TierProposal};
use axes::{Axes, HEIGHT, WIDTH, text, tidy};
use figures::{memory, short};

const COLOURS: [&str; 4] = ["#1b6ca8", "#d35400", "#2e7d32", "#7b1fa2"];
/// The colour of rows on drives.
const GREY: &str = "#d0d0d0";

/// Tables that are drawn.
const TABLES: usize = 24;
/// Height of a table.
const BAR: u32 = 22;

/// The curves of `tiers` as SVG: the share of ids in memory, and ids a second with several numbers of drives, over the memory for
/// rows. Below, of each table (those with most bytes, if they are many), what lies where.
pub fn curves(tiers: &TierProposal) -> String {
    let shown = tiers.tables.len().min(TABLES) as u32;
    let height = HEIGHT + BAR * (shown + 2);
    let mut page = Document::new().set("viewBox", (0, 0, WIDTH, height)).set("width", WIDTH).set("height", height);
    page.assign("font-family", "sans-serif");
    page.append(Rectangle::new().set("width", WIDTH).set("height", height).set("fill", "#ffffff"));
    let points: Vec<&BudgetPoint> = tiers.curve.iter().filter(|point| point.bytes > 0).collect();
    if let (Some(first), Some(last)) = (points.first(), points.last()) {
        let from = mib(first.bytes);
        let memory = (from, mib(last.bytes).max(from * 1.01));
        page.append(shares(tiers, &points, Axes { left: 0.0, memory, most: 100.0 }));
        let most = points.iter().flat_map(|point| &point.rates).map(|rate| rate.ids_per_second).fold(1.0, f64::max);
        page.append(rates(tiers, &points, Axes { left: f64::from(WIDTH / 2), memory, most: most * 1.05 }));
    }
    page.append(tables(tiers));
    page.to_string() + "\n"
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The share of ids in memory.
fn shares(tiers: &TierProposal, points: &[&BudgetPoint], axes: Axes) -> Group {
    let group = axes.draw("ids served from memory, %", |share| format!("{share:.0}"));
    let group = group.add(axes.curve(points.iter().map(|point| (mib(point.bytes), point.hit * 100.0)), COLOURS[0]));
    let chosen = mib(tiers.memory_for_rows());
    if !axes.has(chosen) {
        return group;
    }
    let hit = (1.0 - tiers.expected.ssd) * 100.0;
    let words = format!("this plan: {hit:.1} ± {:.1}%", tiers.expected.error * 100.0);
    // Beside the dot where there is room.
    let (from, to) = axes.memory;
    let (across, down, anchor) = match chosen.ln() < (from.ln() + to.ln()) / 2.0 {
        true => (12.0, 16.0, "start"),
        false => (-12.0, -8.0, "end"),
    };
    let label = text(axes.x(chosen) + across, axes.y(hit) + down, 14, anchor, &words);
    group.add(axes.dot(chosen, hit, COLOURS[1])).add(label)
}

/// Ids a second, a line for each number of drives.
fn rates(tiers: &TierProposal, points: &[&BudgetPoint], axes: Axes) -> Group {
    let mut group = axes.draw("ids a second", short);
    let numbers = points.first().map_or(&[][..], |point| &point.rates);
    for (at, (rate, colour)) in numbers.iter().zip(COLOURS).enumerate() {
        let line = points.iter().filter_map(|point| Some((mib(point.bytes), point.rates.get(at)?.ids_per_second)));
        let name = if rate.drives == 1 { "1 drive".to_owned() } else { format!("{} drives", rate.drives) };
        let x = axes.x(axes.memory.0) + 12.0;
        let y = 50.0 + 18.0 * at as f64;
        let sample = Line::new().set("x1", tidy(x)).set("x2", tidy(x + 18.0)).set("y1", y).set("y2", y);
        group = group.add(axes.curve(line, colour)).add(sample.set("stroke", colour).set("stroke-width", 2)).add(text(
            x + 24.0,
            y + 4.0,
            12,
            "start",
            &name,
        ));
    }
    let chosen = mib(tiers.memory_for_rows());
    let rate = tiers.expected.ids_per_second;
    if axes.has(chosen) && rate > 0.0 { group.add(axes.dot(chosen, rate, COLOURS[1])) } else { group }
}

/// A bar for each table: the shares of its rows in GPU memory, in DRAM and on drives, and how many these are.
fn tables(tiers: &TierProposal) -> Group {
    let mut tables: Vec<_> = tiers.tables.iter().collect();
    tables.sort_by_key(|table| std::cmp::Reverse(table.rows.saturating_mul(table.row_bytes.into())));
    let left_out = tables.len().saturating_sub(TABLES);
    let more = if left_out > 0 { format!(", and {left_out} smaller tables") } else { String::new() };
    let caption = format!("rows in GPU memory, in DRAM, on drives{more}");
    let mut group = Group::new().add(text(12.0, f64::from(HEIGHT) + 14.0, 14, "start", &caption));
    for (at, it) in (1..).zip(tables.into_iter().take(TABLES)) {
        let top = f64::from(HEIGHT + BAR * at);
        let rows = [it.hbm_rows, it.dram_rows, it.rows.saturating_sub(it.hbm_rows + it.dram_rows)];
        group = group.add(text(12.0, top + 13.0, 13, "start", &it.name));
        let x = |rows: u64| 180.0 + rows as f64 / it.rows.max(1) as f64 * 400.0;
        let mut end = 0;
        for (rows, colour) in rows.into_iter().zip([COLOURS[1], COLOURS[0], GREY]) {
            let begin = end;
            end += rows;
            let bar = Rectangle::new().set("x", tidy(x(begin))).set("width", tidy(x(end) - x(begin)));
            group = group.add(bar.set("y", top).set("height", BAR - 6).set("fill", colour));
        }
        let [hbm, dram, drives] = rows.map(|rows| short(rows as f64));
        let words = format!(
            "{hbm} ({}), {dram} ({}), {drives} of {}",
            memory(mib(it.hbm_bytes)),
            memory(mib(it.dram_bytes)),
            short(it.rows as f64)
        );
        group = group.add(text(592.0, top + 13.0, 13, "start", &words));
    }
    group
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use svg::parser::Event;

    use super::*;

    fn proposal(tables: usize, dram: u64, points: &[(u64, f64)]) -> TierProposal {
        let table = |at: usize| {
            json!({
                "name": format!("<{at}>&\u{1}"), "rows": 1000, "dim": 8, "dtype": "f32", "row_bytes": 32, "hbm_rows": 100,
                "dram_rows": 400, "seen_rows": 1000, "count_error": 0, "grouping": null,
            })
        };
        let point = |&(bytes, hit): &(u64, f64)| {
            let rates = [json!({ "drives": 1, "ids_per_second": 5e5 }), json!({ "drives": 2, "ids_per_second": 1e6 })];
            json!({ "bytes": bytes, "hit": hit, "commands": 7.0, "rates": rates })
        };
        let expected = json!({
            "hbm": 0.0, "dram": 0.5, "ssd": 0.5, "error": 0.01, "drift": 0.0, "ids": 10.0, "rows_ssd": 5.0, "commands": 5.0,
            "bytes": 2560.0, "amplification": 1.0, "lookups_per_second": 1e5, "ids_per_second": 1e6, "iops_per_drive": 1e5,
            "waited": 0.5, "bound": "drives",
        });
        serde_json::from_value(json!({
            "budgets": { "hbm": 0, "dram": dram },
            "drives": { "count": 2, "profile": "p5800x", "bytes": 0, "lba": 512 },
            "tables": (0..tables).map(table).collect::<Vec<_>>(),
            "trace": { "queries": 100, "held_out": 20, "ids": 1000, "missing": 0, "batch": 10 },
            "expected": expected,
            "curve": points.iter().map(point).collect::<Vec<_>>(),
        }))
        .unwrap()
    }

    /// The texts of a picture, and how many dots and lines through points it has; it is well-formed, and everything lies on the page.
    fn read(picture: &str) -> (Vec<String>, usize, usize) {
        let mut texts = Vec::new();
        let mut dots = 0;
        let mut lines = 0;
        let mut open = Vec::new();
        let mut page = (0.0, 0.0);
        for event in svg::read(picture).unwrap() {
            match event {
                Event::Tag(name, kind, attributes) => {
                    let number = |key: &str| attributes.get(key).and_then(|value| value.parse::<f64>().ok());
                    if let (Some(width), Some(height), "svg") = (number("width"), number("height"), name) {
                        page = (width, height);
                    }
                    if let (Some(x), Some(y)) = (number("x"), number("y")) {
                        let right = x + number("width").unwrap_or(0.0);
                        assert!(x >= 0.0 && right <= page.0 && y <= page.1, "{attributes:?} is off the page {page:?}");
                    }
                    use svg::node::element::tag::Type;
                    match kind {
                        Type::Start => open.push(name.to_owned()),
                        Type::End => assert_eq!(open.pop().as_deref(), Some(name)),
                        Type::Empty => {}
                    }
                    dots += usize::from(name == "circle");
                    lines += usize::from(name == "polyline");
                }
                Event::Text(text) => texts.push(text.trim().to_owned()),
                Event::Error(error) => panic!("{error}"),
                _ => {}
            }
        }
        assert!(open.is_empty());
        (texts, dots, lines)
    }

    #[test]
    fn curves_dots_and_tables_are_drawn() {
        let curve = [(0, 0.0), (1 << 20, 0.25), (4 << 20, 0.5), (16 << 20, 1.0)];
        let (texts, dots, lines) = read(&curves(&proposal(2, 4 << 20, &curve)));
        // The share; ids a second with one drive and with two.
        assert_eq!((dots, lines), (2, 3));
        for words in ["ids served from memory, %", "ids a second", "1 drive", "2 drives", "4 MiB", "400k"] {
            assert!(texts.iter().any(|text| text == words), "{words} is not among {texts:?}");
        }
        assert!(texts.iter().any(|text| text.starts_with("this plan: 50.0 ± 1.0%")), "{texts:?}");
        assert_eq!(texts.iter().filter(|text| text.ends_with("500 of 1000")).count(), 2, "{texts:?}");
        // A budget that is not on the axis has no dot, and without points there are tables alone.
        assert_eq!(read(&curves(&proposal(1, 64 << 20, &curve))).1, 0);
        let (texts, dots, lines) = read(&curves(&proposal(30, 0, &[])));
        assert_eq!((dots, lines), (0, 0));
        assert!(texts.iter().any(|text| text.ends_with("and 6 smaller tables")), "{texts:?}");
        assert_eq!(texts.iter().filter(|text| text.ends_with("of 1000")).count(), TABLES);
    }
}
