//! What queries are read from.

use crate::error::ProposalError;
use crate::trace::bags::Bags;

/// What was looked up in one table or several, as a stream that can be read again.
pub trait QuerySource {
    /// How many tables it is of.
    fn width(&self) -> usize {
        1
    }

    /// Queries in all; a stream that does not know reads itself through, and begins anew.
    fn queries(&mut self) -> Result<u64, ProposalError>;

    /// Begins anew.
    fn rewind(&mut self) -> Result<(), ProposalError>;

    /// Appends up to `queries` queries to the bags of its tables and returns how many: fewer only at the end.
    fn read(&mut self, queries: usize, bags: &mut [Bags]) -> Result<usize, ProposalError>;
}
