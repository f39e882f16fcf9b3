//! What the programs for a GPU print.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::quantities::{bytes, times};
use super::section::Section;
use crate::report::chart::{binary, grouped};
use crate::report::{Bar, Bars, Chart, Group, Lines, Series, Unit};

pub(super) const COMMANDS: Unit = Unit::PerSecond("commands/s");
const DRIVES: &str = "The drives: software controllers, one thread of the processor each; rings in pinned memory (rung C). The GPU is real.";

#[derive(Deserialize)]
pub(super) struct Ring {
    gpu: String,
    rung: String,
    ids: u64,
    results: Vec<RingPoint>,
    soak: Option<RingPoint>,
}

#[derive(Deserialize)]
struct RingPoint {
    threads: u32,
    commands_per_second: f64,
    commands_per_second_of_lookups: f64,
    share_of_linear: f64,
    commands: u64,
    seconds: f64,
    anomalies: u64,
    checked: u64,
}

pub(super) fn line(name: &str, points: impl Iterator<Item = (f64, f64)>) -> Series {
    Series { name: name.to_owned(), points: points.filter(|&(x, y)| x > 0.0 && y > 0.0).collect() }
}

pub(super) fn ring(it: Ring) -> Section {
    let of = |what: fn(&RingPoint) -> f64| it.results.iter().map(move |point| (f64::from(point.threads), what(point)));
    let mut section = Section {
        title: "Queues that a GPU drives".to_owned(),
        about: format!(
            "Random reads of 512 B in look-ups of {} ids on one {}: one thread block a drive submits, one thread of the processor answers \
             each drive, completions in disorder. QueuePlacement {}.",
            it.ids, it.gpu, it.rung
        ),
        emulated: vec![DRIVES.to_owned()],
        ..Section::default()
    };
    let mut series = vec![
        line("while commands are under way", of(|it| it.commands_per_second)),
        line("over whole look-ups", of(|it| it.commands_per_second_of_lookups)),
    ];
    if let Some(first) = it.results.first() {
        let each = first.commands_per_second / f64::from(first.threads.max(1));
        series.push(line("linear", of(|it| f64::from(it.threads)).map(|(x, threads)| (x, threads * each))));
    }
    let title = "Commands a second".to_owned();
    section.charts.push(Chart::Lines(Lines { title, x: "drives and threads", unit: COMMANDS, log: false, series }));
    for point in it.results.first().into_iter().chain(it.results.last().filter(|_| it.results.len() > 1)) {
        let words = format!("{} threads: {}", point.threads, COMMANDS.show(point.commands_per_second));
        section.headlines.push(format!("{words}, {:.0} % of linear", point.share_of_linear * 100.0));
    }
    if let Some(soak) = &it.soak {
        let rate = COMMANDS.show(soak.commands_per_second);
        section.notes.push(format!("{} commands in a row in {:.0} s, {rate}.", soak.commands, soak.seconds));
    }
    let all = || it.results.iter().chain(&it.soak);
    let anomalies: u64 = all().map(|point| point.anomalies).sum();
    if anomalies > 0 {
        section.warnings.push(format!("{anomalies} completions that nobody waited for."));
    }
    section.checked = all().map(|point| point.checked).sum();
    section
}

#[derive(Deserialize)]
pub(super) struct Dram {
    gpu: String,
    runs: u32,
    results: Vec<DramPoint>,
    sweeps: Vec<Sweep>,
    notes: Vec<String>,
}

#[derive(Deserialize)]
struct DramPoint {
    size: u64,
    row_bytes: u32,
    alpha: f64,
    ids: u64,
    us: DramTimes,
    bytes_per_second: f64,
    met: bool,
    ratio_uva_graph: f64,
    ratio_cpu: f64,
    torch_embedding_us: Option<f64>,
    torch_index_us: Option<f64>,
    checked: u64,
}

#[derive(Deserialize)]
struct DramTimes {
    lookup_graph: f64,
    uva_graph: f64,
    lookup_graph_seen: f64,
    uva_graph_seen: f64,
    cpu: f64,
    batch_copy: Option<f64>,
}

