//! Stand-ins: free slots below the number of keys, for keys whose slot lies behind.

use crate::shape::Shape;

/// Gives each slot in use from `keys` on a free one below, with its fingerprint.
pub(super) fn write_remap(shape: &Shape, bytes: &mut [u8], taken: &[u64]) {
    let layout = shape.layout();
    let width = shape.fingerprint.bytes();
    let slots = u64::from(shape.slots);
    let words = shape.slots.div_ceil(64) as usize;
    let is_taken = |slot: u64| {
        let part = (slot / slots) as usize;
        let slot = (slot % slots) as usize;
        taken[part * words + slot / 64] >> (slot % 64) & 1 == 1
    };
    let mut free = FreeSlots { taken, words, slots, keys: shape.keys, word: 0, left: !taken[0] };
    for slot in (shape.keys..shape.total_slots()).filter(|&slot| is_taken(slot)) {
        let Some(to) = free.next() else { return };
        let write_remap = layout.remap.start as usize + (slot - shape.keys) as usize * shape.remap_bytes();
        bytes[write_remap..][..shape.remap_bytes()].copy_from_slice(&to.to_le_bytes()[..shape.remap_bytes()]);
        let print = |slot: u64| layout.prints.start as usize + slot as usize * width;
        bytes.copy_within(print(slot)..print(slot) + width, print(to));
    }
}

/// Slots below `keys` that are not taken, ascending.
struct FreeSlots<'a> {
    taken: &'a [u64],
    words: usize,
    slots: u64,
    keys: u64,
    word: usize,
    /// Free bits of that word that were not given yet.
    left: u64,
}

impl Iterator for FreeSlots<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        loop {
            if self.left != 0 {
                let part = self.word / self.words;
                let bit = self.left.trailing_zeros() as usize;
                self.left &= self.left - 1;
                let in_part = ((self.word % self.words) * 64 + bit) as u64;
                if in_part < self.slots {
                    return Some(part as u64 * self.slots + in_part).filter(|&slot| slot < self.keys);
                }
                continue;
            }
            self.word += 1;
            self.left = !*self.taken.get(self.word)?;
        }
    }
}
