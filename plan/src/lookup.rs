//! A look-up played through: what processor and drives do, and when, as the executors do it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use warprow_soft_controller::{Timing, TimingModel};
use warprow_workload::mix_all;

use crate::drives::DriveRead;

/// What the processor does for a look-up.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LookupWork {
    /// Before the first command leaves.
    pub before: Duration,
    /// For a command: until it is on its way.
    pub send: Duration,
    /// For a command: from its completion to its rows in the output.
    pub land: Duration,
    /// Work that is done while drives read, in [`steps`](Self::steps) steps, between which the processor looks at the drives.
    pub meanwhile: Duration,
    /// Steps of the work done meanwhile.
    pub steps: u32,
    /// When all is done.
    pub after: Duration,
    /// What a drive's own thread does for a command, before the drive's time begins.
    pub thread: Duration,
    /// Commands on a drive at a time.
    pub depth: usize,
}

/// How long a look-up takes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LookupTime {
    /// The time in all.
    pub time: Duration,
    /// The part of `time` that is spent waiting for drives with nothing else to do.
    pub waited: Duration,
}

struct Lane<'a> {
    unsent: &'a [DriveRead],
    /// When commands on their way are done.
    due: BinaryHeap<Reverse<Duration>>,
    /// `None`: takes no time.
    drive: Option<TimingModel>,
    /// When the drive's thread can take the next one.
    free: Duration,
}

impl Lane<'_> {
    /// Sends as many as there is room for, with one doorbell.
    fn submit(&mut self, now: &mut Duration, work: &LookupWork) {
        let room = work.depth.saturating_sub(self.due.len()).min(self.unsent.len());
        let Some((batch, rest)) = self.unsent.split_at_checked(room) else { return };
        self.unsent = rest;
        *now += work.send * batch.len() as u32;
        self.free = self.free.max(*now);
        for read in batch {
            self.free += work.thread;
            let done = match &mut self.drive {
                Some(drive) => drive.read(self.free, read.offset, read.len, Some(read.written)),
                None => self.free,
            };
            self.due.push(Reverse(done));
        }
    }

    /// Lands what is done, and sends more.
    fn serve(&mut self, now: &mut Duration, work: &LookupWork) {
        let looked = *now;
        let mut arrived = 0;
        while self.due.peek().is_some_and(|&Reverse(done)| done <= looked) {
            self.due.pop();
            arrived += 1;
        }
        if arrived > 0 {
            *now += work.land * arrived;
            self.submit(now, work);
        }
    }
}

/// Plays a look-up through that makes `reads`, which are put in the order of addresses, on drives of `size` bytes. `seed` decides which
/// reads are slow ones.
pub fn simulate_lookup(
    work: &LookupWork,
    timing: Option<&Timing>,
    size: u64,
    reads: &mut [DriveRead],
    seed: u64,
) -> LookupTime {
    reads.sort_unstable_by_key(|read| (read.drive, read.offset));
    let lanes = reads.chunk_by(|a, b| a.drive == b.drive).map(|unsent| {
        let seed = mix_all([seed, unsent.first().map_or(0, |read| u64::from(read.drive))]);
        let drive = timing.map(|timing| TimingModel::new(timing.clone(), size, seed));
        Lane { unsent, due: BinaryHeap::new(), drive, free: Duration::ZERO }
    });
    let mut lanes: Vec<Lane<'_>> = lanes.collect();
    let mut now = work.before;
    let mut waited = Duration::ZERO;
    lanes.iter_mut().for_each(|lane| lane.submit(&mut now, work));
    for _ in 0..work.steps {
        now += work.meanwhile / work.steps;
        lanes.iter_mut().for_each(|lane| lane.serve(&mut now, work));
    }
    while let Some(next) = lanes.iter().filter_map(|lane| lane.due.peek()).map(|due| due.0).min() {
        let wait = next.saturating_sub(now);
        (now, waited) = (now + wait, waited + wait);
        lanes.iter_mut().for_each(|lane| lane.serve(&mut now, work));
    }
    LookupTime { time: now + work.after, waited }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warprow_soft_controller::TimingProfile;

    const IDLE: LookupWork = LookupWork {
        before: Duration::ZERO,
        send: Duration::ZERO,
        land: Duration::ZERO,
        meanwhile: Duration::ZERO,
        steps: 0,
        after: Duration::ZERO,
        thread: Duration::ZERO,
        depth: 1023,
    };

    fn reads(drives: u32, count: u64, span: u64) -> Vec<DriveRead> {
        let mut random = fastrand::Rng::with_seed(1);
        let read = |_| {
            let at = random.u64(0..span / 512);
            let written = random.u64(..1 << 20);
            DriveRead { drive: random.u32(0..drives), offset: at * 512, len: 512, written }
        };
        (0..count).map(read).collect()
    }

    fn took(work: &LookupWork, profile: TimingProfile, drives: u32, count: u64, span: u64) -> LookupTime {
        simulate_lookup(work, profile.timing().as_ref(), 64 << 30, &mut reads(drives, count, span), 1)
    }

    #[test]
    fn many_reads_take_as_long_as_the_drives_rates_say() {
        for (drives, least) in [(1, 0.9), (4, 0.8)] {
            let took = took(&IDLE, TimingProfile::Gen5Tlc, drives, 100_000, 64 << 30);
            let got = 1e5 / took.time.as_secs_f64() / f64::from(drives);
            assert!((least * 3.3e6..3.4e6).contains(&got) && took.waited == took.time, "{drives}: {got:.3e}");
        }
        // In the order of addresses, a queue's depth covers a fraction of what is read, and so of where address is place.
        let few = 1e5 / took(&IDLE, TimingProfile::P5800x, 1, 100_000, 64 << 30).time.as_secs_f64();
        assert!((1.4e6..2.5e6).contains(&few), "{few:.3e}");
        assert_eq!(took(&IDLE, TimingProfile::None, 1, 1000, 64 << 30), LookupTime::default());
    }

    #[test]
    fn one_read_takes_the_drives_latency() {
        let time = took(&IDLE, TimingProfile::Gen5Tlc, 1, 1, 64 << 30).time;
        assert_eq!(time, Duration::from_micros(60));
    }

    #[test]
    fn processor_and_drives_work_at_once() {
        let us = Duration::from_micros;
        let work =
            LookupWork { before: us(10), send: us(1), land: us(2), meanwhile: us(40), steps: 4, after: us(5), ..IDLE };
        // Alone: 100 are sent, then others are worked for, then all are there.
        let alone = took(&work, TimingProfile::None, 1, 100, 64 << 30);
        assert_eq!(alone, LookupTime { time: us(10 + 100 + 40 + 200 + 5), waited: us(0) });
        // The drives have ended by then.
        let slower = took(&work, TimingProfile::P5800x, 1, 100, 64 << 30);
        assert_eq!(slower.time, alone.time);
        // One by one, each waits for the one before.
        let one =
            took(&LookupWork { depth: 1, meanwhile: us(0), steps: 0, ..work }, TimingProfile::P5800x, 1, 10, 64 << 30);
        assert_eq!(one, LookupTime { time: us(10 + 10 * (1 + 5 + 2) + 5), waited: us(50) });
        // A thread that takes two microseconds for a command is what all wait for.
        let thread = took(
            &LookupWork { thread: us(2), send: us(0), land: us(0), ..IDLE },
            TimingProfile::None,
            1,
            500,
            64 << 30,
        );
        assert_eq!(thread.time, us(1000));
    }
}
