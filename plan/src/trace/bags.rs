//! The ids of one table, query by query.

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