#[derive(Deserialize)]
struct Sweep {
    size: u64,
    row_bytes: u32,
    ids: u64,
    points: Vec<SweepPoint>,
    enough: Option<u32>,
    checked: u64,
}

#[derive(Deserialize)]
struct SweepPoint {
    gatherers: u32,
    bytes_per_second: f64,
    fetched_bytes_per_second: f64,
}

fn distribution(alpha: f64) -> String {
    if alpha == 0.0 { "uniform ids".to_owned() } else { format!("α = {alpha}") }
}

pub(super) fn dram(it: Dram) -> Section {
    let mut section = Section {
        title: "Rows in DRAM, read by a GPU".to_owned(),
        about: format!(
            "Whole look-ups on one {} in tables that lie in pinned memory, medians of {}. UVA: a plain gather through unified addressing, in \
             the order of the request. CPU: all cores gather, and that is copied. Batch of copies: cuMemcpyBatchAsync. \
             F.embedding and index_select: PyTorch's.",
            it.gpu, it.runs
        ),
        emulated: vec![
            "Nothing of what was timed. The drive behind the tables computes their rows while they are loaded."
                .to_owned(),
        ],
        notes: it.notes,
        ..Section::default()
    };
    let mut tables: BTreeMap<(u64, u32, u64), Vec<&DramPoint>> = BTreeMap::new();
    for point in &it.results {
        tables.entry((point.size, point.row_bytes, point.alpha.to_bits())).or_default().push(point);
    }
    for points in tables.values() {
        let Some(first) = points.first() else { continue };
        let of = |what: fn(&DramPoint) -> Option<f64>| {
            points.iter().filter_map(move |point| Some((point.ids as f64, what(point)?)))
        };
        // All by the caller's clock: rivals that are no kernels have no other.
        let series = [
            line("Warprow", of(|it| Some(it.us.lookup_graph_seen))),
            line("UVA", of(|it| Some(it.us.uva_graph_seen))),
            line("CPU and a copy", of(|it| Some(it.us.cpu))),
            line("batch of copies", of(|it| it.us.batch_copy)),
            line("F.embedding and a copy", of(|it| it.torch_embedding_us)),
            line("index_select and a copy", of(|it| it.torch_index_us)),
        ];
        let table =
            format!("{}, rows of {} B, {}", bytes(first.size as f64), first.row_bytes, distribution(first.alpha));
        let series = series.into_iter().filter(|series| !series.points.is_empty()).collect();
        section.charts.push(Chart::Lines(Lines { title: table, x: "ids", unit: Unit::Micros, log: true, series }));
    }
    let groups = tables.values().filter_map(|points| {
        let most = points.iter().max_by_key(|point| point.ids)?;
        let ours = most.us.lookup_graph;
        let label = format!(
            "{}, rows of {} B, {}, {} ids",
            bytes(most.size as f64),
            most.row_bytes,
            distribution(most.alpha),
            binary(most.ids as f64)
        );
        let bars = vec![
            Bar::ours("Warprow, by the GPU", ours),
            Bar::rival("UVA, by the GPU", most.us.uva_graph, Some(most.ratio_uva_graph)),
            Bar::ours("Warprow, seen by its caller", most.us.lookup_graph_seen),
            Bar::rival("CPU and a copy, seen", most.us.cpu, Some(most.ratio_cpu)),
        ];
        Some(Group { label, bars })
    });
    let groups: Vec<Group> = groups.collect();
    if !groups.is_empty() {
        let title = "The most ids of each table; shorter is better".to_owned();
        section.charts.push(Chart::Bars(Bars { title, unit: Unit::Micros, groups }));
        let met = it.results.iter().filter(|point| point.met).count();
        section.headlines.push(format!("within max(1.1 × UVA, UVA + 3 µs) in {met} of {} lines", it.results.len()));
        let best = it.results.iter().map(|point| point.bytes_per_second).fold(0.0, f64::max);
        section.headlines.push(format!("at best {} of rows delivered", Unit::PerSecond("B/s").show(best)));
    }
    for sweep in &it.sweeps {
        let of = |what: fn(&SweepPoint) -> f64| sweep.points.iter().map(move |it| (f64::from(it.gatherers), what(it)));
        let series = vec![
            line("rows, while they are fetched", of(|it| it.fetched_bytes_per_second)),
            line("output, over the whole look-up", of(|it| it.bytes_per_second)),
        ];
        let size = bytes(sweep.size as f64);
        let title = format!("{size}, rows of {} B, {} ids", sweep.row_bytes, binary(sweep.ids as f64));
        let unit = Unit::PerSecond("B/s");
        section.charts.push(Chart::Lines(Lines { title, x: "gathering blocks", unit, log: false, series }));
        section.headlines.push(match sweep.enough {
            Some(enough) => format!("{enough} gathering blocks reach 90 % of the best"),
            None => "no number of gathering blocks reaches 90 % of the best".to_owned(),
        });
    }
    let swept: u64 = it.sweeps.iter().map(|sweep| sweep.checked).sum();
    section.checked = it.results.iter().map(|point| point.checked).sum::<u64>() + swept;
    section
}

