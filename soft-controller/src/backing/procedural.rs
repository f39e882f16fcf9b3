use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use warprow_dma::DmaMemory;

use super::interface::Backing;
use super::media_error::MediaError;

/// A block as it is generated: 512 bytes.
pub type ContentBlock = [u64; 64];
/// A block's size in bytes.
const BLOCK: u64 = 512;

type Content = dyn Fn(u64, &mut ContentBlock) + Send + Sync;

/// Content that is computed when it is read, for drives larger than any disk. What is written is kept in memory and
/// takes its place; what is deallocated is as it was computed again.
pub struct ProceduralBacking {
    len: u64,
    content: Box<Content>,
    /// By block index.
    written: RwLock<HashMap<u64, Box<ContentBlock>>>,
    /// Whether anything was written.
    any: AtomicBool,
}

impl fmt::Debug for ProceduralBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProceduralBacking").field("len", &self.len).finish_non_exhaustive()
    }
}

impl ProceduralBacking {
    /// `len` bytes of which the 8 at byte `i` are [`ProceduralBacking::word`]`(seed, i / 8)`, little-endian.
    pub fn new(len: u64, seed: u64) -> Self {
        Self::with(len, move |block, words| {
            for (i, word) in (block * 64..).zip(words) {
                *word = Self::word(seed, i);
            }
        })
    }

    /// `len` bytes that `content` computes: it is given the index of a 512-byte block and fills it, in words of 8
    /// bytes, little-endian. The same index always gives the same content.
    pub fn with(len: u64, content: impl Fn(u64, &mut ContentBlock) + Send + Sync + 'static) -> Self {
        let written = RwLock::new(HashMap::new());
        Self { len, content: Box::new(content), written, any: AtomicBool::new(false) }
    }

    /// Word `index` of the content that `seed` gives: the output function of SplitMix64 (Steele, Lea and Flood, 2014).
    #[inline]
    pub fn word(seed: u64, index: u64) -> u64 {
        let z = seed.wrapping_add((index.wrapping_add(1)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// The current content of a block.
    fn block(&self, index: u64, words: &mut ContentBlock) {
        if self.any.load(Ordering::Acquire)
            && let Some(written) = self.written.read().unwrap_or_else(PoisonError::into_inner).get(&index)
        {
            words.copy_from_slice(&written[..]);
        } else {
            (self.content)(index, words);
        }
    }

    /// Calls `visit` for each block of a range, with the block's index and the bytes of it that the range covers.
    fn blocks(offset: u64, len: u64, mut visit: impl FnMut(u64, std::ops::Range<usize>)) {
        let end = offset + len;
        for index in offset / BLOCK..end.div_ceil(BLOCK) {
            let start = index * BLOCK;
            visit(index, offset.saturating_sub(start) as usize..(end - start).min(BLOCK) as usize);
        }
    }

    /// Changes blocks; `change` is given bytes of a block and how far they are from `offset`.
    fn change(&self, offset: u64, len: u64, mut change: impl FnMut(&mut [u8], usize)) {
        let mut written = self.written.write().unwrap_or_else(PoisonError::into_inner);
        self.any.store(true, Ordering::Release);
        Self::blocks(offset, len, |index, part| {
            let block = written.entry(index).or_insert_with(|| {
                let mut words = Box::new([0; 64]);
                (self.content)(index, &mut words);
                words
            });
            let mut bytes = [0; BLOCK as usize];
            for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(block.iter()) {
                *bytes = word.to_le_bytes();
            }
            let from = (index * BLOCK + part.start as u64 - offset) as usize;
            change(&mut bytes[part], from);
            for (bytes, word) in bytes.as_chunks::<8>().0.iter().zip(block.iter_mut()) {
                *word = u64::from_le_bytes(*bytes);
            }
        });
    }
}

impl Backing for ProceduralBacking {
    fn size(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        let mut at = at;
        Self::blocks(offset, len as u64, |index, part| {
            let mut words = [0; 64];
            self.block(index, &mut words);
            if part == (0..BLOCK as usize) && at.is_multiple_of(8) {
                for (i, words) in words.as_chunks::<8>().0.iter().enumerate() {
                    to.store_words::<8>(at + i * 64, words.map(u64::to_le));
                }
            } else {
                let mut bytes = [0; BLOCK as usize];
                for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                    *bytes = word.to_le_bytes();
                }
                to.write(at, &bytes[part.clone()]);
            }
            at += part.len();
        });
        Ok(())
    }

    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.change(offset, len as u64, |bytes, distance| from.read(at + distance, bytes));
        Ok(())
    }

    fn zero(&self, offset: u64, len: u64, deallocate: bool) -> Result<(), MediaError> {
        if deallocate {
            let mut written = self.written.write().unwrap_or_else(PoisonError::into_inner);
            let blocks = offset / BLOCK..(offset + len) / BLOCK;
            written.retain(|index, _| !blocks.contains(index));
            self.any.store(!written.is_empty(), Ordering::Release);
        } else {
            self.change(offset, len, |bytes, _| bytes.fill(0));
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), MediaError> {
        Ok(())
    }

    fn deallocated_reads_zero(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(memory: &DmaMemory, at: usize, count: usize) -> Vec<u64> {
        let mut bytes = vec![0; count * 8];
        memory.read(at, &mut bytes);
        bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn content_follows_the_seed_and_writes_take_its_place() {
        let backing = ProceduralBacking::new(1 << 50, 77);
        let memory = DmaMemory::allocate(8192, warprow_dma::MemoryKind::Anonymous).unwrap();
        let generated = |word: u64| (word..word + 192).map(|i| ProceduralBacking::word(77, i)).collect::<Vec<_>>();
        let offset = (1 << 49) + 512;
        for at in [0, 4] {
            backing.read(offset, &memory, at, 4).unwrap();
            backing.read(offset + 4, &memory, at + 4, 1532).unwrap();
            assert_eq!(words(&memory, at, 192), generated(offset / 8));
        }
        memory.fill(4096, 1024, 0xab);
        backing.write(offset + 256, &memory, 4096, 512).unwrap();
        backing.read(offset, &memory, 0, 1536).unwrap();
        let mut want = generated(offset / 8);
        want[32..96].fill(0xabab_abab_abab_abab);
        assert_eq!(words(&memory, 0, 192), want);
        backing.zero(offset, 512, false).unwrap();
        backing.read(offset, &memory, 0, 1536).unwrap();
        want[..64].fill(0);
        assert_eq!(words(&memory, 0, 192), want);
        backing.zero(offset, 1536, true).unwrap();
        backing.read(offset, &memory, 0, 1536).unwrap();
        assert_eq!(words(&memory, 0, 192), generated(offset / 8));
    }
}
