//! What a power cut may leave of a record of writes and flushes.

use super::*;

/// How the LBAs in the caches fare. (The seed makes a random choice repeatable.)
#[derive(Debug, Clone, Copy)]
pub enum Fate {
    AllLost,
    AllKept,
    /// Each LBA is kept with this probability in percent.
    Lbas(u32, u64),
    /// Each LBA is kept, lost or itself torn: more than NVMe allows (AWUPF), and nothing here relies on that.
    Torn(u64),
    /// Each LBA is kept or lost, and what stands around it in the same 64 KiB is spoilt, as by a drive that rewrites larger
    /// units than LBAs: more than NVMe allows.
    Spoilt(u64),
    /// Each write is kept or lost whole.
    Writes(u64),
    /// Each drive keeps everything or nothing.
    Drives(u64),
    /// Only this drive keeps anything.
    Only(usize),
}

pub fn fates(drives: usize, seeds: u64) -> Vec<Fate> {
    let mut fates = vec![Fate::AllLost, Fate::AllKept];
    for seed in 0..seeds {
        fates.extend([
            Fate::Lbas(50, seed),
            Fate::Lbas(90, seed),
            Fate::Writes(seed),
            Fate::Torn(seed),
            Fate::Torn(!seed),
            Fate::Spoilt(seed),
        ]);
        if drives > 1 {
            fates.push(Fate::Drives(seed));
        }
    }
    if drives > 1 {
        fates.extend((0..drives).map(Fate::Only));
    }
    fates
}

pub struct Pending {
    pub drive: usize,
    pub lba: u64,
    pub lbas: Vec<std::sync::Arc<[u8]>>,
}

pub fn survive(durable: &[Image], pending: &[Pending], fate: Fate) -> Vec<Image> {
    let mut images = durable.to_vec();
    let mut rng = fastrand::Rng::with_seed(match fate {
        Fate::Lbas(_, seed) | Fate::Torn(seed) | Fate::Spoilt(seed) | Fate::Writes(seed) | Fate::Drives(seed) => {
            seed ^ (pending.len() as u64 * 7919)
        }
        _ => 0,
    });
    let kept_drives: Vec<bool> = images.iter().map(|_| rng.bool()).collect();
    for Pending { drive, lba, lbas } in pending {
        let kept_write = rng.bool();
        for (lba, data) in (*lba..).zip(lbas) {
            let kept = match fate {
                Fate::Torn(_) => {
                    let old = images[*drive].get(&lba).cloned().unwrap_or_else(|| vec![0; data.len()].into());
                    let cut = [0, data.len(), rng.usize(..128), rng.usize(..data.len())][rng.usize(..4)];
                    images[*drive].insert(lba, [&data[..cut], &old[cut..]].concat().into());
                    false
                }
                Fate::Spoilt(_) => {
                    spoil(&mut images[*drive], lba, data.len(), &mut rng);
                    rng.bool()
                }
                Fate::AllLost => false,
                Fate::AllKept => true,
                Fate::Lbas(percent, _) => rng.u32(0..100) < percent,
                Fate::Writes(_) => kept_write,
                Fate::Drives(_) => kept_drives[*drive],
                Fate::Only(only) => *drive == only,
            };
            if kept {
                images[*drive].insert(lba, data.clone());
            }
        }
    }
    images
}

/// Spoils some of the LBAs that share an aligned 64 KiB with `lba`.
pub fn spoil(image: &mut Image, lba: u64, lba_size: usize, rng: &mut fastrand::Rng) {
    let count = (64 << 10) / lba_size as u64;
    let all = rng.bool();
    let mut garbage = vec![0; lba_size];
    rng.fill(&mut garbage);
    let garbage: std::sync::Arc<[u8]> = garbage.into();
    for around in (lba / count * count..).take(count as usize).filter(|_| all || rng.bool()) {
        image.insert(around, garbage.clone());
    }
}

