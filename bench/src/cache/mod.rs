//! Hit rates of caches on traces, without rows: how a policy does beside others, a static tier, and the bound.

mod contenders;
mod sources;
mod text;

pub use contenders::{Compared, compare};
pub use sources::{Source, batches_of};
pub use text::{Tokens, ngrams};
