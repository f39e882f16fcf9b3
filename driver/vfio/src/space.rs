use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use nix::errno::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_INFO_PGSIZES, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, VFIO_TYPE,
    vfio_iommu_type1_info,
};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError};
use warprow_dma::DmaMemory;

use crate::iova::IovaSpace;
use crate::map_error::{Limits, MapError};
use crate::sysfs::System;
use crate::{OpenError, PciAddress};

/// What type 1 IOMMUs of kernels before 5.4 translate, for they don't say.
const LEGACY_RANGE: (u64, u64) = (0, (1 << 39) - 1);

/// Spaces in use, by IOMMU group: the kernel lets a group be opened once, so its functions share one.
static SPACES: LazyLock<Mutex<HashMap<u32, Weak<AddressSpace>>>> = LazyLock::new(Mutex::default);

nix::ioctl_read_bad!(iommu_get_info, nix::request_code_none!(VFIO_TYPE, VFIO_BASE + 12), u8);

/// One container: the I/O virtual addresses of the functions in it.
pub(crate) struct AddressSpace {
    container: Arc<VfioContainer>,
    iovas: Mutex<IovaSpace>,
    functions: Mutex<HashSet<PciAddress>>,
}

/// The right of one function to its address space. The kernel would let a process open a function twice.
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

impl AddressSpace {
    /// Opens a function in its group's address space, making that if this is the first.
    pub(crate) fn open(system: &System, address: PciAddress, group: u32) -> Result<(Lease, VfioDevice), OpenError> {
        let mut spaces = lock(&SPACES);
        spaces.retain(|_, space| space.strong_count() > 0);
        let open = |container: &Arc<VfioContainer>| {
            VfioDevice::new(&system.device(address), container.clone(), false)
                .map_err(|source| refusal(address, group, source))
        };
        if let Some(space) = spaces.get(&group).and_then(Weak::upgrade) {
            let lease = space.lease(address).ok_or_else(|| OpenError::Busy { address, path: group_file(group) })?;
            let device = open(&lease.container)?;
            return Ok((lease, device));
        }
        let container = Arc::new(VfioContainer::new(None).map_err(|source| refusal(address, group, source))?);
        let device = open(&container)?;
        // Only a container with a group in it has an IOMMU to ask.
        let info = IommuInfo::read(&container).map_err(|e| OpenError::Malformed {
            address,
            what: format!("the kernel does not describe its IOMMU: {e}"),
        })?;
        let iovas = IovaSpace::new(info.page_sizes, &info.ranges, &system.pci_windows());
        let functions = Mutex::new(HashSet::from([address]));
        let space = Arc::new(Self { container, iovas: Mutex::new(iovas), functions });
        spaces.insert(group, Arc::downgrade(&space));
        Ok((Lease { space, address }, device))
    }

    fn lease(self: Arc<Self>, address: PciAddress) -> Option<Lease> {
        let free = lock(&self.functions).insert(address);
        free.then_some(Lease { space: self, address })
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
        match unsafe { self.container.vfio_dma_map(iova, memory.len(), memory.as_ptr()) } {
            Ok(()) => Ok(iova),
            Err(error) => {
                iovas.release(iova, len);
                let VfioError::IommuDmaMap(errno) = error else { return Err(MapError::Refused(Errno::EIO)) };
                Err(MapError::explain(Errno::from_raw(errno.errno()), len, Limits::read(false), false))
            }
        }
    }

    /// Ends a mapping of `len` bytes. After an error the addresses stay taken: the device may still reach the memory.
    pub(crate) fn unmap(&self, iova: u64, len: usize) -> Result<(), VfioError> {
        let mut iovas = lock(&self.iovas);
        self.container.vfio_dma_unmap(iova, len)?;
        iovas.release(iova, len as u64);
        Ok(())
    }
}

/// What VFIO_IOMMU_GET_INFO says (linux/vfio.h).
#[derive(Debug, PartialEq, Eq)]
struct IommuInfo {
    page_sizes: u64,
    /// First and last address of each range that can be translated.
    ranges: Vec<(u64, u64)>,
}

