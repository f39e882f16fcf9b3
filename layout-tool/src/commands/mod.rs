//! The commands. Each has its arguments and a function `run`.

pub mod bind;
mod context;
pub mod convert;
pub mod demo;
pub mod devices;
pub mod doctor;
mod done;
pub mod export;
mod export_all;
pub mod format;
pub mod generations;
pub mod gpu_rings;
pub mod incremental;
pub mod inspect;
pub(crate) mod keeper;
pub mod load;
pub mod lookup;
mod machine_args;
pub mod membership;

pub mod pass;
mod picture;
pub mod plan;
pub mod repair;
pub mod rerank;
pub mod scrub;
pub mod serve;
mod trial_format;
pub mod update;
pub mod verify;

pub use context::Context;
pub use done::CommandOutput;
pub use machine_args::MachineArgs;
