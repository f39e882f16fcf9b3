//! The cold race: a few batches of rows that the page cache does not hold.

use std::cell::RefCell;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warprow_layout::Ranks;
use warprow_lookup::Host;
use warprow_lookup::{Feature, HostOptions, PlanOptions, Report};
use warprow_store::{Device, OpenOptions, Store};
use warprow_workload::rival::{Caching, PerId, PlainFile, Target, Threads};
use warprow_workload::{Answer, Content, FreshPages, Mismatch, Pairs, forget, median, read_around, settle, verify};

use super::arguments::DemoArgs;
use super::place::Place;
use super::replay::{Contender, POISON};
use super::rivals;
use super::warprow::{self, Warprow};
use super::workload::{TABLE, Truth, Workload};
use crate::commands::Context;
use crate::failure::{Class, Failure};
use crate::interrupt::Interrupt;
use crate::rows::RowBuffer;
use crate::units;

/// Ids of a batch, at most.
const BATCH: usize = 1024;
/// Ids of a batch, at least.
const LEAST: usize = 8;
/// Batches of each, at most and at least.
const ROUNDS: (usize, usize) = (5, 3);
/// Batches that a file could give at least without a page of it being read twice. Four who read the drive's file take 21 of them.
const BATCHES: u64 = 48;
/// Time in look-ups, about, of all together.
const TIME: Duration = Duration::from_millis(3500);
/// Threads of the rival that reads with many.
const THREADS: usize = 16;

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    /// A drive on the file as it is by default.
    Warprow,
    /// A drive on the file past the page cache.
    Direct,
    Pread,
    Mapped,
    /// Of the plain file.
    Numpy,
}

impl Who {
    pub(crate) const ALL: [Self; 5] = [Self::Warprow, Self::Direct, Self::Pread, Self::Mapped, Self::Numpy];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Warprow => "warprow",
            Self::Direct => "warprow, direct=1",
            Self::Pread => "pread per id",
            Self::Mapped => "mapped file per id",
            Self::Numpy => "numpy.memmap",
        }
    }

    /// What the member of the JSON object is called that is about it.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Warprow => "warprow",
            Self::Direct => "direct",
            Self::Pread => "pread",
            Self::Mapped => "mapped",
            Self::Numpy => "numpy",
        }
    }

    /// Threads that it keeps busy.
    pub(crate) fn threads(self) -> &'static str {
        match self {
            Self::Warprow | Self::Direct => warprow::THREADS,
            Self::Pread => "16",
            Self::Mapped | Self::Numpy => "1",
        }
    }
}

/// How the cold race went.
#[derive(Debug)]
pub(crate) struct Cold {
    /// Ids of a batch.
    pub batch: usize,
    /// Batches of each.
    pub rounds: usize,
    /// In the order of [`Who::ALL`].
    pub lines: Vec<Line>,
    /// Bytes that the kernel reads around a row which numpy misses.
    pub read_around: Option<u64>,
    /// Rows compared, those of untimed batches included; all of them equal but for the last of a mismatch.
    pub checked: u64,
    /// The first wrong row, and whose it was.
    pub mismatch: Option<(Who, Mismatch)>,
    /// Whether somebody asked to stop.
    pub interrupted: bool,
}

/// How one did.
#[derive(Debug)]
pub(crate) struct Line {
    pub who: Who,
    /// Milliseconds of each batch; or why there are none.
    pub ms: Result<Vec<f64>, String>,
}

impl Line {
    pub(crate) fn median_ms(&self) -> Option<f64> {
        self.ms.as_ref().ok().filter(|ms| !ms.is_empty()).map(|ms| median(ms.iter().copied()))
    }
}

impl Cold {
    /// How many times as long as our own default somebody takes: the median of the rounds' ratios.
    pub(crate) fn ratio(&self, line: &Line) -> Option<f64> {
        let (ours, theirs) = (self.lines.first()?.ms.as_ref().ok()?, line.ms.as_ref().ok()?);
        let pairs: Pairs = theirs.iter().copied().zip(ours.iter().copied()).collect();
        (!pairs.pairs().is_empty()).then(|| pairs.ratio())
    }
}

/// Someone who takes part, or why not.
struct Entry<'a> {
    who: Who,
    contender: Result<Box<dyn Contender + 'a>, String>,
}

/// What is given out and compared.
struct Dealer<'a> {
    truth: &'a Truth<'a>,
    target: &'a Target,
    of_drive: FreshPages,
    /// The plain file and its pages, where there is one.
    of_plain: Option<(&'a PlainFile, FreshPages)>,
    interrupt: &'a Interrupt,
    checked: u64,
}

/// How a batch went.
enum Turn {
    Took(Duration),
    /// The contender is gone.
    Lost(String),
    Wrong(Mismatch),
}

