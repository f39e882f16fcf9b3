//! `bench-switch`.

use warprow_workload::units::{bytes, count};

use super::figures::bars;
use super::section::Section;
use crate::report::{Bar, Group, Unit};
use crate::results::{SwitchTimes, Switches};

pub(super) fn switch(it: Switches) -> Section {
    let group = |percent: &str, of: fn(&SwitchTimes) -> f64| {
        let bars = vec![
            Bar::ours("while generations are switched", of(&it.switching)),
            Bar::rival("in calm times", of(&it.calm), None),
        ];
        Group { label: percent.to_owned(), bars }
    };
    let look_ups = vec![
        group("p50", |times| times.p50_us),
        group("p99", |times| times.p99_us),
        group("p99.9", |times| times.p999_us),
    ];
    let steps = [("with its preparation", &it.switches), ("without", &it.adoptions)].map(|(label, times)| {
        let bars = [("p50", times.p50_us), ("p99", times.p99_us), ("p99.9", times.p999_us)];
        Group { label: label.to_owned(), bars: bars.map(|(name, time)| Bar::ours(name, time)).to_vec() }
    });
    let growth = match it.p999_growth_us {
        us if us > 0.0 => format!("grows by {}", Unit::Micros.show(us)),
        _ => "does not grow".to_owned(),
    };
    Section {
        title: "Generations switched under look-ups".to_owned(),
        about: format!(
            "Look-ups of {} ids by {} threads of the host executor in {} of rows of {} B, {:.0} % of them in DRAM, the others on {} drives, while \
             generations are prepared, switched and adopted.",
            count(it.batch.into()),
            it.readers,
            bytes(it.size),
            it.row_bytes,
            it.hot * 100.0,
            it.drives
        ),
        emulated: vec!["The drives: software controllers on memory.".to_owned()],
        headlines: vec![format!(
            "p99.9 {growth} while {} generations are switched ({} is allowed)",
            count(it.switches.count),
            Unit::Micros.show(it.p999_growth_limit_us)
        )],
        charts: vec![
            bars("Look-ups; shorter is better", Unit::Micros, look_ups),
            bars("A switch", Unit::Micros, steps.to_vec()),
        ],
        notes: vec![format!(
            "{} look-ups in calm times, {} while switching.",
            count(it.calm.count),
            count(it.switching.count)
        )],
        warnings: if it.met { Vec::new() } else { vec!["p99.9 grows by more than is allowed.".to_owned()] },
        checked: it.rows_checked.iter().sum(),
    }
}
