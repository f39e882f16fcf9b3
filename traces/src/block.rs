//! Some samples of a trace.

/// Whole samples, with their keys: 64 bits each, of signed ones the two's complement.
///
/// Keys stand sample by sample, in a sample slot by slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceBlock {
    slots: usize,
    keys: Vec<u64>,
    /// Where the keys of slot s of sample i end: entry `i * slots + s + 1`.
    offsets: Vec<u32>,
}

/// A sample: what one query looks up.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    keys: &'a [u64],
    offsets: &'a [u32],
}

/// Keys that a sample may have, in all slots together: what a block holds at most beyond some 65,536.
pub const MAX_SAMPLE_KEYS: usize = 1 << 24;

/// Keys, or lists of them, with which a block is full.
const FULL: usize = 1 << 16;

impl Default for TraceBlock {
    fn default() -> Self {
        Self { slots: 0, keys: Vec::new(), offsets: vec![0] }
    }
}

impl TraceBlock {
    /// How many slots each sample has.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// How many samples.
    pub fn len(&self) -> usize {
        (self.offsets.len() - 1).checked_div(self.slots).unwrap_or(0)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All keys of all samples and slots.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// The samples, in their order.
    pub fn samples(&self) -> impl ExactSizeIterator<Item = Sample<'_>> {
        (0..self.len()).map(|index| {
            let first = index * self.slots;
            Sample { keys: &self.keys, offsets: &self.offsets[first..=first + self.slots] }
        })
    }

    /// The keys of one slot, sample by sample; empty of a slot that there is not.
    pub fn slot(&self, slot: usize) -> impl Iterator<Item = &[u64]> {
        self.samples().map(move |sample| sample.keys(slot))
    }

    /// Empties it, for samples of `slots` slots.
    pub(crate) fn reset(&mut self, slots: usize) {
        self.slots = slots;
        self.keys.clear();
        self.offsets.truncate(1);
    }

    pub(crate) fn is_full(&self) -> bool {
        self.keys.len() >= FULL || self.offsets.len() >= FULL
    }

    /// How many keys or lists still go in: at least one.
    pub(crate) fn room(&self) -> usize {
        FULL.saturating_sub(self.keys.len().max(self.offsets.len())).max(1)
    }

    /// Adds the keys of the next slot; of a sample's slots all are added, in their order.
    pub(crate) fn push(&mut self, keys: impl IntoIterator<Item = u64>) {
        self.keys.extend(keys);
        self.offsets.push(self.keys.len() as u32);
    }

    /// Adds `keys`, `each` of them a sample of one slot; the last may have fewer.
    pub(crate) fn push_even(&mut self, keys: impl IntoIterator<Item = u64>, each: usize) {
        let first = self.keys.len();
        self.keys.extend(keys);
        let ends = (first + each..self.keys.len()).step_by(each).chain([self.keys.len()]);
        self.offsets.extend(ends.filter(|&end| end > first).map(|end| end as u32));
    }

    /// Leaves only the keys of one slot.
    pub(crate) fn keep(&mut self, slot: usize) {
        let mut keys = 0;
        let mut lists = 0;
        for sample in 0..self.len() {
            let at = sample * self.slots + slot;
            let begin = self.offsets[at] as usize;
            let end = self.offsets[at + 1] as usize;
            self.keys.copy_within(begin..end, keys);
            keys += end - begin;
            lists += 1;
            self.offsets[lists] = keys as u32;
        }
        self.keys.truncate(keys);
        self.offsets.truncate(lists + 1);
        self.slots = 1;
    }

    /// Adds to the keys of each slot what `sizes` say of those before it. A key beyond its slot's size is an error by
    /// sample, slot and key.
    pub(crate) fn shift(&mut self, sizes: &[(u64, u64)]) -> Result<(), (usize, usize, u64)> {
        for list in 0..self.offsets.len().saturating_sub(1) {
            let sample = list / self.slots.max(1);
            let slot = list % self.slots.max(1);
            let Some(&(before, size)) = sizes.get(slot) else { continue };
            let begin = self.offsets[list] as usize;
            let end = self.offsets[list + 1] as usize;
            for key in &mut self.keys[begin..end] {
                if *key >= size {
                    return Err((sample, slot, *key));
                }
                *key += before;
            }
        }
        Ok(())
    }
}

impl<'a> Sample<'a> {
    /// The keys of one slot; none of a slot that there is not.
    pub fn keys(&self, slot: usize) -> &'a [u64] {
        match self.offsets.get(slot..).and_then(|rest| rest.first_chunk::<2>()) {
            Some(&[begin, end]) => &self.keys[begin as usize..end as usize],
            None => &[],
        }
    }

    /// The keys of each slot.
    pub fn slots(&self) -> impl ExactSizeIterator<Item = &'a [u64]> + use<'a> {
        let keys = self.keys;
        self.offsets.windows(2).map(move |ends| &keys[ends[0] as usize..ends[1] as usize])
    }
}
