use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions};
use vfio_bindings::bindings::vfio::VFIO_PCI_BAR0_REGION_INDEX;
use warprow_dma::Mmio;

use crate::region::Region;

/// Controller registers (NVMe Base 2.0, 3.1.3) and one pair of doorbells.
const LEAST: u64 = 0x1008;
/// More than the largest doorbell stride and queue count can reach ((2 × 65536) × 4 << 15 B, NVMe PCIe Transport 1.0, 3.1.2).
const MOST: u64 = 1 << 36;

/// BAR0 of a function: mapped where the kernel allows it, read and written through the file elsewhere.
pub(crate) struct Bar {
    size: u64,
    /// Where the region begins in the device's file.
    file_offset: u64,
    /// Each mapping, with its start in the BAR.
    areas: Vec<(u64, Mmio)>,
}

impl Bar {
    /// Maps the areas of the BAR that the kernel allows to be mapped. The inner error says what is wrong with the BAR.
    pub(crate) fn open(file: &File) -> Result<Self, String> {
        let region = Region::read(file, VFIO_PCI_BAR0_REGION_INDEX).map_err(|e| format!("cannot look at BAR0: {e}"))?;
        let Region { size, offset: file_offset, areas } = region;
        if !(LEAST..=MOST).contains(&size) {
            return Err(format!("BAR0 has {size:#x} bytes; an NVMe controller's has {LEAST:#x} to {MOST:#x}"));
        }
        if areas.is_empty() {
            return Err(
                "the kernel does not let BAR0 be mapped (is it smaller than a page, or shared with another device's?)"
                    .to_owned(),
            );
        }
        let map = |(start, len): (u64, u64)| {
            let mmio = map(file, file_offset + start, len as usize).map_err(|e| format!("cannot map BAR0: {e}"))?;
            Ok((start, mmio))
        };
        let areas = areas.into_iter().map(map).collect::<Result<_, String>>()?;
        Ok(Self { size, file_offset, areas })
    }

    /// Bytes of the BAR.
    pub(crate) fn bytes(&self) -> u64 {
        self.size
    }

    /// The mapping that holds a 32-bit register, and the offset of the register in that mapping.
    pub(crate) fn mapped(&self, offset: u64) -> Option<(&Mmio, usize)> {
        self.areas.iter().find_map(|(start, mmio)| {
            let inner = usize::try_from(offset.checked_sub(*start)?).ok()?;
            mmio.holds(inner, 4).then_some((mmio, inner))
        })
    }

    /// Loads a 32-bit register, which lies inside the BAR.
    pub(crate) fn read(&self, file: &File, offset: u64) -> io::Result<u32> {
        if let Some((mmio, inner)) = self.mapped(offset) {
            return Ok(mmio.read_u32(inner));
        }
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, self.file_offset + offset)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// Stores a 32-bit register, which lies inside the BAR.
    pub(crate) fn write(&self, file: &File, offset: u64, value: u32) -> io::Result<()> {
        match self.mapped(offset) {
            Some((mmio, inner)) => {
                mmio.write_u32(inner, value);
                Ok(())
            }
            None => file.write_all_at(&value.to_le_bytes(), self.file_offset + offset),
        }
    }
}

fn map(file: &File, offset: u64, len: usize) -> io::Result<Mmio> {
    let map = MmapOptions::new().offset(offset).len(len).map_raw(file)?;
    // A child of fork would keep the device open, and could store to its registers.
    map.advise(Advice::DontFork)?;
    let base = NonNull::new(map.as_mut_ptr()).ok_or_else(|| io::Error::other("mapped at address zero"))?;
    // SAFETY: a shared mapping of device registers, page-aligned, kept by the owner that is handed over; `MmapRaw` makes
    // no reference to it.
    Ok(unsafe { Mmio::new(base, len, Arc::new(map)) })
}
