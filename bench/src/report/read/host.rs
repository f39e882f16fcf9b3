//! What the programs that need no GPU print.

use serde::Deserialize;

use super::quantities::bytes;
use super::section::Section;
use crate::report::chart::grouped;
use crate::report::{Bar, Bars, Chart, Group, Lines, Series, Unit};

const COMMANDS: Unit = Unit::PerSecond("commands/s");
const IDS: Unit = Unit::PerSecond("ids/s");
const BYTES: Unit = Unit::PerSecond("B/s");

#[derive(Deserialize)]
pub(super) struct Ring {
    depth: u16,
    block: u32,
    size: u64,
    vfio_user: bool,
    commands_per_second: Option<f64>,
    minimal_commands_per_second: Option<f64>,
    ratio: Option<f64>,
    minimal_fetching_commands_per_second: Option<f64>,
    fetching_ratio: Option<f64>,
    null_commands_per_second: Option<f64>,
    minimal_null_commands_per_second: Option<f64>,
    null_ratio: Option<f64>,
    disordered_commands_per_second: Option<f64>,
    null_disordered_commands_per_second: Option<f64>,
    pinned: Option<bool>,
    blocks_checked: Option<u64>,
}

fn bars(title: impl Into<String>, unit: Unit, groups: Vec<Group>) -> Chart {
    Chart::Bars(Bars { title: title.into(), unit, groups })
}

pub(super) fn ring(it: Ring) -> Section {
    let mut groups = Vec::new();
    let mut headlines = Vec::new();
    if let Some(ours) = it.commands_per_second {
        let mut of = vec![Bar::ours("Warprow", ours)];
        of.extend(it.minimal_commands_per_second.map(|rate| Bar::rival("minimal ring", rate, it.ratio)));
        let fetching = it.minimal_fetching_commands_per_second;
        of.extend(fetching.map(|rate| Bar::rival("minimal ring, fetching ahead", rate, it.fetching_ratio)));
        let disordered = it.disordered_commands_per_second;
        of.extend(disordered.map(|rate| Bar::ours("Warprow, completions in disorder", rate)));
        groups.push(Group { label: format!("Drive of RAM, {} copied a command", bytes(it.block.into())), bars: of });
        headlines.extend(it.ratio.map(|ratio| format!("RAM: {}, {ratio:.2}× the minimal ring", COMMANDS.show(ours))));
    }
    if let Some(ours) = it.null_commands_per_second {
        let mut of = vec![Bar::ours("Warprow", ours)];
        of.extend(it.minimal_null_commands_per_second.map(|rate| Bar::rival("minimal ring", rate, it.null_ratio)));
        let disordered = it.null_disordered_commands_per_second;
        of.extend(disordered.map(|rate| Bar::ours("Warprow, completions in disorder", rate)));
        groups.push(Group { label: "Drive without data".to_owned(), bars: of });
        headlines.extend(it.null_ratio.map(|ratio| format!("no data: {}, {ratio:.2}×", COMMANDS.show(ours))));
    }
    let over = if it.vfio_user { ", reached through a vfio-user socket" } else { "" };
    let title = format!("Random reads of {} B, depth {}", it.block, it.depth);
    Section {
        title: "One queue pair".to_owned(),
        about: format!(
            "Random reads of a drive of {} over one NVMe queue pair{over}: one thread submits, one answers. The minimal ring is bundled \
             and does nothing else than move entries and data: no errors, no time-outs, no checks, in order.",
            bytes(it.size as f64)
        ),
        emulated: vec![
            "The drive: Warprow's software controller, answered by another processor of the same machine. No PCIe, no flash.".to_owned(),
        ],
        headlines,
        charts: vec![bars(title, COMMANDS, groups)],
        warnings: match it.pinned {
            Some(false) => vec!["The threads could not be given a processor each.".to_owned()],
            _ => Vec::new(),
        },
        checked: it.blocks_checked.unwrap_or(0),
        ..Section::default()
    }
}

