//! The newer interface of VFIO: a character device for each function (`/dev/vfio/devices/vfioN`), bound to an I/O
//! address space of `/dev/iommu` (`Documentation/userspace-api/iommufd.rst` in the kernel's sources).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use iommufd_bindings::iommufd::{
    IOMMUFD_CMD_IOAS_ALLOC, IOMMUFD_CMD_IOAS_IOVA_RANGES, IOMMUFD_CMD_IOAS_MAP, IOMMUFD_CMD_IOAS_UNMAP, IOMMUFD_TYPE,
    iommu_ioas_alloc, iommu_ioas_iova_ranges, iommu_ioas_map, iommu_ioas_unmap, iommu_iova_range,
    iommufd_ioas_map_flags_IOMMU_IOAS_MAP_FIXED_IOVA as FIXED_IOVA,
    iommufd_ioas_map_flags_IOMMU_IOAS_MAP_READABLE as READABLE,
    iommufd_ioas_map_flags_IOMMU_IOAS_MAP_WRITEABLE as WRITEABLE,
};
use nix::errno::Errno;
use vfio_bindings::bindings::vfio::{VFIO_BASE, VFIO_TYPE, vfio_device_attach_iommufd_pt, vfio_device_bind_iommufd};
use warprow_dma::DmaMemory;

use crate::sysfs::System;
use crate::{OpenError, PciAddress};

pub(crate) const DEV_IOMMU: &str = "/dev/iommu";

nix::ioctl_readwrite_bad!(ioas_alloc, nix::request_code_none!(IOMMUFD_TYPE, IOMMUFD_CMD_IOAS_ALLOC), iommu_ioas_alloc);
nix::ioctl_readwrite_bad!(
    ioas_iova_ranges,
    nix::request_code_none!(IOMMUFD_TYPE, IOMMUFD_CMD_IOAS_IOVA_RANGES),
    iommu_ioas_iova_ranges
);
nix::ioctl_readwrite_bad!(ioas_map, nix::request_code_none!(IOMMUFD_TYPE, IOMMUFD_CMD_IOAS_MAP), iommu_ioas_map);
nix::ioctl_readwrite_bad!(ioas_unmap, nix::request_code_none!(IOMMUFD_TYPE, IOMMUFD_CMD_IOAS_UNMAP), iommu_ioas_unmap);
nix::ioctl_readwrite_bad!(bind_iommufd, nix::request_code_none!(VFIO_TYPE, VFIO_BASE + 18), vfio_device_bind_iommufd);
nix::ioctl_readwrite_bad!(
    attach_iommufd_pt,
    nix::request_code_none!(VFIO_TYPE, VFIO_BASE + 19),
    vfio_device_attach_iommufd_pt
);

/// One I/O address space of `/dev/iommu`, which ends with this value and the devices in it.
pub(crate) struct Ioas {
    iommu: File,
    id: u32,
}

impl Ioas {
    pub(crate) fn new(address: PciAddress) -> Result<Self, OpenError> {
        let iommu = open(Path::new(DEV_IOMMU), address)?;
        let mut request = iommu_ioas_alloc { size: size_of::<iommu_ioas_alloc>() as u32, flags: 0, out_ioas_id: 0 };
        // SAFETY: the descriptor is /dev/iommu; the structure is the ioctl's, its length in its first word.
        unsafe { ioas_alloc(iommu.as_raw_fd(), &mut request) }
            .map_err(|errno| os(address, "making an I/O address space", errno))?;
        Ok(Self { iommu, id: request.out_ioas_id })
    }

    /// Opens a function's character device and puts it into this address space. Closing the file takes it out again.
    pub(crate) fn attach(&self, system: &System, address: PciAddress, path: &Path) -> Result<File, OpenError> {
        let device = open(path, address)?;
        let mut bind = vfio_device_bind_iommufd {
            argsz: size_of::<vfio_device_bind_iommufd>() as u32,
            iommufd: self.iommu.as_raw_fd(),
            ..Default::default()
        };
        // SAFETY: the descriptor is an open device; the structure is the ioctl's, its length in its first word.
        unsafe { bind_iommufd(device.as_raw_fd(), &mut bind) }
            .map_err(|errno| bind_refusal(address, path, system.vfio_members(address), errno))?;
        let mut attach = vfio_device_attach_iommufd_pt {
            argsz: size_of::<vfio_device_attach_iommufd_pt>() as u32,
            pt_id: self.id,
            ..Default::default()
        };
        // SAFETY: as above; the device is bound.
        unsafe { attach_iommufd_pt(device.as_raw_fd(), &mut attach) }
            .map_err(|errno| os(address, "attaching it to its I/O address space", errno))?;
        Ok(device)
    }

