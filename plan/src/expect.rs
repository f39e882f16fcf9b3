//! What look-ups will do, by what those held out did.

use std::time::Duration;

use warprow_workload::mix_all;

use crate::backtest::Hit;
use crate::budget::{MemoryBudgets, allocate};
use crate::costs::LookupDemand;
use crate::drives::{AlikeDrives, ChunkMap, DriveRead};
use crate::lookup::{LookupTime, LookupWork, simulate_lookup};
use crate::order::HotnessOrder;
use crate::propose::Proposer;
use crate::replay::{BatchCounts, KeptBatch, TraceReplay};
use crate::tier_proposal::{Bottleneck, BudgetPoint, DriveRate, ExpectedLookups};

/// Reads that a rate is made of: enough to meet the slow ones as often as they come.
const REHEARSED: u64 = 1 << 14;
/// Reads that the rate at each point of a curve is made of.
const SKETCHED: u64 = 1 << 13;
/// Points of a curve.
const POINTS: i32 = 24;
/// A share of the time that is spent waiting, from which on drives are what look-ups wait for.
const WAITING: f64 = 0.4;

impl Proposer<'_> {
    /// `memory` is the share of ids in memory that is to be expected, with its error; the replay's own is that of less data.
    pub(crate) fn expect(&self, replay: &TraceReplay<'_>, hot: &[u64], memory: &Hit) -> ExpectedLookups {
        let total = replay.total();
        let of = |count: u64| count as f64 / replay.batches().max(1) as f64;
        let share = |count: u64| count as f64 / total.ids.max(1) as f64;
        let hit = 1.0 - share(total.ids_ssd);
        let better = memory.rate;
        let hbm = share(total.ids_hbm) * if hit > 0.0 { better / hit } else { 1.0 };
        let cold = if hit < 1.0 { (1.0 - better) / (1.0 - hit) } else { 1.0 };
        let samples = replay.samples();
        // More reads than there were are as many, each for longer.
        let made = cold.min(1.0);
        let longer = cold.max(1.0);
        let mut took = LookupTime::default();
        let mut ids = 0.0;
        let commands: u64 = samples.iter().map(|kept| kept.sample.commands).sum();
        let turns = (4 * REHEARSED / commands.max(1)).clamp(1, 16);
        let site = self.site(self.options.drives.count);
        for (first, kept) in (0..).step_by(turns as usize).zip(samples) {
            let work = self.work(&kept.sample.asked(made));
            for turn in first..first + turns {
                let of_turn = self.took(&site, &work, replay, kept, hot, made, turn);
                (took.time, took.waited) = (took.time + of_turn.time, took.waited + of_turn.waited);
            }
            ids += kept.sample.ids as f64;
        }
        let seconds = longer * took.time.as_secs_f64() / turns as f64;
        let waited = longer * took.waited.as_secs_f64() / turns as f64;
        let bound = match () {
            () if seconds <= 0.0 => Bottleneck::Unknown,
            () if waited > seconds * WAITING => Bottleneck::Drives,
            () if self.on_gpu() => Bottleneck::Gpu,
            () => Bottleneck::Host,
        };
        let lookups_per_second = if seconds > 0.0 { samples.len() as f64 / seconds } else { 0.0 };
        let commands = of(total.commands) * cold;
        ExpectedLookups {
            hbm,
            dram: better - hbm,
            ssd: 1.0 - better,
            error: memory.error,
            drift: memory.drift,
            intervals: memory.intervals.clone(),
            ids: of(total.ids),
            rows_ssd: of(total.rows_ssd) * cold,
            commands,
            bytes: of(total.bytes) * cold,
            amplification: if total.bytes_needed > 0 { total.bytes as f64 / total.bytes_needed as f64 } else { 0.0 },
            lookups_per_second,
            ids_per_second: if seconds > 0.0 { ids / seconds } else { 0.0 },
            iops_per_drive: lookups_per_second * commands / f64::from(self.options.drives.count),
            waited: if seconds > 0.0 { waited / seconds } else { 0.0 },
            bound,
        }
    }

    fn on_gpu(&self) -> bool {
        self.options.budgets.hbm > 0
    }

    /// What the executor does for a look-up.
    fn work(&self, asked: &LookupDemand) -> LookupWork {
        let options = self.options;
        let emulated = self.options.drives.emulated;
        match self.on_gpu() {
            true => options.gpu.work(asked, emulated.then_some(options.costs.emulated)),
            false => options.costs.work(asked, emulated),
        }
    }

    /// So many of the proposal's drives, with the tables on them.
    fn site(&self, count: u32) -> Site {
        let drives = AlikeDrives { count, ..self.options.drives.clone() };
        let map = ChunkMap::new(self.tables_on_drives(), &drives, self.stripe_lbas * u64::from(drives.lba));
        Site { drives, map }
    }

    /// How long a look-up takes if a share `cold` of its reads is made; `turn` decides which of them are slow ones.
    #[expect(clippy::too_many_arguments, reason = "a look-up, where, and how")]
    fn took(
        &self,
        site: &Site,
        work: &LookupWork,
        replay: &TraceReplay<'_>,
        kept: &KeptBatch,
        hot: &[u64],
        cold: f64,
        turn: u64,
    ) -> LookupTime {
        let timing = site.drives.timing().ok().flatten();
        let lba = u64::from(site.drives.lba);
        let mut made = 0.0f64;
        let commands = replay.commands(kept, hot).filter(|_| {
            let before = made as u64;
            made += cold;
            made as u64 > before || cold >= 1.0
        });
        let read = |(table, at, lbas): (usize, u64, u64)| site.map.locate(table, at * lba, lbas * lba);
        let mut reads: Vec<DriveRead> = commands.filter_map(read).collect();
        let size = site.map.drive_bytes().max(site.drives.bytes);
        simulate_lookup(work, timing.as_ref(), size, &mut reads, mix_all([self.options.seed, turn]))
    }

    pub(crate) fn curve(
        &self,
        replay: &TraceReplay<'_>,
        orders: &[HotnessOrder],
        expected: &ExpectedLookups,
    ) -> Vec<BudgetPoint> {
        let budgets = self.budgets;
        let tables = self.heats(orders);
        let chosen = budgets.hbm.saturating_add(budgets.dram);
        let all = tables.iter().map(|table| table.rows.saturating_mul(table.row_bytes)).fold(0, u64::saturating_add);
        // From 0.1% up, and the budget itself.
        let mut sizes: Vec<u64> =
            (0..=POINTS).map(|at| (all as f64 * 2f64.powf(f64::from(at - POINTS) / 2.4)) as u64).collect();
        sizes.extend([0, chosen.min(all)]);
        sizes.sort_unstable();
        sizes.dedup();
        let count = self.options.drives.count;
        let mut drives: Vec<u32> =
            [count / 2, count, count * 2, count * 4].into_iter().filter(|number| (1..=48).contains(number)).collect();
        drives.dedup();
        let sites: Vec<Site> = drives.into_iter().map(|count| self.site(count)).collect();
        let batches = replay.batches().max(1) as f64;
        // Who learns from the whole trace finds more in memory than the replay, by `bend`: none still without memory, and all in enough.
        let point = |bytes: u64, bend: f64| {
            let budgets = MemoryBudgets { hbm: budgets.hbm.min(bytes), dram: bytes.saturating_sub(budgets.hbm) };
            let allocation = allocate(&tables, budgets);
            let cold = replay.cold(&allocation.hot, &allocation.hbm);
            let missed = cold.ids_ssd as f64 / cold.ids.max(1) as f64;
            let hit = (1.0 - missed).powf(bend);
            let kept_reads = if missed > 0.0 { (1.0 - hit) / missed } else { 1.0 };
            let made = kept_reads.min(1.0);
            let asked = cold.asked(made).divided(batches);
            let work = self.work(&asked);
            let rate = |site: &Site| {
                let turns = (SKETCHED as f64 / asked.commands.max(1.0)).clamp(2.0, 64.0) as usize;
                let step = replay.samples().len().div_ceil(turns).max(1);
                let kept = (0..).zip(replay.samples()).step_by(step);
                let (sum, turns) = kept.fold((Duration::ZERO, 0u32), |(sum, turns), (turn, kept)| {
                    let took = self.took(site, &work, replay, kept, &allocation.hot, made, turn);
                    (sum + took.time, turns + 1)
                });
                let seconds = kept_reads.max(1.0) * sum.as_secs_f64() / f64::from(turns.max(1));
                let ids_per_second = if seconds > 0.0 { asked.ids / seconds } else { 0.0 };
                DriveRate { drives: site.drives.count, ids_per_second }
            };
            let commands = cold.commands as f64 / batches * kept_reads;
            BudgetPoint { bytes, hit, commands, rates: sites.iter().map(rate).collect() }
        };
        // The curve passes through what is expected of the proposal itself.
        let own = point(chosen.min(all), 1.0);
        let within = |share: f64| share > 0.0 && share < 1.0;
        let bend = match within(own.hit) && within(expected.ssd) {
            true => (1.0 - expected.ssd).ln() / own.hit.ln(),
            false => 1.0,
        };
        let of = |point: &BudgetPoint| {
            point.rates.iter().find(|rate| rate.drives == count).map_or(0.0, |rate| rate.ids_per_second)
        };
        let mut curve: Vec<BudgetPoint> = sizes.into_iter().map(|bytes| point(bytes, bend)).collect();
        let sketched = curve.iter().find(|point| point.bytes == own.bytes).map_or(0.0, of);
        if sketched > 0.0 && expected.ids_per_second > 0.0 {
            let longer = expected.ids_per_second / sketched;
            curve.iter_mut().flat_map(|point| &mut point.rates).for_each(|rate| rate.ids_per_second *= longer);
        }
        curve
    }
}

/// Drives with tables on them.
struct Site {
    drives: AlikeDrives,
    map: ChunkMap,
}

impl BatchCounts {
    /// What it asks for, if of what is on drives only a share `cold` was.
    fn asked(&self, cold: f64) -> LookupDemand {
        let ids = self.ids as f64;
        let ids_ssd = self.ids_ssd as f64 * cold;
        LookupDemand {
            ids_memory: (ids - ids_ssd - self.ids_hbm as f64).max(0.0),
            ids_ssd,
            rows_ssd: self.rows_ssd as f64 * cold,
            commands: self.commands as f64 * cold,
            ids,
            bytes_dram: self.bytes_dram as f64,
            bytes: self.bytes_asked as f64,
        }
    }
}