#[derive(Deserialize)]
pub(super) struct RingOn {
    on: String,
    depth: u16,
    block: u32,
    commands_per_second: f64,
    microseconds: f64,
    rounds: u64,
    blocks_checked: u64,
}

pub(super) fn ring_on(it: RingOn) -> Section {
    let emulated = match it.on.starts_with("vfio-user:") {
        true => vec![format!("{}: a controller of another process, behind a socket.", it.on)],
        false => Vec::new(),
    };
    let group = Group { label: String::new(), bars: vec![Bar::ours(&it.on, it.commands_per_second)] };
    Section {
        title: format!("One queue pair on {}", it.on),
        about: "Random reads of a drive that is there, without a rival.".to_owned(),
        emulated,
        headlines: vec![format!(
            "{}, {} each",
            COMMANDS.show(it.commands_per_second),
            Unit::Micros.show(it.microseconds)
        )],
        charts: vec![bars(format!("Random reads of {} B, depth {}", it.block, it.depth), COMMANDS, vec![group])],
        notes: vec![format!("Median of {} rounds.", it.rounds)],
        checked: it.blocks_checked,
        ..Section::default()
    }
}

#[derive(Deserialize)]
pub(super) struct Lookup {
    size: u64,
    row_bytes: u64,
    alpha: f64,
    batch: u64,
    cached: Option<Raced>,
    direct: Option<Raced>,
    profile: String,
    growth: Option<Vec<Growth>>,
}

#[derive(Deserialize)]
struct Raced {
    ids_per_second: f64,
    p50_us: f64,
    p99_us: f64,
    rows_in_dram: u64,
    rows_checked: u64,
    filesystem: String,
    pinned: bool,
    rivals: Vec<Rival>,
}

#[derive(Deserialize)]
struct Rival {
    rival: String,
    ids_per_second: Option<f64>,
    ratio: Option<f64>,
    unavailable: Option<String>,
    p50_us: Option<f64>,
}

#[derive(Deserialize)]
struct Growth {
    alpha: f64,
    dram_bytes: u64,
    ratio: Option<f64>,
    sizes: Vec<Grown>,
}

#[derive(Deserialize)]
struct Grown {
    size: Option<u64>,
    ids_per_second: f64,
    commands_per_second: f64,
    rows_checked: u64,
}

impl Raced {
    fn groups(&self, how: &str) -> (Group, Group) {
        let rates = std::iter::once(Bar::ours("Warprow", self.ids_per_second));
        let rate = |it: &Rival| {
            let reason = || it.unavailable.clone().unwrap_or_else(|| "no reason is given".to_owned());
            Bar { value: it.ids_per_second.ok_or_else(reason), ..Bar::rival(&it.rival, 0.0, it.ratio) }
        };
        let times = std::iter::once(Bar::ours("Warprow", self.p50_us));
        let time = |it: &Rival| Some(Bar::rival(&it.rival, it.p50_us.filter(|_| it.ids_per_second.is_some())?, None));
        let label = format!("{how} (file on {}, {} rows in DRAM)", self.filesystem, grouped(self.rows_in_dram));
        (
            Group { label, bars: rates.chain(self.rivals.iter().map(rate)).collect() },
            Group { label: how.to_owned(), bars: times.chain(self.rivals.iter().filter_map(time)).collect() },
        )
    }

    fn headline(&self, how: &str) -> String {
        let best = self.rivals.iter().filter_map(|it| Some((it.ratio?, &it.rival)));
        let best = best.min_by(|a, b| a.0.total_cmp(&b.0));
        let against = best.map_or_else(String::new, |(ratio, rival)| format!(", {ratio:.2}× the best rival ({rival})"));
        format!("{how}: {}{against}", IDS.show(self.ids_per_second))
    }
}

