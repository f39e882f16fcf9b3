//! The transport over vfio-user: an NVMe controller that another process serves on a UNIX socket.
//!
//! Made for SPDK's `nvmf_tgt`, QEMU's `x-vfio-user-server` and this project's own server. Registers are read and written by
//! messages, doorbells through a page that the server shares, or by messages where it shares none. The device reaches memory that
//! this process has made and given it: [`Function::allocate`](warprow_dma::Function::allocate) makes such. No interrupts: the
//! driver polls.
#![forbid(unsafe_code)]

mod arena;
mod connection;
mod error;
mod function;
mod iova;
mod reach;

pub use connection::Patience;
pub use error::OpenError;
pub use function::VfioUserFunction;
