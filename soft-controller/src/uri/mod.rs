//! Drives by name: `emulated:PATH?size=64G&lba=512&profile=p5800x`.

mod drive_uri;
mod error;
mod files;
mod holder;
mod open;
mod sidecar;
mod size;

pub use drive_uri::{DriveUri, Store};
pub use error::UriError;
pub use files::{Held, hold, in_use};
pub use holder::{Holder, InUse};
