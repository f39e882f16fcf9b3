//! A volatile write cache: what was written and not flushed, and what a power cut makes of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warprow_dma::{AllocateError, DmaMemory};

use crate::backing::{Backing, MediaError};

/// What survives of the writes that were in a volatile cache when the power was cut. Writes count from 0 in the order
/// in which the controller executed them, among those not yet durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// None of the volatile writes survives.
    LoseAll,
    /// All of them survive.
    KeepAll,
    /// The first so many survive.
    First(usize),
    /// All but the one with this index survive.
    Without(usize),
    /// The one with this index alone survives.
    Only(usize),
    /// A subset survives that is chosen by this seed: a prefix, a suffix, a random subset of the writes, or a random
    /// subset of their LBAs, with any one of several writes to the same LBA. Commands in flight take part: some of them
    /// are executed, and then some of what they wrote survives.
    Random(u64),
}

/// How the versions of one LBA are chosen from, by [`PowerCut`].
pub(crate) enum Choice {
    /// Writes survive or do not; of several to one LBA the last survivor counts.
    Commands(Vec<u64>),
    /// Each LBA by itself: survives with this probability, in any of its versions.
    Blocks(f64),
}

impl PowerCut {
    /// What to keep of `commands`, which are in order.
    pub(crate) fn choose(self, commands: &[u64], rng: &mut fastrand::Rng) -> Choice {
        let without = |index: usize| {
            commands.iter().enumerate().filter(|&(i, _)| i != index).map(|(_, &command)| command).collect()
        };
        let some = |index: usize| commands.get(index).copied().into_iter().collect();
        Choice::Commands(match self {
            Self::LoseAll => Vec::new(),
            Self::KeepAll => commands.to_vec(),
            Self::First(count) => commands[..count.min(commands.len())].to_vec(),
            Self::Without(index) => without(index),
            Self::Only(index) => some(index),
            Self::Random(_) => {
                let any = rng.usize(0..=commands.len());
                match rng.u32(0..8) {
                    0 => Vec::new(),
                    1 => commands.to_vec(),
                    2 => commands[..any].to_vec(),
                    3 => commands[any..].to_vec(),
                    4 => without(any),
                    5 => {
                        let keep = rng.f64();
                        commands.iter().copied().filter(|_| rng.f64() < keep).collect()
                    }
                    _ => return Choice::Blocks(rng.f64()),
                }
            }
        })
    }
}

/// One write of one LBA that is not durable.
#[derive(Debug)]
struct Version {
    command: u64,
    /// The host was told; a Flush makes no promise about others.
    completes: bool,
    data: Arc<[u8]>,
    at: usize,
}

#[derive(Debug)]
struct Log {
    /// LBA size, bytes: what a power cut never tears.
    block: u64,
    /// By LBA; oldest version first, never empty.
    versions: BTreeMap<u64, Vec<Version>>,
    /// Commands with their LBAs, oldest first.
    commands: VecDeque<(u64, u64, u64)>,
    /// Bytes of all versions.
    bytes: u64,
    /// Where runs of LBAs are put together on their way to the media.
    bounce: DmaMemory,
}

const BOUNCE: usize = 256 << 10;
/// Ranges of zeros longer than this are made durable at once rather than kept.
const ZEROS_KEPT: u64 = 4 << 20;

/// Orders the writes of all caches of this process: the number of the last one.
static COMMANDS: AtomicU64 = AtomicU64::new(0);

/// A moment in that order: writes executed before it have numbers up to it, later ones have larger numbers.
#[inline]
pub(crate) fn now() -> u64 {
    COMMANDS.load(Ordering::Relaxed)
}

/// A volatile cache before another backing. It keeps every write since the last flush, up to its capacity; beyond
/// that, the oldest become durable.
#[derive(Debug)]
pub(crate) struct WriteCache {
    inner: Arc<dyn Backing>,
    capacity: u64,
    log: Mutex<Log>,
}

