//! Traces in files.

use warprow_traces::{Trace as Reader, TraceBlock, TraceSpec};

use crate::error::ProposalError;
use crate::trace::bags::Bags;
use crate::trace::query_source::QuerySource;

/// A trace in a file, whatever its format. Its tables are its slots.
#[derive(Debug)]
pub struct FileQueries {
    spec: TraceSpec,
    reader: Reader,
    block: TraceBlock,
    /// Samples of the block that were given out.
    given: usize,
    queries: Option<u64>,
    /// The slots that are wanted, by their numbers.
    slots: Vec<usize>,
}

impl FileQueries {
    /// Opens it and reads its headers.
    pub fn open(spec: &TraceSpec) -> Result<Self, ProposalError> {
        let reader = Reader::open(spec)?;
        let slots = (0..reader.slots().len()).collect();
        Ok(Self { spec: spec.clone(), reader, block: TraceBlock::default(), given: 0, queries: None, slots })
    }

    /// With these of its slots alone, by their numbers, in this order. A number that no slot has is one of empty lists.
    #[must_use]
    pub fn with_slots(self, slots: Vec<usize>) -> Self {
        Self { slots, ..self }
    }

    /// The names of its slots.
    pub fn slots(&self) -> impl Iterator<Item = &str> {
        self.slots.iter().filter_map(|&slot| Some(&*self.reader.slots().get(slot)?.name))
    }
}

impl QuerySource for FileQueries {
    fn width(&self) -> usize {
        self.slots.len()
    }

    fn queries(&mut self) -> Result<u64, ProposalError> {
        if let Some(queries) = self.queries {
            return Ok(queries);
        }
        while self.reader.next_block(&mut self.block)? {}
        let queries = self.reader.samples();
        if queries == 0 {
            return Err(Reader::empty(&self.spec).into());
        }
        self.queries = Some(queries);
        self.rewind()?;
        Ok(queries)
    }

    fn rewind(&mut self) -> Result<(), ProposalError> {
        (self.reader, self.block, self.given) = (Reader::open(&self.spec)?, TraceBlock::default(), 0);
        Ok(())
    }

    fn read(&mut self, queries: usize, bags: &mut [Bags]) -> Result<usize, ProposalError> {
        let mut got = 0;
        while got < queries {
            if self.given == self.block.len() {
                self.given = 0;
                if !self.reader.next_block(&mut self.block)? {
                    break;
                }
            }
            let samples = self.block.samples().skip(self.given).take(queries - got);
            let taken = samples.len();
            for sample in samples {
                for (&slot, bags) in self.slots.iter().zip(bags.iter_mut()) {
                    // Signed ones are in two's complement; of unsigned ones, those past 2⁶³ are of no table either.
                    bags.ids.extend(sample.keys(slot).iter().map(|&key| key as i64));
                    bags.end_query();
                }
            }
            self.given += taken;
            got += taken;
        }
        Ok(got)
    }
}
