//! Helpers for implementing an executor. Users of executors do not need them.

pub use crate::chosen_rows::{ChosenRows, choose_ranks, usable_list};
pub use crate::popularity::{IdFeed, SampledId};
pub use crate::prepare::ReadPacer;
pub use crate::resolve::{Resolved, ResolvedFeature, ResolvedTable, output_type, resolve};
pub use crate::share::{MemoryClaim, scaled, share};
pub use crate::stage::ChosenRanks;
pub use crate::touches::{NotedTable, TouchRecord, TouchedTable};
