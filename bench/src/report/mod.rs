//! One page of HTML about a set of benchmarks: what was emulated, the machine, plots with rivals side by side, and the raw results.
//!
//! A [`Part`] is one run of one of this package's programs: a name, what it was called with, and its [`Outcome`]. Parts come from
//! running them ([`run`]) or from a folder in which earlier ones were kept ([`load`]). [`page`] makes the page of them. What has
//! failed, what this machine cannot run, and what nobody knows how to read is in the page too, with its reason.

mod chart;
mod kept;
mod machine;
mod page;
mod read;
mod set;

use serde_json::Value;

pub use chart::{Bar, Bars, Chart, Group, Lines, Series, Unit};
pub use kept::{KeptError, keep, load};
pub use machine::{Described, GpuDescribed};
pub use page::page;
pub use read::{Section, read};
pub use set::{Extent, Needs, Program, run, set};

/// One run of a program.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// What it is called here: `ring`, `lookup-gpu`.
    pub name: String,
    /// Its command line, where that is known.
    pub command: Option<String>,
    /// What came of it.
    pub outcome: Outcome,
    /// What it said beside its result, if anything.
    pub said: String,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It printed this.
    Done(Value),
    /// It was run, or should have been, and there is no result.
    Failed(String),
    /// This machine cannot run it, or nobody asked for it.
    NotRun(String),
}

/// What a page is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// When, as people write it.
    pub date: String,
    /// Where.
    pub machine: Described,
    /// In the order of the page.
    pub parts: Vec<Part>,
}

impl Report {
    /// Names of the parts that have failed.
    pub fn failed(&self) -> Vec<&str> {
        let is_failed = |part: &&Part| matches!(part.outcome, Outcome::Failed(_));
        self.parts.iter().filter(is_failed).map(|part| part.name.as_str()).collect()
    }
}

/// A program's result by what it printed: an object, or why it is none.
fn outcome_of(printed: &str) -> Outcome {
    match serde_json::from_str::<Value>(printed.trim()) {
        Err(error) => Outcome::Failed(format!("what it printed is no JSON: {error}")),
        Ok(value) => match value.get("error") {
            None => Outcome::Done(value),
            Some(error) => {
                let message = error.get("message").and_then(Value::as_str).unwrap_or("it does not say why");
                Outcome::Failed(message.to_owned())
            }
        },
    }
}

/// A day of the Gregorian calendar and the time, UTC, of seconds since 1970.
pub fn date_of(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is the last of one; 400 of them have 146,097 days.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (date, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{date:02} {:02}:{:02} UTC", second / 3600, second / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendars() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (1_709_251_200, "2024-03-01 00:00 UTC"),
            (1_798_761_599, "2026-12-31 23:59 UTC"),
        ] {
            assert_eq!(date_of(seconds), date);
        }
    }

    #[test]
    fn a_printed_error_is_a_failure() {
        let failed = |text: &str| match outcome_of(text) {
            Outcome::Failed(reason) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(failed(r#"{"schema":1,"error":{"message":"no room"}}"#), "no room");
        assert!(failed("").contains("no JSON"));
        assert!(failed("{\"a\":").contains("no JSON"));
        assert_eq!(outcome_of(" {\"a\":1}\n"), Outcome::Done(serde_json::json!({ "a": 1 })));
    }
}
