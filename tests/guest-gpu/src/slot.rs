//! Slots of the guest's drives, which can be switched off.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};

/// Bits of the Slot Control register (PCI Express Base 5.0, 7.5.3.10): the power indicator is off, and so is the slot's power.
const INDICATOR_OFF: u16 = 0b11 << 8;
const POWER_OFF: u16 = 1 << 10;

/// The slot of a drive: where its Slot Control register is in the configuration space of the port, which init has lent to the tester.
pub(crate) struct Slot {
    port: File,
    control: u64,
    /// The register's value while the slot has power.
    on: u16,
}

impl Slot {
    /// The slot of the function at `address`.
    pub(crate) fn of(address: &str) -> Result<Self> {
        let path = format!("/tmp/slots/{address}");
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let [port, control, on] = words[..] else { anyhow::bail!("{path}: {text:?}") };
        let port = File::options().read(true).write(true).open(port).with_context(|| port.to_owned())?;
        let slot = Self { port, control: control.parse()?, on: on.parse()? };
        ensure!(slot.on & POWER_OFF == 0, "the slot of {address} has no power: {text:?}");
        Ok(slot)
    }

    /// Takes the drive out of the slot without a word to anybody: QEMU does so when both bits are set.
    pub(crate) fn pull(&self) -> Result<()> {
        let off = self.on | INDICATOR_OFF | POWER_OFF;
        self.port.write_all_at(&off.to_le_bytes(), self.control).context("switching the slot off")
    }
}
