//! Traces: what was looked up, query by query, read as a stream as often as it takes.

mod bags;
mod generated;
mod query_source;
mod read;
mod recorded;
mod tables;

pub use bags::Bags;
pub use generated::{GeneratedQueries, IdPattern};
pub use query_source::QuerySource;
pub use read::FileQueries;
pub use recorded::RecordedQueries;
pub use tables::{QueryTrace, TakeQueries};
