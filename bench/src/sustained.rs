//! Random reads without a pause: a queue that stays as full as it can, for as long as is measured.

use std::time::{Duration, Instant};

use anyhow::Context;
use warprow_driver::prp::Data;
use warprow_workload::{RowsAnswer, SeededRandom, verify};

use crate::drive::DriveResult;
use crate::ring::{Driven, RingSetup};

/// How long a rate is taken of.
const SPAN: Duration = Duration::from_millis(50);
/// One command of so many is kept, and compared after its span.
const KEPT: u64 = 32;
/// Turns between two looks at the clock.
const TURNS: u32 = 16;

/// A command's place in the landing memory: the block that is read there, and whether it will be compared.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    block: u64,
    kept: bool,
}

/// What was read, for comparing.
#[derive(Debug, Default)]
struct Kept {
    blocks: Vec<i64>,
    bytes: Vec<u8>,
}

struct Stream<'a> {
    driven: &'a mut Driven,
    random: SeededRandom,
    places: Vec<Place>,
    /// Places whose commands have ended.
    free: Vec<u64>,
    submitted: u64,
    completed: u64,
    kept: Kept,
    blocks: u64,
}

impl Stream<'_> {
    /// A command for every free place, with one store of the doorbell.
    fn submit(&mut self) -> anyhow::Result<()> {
        let (len, lbas) = self.driven.block;
        let iova = self.driven.landing.iova();
        for place in self.free.drain(..) {
            let block = self.random.below(self.blocks);
            self.submitted += 1;
            self.places[place as usize] = Place { block, kept: self.submitted.is_multiple_of(KEPT) };
            let data = Data::Contiguous { iova: iova + place * len, len };
            self.driven.queue.read(&self.driven.namespace, block * u64::from(lbas), lbas, data, place)?;
        }
        Ok(self.driven.queue.ring()?)
    }

    /// Waits until `least` places are free.
    fn collect(&mut self, least: usize) -> anyhow::Result<()> {
        let len = self.driven.block.0 as usize;
        while self.free.len() < least {
            let places = &self.places;
            let free = &mut self.free;
            let kept = &mut self.kept;
            let landing = self.driven.landing.memory();
            let mut failed = None;
            self.completed += u64::from(self.driven.queue.wait_for((least - free.len()) as u32, |completion| {
                let place = completion.tag;
                if !completion.is_success() {
                    failed = Some(completion);
                } else if let Some(Place { block, kept: true }) = places.get(place as usize) {
                    let begin = kept.bytes.len();
                    kept.blocks.push(*block as i64);
                    kept.bytes.resize(begin + len, 0);
                    landing.read(place as usize * len, &mut kept.bytes[begin..]);
                }
                free.push(place);
            })?);
            if let Some(error) = failed.and_then(|completion| self.driven.queue.error(&completion)) {
                return Err(error.into());
            }
        }
        Ok(())
    }

    /// Reads for `time`: commands a second from the first to the last moment of it.
    fn span(&mut self, time: Duration, together: usize) -> anyhow::Result<f64> {
        let begin = Instant::now();
        let before = self.completed;
        loop {
            for _ in 0..TURNS {
                self.collect(together)?;
                self.submit()?;
            }
            let took = begin.elapsed();
            if took >= time {
                return Ok((self.completed - before) as f64 / took.as_secs_f64());
            }
        }
    }
}

/// Measures for about `time`, at least 3 spans of 50 ms, of which the median counts. The first fill and the last commands are in none.
/// One block in 32 is compared byte for byte, and every block of the last commands.
pub(crate) fn run(driven: &mut Driven, setup: &RingSetup, time: Duration) -> anyhow::Result<DriveResult> {
    let depth = usize::from(setup.depth);
    // A doorbell for several commands, while others are in flight.
    let together = (depth / 2).max(1);
    let mut stream = Stream {
        random: SeededRandom::new(setup.seed),
        places: vec![Place::default(); depth],
        free: (0..depth as u64).collect(),
        submitted: 0,
        completed: 0,
        kept: Kept::default(),
        blocks: setup.blocks(),
        driven,
    };
    let mut rates = Vec::new();
    let mut checked = 0;
    stream.submit()?;
    stream.span(SPAN, together)?;
    let begin = Instant::now();
    while rates.len() < 3 || begin.elapsed() < time {
        // Comparing takes its time, in which the queue runs empty.
        stream.collect(1)?;
        stream.submit()?;
        rates.push(stream.span(SPAN, together)?);
        checked += stream.kept.check(setup)?;
    }
    stream.places.iter_mut().for_each(|place| place.kept = true);
    stream.collect(depth)?;
    checked += stream.kept.check(setup)?;
    let rounds = rates.len() as u32;
    Ok(DriveResult { commands_per_second: warprow_workload::median(rates), rounds, checked })
}

impl Kept {
    fn check(&mut self, setup: &RingSetup) -> anyhow::Result<u64> {
        let answer = RowsAnswer { rows: &self.bytes, stride: setup.block as usize, mask: None };
        let checked = verify(&setup.content(), &self.blocks, answer).context("a wrong block was read")?.rows;
        self.blocks.clear();
        self.bytes.clear();
        Ok(checked)
    }
}
