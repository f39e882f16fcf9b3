//! The axes of a chart: memory from left to right, by powers of two, and a figure from below.

use svg::node::element::{Circle, Group, Line, Polyline, Text};

use super::figures::memory;

/// Pixels of the page and of a chart. A chart is half as wide as the page.
pub(super) const WIDTH: u32 = 960;
pub(super) const HEIGHT: u32 = 420;
/// Where the plot of a chart lies in it.
const LEFT: f64 = 68.0;
const RIGHT: f64 = 468.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 372.0;
/// Ticks of an axis, about, at most.
const TICKS: u32 = 8;

const INK: &str = "#000000";
const GRID: &str = "#e0e0e0";

/// A chart's axes.
pub(super) struct Axes {
    /// Where the chart begins.
    pub(super) left: f64,
    /// MiB at the ends of the horizontal axis.
    pub(super) memory: (f64, f64),
    /// What the vertical axis reaches up to.
    pub(super) most: f64,
}

/// Words on the page. `anchor` is `start`, `middle` or `end`.
pub(super) fn text(x: f64, y: f64, size: u32, anchor: &str, words: &str) -> Text {
    // XML has no way to say these.
    let words = words.replace(|c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}'), "\u{fffd}");
    Text::new(words).set("x", tidy(x)).set("y", tidy(y)).set("font-size", size).set("text-anchor", anchor)
}

/// With as many digits as a pixel needs.
pub(super) fn tidy(pixels: f64) -> f64 {
    (pixels * 100.0).round() / 100.0
}

impl Axes {
    /// From left to right.
    pub(super) fn x(&self, mib: f64) -> f64 {
        let (from, to) = self.memory;
        self.left + LEFT + (mib / from).ln() / (to / from).ln() * (RIGHT - LEFT)
    }

    /// From below.
    pub(super) fn y(&self, value: f64) -> f64 {
        BOTTOM - value / self.most * (BOTTOM - TOP)
    }

    /// Whether so much memory is on the axis.
    pub(super) fn has(&self, mib: f64) -> bool {
        (self.memory.0..=self.memory.1).contains(&mib)
    }

    /// The axes with their grid, and `caption` above them. `figure` writes a value of the vertical axis.
    pub(super) fn draw(&self, caption: &str, figure: impl Fn(f64) -> String) -> Group {
        let line = |x1: f64, y1: f64, x2: f64, y2: f64, colour: &str| {
            Line::new()
                .set("x1", tidy(x1))
                .set("y1", tidy(y1))
                .set("x2", tidy(x2))
                .set("y2", tidy(y2))
                .set("stroke", colour)
        };
        let left = self.left + LEFT;
        let right = self.left + RIGHT;
        let mut group = Group::new().add(text((left + right) / 2.0, 20.0, 14, "middle", caption));
        for value in self.values() {
            let y = self.y(value);
            group = group.add(line(left, y, right, y, GRID)).add(text(left - 6.0, y + 4.0, 12, "end", &figure(value)));
        }
        for mib in self.sizes() {
            let x = self.x(mib);
            group = group.add(line(x, TOP, x, BOTTOM, GRID)).add(text(x, BOTTOM + 18.0, 12, "middle", &memory(mib)));
        }
        let named = group.add(text((left + right) / 2.0, BOTTOM + 38.0, 12, "middle", "memory for rows"));
        named.add(line(left, TOP, left, BOTTOM, INK)).add(line(left, BOTTOM, right, BOTTOM, INK))
    }

    /// A line through points of memory and a value.
    pub(super) fn curve(&self, points: impl Iterator<Item = (f64, f64)>, colour: &str) -> Polyline {
        let points = points.map(|(mib, value)| format!("{},{}", tidy(self.x(mib)), tidy(self.y(value))));
        let points = points.collect::<Vec<_>>().join(" ");
        Polyline::new().set("points", points).set("fill", "none").set("stroke", colour).set("stroke-width", 2)
    }

    /// A dot at a point.
    pub(super) fn dot(&self, mib: f64, value: f64, colour: &str) -> Circle {
        Circle::new().set("cx", tidy(self.x(mib))).set("cy", tidy(self.y(value))).set("r", 5).set("fill", colour)
    }

    /// Round values of the vertical axis.
    fn values(&self) -> impl Iterator<Item = f64> {
        let least = self.most / f64::from(TICKS);
        let power = 10f64.powf(least.log10().floor());
        let step = [1.0, 2.0, 5.0].into_iter().map(|times| times * power).find(|step| *step >= least);
        let step = step.unwrap_or(10.0 * power);
        (0..=(self.most / step * (1.0 + 1e-9)) as u32).map(move |at| f64::from(at) * step)
    }

    /// Powers of two of the horizontal axis, in MiB; the ends of an axis that has none.
    fn sizes(&self) -> Vec<f64> {
        let (from, to) = self.memory;
        let first = from.log2().ceil() as i32;
        let last = to.log2().floor() as i32;
        if first > last {
            return vec![from, to];
        }
        let step = (last - first + 1).unsigned_abs().div_ceil(TICKS) as usize;
        (first..=last).step_by(step).map(|power| 2f64.powi(power)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        let axes = |memory, most| Axes { left: 0.0, memory, most };
        let values = |most| axes((1.0, 2.0), most).values().collect::<Vec<_>>();
        assert_eq!(values(100.0), [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(values(1.05), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(values(33e6).len(), 7);
        assert_eq!(axes((0.5, 9.0), 1.0).sizes(), [0.5, 1.0, 2.0, 4.0, 8.0]);
        assert_eq!(axes((1.0, 1024.0), 1.0).sizes(), [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0]);
        assert_eq!(axes((1.1, 1.2), 1.0).sizes(), [1.1, 1.2], "no power of two between them");
    }

    #[test]
    fn places_are_to_scale() {
        let axes = Axes { left: 480.0, memory: (1.0, 1024.0), most: 100.0 };
        assert_eq!([axes.x(1.0), axes.x(1024.0), axes.x(32.0)].map(tidy), [548.0, 948.0, 748.0]);
        assert_eq!([axes.y(0.0), axes.y(100.0), axes.y(50.0)], [372.0, 34.0, 203.0]);
        assert!(axes.has(1024.0) && !axes.has(0.5));
    }
}
