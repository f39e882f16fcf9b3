//! What other budgets would give, drawn.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::error::ProposalError;
use crate::tier_proposal::{Point, TierProposal};

const COLOURS: [RGBColor; 4] =
    [RGBColor(0x1b, 0x6c, 0xa8), RGBColor(0xd3, 0x54, 0x00), RGBColor(0x2e, 0x7d, 0x32), RGBColor(0x7b, 0x1f, 0xa2)];

/// Tables that are drawn.
const TABLES: usize = 24;
/// Height of the curves, and of a table.
const CURVES: u32 = 420;
const BAR: u32 = 22;

/// The curves of `tiers` as SVG: the share of ids in memory, and ids a second with several numbers of drives, over the memory for
/// rows. Below, of each table (those with most bytes, if they are many), what lies where.
pub fn curves(tiers: &TierProposal) -> Result<String, ProposalError> {
    let mut svg = String::new();
    draw(tiers, &mut svg).map_err(|error| ProposalError::File { path: "SVG".to_owned(), reason: error.to_string() })?;
    Ok(svg)
}

fn draw(tiers: &TierProposal, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let points: Vec<&Point> = tiers.curve.iter().filter(|point| point.bytes > 0).collect();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Ok(()) };
    let (from, to) = (mib(first.bytes), mib(last.bytes).max(mib(first.bytes) * 1.01));
    let chosen = mib(tiers.memory_for_rows());
    let shown = tiers.tables.len().min(TABLES) as u32;
    let root = SVGBackend::with_string(svg, (960, CURVES + BAR * (shown + 2))).into_drawing_area();
    root.fill(&WHITE)?;
    let (above, below) = root.split_vertically(CURVES);
    let (left, right) = above.split_horizontally(480);
    let font = ("sans-serif", 14);

    let mut chart = ChartBuilder::on(&left);
    chart.caption("ids served from memory, %", font).margin(12).x_label_area_size(36).y_label_area_size(48);
    let mut chart = chart.build_cartesian_2d((from..to).log_scale().base(2.0), 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("memory for rows")
        .light_line_style(WHITE)
        .x_label_formatter(&|it| memory(*it))
        .y_label_formatter(&|it| format!("{it:.0}"))
        .draw()?;
    chart.draw_series(LineSeries::new(
        points.iter().map(|it| (mib(it.bytes), it.hit * 100.0)),
        COLOURS[0].stroke_width(2),
    ))?;
    if (from..=to).contains(&chosen) {
        let hit = (1.0 - tiers.expected.ssd) * 100.0;
        chart.draw_series([Circle::new((chosen, hit), 5, COLOURS[1].filled())])?;
        let label = format!("this plan: {hit:.1} ± {:.1}%", tiers.expected.error * 100.0);
        // Beside the dot where there is room.
        let left = chosen.ln() < (from.ln() + to.ln()) / 2.0;
        let (x, anchor) = if left { (12, HPos::Left) } else { (-12, HPos::Right) };
        let style =
            TextStyle::from(font.into_font()).pos(Pos::new(anchor, if left { VPos::Top } else { VPos::Bottom }));
        let text = EmptyElement::at((chosen, hit)) + Text::new(label, (x, if left { 6 } else { -6 }), style);
        chart.draw_series([text])?;
    }

    let most = points.iter().flat_map(|it| &it.rates).map(|it| it.ids_per_second).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(&right);
    chart.caption("ids a second", font).margin(12).x_label_area_size(36).y_label_area_size(56);
    let mut chart = chart.build_cartesian_2d((from..to).log_scale().base(2.0), 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("memory for rows")
        .light_line_style(WHITE)
        .x_label_formatter(&|it| memory(*it))
        .y_label_formatter(&|it| short(*it))
        .draw()?;
    for (at, colour) in first.rates.iter().enumerate().map(|(at, _)| at).zip(COLOURS) {
        let line = points.iter().filter_map(|it| Some((mib(it.bytes), it.rates.get(at)?.ids_per_second)));
        let drives = first.rates.get(at).map_or(0, |it| it.drives);
        let name = if drives == 1 { "1 drive".to_owned() } else { format!("{drives} drives") };
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2));
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?.label(name).legend(legend);
    }
    let rate = tiers.expected.ids_per_second;
    if (from..=to).contains(&chosen) && rate > 0.0 {
        chart.draw_series([Circle::new((chosen, rate), 5, COLOURS[1].filled())])?;
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK).draw()?;
    tables(tiers, &below)?;
    root.present()?;
    drop((left, right, above, below));
    Ok(())
}

