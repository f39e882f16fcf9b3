//! What a driver and a device share: memory, registers, doorbells, and the rules in which order accesses to them take
//! effect.
//!
//! Everything here that both a CPU and a device may touch at once is reached by raw volatile or atomic accesses, never
//! through a Rust reference. Memory that a CPU and a device have by turns ([`DmaBuffer`]) is reached through a
//! reference only while no device is told to write there. This is the only crate of the driver (beside the VFIO
//! transport) that contains `unsafe` code. Its public interface is safe, except [`DmaBuffer::allocate`] and
//! [`Mmio::new`].

mod buffer;
mod clock;
mod doorbell;
mod file_mapping;
mod function;
mod interrupt;
mod memory;
mod mmio;
pub mod nontemporal;
pub mod order;
pub mod pci;
mod peer_memory;
pub mod prefetch;
#[cfg(all(target_os = "linux", not(loom)))]
mod process_barrier;
mod sigbus;

pub use buffer::{BufferError, DmaBuffer};
pub use clock::{Clock, SystemClock};
pub use doorbell::{Doorbell, RemoteDoorbell, Wake};
pub use file_mapping::{FileMapping, MappingLost};
pub use function::{Function, FunctionError, MappedMemory};
pub use interrupt::{EventfdInterrupt, Interrupt};
pub use memory::{AllocateError, DmaMemory, HUGE_PAGE, ImportError, MemoryKind, PAGE, WeakMemory};
pub use mmio::Mmio;
pub use peer_memory::{MappedPeerMemory, PeerMemory, PeerMemoryError};