impl IommuInfo {
    /// vfio-ioctls has no call for it.
    fn read(container: &VfioContainer) -> io::Result<Self> {
        let mut buffer = vec![0u8; size_of::<vfio_iommu_type1_info>()];
        // The kernel answers with the length it needs; it may grow in between, when devices come.
        for _ in 0..8 {
            let len = buffer.len() as u32;
            buffer[..4].copy_from_slice(&len.to_ne_bytes());
            // SAFETY: the descriptor is an open container; the buffer is as long as its first word says.
            unsafe { iommu_get_info(container.as_raw_fd(), buffer.as_mut_ptr())? };
            let needed = word(&buffer, 0).unwrap_or(0);
            if needed <= len {
                return Self::parse(&buffer).ok_or_else(|| io::Error::other("its answer contradicts itself"));
            }
            buffer = vec![0; needed as usize];
        }
        Err(io::Error::other("its answer keeps growing"))
    }

    fn parse(buffer: &[u8]) -> Option<Self> {
        let flags = word(buffer, 4)?;
        let page_sizes = if flags & VFIO_IOMMU_INFO_PGSIZES != 0 { long(buffer, 8)? } else { 4096 };
        let mut ranges = None;
        let mut at = if flags & VFIO_IOMMU_INFO_CAPS != 0 { word(buffer, 16)? as usize } else { 0 };
        // A chain of capabilities, each naming the offset of the next; 0 ends it, and it never runs backwards here.
        while at != 0 {
            let id = word(buffer, at)? & 0xffff;
            if id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE {
                let count = word(buffer, at + 8)? as usize;
                let range = |i: usize| Some((long(buffer, at + 16 + i * 16)?, long(buffer, at + 24 + i * 16)?));
                ranges = Some((0..count).map(range).collect::<Option<Vec<_>>>()?);
            }
            let next = word(buffer, at + 4)? as usize;
            if next != 0 && next <= at {
                return None;
            }
            at = next;
        }
        Some(Self { page_sizes, ranges: ranges.unwrap_or_else(|| vec![LEGACY_RANGE]) })
    }
}

fn word(buffer: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*buffer.get(at..)?.first_chunk()?))
}

fn long(buffer: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*buffer.get(at..)?.first_chunk()?))
}

fn refusal(address: PciAddress, group: u32, source: VfioError) -> OpenError {
    let path = group_file(group);
    let errno = |e: &io::Error| Errno::from_raw(e.raw_os_error().unwrap_or(0));
    match source {
        VfioError::OpenContainer(source) => OpenError::NoVfio { address, source },
        VfioError::OpenGroup(ref e, _) if e.kind() == io::ErrorKind::PermissionDenied => {
            OpenError::Permission { address, path }
        }
        VfioError::OpenGroup(ref e, _) if errno(e) == Errno::EBUSY => OpenError::Busy { address, path },
        source => OpenError::Vfio { address, source },
    }
}

fn group_file(group: u32) -> PathBuf {
    format!("/dev/vfio/{group}").into()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn answer(flags: u32, page_sizes: u64, caps: &[(u16, &[u64])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(0u32.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(page_sizes.to_ne_bytes());
        bytes.extend(if caps.is_empty() { 0u32 } else { 24 }.to_ne_bytes());
        bytes.extend([0; 4]);
        for (i, (id, words)) in caps.iter().enumerate() {
            let next = if i + 1 < caps.len() { bytes.len() + 8 + words.len() * 8 } else { 0 };
            bytes.extend(id.to_ne_bytes());
            bytes.extend(1u16.to_ne_bytes());
            bytes.extend((next as u32).to_ne_bytes());
            for word in *words {
                bytes.extend(word.to_ne_bytes());
            }
        }
        bytes
    }

    #[test]
    fn ranges_are_found_behind_other_capabilities() {
        let bytes = answer(3, 0x4020_1000, &[(2, &[1, 2, 3]), (1, &[2, 0x1000, 0x1fff, 0x4000, 0x7fff]), (3, &[9])]);
        let info = IommuInfo::parse(&bytes).unwrap();
        assert_eq!(info, IommuInfo { page_sizes: 0x4020_1000, ranges: vec![(0x1000, 0x1fff), (0x4000, 0x7fff)] });
    }

    #[test]
    fn an_old_kernel_gets_the_common_range() {
        let info = IommuInfo::parse(&answer(1, 0x1000, &[])).unwrap();
        assert_eq!(info.ranges, [LEGACY_RANGE]);
    }

    #[test]
    fn a_truncated_list_is_no_answer() {
        assert_eq!(IommuInfo::parse(&answer(3, 0x1000, &[(1, &[2, 0x1000, 0x1fff])])), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn any_answer_is_parsed_or_refused(mut bytes: Vec<u8>, caps: bool) {
            if caps && bytes.len() > 20 {
                bytes[4] |= 2;
                bytes[17..20].fill(0);
            }
            let _ = IommuInfo::parse(&bytes);
        }
    }
}
