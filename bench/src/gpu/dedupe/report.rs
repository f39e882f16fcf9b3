//! What `bench-dedupe` prints.

use std::fmt::Write;

use super::DedupeResult;
use crate::output::table;

/// A choice that takes so much longer than the best is told.
const TOLD: f64 = 1.1;

const WAYS: [&str; 4] = ["block", "bitmap", "hash", "radix"];

/// Times of every way, the best beside the chosen; and where one takes over from another.
pub fn show(results: &[DedupeResult]) -> Result<String, std::fmt::Error> {
    let lines = results.iter().map(|result| {
        let time = |way: &str| {
            let found = result.ways.iter().find(|times| times.way == way);
            found.map_or_else(String::new, |times| format!("{:.1} / {:.1}", times.us, times.unique_us))
        };
        let [block, bitmap, hash, radix] = WAYS.map(time);
        [
            format!("{} rows, alpha {}", result.rows, result.alpha),
            result.tier.clone(),
            result.ids.to_string(),
            result.uniques.to_string(),
            block,
            bitmap,
            hash,
            radix,
            result.best.clone(),
            result.chosen.clone(),
            format!("{:.2}", result.over_best),
        ]
    });
    let header =
        ["table", "in", "ids", "unique", "block", "bitmap", "hash", "radix", "best", "chosen", "chosen by best"];
    let mut text = "Median us of a look-up / until unique keys are known, by the GPU, launches hidden.\n".to_owned();
    writeln!(text, "{}", table(header, lines))?;
    for (rows, alpha, crossovers) in crossovers(results) {
        writeln!(text, "{rows} rows, alpha {alpha}: best is {crossovers}")?;
    }
    let over: Vec<_> = results.iter().filter(|result| result.over_best > TOLD).collect();
    for it in &over {
        writeln!(
            text,
            "The choice is not the best: {} ids of {} rows, alpha {}: {} takes {:.2} times as long as {}.",
            it.ids, it.rows, it.alpha, it.chosen, it.over_best, it.best
        )?;
    }
    let sum = |of: fn(&DedupeResult) -> u64| results.iter().map(of).sum::<u64>();
    writeln!(
        text,
        "{} positions and uniques compared, all of some batches; {} output rows, all of every batch of rows in memory.",
        sum(|result| result.compared),
        sum(|result| result.rows_compared)
    )?;
    Ok(text)
}

/// Of each table and law, which way is best from how many ids on.
pub fn crossovers(results: &[DedupeResult]) -> Vec<(u64, f64, String)> {
    let mut all: Vec<(u64, f64, String)> = Vec::new();
    let mut last = "";
    for it in results {
        match all.last_mut() {
            Some((rows, alpha, text)) if (*rows, *alpha) == (it.rows, it.alpha) => {
                if it.best != last {
                    *text += &format!(", {} from {} ids", it.best, it.ids);
                }
            }
            _ => all.push((it.rows, it.alpha, format!("{} from {} ids", it.best, it.ids))),
        }
        last = &it.best;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::dedupe::WayTimes;

    fn result(rows: u64, ids: u64, bitmap: f64, radix: f64) -> DedupeResult {
        let best = if bitmap < radix { "bitmap" } else { "radix" };
        let time = |way: &str, us| WayTimes { way: way.to_owned(), us, unique_us: us / 2.0 };
        DedupeResult {
            tier: "memory".to_owned(),
            rows,
            ids,
            alpha: 0.0,
            uniques: ids,
            ways: vec![time("bitmap", bitmap), time("radix", radix)],
            best: best.to_owned(),
            chosen: "bitmap".to_owned(),
            over_best: bitmap / bitmap.min(radix),
            compared: 10,
            rows_compared: 5,
        }
    }

    #[test]
    fn the_crossover_stands_beside_the_choice() {
        let results = [result(1024, 10, 1.0, 2.0), result(1024, 100, 3.0, 2.0), result(2048, 10, 1.0, 4.0)];
        let crossovers = crossovers(&results);
        assert_eq!(crossovers[0], (1024, 0.0, "bitmap from 10 ids, radix from 100 ids".to_owned()));
        assert_eq!(crossovers[1], (2048, 0.0, "bitmap from 10 ids".to_owned()));
        let text = show(&results).unwrap();
        assert!(text.contains("100 ids of 1024 rows, alpha 0: bitmap takes 1.50 times as long as radix"), "{text}");
        assert_eq!(text.matches("The choice is not the best").count(), 1, "{text}");
        assert!(text.contains("30 positions and uniques compared") && text.contains("15 output rows"), "{text}");
    }
}
