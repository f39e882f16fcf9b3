//! Rows that share read commands, each way beside the others, on a drive with a real one's timing.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::Context;
use warprow_lookup::ReadMerging;
use warprow_soft_controller::TimingProfile;
use warprow_store::ReadCurve;
use warprow_workload::{Latencies, PairedTimes};

use crate::Cores;
use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::lookup::{LookupSetup, Ours, Race, TABLE};

/// Batches of a turn.
const TURN: u64 = 4;

/// One way.
#[derive(Debug)]
pub struct Way {
    /// The way's name.
    pub name: &'static str,
    /// Median ids a second.
    pub ids_per_second: f64,
    /// Commands, and bytes read, of a batch, on average.
    pub commands: f64,
    /// See `commands`.
    pub bytes: f64,
    /// How many times as many ids a second the drive's curve reaches, in pairs of turns; `None`: it is that.
    pub curve_to_it: Option<PairedTimes>,
    /// Latencies of batches.
    pub latencies: Latencies,
}

/// All ways.
#[derive(Debug)]
pub struct MergingResult {
    /// Separate, neighbours, by the curve.
    pub ways: Vec<Way>,
    /// The drive's read curve, as it was measured; `None`: it could not be, and neighbours stand in for it.
    pub curve: Option<ReadCurve>,
    /// Rows in DRAM.
    pub hot_rows: u64,
    /// Rows compared.
    pub checked: u64,
}

/// Looks up the same batches in each way, in turns, for about `time`, on a drive with the timing of `profile` whose rows are computed.
pub fn run(setup: &LookupSetup, profile: TimingProfile, time: Duration) -> anyhow::Result<MergingResult> {
    setup.check()?;
    let cores = Cores::two();
    let fixture = Fixture { media: Media::Computed, profile, ..Fixture::default() };
    let store =
        fixture.store(&[FixtureTable::new(TABLE, setup.content())], cores.as_ref()).context("no computed drive")?;
    let hot_rows = setup.hot_rows();
    let race = RefCell::new(Race::new(setup, false)?);
    let (mut by_curve, curve) = Ours::merging(&store, setup, hot_rows, ReadMerging::Measured)?;
    // What commands and bytes a batch takes, of one way: the same batches each time.
    let count = |ours: &mut Ours| -> anyhow::Result<(f64, f64)> {
        let before = ours.metrics();
        race.borrow_mut().turn(ours, u64::MAX - TURN, TURN, &mut Latencies::new())?;
        let after = ours.metrics();
        let each = |before: u64, after: u64| (after - before) as f64 / TURN as f64;
        Ok((each(before.commands, after.commands), each(before.bytes_read, after.bytes_read)))
    };
    let mut ways = Vec::new();
    let mut rates = Vec::new();
    let mut latencies = Latencies::new();
    for (name, merging) in [("separate", ReadMerging::Separate), ("neighbours", ReadMerging::Neighbours)] {
        let mut ours = Ours::merging(&store, setup, hot_rows, merging)?.0;
        let (commands, bytes) = count(&mut ours)?;
        count(&mut by_curve)?;
        let mut theirs = Latencies::new();
        let turn = |ours: &mut Ours, pair: u32, latencies: &mut Latencies| {
            race.borrow_mut().turn(ours, u64::from(pair) * TURN, TURN, latencies)
        };
        let pairs = PairedTimes::alternate_for(
            time / 2,
            3,
            |pair| turn(&mut by_curve, pair, &mut latencies),
            |pair| turn(&mut ours, pair, &mut theirs),
        )?;
        rates.extend(pairs.pairs().iter().map(|pair| pair.0));
        let ids_per_second = pairs.median_b();
        let curve_to_it = Some(pairs);
        ways.push(Way { name, ids_per_second, commands, bytes, curve_to_it, latencies: theirs });
    }
    let (commands, bytes) = count(&mut by_curve)?;
    let ids_per_second = warprow_workload::median(rates);
    ways.push(Way { name: "curve", ids_per_second, commands, bytes, curve_to_it: None, latencies });
    let checked = race.borrow().checked;
    Ok(MergingResult { ways, curve, hot_rows, checked })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_answers_and_is_checked() {
        let setup = LookupSetup { size: 2 << 20, dim: 128, alpha: 0.0, batch: 1000, hot: 0.1, seed: 3 };
        let result = run(&setup, TimingProfile::Gen5Tlc, Duration::ZERO).unwrap();
        let [separate, neighbours, curve] = &result.ways[..] else { panic!("three ways") };
        assert!(result.checked >= 5 * 3 * TURN * 1000);
        assert!(curve.commands <= neighbours.commands && neighbours.commands < separate.commands);
        assert!(neighbours.bytes == separate.bytes && separate.bytes <= curve.bytes);
        assert!(separate.curve_to_it.as_ref().unwrap().pairs().len() == 3 && curve.curve_to_it.is_none());
    }
}
