//! Traces that a seed makes: power laws, drift, and rows that belong together.

use warprow_workload::{IdShuffle, PowerLaw, SeededRandom, mix_all};

use crate::error::ProposalError;
use crate::trace::bags::Bags;
use crate::trace::query_source::QuerySource;

/// What the ids of a generated trace are like.
#[derive(Debug, Clone, Copy)]
pub enum IdPattern {
    /// Ids are drawn one by one. Of any million queries, a share of `drift` of what is drawn has other ids than in the million
    /// before: which rank belongs to which id changes one rank after another.
    PowerLaw {
        /// Distribution of the ranks.
        law: PowerLaw,
        /// The share of ranks that get another id within a million queries, from 0 to 1.
        drift: f64,
    },
    /// Rows belong to groups: a query asks for all rows of one group, drawn from the law, and for as many rows drawn alone.
    /// Which rows make a group follows from the seed ([`GeneratedQueries::group`]).
    Groups {
        /// Distribution of the groups.
        law: PowerLaw,
        /// Rows of a group.
        size: u64,
        /// Rows drawn alone, uniformly, in each query.
        noise: u64,
    },
}

/// A generated trace of one table: the same for the same seed.
#[derive(Debug, Clone)]
pub struct GeneratedQueries {
    pattern: IdPattern,
    /// Rows of the table.
    rows: u64,
    queries: u64,
    each: u64,
    seed: u64,
    shuffle: IdShuffle,
    at: u64,
}

impl GeneratedQueries {
    /// `queries` queries of `each` ids (of one group, whatever `each` says) in a table of `rows` rows.
    pub fn new(pattern: IdPattern, rows: u64, queries: u64, each: u64, seed: u64) -> Self {
        Self { pattern, rows, queries, each, seed, shuffle: IdShuffle::new(rows, seed), at: 0 }
    }

    /// The ids of a group.
    pub fn group(&self, group: u64, size: u64) -> impl Iterator<Item = u64> + '_ {
        (group * size..(group + 1) * size).map(|place| self.shuffle.id(place))
    }

    fn query(&self, number: u64, bags: &mut Bags) {
        let mut random = SeededRandom::new(mix_all([self.seed, number]));
        match self.pattern {
            IdPattern::PowerLaw { law, drift } => bags.ids.extend((0..self.each).map(|_| {
                let rank = law.sample(&mut random);
                // A rank turns to its next id once in 1/drift million queries, each at its own time.
                let phase = mix_all([self.seed, rank]) as f64 / u64::MAX as f64;
                let turn = (number as f64 / 1e6 * drift + phase) as u64;
                let place = if turn == 0 { rank } else { mix_all([self.seed, rank, turn]) % self.rows };
                self.shuffle.id(place) as i64
            })),
            IdPattern::Groups { law, size, noise } => {
                let group = law.sample(&mut random);
                bags.ids.extend(self.group(group, size).map(|id| id as i64));
                bags.ids.extend((0..noise).map(|_| random.below(self.rows) as i64));
            }
        }
    }
}

impl QuerySource for GeneratedQueries {
    fn queries(&mut self) -> Result<u64, ProposalError> {
        Ok(self.queries)
    }

    fn rewind(&mut self) -> Result<(), ProposalError> {
        self.at = 0;
        Ok(())
    }

    fn read(&mut self, queries: usize, bags: &mut [Bags]) -> Result<usize, ProposalError> {
        let Some(bags) = bags.first_mut() else { return Ok(0) };
        let got = (queries as u64).min(self.queries - self.at);
        for number in self.at..self.at + got {
            self.query(number, bags);
            bags.end_query();
        }
        self.at += got;
        Ok(got as usize)
    }
}
