//! The NVMe specification as types: registers, queue entries, commands, Identify data, features, log pages and status
//! codes, for NVM Express Base 1.4 and 2.0 (and the NVM Command Set 1.0 and PCIe Transport 1.0 that 2.0 was split into).
//!
//! Conventions:
//! - Fields carry the spec's abbreviations in lower case. A field that the spec calls *0's based* ends in `_z`: a value
//!   of 0 means one.
//! - Structures that cross the bus are `#[repr(C)]`, implement zerocopy's traits and have their size asserted when
//!   compiled. Every bit pattern is a valid value, so data from a device can be viewed without checks; accessors that
//!   interpret a field return an `Option` where a device can be wrong.
//! - Values the spec leaves room in (opcodes, identifiers, event types) are open: a newtype over `u8` with named
//!   constants. An unknown value is carried and printed, never refused.
//! - Reserved fields are zero in everything built here. The `with_…` and `set_…` methods of bit fields take values
//!   that fit the field (checked in debug builds, truncated otherwise).
#![no_std]
#![forbid(unsafe_code)]

#[cfg(not(target_endian = "little"))]
compile_error!("warprow-spec lays NVMe structures over host integers: it needs a little-endian target");

mod open_enum;

pub mod admin;
pub mod ascii;
pub mod async_event;
mod command;
pub mod cqe;
pub mod features;
pub mod identify;
pub mod log;
pub mod nvm;
pub mod opcode;
pub mod registers;
pub mod sqe;
pub mod status;

pub use ascii::Ascii;
pub use cqe::Cqe;
pub use opcode::{AdminOpcode, DataTransfer, NvmOpcode};
pub use sqe::Sqe;
pub use status::{Status, StatusCode};
pub use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Namespace identifier that addresses every namespace of the controller (NVMe Base 2.0, 3.2.1.2; NVMe 1.4, 6.1.2).
pub const NSID_ALL: u32 = 0xffff_ffff;

/// Bytes of every Identify data structure (NVMe Base 2.0, 5.17; NVMe 1.4, 5.15).
pub const IDENTIFY_BYTES: usize = 4096;

/// Class code of an NVM Express I/O controller: mass storage, non-volatile memory, NVMe I/O programming interface
/// (NVMe PCIe Transport 1.0, 3.8.1 (CC); NVMe 1.4, 2.1.5).
pub const PCI_CLASS_CODE: u32 = 0x01_08_02;
