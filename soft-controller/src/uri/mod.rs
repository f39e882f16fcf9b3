//! Drives by name: `emulated:PATH?size=64G&lba=512&profile=p5800x`.

mod drive_uri;
mod error;
mod files;
mod holder;
mod new_drive;
mod open;
mod pace;
mod sidecar;
mod size;

pub use drive_uri::{BackingKind, DriveUri};
pub use error::UriError;
pub use files::{FileLock, in_use, lock_file};
pub use holder::{DriveInUse, LockHolder};
pub use new_drive::NewDrive;
pub use pace::ReadRate;
pub use size::{SizeError, parse_size};
