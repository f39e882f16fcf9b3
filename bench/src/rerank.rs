//! Look-ups beside a DRAM tier that follows, against look-ups in calm times, on a drive with a real one's timing.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use warprow_lookup::{CounterOptions, HostOptions, RerankerOptions};
use warprow_soft_controller::TimingProfile;
use warprow_workload::{Latencies, PairedTimes};

use crate::fixtures::{Fixture, FixtureTable, Media};
use crate::lookup::{LookupSetup, Ours, Race, TABLE};

/// Batches between two looks at the clock.
const TURN: u64 = 16;
/// One id in so many is counted.
const EVERY: u32 = 4;

/// Look-ups in windows of calm, and in windows in each of which a round runs.
#[derive(Debug)]
pub struct RerankResult {
    /// How long calm windows are at least.
    pub interval: Duration,
    /// Bytes a second that a round reads and writes at most.
    pub rate: u64,
    /// Rows in DRAM.
    pub hot_rows: u64,
    /// Batches in calm windows.
    pub calm: Latencies,
    /// Batches beside rounds.
    pub beside: Latencies,
    /// The 99th percentiles of pairs of windows in microseconds, beside rounds first.
    pub p99_us: PairedTimes,
    /// Rounds that exchanged rows.
    pub rounds: u64,
    /// Rows that came to DRAM in these rounds.
    pub moved: u64,
    /// Rows compared.
    pub checked: u64,
}

/// Looks up batches of uniform ids for about `time`, in windows: in every second one a round of a reranker exchanges rows in DRAM, and the
/// window lasts as long as the round. Calm ones last as long as the round before, and `interval` at least. Which ids were counted most is
/// chance; so a batch finds as many of its rows in DRAM in all windows, and what differs is the disturbance.
pub fn run(
    setup: &LookupSetup,
    profile: TimingProfile,
    interval: Duration,
    time: Duration,
) -> anyhow::Result<RerankResult> {
    let setup = LookupSetup { alpha: 0.0, ..*setup };
    setup.check()?;
    let hot_rows = setup.hot_rows();
    ensure!(
        0 < hot_rows && hot_rows < setup.rows(),
        "{hot_rows} of {} rows in DRAM: some rows must be there, and some not",
        setup.rows()
    );
    ensure!(!interval.is_zero(), "an interval of 0: calm windows last for some time");
    let fixture = Fixture { media: Media::Ram, profile, room: 2, ..Fixture::default() };
    let table = FixtureTable { hot_rows, ..FixtureTable::new(TABLE, setup.content()) };
    let store = fixture.store(&[table], None).context("no drive in memory")?;
    let counters = CounterOptions::new(setup.rows() * 64).with_every(EVERY);
    let dram = hot_rows * u64::from(setup.dim) * 4;
    let mut ours = Ours::attach(&store, &setup, HostOptions::default().with_dram_bytes(dram).with_counters(counters))?;
    // A newcomer has come as often as who leaves: rows are exchanged in each round.
    let options = RerankerOptions::default().with_newcomer_factor(1.0);
    let rate = options.bytes_per_second;
    let mut race = Race::new(&setup, false)?;
    let mut next = 0;
    let mut window = |ours: &mut Ours, goes_on: &dyn Fn() -> bool| -> anyhow::Result<Latencies> {
        let mut latencies = Latencies::new();
        while goes_on() || latencies.count() == 0 {
            race.turn(ours, next, TURN, &mut latencies)?;
            next += TURN;
        }
        Ok(latencies)
    };
    let for_some = |length: Duration| {
        let began = Instant::now();
        move || began.elapsed() < length
    };
    window(&mut ours, &for_some(4 * interval))?;
    let (mut calm, mut beside) = (Latencies::new(), Latencies::new());
    let (mut rounds, mut moved) = (0, 0);
    let length = std::cell::Cell::new(interval);
    let shared = RefCell::new((&mut ours, &mut window));
    let p99_us = PairedTimes::alternate_for(
        time,
        3,
        |_| {
            let (ours, window) = &mut *shared.borrow_mut();
            let host = ours.host().clone();
            let over = AtomicBool::new(false);
            let began = Instant::now();
            let (latencies, round) = thread::scope(|scope| {
                let round = scope.spawn(|| {
                    let round = host.rerank_by_counts(&options);
                    over.store(true, Ordering::Relaxed);
                    round
                });
                let latencies = window(ours, &|| !over.load(Ordering::Relaxed));
                (latencies, round.join())
            });
            length.set(began.elapsed().max(interval));
            let (latencies, round) = (latencies?, round.ok().context("a round panicked")??);
            moved += round.rows();
            rounds += u64::from(round.rows() > 0);
            beside.add(&latencies);
            anyhow::Ok(latencies.percentile_us(99.0))
        },
        |_| {
            let (ours, window) = &mut *shared.borrow_mut();
            let latencies = window(ours, &for_some(length.get()))?;
            calm.add(&latencies);
            Ok(latencies.percentile_us(99.0))
        },
    )?;
    ensure!(
        rounds > 0,
        "no round exchanged rows: look-ups have counted no row twice, so give it longer intervals or more time"
    );
    let checked = race.checked;
    Ok(RerankResult { interval, rate, hot_rows, calm, beside, p99_us, rounds, moved, checked })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: LookupSetup = LookupSetup { size: 4 << 20, dim: 128, alpha: 0.0, batch: 200, hot: 0.1, seed: 3 };

    #[test]
    fn rows_are_exchanged_beside_look_ups() {
        let result = run(&SETUP, TimingProfile::None, Duration::from_millis(100), Duration::ZERO).unwrap();
        assert!(result.rounds > 0 && result.moved >= result.rounds, "{result:?}");
        assert_eq!((result.p99_us.pairs().len(), result.hot_rows), (3, 819));
        assert!(result.checked >= (result.calm.count() + result.beside.count()) * 200);
        assert!(result.calm.count() > 0 && result.beside.count() > 0);
    }

    #[test]
    fn what_cannot_follow_is_refused() {
        for (hot, interval) in [(0.0, 1), (1.0, 1), (0.5, 0)] {
            let setup = LookupSetup { hot, ..SETUP };
            assert!(run(&setup, TimingProfile::None, Duration::from_millis(interval), Duration::ZERO).is_err());
        }
    }
}
