//! What a driver and a device share: memory, registers, doorbells, and the rules of their order.
//!
//! Everything here that both a CPU and a device may touch is reached by raw volatile or atomic accesses, never through
//! a Rust reference; memory that they have by turns is behind one only while no device is told to write there ([`DmaBuffer`]). This is the
//! only crate of the driver (beside the VFIO transport) that contains `unsafe` code. Its public face is safe, but for
//! [`DmaBuffer::allocate`] and [`Mmio::new`].

mod buffer;
mod clock;
mod doorbell;
mod file_mapping;
mod function;
mod interrupt;
mod memory;
mod mmio;
pub mod order;
pub mod pci;
#[cfg(all(target_os = "linux", not(loom)))]
mod process_barrier;
mod sigbus;
pub mod stream;

pub use buffer::{BufferError, DmaBuffer};
pub use clock::{Clock, SystemClock};
pub use doorbell::{Doorbell, Ring, Wake};
pub use file_mapping::{FileMapping, MappingLost};
pub use function::{Function, FunctionError, Mapped};
pub use interrupt::{Event, Interrupt};
pub use memory::{AllocateError, Backing, DmaMemory, HUGE_PAGE, ImportError, PAGE, WeakMemory};
pub use mmio::Mmio;
