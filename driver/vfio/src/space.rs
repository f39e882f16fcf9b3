use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use warprow_dma::DmaMemory;

use crate::iommufd::Ioas;
use crate::iova::IovaSpace;
use crate::map_error::{Limits, MapError};
use crate::sysfs::System;
use crate::type1::{Container, GroupDevice, group_file};
use crate::{OpenError, PciAddress, VfioInterface};

/// Address spaces in use, by IOMMU group: the kernel lets a group have one owner, so the group's functions share one
/// address space.
static SPACES: LazyLock<Mutex<HashMap<u32, Weak<AddressSpace>>>> = LazyLock::new(Mutex::default);

/// One I/O address space of the kernel, with its free addresses: that of the functions of one IOMMU group.
pub(crate) struct AddressSpace {
    backend: Backend,
    iovas: Mutex<IovaSpace>,
    functions: Mutex<HashSet<PciAddress>>,
}

/// The interface of the kernel that the space was made through.
enum Backend {
    Type1(Container),
    Iommufd(Ioas),
}

/// A function's open file; and, if the function was opened through its group, what keeps the group open.
pub(crate) type Opened = (File, Option<GroupDevice>);

/// One function's use of its address space. While it lives, this process does not open the function again, which the
/// kernel would allow.
pub(crate) struct Lease {
    space: Arc<AddressSpace>,
    address: PciAddress,
}

impl Deref for Lease {
    type Target = AddressSpace;

    fn deref(&self) -> &AddressSpace {
        &self.space
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.space.functions).remove(&self.address);
    }
}

impl Backend {
    fn new(
        interface: VfioInterface,
        system: &System,
        address: PciAddress,
        group: u32,
    ) -> Result<(Self, Opened), OpenError> {
        let backend = match interface {
            VfioInterface::Type1 => Self::Type1(Container::new(system, address, group)?),
            VfioInterface::Iommufd => Self::Iommufd(Ioas::new(address)?),
            VfioInterface::Auto => {
                let error = match Self::new(VfioInterface::Type1, system, address, group) {
                    Err(error) if worth_iommufd(&error) => error,
                    done => return done,
                };
                tracing::info!(%address, %error, "no way through the group: its own file is tried");
                // Of the two errors, the one of the group is returned: the group is the usual way.
                return Self::new(VfioInterface::Iommufd, system, address, group).map_err(|own| {
                    tracing::info!(%address, error = %own, "nor through its own file");
                    error
                });
            }
        };
        let opened = backend.attach(system, address, group)?;
        Ok((backend, opened))
    }

    fn attach(&self, system: &System, address: PciAddress, group: u32) -> Result<Opened, OpenError> {
        match self {
            Self::Type1(container) => {
                container.attach(system, address, group).map(|(file, device)| (file, Some(device)))
            }
            Self::Iommufd(ioas) => Ok((ioas.attach(system, address, &system.own_file(address)?)?, None)),
        }
    }

    /// The page sizes that the IOMMU maps, a bit for each, and the first and last address of each range that can be
    /// mapped.
    fn ranges(&self) -> io::Result<(u64, Vec<(u64, u64)>)> {
        match self {
            Self::Type1(container) => container.ranges(),
            Self::Iommufd(ioas) => ioas.ranges(),
        }
    }

    fn is_iommufd(&self) -> bool {
        matches!(self, Self::Iommufd(_))
    }
}

/// Whether a function that cannot be opened through its group may be opened through its own file.
fn worth_iommufd(error: &OpenError) -> bool {
    matches!(error, OpenError::NoVfio { .. } | OpenError::Permission { .. })
}

impl AddressSpace {
    /// Opens a function in its group's address space. Makes the address space if this is the group's first function.
    pub(crate) fn open(
        system: &System,
        address: PciAddress,
        group: u32,
        interface: VfioInterface,
    ) -> Result<(Lease, Opened), OpenError> {
        let mut spaces = lock(&SPACES);
        spaces.retain(|_, space| space.strong_count() > 0);
        if let Some(space) = spaces.get(&group).and_then(Weak::upgrade) {
            let path = space.file_of(system, address, group)?;
            let lease = space.lease(address).ok_or(OpenError::Busy { address, path })?;
            let opened = lease.backend.attach(system, address, group)?;
            return Ok((lease, opened));
        }
        let (backend, opened) = Backend::new(interface, system, address, group)?;
        // The kernel can describe the IOMMU only when a device is in the space.
        let (page_sizes, ranges) = backend.ranges().map_err(|e| OpenError::Malformed {
            address,
            what: format!("the kernel does not describe its IOMMU: {e}"),
        })?;
        let iovas = IovaSpace::new(page_sizes, &ranges, &system.pci_windows());
        let functions = Mutex::new(HashSet::from([address]));
        let space = Arc::new(Self { backend, iovas: Mutex::new(iovas), functions });
        spaces.insert(group, Arc::downgrade(&space));
        Ok((Lease { space, address }, opened))
    }

