//! What functions over VFIO and over vfio-user have in common: how their registers are read and written.

use std::io;

use crate::{Function, FunctionError};

/// Controller Status (NVMe Base 2.0, 3.1.3.6): never all ones, unlike other registers (CRTO).
const CSTS: u64 = 0x1c;

/// Offset of the command register in configuration space (PCI Local Bus 3.0, 6.2.2).
pub const COMMAND: u64 = 4;

/// Bits of the command register (PCI Local Bus 3.0, 6.2.2).
#[allow(missing_docs, reason = "named after the specification's")]
pub mod command {
    pub const MEMORY_SPACE: u16 = 1 << 1;
    pub const BUS_MASTER: u16 = 1 << 2;
    pub const INTERRUPT_DISABLE: u16 = 1 << 10;
}

/// The registers of a PCI function, as its transport reaches them. The provided methods check offsets and notice a
/// device that is gone; a transport's methods of [`Function`] that read and write registers are to call them.
pub trait PciAccess: Function {
    /// Bytes of BAR0.
    fn bar_bytes(&self) -> u64;

    /// Loads the 32-bit register at `offset` of BAR0, which is inside.
    fn load(&self, offset: u64) -> Result<u32, FunctionError>;

    /// Stores the 32-bit register at `offset` of BAR0, which is inside.
    fn store(&self, offset: u64, value: u32) -> Result<(), FunctionError>;

    /// Loads the command register; all ones where the device is gone.
    fn load_command(&self) -> Result<u16, FunctionError>;

    /// Stores the command register.
    fn store_command(&self, value: u16) -> Result<(), FunctionError>;

    /// Whether it is known without a look that the device is gone.
    fn is_lost(&self) -> bool {
        false
    }

    /// The error of a device that is gone.
    fn gone(&self) -> FunctionError {
        FunctionError::Gone { function: self.name().to_owned() }
    }

    /// The error of a system call.
    fn os(&self, what: &'static str, source: io::Error) -> FunctionError {
        FunctionError::Os { function: self.name().to_owned(), what, source: source.into() }
    }

    /// Fails if the device does not answer.
    fn present(&self) -> Result<(), FunctionError> {
        if self.is_lost() || self.load(CSTS)? == u32::MAX { Err(self.gone()) } else { Ok(()) }
    }

    /// Fails unless an aligned register of `width` bytes lies in BAR0.
    fn check(&self, what: &'static str, offset: u64, width: u64) -> Result<(), FunctionError> {
        let inside = || offset.checked_add(width).is_some_and(|end| end <= self.bar_bytes());
        match offset.is_multiple_of(width) && inside() {
            true => Ok(()),
            false => Err(FunctionError::OutsideBar { function: self.name().to_owned(), what, offset }),
        }
    }

    /// [`Function::read_u32`].
    fn load_u32(&self, offset: u64) -> Result<u32, FunctionError> {
        self.check("a 32-bit register", offset, 4)?;
        let value = self.load(offset)?;
        if value == u32::MAX {
            self.present()?;
        }
        Ok(value)
    }

    /// [`Function::read_u64`]: in two halves. Every controller takes them, and some break on 64-bit accesses.
    fn load_u64(&self, offset: u64) -> Result<u64, FunctionError> {
        self.check("a 64-bit register", offset, 8)?;
        let value = u64::from(self.load(offset)?) | u64::from(self.load(offset + 4)?) << 32;
        if value == u64::MAX {
            self.present()?;
        }
        Ok(value)
    }

