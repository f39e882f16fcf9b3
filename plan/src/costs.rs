//! What look-ups cost besides drives: a processor, and a GPU.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lookup::LookupWork;

/// What a look-up reads: ids, rows, commands and bytes, by where the rows lie.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LookupDemand {
    /// Ids of rows in memory; on a GPU, in DRAM.
    pub ids_memory: f64,
    /// Ids of rows on drives.
    pub ids_ssd: f64,
    /// Different rows on drives.
    pub rows_ssd: f64,
    /// Read commands.
    pub commands: f64,
    /// All ids.
    pub ids: f64,
    /// Bytes of the rows of ids in DRAM.
    pub bytes_dram: f64,
    /// Bytes of the rows of all ids.
    pub bytes: f64,
}

impl LookupDemand {
    /// Divides every count by `by`.
    pub fn divided(&self, by: f64) -> Self {
        Self {
            ids_memory: self.ids_memory / by,
            ids_ssd: self.ids_ssd / by,
            rows_ssd: self.rows_ssd / by,
            commands: self.commands / by,
            ids: self.ids / by,
            bytes_dram: self.bytes_dram / by,
            bytes: self.bytes / by,
        }
    }
}

/// Seconds that a processor takes, of the host executor with one worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HostCosts {
    /// For a look-up of nothing.
    pub lookup: f64,
    /// For an id in DRAM: before the first command leaves.
    pub dram_before: f64,
    /// For an id in DRAM, after the commands left: its row is copied to the output.
    pub dram: f64,
    /// For an id on drives, before the first command leaves.
    pub ssd_before: f64,
    /// For a different row among these, before the first command leaves.
    pub row_before: f64,
    /// For a command, until it is on its way.
    pub send: f64,
    /// For a command, when it is done.
    pub complete: f64,
    /// For a row that a command brought: to the output.
    pub row: f64,
    /// For each further id of the same row.
    pub repeat: f64,
    /// For a command, the thread of an emulated drive.
    pub emulated: f64,
}

impl Default for HostCosts {
    /// Costs as they were measured for rows of 512 B on one core of a virtual AMD EPYC.
    fn default() -> Self {
        Self {
            lookup: 1.5e-6,
            dram_before: 8e-9,
            dram: 45e-9,
            ssd_before: 25e-9,
            row_before: 60e-9,
            send: 40e-9,
            complete: 30e-9,
            row: 60e-9,
            repeat: 40e-9,
            emulated: 250e-9,
        }
    }
}

/// Commands on a queue at a time, of a host executor.
pub(crate) const DEPTH: usize = 1023;
/// Ids in DRAM between two looks at the drives.
const STEP: f64 = 256.0;

fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// The share of `of` that falls on one of `among`.
pub(crate) fn each(of: f64, among: f64) -> f64 {
    if among > 0.0 { of / among } else { 0.0 }
}

impl HostCosts {
    /// No time at all: what remains are the drives.
    pub const NONE: Self = Self {
        lookup: 0.0,
        dram_before: 0.0,
        dram: 0.0,
        ssd_before: 0.0,
        row_before: 0.0,
        send: 0.0,
        complete: 0.0,
        row: 0.0,
        repeat: 0.0,
        emulated: 0.0,
    };

    /// What the host executor does for a look-up on drives that are or are not `emulated` by threads of this machine.
    pub fn work(&self, asked: &LookupDemand, emulated: bool) -> LookupWork {
        let repeats = (asked.ids_ssd - asked.rows_ssd).max(0.0);
        let before =
            asked.ids_memory * self.dram_before + asked.ids_ssd * self.ssd_before + asked.rows_ssd * self.row_before;
        let rows = asked.rows_ssd * self.row + repeats * self.repeat;
        LookupWork {
            before: duration(self.lookup + before),
            send: duration(self.send),
            land: duration(self.complete + each(rows, asked.commands)),
            meanwhile: duration(asked.ids_memory * self.dram),
            steps: (asked.ids_memory / STEP).ceil() as u32,
            after: Duration::ZERO,
            thread: if emulated { duration(self.emulated) } else { Duration::ZERO },
            depth: DEPTH,
        }
    }
}

/// Seconds that a GPU takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct GpuCosts {
    /// For a look-up of few ids in GPU memory.
    pub lookup: f64,
    /// For each id: to deduplicate.
    pub id: f64,
    /// For the first row in DRAM: its latency.
    pub dram_first: f64,
    /// For each row in DRAM.
    pub dram: f64,
    /// Bytes a second from DRAM.
    pub dram_bytes: f64,
    /// Bytes a second to the output.
    pub output_bytes: f64,
}

