//! Plots: bars side by side, and lines, as SVG that needs nothing from elsewhere.

use svg::node::element::{Line, Polyline, Rectangle, Text, Title};
use svg::{Document, Node};
use warprow_workload::units;

/// Ours; and others, told apart by people who see few colours too (Okabe and Ito's).
const OURS: &str = "#0072b2";
const OTHERS: [&str; 6] = ["#d55e00", "#009e73", "#a0508a", "#8a6d00", "#444f57", "#56b4e9"];
const RIVAL: &str = "#a8b3bb";
const INK: &str = "#1b1f23";
const FAINT: &str = "#dde3e8";

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// So many of these a second: `ids/s`, `B/s`.
    PerSecond(&'static str),
    /// Microseconds.
    Micros,
    /// A share of one, shown in percent.
    Share,
    /// So many of these.
    Count(&'static str),
}

impl Unit {
    /// A figure for people: `13.9 M ids/s`, `268 µs`, `87.2 %`.
    pub fn show(self, value: f64) -> String {
        match self {
            // `GB/s`, but `M ids/s`.
            Self::PerSecond("B/s") => format!("{}B/s", units::short(value)),
            Self::PerSecond(what) => format!("{} {what}", units::short(value)),
            Self::Micros => units::seconds(value / 1e6),
            Self::Share => format!("{:.1} %", value * 100.0),
            Self::Count(what) => format!("{} {what}", units::count(value.round() as u64)),
        }
    }

    /// The value, as short as the ticks of an axis want it.
    fn tick(self, value: f64) -> String {
        match self {
            Self::Share => format!("{:.0} %", value * 100.0),
            Self::Micros if value >= 1e6 => format!("{} s", trimmed(value / 1e6)),
            Self::Micros if value >= 1e3 => format!("{} ms", trimmed(value / 1e3)),
            Self::Micros => format!("{} µs", trimmed(value)),
            Self::PerSecond(_) | Self::Count(_) => short(value),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::PerSecond(what) | Self::Count(what) => what,
            Self::Micros => "time",
            Self::Share => "share",
        }
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn short(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{}G", trimmed(v / 1e9)),
        v if v >= 1e6 => format!("{}M", trimmed(v / 1e6)),
        v if v >= 1e3 => format!("{}k", trimmed(v / 1e3)),
        v => trimmed(v),
    }
}

/// A plot.
#[derive(Clone, Debug)]
pub enum Chart {
    /// Who reaches how much.
    Bars(Bars),
    /// How it changes.
    Lines(Lines),
}

/// Bars in groups, all of one unit and one scale.
#[derive(Clone, Debug)]
pub struct Bars {
    /// Above them.
    pub title: String,
    /// Of the figures.
    pub unit: Unit,
    /// From the top.
    pub groups: Vec<Group>,
}

/// Bars that are compared with one another, to a scale of their own.
#[derive(Clone, Debug)]
pub struct Group {
    /// Above them; may be empty.
    pub label: String,
    /// From the top.
    pub bars: Vec<Bar>,
}

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Who has the bar.
    pub who: String,
    /// How far it reaches, or why it is not there.
    pub value: Result<f64, String>,
    /// How many times as fast Warprow is, where it is not Warprow's own.
    pub times: Option<f64>,
    /// Whether it is Warprow's.
    pub ours: bool,
}

impl Bar {
    /// Warprow's own.
    pub fn ours(who: impl Into<String>, value: f64) -> Self {
        Self { who: who.into(), value: Ok(value), times: None, ours: true }
    }

    /// A rival's; Warprow is `times` as fast.
    pub fn rival(who: impl Into<String>, value: f64, times: Option<f64>) -> Self {
        Self { who: who.into(), value: Ok(value), times, ours: false }
    }
}

/// Lines over one axis.
#[derive(Clone, Debug)]
pub struct Lines {
    /// Above them.
    pub title: String,
    /// Below the axis.
    pub x: &'static str,
    /// Of y.
    pub unit: Unit,
    /// Whether y is logarithmic; x always is.
    pub log: bool,
    /// The first is Warprow's.
    pub series: Vec<Series>,
}

/// A line.
#[derive(Clone, Debug)]
pub struct Series {
    /// Who has the line.
    pub name: String,
    /// x and y, both above 0.
    pub points: Vec<(f64, f64)>,
}

impl Chart {
    /// The plot as an element of HTML.
    pub fn svg(&self) -> String {
        let document = match self {
            Self::Bars(bars) => bars.draw(),
            Self::Lines(lines) => lines.draw(),
        };
        document.set("font-family", "system-ui, sans-serif").set("role", "img").to_string()
    }
}

fn text(x: f64, y: f64, words: &str, size: u32) -> Text {
    let words = words.replace(|c: char| c.is_control() || c == '\u{fffe}' || c == '\u{ffff}', "\u{fffd}");
    Text::new(words).set("x", round(x)).set("y", round(y)).set("font-size", size).set("fill", INK)
}

/// Tenths of a pixel: more nobody sees.
fn round(at: f64) -> f64 {
    (at * 10.0).round() / 10.0
}

fn rectangle(x: f64, y: f64, width: f64, height: f64, fill: &str) -> Rectangle {
    let place = Rectangle::new().set("x", round(x)).set("y", round(y));
    place.set("width", round(width)).set("height", round(height)).set("fill", fill)
}

fn line(from: (f64, f64), to: (f64, f64), colour: &str) -> Line {
    let begun = Line::new().set("x1", round(from.0)).set("y1", round(from.1)).set("stroke", colour);
    begun.set("x2", round(to.0)).set("y2", round(to.1))
}

fn page(width: f64, height: f64) -> Document {
    Document::new().set("viewBox", (0, 0, width, height)).set("width", width).set("height", height)
}

/// The first characters of a name that is too long.
fn cut(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    format!("{}…", name.chars().take(most.saturating_sub(1)).collect::<String>())
}

impl Bars {
    const WIDTH: f64 = 900.0;
    const LEFT: f64 = 290.0;
    const BAR: f64 = 330.0;
    const ROW: f64 = 26.0;

    fn draw(&self) -> Document {
        let labels = self.groups.iter().filter(|group| !group.label.is_empty()).count();
        let rows = labels + self.groups.iter().map(|group| group.bars.len()).sum::<usize>();
        let height = 34.0 + rows as f64 * Self::ROW + self.groups.len() as f64 * 8.0;
        let mut document = page(Self::WIDTH, height);
        document.append(text(0.0, 18.0, &self.title, 15).set("font-weight", 600));
        let mut y = 34.0;
        for group in &self.groups {
            if !group.label.is_empty() {
                document.append(text(0.0, y + 17.0, &group.label, 13).set("font-weight", 600));
                y += Self::ROW;
            }
            let longest = group.bars.iter().filter_map(|bar| bar.value.as_ref().ok()).copied().fold(0.0, f64::max);
            for bar in &group.bars {
                self.row(&mut document, bar, y, longest);
                y += Self::ROW;
            }
            y += 8.0;
        }
        document
    }

    fn row(&self, document: &mut Document, bar: &Bar, y: f64, longest: f64) {
        let who = text(Self::LEFT - 10.0, y + 17.0, &cut(&bar.who, 36), 13).set("text-anchor", "end");
        let who = if bar.ours { who.set("font-weight", 600) } else { who };
        document.append(who);
        let value = match &bar.value {
            Ok(value) => *value,
            Err(reason) => {
                let words = format!("not measured: {reason}");
                let words = text(Self::LEFT, y + 17.0, &cut(&words, 85), 12).set("font-style", "italic");
                return document.append(words.add(Title::new(words_of(reason))));
            }
        };
        let width = if longest > 0.0 { (value / longest * Self::BAR).max(1.0) } else { 1.0 };
        document.append(rectangle(Self::LEFT, y + 3.0, width, Self::ROW - 6.0, if bar.ours { OURS } else { RIVAL }));
        let beside = Self::LEFT + width + 8.0;
        let mut words = self.unit.show(value);
        if let Some(times) = bar.times {
            words += &format!("   Warprow {times:.2}×");
        }
        document.append(text(beside, y + 17.0, &words, 13).set("xml:space", "preserve"));
    }
}

fn words_of(reason: &str) -> String {
    reason.replace(char::is_control, " ")
}

/// An axis from one value to another, and where its ticks are.
struct Axis {
    from: f64,
    to: f64,
    log: bool,
    ticks: Vec<f64>,
}

impl Axis {
    /// Logarithmic, with ticks at 1, 2 and 5 times powers of ten, or those powers alone if they are many.
    fn log(low: f64, high: f64) -> Self {
        let (low, high) = (low.max(1e-9), high.max(low.max(1e-9)) * 1.0001);
        let first = low.log10().floor() as i32;
        let last = high.log10().ceil() as i32;
        let steps: &[f64] = if last - first > 2 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let all: Vec<f64> =
            (first..=last).flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power))).collect();
        let from = all.iter().copied().filter(|&tick| tick <= low * 1.0001).fold(f64::NAN, f64::max);
        let to = all.iter().copied().filter(|&tick| tick >= high * 0.999).fold(f64::NAN, f64::min);
        let from = if from.is_nan() { low } else { from };
        let to = if to.is_nan() { high } else { to };
        Self { from, to, log: true, ticks: all.into_iter().filter(|tick| (from..=to).contains(tick)).collect() }
    }

    /// From 0, with ticks at round numbers.
    fn linear(high: f64) -> Self {
        let high = if high > 0.0 { high } else { 1.0 };
        let rough = high / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].iter().map(|step| step * power).find(|&step| step >= rough);
        let step = step.unwrap_or(rough);
        let count = (high / step).ceil() as usize;
        let ticks: Vec<f64> = (0..=count).map(|i| i as f64 * step).collect();
        Self { from: 0.0, to: count as f64 * step, log: false, ticks }
    }

    /// Where a value lies, 0 to 1.
    fn at(&self, value: f64) -> f64 {
        let of = |v: f64| if self.log { v.max(1e-9).ln() } else { v };
        let span = of(self.to) - of(self.from);
        if span > 0.0 { ((of(value) - of(self.from)) / span).clamp(0.0, 1.0) } else { 0.5 }
    }
}

