//! Hints that ordinary memory is read soon.

/// Bytes of a cache line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE: usize = 64;

/// Says that `bytes` are read soon, so that they are on their way into the nearest cache meanwhile. For what [`nontemporal::copy`] will read
/// there is a hint of its own, [`nontemporal::prefetch`].
///
/// [`nontemporal::copy`]: crate::nontemporal::copy
/// [`nontemporal::prefetch`]: crate::nontemporal::prefetch
#[inline(always)]
pub fn prefetch(bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let begin = bytes.as_ptr();
        for line in (0..bytes.len()).step_by(LINE) {
            // SAFETY: a hint, which reads nothing, about an address within `bytes`.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(begin.add(line).cast()) };
        }
        // Bytes that do not begin with a line may end in one more line than these.
        if !begin.addr().is_multiple_of(LINE)
            && let Some(last) = bytes.last()
        {
            // SAFETY: as above.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(last).cast()) };
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_changes_nothing_wherever_bytes_begin_and_end() {
        let bytes: Vec<u8> = (0..1000u32).map(|at| (at * 7 % 251) as u8).collect();
        for (begin, len) in (0..70).flat_map(|begin| [0, 1, 3, 63, 64, 65, 128, 500, 900].map(|len| (begin, len))) {
            prefetch(&bytes[begin..begin + len]);
        }
        assert!((0..1000u32).zip(&bytes).all(|(at, &byte)| byte == (at * 7 % 251) as u8));
    }
}