#[derive(Deserialize)]
pub(super) struct Lookup {
    gpu: String,
    small: Vec<Small>,
    split: Vec<Split>,
    calls: Vec<Call>,
    tables: Vec<Batch>,
    notes: Vec<String>,
}

#[derive(Deserialize)]
struct Percentiles {
    p50: f64,
    p99: f64,
}

#[derive(Deserialize)]
struct Small {
    tier: String,
    ids: u64,
    batches: u64,
    graph: Percentiles,
    graph_seen: Percentiles,
    uva_graph: Option<Percentiles>,
    aim_us: f64,
    checked: u64,
}

#[derive(Deserialize)]
struct Split {
    tier: String,
    spread: String,
    ids: u64,
    one: Percentiles,
    parts: Percentiles,
    penalty_us: f64,
    checked: u64,
}

#[derive(Deserialize)]
struct Call {
    what: String,
    kernels: usize,
    call_cpu_us: f64,
    graph_cpu_us: f64,
    checked: u64,
}

#[derive(Deserialize)]
struct Batch {
    #[serde(default)]
    shape: Option<String>,
    hbm: f64,
    memory: f64,
    batch: u64,
    hot: u64,
    scale: u64,
    seen_us: f64,
    prepare_us: f64,
    fetch_us: f64,
    expand_us: f64,
    ids_per_second: f64,
    host: Host,
    cpu_us: Option<f64>,
    ratio_host: f64,
    ratio_cpu: Option<f64>,
    checked: u64,
}

impl Batch {
    fn whose(&self) -> &'static str {
        match self.shape.as_deref() {
            Some("dynamicemb") => "DynamicEmb's",
            Some("nve") => "NVE's",
            _ => "Criteo's",
        }
    }
}

#[derive(Deserialize)]
struct Host {
    all: f64,
}

fn place(tier: &str) -> &str {
    match tier {
        "hbm" => "GPU memory",
        "dram" => "DRAM",
        other => other,
    }
}

