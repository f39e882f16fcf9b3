//! How many thread blocks have to gather.

use serde::{Deserialize, Serialize};
use warprow_workload::{median, mix_all};

use super::setup::DramSetup;
use super::table::{DramTable, store};
use crate::gpu::{Drawn, Request, Shape, Stream, TimedLookup, us};

/// One number of gathering blocks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct SweepPoint {
    /// Thread blocks, each on a multiprocessor of its own up to as many as there are.
    pub gatherers: u32,
    /// Median microseconds of the whole look-up as a graph, its launch hidden.
    pub lookup_us: f64,
    /// Median microseconds in which it fetches rows: there the gathering blocks work, and nobody else.
    pub fetch_us: f64,
    /// Bytes of output a second, of the whole look-up.
    pub bytes_per_second: f64,
    /// Different rows' bytes a second, while they are fetched.
    pub fetched_bytes_per_second: f64,
}

/// All of them, for one number of ids.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sweep {
    /// Bytes of the table.
    pub size: u64,
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Exponent of the power law.
    pub alpha: f64,
    /// Ids of a look-up.
    pub ids: u64,
    /// The numbers of blocks, ascending.
    pub points: Vec<SweepPoint>,
    /// The fewest that reach 90 % of the best rate at which rows are fetched.
    pub enough: Option<u32>,
    /// Rows compared.
    pub checked: u64,
}

impl Sweep {
    fn judge(mut self) -> Self {
        let best = self.points.iter().map(|point| point.fetched_bytes_per_second).fold(f64::NAN, f64::max);
        let enough = |point: &&SweepPoint| point.fetched_bytes_per_second >= 0.9 * best;
        self.enough = self.points.iter().find(enough).map(|point| point.gatherers);
        self
    }
}

/// Looks up the largest count of `setup` with each number of gathering blocks, always by way of deduplication: without it there are none.
pub fn sweep(stream: &Stream, setup: &DramSetup, gatherers: &[u32]) -> anyhow::Result<Vec<Sweep>> {
    let store = store(setup)?;
    let count = setup.most();
    let row_bytes = u64::from(setup.row_bytes);
    let mut sweeps: Vec<Sweep> = setup
        .alphas
        .iter()
        .map(|&alpha| Sweep {
            size: setup.size,
            row_bytes: setup.row_bytes,
            alpha,
            ids: count,
            points: Vec::new(),
            enough: None,
            checked: 0,
        })
        .collect();
    for &gatherers in gatherers {
        let with = DramSetup { gatherers, direct_ids: Some(0), ..setup.clone() };
        let table = DramTable::new(&store, stream, &with, count)?;
        for sweep in &mut sweeps {
            let drawn = Drawn::new(setup.content(), sweep.alpha)?;
            let seed = mix_all([setup.seed, gatherers.into(), sweep.alpha.to_bits()]);
            let mut request = Request::new(stream, &[drawn], count, count, seed)?;
            request.reshape(Shape::rows(count))?;
            let timed = TimedLookup::new(&table.plan, stream, &request)?;
            let mut lookups = Vec::new();
            let mut fetches = Vec::new();
            let mut rates = Vec::new();
            for run in 0..=setup.runs {
                request.draw(stream)?;
                let (took, report) = timed.replayed(stream)?;
                request.check(stream, 4)?;
                if run > 0 {
                    lookups.push(us(took));
                    fetches.push(us(report.fetch));
                    rates.push((report.rows_dram * row_bytes) as f64 / report.fetch.as_secs_f64());
                }
            }
            let lookup_us = median(lookups);
            sweep.points.push(SweepPoint {
                gatherers,
                lookup_us,
                fetch_us: median(fetches),
                bytes_per_second: request.out_bytes() as f64 / lookup_us * 1e6,
                fetched_bytes_per_second: median(rates),
            });
            sweep.checked += request.checked;
        }
    }
    Ok(sweeps.into_iter().map(Sweep::judge).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_that_are_enough() {
        let point = |gatherers, rate| SweepPoint {
            gatherers,
            lookup_us: 1.0,
            fetch_us: 1.0,
            bytes_per_second: 1.0,
            fetched_bytes_per_second: rate,
        };
        let points = vec![point(1, 5.0), point(2, 9.1), point(4, 10.0), point(8, 8.0)];
        let sweep = Sweep { size: 1, row_bytes: 4, alpha: 0.0, ids: 1, points, enough: None, checked: 0 };
        assert_eq!(sweep.judge().enough, Some(2));
    }
}
