//! `bench-plan`.

use warprow_workload::units::{bytes, count};

use super::figures::{IDS, bars, timing_of};
use super::section::Section;
use crate::plan::PlanResult;
use crate::report::{Bar, Group, Unit};
use crate::results::{PlanCase, PlanRates, PlanSpeed};

pub(super) fn plan_rate(it: PlanRates) -> Section {
    let mut section = Section { title: "What plans expect, and what happened".to_owned(), ..Section::default() };
    let Some(PlanCase { setup, .. }) = it.cases.first() else {
        section.warnings.push("There is no case.".to_owned());
        return section;
    };
    section.about = format!(
        "Plans made of four fifths of a generated trace of {} ids, tables loaded as planned, the last fifth looked up in batches of {}: {} \
         rows of {} B, {:.0} % of them in DRAM.",
        count(setup.ids),
        count(setup.batch.into()),
        count(setup.rows),
        setup.dim * 4,
        setup.dram * 100.0
    );
    let group = |case: &PlanCase, planned: f64, was: f64| Group {
        label: match case.setup.drives {
            1 => format!("{}, α = {}", timing_of(&case.setup.profile), case.setup.alpha),
            drives => format!("{drives} of {}, α = {}", timing_of(&case.setup.profile), case.setup.alpha),
        },
        bars: vec![Bar::rival("planned", planned, None), Bar::ours("measured", was)],
    };
    let all = |of: fn(&PlanResult) -> (f64, f64)| {
        it.cases.iter().map(|case| group(case, of(&case.result).0, of(&case.result).1)).collect::<Vec<_>>()
    };
    let shares = all(|result| (result.hit_planned, result.hit));
    section.charts.push(bars("Ids looked up", IDS, all(|result| (result.rate_planned, result.rate))));
    section.charts.push(bars("Share of ids that DRAM serves", Unit::Share, shares));
    let commands = all(|result| (result.commands_planned, result.commands));
    section.charts.push(bars("Read commands of a batch", Unit::Count("commands"), commands));
    let off = it.cases.iter().map(|case| case.result.rate_planned / case.result.rate);
    let (low, high) = off.fold((f64::INFINITY, 0.0f64), |(low, high), it| (low.min(it), high.max(it)));
    section.headlines.push(format!("planned rates are {low:.2} to {high:.2} times the measured ones"));
    let mut profiles: Vec<_> = it.cases.iter().map(|case| timing_of(&case.setup.profile)).collect();
    profiles.dedup();
    section.emulated.push(format!("The drives: software controllers with the timing of {}.", profiles.join(" or ")));
    section.checked = it.cases.iter().map(|case| case.result.checked).sum();
    section
}

pub(super) fn plan_speed(it: PlanSpeed) -> Section {
    let PlanSpeed { setup, result } = it;
    let resident = result.peak_resident_bytes.map(|peak| format!("{} resident at most", bytes(peak)));
    let taken = vec![Bar::ours("planning, ids generated meanwhile", result.seconds * 1e6)];
    let mut taken = Group { label: String::new(), bars: taken };
    taken.bars.push(Bar::rival("generating the ids alone", result.generating * 1e6, None));
    Section {
        title: "How long a plan takes".to_owned(),
        about: format!(
            "{} ids of {} rows (α = {}), generated as they are read.",
            count(setup.ids),
            count(setup.rows),
            setup.alpha
        ),
        headlines: vec![format!("{:.1} s for {} ids", result.seconds, count(setup.ids))],
        charts: vec![bars("Time", Unit::Micros, vec![taken])],
        notes: resident
            .into_iter()
            .chain([format!("Planned: {:.1} % of ids in DRAM.", result.hit_planned * 100.0)])
            .collect(),
        ..Section::default()
    }
}
