use std::fmt;

use cudarc::driver::sys::{CUdevice_attribute, CUresult};

/// Why the doorbell registers of a drive cannot be rung by a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegisterRefusal {
    /// The doorbells are no registers of a mapped BAR: the operating system does not let this part of the BAR be
    /// mapped, or the drive is behind a socket.
    Unmapped,
    /// The function does not answer to accesses of its registers: memory space is off in its PCI command register, and
    /// stays off.
    MemorySpaceOff,
    /// The kernel's pages are larger than 4 KiB, so that the doorbells share a page with the controller's other
    /// registers.
    LargePages,
    /// The mapping of the BAR ends before the doorbells of the controller's queues do.
    TooShort {
        /// Bytes that are mapped from BAR0 + 1000h on.
        mapped: u64,
        /// Bytes that the doorbells take.
        needed: u64,
    },
    /// CUDA wants a privilege that the process lacks.
    NotPermitted,
    /// The pages are registered already: by another CUDA context of this process, or by somebody else in it.
    AlreadyRegistered,
    /// The IOMMU translates what the GPU sends, and the kernel module does not map the drive's registers for it then.
    TranslatedGpu,
    /// Whether the IOMMU translates what the GPU sends cannot be read.
    UnknownDomain,
    /// The GPU's writes may overtake each other on their way (PCIe relaxed ordering is turned on).
    RelaxedOrdering,
    /// The process shares the GPU through MPS, where the GPU may go on after the process has died.
    Mps,
    /// The GPU reads the processor's page tables, or the processor is no x86-64: what a registration holds is not known
    /// there.
    HostPageTables,
    /// The module nvidia_uvm lets go of a dying process's mappings before the GPU is stopped.
    DyingProcess,
    /// The driver does not tell this attribute of the GPU, by which the facts above are known.
    UnknownAttribute(CUdevice_attribute),
    /// CUDA does not register memory of other devices here.
    Refused(CUresult),
}

impl fmt::Display for RegisterRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmapped => f.write_str("they are not in a BAR that this process can map"),
            Self::MemorySpaceOff => f.write_str(
                "memory space is off in the drive's PCI command register and stays off, so that no store reaches the drive; look at \
                 who turns it off (setpci, a power manager), and reset the drive: echo 1 > /sys/bus/pci/devices/ADDRESS/reset",
            ),
            Self::LargePages => f.write_str(
                "the kernel's pages are larger than 4 KiB, and the registers before the doorbells must stay out of the GPU's reach",
            ),
            Self::TooShort { mapped, needed } => write!(
                f,
                "{mapped} bytes of them are mapped, and {needed} are needed; ask the drive for fewer queues (ControllerOptions::queue_pairs)"
            ),
            Self::NotPermitted => f.write_str(
                "CUDA wants CAP_SYS_ADMIN for it: run as root, give the program the capability (setcap cap_sys_admin+ep), or load the \
                 module nvidia with NVreg_RegistryDwords=PeerMappingOverride=1",
            ),
            Self::AlreadyRegistered => f.write_str(
                "another CUDA context of this process, or another part of it, has registered them; one context rings the doorbells of a drive",
            ),
            Self::TranslatedGpu => f.write_str(
                "the IOMMU translates what the GPU sends (iommu_group/type is not identity), so that its stores would miss the drive; \
                 boot with iommu=pt, which leaves VFIO's drives behind the IOMMU",
            ),
            Self::UnknownDomain => f.write_str(
                "sysfs does not say whether the IOMMU translates what the GPU sends; show /sys to the container, or run outside of it",
            ),
            Self::RelaxedOrdering => f.write_str(
                "the module nvidia has PCIe relaxed ordering on, so that a doorbell could overtake its commands; load it without \
                 EnablePCIERelaxedOrderingMode and RmSetPCIERelaxedOrdering",
            ),
            Self::Mps => f.write_str("the process uses the GPU through MPS, where the GPU may go on when the process has died; run without MPS"),
            Self::HostPageTables => {
                f.write_str("the GPU uses the processor's page tables, or the processor is no x86-64, and nobody has tried that")
            }
            Self::DyingProcess => f.write_str(
                "the module nvidia_uvm has uvm_enable_va_space_mm=0, so that a drive could be let go while the GPU of a dying process \
                 still rings; load the module without that parameter",
            ),
            Self::UnknownAttribute(attribute) => write!(
                f,
                "the driver does not tell {attribute:?} of the GPU, and what its stores reach is not known without it; install NVIDIA's \
                 driver, 580 or later"
            ),
            Self::Refused(code) => write!(
                f,
                "CUDA refuses (cuMemHostRegister with IOMEMORY: {code:?}); NVIDIA's open kernel modules from 570.133.07 on are needed \
                 where the kernel is 6.10 or later"
            ),
        }
    }
}
