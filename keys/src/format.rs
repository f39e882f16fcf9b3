//! The numbers of the format that users of an index may know.

/// Keys that an index may have.
pub const MAX_KEYS: u64 = 1 << 40;

/// The version of the bytes and of the function that they describe.
pub const FORMAT_VERSION: u32 = 1;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 128;
