//! The different rows in memory, counted while drives read.

use std::time::Duration;

use warprow_dma::{Clock, DmaMemory};
use warprow_driver::prp::IovaRange;

use crate::host::read::Meanwhile;
use crate::stage::{BitmapShape, CountBuffers, DistinctRows, ReadCommand};

/// Places that are counted between two looks at the drives.
const PLACES: usize = 1024;

/// Work to be done while drives read, before which the different rows in memory are counted: the count is for the
/// report alone, so it takes time in which drives work anyway.
pub(crate) struct Counted<'a, M> {
    pub work: M,
    clock: &'a dyn Clock,
    /// Places that have not been counted.
    places: &'a [u64],
    rows: DistinctRows<'a>,
    /// Time spent on counting.
    pub time: Duration,
}

impl<'a, M> Counted<'a, M> {
    /// The lists of `buffers` are as long as `places`.
    pub(crate) fn new(
        work: M,
        clock: &'a dyn Clock,
        places: &'a [u64],
        shape: BitmapShape,
        buffers: CountBuffers<'a>,
    ) -> Self {
        Self { work, clock, places, rows: DistinctRows::new(buffers, shape, places.len()), time: Duration::ZERO }
    }

    /// Different rows counted so far.
    pub(crate) fn count(&self) -> usize {
        self.rows.count()
    }
}

impl<M: Meanwhile> Meanwhile for Counted<'_, M> {
    fn step(&mut self) -> bool {
        if self.places.is_empty() {
            return self.work.step();
        }
        let began = self.clock.now();
        let (now, later) = self.places.split_at(self.places.len().min(PLACES));
        self.rows.add(now);
        self.places = later;
        self.time += self.clock.now().saturating_sub(began);
        true
    }

    #[inline]
    fn land(&mut self, command: &ReadCommand, memory: &DmaMemory, place: usize) {
        self.work.land(command, memory, place);
    }

    #[inline]
    fn output(&self, command: &ReadCommand, stretches: &mut Vec<IovaRange>) -> bool {
        self.work.output(command, stretches)
    }

    #[inline]
    fn landed(&mut self, command: &ReadCommand) {
        self.work.landed(command);
    }

    fn fail(&mut self, command: &ReadCommand) {
        self.work.fail(command);
    }

    fn parts(&self, command: &ReadCommand) -> Vec<ReadCommand> {
        self.work.parts(command)
    }
}
