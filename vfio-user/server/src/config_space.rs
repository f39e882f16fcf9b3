//! PCI configuration space (PCI Express Base 4.0, 7.5): an NVMe controller with registers in BAR0, MSI-X in BAR4, power
//! management and function reset.

use warprow_soft_controller::SoftController;

/// Bytes of it, extended space included.
pub(crate) const SIZE: usize = 4096;

const COMMAND: usize = 0x04;
const BAR0: usize = 0x10;
const BAR4: usize = 0x20;
const POWER: usize = 0x40;
const MSIX: usize = 0x50;
const EXPRESS: usize = 0x60;
const DEVICE_CONTROL: usize = EXPRESS + 8;

/// Vendor, as the controller identifies itself, and a device that no driver knows: drivers go by the class.
const IDS: [u8; 4] = [0xf4, 0x1a, 0x52, 0x57];

/// Memory space, bus master, interrupt disable.
const COMMAND_BITS: u16 = 0x0406;
const BUS_MASTER: u16 = 1 << 2;
const FUNCTION_RESET: u16 = 1 << 15;

/// What a store asks of the rest of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    BusMaster(bool),
    Reset,
}

#[derive(Debug)]
pub(crate) struct ConfigSpace {
    bytes: Vec<u8>,
    /// Bits that a host can change.
    writable: Vec<u8>,
    initial: Vec<u8>,
    /// Lengths of the BARs, powers of two.
    pub(crate) bar0: u64,
    pub(crate) bar4: u64,
    /// Where in BAR4 the pending bits begin.
    pub(crate) pending: u64,
    pub(crate) vectors: u16,
}