/// Opens the drive again, whose controller is closed, has the page cache forget its file and the plain one, and has everybody
/// answer batches in turns, after one that is not timed. An error of words: why there was no race.
pub(crate) fn run(
    args: &DemoArgs,
    workload: &Workload<'_>,
    place: &Place,
    ranks: &Arc<Ranks>,
    plain: &Result<PlainFile, String>,
    context: &Context,
) -> Result<Result<Cold, String>, Failure> {
    let truth = &workload.truth;
    let (rows, row_bytes) = (truth.rows(), truth.row_bytes() as u64);
    let most = usize::try_from(FreshPages::room(rows, row_bytes) / BATCHES).unwrap_or(BATCH);
    if workload.batch < LEAST {
        let ids = units::plural(workload.batch as u64, "id");
        return Ok(Err(format!("a batch has {ids}, and at least {LEAST} are needed")));
    }
    let most = most.min(workload.batch).min(BATCH);
    if most < LEAST {
        let bytes = units::bytes(rows * row_bytes);
        return Ok(Err(format!(
            "a table of {bytes} has too few pages for batches of {LEAST} ids of pages of their own"
        )));
    }
    let spinner = context.screen.spinner("forgetting the page cache");
    let (held, opened) = match place.hold().and_then(|held| Ok((held, place.open(Caching::Cached)?))) {
        Ok(opened) => opened,
        Err(reason) => return Ok(Err(reason)),
    };
    let read_only = OpenOptions::default().with_read_only();
    let store = Store::open(&[Device::new(opened, 1)], &read_only)?;
    let target = rivals::target(place, &store, ranks)?;
    let total = RefCell::default();
    let mut entries = Vec::new();
    for who in Who::ALL {
        let contender: Result<Box<dyn Contender>, String> = match who {
            Who::Warprow => Ok(Box::new(ours(&store, workload, most, &total)?)),
            Who::Direct => match place.open(Caching::Direct) {
                Ok(drive) => {
                    let store = Store::open(&[Device::new(drive, 1)], &read_only)?;
                    Ok(Box::new(ours(&store, workload, most, &total)?))
                }
                Err(reason) => Err(reason),
            },
            Who::Pread => {
                let made = Threads::new(THREADS, || PerId::pread(target.clone())).map(|it| Box::new(it) as _);
                rivals::enter(made, who.name(), most)?.map(|it| it as _)
            }
            Who::Mapped => {
                let made = PerId::mapped(target.clone()).map(|it| Box::new(it) as _);
                rivals::enter(made, who.name(), most)?.map(|it| it as _)
            }
            Who::Numpy => match plain {
                Ok(plain) => {
                    let made = rivals::numpy_again(plain, truth.dtype(), context).map(|it| Box::new(it) as _);
                    rivals::enter(made, who.name(), most)?.map(|it| it as _)
                }
                Err(reason) => Err(reason.clone()),
            },
        };
        entries.push(Entry { who, contender });
    }
    if context.interrupt.is_asked() {
        return Ok(Err("interrupted".to_owned()));
    }
    let plain = plain.as_ref().ok();
    let forgotten = File::open(&place.path).and_then(|file| forget(&file));
    let forgotten = forgotten.and_then(|()| plain.map_or(Ok(()), |plain| forget(plain.file())));
    spinner.finish_and_clear();
    if let Err(error) = forgotten {
        return Ok(Err(format!("the file lies on {}, and {error}", place.filesystem)));
    }
    let size = std::fs::metadata(&place.path).map_or(0, |found| found.len());
    let mut dealer = Dealer {
        truth,
        target: &target,
        of_drive: FreshPages::new(rows, size, args.seed),
        of_plain: plain.map(|plain| (plain, FreshPages::new(rows, plain.bytes(), args.seed ^ 1))),
        interrupt: &context.interrupt,
        checked: 0,
    };
    let time = TIME.min(Duration::from_secs_f64(args.seconds));
    let cold = race(&mut dealer, entries, most, time, context)?;
    drop((store, held));
    Ok(cold)
}

/// Warprow on a drive, without rows in memory.
fn ours<'a>(
    store: &Store,
    workload: &Workload<'_>,
    batch: usize,
    total: &'a RefCell<Report>,
) -> Result<Warprow<'a>, Failure> {
    let host = Host::attach(store, HostOptions::default().with_dram_bytes(0))?;
    let options = PlanOptions::default().with_max(batch, batch).with_out(workload.truth.dtype());
    let plan = host.plan(&[Feature::new(TABLE, TABLE)], options)?;
    Ok(Warprow { slot: plan.slot()?, width: plan.width(), mask: vec![0; batch], total, faulty: None })
}

