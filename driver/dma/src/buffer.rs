use std::fmt;
use std::sync::Arc;

use crate::{AllocateError, DmaMemory, Function, FunctionError, MappedMemory, MemoryKind};

/// Why a [`DmaBuffer`] could not be allocated.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BufferError {
    /// The memory could not be allocated.
    #[error(transparent)]
    Allocate(#[from] AllocateError),
    /// The memory could not be mapped for one of the functions.
    #[error(transparent)]
    Map(#[from] FunctionError),
}

/// Memory that belongs to devices and to this process by turns, as in a streaming DMA mapping: while it is
/// [lent](Self::lend), commands may name it, and it is reached like any [`DmaMemory`]; at all other times it is plain
/// bytes.
///
/// Whoever sends commands holds the memory that it was lent until no device can carry one of them out any more; a queue
/// pair that keeps the memory does so. So the memory is never plain bytes while a late command may write to it, and it
/// stays mapped if the buffer is dropped before that. The types cannot see who else tells the devices what to do; that
/// is why [`allocate`](Self::allocate) is `unsafe`, as the only method here. Against a device that writes where no
/// command of this process told it to, only an IOMMU helps; Rust has no way to describe such a device.
///
/// Offsets and lengths are in bytes; an access outside the memory panics as a slice does.
pub struct DmaBuffer {
    memory: DmaMemory,
    /// One mapping for each function. Each holds an alias of the memory of its own, so that every handle that was made
    /// from it is counted.
    mapped: Vec<Arc<MappedMemory>>,
    lent: bool,
}

impl fmt::Debug for DmaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaBuffer").field("len", &self.len()).field("lent", &self.lent).finish_non_exhaustive()
    }
}

