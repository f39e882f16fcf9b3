//! The command, run as a user runs it.

mod against;
mod bad_input;
mod checkpoints;
mod columns;
mod convert;
mod damage;
mod demo;
mod drives_in_use;
mod export_all;
mod files;
mod fixture;
mod formats;
mod generations;
mod hotness;
mod incremental;
mod inherited;
mod keys;
mod log_room;
mod machine;
#[path = "../../../host/tests/machines/mod.rs"]
mod machines;
mod mending;
mod messages;
mod names;
mod new_drives;
mod passes;
mod plan;
mod properties;
mod rerank;
mod round_trip;
mod serve;
mod spread;
mod updates;
