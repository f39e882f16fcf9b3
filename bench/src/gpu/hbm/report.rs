//! What `bench-hbm` prints.

use std::fmt::Write;

use super::cached::CacheMeasured;
use super::{AIM, HbmResult};
use crate::output::{per_second, table};

/// Times, PyTorch's, and shares.
pub fn show(results: &[HbmResult], copy: f64) -> Result<String, std::fmt::Error> {
    let us = |time: f64| format!("{time:.1}");
    let maybe = |time: Option<f64>| time.map_or_else(String::new, us);
    let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
    let lines = results.iter().map(|result| {
        let torch = result.torch.as_ref();
        let verdict = match result.met {
            None => "",
            Some(true) => " met",
            Some(false) => " NOT met",
        };
        [
            format!("{}, {} ids, alpha {}", if result.pooled { "sums" } else { "rows" }, result.ids, result.alpha),
            us(result.us.graph),
            us(result.us.called),
            maybe(torch.and_then(|torch| torch.graph_us)),
            maybe(torch.map(|torch| torch.called_us)),
            ratio(result.ratio) + verdict,
            us(result.us.called_seen),
            maybe(torch.map(|torch| torch.called_seen_us)),
            ratio(result.ratio_seen),
            per_second(result.ids_per_second),
            per_second(result.bytes_per_second),
            format!("{:.0} %", result.share_of_copy * 100.0),
        ]
    });
    let header = [
        "look-up",
        "graph",
        "called",
        "torch, graph",
        "torch, called",
        "×",
        "seen",
        "torch, seen",
        "×",
        "ids/s",
        "B/s",
        "of a copy",
    ];
    let mut text =
        "By the GPU, launches hidden; seen: by the caller's clock. Median us. Sums against embedding_bag, rows \
                    against F.embedding.\n"
            .to_owned();
    writeln!(text, "{}", table(header, lines))?;
    let (checked, spots): (u64, u64) =
        results.iter().fold((0, 0), |(all, spots), it| (all + it.checked, spots + it.checked_by_cpu));
    writeln!(text, "A copy within GPU memory reads and writes {}B/s.", per_second(copy))?;
    writeln!(text, "{checked} sums and rows compared, all of every answer, {spots} of them by the processor too.")?;
    let known = results.iter().filter_map(|result| result.met);
    match known.clone().count() {
        0 => {}
        all => {
            writeln!(text, "{AIM} times as fast as PyTorch in {} of {all} lines.", known.filter(|met| *met).count())?
        }
    }
    Ok(text)
}

/// Times of a cache, and shares.
pub fn show_cache(cache: &CacheMeasured) -> Result<String, std::fmt::Error> {
    let us = |time: f64| format!("{time:.1}");
    let lines = cache.hits.iter().map(|result| {
        [
            format!("{}, alpha {}", if result.pooled { "sums" } else { "rows" }, result.alpha),
            us(result.direct.graph),
            us(result.fixed.graph),
            us(result.cached.graph),
            us(result.renewed.graph),
            us(result.direct.called_seen),
            us(result.fixed.called_seen),
            us(result.cached.called_seen),
            format!("{:.4} %", result.hits * 100.0),
            format!("{:.0} %", result.of_fixed * 100.0),
            format!("{:.0} %", result.of_direct * 100.0),
        ]
    });
    let header = [
        "look-up",
        "hot, one kernel",
        "hot",
        "cached",
        "each stamp moved",
        "seen: hot, one kernel",
        "hot",
        "cached",
        "hits",
        "of hot",
        "of one kernel",
    ];
    let mut text = format!(
        "A cache of {} lines. Median us, as graphs by the GPU, and as calls by the caller's clock.\n",
        cache.lines
    );
    writeln!(text, "{}", table(header, lines))?;
    let lines = cache.misses.iter().map(|result| {
        let [without, with] = result.us;
        let stages = |times: [f64; 3]| times.map(us).join(" + ");
        let [before, after] = result.stages.map(stages);
        [result.ids.to_string(), us(without), us(with), us(with - without), before, after, result.hits.to_string()]
    });
    writeln!(text, "Rows that no cache has, on drives that the GPU plays. Median us of calls, by the caller's clock.")?;
    let header =
        ["ids", "without a cache", "with one", "more", "by the GPU: find, fetch, write", "the same with one", "hits"];
    writeln!(text, "{}", table(header, lines))?;
    let checked =
        cache.hits.iter().map(|it| it.checked).sum::<u64>() + cache.misses.iter().map(|it| it.checked).sum::<u64>();
    writeln!(text, "{checked} sums and rows compared, all of every answer.")?;
    Ok(text)
}