impl WriteCache {
    pub(crate) fn new(inner: Arc<dyn Backing>, capacity: u64) -> Result<Self, AllocateError> {
        let bounce = DmaMemory::allocate(BOUNCE, warprow_dma::MemoryKind::Anonymous)?;
        let log = Log { block: 512, versions: BTreeMap::new(), commands: VecDeque::new(), bytes: 0, bounce };
        Ok(Self { inner, capacity, log: Mutex::new(log) })
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the LBA size, after everything was flushed.
    pub(crate) fn set_block(&self, bytes: u64) {
        self.log().block = bytes;
    }

    /// The writes that a power cut may lose, in order.
    pub(crate) fn commands(&self) -> Vec<u64> {
        let log = self.log();
        let mut commands: Vec<u64> = log.versions.values().flatten().map(|version| version.command).collect::<Vec<_>>();
        commands.sort_unstable();
        commands.dedup();
        commands
    }

    /// Does what a Flush promises that was fetched at `moment`: of each LBA, the last write that had completed becomes durable.
    /// Writes after it stay as volatile as they were.
    pub(crate) fn flush_completed(&self, moment: u64) -> Result<(), MediaError> {
        let mut log = self.log();
        let log = &mut *log;
        let had_completed = |version: &Version| version.completes && version.command <= moment;
        log.apply(&*self.inner, 0..u64::MAX, had_completed)?;
        let mut settled = 0;
        log.versions.retain(|_, versions| {
            let count = versions.iter().rposition(had_completed).map_or(0, |last| last + 1);
            versions.drain(..count);
            settled += count as u64;
            !versions.is_empty()
        });
        log.bytes -= settled * log.block;
        let versions = &log.versions;
        log.commands.retain(|&(command, lba, count)| {
            versions.range(lba..lba + count).any(|(_, versions)| versions.iter().any(|v| v.command == command))
        });
        self.inner.flush()
    }

    /// As [`Backing::write`]; `completes` is whether the host will be told.
    pub(crate) fn write_as(
        &self,
        offset: u64,
        from: &DmaMemory,
        at: usize,
        len: usize,
        completes: bool,
    ) -> Result<(), MediaError> {
        let mut data = vec![0; len];
        from.read(at, &mut data);
        let mut log = self.log();
        let lba = offset / log.block;
        log.add(lba, data.into(), completes);
        while log.bytes > self.capacity && !log.commands.is_empty() {
            log.evict(&*self.inner)?;
        }
        Ok(())
    }

    /// As [`Backing::zero`]; `completes` is whether the host will be told.
    pub(crate) fn zero_as(&self, offset: u64, len: u64, deallocate: bool, completes: bool) -> Result<(), MediaError> {
        let mut log = self.log();
        let lba = offset / log.block;
        if len <= ZEROS_KEPT && (!deallocate || self.inner.deallocated_reads_zero()) {
            log.add(lba, vec![0; len as usize].into(), completes);
            return Ok(());
        }
        let blocks = lba..lba + len / log.block;
        log.forget(blocks);
        self.inner.zero(offset, len, deallocate)
    }

    /// Makes durable what is chosen, and forgets the rest.
    pub(crate) fn cut(&self, choice: &Choice, rng: &mut fastrand::Rng) -> Result<(), MediaError> {
        let mut log = self.log();
        let log = &mut *log;
        for versions in log.versions.values_mut() {
            match choice {
                Choice::Commands(keep) => versions.retain(|version| keep.binary_search(&version.command).is_ok()),
                Choice::Blocks(probability) => {
                    let any = rng.usize(0..versions.len());
                    let keep = rng.f64() < *probability;
                    versions.truncate(if keep { any + 1 } else { 0 });
                }
            }
        }
        log.versions.retain(|_, versions| !versions.is_empty());
        let result = log.apply(&*self.inner, 0..u64::MAX, |_| true);
        log.clear();
        result
    }
}

impl Log {
    fn clear(&mut self) {
        self.versions.clear();
        self.commands.clear();
        self.bytes = 0;
    }

    /// Writes the newest version that counts of each LBA in `blocks` to the media.
    fn apply(
        &self,
        inner: &dyn Backing,
        blocks: std::ops::Range<u64>,
        counts: impl Fn(&Version) -> bool,
    ) -> Result<(), MediaError> {
        let block = self.block as usize;
        let mut first = 0;
        let mut filled = 0;
        for (&lba, versions) in self.versions.range(blocks) {
            let Some(version) = versions.iter().rfind(|version| counts(version)) else { continue };
            if filled > 0 && (lba != first + (filled / block) as u64 || filled + block > BOUNCE) {
                inner.write(first * self.block, &self.bounce, 0, filled)?;
                filled = 0;
            }
            if filled == 0 {
                first = lba;
            }
            self.bounce.write(filled, &version.data[version.at..version.at + block]);
            filled += block;
        }
        if filled > 0 { inner.write(first * self.block, &self.bounce, 0, filled) } else { Ok(()) }
    }

    /// Forgets all versions of some LBAs.
    fn forget(&mut self, blocks: std::ops::Range<u64>) {
        let mut forgotten = 0;
        let mut later = self.versions.split_off(&blocks.start);
        let rest = later.split_off(&blocks.end);
        for versions in later.values() {
            forgotten += versions.len() as u64;
        }
        self.versions.extend(rest);
        self.bytes -= forgotten * self.block;
        if self.versions.is_empty() {
            self.clear();
        }
    }

