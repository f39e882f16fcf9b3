//! GPU memory that NVIDIA's kernel module gdrdrv pins and maps into this process (placement A⁻ of physical drives). The
//! numbers and structures are those of gdrdrv's interface from version 2.5 on.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno;
use warprow_dma::{DmaMemory, ImportError, PAGE};

/// The module's device file.
const DEVICE: &str = "/dev/gdrdrv";
/// A page of GPU memory as gdrdrv pins it, bytes.
pub(crate) const GPU_PAGE: u64 = 65_536;
/// The first version that says whether it pins persistently.
const NEEDED: Version = Version { major: 2, minor: 5 };

/// Why GPU memory cannot be had through gdrdrv.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GdrdrvError {
    /// There is no device file.
    #[error(
        "there is no {DEVICE}: install NVIDIA's GDRCopy 2.5 or later, load its module (modprobe gdrdrv), and make the device file, as \
         GDRCopy's service does"
    )]
    Absent,
    /// This user may not open the device file.
    #[error("no permission to open {DEVICE}; as root: chmod 666 {DEVICE}")]
    Permission,
    /// The device file cannot be opened.
    #[error("{DEVICE} cannot be opened: {0}")]
    Open(io::Error),
    /// The device file is not that of a gdrdrv which answers as one does.
    #[error("{DEVICE} does not answer as gdrdrv does ({what}: {errno}): load the module of GDRCopy 2.5 or later")]
    Foreign {
        /// What it was asked.
        what: &'static str,
        /// The system's answer.
        errno: Errno,
    },
    /// The module is too old to say how it pins.
    #[error(
        "gdrdrv is of version {major}.{minor}: 2.5 is needed, which says whether it pins persistently; install GDRCopy 2.5 or later"
    )]
    TooOld {
        /// The module's version, major part.
        major: u32,
        /// The module's version, minor part.
        minor: u32,
    },
    /// The module lets memory go with the process that allocated it.
    #[error(
        "gdrdrv does not pin persistently, so that the memory of a process that dies could be somebody else's while a drive still writes \
         to it: load gdrdrv without use_persistent_mapping=0, built against an NVIDIA driver that can (580 or later)"
    )]
    NotPersistent,
    /// The memory is not made of the GPU's pages.
    #[error("{bytes} bytes at {address:#x} on the GPU are no pages of 64 KiB, and gdrdrv pins no others")]
    Unaligned {
        /// The address on the GPU.
        address: u64,
        /// Length, bytes.
        bytes: u64,
    },
    /// NVIDIA's driver does not pin the memory.
    #[error("{bytes} bytes at {address:#x} on the GPU cannot be pinned: {errno}; {}", pin_remedy(*.errno))]
    Pin {
        /// The address on the GPU.
        address: u64,
        /// Length, bytes.
        bytes: u64,
        /// The system's answer.
        errno: Errno,
    },
    /// Pinned memory cannot be mapped into this process.
    #[error("GPU memory that gdrdrv has pinned cannot be mapped into this process: {0}")]
    Map(#[from] ImportError),
}

fn pin_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOMEM => {
            "the part of GPU memory that the bus reaches (BAR1) may be used up: ask for fewer queues, or turn resizable BAR on"
        }
        Errno::EBUSY => "somebody else still has it",
        _ => "the memory must be the GPU's own, and no part of a MIG device or of a virtual GPU",
    }
}

/// A version of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u32,
    minor: u32,
}

/// The number by which ioctls of gdrdrv are known.
const TYPE: u8 = 0xda;
/// The attribute that says whether memory is pinned persistently.
const USE_PERSISTENT_MAPPING: u32 = 1;

#[repr(C)]
#[derive(Default)]
struct GetVersion {
    version: u32,
    least_library: u32,
}

#[repr(C)]
#[derive(Default)]
struct GetAttribute {
    attribute: u32,
    value: u32,
}

#[repr(C)]
#[derive(Default)]
struct PinBuffer {
    address: u64,
    bytes: u64,
    flags: u32,
    reserved: u32,
    handle: u64,
}

#[repr(C)]
struct UnpinBuffer {
    handle: u64,
}

// All but the one that pins are numbered with the length of a pointer, which is also that of their structures here.
nix::ioctl_readwrite!(get_version, TYPE, 255, GetVersion);
nix::ioctl_readwrite!(get_attribute, TYPE, 6, GetAttribute);
nix::ioctl_readwrite!(pin_buffer, TYPE, 7, PinBuffer);
nix::ioctl_readwrite!(unpin_buffer, TYPE, 2, UnpinBuffer);

/// What pins GPU memory and maps it: gdrdrv, or what plays it in tests.
trait Pinner: fmt::Debug + Send + Sync {
    /// Pins pages of GPU memory. The result names them.
    fn pin(&self, address: u64, bytes: u64) -> Result<u64, Errno>;

    /// Maps all of what was pinned.
    fn map(&self, handle: u64, bytes: u64) -> Result<DmaMemory, ImportError>;

    /// Lets pages go. They are mapped nowhere any more.
    fn unpin(&self, handle: u64) -> Result<(), Errno>;

