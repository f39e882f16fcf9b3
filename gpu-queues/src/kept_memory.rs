//! Memory that stays with CUDA while a GPU plays drives, because to give it back would hold the drives up: `cuMemFree`
//! and `cuMemHostUnregister` wait for every kernel, and keep other threads' launches back meanwhile, those of the kernel
//! that answers the drives too. docs/gpu-drive.md has the measurements.

use std::collections::BTreeMap;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys;
use warprow_dma::{DmaMemory, PAGE};

use crate::Gpu;
use crate::abi::GATE_INSIDE;
use crate::capture_mode::RelaxedCapture;

/// Bytes of GPU memory and of pinned memory that a context keeps at most while no look-up of its is inside a gate; while
/// one is, it may keep twice as many.
const MOST_DEVICE: u64 = 1 << 30;
const MOST_PINNED: u64 = 256 << 20;
/// The length of a huge page.
const HUGE: usize = 2 << 20;

/// What contexts keep, by the contexts' handles.
static KEPT: Mutex<BTreeMap<usize, Kept>> = Mutex::new(BTreeMap::new());

fn kept() -> MutexGuard<'static, BTreeMap<usize, Kept>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(gpu: &Gpu) -> usize {
    gpu.context() as usize
}

/// While one lives, memory of its GPU's context that [`DeviceMemory`](crate::DeviceMemory) and
/// [`PinnedMemory`](crate::PinnedMemory) give up is kept for those that are made later. When the last one of a context is
/// dropped, all of it is given back to CUDA.
///
/// A context keeps at most 1 GiB of GPU memory and 256 MiB of pinned memory. What is more is given back at once while no
/// look-up is inside a gate, the oldest first; while one is, up to twice as much is kept until another piece is given up.
#[derive(Debug)]
pub struct MemoryKeeper {
    gpu: Arc<Gpu>,
}

/// How much a context keeps ([`MemoryKeeper::kept`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptMemory {
    /// Pieces of GPU memory, and their bytes.
    pub device: (usize, u64),
    /// Pieces of pinned memory, and their bytes.
    pub pinned: (usize, u64),
}

/// Pieces of memory that nobody uses.
#[derive(Debug)]
struct Pieces<T> {
    /// With their bytes, the oldest first.
    pieces: Vec<(u64, T)>,
    bytes: u64,
}

impl<T> Default for Pieces<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), bytes: 0 }
    }
}

impl<T> Pieces<T> {
    fn put(&mut self, bytes: u64, piece: T) {
        self.pieces.push((bytes, piece));
        self.bytes += bytes;
    }

    /// Takes the smallest of the pieces that `fits`, with its bytes.
    fn take(&mut self, fits: impl Fn(u64, &T) -> bool) -> Option<(u64, T)> {
        let fitting = self.pieces.iter().enumerate().filter(|(_, (bytes, piece))| fits(*bytes, piece));
        let (index, _) = fitting.min_by_key(|(_, (bytes, _))| *bytes)?;
        let (bytes, piece) = self.pieces.remove(index);
        self.bytes -= bytes;
        Some((bytes, piece))
    }

    /// Takes the oldest pieces until no more than `most` bytes are left.
    fn trim(&mut self, most: u64) -> Vec<T> {
        let mut taken = Vec::new();
        while self.bytes > most && !self.pieces.is_empty() {
            let (bytes, piece) = self.pieces.remove(0);
            self.bytes -= bytes;
            taken.push(piece);
        }
        taken
    }
}

/// Memory that is registered with CUDA.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) memory: DmaMemory,
    /// The address of the memory for kernels.
    pub(crate) address: u64,
}

/// What one context keeps.
#[derive(Debug, Default)]
struct Kept {
    keepers: usize,
    device: Pieces<u64>,
    pinned: Pieces<Registered>,
    /// The memory of gates before launches in this context.
    gates: Vec<DmaMemory>,
}

/// What is to be given back to CUDA, when no lock is held.
#[derive(Debug, Default)]
struct GivenBack {
    device: Vec<u64>,
    pinned: Vec<Registered>,
}

impl Kept {
    fn is_empty(&self) -> bool {
        self.keepers == 0 && self.gates.is_empty()
    }