    fn add(&mut self, lba: u64, data: Arc<[u8]>, completes: bool) {
        let command = COMMANDS.fetch_add(1, Ordering::Relaxed) + 1;
        let block = self.block as usize;
        let count = (data.len() / block) as u64;
        for i in 0..count {
            let version = Version { command, completes, data: data.clone(), at: i as usize * block };
            self.versions.entry(lba + i).or_default().push(version);
        }
        self.commands.push_back((command, lba, count));
        self.bytes += data.len() as u64;
    }

    /// Makes the oldest command durable.
    fn evict(&mut self, inner: &dyn Backing) -> Result<(), MediaError> {
        let Some((command, first, count)) = self.commands.pop_front() else { return Ok(()) };
        for lba in first..first + count {
            let Some(versions) = self.versions.get_mut(&lba) else { continue };
            let Some(index) = versions.iter().position(|version| version.command == command) else { continue };
            let version = versions.remove(index);
            self.bytes -= self.block;
            if versions.is_empty() {
                self.versions.remove(&lba);
            }
            let block = self.block as usize;
            self.bounce.write(0, &version.data[version.at..version.at + block]);
            inner.write(lba * self.block, &self.bounce, 0, block)?;
        }
        Ok(())
    }
}

impl Backing for WriteCache {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        let log = self.log();
        self.inner.read(offset, to, at, len)?;
        let end = offset + len as u64;
        for (&lba, versions) in log.versions.range(offset / log.block..end.div_ceil(log.block)) {
            let Some(version) = versions.last() else { continue };
            let start = lba * log.block;
            let from = start.max(offset);
            let until = (start + log.block).min(end);
            let data = &version.data[version.at..][(from - start) as usize..(until - start) as usize];
            to.write(at + (from - offset) as usize, data);
        }
        Ok(())
    }

    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.write_as(offset, from, at, len, true)
    }

    fn zero(&self, offset: u64, len: u64, deallocate: bool) -> Result<(), MediaError> {
        self.zero_as(offset, len, deallocate, true)
    }

    fn flush(&self) -> Result<(), MediaError> {
        let mut log = self.log();
        log.apply(&*self.inner, 0..u64::MAX, |_| true)?;
        log.clear();
        self.inner.flush()
    }

    fn persist(&self, offset: u64, len: u64) -> Result<(), MediaError> {
        let mut log = self.log();
        let blocks = offset / log.block..(offset + len).div_ceil(log.block);
        log.apply(&*self.inner, blocks.clone(), |_| true)?;
        log.forget(blocks);
        self.inner.persist(offset, len)
    }

    fn is_volatile(&self) -> bool {
        true
    }

    fn deallocated_reads_zero(&self) -> bool {
        self.inner.deallocated_reads_zero()
    }

    fn wants_whole_commands(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::backing::RamBacking;

    const BLOCKS: u64 = 16;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u64),
        Zero(u64, u64),
        /// A flush, of what was fetched so many steps ago.
        Flush(usize),
        Persist(u64, u64),
        Read(u64, u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let range = (0..BLOCKS).prop_flat_map(|lba| (Just(lba), 1..=BLOCKS - lba));
        prop_oneof![
            5 => range.clone().prop_map(|(lba, count)| Step::Write(lba, count)),
            1 => range.clone().prop_map(|(lba, count)| Step::Zero(lba, count)),
            1 => (0..6usize).prop_map(Step::Flush),
            1 => range.clone().prop_map(|(lba, count)| Step::Persist(lba, count)),
            2 => range.prop_map(|(lba, count)| Step::Read(lba, count)),
        ]
    }

    fn cut() -> impl Strategy<Value = PowerCut> {
        prop_oneof![
            Just(PowerCut::LoseAll),
            Just(PowerCut::KeepAll),
            (0..8usize).prop_map(PowerCut::First),
            (0..8usize).prop_map(PowerCut::Without),
            (0..8usize).prop_map(PowerCut::Only),
            any::<u64>().prop_map(PowerCut::Random),
        ]
    }

    /// Each block holds the number of the write that it is of, everywhere.
    fn value(memory: &DmaMemory, at: usize, block: usize) -> u32 {
        let value = memory.load_u32(at);
        for i in (0..block).step_by(4) {
            assert_eq!(memory.load_u32(at + i), value, "a block is torn");
        }
        value
    }

    proptest! {
        #[test]
        fn agrees_with_a_naive_model(
            steps in proptest::collection::vec(step(), 0..40), cut in cut(), wide in any::<bool>(),
            capacity in prop_oneof![Just(u64::MAX), Just(8192u64)],
        ) {
            let block = if wide { 4096u64 } else { 512 };
            let cache = WriteCache::new(Arc::new(RamBacking::new(BLOCKS * block).unwrap()), capacity).unwrap();
            cache.set_block(block);
            let memory = DmaMemory::allocate((BLOCKS * block) as usize + 4, warprow_dma::MemoryKind::Anonymous).unwrap();
            // What each block was written with, and when, since it last became durable: what it may read as after a cut.
            let mut history: [Vec<(u32, u64)>; BLOCKS as usize] = std::array::from_fn(|_| vec![(0, 0)]);
            let mut moments = Vec::new();
            for (number, step) in (1u32..).zip(steps) {
                moments.push(now());
                match step {
                    Step::Write(lba, count) | Step::Zero(lba, count) => {
                        let number = if matches!(step, Step::Zero(..)) { 0 } else { number };
                        for i in (0..(count * block) as usize).step_by(4) {
                            memory.store_u32(i, number);
                        }
                        if number == 0 {
                            cache.zero(lba * block, count * block, true).unwrap();
                        } else {
                            cache.write(lba * block, &memory, 0, (count * block) as usize).unwrap();
                        }
                        for block in &mut history[lba as usize..(lba + count) as usize] {
                            block.push((number, now()));
                        }
                    }
                    Step::Flush(ago) => {
                        let moment = moments[moments.len().saturating_sub(ago + 1)];
                        cache.flush_completed(moment).unwrap();
                        prop_assert!(ago > 0 || cache.commands().is_empty());
                        for block in &mut history {
                            let last = block.iter().rposition(|&(_, when)| when <= moment).unwrap_or(0);
                            block.drain(..last);
                        }
                    }
                    Step::Persist(lba, count) => {
                        cache.persist(lba * block, count * block).unwrap();
                        for block in &mut history[lba as usize..(lba + count) as usize] {
                            block.drain(..block.len() - 1);
                        }
                    }
                    Step::Read(lba, count) => {
                        // In two pieces that split a block.
                        let len = (count * block) as usize;
                        let split = 260;
                        cache.read(lba * block, &memory, 4, split).unwrap();
                        cache.read(lba * block + split as u64, &memory, 4 + split, len - split).unwrap_or_else(|e| panic!("{e}"));
                        for i in 0..count as usize {
                            let want = history[lba as usize + i].last().unwrap().0;
                            prop_assert_eq!(value(&memory, 4 + i * block as usize, block as usize), want);
                        }
                    }
                }
            }
            let commands = cache.commands();
            let mut rng = fastrand::Rng::with_seed(if let PowerCut::Random(seed) = cut { seed } else { 0 });
            cache.cut(&cut.choose(&commands, &mut rng), &mut rng).unwrap();
            prop_assert!(cache.commands().is_empty());
            cache.read(0, &memory, 0, (BLOCKS * block) as usize).unwrap();
            for (i, history) in history.iter().enumerate() {
                let after = value(&memory, i * block as usize, block as usize);
                let possible: Vec<u32> = history.iter().map(|version| version.0).collect();
                prop_assert!(possible.contains(&after), "block {i} is {after}, not one of {possible:?}");
                match cut {
                    PowerCut::KeepAll => prop_assert_eq!(after, possible[possible.len() - 1]),
                    PowerCut::LoseAll if capacity == u64::MAX => prop_assert_eq!(after, possible[0]),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn random_cuts_lose_reorder_and_tear() {
        let mut lost = 0;
        let mut kept = 0;
        let mut torn = 0;
        let mut reordered = 0;
        for seed in 0..400 {
            let cache = WriteCache::new(Arc::new(RamBacking::new(8192).unwrap()), u64::MAX).unwrap();
            let memory = DmaMemory::allocate(4096, warprow_dma::MemoryKind::Anonymous).unwrap();
            for number in 1..=2 {
                memory.fill(0, 1024, number);
                cache.write(0, &memory, 0, 1024).unwrap();
            }
            let mut rng = fastrand::Rng::with_seed(seed);
            let choice = PowerCut::Random(seed).choose(&cache.commands(), &mut rng);
            cache.cut(&choice, &mut rng).unwrap();
            cache.read(0, &memory, 0, 1024).unwrap();
            match (memory.load_u8(0), memory.load_u8(512)) {
                (0, 0) => lost += 1,
                (2, 2) => kept += 1,
                (1, 1) => reordered += 1,
                _ => torn += 1,
            }
        }
        assert!(lost > 20 && kept > 20 && torn > 20 && reordered > 20, "{lost} {kept} {torn} {reordered}");
    }
}
