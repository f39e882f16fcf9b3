//! What the user sees while a command works. Results are not printed here.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::report::printable;

/// Stderr, where it is a terminal.
#[derive(Debug, Clone, Copy)]
pub struct Screen {
    draws: bool,
    speaks: bool,
}

/// What a progress bar counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes, and their rate.
    Bytes,
    /// Anything else, and its rate.
    Things,
}

impl Screen {
    /// With `quiet`, nothing.
    pub fn new(quiet: bool) -> Self {
        Self { draws: !quiet && std::io::stderr().is_terminal(), speaks: !quiet }
    }

    /// Whether lines about what happens are wanted.
    pub fn speaks(&self) -> bool {
        self.speaks
    }

    /// A line about what happens, if they are wanted.
    pub fn say(&self, line: &str) {
        if self.speaks {
            // Who does not listen is not to be told.
            let _ = writeln!(std::io::stderr(), "{}", printable(line));
        }
    }

    /// A bar that goes from 0 to `total`.
    pub fn bar(&self, what: impl Into<Cow<'static, str>>, total: u64, unit: Unit) -> ProgressBar {
        let template = match unit {
            Unit::Bytes => {
                "{msg:<24} [{bar:30}] {binary_bytes:>10} of {binary_total_bytes} {binary_bytes_per_sec:>12} {eta:>4}"
            }
            Unit::Things => "{msg:<24} [{bar:30}] {human_pos:>10} of {human_len} {per_sec:>12} {eta:>4}",
        };
        self.drawn(ProgressBar::with_draw_target(Some(total), self.target()), what, template)
    }

    /// A bar from 0 to 1000 for work of which only the part done is known, with a figure that the caller gives as prefix.
    pub fn thousandths(&self, what: impl Into<Cow<'static, str>>) -> ProgressBar {
        let template = "{msg:<24} [{bar:30}] {percent:>3}% {prefix:>16} {elapsed:>4}";
        self.drawn(ProgressBar::with_draw_target(Some(1000), self.target()), what, template)
    }

    /// A sign of life for work of unknown length.
    pub fn spinner(&self, what: impl Into<Cow<'static, str>>) -> ProgressBar {
        let bar = self.drawn(ProgressBar::with_draw_target(None, self.target()), what, "{msg:<24} {spinner} {elapsed}");
        if self.draws {
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        bar
    }

    fn target(&self) -> ProgressDrawTarget {
        if self.draws { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
    }

    fn drawn(&self, bar: ProgressBar, what: impl Into<Cow<'static, str>>, template: &str) -> ProgressBar {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.with_style(style.progress_chars("█▌ ")).with_message(printable(&what.into()))
    }
}
