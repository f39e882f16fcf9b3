//! The older interface of VFIO: groups in a container with a type 1 IOMMU.

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_BASE, VFIO_IOMMU_INFO_CAPS, VFIO_IOMMU_INFO_PGSIZES, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, VFIO_TYPE,
    vfio_iommu_type1_info,
};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError};
use warprow_dma::DmaMemory;

use crate::answer::{ask, long, pairs, word};
use crate::sysfs::System;
use crate::{OpenError, PciAddress};

/// The addresses that type 1 IOMMUs translate in kernels before 5.4, which do not report them.
const LEGACY_RANGE: (u64, u64) = (0, (1 << 39) - 1);

nix::ioctl_read_bad!(iommu_get_info, nix::request_code_none!(VFIO_TYPE, VFIO_BASE + 12), u8);

/// A container with one group in it.
pub(crate) struct Container(Arc<VfioContainer>);

/// An open device of a group, held by the crate vfio-ioctls.
pub(crate) struct GroupDevice(ManuallyDrop<VfioDevice>);

impl Drop for GroupDevice {
    fn drop(&mut self) {
        // SAFETY: taken once, here; nothing uses the field after drop.
        let device = unsafe { ManuallyDrop::take(&mut self.0) };
        // vfio-ioctls 0.10 closes the device's file and then looks its group up in sysfs: for a drive that is pulled out at
        // that very moment it panics.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(device)));
    }
}

impl Container {
    pub(crate) fn new(system: &System, address: PciAddress, group: u32) -> Result<Self, OpenError> {
        let container = VfioContainer::new(None).map_err(|source| refusal(system, address, group, source))?;
        Ok(Self(Arc::new(container)))
    }

    /// Opens a function of the group; its file, and what holds its group.
    pub(crate) fn attach(
        &self,
        system: &System,
        address: PciAddress,
        group: u32,
    ) -> Result<(File, GroupDevice), OpenError> {
        let device = VfioDevice::new(&system.device(address), self.0.clone(), false)
            .map_err(|source| refusal(system, address, group, source))?;
        let device = GroupDevice(ManuallyDrop::new(device));
        // SAFETY: the descriptor is the device's, open for as long as `device` lives.
        let descriptor = unsafe { BorrowedFd::borrow_raw(device.0.as_raw_fd()) };
        // Its own descriptor, for reads and writes whose length is checked (vfio-ioctls only logs a short one).
        let file = descriptor.try_clone_to_owned().map_err(|source| OpenError::Os {
            address,
            what: "duplicating its file",
            source,
        })?;
        Ok((file.into(), device))
    }

    /// Page sizes, a bit for each, and first and last address of each range. Only a container with a group in it knows.
    pub(crate) fn ranges(&self) -> io::Result<(u64, Vec<(u64, u64)>)> {
        // vfio-ioctls has no call for it.
        let answer = ask(vec![0; size_of::<vfio_iommu_type1_info>()], |buffer| {
            // SAFETY: the descriptor is an open container; the buffer is as long as its first word says.
            unsafe { iommu_get_info(self.0.as_raw_fd(), buffer.as_mut_ptr()) }.map(drop)
        })?;
        parse_info(&answer).ok_or_else(|| io::Error::other("its answer contradicts itself"))
    }

    /// Maps memory at an address that is free.
    ///
    /// # Safety
    ///
    /// Until [`unmap`](Self::unmap) the device may read and write the memory: it stays allocated, and behind no reference.
    pub(crate) unsafe fn map(&self, iova: u64, memory: &DmaMemory) -> nix::Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.vfio_dma_map(iova, memory.len(), memory.as_ptr()) }.map_err(|error| match error {
            VfioError::IommuDmaMap(errno) => Errno::from_raw(errno.errno()),
            _ => Errno::EIO,
        })
    }

    /// Ends a mapping of `len` bytes.
    pub(crate) fn unmap(&self, iova: u64, len: usize) -> io::Result<()> {
        self.0.vfio_dma_unmap(iova, len).map_err(io::Error::other)
    }
}

/// What VFIO_IOMMU_GET_INFO says (linux/vfio.h).
fn parse_info(buffer: &[u8]) -> Option<(u64, Vec<(u64, u64)>)> {
    let flags = word(buffer, 4)?;
    let page_sizes = if flags & VFIO_IOMMU_INFO_PGSIZES != 0 { long(buffer, 8)? } else { 4096 };
    let first = if flags & VFIO_IOMMU_INFO_CAPS != 0 { word(buffer, 16)? } else { 0 };
    let ranges = pairs(buffer, first, VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE)?;
    Some((page_sizes, ranges.unwrap_or_else(|| vec![LEGACY_RANGE])))
}