    /// With the last descriptor of this file, all that was pinned goes.
    fn file(&self) -> BorrowedFd<'_>;
}

impl Pinner for File {
    fn pin(&self, address: u64, bytes: u64) -> Result<u64, Errno> {
        let mut pin = PinBuffer { address, bytes, ..PinBuffer::default() };
        // SAFETY: an ioctl of gdrdrv's open file; it reads and writes the structure, which is as long as its number says.
        unsafe { pin_buffer(self.as_raw_fd(), &mut pin) }?;
        Ok(pin.handle)
    }

    fn map(&self, handle: u64, bytes: u64) -> Result<DmaMemory, ImportError> {
        DmaMemory::import_device(self.as_fd(), handle.saturating_mul(PAGE as u64), bytes)
    }

    fn unpin(&self, handle: u64) -> Result<(), Errno> {
        // SAFETY: as in `pin`.
        unsafe { unpin_buffer(self.as_raw_fd(), &mut UnpinBuffer { handle }) }.map(drop)
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}

/// An open file of gdrdrv, a module that pins persistently: GPU memory that is pinned through it stays until it is unpinned or the
/// last descriptor of this file is closed, whatever becomes of the process and of its CUDA context.
#[derive(Debug)]
pub struct Gdrdrv(Arc<dyn Pinner>);

impl Gdrdrv {
    /// Opens `/dev/gdrdrv`, if its module is one that pins persistently.
    pub fn open() -> Result<Self, GdrdrvError> {
        let file = File::options().read(true).write(true).open(DEVICE).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => GdrdrvError::Absent,
            io::ErrorKind::PermissionDenied => GdrdrvError::Permission,
            _ if [Errno::ENXIO, Errno::ENODEV].contains(&Errno::from_raw(error.raw_os_error().unwrap_or(0))) => {
                GdrdrvError::Absent
            }
            _ => GdrdrvError::Open(error),
        })?;
        let foreign = |what| move |errno| GdrdrvError::Foreign { what, errno };
        let mut version = GetVersion::default();
        // SAFETY: an ioctl of the open file; it writes the structure, which is as long as its number says.
        unsafe { get_version(file.as_raw_fd(), &mut version) }.map_err(foreign("its version"))?;
        check_version(version.version)?;
        let mut persistent = GetAttribute { attribute: USE_PERSISTENT_MAPPING, value: 0 };
        // SAFETY: as above.
        unsafe { get_attribute(file.as_raw_fd(), &mut persistent) }.map_err(foreign("how it pins"))?;
        if persistent.value == 0 {
            return Err(GdrdrvError::NotPersistent);
        }
        Ok(Self(Arc::new(file)))
    }

    /// Whether there is a device file of gdrdrv's.
    pub fn is_there() -> bool {
        std::path::Path::new(DEVICE).exists()
    }

    /// Pins GPU memory and maps it into this process. Address and length are multiples of 64 KiB.
    pub fn pin(&self, address: u64, bytes: u64) -> Result<GdrdrvMemory, GdrdrvError> {
        if bytes == 0 || !(address | bytes).is_multiple_of(GPU_PAGE) {
            return Err(GdrdrvError::Unaligned { address, bytes });
        }
        let handle = self.0.pin(address, bytes).map_err(|errno| GdrdrvError::Pin { address, bytes, errno })?;
        let pin = Pin { handle, by: self.0.clone(), stays: false };
        Ok(GdrdrvMemory { memory: self.0.map(handle, bytes)?, pin })
    }

    /// The open file, for whoever keeps the memory ([`Keeper::hold`](warprow_vfio::Keeper::hold)).
    pub fn file(&self) -> BorrowedFd<'_> {
        self.0.file()
    }
}

fn check_version(version: u32) -> Result<(), GdrdrvError> {
    let version = Version { major: version >> 16, minor: version & 0xffff };
    if version < NEEDED {
        return Err(GdrdrvError::TooOld { major: version.major, minor: version.minor });
    }
    Ok(())
}

/// Pinned memory of a GPU. Unpinned when dropped; while somebody else still has a handle of [`memory`](Self::memory), such as
/// a drive whose mapping could not be ended, it stays pinned until the process ends.
#[derive(Debug)]
pub struct GdrdrvMemory {
    // In the order in which they go: the module would take the mapping away from whoever has it.
    memory: DmaMemory,
    pin: Pin,
}

/// Pages that are pinned, until this is dropped.
#[derive(Debug)]
struct Pin {
    handle: u64,
    by: Arc<dyn Pinner>,
    /// Whether they are left pinned.
    stays: bool,
}

impl GdrdrvMemory {
    /// The host's mapping of the memory.
    pub fn memory(&self) -> &DmaMemory {
        &self.memory
    }
}

