//! Why memory could not be mapped.

use std::fs;

use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Why memory could not be mapped for DMA, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MapError {
    #[error(
        "the IOMMU maps pages of {page} bytes, and the memory is not made of them: allocate it in multiples of that"
    )]
    Unaligned { page: u64 },
    #[error(
        "no {len} contiguous I/O virtual addresses are left: {free} in all, {largest} in one piece, and the IOMMU translates \
         {bits} bits of address. Unmap something first, or map in pieces"
    )]
    NoAddresses { len: u64, free: u64, largest: u64, bits: u32 },
    #[error(
        "RLIMIT_MEMLOCK is {limit_kib} KiB; {locked_kib} KiB are locked already, so it must be at least {needed_kib} KiB: run \
         `ulimit -l {needed_kib}` (or set memlock in /etc/security/limits.conf, LimitMEMLOCK= in a systemd unit, --ulimit memlock= \
         for a container){}",
        if *.per_user { ". All that the processes of this user have mapped through /dev/iommu counts together" } else { "" }
    )]
    Memlock { limit_kib: u64, locked_kib: u64, needed_kib: u64, per_user: bool },
    #[error(
        "RLIMIT_MEMLOCK is {limit_kib} KiB, and through /dev/iommu it holds for all processes of this user together: this one has \
         {locked_kib} KiB and asks for {more_kib} KiB, so others have the rest (io_uring counts too). End them, or raise the \
         limit: `ulimit -l` (or memlock in /etc/security/limits.conf, LimitMEMLOCK= in a systemd unit, --ulimit memlock= for a \
         container); or else the system is out of memory that it can pin"
    )]
    SharedMemlock { limit_kib: u64, locked_kib: u64, more_kib: u64 },
    #[error("the system is out of memory that it can pin: free some, or make the tier in DRAM smaller")]
    OutOfMemory,
    #[error(
        "the kernel's limit of mappings is reached{}: map fewer, larger pieces, or raise it, as root: \
         echo {} > /sys/module/vfio_iommu_type1/parameters/dma_entry_limit (holds for drives that are opened afterwards)",
        .limit.map(|limit| format!(" ({limit})")).unwrap_or_default(),
        .limit.unwrap_or(u64::from(u16::MAX)).saturating_mul(4)
    )]
    TooManyMappings { limit: Option<u64> },
    #[error(
        "its pages cannot be pinned: it is not ordinary memory{}",
        if *.through_iommufd { ". /dev/iommu takes no memory of devices, such as a GPU's; a VFIO group does (WARPROW_VFIO=type1)" } else { "" }
    )]
    NotPinnable { through_iommufd: bool },
    #[error("the kernel says: {0}")]
    Refused(Errno),
}

/// The limits that mappings of this process meet, as the system reports them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// RLIMIT_MEMLOCK, bytes; `None` without a limit.
    memlock: Option<u64>,
    /// Bytes that count against `memlock` already.
    locked: u64,
    /// Mappings that a type 1 container takes.
    mappings: Option<u64>,
}

impl Limits {
    /// Reads the limits of this process as they are now. The kernel counts pages mapped through iommufd as pinned
    /// (VmPin), pages mapped through type 1 as locked (VmLck).
    pub(crate) fn read(through_iommufd: bool) -> Self {
        let memlock = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(RLIM_INFINITY, |(soft, _)| soft);
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mappings = fs::read_to_string("/sys/module/vfio_iommu_type1/parameters/dma_entry_limit").ok();
        Self {
            memlock: (memlock != RLIM_INFINITY).then_some(memlock),
            locked: field(&status, if through_iommufd { "VmPin:" } else { "VmLck:" }),
            mappings: mappings.and_then(|text| text.trim().parse().ok()),
        }
    }
}

