//! What other budgets would give, drawn.

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::PlanError;
use crate::plan::{Plan, Point};

const COLOURS: [RGBColor; 4] =
    [RGBColor(0x1b, 0x6c, 0xa8), RGBColor(0xd3, 0x54, 0x00), RGBColor(0x2e, 0x7d, 0x32), RGBColor(0x7b, 0x1f, 0xa2)];

/// The curves of `plan` as SVG: the share of ids in memory, and ids a second with several numbers of drives, over the memory for
/// rows.
pub fn curves(plan: &Plan) -> Result<String, PlanError> {
    let mut svg = String::new();
    draw(plan, &mut svg).map_err(|error| PlanError::File { path: "SVG".to_owned(), reason: error.to_string() })?;
    Ok(svg)
}

fn draw(plan: &Plan, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let points: Vec<&Point> = plan.curve.iter().filter(|point| point.bytes > 0).collect();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return Ok(()) };
    let (from, to) = (mib(first.bytes), mib(last.bytes).max(mib(first.bytes) * 1.01));
    let chosen = mib(plan.memory_for_rows());
    let root = SVGBackend::with_string(svg, (960, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    let (left, right) = root.split_horizontally(480);
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
        let hit = (1.0 - plan.expected.ssd) * 100.0;
        chart.draw_series([Circle::new((chosen, hit), 5, COLOURS[1].filled())])?;
        let label = format!("this plan: {hit:.1} ± {:.1}%", plan.expected.error * 100.0);
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
    let rate = plan.expected.ids_per_second;
    if (from..=to).contains(&chosen) && rate > 0.0 {
        chart.draw_series([Circle::new((chosen, rate), 5, COLOURS[1].filled())])?;
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK).draw()?;
    root.present()?;
    drop((left, right));
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