    /// What is to be given back now. Called whenever a piece has come.
    fn trim(&mut self) -> GivenBack {
        if self.keepers == 0 {
            return self.take_all();
        }
        // To free memory waits for look-ups, and these wait for the drives.
        let is_calm = self.gates.iter().all(|gate| gate.load_u64(GATE_INSIDE) == 0);
        let times = if is_calm { 1 } else { 2 };
        GivenBack { device: self.device.trim(MOST_DEVICE * times), pinned: self.pinned.trim(MOST_PINNED * times) }
    }

    fn take_all(&mut self) -> GivenBack {
        GivenBack { device: self.device.trim(0), pinned: self.pinned.trim(0) }
    }
}

impl GivenBack {
    fn give(self, gpu: &Gpu) {
        if self.device.is_empty() && self.pinned.is_empty() {
            return;
        }
        let Ok(_current) = gpu.enter() else { return };
        let _relaxed = RelaxedCapture::new();
        for address in self.device {
            // SAFETY: allocated once, freed once: it has left the list.
            unsafe { sys::cuMemFree_v2(address) };
        }
        for piece in self.pinned {
            // SAFETY: registered once, unregistered once: it has left the list.
            unsafe { sys::cuMemHostUnregister(piece.memory.as_ptr().cast()) };
        }
    }
}

impl MemoryKeeper {
    /// Keeps memory of the context of `gpu` from now on.
    pub fn new(gpu: &Arc<Gpu>) -> Self {
        kept().entry(key(gpu)).or_default().keepers += 1;
        Self { gpu: gpu.clone() }
    }

    /// How much the context keeps at present.
    pub fn kept(&self) -> KeptMemory {
        kept_memory(&self.gpu)
    }
}

impl Drop for MemoryKeeper {
    fn drop(&mut self) {
        let mut kept = kept();
        let Some(context) = kept.get_mut(&key(&self.gpu)) else { return };
        context.keepers -= 1;
        let given_back = if context.keepers == 0 { context.take_all() } else { GivenBack::default() };
        if context.is_empty() {
            kept.remove(&key(&self.gpu));
        }
        drop(kept);
        given_back.give(&self.gpu);
    }
}

/// How much the context of `gpu` keeps at present: nothing, while there is no [`MemoryKeeper`].
pub fn kept_memory(gpu: &Gpu) -> KeptMemory {
    kept().get(&key(gpu)).map_or_else(KeptMemory::default, |context| KeptMemory {
        device: (context.device.pieces.len(), context.device.bytes),
        pinned: (context.pinned.pieces.len(), context.pinned.bytes),
    })
}

/// Gives up `bytes` of GPU memory at `address`, which nothing uses any more.
pub(crate) fn give_up_device(gpu: &Gpu, address: u64, bytes: u64) {
    let given_back = match kept().get_mut(&key(gpu)) {
        Some(context) => {
            context.device.put(bytes, address);
            context.trim()
        }
        None => GivenBack { device: vec![address], ..GivenBack::default() },
    };
    given_back.give(gpu);
}

/// GPU memory of `bytes` or a little more that was given up, with its address and bytes. Its content is anything.
pub(crate) fn take_device(gpu: &Gpu, bytes: u64) -> Option<(u64, u64)> {
    // An eighth more at most, and for small pieces a page.
    let most = (bytes + bytes / 8).max(PAGE as u64);
    let (bytes, address) = kept().get_mut(&key(gpu))?.device.take(|room, _| (bytes..=most).contains(&room))?;
    Some((address, bytes))
}

/// Gives all GPU memory that is kept back to CUDA, for somebody who finds no room; whether there was some.
pub(crate) fn release_device(gpu: &Gpu) -> bool {
    let pieces = kept().get_mut(&key(gpu)).map_or_else(Vec::new, |context| context.device.trim(0));
    let some = !pieces.is_empty();
    GivenBack { device: pieces, ..GivenBack::default() }.give(gpu);
    some
}

/// Gives up memory that is registered with CUDA, which nothing uses any more by its address for kernels. Others may
/// have handles of it, which may be mapped for a drive.
pub(crate) fn give_up_pinned(gpu: &Gpu, piece: Registered) {
    let given_back = match kept().get_mut(&key(gpu)) {
        Some(context) => {
            context.pinned.put(piece.memory.len() as u64, piece);
            context.trim()
        }
        None => GivenBack { pinned: vec![piece], ..GivenBack::default() },
    };
    given_back.give(gpu);
}

