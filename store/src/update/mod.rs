//! Updates: written to a log, shown by overlays, brought into chunks by compaction.

mod apply;
mod compact;
mod compactor;
mod desk;
mod expire;
mod key_changes;
mod kinship;
mod pending;
mod remove;
mod removed_ranks;
mod replace;
mod rewrite;
mod spec;
mod state;
#[cfg(test)]
mod tests;

pub use apply::UpdateOptions;
pub use compactor::{CompactionReport, Compactor, CompactorOptions};
pub use expire::{ExpireOptions, ExpireReport, ExpiredKeys};
pub use pending::{CompactionNeeds, PendingTable, PendingUpdates};
pub use replace::{CheckRows, FillRow, TakeRow};
pub(crate) use state::{Updates, is_updated};
