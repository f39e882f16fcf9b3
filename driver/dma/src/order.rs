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

/// Between storing a doorbell and looking whether its reader sleeps, and between announcing sleep and looking at the
/// doorbells once more: without it both may miss the other (store-load reordering).
#[inline(always)]
pub fn between_doorbell_and_sleep() {
    fence(Ordering::SeqCst);
}
