//! `warprow demo`.

mod arguments;
mod cold;
mod place;
mod replay;
mod report;
mod results;
mod rivals;
mod run;
mod trace;
mod warprow;
mod workload;

pub use arguments::{DemoArgs, Inject, Map};
pub(crate) use run::run;