    /// [`Function::write_u32`].
    fn store_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
        self.check("a 32-bit register", offset, 4)?;
        self.store(offset, value)
    }

    /// [`Function::write_u64`], likewise in two halves.
    fn store_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError> {
        self.check("a 64-bit register", offset, 8)?;
        self.store(offset, value as u32)?;
        self.store(offset + 4, (value >> 32) as u32)
    }

    /// Sets and clears bits of the command register, and checks that the function took them. Writes the register even
    /// if nothing changes. The caller makes sure that only one thread calls this at a time.
    fn change_command(&self, set: u16, clear: u16) -> Result<(), FunctionError> {
        let load = || self.load_command().and_then(|now| if now == u16::MAX { Err(self.gone()) } else { Ok(now) });
        let new = load()? & !clear | set;
        self.store_command(new)?;
        let now = load()?;
        // Bit 10 is optional where a function has no interrupt line.
        if (now ^ new) & (set | clear) & !command::INTERRUPT_DISABLE != 0 {
            let text = format!("the function refused it: {new:#06x} written, {now:#06x} read");
            return Err(self.os("changing the PCI command register", io::Error::other(text)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU16, Ordering};

    use super::command::{BUS_MASTER, INTERRUPT_DISABLE, MEMORY_SPACE};
    use super::*;
    use crate::{DmaMemory, Doorbell};

    /// A function that has these bits of the command register, and no other.
    #[derive(Debug)]
    struct Card {
        command: AtomicU16,
        has: u16,
    }

    impl PciAccess for Card {
        fn bar_bytes(&self) -> u64 {
            0x2000
        }
        fn load(&self, _: u64) -> Result<u32, FunctionError> {
            Ok(0)
        }
        fn store(&self, _: u64, _: u32) -> Result<(), FunctionError> {
            Ok(())
        }
        fn load_command(&self) -> Result<u16, FunctionError> {
            Ok(self.command.load(Ordering::Relaxed))
        }
        fn store_command(&self, value: u16) -> Result<(), FunctionError> {
            // What is gone stays gone.
            if self.command.load(Ordering::Relaxed) != u16::MAX {
                self.command.store(value & self.has, Ordering::Relaxed);
            }
            Ok(())
        }
    }

    impl Function for Card {
        fn name(&self) -> &str {
            "0000:01:00.0"
        }
        fn read_u32(&self, offset: u64) -> Result<u32, FunctionError> {
            self.load_u32(offset)
        }
        fn read_u64(&self, offset: u64) -> Result<u64, FunctionError> {
            self.load_u64(offset)
        }
        fn write_u32(&self, offset: u64, value: u32) -> Result<(), FunctionError> {
            self.store_u32(offset, value)
        }
        fn write_u64(&self, offset: u64, value: u64) -> Result<(), FunctionError> {
            self.store_u64(offset, value)
        }
        fn doorbell(&self, _: u64) -> Result<Doorbell, FunctionError> {
            Err(self.gone())
        }
        fn map(&self, _: &DmaMemory) -> Result<u64, FunctionError> {
            Err(self.gone())
        }
        fn unmap(&self, _: u64) -> Result<(), FunctionError> {
            Err(self.gone())
        }
        fn set_bus_master(&self, enabled: bool) -> Result<(), FunctionError> {
            if enabled { self.change_command(BUS_MASTER, 0) } else { self.change_command(0, BUS_MASTER) }
        }
        fn reset(&self) -> Result<(), FunctionError> {
            Err(self.gone())
        }
    }

    fn card(command: u16, has: u16) -> Card {
        Card { command: AtomicU16::new(command), has }
    }

    /// The command register after memory space was turned on, as VFIO's functions do before their doorbells are lent.
    fn after_memory_space(card: &Card) -> Result<u16, FunctionError> {
        card.change_command(MEMORY_SPACE | INTERRUPT_DISABLE, 0)?;
        card.load_command()
    }

    #[test]
    fn memory_space_is_on_or_its_refusal_is_told() {
        let all = MEMORY_SPACE | BUS_MASTER | INTERRUPT_DISABLE;
        assert_eq!(after_memory_space(&card(BUS_MASTER, all)).unwrap(), all, "other bits stay");
        assert_eq!(after_memory_space(&card(0, MEMORY_SPACE)).unwrap(), MEMORY_SPACE, "bit 10 is optional");
        let error = after_memory_space(&card(0, BUS_MASTER | INTERRUPT_DISABLE)).expect_err("it stays off");
        let text = error.to_string();
        assert!(matches!(error, FunctionError::Os { .. }), "{error:?}");
        assert!(text.contains("0000:01:00.0") && text.contains("0x0402 written, 0x0400 read"), "{text}");
        let error = after_memory_space(&card(u16::MAX, all)).expect_err("it is gone");
        assert!(matches!(error, FunctionError::Gone { .. }), "{error:?}");
    }
}
