//! Loading tables: one generation, one commit.

mod buckets;
mod checksummed_rows;
mod give_back;
mod journal;
mod load_writer;
mod made_rows;
mod options;
mod places;
mod regions;
mod report;
mod run;
mod superseded;
mod table_load;
mod write_table;

pub use options::LoadOptions;
pub(crate) use regions::regions;
pub use report::{LoadProgress, LoadReport};
pub use table_load::TableLoad;