    /// The smallest unit of a mapping in bytes, and first and last address of each range that can be mapped. Only a space with
    /// a device in it knows.
    pub(crate) fn ranges(&self) -> io::Result<(u64, Vec<(u64, u64)>)> {
        let mut ranges = vec![iommu_iova_range { start: 0, last: 0 }; 16];
        for _ in 0..8 {
            let mut request = iommu_ioas_iova_ranges {
                size: size_of::<iommu_ioas_iova_ranges>() as u32,
                ioas_id: self.id,
                num_iovas: ranges.len() as u32,
                __reserved: 0,
                allowed_iovas: ranges.as_mut_ptr().expose_provenance() as u64,
                out_iova_alignment: 0,
            };
            // SAFETY: the descriptor is /dev/iommu; the structure is the ioctl's, its length in its first word, and the list
            // as long as it says.
            let answer = unsafe { ioas_iova_ranges(self.iommu.as_raw_fd(), &mut request) };
            let count = request.num_iovas as usize;
            match answer {
                Ok(_) if count <= ranges.len() => {
                    let list = ranges[..count].iter().map(|range| (range.start, range.last)).collect();
                    return Ok((request.out_iova_alignment, list));
                }
                Ok(_) | Err(Errno::EMSGSIZE) => ranges.resize(count.max(1), iommu_iova_range { start: 0, last: 0 }),
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(io::Error::other("its list of ranges keeps growing"))
    }

    /// Maps memory at an address that is free.
    ///
    /// # Safety
    ///
    /// Until [`unmap`](Self::unmap) the device may read and write the memory: it stays allocated, and behind no reference.
    pub(crate) unsafe fn map(&self, iova: u64, memory: &DmaMemory) -> nix::Result<()> {
        let mut request = iommu_ioas_map {
            size: size_of::<iommu_ioas_map>() as u32,
            flags: FIXED_IOVA | READABLE | WRITEABLE,
            ioas_id: self.id,
            __reserved: 0,
            user_va: memory.as_ptr().expose_provenance() as u64,
            length: memory.len() as u64,
            iova,
        };
        // SAFETY: the descriptor is /dev/iommu, the structure the ioctl's; the caller keeps the memory.
        unsafe { ioas_map(self.iommu.as_raw_fd(), &mut request) }.map(drop)
    }

    /// Ends a mapping of `len` bytes.
    pub(crate) fn unmap(&self, iova: u64, len: u64) -> io::Result<()> {
        let mut request =
            iommu_ioas_unmap { size: size_of::<iommu_ioas_unmap>() as u32, ioas_id: self.id, iova, length: len };
        // SAFETY: the descriptor is /dev/iommu; the structure is the ioctl's, its length in its first word.
        unsafe { ioas_unmap(self.iommu.as_raw_fd(), &mut request)? };
        if request.length == len {
            Ok(())
        } else {
            Err(io::Error::other(format!("the kernel unmapped {} bytes of {len}", request.length)))
        }
    }
}

fn open(path: &Path, address: PciAddress) -> Result<File, OpenError> {
    OpenOptions::new().read(true).write(true).open(path).map_err(|source| {
        let path = path.to_owned();
        match (source.kind(), Errno::from_raw(source.raw_os_error().unwrap_or(0))) {
            (io::ErrorKind::PermissionDenied, _) => OpenError::Permission { address, path },
            (_, Errno::EBUSY) => OpenError::Busy { address, path },
            _ => OpenError::NoIommufd { address, path, source },
        }
    })
}

fn bind_refusal(address: PciAddress, path: &Path, members: Vec<String>, errno: Errno) -> OpenError {
    match errno {
        // A device is opened through its group, or once through its own file (vfio/device_cdev.c, vfio_main.c).
        Errno::EBUSY | Errno::EINVAL => OpenError::Busy { address, path: path.to_owned() },
        // A group has one owner (iommu_device_claim_dma_owner). A function alone in its group is refused as busy before that.
        Errno::EPERM if !members.is_empty() => OpenError::GroupOwned { address, members },
        Errno::EPERM => OpenError::UnsafeInterrupts { address, module: "iommufd" },
        errno => os(address, "binding it to /dev/iommu", errno),
    }
}

fn os(address: PciAddress, what: &'static str, errno: Errno) -> OpenError {
    OpenError::Os { address, what, source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;
    use warprow_dma::MemoryKind;

    #[test]
    fn what_cannot_be_opened_is_named_with_its_remedy() {
        let address: PciAddress = "01:00.0".parse().unwrap();
        let missing = open(Path::new("/nonexistent/vfio0"), address).unwrap_err();
        assert!(matches!(missing, OpenError::NoIommufd { .. }));
        assert!(missing.to_string().contains("modprobe iommufd") && missing.to_string().contains("/nonexistent/vfio0"));
        let refusal = |errno, members| bind_refusal(address, Path::new("/dev/vfio/devices/vfio3"), members, errno);
        let text = |errno| refusal(errno, Vec::new()).to_string();
        assert!(text(Errno::EINVAL).contains("/dev/vfio/devices/vfio3 is open already"), "{}", text(Errno::EINVAL));
        assert!(text(Errno::EPERM).contains("/sys/module/iommufd/parameters/allow_unsafe_interrupts"));
        let owned = refusal(Errno::EPERM, vec!["0000:01:00.1".to_owned()]);
        assert!(
            matches!(owned, OpenError::GroupOwned { .. })
                && owned.to_string().contains("another process seems to have 0000:01:00.1 of this one"),
            "{owned}"
        );
        assert!(text(Errno::ENODEV).contains("0000:01:00.0: binding it to /dev/iommu: "));
    }

    /// As `linux/iommufd.h` and `linux/vfio.h` have them (6.12), on x86-64 and arm64.
    #[test]
    fn requests_are_the_kernels() {
        let iommufd = |command: u32| nix::request_code_none!(IOMMUFD_TYPE, command);
        let commands =
            [IOMMUFD_CMD_IOAS_ALLOC, IOMMUFD_CMD_IOAS_IOVA_RANGES, IOMMUFD_CMD_IOAS_MAP, IOMMUFD_CMD_IOAS_UNMAP];
        assert_eq!(commands.map(iommufd), [0x3b81, 0x3b84, 0x3b85, 0x3b86]);
        let vfio = |number: u32| nix::request_code_none!(VFIO_TYPE, VFIO_BASE + number);
        assert_eq!([18, 19].map(vfio), [0x3b76, 0x3b77]);
        assert_eq!((FIXED_IOVA, WRITEABLE, READABLE), (1, 2, 4));
        assert_eq!((size_of::<iommu_ioas_alloc>(), offset_of!(iommu_ioas_alloc, out_ioas_id)), (12, 8));
        assert_eq!((size_of::<iommu_iova_range>(), size_of::<iommu_ioas_iova_ranges>()), (16, 32));
        assert_eq!(
            (offset_of!(iommu_ioas_iova_ranges, allowed_iovas), offset_of!(iommu_ioas_iova_ranges, out_iova_alignment)),
            (16, 24)
        );
        assert_eq!(
            (size_of::<iommu_ioas_map>(), offset_of!(iommu_ioas_map, user_va), offset_of!(iommu_ioas_map, iova)),
            (40, 16, 32)
        );
        assert_eq!(
            (size_of::<iommu_ioas_unmap>(), offset_of!(iommu_ioas_unmap, iova), offset_of!(iommu_ioas_unmap, length)),
            (24, 8, 16)
        );
        // These two have grown: the kernel goes by the length that is said.
        assert_eq!(
            (offset_of!(vfio_device_bind_iommufd, iommufd), offset_of!(vfio_device_bind_iommufd, out_devid)),
            (8, 12)
        );
        assert_eq!(offset_of!(vfio_device_attach_iommufd_pt, pt_id), 8);
    }

    #[test]
    fn a_file_that_is_no_iommu_is_an_error_of_every_call() {
        let ioas = Ioas { iommu: File::open("/dev/null").unwrap(), id: 1 };
        assert_eq!(ioas.ranges().unwrap_err().raw_os_error(), Some(Errno::ENOTTY as i32));
        assert_eq!(ioas.unmap(0, 4096).unwrap_err().raw_os_error(), Some(Errno::ENOTTY as i32));
        let memory = DmaMemory::allocate(4096, MemoryKind::Anonymous).unwrap();
        // SAFETY: nothing is mapped: that is no device's file.
        assert_eq!(unsafe { ioas.map(0x1000, &memory) }, Err(Errno::ENOTTY));
        let folder = tempfile::tempdir().unwrap();
        let system = System { sys: folder.path().join("sys"), proc: folder.path().join("proc") };
        let error = ioas.attach(&system, "01:00.0".parse().unwrap(), Path::new("/dev/null")).unwrap_err();
        assert!(matches!(error, OpenError::Os { .. }), "{error}");
    }
}
