//! `bench-lookup --gpu`.

use warprow_workload::units::count;

use super::figures::{GPU_DRIVES, IDS, bars, times};
use super::section::Section;
use crate::gpu::criteo::{CriteoResult, Spread};
use crate::report::{Bar, Group, Unit};
use crate::results::GpuLookups;

/// Who published the tables.
fn whose(table: &CriteoResult) -> String {
    format!("{}'s", table.shape.name())
}

pub(super) fn lookup_gpu(it: GpuLookups) -> Section {
    let mut section = Section {
        title: "Look-ups by a GPU".to_owned(),
        about: format!(
            "Whole look-ups on one {}: small ones, one table and 26, what calls cost, and tables shaped as others have them.",
            it.gpu
        ),
        emulated: vec![format!("Where rows lie on drives: {GPU_DRIVES}")],
        notes: it.notes,
        ..Section::default()
    };
    let mut compare = |title: &str, unit, groups: Vec<Group>| {
        if !groups.is_empty() {
            section.charts.push(bars(title, unit, groups));
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
        let label =
            format!("{} ids, rows in {}, {} fresh batches", count(small.ids), small.tier.name(), count(small.batches));
        Group { label, bars }
    });
    compare("Small look-ups, by the GPU; shorter is better", Unit::Micros, small.collect());
    let tables = it.tables.iter().map(|table| {
        let mut bars = vec![
            Bar::ours("Warprow, seen by its caller", table.seen_us),
            Bar::rival("host executor and a copy", table.host.all, Some(table.ratio_host)),
        ];
        let all = "all cores, all in DRAM, and a copy";
        bars.extend(table.cpu_us.map(|cpu| Bar::rival(all, cpu, table.ratio_cpu)));
        let summed = if table.hot > 1 { format!(" × {} summed", table.hot) } else { String::new() };
        let whose = whose(table);
        let hbm = table.hbm * 100.0;
        let label = format!("{whose}: {} samples{summed}, {hbm:.1} % of rows in GPU memory", count(table.batch));
        Group { label, bars }
    });
    compare("Tables as others have them; shorter is better", Unit::Micros, tables.collect());
    let stages = it.tables.iter().map(|table| {
        let bars = [("deduplication", table.prepare_us), ("rows", table.fetch_us), ("output", table.expand_us)];
        let samples = count(table.batch);
        let hbm = table.hbm * 100.0;
        let label = format!("{}: {samples} samples × {}, {hbm:.1} % in GPU memory", whose(table), table.hot);
        Group { label, bars: bars.map(|(who, time)| Bar::ours(who, time)).to_vec() }
    });
    compare("Where Warprow's time goes, by the GPU", Unit::Micros, stages.collect());
    let split = it.split.iter().map(|split| {
        let spread = if split.spread == Spread::Alone { "all ids in one of them" } else { "ids spread over them" };
        let bars = vec![
            Bar::ours("26 tables", split.parts.p50),
            Bar::ours(format!("one table (26 cost {:+.1} µs)", split.penalty_us), split.one.p50),
        ];
        Group { label: format!("{} ids, rows in {}, {spread}", split.ids, split.tier.name()), bars }
    });
    compare("One table and 26, median by the GPU", Unit::Micros, split.collect());
    let calls = it.calls.iter().map(|call| {
        let bars = vec![Bar::ours("a call", call.call_cpu_us), Bar::ours("a graph's launch", call.graph_cpu_us)];
        Group { label: format!("{}, {} kernels", call.what, call.kernels), bars }
    });
    compare("Processor time of the caller", Unit::Micros, calls.collect());
    for small in &it.small {
        let of = format!("{} ids in {}: median {:.1} µs", small.ids, small.tier.name(), small.graph.p50);
        section.headlines.push(format!("{of}, aim {:.1}", small.aim_us));
    }
    if let Some(most) = it.tables.iter().max_by(|a, b| a.ids_per_second.total_cmp(&b.ids_per_second)) {
        let rate = IDS.show(most.ids_per_second);
        section.headlines.push(format!("tables like {}: up to {rate}", whose(most)));
        let whose = whose(most);
        let memory = most.memory * 100.0;
        section.notes.push(format!("{whose} rows divided by {}, {memory:.0} % of them in memory.", most.scale));
    }
    let checked = it.small.iter().map(|result| result.checked).chain(it.split.iter().map(|result| result.checked));
    let checked =
        checked.chain(it.calls.iter().map(|call| call.checked)).chain(it.tables.iter().map(|table| table.checked));
    section.checked = checked.sum();
    section
}