impl Lines {
    const WIDTH: f64 = 445.0;
    const HEIGHT: f64 = 230.0;
    const LEFT: f64 = 62.0;
    const TOP: f64 = 48.0;
    const RIGHT: f64 = 16.0;

    fn draw(&self) -> Document {
        let points = || self.series.iter().flat_map(|series| &series.points).copied();
        let largest = |of: fn(&(f64, f64)) -> f64| points().map(|point| of(&point)).fold(0.0, f64::max);
        let smallest = |of: fn(&(f64, f64)) -> f64| points().map(|point| of(&point)).fold(f64::INFINITY, f64::min);
        let mut xs: Vec<f64> = points().map(|point| point.0).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let first = xs.first().copied().unwrap_or(1.0);
        let last = xs.last().copied().unwrap_or(1.0);
        // Ticks of x are what was measured.
        let x_axis = Axis { from: first, to: last, log: true, ticks: xs };
        let y_axis = match self.log && points().next().is_some() {
            true => Axis::log(smallest(|point| point.1), largest(|point| point.1)),
            false => Axis::linear(largest(|point| point.1)),
        };
        let bottom = Self::TOP + Self::HEIGHT;
        let x = |value: f64| Self::LEFT + 10.0 + x_axis.at(value) * (Self::WIDTH - Self::LEFT - Self::RIGHT - 20.0);
        let y = |value: f64| bottom - y_axis.at(value) * Self::HEIGHT;
        let legend = self.series.len().div_ceil(2) as f64 * 18.0;
        let mut document = page(Self::WIDTH, bottom + 48.0 + legend);
        document.append(text(0.0, 16.0, &self.title, 14).set("font-weight", 600));
        document.append(text(0.0, 36.0, self.unit.name(), 11));
        for &tick in &y_axis.ticks {
            document.append(line((Self::LEFT, y(tick)), (Self::WIDTH - Self::RIGHT, y(tick)), FAINT));
            let label = text(Self::LEFT - 6.0, y(tick) + 4.0, &self.unit.tick(tick), 11);
            document.append(label.set("text-anchor", "end"));
        }
        let mut free = f64::NEG_INFINITY;
        for &tick in &x_axis.ticks {
            document.append(line((x(tick), bottom), (x(tick), bottom + 4.0), INK));
            let words = binary(tick);
            let half = words.chars().count() as f64 * 3.5;
            if x(tick) - half > free {
                document.append(text(x(tick), bottom + 17.0, &words, 11).set("text-anchor", "middle"));
                free = x(tick) + half + 4.0;
            }
        }
        document.append(line((Self::LEFT, bottom), (Self::WIDTH - Self::RIGHT, bottom), INK));
        let middle = (Self::LEFT + Self::WIDTH - Self::RIGHT) / 2.0;
        document.append(text(middle, bottom + 33.0, self.x, 11).set("text-anchor", "middle"));
        // Others in dashes above ours: where they are the same, both are seen.
        for (number, series) in self.series.iter().enumerate() {
            let (colour, width) = style(number);
            let path: Vec<String> =
                series.points.iter().map(|&(a, b)| format!("{},{}", round(x(a)), round(y(b)))).collect();
            let drawn = Polyline::new().set("points", path.join(" ")).set("fill", "none").set("stroke", colour);
            document.append(drawn.set("stroke-width", width).set("stroke-dasharray", dashes(number)));
            for &(a, b) in &series.points {
                let dot = rectangle(x(a) - 2.5, y(b) - 2.5, 5.0, 5.0, colour);
                let words = format!("{}: {} {}, {}", series.name, binary(a), self.x, self.unit.show(b));
                document.append(dot.add(Title::new(words)));
            }
        }
        for (number, series) in self.series.iter().enumerate() {
            let at = (number % 2) as f64 * (Self::WIDTH - Self::LEFT) / 2.0 + 10.0;
            let row = bottom + 54.0 + (number / 2) as f64 * 18.0;
            let (colour, width) = style(number);
            let sample = line((at, row - 4.0), (at + 20.0, row - 4.0), colour).set("stroke-width", width);
            document.append(sample.set("stroke-dasharray", dashes(number)));
            document.append(text(at + 26.0, row, &cut(&series.name, 24), 12));
        }
        document
    }
}