pub(super) fn lookup(it: Lookup) -> Section {
    let mut section = Section {
        title: "Look-ups by the host".to_owned(),
        about: format!(
            "Batches of {} ids (power law, α = {}) in a table of {} of rows of {} B, against programs that read the same file. “Equal means” \
             have the same deduplication, the same rows in DRAM, the same order and merging of reads and the same depth.",
            grouped(it.batch),
            it.alpha,
            bytes(it.size as f64),
            it.row_bytes
        ),
        ..Section::default()
    };
    let (mut rates, mut times) = (Vec::new(), Vec::new());
    for (how, raced) in [("Page cache, warm", &it.cached), ("Past the page cache, O_DIRECT", &it.direct)] {
        let Some(raced) = raced else {
            section.warnings.push(format!("{how}: not measured."));
            continue;
        };
        let (rate, time) = raced.groups(how);
        rates.push(rate);
        times.push(time);
        section.headlines.push(raced.headline(how));
        section
            .notes
            .push(format!("{how}: 99 of 100 batches of Warprow's end within {}.", Unit::Micros.show(raced.p99_us)));
        section.checked += raced.rows_checked;
        if !raced.pinned {
            section.warnings.push(format!("{how}: the threads could not be given a processor each."));
        }
    }
    if !rates.is_empty() {
        let words = "The drive of “page cache” and “O_DIRECT”: the software controller on a file; what the file lies on is the machine's.";
        section.emulated.push(words.to_owned());
        section.charts.push(bars("Ids looked up", IDS, rates));
        section.charts.push(bars("Median time of a batch; shorter is better", Unit::Micros, times));
    }
    for growth in it.growth.iter().flatten() {
        let point = |of: fn(&Grown) -> f64| {
            let points = growth.sizes.iter().filter_map(|it| Some((it.size? as f64 / f64::from(1 << 30), of(it))));
            points.collect::<Vec<_>>()
        };
        let ids = if growth.alpha == 0.0 { "uniform ids".to_owned() } else { format!("α = {}", growth.alpha) };
        let series = vec![
            Series { name: "ids".to_owned(), points: point(|it| it.ids_per_second) },
            Series { name: "commands to the drive".to_owned(), points: point(|it| it.commands_per_second) },
        ];
        let title = format!("Growing tables: {ids}, {} in DRAM", bytes(growth.dram_bytes as f64));
        let unit = Unit::PerSecond("a second");
        section.charts.push(Chart::Lines(Lines { title, x: "GiB of rows", unit, log: false, series }));
        let ratio =
            growth.ratio.map(|it| format!("growing, {ids}: the largest at {:.0} % of the smallest's rate", it * 100.0));
        section.headlines.extend(ratio);
        section.checked += growth.sizes.iter().map(|it| it.rows_checked).sum::<u64>();
    }
    match &it.growth {
        Some(_) => {
            let words = "The drive of growing tables: a software controller with the timing of";
            section
                .emulated
                .push(format!("{words} {}; its rows are computed when they are read.", name_of(&it.profile)));
        }
        None => section.warnings.push("Growing tables: not measured.".to_owned()),
    }
    section
}

fn name_of(profile: &str) -> String {
    match profile {
        "p5800x" => "an Intel Optane P5800X".to_owned(),
        "gen5-tlc" => "a Gen5 TLC flash drive".to_owned(),
        "none" => "no drive (none at all)".to_owned(),
        other => other.to_owned(),
    }
}

#[derive(Deserialize)]
pub(super) struct Load {
    size: u64,
    row_bytes: u64,
    pairs: u64,
    cached: Option<Loaded>,
    direct: Option<Loaded>,
}

#[derive(Deserialize)]
struct Loaded {
    identity_bytes_per_second: f64,
    identity_ratio: f64,
    permuted_bytes_per_second: f64,
    permuted_ratio: f64,
    picked_bytes_per_second: f64,
    picked_ratio: f64,
    dd_bytes_per_second: f64,
    /// Not measured by earlier versions.
    #[serde(flatten)]
    verified: Option<Verified>,
    rows_checked: u64,
    filesystem: String,
}

#[derive(Deserialize)]
struct Verified {
    verify_bytes_per_second: f64,
    verify_ratio: f64,
    dd_read_bytes_per_second: f64,
}

