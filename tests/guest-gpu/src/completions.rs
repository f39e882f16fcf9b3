//! Completion queues, looked at past the kernels that consume them.

use std::marker::PhantomData;
use std::sync::atomic::{Ordering, fence};

use anyhow::{Context, Result};
use warprow_gpu_queues::QueueSet;
use warprow_gpu_queues::abi::QueueDescriptor;
use warprow_simt::buffer::Buffer;

const ENTRY_BYTES: usize = 16;

/// An entry of a completion queue, and which phase says that it is new.
#[derive(Clone, Copy)]
pub(crate) struct Completion<'a> {
    queue: u64,
    size: u32,
    index: u32,
    turn: u32,
    _set: PhantomData<&'a QueueSet>,
}

impl<'a> Completion<'a> {
    /// The entry to which the first queue's drive posts next, of queues that no kernel drives at present.
    pub(crate) fn next(set: &'a QueueSet) -> Result<Self> {
        let queue = set.descriptors().first().context("a set without a queue")?;
        let state = *set.states()?.first().context("a set without a state")?;
        Ok(Self { queue: queue.cq, size: queue.cq_size, index: state.head, turn: state.turn, _set: PhantomData })
    }

    fn behind(self) -> Self {
        let wraps = self.index + 1 == self.size;
        let index = if wraps { 0 } else { self.index + 1 };
        Self { index, turn: self.turn.wrapping_add(wraps.into()), ..self }
    }

    /// Whether the drive has posted it.
    pub(crate) fn is_here(self) -> bool {
        let phase = self.word(1) >> 48 & 1;
        // What a drive posts before this entry is read behind it.
        fence(Ordering::Acquire);
        phase == u64::from(self.turn.wrapping_add(1) & 1)
    }

    #[expect(unsafe_code, reason = "memory that a drive writes to, in this process or in a peer's BAR")]
    fn word(self, number: usize) -> u64 {
        let at = self.queue + (self.index as usize * ENTRY_BYTES + number * 8) as u64;
        // SAFETY: an aligned word within the completion queue (`index` is below `size`), which the set keeps while it is borrowed.
        unsafe { (at as *const u64).read_volatile() }
    }

    fn bytes(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        for (number, part) in bytes.chunks_exact_mut(8).enumerate() {
            part.copy_from_slice(&self.word(number).to_le_bytes());
        }
        bytes
    }
}

/// A copy of a completion queue that is always one entry late. A kernel that looks for its completions here never gets the last one,
/// however fast the drive is, and waits until it may not wait any longer.
pub(crate) struct LateCompletions<'a> {
    next: Completion<'a>,
    copy: Buffer,
}

impl<'a> LateCompletions<'a> {
    /// Of the first queue of `set`, which no kernel drives at present.
    pub(crate) fn of(set: &'a QueueSet) -> Result<Self> {
        let next = Completion::next(set)?;
        let entries: Vec<u8> = (0..next.size).flat_map(|index| Completion { index, ..next }.bytes()).collect();
        Ok(Self { next, copy: Buffer::of(&entries) })
    }

    /// The queue as kernels are to be told of it.
    pub(crate) fn describe(&self, queue: &QueueDescriptor) -> QueueDescriptor {
        QueueDescriptor { cq: self.copy.address(), ..*queue }
    }

    /// Copies each completion behind which there is another.
    pub(crate) fn follow(&mut self) {
        while self.next.behind().is_here() {
            self.copy.write(self.next.index as usize * ENTRY_BYTES, &self.next.bytes());
            self.next = self.next.behind();
        }
    }
}