impl Drop for GdrdrvMemory {
    fn drop(&mut self) {
        self.pin.stays = self.memory.is_shared();
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.stays {
            tracing::error!("pinned GPU memory is still in use: it stays pinned until this process ends");
            std::mem::forget(self.by.clone());
        } else if let Err(errno) = self.by.unpin(self.handle) {
            tracing::error!(%errno, "GPU memory cannot be unpinned: it stays pinned until this process ends");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use warprow_dma::MemoryKind;

    use super::*;

    /// A gdrdrv that notes what it is asked for. Its memory is this process's.
    #[derive(Debug)]
    struct Noting {
        events: Mutex<Vec<String>>,
        refuses: Option<Errno>,
        /// Told whether memory that is unpinned is still mapped.
        mapped: Mutex<Vec<warprow_dma::WeakMemory>>,
        file: File,
    }

    impl Noting {
        fn new(refuses: Option<Errno>) -> Arc<Self> {
            let file = File::open("/dev/null").unwrap();
            Arc::new(Self { events: Mutex::default(), refuses, mapped: Mutex::default(), file })
        }

        fn note(&self, event: String) {
            self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        }

        fn events(&self) -> Vec<String> {
            self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
        }
    }

    impl Pinner for Noting {
        fn pin(&self, address: u64, bytes: u64) -> Result<u64, Errno> {
            self.note(format!("pin {address:#x} {bytes:#x}"));
            self.refuses.map_or(Ok(7), Err)
        }
        fn map(&self, handle: u64, bytes: u64) -> Result<DmaMemory, ImportError> {
            self.note(format!("map {handle}"));
            let memory = DmaMemory::allocate(bytes as usize, MemoryKind::Anonymous).unwrap();
            self.mapped.lock().unwrap().push(memory.downgrade());
            Ok(memory)
        }
        fn unpin(&self, handle: u64) -> Result<(), Errno> {
            let mapped = self.mapped.lock().unwrap().iter().any(|memory| !memory.is_gone());
            self.note(format!("unpin {handle}{}", if mapped { " while it is mapped" } else { "" }));
            Ok(())
        }
        fn file(&self) -> BorrowedFd<'_> {
            self.file.as_fd()
        }
    }

    /// gdrdrv.h of GDRCopy 2.6 computes these numbers and lengths.
    #[test]
    fn numbers_and_lengths_are_those_of_the_interface() {
        let numbers = [
            nix::request_code_readwrite!(TYPE, 255, size_of::<GetVersion>()),
            nix::request_code_readwrite!(TYPE, 6, size_of::<GetAttribute>()),
            nix::request_code_readwrite!(TYPE, 7, size_of::<PinBuffer>()),
            nix::request_code_readwrite!(TYPE, 2, size_of::<UnpinBuffer>()),
        ];
        assert_eq!(numbers, [0xc008_daff, 0xc008_da06, 0xc020_da07, 0xc008_da02]);
    }

    #[test]
    fn an_older_module_is_refused_by_its_version() {
        for (version, name) in [(1 << 16 | 9, "1.9"), (2 << 16 | 4, "2.4")] {
            let text = check_version(version).unwrap_err().to_string();
            assert!(text.contains(&format!("version {name}:")) && text.contains("GDRCopy 2.5"), "{text}");
        }
        for version in [2 << 16 | 5, 2 << 16 | 6, 3 << 16] {
            check_version(version).unwrap();
        }
    }

    #[test]
    fn memory_is_unpinned_after_it_is_unmapped() {
        let played = Noting::new(None);
        let pinned = Gdrdrv(played.clone()).pin(0x3_0000, 0x2_0000).unwrap();
        assert_eq!(pinned.memory().len(), 0x2_0000);
        assert_eq!(played.events(), ["pin 0x30000 0x20000", "map 7"]);
        drop(pinned);
        assert_eq!(played.events()[2..], ["unpin 7"]);
    }

    #[test]
    fn memory_that_somebody_still_has_stays_pinned() {
        let played = Noting::new(None);
        let pinned = Gdrdrv(played.clone()).pin(0, GPU_PAGE).unwrap();
        let others = pinned.memory().clone();
        drop(pinned);
        others.write(0, &[1, 2, 3]);
        drop(others);
        assert_eq!(played.events(), ["pin 0x0 0x10000", "map 7"]);
    }

    #[test]
    fn what_cannot_be_pinned_is_refused_by_name() {
        let played = Noting::new(Some(Errno::ENOMEM));
        let module = Gdrdrv(played.clone());
        for (address, bytes) in [(4096, GPU_PAGE), (0, 4096), (0, 0), (GPU_PAGE, GPU_PAGE + 1)] {
            let error = module.pin(address, bytes).unwrap_err();
            assert!(matches!(error, GdrdrvError::Unaligned { .. }) && error.to_string().contains("64 KiB"), "{error}");
        }
        assert_eq!(played.events(), [""; 0], "nothing is asked of the module");
        let error = module.pin(GPU_PAGE, GPU_PAGE).unwrap_err();
        assert!(matches!(error, GdrdrvError::Pin { errno: Errno::ENOMEM, .. }), "{error}");
        assert!(error.to_string().contains("BAR1"), "{error}");
        assert_eq!(played.events(), ["pin 0x10000 0x10000"], "what was not pinned is not unpinned");
    }
}
