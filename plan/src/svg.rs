//! What other budgets would give, drawn.

use plotters::prelude::*;

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
    let mut chart = chart.build_cartesian_2d((from..to).log_scale(), 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("memory for rows, MiB")
        .light_line_style(WHITE)
        .x_label_formatter(&|it| short(*it))
        .draw()?;
    chart.draw_series(LineSeries::new(
        points.iter().map(|it| (mib(it.bytes), it.hit * 100.0)),
        COLOURS[0].stroke_width(2),
    ))?;
    if (from..=to).contains(&chosen) {
        let hit = (1.0 - plan.expected.ssd) * 100.0;
        chart.draw_series([Circle::new((chosen, hit), 5, COLOURS[1].filled())])?;
    }

    let most = points.iter().flat_map(|it| &it.rates).map(|it| it.ids_per_second).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(&right);
    chart.caption("ids a second", font).margin(12).x_label_area_size(36).y_label_area_size(56);
    let mut chart = chart.build_cartesian_2d((from..to).log_scale(), 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("memory for rows, MiB")
        .light_line_style(WHITE)
        .x_label_formatter(&|it| short(*it))
        .y_label_formatter(&|it| short(*it))
        .draw()?;
    for (at, colour) in first.rates.iter().enumerate().map(|(at, _)| at).zip(COLOURS) {
        let line = points.iter().filter_map(|it| Some((mib(it.bytes), it.rates.get(at)?.ids_per_second)));
        let drives = first.rates.get(at).map_or(0, |it| it.drives);
        let name = if drives == 1 { "1 drive".to_owned() } else { format!("{drives} drives") };
        let legend = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2));
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?.label(name).legend(legend);
    }
    chart.configure_series_labels().position(SeriesLabelPosition::UpperLeft).border_style(BLACK).draw()?;
    root.present()?;
    drop((left, right));
    Ok(())
}

/// `0.25`, `16`, `4.2k`, `1.5M`.
fn short(value: f64) -> String {
    let (value, unit) = match value {
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e4 => (v / 1e3, "k"),
        v => (v, ""),
    };
    let text = if value >= 10.0 || value == 0.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    format!("{text}{unit}")
}