/// One small batch of each that is not timed, and then so many of such a size that all of it takes about `time`.
fn race(
    dealer: &mut Dealer<'_>,
    mut entries: Vec<Entry<'_>>,
    most: usize,
    time: Duration,
    context: &Context,
) -> Result<Result<Cold, String>, Failure> {
    let bar = context.screen.thousandths("racing from the disk");
    let mut lines: Vec<Line> = entries
        .iter()
        .map(|entry| Line { who: entry.who, ms: entry.contender.as_ref().map(|_| Vec::new()).map_err(Clone::clone) })
        .collect();
    let first = (most / 32).clamp(LEAST, most);
    let (mut batch, mut rounds) = (first, 0);
    let (mut mismatch, mut interrupted) = (None, false);
    // Round 0 is the small one.
    let (mut round, mut taken) = (0, Duration::ZERO);
    'race: while round <= rounds {
        let size = if round == 0 { first } else { batch };
        let mut ids = vec![0; size];
        let mut rows = RowBuffer::new(dealer.truth.dtype(), size * dealer.truth.dim() as usize);
        for turn in 0..entries.len() {
            // Whoever goes first changes.
            let at = (turn + round) % entries.len();
            let (Entry { who, contender }, line) = (&mut entries[at], &mut lines[at]);
            let (Ok(answering), Ok(ms)) = (&mut *contender, &mut line.ms) else { continue };
            match dealer.turn(*who, &mut **answering, &mut ids, &mut rows)? {
                Turn::Took(took) if round == 0 => taken += took,
                Turn::Took(took) => ms.push(took.as_secs_f64() * 1e3),
                Turn::Wrong(wrong) => mismatch = Some((*who, wrong)),
                Turn::Lost(reason) => (*contender, line.ms) = (Err(reason.clone()), Err(reason)),
            }
            interrupted = dealer.interrupt.is_asked();
            if interrupted || mismatch.is_some() {
                break 'race;
            }
        }
        if round == 0 {
            (batch, rounds) = sizes(first, taken, most, time);
        }
        bar.set_position(round as u64 * 1000 / rounds as u64);
        round += 1;
    }
    bar.finish_and_clear();
    let rounds = rounds.min(round.saturating_sub(1));
    let read_around = dealer.of_plain.as_ref().and_then(|(plain, _)| read_around(plain.file()));
    Ok(Ok(Cold { batch, rounds, lines, read_around, checked: dealer.checked, mismatch, interrupted }))
}

/// Ids of a batch, `most` at most, and batches of each, so that all of them take about `time`, if one of `first` ids of each took
/// `taken`.
fn sizes(first: usize, taken: Duration, most: usize, time: Duration) -> (usize, usize) {
    let of_one_id = taken.as_secs_f64().max(1e-9) / first as f64;
    let rounds = (time.as_secs_f64() / (of_one_id * most as f64)) as usize;
    if rounds >= ROUNDS.1 {
        return (most, rounds.min(ROUNDS.0));
    }
    let batch = (time.as_secs_f64() / ROUNDS.1 as f64 / of_one_id) as usize;
    // The largest power of two that is not larger.
    let batch = 1 << batch.max(1).ilog2();
    (batch.clamp(LEAST, most), ROUNDS.1)
}

impl Dealer<'_> {
    /// Has `who` answer a batch whose pages nobody has read, and compares every row.
    fn turn(
        &mut self,
        who: Who,
        contender: &mut dyn Contender,
        ids: &mut [i64],
        rows: &mut RowBuffer,
    ) -> Result<Turn, Failure> {
        let dealt = match &mut self.of_plain {
            Some((plain, pages)) if who == Who::Numpy => pages.deal(ids, |id| plain.bytes_of(id)),
            _ => self.of_drive.deal(ids, |id| Some(self.target.bytes_of(id)?.1)),
        };
        dealt.map_err(|error| Failure::new(Class::Bug, who.name(), error.to_string()).remedy("please report it"))?;
        rows.bytes_mut().fill(POISON);
        settle();
        let begin = Instant::now();
        let answered = contender.answer(ids, rows);
        let taken = begin.elapsed();
        if let Err(failure) = answered {
            return Ok(Turn::Lost(rivals::is_lost(&failure).ok_or(failure)?));
        }
        let answer = Answer { rows: rows.bytes(), stride: self.truth.row_bytes(), mask: contender.mask() };
        let verified = verify(self.truth, ids, answer);
        if let Some(error) = self.truth.failed() {
            return Err(Failure::io("--table", "cannot be read", &error));
        }
        match verified {
            Ok(verified) => {
                self.checked += verified.rows;
                Ok(Turn::Took(contender.took().unwrap_or(taken)))
            }
            Err(mismatch) => Ok(Turn::Wrong(mismatch)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_disks_get_fewer_and_smaller_batches() {
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis);
        assert_eq!(sizes(64, ms(1), 1024, second), (1024, 5));
        assert_eq!(sizes(64, ms(15), 1024, second), (1024, 4));
        assert_eq!(sizes(64, ms(64), 1024, second), (256, 3));
        // A disk that takes 10 ms for each row of each of five.
        assert_eq!(sizes(64, ms(3200), 1024, second), (8, 3));
        assert_eq!(sizes(8, Duration::from_secs(3600), 1024, second), (8, 3));
        assert_eq!(sizes(8, Duration::ZERO, 30, second), (30, 5));
        assert_eq!(sizes(8, ms(100), 30, second), (16, 3));
    }
}
