//! Copies of ordinary memory that nobody reads soon.

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes that are copied without a branch between.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const BLOCK: usize = 512;
/// Bytes that are stored at once.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STORED: usize = 16;

/// Copies `from` to `to`, as long, which nobody reads soon: past the caches, so that memory is not read before it is overwritten, where `to`
/// begins at a multiple of 16 B and is as many long; else as any copy. It pays where whole lines of 64 B are written, by this copy or
/// with the next ones. What was copied is there for whoever learns of it by any of the usual ways (a lock, a joined thread) after [`fence`] on
/// this thread.
///
/// Panics if they differ in length.
#[inline]
pub fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "a copy is as long as what is copied");
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if to.as_ptr().addr().is_multiple_of(STORED) && to.len().is_multiple_of(STORED) {
        return past(to, from);
    }
    to.copy_from_slice(from);
}

/// SSE2, which every x86-64 has, is as fast as wider stores: memory is what is waited for. In blocks without a branch, since the end of a loop that is
/// foreseen wrongly ends looking ahead as well: rows of 512 B took a quarter longer line by line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn past(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let store = |to: &mut [u8; STORED], from: &[u8; STORED]| {
        // SAFETY: each has 16 bytes; `copy` saw that the first of `to` is aligned to as many, so all are.
        unsafe { _mm_stream_si128(to.as_mut_ptr().cast::<__m128i>(), _mm_loadu_si128(from.as_ptr().cast())) };
    };
    let ((to_blocks, to), (from_blocks, from)) = (to.as_chunks_mut::<BLOCK>(), from.as_chunks::<BLOCK>());
    for (to, from) in to_blocks.iter_mut().zip(from_blocks) {
        to.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0).for_each(|(to, from)| store(to, from));
    }
    let ((to_lines, to), (from_lines, from)) = (to.as_chunks_mut::<LINE>(), from.as_chunks::<LINE>());
    for (to, from) in to_lines.iter_mut().zip(from_lines) {
        to.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0).for_each(|(to, from)| store(to, from));
    }
    to.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0).for_each(|(to, from)| store(to, from));
}

/// Makes what [`copy`] wrote on this thread precede whatever this thread writes from here on.
#[inline]
pub fn fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Says that `bytes` are read soon, so that they are on their way meanwhile: into a core's second cache, of which more lines can be awaited
/// at a time than of the first, where those of [`copy`]'s stores wait as well.
#[inline]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    for line in (0..bytes.len()).step_by(LINE) {
        // SAFETY: a hint, which reads nothing, about an address within `bytes`.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(bytes.as_ptr().add(line).cast());
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_equal_wherever_they_begin() {
        let from: Vec<u8> = (0..2000u32).map(|at| (at * 7 % 251) as u8).collect();
        for (begin, len) in
            (0..70).flat_map(|begin| [0, 1, 16, 63, 64, 80, 128, 500, 512, 1024].map(|len| (begin, len)))
        {
            let mut to = vec![0xee; 1200];
            let source = &from[begin * 3..][..len];
            prefetch(source);
            copy(&mut to[begin..begin + len], source);
            fence();
            assert!(to[begin..begin + len] == *source, "{len} bytes at {begin}");
            assert!(to[..begin].iter().chain(&to[begin + len..]).all(|&byte| byte == 0xee), "{len} bytes at {begin}");
        }
    }

    #[test]
    #[should_panic(expected = "as long")]
    fn copies_of_other_lengths_are_refused() {
        copy(&mut [0; 64], &[0; 63]);
    }
}
