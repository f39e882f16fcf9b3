//! The stages of a look-up, each a function of its name over plain slices. [`keys`](keys()) and [`sieve`](sieve()) find the ids
//! whose rows lie on drives; for these [`dedupe`](dedupe()) → [`route`](route()) → [`order`](order()) → [`merge`](merge()),
//! then read and expand. None of them allocates, but for [`split`], which follows a failure.

mod created;
mod dedupe;
mod expand;
mod joining;
mod keyed;
mod keys;
mod merge;
mod order;
mod route;
mod sieve;
mod updated;

pub(crate) use created::created;
pub(crate) use dedupe::{Deduping, begin};
pub use dedupe::{KeyTable, MISSING, NONE, PADDING, dedupe};
pub use expand::{Acc, E4M3, E5M2, Element, Out, Q4, Q8, convert, pool};
pub use joining::Joining;
pub use keyed::{sparse_keys, sparse_mask};
pub use keys::{Id, KEY_FOUND, KEY_MISSING, KEY_PADDING, KeyCounts, MAX_ROWS, TABLE_SHIFT, keys, mask};
pub use merge::{Command, merge, split};
pub use order::order;
pub use route::{Location, RouteTable, Routed, RowRead, route};
pub use sieve::{Sieved, sieve};
pub(crate) use updated::updated;
