//! Commands that the device may still carry out though nobody waits for them any more.

use std::sync::atomic::{AtomicU32, Ordering};

use warprow_spec::{AdminOpcode, NvmOpcode};

/// How many commands that change the media timed out, or were left in a queue that the device did not delete. Each may
/// land on what is written after it, until its queue is deleted or the controller reset; so no write is accepted.
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

    /// So many of them have provably ended.
    pub(crate) fn end(&self, count: u32) {
        self.0.fetch_sub(count, Ordering::SeqCst);
    }

    /// CC.EN = 0 has reached RDY = 0: all have ended.
    pub(crate) fn end_all(&self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

/// Whether an I/O command changes the media, as all do that are not known to leave it alone.
#[inline(always)]
pub(crate) fn changes_media(opcode: u8) -> bool {
    !matches!(NvmOpcode(opcode), NvmOpcode::READ | NvmOpcode::FLUSH | NvmOpcode::COMPARE | NvmOpcode::VERIFY)
}

/// The same of an admin command.
pub(crate) fn admin_changes_media(opcode: u8) -> bool {
    matches!(AdminOpcode(opcode), AdminOpcode::FORMAT_NVM | AdminOpcode::SANITIZE | AdminOpcode::NAMESPACE_MANAGEMENT)
}