pub(super) fn load(it: Load) -> Section {
    let mut section = Section {
        title: "Loading a table".to_owned(),
        about: format!(
            "{} of rows of {} B, from memory to the end of a durable commit, against `dd bs=1M oflag=direct conv=fsync` onto the same file \
             system; medians of {}. Rows are loaded in the order of their ids, or in that of a random permutation: put in order, or picked. \
             Then all rows are verified by their checksums, against `dd` that reads as many bytes of the drive's file.",
            bytes(it.size as f64),
            it.row_bytes,
            it.pairs
        ),
        ..Section::default()
    };
    let mut groups = Vec::new();
    for (how, loaded) in [("Page cache", &it.cached), ("Past the page cache, O_DIRECT", &it.direct)] {
        let Some(loaded) = loaded else {
            section.warnings.push(format!("{how}: not measured."));
            continue;
        };
        let ours = |order: &str, rate, ratio: f64| Bar::ours(format!("Warprow, {order} ({ratio:.2}× dd)"), rate);
        let bars = vec![
            Bar::rival("dd", loaded.dd_bytes_per_second, None),
            ours("in order", loaded.identity_bytes_per_second, loaded.identity_ratio),
            ours("picked", loaded.picked_bytes_per_second, loaded.picked_ratio),
            ours("permuted", loaded.permuted_bytes_per_second, loaded.permuted_ratio),
        ];
        groups.push(Group { label: format!("{how} (file on {})", loaded.filesystem), bars });
        match &loaded.verified {
            Some(it) => {
                let bars = vec![
                    Bar::rival("dd, reading", it.dd_read_bytes_per_second, None),
                    Bar::ours(format!("Warprow, verify ({:.2}× dd)", it.verify_ratio), it.verify_bytes_per_second),
                ];
                groups.push(Group { label: format!("{how}, reading"), bars });
            }
            None => section.warnings.push(format!("{how}: verifying was not measured.")),
        }
        let rate = BYTES.show(loaded.identity_bytes_per_second);
        section.headlines.push(format!("{how}: {rate}, {:.2}× dd", loaded.identity_ratio));
        section.checked += loaded.rows_checked;
    }
    section
        .emulated
        .push("The drive: the software controller on a file; what the file lies on is the machine's.".to_owned());
    section.charts.push(bars("Bytes of rows", BYTES, groups));
    section
}

#[derive(Deserialize)]
pub(super) struct PlanRate {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    setup: Setup,
    result: Rate,
}

#[derive(Deserialize)]
struct Setup {
    rows: u64,
    dim: u32,
    alpha: f64,
    ids: u64,
    batch: u32,
    dram: f64,
    drives: u32,
    profile: String,
}

#[derive(Deserialize)]
struct Rate {
    hit_planned: f64,
    hit: f64,
    commands_planned: f64,
    commands: f64,
    rate_planned: f64,
    rate: f64,
    checked: u64,
}

pub(super) fn plan_rate(it: PlanRate) -> Section {
    let mut section = Section { title: "What plans expect, and what happened".to_owned(), ..Section::default() };
    let Some(Case { setup, .. }) = it.cases.first() else {
        section.warnings.push("There is no case.".to_owned());
        return section;
    };
    section.about = format!(
        "Plans made of four fifths of a generated trace of {} ids, tables loaded as planned, the last fifth looked up in batches of {}: {} \
         rows of {} B, {:.0} % of them in DRAM.",
        grouped(setup.ids),
        grouped(setup.batch.into()),
        grouped(setup.rows),
        setup.dim * 4,
        setup.dram * 100.0
    );
    let group = |case: &Case, planned: f64, was: f64| Group {
        label: match case.setup.drives {
            1 => format!("{}, α = {}", name_of(&case.setup.profile), case.setup.alpha),
            drives => format!("{drives} of {}, α = {}", name_of(&case.setup.profile), case.setup.alpha),
        },
        bars: vec![Bar::rival("planned", planned, None), Bar::ours("measured", was)],
    };
    let all = |of: fn(&Rate) -> (f64, f64)| {
        it.cases.iter().map(|case| group(case, of(&case.result).0, of(&case.result).1)).collect::<Vec<_>>()
    };
    let shares = all(|it| (it.hit_planned, it.hit));
    section.charts.push(bars("Ids looked up", IDS, all(|it| (it.rate_planned, it.rate))));
    section.charts.push(bars("Share of ids that DRAM serves", Unit::Share, shares));
    let commands = all(|it| (it.commands_planned, it.commands));
    section.charts.push(bars("Read commands of a batch", Unit::Count("commands"), commands));
    let off = it.cases.iter().map(|case| case.result.rate_planned / case.result.rate);
    let (low, high) = off.fold((f64::INFINITY, 0.0f64), |(low, high), it| (low.min(it), high.max(it)));
    section.headlines.push(format!("planned rates are {low:.2} to {high:.2} times the measured ones"));
    let mut profiles: Vec<_> = it.cases.iter().map(|case| name_of(&case.setup.profile)).collect();
    profiles.dedup();
    section.emulated.push(format!("The drives: software controllers with the timing of {}.", profiles.join(" or ")));
    section.checked = it.cases.iter().map(|case| case.result.checked).sum();
    section
}

