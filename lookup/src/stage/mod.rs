//! The stages of a look-up, each a function of its name over plain slices. [`keys`](keys()) makes a number of each id,
//! the *key*, which is the same for all ids of one row; [`split_tiers`](split_tiers()) finds the ids whose rows lie on
//! drives. These ids go through [`dedupe`](dedupe()) → [`route`](route()) → [`order`](order()) → [`merge`](merge());
//! the executor then reads and expands. No stage allocates, except [`split`], which follows a failure.

mod chosen;
mod created;
mod dedupe;
mod distinct;
mod expand;
mod keyed;
mod keys;
mod locate;
mod merge;
mod merge_rule;
mod order;
mod removed;
mod route;
mod split_tiers;
mod updated;

pub use chosen::ChosenRanks;
pub(crate) use created::created;
pub use dedupe::{KeyTable, MISSING, NONE, PADDING, dedupe};
pub(crate) use distinct::{BitmapShape, CountBuffers, DistinctRows};
pub use expand::{Accumulator, E4M3, E5M2, Element, Mxfp8, Nvfp4, OutputElement, Q4, Q8, ScaledE4M3, convert, pool};
pub use keyed::{sparse_keys, sparse_mask};
pub use keys::{Id, KEY_FOUND, KEY_MISSING, KEY_PADDING, KeyCounts, MAX_ROWS, TABLE_SHIFT, keys, mask};
pub(crate) use locate::locate;
pub use merge::{ReadCommand, merge, split};
pub use merge_rule::MergeRule;
pub use order::order;
pub(crate) use removed::removed;
pub use route::{RouteTable, Routed, RowLocation, RowRead, route};
pub use split_tiers::{TierSplit, split_tiers};
pub(crate) use updated::updated;
