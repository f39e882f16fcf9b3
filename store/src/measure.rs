//! A drive's read curve, measured: reads of LBAs that hold rows, with the queue kept full, one length after another.

use std::sync::Arc;
use std::time::Duration;

use warprow_dma::{Clock, MappedMemory};
use warprow_driver::prp::Data;
use warprow_driver::{CommandEnd, DriverError};

use crate::ReadCurve;
use crate::drive_access::{SharedPair, lock};
use crate::member::MemberDrive;
use crate::table_version::TableVersion;

/// How long one drive is measured, all lengths together; what is under way then is waited for.
const TIME: Duration = Duration::from_millis(50);
/// Commands in flight at most, and bytes: what is under way in the end has to be waited for.
pub(crate) const DEPTH: u32 = 1023;
const BYTES: u64 = 8 << 20;
/// Bytes of the longest reads that are measured.
const LONGEST: u64 = 32 << 10;
/// Places that are read, in turn.
const PLACES: usize = 4096;
/// Places that are read of a drive without rows: a file's holes that are read may take memory from then on.
const EMPTY_PLACES: u64 = 256;
/// Turns between two looks for commands that are overdue.
const TURNS: u32 = 64;
/// Fewer completions tell of nothing.
const LEAST: u64 = 8;
/// 2⁶⁴ divided by the plastic ratio, and by its square: pairs of their multiples are spread evenly.
const PLASTIC: [u64; 2] = [0xc13f_a9a9_02a6_328f, 0x91e1_0da5_c79e_7b1d];

/// Measures `member`, drive number `drive`, with up to `depth` commands in flight, where it holds rows of `tables`. `None`: it holds too little, or
/// is too slow to tell anything in that time.
pub(crate) fn measure(
    (drive, member): (u16, &Arc<MemberDrive>),
    tables: &[TableVersion],
    (depth, timeout): (u32, Duration),
    clock: &dyn Clock,
) -> Result<Option<ReadCurve>, DriverError> {
    let stripe = tables.iter().map(|table| table.generation.placement.stripe_lbas()).min().unwrap_or(0);
    measure_at(member, places(drive, tables), stripe, (depth, timeout), clock)
}

/// As [`measure`], of a drive that holds no rows yet: all over its namespace, whatever lies there. Nothing is written.
pub(crate) fn measure_empty(
    member: &Arc<MemberDrive>,
    (depth, timeout): (u32, Duration),
    clock: &dyn Clock,
) -> Result<Option<ReadCurve>, DriverError> {
    let stripe = LONGEST / u64::from(member.namespace().lba_bytes());
    let units = member.namespace().lba_count() / stripe.max(1);
    let places: Vec<u64> = (0..EMPTY_PLACES.min(units)).map(|draw| spread(draw, 0, units) * stripe).collect();
    // The first reads of places that nobody has read may cost more than any later ones, and would be taken for what short reads cost.
    let first = measure_at(member, places.clone(), stripe, (depth, timeout), clock)?;
    Ok(measure_at(member, places, stripe, (depth, timeout), clock)?.or(first))
}

/// Measures reads within the `stripe` LBAs from each of `places` on.
fn measure_at(
    member: &Arc<MemberDrive>,
    places: Vec<u64>,
    stripe: u64,
    (depth, timeout): (u32, Duration),
    clock: &dyn Clock,
) -> Result<Option<ReadCurve>, DriverError> {
    let lba_bytes = u64::from(member.namespace().lba_bytes());
    let longest = (LONGEST.min(member.transfer_limit()) / lba_bytes).min(stripe);
    let lengths: Vec<u64> = (0..16).map(|shift| 1 << shift).take_while(|&lbas| lbas <= longest).collect();
    let (Some(&longest), false) = (lengths.last(), places.is_empty()) else { return Ok(None) };

    let pair = member.shared_pair(depth.min(DEPTH), timeout)?;
    // Nobody looks at the data: all of it may land in one place.
    let memory = member.controller().allocate((longest * lba_bytes) as usize)?;
    lock(&pair).keep(memory.clone());
    let mut gauge = Gauge { pair, member, memory, places, stripe, clock, sent: 0, outstanding: 0 };
    let began = clock.now();
    let mut points = Vec::with_capacity(lengths.len());
    for &lbas in &lengths {
        let measured = match clock.now().saturating_sub(began) < TIME {
            true => gauge.rate(lbas, TIME / lengths.len() as u32)?,
            false => None,
        };
        let Some(rate) = measured else { break };
        points.push(((lbas * lba_bytes) as u32, rate));
    }
    Ok(ReadCurve::of_measured(&points))
}

/// Number `index` of a sequence that is spread evenly over the numbers below `count`, in one of two dimensions.
fn spread(index: u64, dimension: usize, count: u64) -> u64 {
    let fraction = index.wrapping_mul(PLASTIC[dimension]);
    ((u128::from(fraction) * u128::from(count)) >> 64) as u64
}

