//! What `warprow plan` says in the end.

use warprow_plan::{
    Ahead, Bottleneck, BudgetPoint, CacheComparison, ExpectedLookups, GpuCacheComparison, HitInterval, MemoryRates,
    OrderedProposal, ProposalOptions, TierProposal,
};
use warprow_workload::units;

use super::arguments::PlanArgs;
use crate::columns::LookupTrace;
use crate::report::{printable, table};

/// An error of the share in memory that is worth a warning.
const UNPREDICTABLE: f64 = 0.02;

/// An error of a share from which on it says nothing of it.
const UNKNOWN: f64 = 1.0;

fn percent(share: f64) -> String {
    let text = format!("{:.1}%", share * 100.0);
    if text == "-0.0%" { "0.0%".to_owned() } else { text }
}

/// The error of a share, in parentheses.
fn error(share: f64) -> String {
    match share.abs() < UNKNOWN {
        true => format!("(± {})", percent(share)),
        false => "(error unknown: too little was held out)".to_owned(),
    }
}

/// Where the share in memory will be, and for how many traces that holds.
fn intervals(intervals: &[HitInterval]) -> String {
    let known = intervals.iter().filter(|interval| interval.high - interval.low < UNKNOWN);
    let lines = known.map(|interval| {
        format!(
            "\nof the {} that follow: {} to {} from memory, for {} of unseen traces ({} measured)",
            units::plural(interval.queries, "query"),
            percent(interval.low),
            percent(interval.high),
            percent(interval.coverage).replace(".0%", "%"),
            percent(interval.measured).replace(".0%", "%"),
        )
    });
    lines.collect()
}

/// What `warprow plan` says to people.
pub(super) fn text(
    args: &PlanArgs,
    proposal: &OrderedProposal,
    (rates, cache, gpu_cache): (Option<&MemoryRates>, Option<&CacheComparison>, Option<&GpuCacheComparison>),
    options: &ProposalOptions,
    logs: &[LookupTrace],
) -> String {
    let tiers = &proposal.tiers;
    let mut text = format!("{}\n\n{}", learnt(tiers), tables(tiers));
    text += &format!("\n\n{}", expected(&tiers.expected));
    if options.budgets.hbm > 0 {
        text += "\n(the GPU's own time: as measured on an H200)";
    }
    text += &format!("\n\nother budgets, on {}:\n{}", tiers.drives.profile, budgets(tiers));
    text += &rates.map_or_else(String::new, |rates| format!("\n\n{}", memory(rates)));
    text += &cache.map_or_else(String::new, |cache| format!("\n\n{}", compared(cache)));
    text += &gpu_cache.map_or_else(String::new, |cache| format!("\n\n{}", compared_on_gpu(cache)));
    for (path, what) in [(&args.out, "the plan is in"), (&args.svg, "the curves are in")] {
        text += &path.as_ref().map_or_else(String::new, |path| format!("\n{what} {}", path.display()));
    }
    for log in logs {
        let parts = [Some(log.text()).filter(|text| !text.is_empty()), log.unused_text()];
        parts.into_iter().flatten().for_each(|part| text += &format!("\n{part}"));
    }
    text
}

/// How much of what the proposal is learnt from.
fn learnt(tiers: &TierProposal) -> String {
    let trace = &tiers.trace;
    let mut text = format!(
        "Planned by {} in {}, the last {} of them held out",
        units::plural(trace.ids, "id"),
        units::plural(trace.queries, "query"),
        units::count(trace.held_out)
    );
    if trace.missing > 0 {
        text += &format!("; {} of the ids are in no table", units::count(trace.missing));
    }
    text
}

