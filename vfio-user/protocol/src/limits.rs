//! The most that a peer may ask of us in one message or one connection.

use std::time::Duration;

/// Bytes of a message's payload: what a Region Write of [`MAX_TRANSFER`] takes, and the largest version data we look at.
pub const MAX_PAYLOAD: usize = MAX_TRANSFER + 64;
/// Bytes of a Region Read or Region Write.
pub const MAX_TRANSFER: usize = 64 << 10;
/// File descriptors that arrive with one message. More than 16 is refused by QEMU.
pub const MAX_FDS: usize = 16;
/// Bytes of the version message's JSON.
pub const MAX_JSON: usize = 4096;
/// Regions that a device may say it has.
pub const MAX_REGIONS: u32 = 64;
/// Interrupt types that a device may say it has.
pub const MAX_IRQS: u32 = 64;
/// Mappable areas of one region.
pub const MAX_AREAS: u32 = 64;
/// Bytes of the answer to Get Region Info that we make room for.
pub const MAX_REGION_INFO: u32 = 4096;
/// How long a message may take from its first byte to its last, either way.
pub const MESSAGE_TIME: Duration = Duration::from_secs(5);