    fn file_of(&self, system: &System, address: PciAddress, group: u32) -> Result<PathBuf, OpenError> {
        if self.backend.is_iommufd() { system.own_file(address) } else { Ok(group_file(group)) }
    }

    fn lease(self: Arc<Self>, address: PciAddress) -> Option<Lease> {
        let free = lock(&self.functions).insert(address);
        free.then_some(Lease { space: self, address })
    }

    /// The interface that the space was made through; never [`VfioInterface::Auto`].
    pub(crate) fn interface(&self) -> VfioInterface {
        if self.backend.is_iommufd() { VfioInterface::Iommufd } else { VfioInterface::Type1 }
    }

    /// Maps `memory` at a fresh I/O virtual address.
    pub(crate) fn map(&self, memory: &DmaMemory) -> Result<u64, MapError> {
        let len = memory.len() as u64;
        let mut iovas = lock(&self.iovas);
        let page = iovas.page();
        if !len.is_multiple_of(page) || !memory.as_ptr().addr().is_multiple_of(page as usize) {
            return Err(MapError::Unaligned { page });
        }
        let iova = iovas.allocate(len).ok_or_else(|| iovas.exhausted(len))?;
        // SAFETY: the range is memory of `memory`, which whoever tracks the mapping keeps alive; Rust never reaches it
        // by reference, so that the device may write it at any time.
        let mapped = unsafe {
            match &self.backend {
                Backend::Type1(container) => container.map(iova, memory),
                Backend::Iommufd(ioas) => ioas.map(iova, memory),
            }
        };
        mapped.map(|()| iova).map_err(|errno| {
            iovas.release(iova, len);
            let iommufd = self.backend.is_iommufd();
            MapError::explain(errno, len, Limits::read(iommufd), iommufd)
        })
    }

    /// Ends a mapping of `len` bytes. After an error the addresses are not given out again: the device may still reach
    /// the memory.
    pub(crate) fn unmap(&self, iova: u64, len: usize) -> io::Result<()> {
        let mut iovas = lock(&self.iovas);
        match &self.backend {
            Backend::Type1(container) => container.unmap(iova, len)?,
            Backend::Iommufd(ioas) => ioas.unmap(iova, len as u64)?,
        }
        iovas.release(iova, len as u64);
        Ok(())
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On a machine without the function, whatever else it has.
    #[test]
    fn each_way_says_what_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let system = System { sys: folder.path().join("sys"), proc: folder.path().join("proc") };
        let address: PciAddress = "7f:1f.7".parse().unwrap();
        let tried = |interface| Backend::new(interface, &system, address, u32::MAX).err().unwrap();
        let own = tried(VfioInterface::Iommufd);
        assert!(matches!(own, OpenError::NoIommufd { .. } | OpenError::Permission { .. }), "{own}");
        let (group, auto) = (tried(VfioInterface::Type1).to_string(), tried(VfioInterface::Auto).to_string());
        assert!(group == auto && group != own.to_string(), "{group}; {auto}; {own}");
    }

    #[test]
    fn the_own_file_is_tried_where_there_is_no_way_through_the_group() {
        let address: PciAddress = "01:00.0".parse().unwrap();
        let path = PathBuf::from("/dev/vfio/7");
        assert!(worth_iommufd(&OpenError::NoVfio { address, source: io::ErrorKind::NotFound.into() }));
        assert!(worth_iommufd(&OpenError::Permission { address, path: path.clone() }));
        // Another owner is an owner of either; so are a group and an IOMMU that do not serve.
        assert!(!worth_iommufd(&OpenError::Busy { address, path }));
        assert!(!worth_iommufd(&OpenError::UnsafeInterrupts { address, module: "vfio_iommu_type1" }));
        assert!(!worth_iommufd(&OpenError::GroupNotViable { address, group: 7, others: Vec::new() }));
    }
}