fn refusal(system: &System, address: PciAddress, group: u32, source: VfioError) -> OpenError {
    let path = group_file(group);
    let errno = |e: &io::Error| Errno::from_raw(e.raw_os_error().unwrap_or(0));
    match source {
        VfioError::OpenContainer(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            OpenError::Permission { address, path: "/dev/vfio/vfio".into() }
        }
        VfioError::OpenContainer(source) => OpenError::NoVfio { address, source },
        VfioError::VfioExtension | VfioError::VfioApiVersion => {
            let source = io::Error::new(io::ErrorKind::Unsupported, "it has no type 1 IOMMU (vfio_iommu_type1)");
            OpenError::NoVfio { address, source }
        }
        VfioError::OpenGroup(ref e, _) if e.kind() == io::ErrorKind::PermissionDenied => {
            OpenError::Permission { address, path }
        }
        VfioError::OpenGroup(ref e, _) if errno(e) == Errno::EBUSY => OpenError::Busy { address, path },
        VfioError::OpenGroup(source, _) if source.kind() == io::ErrorKind::NotFound => OpenError::NoVfio {
            address,
            source: io::Error::new(io::ErrorKind::NotFound, format!("{} is not there", path.display())),
        },
        // It was viable a moment ago: somebody has bound a member meanwhile.
        VfioError::GroupViable => {
            OpenError::GroupNotViable { address, group, others: system.foreign_members(address).unwrap_or_default() }
        }
        VfioError::ContainerSetIOMMU(ref e) if Errno::from_raw(e.errno()) == Errno::EPERM => {
            OpenError::UnsafeInterrupts { address, module: "vfio_iommu_type1" }
        }
        source => OpenError::Vfio { address, source },
    }
}

pub(crate) fn group_file(group: u32) -> PathBuf {
    format!("/dev/vfio/{group}").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::chained;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn answer(flags: u32, page_sizes: u64, caps: &[(u16, &[u64])]) -> Vec<u8> {
        let mut head = Vec::new();
        head.extend(0u32.to_ne_bytes());
        head.extend(flags.to_ne_bytes());
        head.extend(page_sizes.to_ne_bytes());
        head.extend(if caps.is_empty() { 0u32 } else { 24 }.to_ne_bytes());
        head.extend([0; 4]);
        chained(&head, caps)
    }

    #[test]
    fn ranges_are_found_behind_other_capabilities() {
        let bytes = answer(3, 0x4020_1000, &[(2, &[1, 2, 3]), (1, &[2, 0x1000, 0x1fff, 0x4000, 0x7fff]), (3, &[9])]);
        assert_eq!(parse_info(&bytes), Some((0x4020_1000, vec![(0x1000, 0x1fff), (0x4000, 0x7fff)])));
    }

    #[test]
    fn an_old_kernel_gets_the_common_range() {
        assert_eq!(parse_info(&answer(1, 0x1000, &[])), Some((4096, vec![LEGACY_RANGE])));
    }

    #[test]
    fn a_truncated_list_is_no_answer() {
        assert_eq!(parse_info(&answer(3, 0x1000, &[(1, &[2, 0x1000, 0x1fff])])), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(0x5eed), ..ProptestConfig::default() })]

        #[test]
        fn any_answer_is_parsed_or_refused(mut bytes: Vec<u8>, caps: bool) {
            if caps && bytes.len() > 20 {
                bytes[4] |= 2;
                bytes[17..20].fill(0);
            }
            let _ = parse_info(&bytes);
        }
    }

    #[test]
    fn refusals_of_the_kernel_are_told_apart() {
        use io::Error;
        let address: PciAddress = "01:00.0".parse().unwrap();
        let of = |source| refusal(&System::host(), address, 7, source);
        let group = |errno: Errno| of(VfioError::OpenGroup(Error::from(errno), "7".to_owned()));
        let container = |errno: Errno| of(VfioError::OpenContainer(Error::from(errno)));
        assert!(matches!(group(Errno::EACCES), OpenError::Permission { path, .. } if path == group_file(7)));
        assert!(matches!(group(Errno::EBUSY), OpenError::Busy { .. }));
        assert!(matches!(group(Errno::ENOENT), OpenError::NoVfio { .. }));
        assert!(group(Errno::EIO).to_string().contains("failed to open /dev/vfio/7"));
        assert!(container(Errno::ENOENT).to_string().contains("modprobe vfio-pci"));
        assert!(container(Errno::EACCES).to_string().contains("chown $USER /dev/vfio/vfio"));
        assert!(of(VfioError::VfioExtension).to_string().contains("no type 1 IOMMU"));
        assert!(matches!(of(VfioError::GroupViable), OpenError::GroupNotViable { group: 7, .. }));
    }
}