/// The rows of each table in each tier, and whether rows that are looked up together share LBAs.
fn tables(tiers: &TierProposal) -> String {
    let mut text = table(
        ["table", ">rows", ">dim", "type", ">looked up", ">in GPU memory", ">in DRAM", ">on drives", ">count error"],
        tiers.tables.iter().map(|table| {
            [
                table.name.clone(),
                units::count(table.rows),
                table.dim.to_string(),
                table.dtype.clone(),
                units::count(table.seen_rows),
                units::count(table.hbm_rows),
                units::count(table.dram_rows),
                units::count(table.rows - table.hbm_rows - table.dram_rows),
                table.count_error.to_string(),
            ]
        }),
    );
    for it in &tiers.tables {
        let Some(grouping) = it.grouping else { continue };
        text += &format!(
            "\n{}: rows looked up together {} LBAs: {} of read commands and {} of bytes {} {}",
            printable(&it.name),
            if grouping.applied { "share" } else { "do not share" },
            percent(grouping.commands_saved),
            percent(grouping.bytes_saved),
            if grouping.applied { "saved" } else { "would be saved" },
            error(2.0 * grouping.error),
        );
    }
    text
}

/// What look-ups will find in memory, what they read, and how many there are in a second.
fn expected(expected: &ExpectedLookups) -> String {
    let mut text = format!(
        "expected of ids: {} from GPU memory, {} from DRAM, {} from drives {}",
        percent(expected.hbm),
        percent(expected.dram),
        percent(expected.ssd),
        error(expected.error)
    );
    text += &intervals(&expected.intervals);
    if expected.drift > UNPREDICTABLE {
        text += &format!(
            "\nwhat is looked up changes, and few rows take much of it: the share in memory may be off by {}",
            if expected.drift < UNKNOWN { percent(expected.drift) } else { "any amount".to_owned() }
        );
    }
    text += &format!(
        "\na look-up of {:.0} ids reads {:.1} rows by {:.1} commands, {}, {:.2} bytes for each byte used",
        expected.ids,
        expected.rows_ssd,
        expected.commands,
        units::bytes(expected.bytes as u64),
        expected.amplification
    );
    let waits = match expected.bound {
        Bottleneck::Drives => "waits for drives",
        Bottleneck::Host => "waits for the processor",
        Bottleneck::Gpu => "waits for the GPU",
        Bottleneck::Unknown => "the rate is not known",
    };
    text + &format!(
        "\none slot: {} look-ups/s, {} ids/s, {} reads/s on each drive; it {waits}",
        units::short(expected.lookups_per_second),
        units::short(expected.ids_per_second),
        units::short(expected.iops_per_drive)
    )
}

/// What memory of the sizes asked for would give.
fn memory(rates: &MemoryRates) -> String {
    let share = |part: u64, all: u64| percent(part as f64 / all.max(1) as f64);
    let text = format!(
        "held out: {}, of {} different rows ({}), {} of the ids different in their look-up; {} of the ids are of rows that were looked up before\n",
        units::plural(rates.ids, "id"),
        units::count(rates.different),
        share(rates.different, rates.ids),
        share(rates.rows, rates.ids),
        percent(rates.known)
    );
    let columns = [
        ">memory",
        ">hottest rows, DRAM",
        ">hottest rows, GPU memory",
        ">row cache",
        ">hottest rows, of different",
        ">row cache, of different",
    ];
    let rows = rates.rates.iter().map(|rate| {
        let shares = [rate.dram, rate.hbm, rate.cache, rate.dram_rows, rate.cache_rows].map(percent);
        let [dram, hbm, cache, dram_rows, cache_rows] = shares;
        [units::bytes(rate.bytes), dram, hbm, cache, dram_rows, cache_rows]
    });
    text + &table(columns, rows)
}

