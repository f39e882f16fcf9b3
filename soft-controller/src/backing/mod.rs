//! What a namespace keeps its data in.

mod direct;
mod engine;
mod file;
mod file_end;
mod interface;
mod media_error;
mod null;
mod procedural;
mod ram;

pub use direct::DirectBacking;
pub use engine::{BackingEngine, BackingOperation, Piece};
pub use file::{FileBacking, will_need};
pub use interface::Backing;
pub(crate) use interface::DEPTH;
pub use media_error::MediaError;
pub use null::NullBacking;
pub use procedural::{ContentBlock, ProceduralBacking};
pub use ram::RamBacking;