/// A state of the drives after a cut.
pub struct Crash {
    pub images: Vec<Image>,
    /// The last mark before the cut.
    pub acked: u64,
    /// Whether a tail superblock was written since.
    pub tails_in_flight: bool,
}

pub fn is_tail(shapes: &[Shape], op: &Op) -> bool {
    matches!(op, Op::Write { drive, lba, .. }
        if lba * u64::from(shapes[*drive].lba_size) / 4096 >= shapes[*drive].units() - 2)
}

pub fn apply(shapes: &[Shape], op: &Op, durable: &mut Vec<Image>, pending: &mut Vec<Pending>) {
    match op {
        Op::Write { drive, lba, data } => {
            let lbas = data.chunks_exact(shapes[*drive].lba_size as usize).map(Into::into).collect();
            pending.push(Pending { drive: *drive, lba: *lba, lbas });
        }
        Op::Flush { drive } => {
            let (done, open): (Vec<_>, Vec<_>) = pending.drain(..).partition(|pending| pending.drive == *drive);
            *durable = survive(durable, &done, Fate::AllKept);
            *pending = open;
        }
        Op::Mark(_) => {}
    }
}

/// Calls `check` for every cut after the first `from` operations and every fate; says where it failed first.
pub fn enumerate(
    shapes: &[Shape],
    base: &[Image],
    log: &[Op],
    from: usize,
    seeds: u64,
    check: impl FnMut(Crash) -> Result<(), String>,
) -> Result<usize, String> {
    enumerate_fates(shapes, base, log, from, &fates(shapes.len(), seeds), check)
}

/// Calls `check` for every cut after the first `from` operations and each of `fates`; says where it failed first.
pub fn enumerate_fates(
    shapes: &[Shape],
    base: &[Image],
    log: &[Op],
    from: usize,
    fates: &[Fate],
    mut check: impl FnMut(Crash) -> Result<(), String>,
) -> Result<usize, String> {
    let mut durable = base.to_vec();
    let mut pending = Vec::new();
    let mut acked = 0;
    let mut tails_in_flight = false;
    let mut checked = 0;
    for (position, op) in log.iter().enumerate() {
        apply(shapes, op, &mut durable, &mut pending);
        match op {
            Op::Write { .. } => tails_in_flight |= is_tail(shapes, op),
            Op::Flush { .. } => continue, // A state that the cut before it may have left as well.
            Op::Mark(what) => (acked, tails_in_flight) = (*what, false),
        }
        for &fate in fates.iter().filter(|_| position >= from) {
            let images = survive(&durable, &pending, fate);
            check(Crash { images, acked, tails_in_flight })
                .map_err(|error| format!("cut after operation {position}, {fate:?}, acknowledged {acked}: {error}"))?;
            checked += 1;
        }
    }
    Ok(checked)
}

/// The record without the flush, and where that was: up to there nothing has changed.
pub fn without_flush(log: &[Op], nth: usize) -> Option<(Vec<Op>, usize)> {
    let position = log.iter().enumerate().filter(|(_, op)| matches!(op, Op::Flush { .. })).nth(nth)?.0;
    let mut log = log.to_vec();
    log.remove(position);
    Some((log, position))
}

/// Removes the flushes of all drives that follow one another: one line of the code.
pub fn without_flush_of_all(log: &[Op], nth: usize) -> Option<(Vec<Op>, usize)> {
    let is_flush = |op: Option<&Op>| matches!(op, Some(Op::Flush { .. }));
    let begins = (0..log.len()).filter(|&i| is_flush(log.get(i)) && (i == 0 || !is_flush(log.get(i - 1))));
    let begin = begins.into_iter().nth(nth)?;
    let length = log[begin..].iter().take_while(|op| is_flush(Some(op))).count();
    let mut log = log.to_vec();
    log.drain(begin..begin + length);
    Some((log, begin))
}