impl ConfigSpace {
    /// The configuration space of a controller whose doorbells take so many bytes.
    pub(crate) fn new(controller: &SoftController, doorbells: usize) -> Self {
        // Bits 13:4 of BAR0 are reserved (NVMe PCIe Transport 1.0, 2.1.10). More than 2048 vectors there are not.
        let bar0 = (0x1000 + doorbells as u64).next_power_of_two().max(0x4000);
        let vectors = controller.interrupt_vectors().min(2048);
        let pending = (u64::from(vectors) * 16).next_multiple_of(4096);
        let bar4 = (pending + 4096).next_power_of_two();
        let mut new =
            Self { bytes: vec![0; SIZE], writable: vec![0; SIZE], initial: Vec::new(), bar0, bar4, pending, vectors };
        new.put(0x00, &IDS);
        new.let_write(COMMAND, &COMMAND_BITS.to_le_bytes());
        new.put(0x06, &[0x10, 0]);
        // Revision, then class: NVM Express I/O controller.
        new.put(0x08, &[1, 0x02, 0x08, 0x01]);
        new.put(0x2c, &IDS);
        new.put(0x34, &[POWER as u8]);
        new.let_write(0x3c, &[0xff]);
        for (at, size) in [(BAR0, bar0), (BAR4, bar4)] {
            // 64 bits wide, not prefetchable.
            new.put(at, &[4]);
            new.let_write(at, &(!(size - 1)).to_le_bytes());
        }
        // Power management, version 3; power state changes lose nothing.
        new.put(POWER, &[0x01, MSIX as u8, 0x03, 0, 0x08]);
        new.let_write(POWER + 4, &[0x03]);
        new.put(MSIX, &[0x11, EXPRESS as u8]);
        new.put(MSIX + 2, &(vectors - 1).to_le_bytes());
        new.let_write(MSIX + 3, &[0xc0]);
        new.put(MSIX + 4, &4u32.to_le_bytes());
        new.put(MSIX + 8, &(pending as u32 | 4).to_le_bytes());
        // PCI Express endpoint, version 2; function reset, role-based errors; 8 GT/s by four lanes.
        new.put(EXPRESS, &[0x10, 0, 0x02, 0]);
        new.put(EXPRESS + 4, &0x1000_8000u32.to_le_bytes());
        new.let_write(DEVICE_CONTROL, &[0xff, 0x7f]);
        new.put(EXPRESS + 0x0c, &0x43u32.to_le_bytes());
        new.let_write(EXPRESS + 0x10, &[0xfb, 0x0f]);
        new.put(EXPRESS + 0x12, &0x43u16.to_le_bytes());
        new.put(EXPRESS + 0x24, &0x10u32.to_le_bytes());
        new.let_write(EXPRESS + 0x28, &[0x1f]);
        new.initial = new.bytes.clone();
        new
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn let_write(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    fn command(&self) -> u16 {
        u16::from_le_bytes([self.bytes[COMMAND], self.bytes[COMMAND + 1]])
    }

    /// `None` outside.
    pub(crate) fn read(&self, at: u64, len: usize) -> Option<&[u8]> {
        self.bytes.get(usize::try_from(at).ok()?..)?.get(..len)
    }

    /// `None` outside.
    pub(crate) fn write(&mut self, at: u64, data: &[u8]) -> Option<Effect> {
        let at = usize::try_from(at).ok()?;
        let before = self.command();
        let end = at.checked_add(data.len())?;
        let mask = self.writable.get(at..end)?;
        for ((byte, &mask), &new) in self.bytes[at..end].iter_mut().zip(mask).zip(data) {
            *byte = *byte & !mask | new & mask;
        }
        // The bit reads as zero.
        let reset_byte = DEVICE_CONTROL + 1;
        if (at..end).contains(&reset_byte) && data[reset_byte - at] & (FUNCTION_RESET >> 8) as u8 != 0 {
            return Some(Effect::Reset);
        }
        let now = self.command();
        let changed = (before ^ now) & BUS_MASTER != 0;
        Some(if changed { Effect::BusMaster(now & BUS_MASTER != 0) } else { Effect::None })
    }

    /// As after power-on.
    pub(crate) fn reset(&mut self) {
        self.bytes.copy_from_slice(&self.initial);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        ConfigSpace::new(&SoftController::builder().queue_pairs(1024).stepped().build().unwrap(), 8200)
    }

    #[test]
    fn hosts_find_what_they_look_for() {
        let mut space = space();
        let word = |space: &ConfigSpace, at: u64| u32::from_le_bytes(space.read(at, 4).unwrap().try_into().unwrap());
        assert_eq!(word(&space, 8) >> 8, 0x0001_0802);
        for (bar, size) in [(0x10, 0x4000u64), (0x20, space.bar4)] {
            assert_eq!(space.write(bar, &[0xff; 8]), Some(Effect::None));
            let mask = u64::from(word(&space, bar)) | u64::from(word(&space, bar + 4)) << 32;
            assert_eq!((mask & 15, !(mask & !15) + 1), (4, size), "BAR at {bar:#x}");
        }
        let mut ids = Vec::new();
        let mut at = u64::from(space.read(0x34, 1).unwrap()[0]);
        while at != 0 {
            let cap = space.read(at, 2).unwrap();
            ids.push(cap[0]);
            at = cap[1].into();
        }
        assert_eq!(ids, [0x01, 0x11, 0x10]);
        assert_eq!(word(&space, 0x50) >> 16, 1024, "one vector more");
        assert!(space.pending >= 1025 * 16 && space.bar4 >= space.pending + 1025 / 8);
    }

    #[test]
    fn switches_are_noticed_and_bounds_kept() {
        let mut space = space();
        assert_eq!(space.write(4, &0xffffu16.to_le_bytes()), Some(Effect::BusMaster(true)));
        assert_eq!(space.read(4, 2), Some(&[0x06, 0x04][..]));
        assert_eq!(space.write(4, &[6]), Some(Effect::None));
        assert_eq!(space.write(5, &[0]), Some(Effect::None));
        assert_eq!(space.write(2, &[0, 0, 2, 0]), Some(Effect::BusMaster(false)));
        assert_eq!(space.write(0x68, &[0, 0x80]), Some(Effect::Reset));
        assert_eq!(space.write(0x69, &[0x80]), Some(Effect::Reset));
        assert_eq!(space.write(0x68, &[0x80, 0]), Some(Effect::None));
        for (at, len) in [(4096, 1), (4093, 4), (u64::MAX, 1), (0, 4097)] {
            assert_eq!(space.read(at, len), None);
            assert_eq!(space.write(at, &vec![0; len]), None);
        }
        space.write(0, &[0xff; 4]);
        assert_eq!(space.read(0, 2), Some(&IDS[..2]));
        space.reset();
        assert_eq!(space.read(0x10, 8), Some(&[4, 0, 0, 0, 0, 0, 0, 0][..]));
    }
}
