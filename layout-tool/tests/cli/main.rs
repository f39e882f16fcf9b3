//! The command, run as a user runs it.

mod bad_input;
mod damage;
mod demo;
mod formats;
mod generations;
mod hotness;
mod incremental;
mod keys;
mod machine;
#[path = "../../../host/tests/machines/mod.rs"]
mod machines;
mod mending;
mod plan;
mod properties;
mod rig;
mod round_trip;
mod serve;
mod updates;