fn dashes(number: usize) -> &'static str {
    if number == 0 { "none" } else { "7 3" }
}

fn style(number: usize) -> (&'static str, u32) {
    match number.checked_sub(1) {
        None => (OURS, 3),
        Some(other) => (OTHERS.get(other % OTHERS.len()).copied().unwrap_or(RIVAL), 2),
    }
}

/// `128`, `1k`, `64Ki`, `2M`: powers of two and of ten as one says them.
pub(super) fn binary(value: f64) -> String {
    let whole = value as u64;
    for (unit, name) in [(1u64 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")] {
        if whole >= unit && whole.is_multiple_of(unit) {
            return format!("{}{name}", whole / unit);
        }
    }
    short(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_said_as_people_do() {
        for (unit, value, words) in [
            (Unit::PerSecond("ids/s"), 13_930_000.0, "13.9 M ids/s"),
            (Unit::PerSecond("B/s"), 2_465_618_236.0, "2.47 GB/s"),
            (Unit::PerSecond("ids/s"), 940.0, "940 ids/s"),
            (Unit::Micros, 268.2, "268 µs"),
            (Unit::Micros, 7.04, "7.04 µs"),
            (Unit::Micros, 1_994.0, "1.99 ms"),
            (Unit::Micros, 35_123.0, "35.1 ms"),
            (Unit::Share, 0.872, "87.2 %"),
        ] {
            assert_eq!(unit.show(value), words);
        }
        assert_eq!([1000.0, 1024.0, 65536.0, 2_097_152.0, 128.0, 1e7].map(binary).join(" "), "1k 1Ki 64Ki 2Mi 128 10M");
    }

    #[test]
    fn axes_hold_what_is_drawn() {
        for (low, high) in [(1.0, 1.0), (3.0, 7.0), (0.2, 90_000.0), (99.0, 101.0), (1e-12, 1.0)] {
            let axis = Axis::log(low, high);
            assert!(axis.from <= low.max(1e-9) * 1.001 && axis.to >= high * 0.999, "{low} to {high}");
            assert!((1..=12).contains(&axis.ticks.len()), "{low} to {high}: {:?}", axis.ticks);
        }
        for high in [0.0, 1e-3, 1.0, 7.0, 99.9, 1.4e7] {
            let axis = Axis::linear(high);
            assert!(axis.to >= high && (2..=7).contains(&axis.ticks.len()), "{high}: {:?}", axis.ticks);
        }
    }

    #[test]
    fn what_was_not_measured_is_in_the_plot() {
        let bars = vec![
            Bar::ours("Warprow", 2e6),
            Bar::rival("a <rival> & more", 1e6, Some(2.0)),
            Bar { who: "no".to_owned(), value: Err("it is \"not\" <here>".to_owned()), times: None, ours: false },
        ];
        let groups = vec![Group { label: "a group".to_owned(), bars }];
        let svg = Chart::Bars(Bars { title: "T".to_owned(), unit: Unit::PerSecond("ids/s"), groups }).svg();
        for words in
            ["2.00 M ids/s", "Warprow 2.00×", "a &lt;rival&gt; &amp; more", "not measured: it is", "&lt;here&gt;"]
        {
            assert!(svg.contains(words), "{words} is not in {svg}");
        }
        let empty = Lines { title: String::new(), x: "ids", unit: Unit::Micros, log: true, series: Vec::new() };
        assert!(Chart::Lines(empty).svg().starts_with("<svg"));
    }
}