/// How a row cache does beside a DRAM tier of the same bytes.
fn compared(cache: &CacheComparison) -> String {
    let known = cache.error();
    let text = format!(
        "{} of memory, of the ids held out: {} as a row cache, {} as a DRAM tier of the hottest rows {}\n\
         of different rows of look-ups, which drives are asked for: {} and {}\n",
        units::bytes(cache.bytes),
        percent(cache.cache),
        percent(cache.tier),
        error(known.unwrap_or(UNKNOWN)),
        percent(cache.cache_rows),
        percent(cache.tier_rows),
    );
    text + match cache.ahead {
        Ahead::Cache => {
            "the row cache is ahead by more than the error: give an executor cache_bytes (`lookup --cache`)"
        }
        Ahead::Tier => "the DRAM tier is ahead by more than the error: give an executor dram_bytes (`lookup --dram`)",
        Ahead::Neither if known.is_none() => "which is better cannot be told: too little was held out",
        Ahead::Neither => "neither is ahead by more than the error: a DRAM tier costs look-ups less than a row cache",
    }
}

/// How a cache in GPU memory does beside the hottest rows there, of the same bytes.
fn compared_on_gpu(cache: &GpuCacheComparison) -> String {
    let known = cache.error();
    let text = format!(
        "{} of GPU memory, of the ids held out: {} as a cache of each row that was read, {} as a cache with a sketch, {} as a tier of \
         the hottest rows {}\n\
         of different rows of look-ups, which drives are asked for: {}, {} and {}\n",
        units::bytes(cache.bytes),
        percent(cache.always),
        percent(cache.sketch),
        percent(cache.tier),
        error(known.unwrap_or(UNKNOWN)),
        percent(cache.always_rows),
        percent(cache.sketch_rows),
        percent(cache.tier_rows),
    );
    text + match cache.ahead {
        Ahead::Cache if cache.sketch >= cache.always => {
            "the cache with a sketch is ahead by more than the error: give an executor on a GPU cache_bytes, and cache_admission \"sketch\""
        }
        Ahead::Cache => "the cache is ahead by more than the error: give an executor on a GPU cache_bytes",
        Ahead::Tier => "the tier is ahead by more than the error: give an executor on a GPU hbm_bytes (`lookup --hbm`)",
        Ahead::Neither if known.is_none() => "which is better cannot be told: too little was held out",
        Ahead::Neither => "neither is ahead by more than the error: a tier costs look-ups less than a cache",
    }
}

/// About ten of the points, and the proposal's own.
fn budgets(tiers: &TierProposal) -> String {
    // What passes all rows is as good as memory for them.
    let chosen = tiers.memory_for_rows().min(tiers.curve.last().map_or(0, |point| point.bytes));
    let step = tiers.curve.len().div_ceil(10).max(1);
    let last = tiers.curve.len().saturating_sub(1);
    let kept = |(at, point): &(usize, &BudgetPoint)| at % step == 0 || *at == last || point.bytes == chosen;
    let rows = tiers.curve.iter().enumerate().filter(kept).map(|(_, point)| {
        let rates = point.rates.iter().map(|rate| match rate.ids_per_second > 0.0 {
            true => format!("{}: {}", rate.drives, units::short(rate.ids_per_second)),
            false => format!("{}: –", rate.drives),
        });
        let mark = if point.bytes == chosen { " *" } else { "" };
        [
            units::bytes(point.bytes) + mark,
            percent(point.hit),
            format!("{:.1}", point.commands),
            rates.collect::<Vec<_>>().join("   "),
        ]
    });
    table([">memory for rows", ">ids from memory", ">commands a look-up", "ids/s by number of drives"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_say_for_how_many_traces_they_hold() {
        let interval = |queries, low, high| HitInterval { queries, coverage: 0.9, measured: 0.915, low, high };
        assert_eq!(
            intervals(&[interval(1000, 0.5, 0.625), interval(5000, 0.0, 1.0)]),
            "\nof the 1,000 queries that follow: 50.0% to 62.5% from memory, for 90% of unseen traces (91.5% measured)"
        );
    }

    #[test]
    fn shares_and_their_errors_are_said_as_far_as_they_say_something() {
        assert_eq!([percent(-0.0004), percent(-0.0006), percent(0.25)], ["0.0%", "-0.1%", "25.0%"]);
        assert_eq!(error(0.013), "(± 1.3%)");
        for useless in [2.277, 1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(error(useless), "(error unknown: too little was held out)");
        }
    }
}
