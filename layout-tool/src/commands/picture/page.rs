//! The page, its measures and colours, and what is drawn again and again.

use svg::node::element::{Rectangle, Text};
use svg::{Document, Node};

use crate::report::printable;

/// Pixels: the page, the bars of drives and generations, and where these begin.
pub(super) const WIDTH: usize = 1240;
pub(super) const BAR: usize = 960;
pub(super) const LEFT: usize = 260;
pub(super) const ROW: usize = 40;

pub(super) const FREE: &str = "#eceff1";
pub(super) const UNUSED: &str = "#ffffff";
pub(super) const META: &str = "#37474f";
pub(super) const CATALOGUE: &str = "#78909c";
pub(super) const INK: &str = "#212121";
/// The colour of generations and tables that are not among the largest, which have colours of their own.
pub(super) const GREY: &str = "#9e9e9e";

/// Colours of generations, and of tables within one: as many as are named, so that none means two. The first are told apart by people
/// who see few colours too (Okabe and Ito's); all have numbers besides.
pub(super) const COLOURS: [&str; 24] = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#e6d200", "#7b6bb5", "#8c564b", "#1b4f72",
    "#a6d854", "#e41a1c", "#17becf", "#5d4037", "#f781bf", "#00441b", "#c2a5cf", "#ffbf7f", "#4a1486", "#80cdc1",
    "#7f7f00", "#99000d", "#b3cde3", "#ff00a8",
];

pub(super) fn colour(number: Option<usize>) -> &'static str {
    number.and_then(|number| COLOURS.get(number)).copied().unwrap_or(GREY)
}

/// Black or white: what can be read on a colour.
pub(super) fn ink_on(colour: &str) -> &'static str {
    let part = |at: usize| colour.get(at..at + 2).and_then(|hex| u32::from_str_radix(hex, 16).ok()).unwrap_or(0);
    // ITU-R BT.601.
    if 299 * part(1) + 587 * part(3) + 114 * part(5) > 150_000 { INK } else { "#ffffff" }
}

/// A page that grows downwards.
pub(super) struct Page {
    pub(super) document: Document,
    /// Where the next thing goes.
    pub(super) y: usize,
}

impl Page {
    pub(super) fn add(&mut self, node: impl Into<Box<dyn Node>>) {
        self.document.append(node);
    }

    pub(super) fn text(&mut self, x: usize, words: &str, size: usize, weight: &str) {
        let y = self.y + size;
        self.add(label(x, y, words, size).set("font-weight", weight));
    }
}

pub(super) fn label(x: usize, y: usize, words: &str, size: usize) -> Text {
    Text::new(legal(words)).set("x", x).set("y", y).set("font-size", size).set("fill", "#212121")
}

/// Without characters that XML has no way to say.
pub(super) fn legal(words: &str) -> String {
    printable(words).replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}")
}

pub(super) fn rectangle(x: usize, y: usize, width: usize, height: usize, fill: &str) -> Rectangle {
    Rectangle::new().set("x", x).set("y", y).set("width", width).set("height", height).set("fill", fill)
}

/// With as many digits as a pixel needs.
pub(super) fn tidy(pixels: f64) -> f64 {
    (pixels * 1000.0).round() / 1000.0
}

/// The end of a name that is too long: where paths and tensors differ.
pub(super) fn short(name: &str, most: usize) -> String {
    let name = printable(name);
    let count = name.chars().count();
    if count <= most { name } else { format!("…{}", name.chars().skip(count + 1 - most).collect::<String>()) }
}
