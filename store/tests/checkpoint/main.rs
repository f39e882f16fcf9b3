//! Tables of checkpoints, read where they are: shards in many files, scales in other tensors, files that change.

mod changes;
mod files;
mod ids;
mod scales;
mod shards;
mod sharing;