/// Registered memory of at least `len` bytes, rounded up to whole pages, that was given up and that nobody else has a
/// handle of: no drive can write to it, because what is mapped for a drive has one. Its content is anything.
pub(crate) fn take_pinned(gpu: &Gpu, len: usize, is_huge: bool) -> Option<Registered> {
    let fits = |piece: &Registered| {
        let page = if piece.memory.is_huge() { HUGE } else { PAGE };
        let room = piece.memory.len();
        (is_huge || !piece.memory.is_huge())
            && piece.memory.file().is_none()
            && len <= room
            && room <= len.max(1).next_multiple_of(page)
            && !piece.memory.is_shared()
    };
    let (_, piece) = kept().get_mut(&key(gpu))?.pinned.take(|_, piece| fits(piece))?;
    // What others did by their handles happened before.
    fence(Ordering::Acquire);
    Some(piece)
}

/// The registration of just this memory, if it was given up and not yet undone.
pub(crate) fn take_registration(gpu: &Gpu, memory: &DmaMemory) -> Option<u64> {
    let is_same = |piece: &Registered| piece.memory.as_ptr() == memory.as_ptr() && piece.memory.len() == memory.len();
    let (_, piece) = kept().get_mut(&key(gpu))?.pinned.take(|_, piece| is_same(piece))?;
    Some(piece.address)
}

/// `memory` is that of a gate before launches in the context, until [`forget_gate`].
pub(crate) fn note_gate(gpu: &Gpu, memory: &DmaMemory) {
    kept().entry(key(gpu)).or_default().gates.push(memory.clone());
}

pub(crate) fn forget_gate(gpu: &Gpu, memory: &DmaMemory) {
    let mut kept = kept();
    let Some(context) = kept.get_mut(&key(gpu)) else { return };
    context.gates.retain(|gate| gate.as_ptr() != memory.as_ptr());
    if context.is_empty() {
        kept.remove(&key(gpu));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_piece_that_fits_is_taken() {
        let mut pieces = Pieces::default();
        [(500, 'a'), (100, 'b'), (110, 'c'), (90, 'd')].into_iter().for_each(|(bytes, name)| pieces.put(bytes, name));
        assert_eq!(pieces.take(|bytes, _| bytes >= 95), Some((100, 'b')));
        assert_eq!(pieces.take(|bytes, _| bytes >= 95), Some((110, 'c')));
        assert_eq!(pieces.take(|bytes, _| (95..=200).contains(&bytes)), None);
        assert_eq!(pieces.take(|_, name| *name == 'a'), Some((500, 'a')));
        assert_eq!((pieces.bytes, pieces.pieces.len()), (90, 1));
    }

    #[test]
    fn the_oldest_go_first_and_only_what_is_too_much() {
        let mut pieces = Pieces::default();
        (0..10).for_each(|name| pieces.put(100, name));
        assert_eq!(pieces.trim(1000), [0; 0]);
        assert_eq!(pieces.trim(750), [0, 1, 2]);
        assert_eq!(pieces.bytes, 700);
        assert_eq!(pieces.trim(0), [3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(pieces.bytes, 0);
    }

    #[test]
    fn while_a_look_up_is_inside_a_gate_more_is_kept() {
        let gate = DmaMemory::allocate(4096, warprow_dma::MemoryKind::Anonymous).unwrap();
        let mut kept = Kept { keepers: 1, gates: vec![gate.clone()], ..Kept::default() };
        gate.store_u64(GATE_INSIDE, 7);
        (0..20).for_each(|address| kept.device.put(MOST_DEVICE / 10, address));
        assert!(kept.trim().device.is_empty());
        kept.device.put(MOST_DEVICE / 10, 20);
        assert_eq!(kept.trim().device, [0]);
        gate.store_u64(GATE_INSIDE, 0);
        assert_eq!(kept.trim().device, (1..=10).collect::<Vec<_>>());
        kept.keepers = 0;
        assert_eq!((kept.trim().device.len(), kept.device.bytes), (10, 0));
    }
}
