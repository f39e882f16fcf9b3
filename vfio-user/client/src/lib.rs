//! The transport over vfio-user: an NVMe controller that another process serves on a UNIX socket.
//!
//! Made for SPDK's `nvmf_tgt`, QEMU's `x-vfio-user-server` and this project's own server. Registers are read and
//! written by messages, doorbells through a page that the server shares, or by messages where it shares none. The
//! device reaches memory that this process has made and given to the server:
//! [`Function::allocate`](warprow_dma::Function::allocate) makes such memory. Of interrupts only MSI-X vector 0 is
//! used, for waits for long admin commands; everything else is polled.
#![forbid(unsafe_code)]

mod arena;
mod connection;
mod error;
mod function;
mod iova;
mod reach;

pub use connection::AnswerTimeouts;
pub use error::OpenError;
pub use function::VfioUserFunction;
