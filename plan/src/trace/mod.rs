//! Traces: what was looked up, query by query, read as a stream as often as it takes.

mod generated;
mod read;
mod recorded;

pub use generated::{Generated, Pattern};
pub use read::Read;
pub use recorded::Recorded;

use crate::PlanError;

/// The ids of one table in a stretch of a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bags {
    /// Ids, query after query. Negative ones are of no table.
    pub ids: Vec<i64>,
    /// Where each query's ids end.
    pub ends: Vec<u32>,
}

impl Bags {
    /// The ids of each query.
    pub fn queries(&self) -> impl Iterator<Item = &[i64]> {
        (0..self.ends.len()).map(|query| self.query(query))
    }

    /// The ids of query number `query`; none past the end.
    pub fn query(&self, query: usize) -> &[i64] {
        let end = |query: usize| self.ends.get(query).map_or(self.ids.len(), |&end| end as usize);
        let begin = query.checked_sub(1).map_or(0, end);
        self.ids.get(begin..end(query)).unwrap_or_default()
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.ends.clear();
    }

    /// Ends the query whose ids were pushed.
    pub fn end_query(&mut self) {
        self.ends.push(u32::try_from(self.ids.len()).unwrap_or(u32::MAX));
    }
}

/// What was looked up in one table or several, as a stream that can be read again.
pub trait Source {
    /// How many tables it is of.
    fn width(&self) -> usize {
        1
    }

    /// Queries in all; a stream that does not know reads itself through, and begins anew.
    fn queries(&mut self) -> Result<u64, PlanError>;

    /// Begins anew.
    fn rewind(&mut self) -> Result<(), PlanError>;

    /// Appends up to `queries` queries to the bags of its tables and returns how many: fewer only at the end.
    fn read(&mut self, queries: usize, bags: &mut [Bags]) -> Result<usize, PlanError>;
}

/// What is done with a block of queries: the number of the first, and the bags of each table.
pub type Each<'a> = dyn FnMut(u64, &[Bags]) -> Result<(), PlanError> + 'a;

/// A trace of several tables: the same queries in each.
pub struct Trace<'a> {
    tables: Vec<String>,
    sources: Vec<Box<dyn Source + 'a>>,
    queries: u64,
    at: u64,
}

impl std::fmt::Debug for Trace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trace").field("tables", &self.tables).field("queries", &self.queries).finish_non_exhaustive()
    }
}

impl<'a> Trace<'a> {
    /// Of sources, each with the names of its tables.
    pub fn new(named: Vec<(Vec<String>, Box<dyn Source + 'a>)>) -> Result<Self, PlanError> {
        let (mut tables, mut sources, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        for (names, mut source) in named {
            if names.len() != source.width() {
                let reason = format!("{} of a trace of {} tables are named", names.len(), source.width());
                return Err(PlanError::Option { option: "trace", reason });
            }
            counts.push((source.queries()?, names.first().cloned().unwrap_or_default()));
            tables.extend(names);
            sources.push(source);
        }
        let (Some(least), Some(most)) = (counts.iter().min(), counts.iter().max()) else {
            return Err(PlanError::NoTables);
        };
        if least.0 != most.0 {
            return Err(PlanError::Uneven { table: least.1.clone(), queries: least.0, longer: most.1.clone() });
        }
        Ok(Self { queries: least.0, tables, sources, at: 0 })
    }

    /// The tables, in the order of a block's bags.
    pub fn tables(&self) -> impl Iterator<Item = &str> {
        self.tables.iter().map(|name| &**name)
    }

    /// Queries in all.
    pub fn queries(&self) -> u64 {
        self.queries
    }

    /// Calls `each` with the blocks of up to `block` queries that make up queries `range`.
    pub fn replay(&mut self, range: std::ops::Range<u64>, block: usize, each: &mut Each<'_>) -> Result<(), PlanError> {
        if self.at > range.start {
            self.sources.iter_mut().try_for_each(|source| source.rewind())?;
            self.at = 0;
        }
        let mut bags = vec![Bags::default(); self.tables.len()];
        while self.at < range.end.min(self.queries) {
            let skipping = self.at < range.start;
            let until = if skipping { range.start } else { range.end.min(self.queries) };
            let wanted = usize::try_from(until - self.at).unwrap_or(usize::MAX).min(block.max(1));
            bags.iter_mut().for_each(Bags::clear);
            let mut rest = &mut bags[..];
            for source in &mut self.sources {
                let (mine, others) = rest.split_at_mut(source.width().min(rest.len()));
                if source.read(wanted, mine)? < wanted {
                    return Err(PlanError::Changed { queries: self.queries });
                }
                rest = others;
            }
            if !skipping {
                each(self.at, &bags)?;
            }
            self.at += wanted as u64;
        }
        Ok(())
    }
}