#[derive(Deserialize)]
pub(super) struct PlanSpeed {
    setup: Setup,
    result: Speed,
}

#[derive(Deserialize)]
struct Speed {
    seconds: f64,
    generating: f64,
    peak_resident_bytes: Option<u64>,
    hit_planned: f64,
}

pub(super) fn plan_speed(it: PlanSpeed) -> Section {
    let PlanSpeed { setup, result } = it;
    let resident = result.peak_resident_bytes.map(|peak| format!("{} resident at most", bytes(peak as f64)));
    let taken = vec![Bar::ours("planning, ids generated meanwhile", result.seconds * 1e6)];
    let mut taken = Group { label: String::new(), bars: taken };
    taken.bars.push(Bar::rival("generating the ids alone", result.generating * 1e6, None));
    Section {
        title: "How long a plan takes".to_owned(),
        about: format!(
            "{} ids of {} rows (α = {}), generated as they are read.",
            grouped(setup.ids),
            grouped(setup.rows),
            setup.alpha
        ),
        headlines: vec![format!("{:.1} s for {} ids", result.seconds, grouped(setup.ids))],
        charts: vec![bars("Time", Unit::Micros, vec![taken])],
        notes: resident
            .into_iter()
            .chain([format!("Planned: {:.1} % of ids in DRAM.", result.hit_planned * 100.0)])
            .collect(),
        ..Section::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::report::Chart;

    #[test]
    fn loads_that_were_measured_before_verify_was_are_read() {
        let mut loaded = json!({
            "identity_bytes_per_second": 9e8, "identity_ratio": 0.9, "permuted_bytes_per_second": 7e8, "permuted_ratio": 0.7,
            "picked_bytes_per_second": 8e8, "picked_ratio": 0.8, "dd_bytes_per_second": 1e9, "rows_checked": 5, "filesystem": "ext4",
        });
        let read = |loaded: &serde_json::Value| {
            let value =
                json!({ "schema": 1, "size": 4096, "row_bytes": 512, "pairs": 3, "cached": null, "direct": loaded });
            super::super::read(&value).unwrap()
        };
        let before = read(&loaded);
        let groups = |chart: &Chart| match chart {
            Chart::Bars(bars) => bars.groups.len(),
            Chart::Lines(_) => 0,
        };
        assert_eq!((groups(&before.charts[0]), before.checked), (1, 5));
        assert!(before.warnings.iter().any(|it| it.contains("verifying was not measured")), "{:?}", before.warnings);
        for (key, value) in [("verify_bytes_per_second", 4e9), ("verify_ratio", 2.0), ("dd_read_bytes_per_second", 2e9)]
        {
            loaded[key] = value.into();
        }
        let now = read(&loaded);
        assert_eq!(groups(&now.charts[0]), 2);
        assert!(!now.warnings.iter().any(|it| it.contains("verifying")), "{:?}", now.warnings);
    }
}
