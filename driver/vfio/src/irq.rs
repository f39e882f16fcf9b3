//! MSI-X through eventfds (VFIO_DEVICE_SET_IRQS).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_MSIX_IRQ_INDEX, VFIO_TYPE,
};

nix::ioctl_write_ptr_bad!(set_irqs, nix::request_code_none!(VFIO_TYPE, VFIO_BASE + 10), Request);

/// `struct vfio_irq_set`, with one descriptor behind it.
#[repr(C)]
struct Request {
    argsz: u32,
    flags: u32,
    index: u32,
    start: u32,
    count: u32,
    eventfd: i32,
}

/// Enables MSI-X and has the kernel signal `eventfd` at each interrupt of vector 0, in place of any eventfd that it
/// signalled before. The kernel refuses functions without MSI-X (EINVAL).
pub(crate) fn signal(device: &File, eventfd: BorrowedFd<'_>) -> io::Result<()> {
    let request = Request {
        argsz: size_of::<Request>() as u32,
        flags: VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
        index: VFIO_PCI_MSIX_IRQ_INDEX,
        start: 0,
        count: 1,
        eventfd: eventfd.as_raw_fd(),
    };
    // SAFETY: the descriptor is an open device; the request is as long as it says, and the kernel only reads it, taking its
    // own reference to the eventfd.
    unsafe { set_irqs(device.as_raw_fd(), &request) }?;
    Ok(())
}