impl MapError {
    /// What it means that the kernel refused to map `len` bytes with this error number.
    pub(crate) fn explain(errno: Errno, len: u64, limits: Limits, through_iommufd: bool) -> Self {
        match errno {
            Errno::ENOMEM => {
                let needed_kib = limits.locked.saturating_add(len).div_ceil(1024);
                let locked_kib = limits.locked / 1024;
                match limits.memlock.map(|limit| limit / 1024) {
                    Some(limit_kib) if limit_kib < needed_kib => {
                        Self::Memlock { limit_kib, locked_kib, needed_kib, per_user: through_iommufd }
                    }
                    // How much this process has mapped is known; how much all processes of its user have is not.
                    Some(limit_kib) if through_iommufd => {
                        Self::SharedMemlock { limit_kib, locked_kib, more_kib: len.div_ceil(1024) }
                    }
                    _ => Self::OutOfMemory,
                }
            }
            // vfio_iommu_type1 counts mappings; iommufd has no such limit.
            Errno::ENOSPC if !through_iommufd => Self::TooManyMappings { limit: limits.mappings },
            Errno::EFAULT => Self::NotPinnable { through_iommufd },
            errno => Self::Refused(errno),
        }
    }
}

/// A field of /proc/self/status, in bytes.
fn field(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(errno: Errno, memlock: Option<u64>, locked: u64, len: u64, iommufd: bool) -> String {
        MapError::explain(errno, len, Limits { memlock, locked, mappings: Some(65535) }, iommufd).to_string()
    }

    #[test]
    fn the_memlock_limit_is_named_with_what_is_needed() {
        let text = |memlock, locked, len| text(Errno::ENOMEM, memlock, locked, len, false);
        let said = text(Some(64 << 10), 16 << 10, 1 << 20);
        assert!(
            said.contains("is 64 KiB") && said.contains("16 KiB are locked") && said.contains("ulimit -l 1040"),
            "{said}"
        );
        assert!(text(None, 0, 4096).contains("out of memory"));
        assert!(text(Some(1 << 30), 0, 4096).contains("out of memory"));
        assert!(text(Some(1 << 30), u64::MAX, u64::MAX).contains("RLIMIT_MEMLOCK"));
    }

    #[test]
    fn a_limit_of_mappings_is_no_limit_of_memory() {
        // Both limits are reached: the kernel's answer tells which one spoke.
        let said = text(Errno::ENOSPC, Some(0), 0, 4096, false);
        assert!(said.contains("limit of mappings is reached (65535)") && said.contains("echo 262140 >"), "{said}");
        assert!(!said.contains("MEMLOCK"), "{said}");
        let unknown = MapError::explain(Errno::ENOSPC, 4096, Limits::default(), false).to_string();
        assert!(unknown.contains("reached: map fewer"), "{unknown}");
    }

    #[test]
    fn iommufd_counts_for_the_user_and_takes_no_device_memory() {
        assert!(text(Errno::ENOMEM, Some(0), 0, 4096, true).contains("of this user"));
        let shared = text(Errno::ENOMEM, Some(64 << 20), 1 << 20, 48 << 20, true);
        for part in ["is 65536 KiB", "all processes of this user", "has 1024 KiB and asks for 49152 KiB", "ulimit -l"] {
            assert!(shared.contains(part), "{shared}");
        }
        assert!(text(Errno::ENOMEM, None, 0, 4096, true).contains("out of memory"));
        assert!(text(Errno::EFAULT, None, 0, 4096, true).contains("WARPROW_VFIO=type1"));
        assert!(!text(Errno::EFAULT, None, 0, 4096, false).contains("WARPROW_VFIO"));
        assert!(text(Errno::ENOSPC, None, 0, 4096, true).contains("ENOSPC"));
        assert!(text(Errno::EINVAL, None, 0, 4096, false).contains("EINVAL"));
    }

    #[test]
    fn fields_of_the_status() {
        let status = "VmPeak:\t  10 kB\nVmLck:\t     132 kB\nVmPin:\t       8 kB\n";
        assert_eq!((field(status, "VmLck:"), field(status, "VmPin:")), (132 << 10, 8 << 10));
        assert_eq!((field("nothing", "VmLck:"), field("VmLck:\t18446744073709551615 kB", "VmLck:")), (0, u64::MAX));
    }
}