pub(super) fn lookup(it: Lookup) -> Section {
    let mut section = Section {
        title: "Look-ups by a GPU".to_owned(),
        about: format!(
            "Whole look-ups on one {}: small ones, one table and 26, what calls cost, and tables shaped as others have them.",
            it.gpu
        ),
        emulated: vec![format!("Where rows lie on drives: {DRIVES}")],
        notes: it.notes,
        ..Section::default()
    };
    let mut bars = |title: &str, unit, groups: Vec<Group>| {
        if !groups.is_empty() {
            section.charts.push(Chart::Bars(Bars { title: title.to_owned(), unit, groups }));
        }
    };
    let small = it.small.iter().map(|small| {
        let mut bars = vec![
            Bar::ours("Warprow, median", small.graph.p50),
            Bar::ours("Warprow, 99 of 100", small.graph.p99),
            Bar::ours("Warprow, seen by its caller", small.graph_seen.p50),
        ];
        let uva = small.uva_graph.as_ref();
        bars.extend(uva.map(|uva| Bar::rival("UVA, median", uva.p50, times(uva.p50, small.graph.p50))));
        bars.push(Bar::rival("aim", small.aim_us, None));
        let label = format!(
            "{} ids, rows in {}, {} fresh batches",
            grouped(small.ids),
            place(&small.tier),
            grouped(small.batches)
        );
        Group { label, bars }
    });
    bars("Small look-ups, by the GPU; shorter is better", Unit::Micros, small.collect());
    let tables = it.tables.iter().map(|table| {
        let mut bars = vec![
            Bar::ours("Warprow, seen by its caller", table.seen_us),
            Bar::rival("host executor and a copy", table.host.all, Some(table.ratio_host)),
        ];
        let all = "all cores, all in DRAM, and a copy";
        bars.extend(table.cpu_us.map(|cpu| Bar::rival(all, cpu, table.ratio_cpu)));
        let summed = if table.hot > 1 { format!(" × {} summed", table.hot) } else { String::new() };
        let (whose, hbm) = (table.whose(), table.hbm * 100.0);
        let label = format!("{whose}: {} samples{summed}, {hbm:.1} % of rows in GPU memory", grouped(table.batch));
        Group { label, bars }
    });
    bars("Tables as others have them; shorter is better", Unit::Micros, tables.collect());
    let stages = it.tables.iter().map(|table| {
        let bars = [("deduplication", table.prepare_us), ("rows", table.fetch_us), ("output", table.expand_us)];
        let (samples, hbm) = (grouped(table.batch), table.hbm * 100.0);
        let label = format!("{}: {samples} samples × {}, {hbm:.1} % in GPU memory", table.whose(), table.hot);
        Group { label, bars: bars.map(|(who, time)| Bar::ours(who, time)).to_vec() }
    });
    bars("Where Warprow's time goes, by the GPU", Unit::Micros, stages.collect());
    let split = it.split.iter().map(|split| {
        let spread = if split.spread == "alone" { "all ids in one of them" } else { "ids spread over them" };
        let bars = vec![
            Bar::ours("26 tables", split.parts.p50),
            Bar::ours(format!("one table (26 cost {:+.1} µs)", split.penalty_us), split.one.p50),
        ];
        Group { label: format!("{} ids, rows in {}, {spread}", split.ids, place(&split.tier)), bars }
    });
    bars("One table and 26, median by the GPU", Unit::Micros, split.collect());
    let calls = it.calls.iter().map(|call| {
        let bars = vec![Bar::ours("a call", call.call_cpu_us), Bar::ours("a graph's launch", call.graph_cpu_us)];
        Group { label: format!("{}, {} kernels", call.what, call.kernels), bars }
    });
    bars("Processor time of the caller", Unit::Micros, calls.collect());
    for small in &it.small {
        let of = format!("{} ids in {}: median {:.1} µs", small.ids, place(&small.tier), small.graph.p50);
        section.headlines.push(format!("{of}, aim {:.1}", small.aim_us));
    }
    if let Some(most) = it.tables.iter().max_by(|a, b| a.ids_per_second.total_cmp(&b.ids_per_second)) {
        let rate = Unit::PerSecond("ids/s").show(most.ids_per_second);
        section.headlines.push(format!("tables like {}: up to {rate}", most.whose()));
        let (whose, memory) = (most.whose(), most.memory * 100.0);
        section.notes.push(format!("{whose} rows divided by {}, {memory:.0} % of them in memory.", most.scale));
    }
    let checked = it.small.iter().map(|it| it.checked).chain(it.split.iter().map(|it| it.checked));
    let checked = checked.chain(it.calls.iter().map(|it| it.checked)).chain(it.tables.iter().map(|it| it.checked));
    section.checked = checked.sum();
    section
}