impl DmaBuffer {
    /// Allocates at least `len` zeroed bytes, of a kind that all of `functions` can reach, and maps them for each.
    /// `functions` names no function twice.
    ///
    /// # Errors
    /// As those of [`Function::allocate`] and [`Function::map`]; nothing stays mapped then.
    ///
    /// # Safety
    /// As long as the memory is mapped, for each of `functions`:
    /// - The function accesses the memory, by whatever handle, only to carry out what its device is told. (A transport
    ///   in this process could also write by itself.)
    /// - One driver alone tells the device what to do. It lets the device write to the memory only by commands that
    ///   name memory which was [lent](Self::lend), or a clone of that; and it holds what it was lent until those
    ///   commands can no more be carried out. Registers and doorbells tell a device what to do as commands do; ending a
    ///   mapping that somebody else made does so too.
    ///
    /// Nobody who was lent the memory writes to its [file](DmaMemory::file) after giving it back. The safe methods of a
    /// queue pair are such a driver; those that take commands as they are have contracts of their own.
    pub unsafe fn allocate(len: usize, functions: &[Arc<dyn Function>]) -> Result<Self, BufferError> {
        // Memory of the kind that one transport allocates may be out of reach for another transport, but not the other
        // way round.
        let mut refused = None;
        for function in functions {
            match Self::map(function.allocate(len)?, functions) {
                Ok(buffer) => return Ok(buffer),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            Some(error) => Err(error.into()),
            None => Ok(Self::map(DmaMemory::allocate(len, MemoryKind::Auto)?, functions)?),
        }
    }

    fn map(memory: DmaMemory, functions: &[Arc<dyn Function>]) -> Result<Self, FunctionError> {
        let map = |function: &Arc<dyn Function>| MappedMemory::aliased(function.clone(), &memory).map(Arc::new);
        let mapped = functions.iter().map(map).collect::<Result<_, _>>()?;
        Ok(Self { memory, mapped, lent: false })
    }

    /// Length in bytes, a multiple of [`PAGE`](crate::PAGE).
    #[allow(clippy::len_without_is_empty, reason = "memory is never empty")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Lends the memory to `function`, for commands. `None` if the buffer is not mapped for that function.
    pub fn lend(&mut self, function: &Arc<dyn Function>) -> Option<Arc<MappedMemory>> {
        let mapped = self.mapped.iter().find(|mapped| Arc::ptr_eq(mapped.function(), function))?.clone();
        self.lent = true;
        Some(mapped)
    }

    /// Takes the memory back. `false` while somebody still holds memory that was lent.
    pub fn reclaim(&mut self) -> bool {
        if self.lent {
            // What others did with a handle happened before they dropped it, and the drop before this check.
            self.lent = !self.mapped.iter_mut().all(|it| Arc::get_mut(it).is_some_and(MappedMemory::is_unshared));
        }
        !self.lent
    }

    /// The functions for which somebody still holds the memory, or did when [`reclaim`](Self::reclaim) last failed;
    /// none if the memory is not lent.
    pub fn borrowers(&self) -> impl Iterator<Item = &Arc<dyn Function>> {
        let lent = self.mapped.iter().filter(|it| self.lent && (Arc::strong_count(it) > 1 || it.memory().is_shared()));
        lent.map(|mapped| mapped.function())
    }

    /// The bytes; `None` while the memory is lent.
    pub fn bytes(&self) -> Option<&[u8]> {
        if self.lent {
            return None;
        }
        // SAFETY: inside the mapping and initialised, since its pages are. Nobody writes while the result lives: handles of the memory are
        // `self.memory`, which does so by `&mut self` only; what functions have, through which devices reach it by commands that name what
        // was lent, as whoever allocated it vouched; and those in `mapped`, each of which `reclaim` has found to be the only one since the
        // memory was last lent.
        Some(unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.memory.len()) })
    }

    /// The bytes, to be written; `None` while the memory is lent.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.lent {
            return None;
        }
        // SAFETY: as in `bytes`; nor does anybody read, for the same reasons.
        Some(unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.memory.len()) })
    }

    /// Copies out of the memory, lent or not.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.memory.read(offset, into);
    }

    /// Copies into the memory, lent or not.
    #[inline]
    pub fn write(&mut self, offset: usize, from: &[u8]) {
        self.memory.write(offset, from);
    }

    /// Fills a part of the memory, lent or not.
    #[inline]
    pub fn fill(&mut self, offset: usize, len: usize, value: u8) {
        self.memory.fill(offset, len, value);
    }

    /// Copies from other memory into this, lent or not.
    #[inline]
    pub fn copy_from(&mut self, offset: usize, source: &DmaMemory, at: usize, len: usize) {
        source.copy_to(at, &self.memory, offset, len);
    }

    /// Copies from one place of the memory to another, lent or not; they do not overlap.
    #[inline]
    pub fn copy_within(&mut self, from: usize, to: usize, len: usize) {
        self.memory.copy_to(from, &self.memory, to, len);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{Doorbell, PAGE};

    /// Keeps handles of what is mapped, as transports may.
    #[derive(Debug, Default)]
    struct Device {
        mapped: Mutex<Vec<Option<DmaMemory>>>,
        /// Memory of this kind alone; `None`: all.
        reaches: Option<MemoryKind>,
    }

    impl Device {
        fn unsupported<T>() -> Result<T, FunctionError> {
            Err(FunctionError::Unsupported { function: "device".to_owned(), what: "registers" })
        }
    }

    impl Function for Device {
        fn name(&self) -> &str {
            "device"
        }
        fn read_u32(&self, _: u64) -> Result<u32, FunctionError> {
            Self::unsupported()
        }
        fn read_u64(&self, _: u64) -> Result<u64, FunctionError> {
            Self::unsupported()
        }
        fn write_u32(&self, _: u64, _: u32) -> Result<(), FunctionError> {
            Self::unsupported()
        }
        fn write_u64(&self, _: u64, _: u64) -> Result<(), FunctionError> {
            Self::unsupported()
        }
        fn doorbell(&self, _: u64) -> Result<Doorbell, FunctionError> {
            Self::unsupported()
        }
        fn allocate(&self, len: usize) -> Result<DmaMemory, AllocateError> {
            DmaMemory::allocate(
                len,
                self.reaches.filter(|&it| it == MemoryKind::Memfd).unwrap_or(MemoryKind::Anonymous),
            )
        }
        fn map(&self, memory: &DmaMemory) -> Result<u64, FunctionError> {
            if self.reaches.is_some_and(|it| it != MemoryKind::Memfd || memory.file().is_none()) {
                return Self::unsupported();
            }
            let mut mapped = self.mapped.lock().unwrap();
            mapped.push(Some(memory.clone()));
            Ok((mapped.len() as u64 - 1) * PAGE as u64)
        }
        fn unmap(&self, iova: u64) -> Result<(), FunctionError> {
            self.mapped.lock().unwrap()[iova as usize / PAGE] = None;
            Ok(())
        }
        fn set_bus_master(&self, _: bool) -> Result<(), FunctionError> {
            Ok(())
        }
        fn reset(&self) -> Result<(), FunctionError> {
            Ok(())
        }
    }

    fn allocate(len: usize, functions: &[Arc<dyn Function>]) -> Result<DmaBuffer, BufferError> {
        // SAFETY: these devices write only what tests have them write, while it is lent.
        unsafe { DmaBuffer::allocate(len, functions) }
    }

    fn devices(count: usize) -> (Vec<Arc<Device>>, Vec<Arc<dyn Function>>) {
        let devices: Vec<Arc<Device>> = (0..count).map(|_| Arc::default()).collect();
        let functions = devices.iter().map(|device| device.clone() as Arc<dyn Function>).collect();
        (devices, functions)
    }

    #[test]
    fn it_is_plain_memory_only_while_nobody_has_it() {
        let (devices, functions) = devices(2);
        let mut buffer = allocate(PAGE, &functions).unwrap();
        buffer.bytes_mut().unwrap()[7] = 9;
        let (first, second) = (buffer.lend(&functions[0]).unwrap(), buffer.lend(&functions[1]).unwrap());
        assert!(buffer.bytes().is_none() && buffer.bytes_mut().is_none() && !buffer.reclaim());
        // The device writes, by what it has mapped.
        devices[1].mapped.lock().unwrap()[0].as_ref().unwrap().store_u8(8, 10);
        drop(first);
        assert!(!buffer.reclaim());
        assert!(buffer.borrowers().all(|it| Arc::ptr_eq(it, &functions[1])) && buffer.borrowers().count() == 1);
        // A handle of the memory that was made of what was lent is as good as that, and so is what may yet become one.
        let (handle, weak) = (second.memory().clone(), Arc::downgrade(&second));
        drop(second);
        assert!(!buffer.reclaim() && buffer.bytes().is_none());
        drop(weak);
        assert!(!buffer.reclaim());
        let part = handle.part(0, PAGE);
        drop(handle);
        assert!(!buffer.reclaim());
        drop(part);
        assert!(buffer.bytes().is_none(), "nobody asked for it back");
        assert!(buffer.reclaim() && buffer.borrowers().count() == 0);
        assert_eq!(buffer.bytes().unwrap()[7..9], [9, 10]);
        assert!(buffer.lend(&(Arc::<Device>::default() as Arc<dyn Function>)).is_none() && buffer.bytes().is_some());
    }

    #[test]
    fn what_is_lent_outlives_the_buffer() {
        let (devices, functions) = devices(1);
        let mut buffer = allocate(PAGE, &functions).unwrap();
        let lent = buffer.lend(&functions[0]).unwrap();
        drop(buffer);
        let mapped = devices[0].mapped.lock().unwrap()[0].clone().unwrap();
        mapped.store_u32(4, 77);
        assert_eq!(lent.memory().load_u32(4), 77);
        drop(lent);
        assert!(devices[0].mapped.lock().unwrap()[0].is_none(), "it is unmapped by whoever had it last");
    }

    #[test]
    fn it_is_copied_to_and_from_while_it_is_lent() {
        let (_devices, functions) = devices(1);
        let mut buffer = allocate(PAGE, &functions).unwrap();
        let lent = buffer.lend(&functions[0]).unwrap();
        buffer.write(3, &[1, 2, 3, 4]);
        buffer.copy_within(3, 100, 4);
        buffer.copy_from(201, lent.memory(), 3, 2);
        buffer.fill(4, 2, 0);
        let mut bytes = [0; 4];
        buffer.read(100, &mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4]);
        drop(lent);
        assert!(buffer.reclaim());
        assert_eq!(
            (&buffer.bytes().unwrap()[3..7], &buffer.bytes().unwrap()[201..203]),
            (&[1, 0, 0, 4][..], &[1, 2][..])
        );
    }

    #[test]
    fn what_cannot_be_mapped_everywhere_is_mapped_nowhere() {
        let (devices, mut functions) = devices(2);
        functions.push(Arc::new(Device { reaches: Some(MemoryKind::HugePages), ..Device::default() }));
        assert!(matches!(allocate(PAGE, &functions), Err(BufferError::Map(_))));
        assert!(devices.iter().all(|device| device.mapped.lock().unwrap().iter().all(Option::is_none)));
        assert!(matches!(allocate(usize::MAX, &functions), Err(BufferError::Allocate(_))));
    }

    #[test]
    fn it_is_of_the_kind_that_all_can_reach() {
        let (_devices, mut functions) = devices(2);
        functions.insert(1, Arc::new(Device { reaches: Some(MemoryKind::Memfd), ..Device::default() }));
        let buffer = allocate(1, &functions).unwrap();
        assert!(buffer.memory.file().is_some() && buffer.mapped.len() == 3);
        assert_eq!(buffer.bytes().unwrap(), [0; PAGE]);
        assert_eq!(allocate(PAGE + 1, &[]).unwrap().len(), 2 * PAGE);
    }
}
