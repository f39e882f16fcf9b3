//! The order in which a host thread and a device see each other's writes, written down once.
//!
//! A submission: store every word of the SQEs, [`before_doorbell`], store the tail doorbell.
//! A completion: load the word with the phase bit, [`after_phase`], load the rest of the CQE, then the data.
//! Credit: read everything of the CQEs, [`before_doorbell`], store the CQ head doorbell.
//!
//! The device's side of an in-process controller mirrors it: load the doorbell, [`after_doorbell`], load the SQEs; store
//! the data and the CQE's other words, [`before_phase`], store the word with the phase bit.
//! (NVMe Base 2.0, 3.3.1.2; NVMe 1.4, 4.1 and 7.2.1.)
//!
//! Doorbells in a BAR are mapped uncached, never write-combining: a fence would not flush a write-combining buffer in
//! order on every machine.

#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};
#[cfg(not(loom))]
use std::sync::atomic::{Ordering, fence};

/// All earlier stores to memory are visible to the device before a later doorbell store is.
#[inline(always)]
pub fn before_doorbell() {
    fence(Ordering::Release);
    // A release fence orders accesses of normal memory among the cores. A device's registers are outside that domain,
    // and earlier loads count too: a doorbell may give the memory they read back to the device.
    #[cfg(all(target_arch = "aarch64", not(loom)))]
    // SAFETY: a barrier instruction; it touches no memory and no registers.
    unsafe {
        core::arch::asm!("dmb osh", options(nostack, preserves_flags))
    };
    // The doorbell of a BAR is a volatile store, which a fence alone does not bind for the compiler.
    #[cfg(all(not(target_arch = "aarch64"), not(loom)))]
    // SAFETY: no instruction at all; the compiler must assume that memory is touched here.
    unsafe {
        core::arch::asm!("", options(nostack, preserves_flags))
    };
}

/// Later loads of the CQE and of the data it announces are not served before the phase that was just read.
#[inline(always)]
pub fn after_phase() {
    fence(Ordering::Acquire);
    #[cfg(all(target_arch = "aarch64", not(loom)))]
    // SAFETY: a barrier instruction; it touches no memory and no registers.
    unsafe {
        core::arch::asm!("dmb osh", options(nostack, preserves_flags))
    };
}

/// The controller's side of [`before_doorbell`].
#[inline(always)]
pub fn after_doorbell() {
    fence(Ordering::Acquire);
}

/// The controller's side of [`after_phase`].
#[inline(always)]
pub fn before_phase() {
    fence(Ordering::Release);
}

/// Stands between storing a doorbell and looking whether its reader sleeps. Without this and its counterpart,
/// [`between_sleep_and_doorbell`], the ringer may miss the sleeper and the sleeper the doorbell (store-load
/// reordering).
///
/// Doorbells are rung all the time and readers seldom go to sleep. So where the system offers it, the reader pays for
/// both: it has every thread of the process pass a barrier (`membarrier`), and here only the compiler has to be kept
/// from reordering.
#[inline(always)]
pub fn between_doorbell_and_sleep() {
    #[cfg(all(target_os = "linux", not(loom)))]
    if crate::process_barrier::is_available() {
        return std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
    fence(Ordering::SeqCst);
}

/// Stands between announcing sleep and looking at the doorbells once more; the counterpart of
/// [`between_doorbell_and_sleep`].
pub fn between_sleep_and_doorbell() {
    #[cfg(all(target_os = "linux", not(loom)))]
    if crate::process_barrier::process_barrier() {
        return;
    }
    fence(Ordering::SeqCst);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, AtomicUsize};

    /// The ringer stores its doorbell and looks for the sleeper, the sleeper announces sleep and looks for the doorbell: one of
    /// them sees the other.
    #[test]
    fn ringer_and_sleeper_never_miss_each_other() {
        const ROUNDS: usize = 20_000;
        let cells: Vec<[AtomicU32; 2]> = (0..ROUNDS).map(|_| Default::default()).collect();
        let at_line = AtomicUsize::new(0);
        let run = |mine: usize, order: fn()| {
            let looks = cells.iter().enumerate().map(|(round, cell)| {
                // Both start a round at the same moment, or no reordering would ever show.
                at_line.fetch_add(1, Ordering::SeqCst);
                let mut turn = 0u32;
                while at_line.load(Ordering::SeqCst) < 2 * (round + 1) {
                    turn += 1;
                    if turn.is_multiple_of(1000) { std::thread::yield_now() } else { std::hint::spin_loop() }
                }
                cell[mine].store(1, Ordering::Relaxed);
                order();
                cell[1 - mine].load(Ordering::Relaxed)
            });
            looks.collect::<Vec<_>>()
        };
        let (ringer, sleeper) = std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| run(1, between_sleep_and_doorbell));
            (run(0, between_doorbell_and_sleep), sleeper.join().unwrap())
        });
        let missed = ringer.iter().zip(&sleeper).filter(|seen| *seen == (&0, &0)).count();
        assert_eq!(missed, 0, "of {ROUNDS} rounds");
    }
}
