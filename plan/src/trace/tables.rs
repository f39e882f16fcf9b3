//! A trace of several tables, queries side by side.

use crate::error::ProposalError;
use crate::trace::bags::Bags;
use crate::trace::query_source::QuerySource;

/// What is done with a block of queries: the number of the first, and the bags of each table.
pub type TakeQueries<'a> = dyn FnMut(u64, &[Bags]) -> Result<(), ProposalError> + 'a;

/// A trace of several tables: the same queries in each.
pub struct QueryTrace<'a> {
    tables: Vec<String>,
    sources: Vec<Box<dyn QuerySource + 'a>>,
    queries: u64,
    at: u64,
}

impl std::fmt::Debug for QueryTrace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryTrace")
            .field("tables", &self.tables)
            .field("queries", &self.queries)
            .finish_non_exhaustive()
    }
}

impl<'a> QueryTrace<'a> {
    /// A trace made of sources, each with the names of its tables.
    pub fn new(named: Vec<(Vec<String>, Box<dyn QuerySource + 'a>)>) -> Result<Self, ProposalError> {
        let mut tables = Vec::new();
        let mut sources = Vec::new();
        let mut counts = Vec::new();
        for (names, mut source) in named {
            if names.len() != source.width() {
                let reason = format!("{} of a trace of {} tables are named", names.len(), source.width());
                return Err(ProposalError::Option { option: "trace", reason });
            }
            counts.push((source.queries()?, names.first().cloned().unwrap_or_default()));
            tables.extend(names);
            sources.push(source);
        }
        let (Some(least), Some(most)) = (counts.iter().min(), counts.iter().max()) else {
            return Err(ProposalError::NoTables);
        };
        if least.0 != most.0 {
            return Err(ProposalError::Uneven { table: least.1.clone(), queries: least.0, longer: most.1.clone() });
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
    pub fn replay(
        &mut self,
        range: std::ops::Range<u64>,
        block: usize,
        each: &mut TakeQueries<'_>,
    ) -> Result<(), ProposalError> {
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
                    return Err(ProposalError::Changed { queries: self.queries });
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
