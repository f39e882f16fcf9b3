//! A trace in memory.

use std::ops::Range;

use crate::error::ProposalError;
use crate::trace::bags::Bags;
use crate::trace::query_source::QuerySource;

/// Queries that are there already, or a part of them.
#[derive(Debug, Clone)]
pub struct RecordedQueries<'a> {
    bags: &'a Bags,
    queries: Range<usize>,
    at: usize,
}

impl<'a> RecordedQueries<'a> {
    /// The queries `queries` of `bags`, as far as there are.
    pub fn new(bags: &'a Bags, queries: Range<usize>) -> Self {
        let end = queries.end.min(bags.ends.len());
        Self { bags, queries: queries.start.min(end)..end, at: 0 }
    }
}

impl QuerySource for RecordedQueries<'_> {
    fn queries(&mut self) -> Result<u64, ProposalError> {
        Ok(self.queries.len() as u64)
    }

    fn rewind(&mut self) -> Result<(), ProposalError> {
        self.at = 0;
        Ok(())
    }

    fn read(&mut self, queries: usize, bags: &mut [Bags]) -> Result<usize, ProposalError> {
        let Some(bags) = bags.first_mut() else { return Ok(0) };
        let got = queries.min(self.queries.len() - self.at);
        for query in self.queries.clone().skip(self.at).take(got) {
            bags.ids.extend_from_slice(self.bags.query(query));
            bags.end_query();
        }
        self.at += got;
        Ok(got)
    }
}
