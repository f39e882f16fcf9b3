//! Which rows are looked up most, counted in bounded memory while look-ups run: they leave a sample of their ids, and a thread
//! counts these.

mod counters;
mod counting;
mod options;
mod sampler;

pub use counters::{PopularRow, RowCounters, SampledId};
pub use counting::IdFeed;
pub use options::CounterOptions;
pub(crate) use sampler::Sampler;
