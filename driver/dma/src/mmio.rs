use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// A mapped stretch of a device's registers. Every access is one volatile load or store of its width.
#[derive(Clone)]
pub struct Mmio {
    base: NonNull<u8>,
    len: usize,
    /// The owner, which keeps the mapping alive.
    _owner: Arc<dyn Any + Send + Sync>,
}

// SAFETY: device registers have no owner thread; every access is a single volatile load or store.
unsafe impl Send for Mmio {}
// SAFETY: as above.
unsafe impl Sync for Mmio {}

impl fmt::Debug for Mmio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mmio").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Mmio {
    /// # Safety
    /// `base .. base + len` is a mapping of device registers, 8-byte aligned, that stays mapped for as long as `owner`
    /// lives, and that nothing reaches through a Rust reference.
    pub unsafe fn new(base: NonNull<u8>, len: usize, owner: Arc<dyn Any + Send + Sync>) -> Self {
        assert!(base.as_ptr().addr().is_multiple_of(8), "registers are at least 8-byte aligned");
        Self { base, len, _owner: owner }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The `len` bytes from `offset` on, which keep the mapping alive as this does. `None` if they are not all inside, or if `offset`
    /// is no multiple of 8.
    pub fn part(&self, offset: usize, len: usize) -> Option<Self> {
        let inside = offset.is_multiple_of(8) && offset.checked_add(len).is_some_and(|end| end <= self.len);
        // SAFETY: the offset lies inside the mapping.
        inside.then(|| Self { base: unsafe { self.base.add(offset) }, len, _owner: self._owner.clone() })
    }

    /// The address of the first byte in this process: for whoever has others store to the registers, such as a GPU.
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Whether a register of `width` bytes at `offset` lies inside, aligned to its width.
    pub fn holds(&self, offset: usize, width: usize) -> bool {
        offset.is_multiple_of(width) && offset.checked_add(width).is_some_and(|end| end <= self.len)
    }

    #[inline(always)]
    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(self.holds(offset, size_of::<T>()), "register {offset:#x} outside a region of {:#x} bytes", self.len);
        // SAFETY: the assertion keeps the pointer inside the mapping.
        unsafe { self.base.as_ptr().add(offset).cast() }
    }

    /// Loads a 32-bit register. Panics if it is misaligned or outside the region.
    #[inline(always)]
    pub fn read_u32(&self, offset: usize) -> u32 {
        // SAFETY: `at` checked bounds and alignment; the mapping lives as long as `_owner`.
        u32::from_le(unsafe { self.at::<u32>(offset).read_volatile() })
    }

    /// Loads a 64-bit register. Panics if it is misaligned or outside the region.
    #[inline(always)]
    pub fn read_u64(&self, offset: usize) -> u64 {
        // SAFETY: as in `read_u32`.
        u64::from_le(unsafe { self.at::<u64>(offset).read_volatile() })
    }

    /// Stores a 32-bit register. Panics if it is misaligned or outside the region.
    #[inline(always)]
    pub fn write_u32(&self, offset: usize, value: u32) {
        // SAFETY: as in `read_u32`.
        unsafe { self.at::<u32>(offset).write_volatile(value.to_le()) }
    }

    /// Stores a 64-bit register. Panics if it is misaligned or outside the region.
    #[inline(always)]
    pub fn write_u64(&self, offset: usize, value: u64) {
        // SAFETY: as in `read_u32`.
        unsafe { self.at::<u64>(offset).write_volatile(value.to_le()) }
    }
}
