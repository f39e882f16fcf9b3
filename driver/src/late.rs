//! Commands that the device may still carry out though nobody waits for them any more.

use std::sync::atomic::{AtomicU32, Ordering};

use warprow_spec::{AdminOpcode, NvmOpcode};

/// How many commands that change the media timed out, or were left in a queue that the device did not delete. Each may
/// overwrite what is written later, until its queue is deleted or the controller reset; so no write is accepted while
/// there is one.
#[derive(Debug, Default)]
pub(crate) struct LateWrites(AtomicU32);

impl LateWrites {
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, count: u32) {
        self.0.fetch_add(count, Ordering::SeqCst);
    }

    /// Says that `count` of them have provably ended.
    pub(crate) fn end(&self, count: u32) {
        self.0.fetch_sub(count, Ordering::SeqCst);
    }

    /// Says that all have ended, because RDY = 0 has followed CC.EN = 0.
    pub(crate) fn end_all(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// Whether an I/O command changes the media. An opcode that is not known to leave the media alone counts as one that
/// changes it.
#[inline(always)]
pub(crate) fn changes_media(opcode: u8) -> bool {
    !matches!(NvmOpcode(opcode), NvmOpcode::READ | NvmOpcode::FLUSH | NvmOpcode::COMPARE | NvmOpcode::VERIFY)
}

/// Whether an admin command changes the media.
pub(crate) fn admin_changes_media(opcode: u8) -> bool {
    matches!(AdminOpcode(opcode), AdminOpcode::FORMAT_NVM | AdminOpcode::SANITIZE | AdminOpcode::NAMESPACE_MANAGEMENT)
}