impl Default for GpuCosts {
    /// An H200 by `docs/performance/notes-gpu.md`: 7 µs for a thousand ids in GPU memory and 29 for them in DRAM; 33.5 GB/s of rows of 128 B and 49.7 of
    /// 512 B; of 1.7 million ids 90 µs to deduplicate, and 0.5 ms to write 872 MB.
    fn default() -> Self {
        Self { lookup: 7e-6, id: 0.053e-9, dram_first: 12e-6, dram: 1.6e-9, dram_bytes: 59e9, output_bytes: 1.7e12 }
    }
}

impl GpuCosts {
    /// What the GPU executor with one queue set does for a look-up on drives that are or are not `emulated` by threads, which take so many
    /// seconds a command.
    pub fn work(&self, asked: &LookupDemand, emulated: Option<f64>) -> LookupWork {
        let dram = match asked.ids_memory > 0.0 {
            true => self.dram_first + asked.ids_memory * self.dram + each(asked.bytes_dram, self.dram_bytes),
            false => 0.0,
        };
        LookupWork {
            before: duration(self.lookup + asked.ids * self.id),
            send: Duration::ZERO,
            land: Duration::ZERO,
            meanwhile: duration(dram),
            steps: 16,
            after: duration(each(asked.bytes, self.output_bytes)),
            thread: duration(emulated.unwrap_or(0.0)),
            depth: 768,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_work() {
        let costs = HostCosts {
            lookup: 1.0,
            dram_before: 2.0,
            dram: 3.0,
            ssd_before: 5.0,
            row_before: 7.0,
            send: 11.0,
            complete: 13.0,
            row: 17.0,
            repeat: 19.0,
            emulated: 23.0,
        };
        // Four ids of three rows on drives, which two commands bring.
        let asked =
            LookupDemand { ids_memory: 10.0, ids_ssd: 4.0, rows_ssd: 3.0, commands: 2.0, ..LookupDemand::default() };
        let seconds = Duration::from_secs_f64;
        let want = LookupWork {
            before: seconds(1.0 + 20.0 + 20.0 + 21.0),
            send: seconds(11.0),
            land: seconds(13.0 + (51.0 + 19.0) / 2.0),
            meanwhile: seconds(30.0),
            steps: 1,
            after: Duration::ZERO,
            thread: seconds(23.0),
            depth: 1023,
        };
        assert_eq!(costs.work(&asked, true), want);
        assert_eq!(costs.work(&asked, false), LookupWork { thread: Duration::ZERO, ..want });
        assert_eq!(HostCosts::NONE.work(&asked, true), LookupWork { steps: 1, depth: 1023, ..LookupWork::default() });
    }

    #[test]
    fn a_gpu_takes_what_was_measured() {
        let gpu = GpuCosts::default();
        let time = |ids: f64, row_bytes: f64, dram: bool| {
            let bytes = ids * row_bytes;
            let (ids_memory, bytes_dram) = if dram { (ids, bytes) } else { (0.0, 0.0) };
            let work = gpu.work(&LookupDemand { ids, bytes, ids_memory, bytes_dram, ..LookupDemand::default() }, None);
            (work.before + work.meanwhile + work.after).as_secs_f64()
        };
        for (got, want) in [
            (time(1e3, 512.0, false), 7e-6),
            (time(1e3, 512.0, true), 29e-6),
            (2e6 * 128.0 / time(2e6, 128.0, true), 33.5e9),
            (2e6 * 512.0 / time(2e6, 512.0, true), 49.7e9),
        ] {
            assert!((0.9..1.1).contains(&(got / want)), "{got:.3e}, not {want:.3e}");
        }
    }

    #[test]
    fn costs_are_measured() {
        // A row that no power of two is.
        let costs = HostCosts::measure(516, true).unwrap();
        println!("{costs:?}");
        let all = [costs.lookup, costs.dram_before, costs.dram, costs.ssd_before, costs.emulated];
        assert!(all.iter().all(|&number| number > 0.0 && number < 1.0), "{costs:?}");
        let ssd = costs.ssd_before + costs.row_before + costs.send + costs.complete + costs.row;
        assert!(ssd > costs.dram_before + costs.dram, "{costs:?}");
    }
}