/// A bar for each table: the shares of its rows in GPU memory, in DRAM and on drives, and how many these are.
fn tables(
    tiers: &TierProposal,
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let font = ("sans-serif", 13);
    let mut tables: Vec<_> = tiers.tables.iter().collect();
    tables.sort_by_key(|it| std::cmp::Reverse(it.rows.saturating_mul(it.row_bytes.into())));
    let left_out = tables.len().saturating_sub(TABLES);
    let more = if left_out > 0 { format!(", and {left_out} smaller tables") } else { String::new() };
    let caption = format!("rows in GPU memory, in DRAM, on drives{more}");
    area.draw(&Text::new(caption, (12, 2), ("sans-serif", 14).into_font()))?;
    let parts = [COLOURS[1], COLOURS[0], RGBColor(0xd0, 0xd0, 0xd0)];
    for (at, it) in (1..).zip(tables.into_iter().take(TABLES)) {
        let top = at * BAR as i32;
        let rows = [it.hbm_rows, it.dram_rows, it.rows.saturating_sub(it.hbm_rows + it.dram_rows)];
        area.draw(&Text::new(it.name.clone(), (12, top), font.into_font()))?;
        let mut end = 0u64;
        for (rows, colour) in rows.into_iter().zip(parts) {
            let x = |rows: u64| 180 + (rows as f64 / it.rows.max(1) as f64 * 400.0).round() as i32;
            let begin = end;
            end += rows;
            area.draw(&Rectangle::new([(x(begin), top), (x(end), top + BAR as i32 - 6)], colour.filled()))?;
        }
        let [hbm, dram, drives] = rows.map(|rows| short(rows as f64));
        let bytes = |bytes: u64| memory(bytes as f64 / f64::from(1 << 20));
        let text = format!(
            "{hbm} ({}), {dram} ({}), {drives} of {}",
            bytes(it.hbm_bytes),
            bytes(it.dram_bytes),
            short(it.rows as f64)
        );
        area.draw(&Text::new(text, (592, top), font.into_font()))?;
    }
    Ok(())
}

/// `0.25`, `16`, `4.2k`, `1.5M`.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "k"),
        v => (v, ""),
    };
    format!("{}{unit}", digits(value))
}

/// Of a number of MiB: `64 KiB`, `1.5 GiB`.
fn memory(mib: f64) -> String {
    let (value, unit) = match mib * f64::from(1 << 20) {
        bytes if bytes < 1024.0 => (bytes, "B"),
        _ if mib < 1.0 => (mib * 1024.0, "KiB"),
        _ if mib < 1024.0 => (mib, "MiB"),
        _ if mib < f64::from(1 << 20) => (mib / 1024.0, "GiB"),
        _ => (mib / f64::from(1 << 20), "TiB"),
    };
    format!("{} {unit}", digits(value))
}

/// Two digits behind the point at most, and none that says nothing.
fn digits(value: f64) -> String {
    let text = if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        let shorts = [0.0, 8e6, 1.25e6, 15e6, 20_000.0, 250.0].map(short);
        assert_eq!(shorts, ["0", "8M", "1.25M", "15M", "20k", "250"]);
        let sizes = [0.0001, 0.25, 1.5, 2048.0, f64::from(3 << 20)].map(memory);
        assert_eq!(sizes, ["105 B", "256 KiB", "1.5 MiB", "2 GiB", "3 TiB"]);
    }
}
