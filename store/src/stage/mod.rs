//! The stages of a look-up, each a function of its name over plain slices:
//! [`keys`](keys()) → [`dedupe`](dedupe()) → [`route`](route()) → [`order`](order()) → [`merge`](merge()) → read →
//! expand. None of them allocates.

mod dedupe;
mod expand;
mod keys;
mod merge;
mod order;
mod route;

pub use dedupe::{KeyTable, MISSING, NONE, PADDING, dedupe};
pub use expand::{Acc, Element, Out, convert, pool};
pub use keys::{Id, KEY_MISSING, KEY_PADDING, KeyCounts, MAX_ROWS, TABLE_SHIFT, keys, mask};
pub use merge::{Command, merge};
pub use order::order;
pub use route::{Location, RouteTable, Routed, RowRead, route};
