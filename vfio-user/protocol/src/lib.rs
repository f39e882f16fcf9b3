//! vfio-user: a PCI device behind a UNIX socket (`docs/vfio-user.rst` of libvfio-user, `docs/interop/vfio-user.rst` of QEMU).
//!
//! What client and server share: the messages as types, their parsing, and [`Channel`], which moves them with their file
//! descriptors under a deadline. Whatever a peer may send is bounded here: see [`limits`].
#![forbid(unsafe_code)]

#[cfg(not(target_endian = "little"))]
compile_error!("vfio-user is little-endian, and so are the hosts that this lays over its messages");

mod channel;
pub mod limits;
mod reply;
mod request;
mod version;
pub mod wire;

pub use channel::{Channel, ChannelError, Message};
pub use reply::{
    RegionDescription, device_info, dma_data, dma_written, irq_info, region_data, region_info, region_written,
    version_reply,
};
pub use request::{DmaRequest, IrqAction, IrqSource, Request, RequestRefusal, SetIrqs};
pub use version::{PeerCapabilities, Version};
