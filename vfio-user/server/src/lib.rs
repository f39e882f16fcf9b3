//! Serves a [`SoftController`] on a UNIX socket, as a PCI device that speaks vfio-user: to this project's client, to QEMU's
//! `vfio-user-pci` and with it to any operating system's NVMe driver, to SPDK.
//!
//! `docs/vfio-user.md` says which messages are understood, who owns what memory, and what becomes of a client that lies,
//! stalls or dies.
//!
//! [`SoftController`]: warprow_soft_controller::SoftController
#![forbid(unsafe_code)]

mod claim;
mod config_space;
mod server;
mod session;
mod vectors;
mod wire;

pub use claim::SocketClaim;
pub use server::{ServeError, ServerEvent, VfioUserServer};
