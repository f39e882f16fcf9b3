//! `bench-dram`.

use std::collections::BTreeMap;

use warprow_workload::units::bytes;

use super::figures::{BYTES, bars, law, line};
use super::section::Section;
use crate::gpu::dram::{DramResult, SweepPoint};
use crate::report::chart::binary;
use crate::report::{Bar, Chart, Group, Lines, Unit};
use crate::results::DramLookups;

pub(super) fn dram(it: DramLookups) -> Section {
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
    let mut tables: BTreeMap<(u64, u32, u64), Vec<&DramResult>> = BTreeMap::new();
    for point in &it.results {
        tables.entry((point.size, point.row_bytes, point.alpha.to_bits())).or_default().push(point);
    }
    for points in tables.values() {
        let Some(first) = points.first() else { continue };
        let of = |what: fn(&DramResult) -> Option<f64>| {
            points.iter().filter_map(move |point| Some((point.ids as f64, what(point)?)))
        };
        // All by the caller's clock: rivals that are no kernels have no other.
        let series = [
            line("Warprow", of(|result| Some(result.us.lookup_graph_seen))),
            line("UVA", of(|result| Some(result.us.uva_graph_seen))),
            line("CPU and a copy", of(|result| Some(result.us.cpu))),
            line("batch of copies", of(|result| result.us.batch_copy)),
            line("F.embedding and a copy", of(|result| result.torch_embedding_us)),
            line("index_select and a copy", of(|result| result.torch_index_us)),
        ];
        let table = format!("{}, rows of {} B, {}", bytes(first.size), first.row_bytes, law(first.alpha));
        let series = series.into_iter().filter(|series| !series.points.is_empty()).collect();
        section.charts.push(Chart::Lines(Lines { title: table, x: "ids", unit: Unit::Micros, log: true, series }));
    }
    let groups = tables.values().filter_map(|points| {
        let most = points.iter().max_by_key(|point| point.ids)?;
        let ours = most.us.lookup_graph;
        let label = format!(
            "{}, rows of {} B, {}, {} ids",
            bytes(most.size),
            most.row_bytes,
            law(most.alpha),
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
        section.charts.push(bars("The most ids of each table; shorter is better", Unit::Micros, groups));
        let met = it.results.iter().filter(|point| point.met).count();
        section.headlines.push(format!("within max(1.1 × UVA, UVA + 3 µs) in {met} of {} lines", it.results.len()));
        let best = it.results.iter().map(|point| point.bytes_per_second).fold(0.0, f64::max);
        section.headlines.push(format!("at best {} of rows delivered", BYTES.show(best)));
    }
    for sweep in &it.sweeps {
        let of = |what: fn(&SweepPoint) -> f64| {
            sweep.points.iter().map(move |point| (f64::from(point.gatherers), what(point)))
        };
        let series = vec![
            line("rows, while they are fetched", of(|point| point.fetched_bytes_per_second)),
            line("output, over the whole look-up", of(|point| point.bytes_per_second)),
        ];
        let size = bytes(sweep.size);
        let title = format!("{size}, rows of {} B, {} ids", sweep.row_bytes, binary(sweep.ids as f64));
        let unit = BYTES;
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
