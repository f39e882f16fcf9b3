//! Which rows of a table executors keep in DRAM: a list apart from ranks, so that it changes without a row that moves.
//!
//! The lists of a store's tables are a generation of their own (`stored`), those of attached tables files beside these
//! (`beside`). A list is a hint: whatever ranks it has, rows are read from where they lie.

mod beside;
mod content;
mod model;
mod options;
mod rerank;
mod stored;

pub use model::DRAM_LISTS;
pub use options::{ListedRows, RerankOptions, RerankReport};

pub use beside::{read as read_list, write as write_list};

pub(crate) use beside::ListPlace;
pub(crate) use model::{is_lists, refuse_name};