/// Where stripe units begin on a drive that rows of `tables` fill, all over them.
fn places(drive: u16, tables: &[TableVersion]) -> Vec<u64> {
    let units = |located: &TableVersion| {
        let stripe = located.generation.placement.stripe_lbas();
        let table = located.table();
        // The region may have room behind the last row.
        let begin = table.rows_region.first_lba;
        let last = table.rows.checked_sub(1).map_or(0, |last| table.packing.locate(last).0);
        let first = begin.div_ceil(stripe);
        let end = (begin + last + u64::from(table.packing.row_lbas())) / stripe;
        (first, end.saturating_sub(first))
    };
    let all: u64 = tables.iter().map(|table| units(table).1).sum();
    let mut places = Vec::new();
    for draw in 0..4 * PLACES as u64 {
        let mut unit = spread(draw, 0, all);
        for located in tables {
            let (first, count) = units(located);
            if unit < count {
                let placement = &located.generation.placement;
                let place = placement.locate((first + unit) * placement.stripe_lbas());
                places.extend(place.filter(|place| place.0 == drive).map(|place| place.1));
                break;
            }
            unit -= count;
        }
        if places.len() == PLACES {
            break;
        }
    }
    places
}

struct Gauge<'a> {
    pair: SharedPair,
    member: &'a MemberDrive,
    memory: Arc<MappedMemory>,
    places: Vec<u64>,
    /// LBAs from each place on.
    stripe: u64,
    clock: &'a dyn Clock,
    /// Commands so far.
    sent: u64,
    outstanding: u32,
}

impl Gauge<'_> {
    /// Reads of so many LBAs a second.
    fn rate(&mut self, lbas: u64, time: Duration) -> Result<Option<f64>, DriverError> {
        let began = self.clock.now();
        let mut answered = 0;
        let mut turn = 0u32;
        // What came while the queue was full: from when, and until when.
        let mut from = None;
        let mut until = None;
        loop {
            let full = self.clock.now().saturating_sub(began) < time;
            if full {
                self.send(lbas)?;
            } else if self.outstanding == 0 {
                break;
            }
            let came = self.take(turn % TURNS == TURNS - 1)?;
            if came == 0 {
                self.clock.relax(turn);
                turn = turn.wrapping_add(1);
                continue;
            }
            (turn, answered) = (0, answered + came);
            let now = self.clock.now();
            if from.is_none() && now.saturating_sub(began) >= time / 4 {
                from = Some((now, answered));
            } else if full {
                until = Some((now, answered));
            }
        }
        let (Some((from, first)), Some((until, last))) = (from, until) else { return Ok(None) };
        let count = last.saturating_sub(first);
        let seconds = until.saturating_sub(from).as_secs_f64();
        Ok((count >= LEAST && seconds > 0.0).then(|| count as f64 / seconds))
    }

    /// Fills the queue.
    fn send(&mut self, lbas: u64) -> Result<(), DriverError> {
        let mut pair = lock(&self.pair);
        let ns = self.member.namespace();
        let before = self.sent;
        let data = Data::Contiguous { iova: self.memory.iova(), len: lbas << ns.lba_shift() };
        let most = u32::try_from(BYTES / (lbas << ns.lba_shift())).unwrap_or(u32::MAX);
        while pair.has_room() && self.outstanding < most {
            let place = self.places.get(self.sent as usize % self.places.len().max(1)).copied().unwrap_or(0);
            // Another part of the unit each time.
            let parts = (self.stripe / lbas).max(1);
            let part = spread(self.sent, 1, parts);
            match pair.read(ns, place + part * lbas, lbas as u32, data, self.sent) {
                Ok(_) => (self.sent, self.outstanding) = (self.sent + 1, self.outstanding + 1),
                Err(refusal) => return Err(pair.refused(refusal)),
            }
        }
        if self.sent == before { Ok(()) } else { pair.ring() }
    }

    /// How many commands succeeded since. Bad blocks are no matter here; a drive that does not answer is.
    fn take(&mut self, expire: bool) -> Result<u64, DriverError> {
        let mut pair = lock(&self.pair);
        let mut succeeded = 0;
        let mut lost = None;
        let on = |completion: warprow_driver::Completion| {
            self.outstanding = self.outstanding.saturating_sub(1);
            match completion.ended {
                CommandEnd::Answered(status) => succeeded += u64::from(status.is_success()),
                CommandEnd::TimedOut | CommandEnd::Lost | CommandEnd::Released => lost = Some(completion),
            }
        };
        if expire { pair.expire(on) } else { pair.poll(on) }?;
        match lost.and_then(|completion| pair.error(&completion)) {
            Some(error) => Err(error),
            None => Ok(succeeded),
        }
    }
}
