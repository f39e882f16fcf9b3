//! What the user and the process may do.

use std::path::Path;

use nix::unistd::{AccessFlags, access};

use crate::Machine;

/// Whether this user may read and write the file.
pub(crate) fn may_use(path: &Path) -> bool {
    access(path, AccessFlags::R_OK | AccessFlags::W_OK).is_ok()
}

/// Soft and hard limit of locked memory in bytes; `None` inside for no limit.
pub(crate) fn memlock(machine: &Machine) -> Option<(Option<u64>, Option<u64>)> {
    let limits = machine.text("/proc/self/limits")?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"))?;
    let limit = |text: &str| match text {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    };
    let mut fields = line.split_whitespace();
    Some((limit(fields.next()?)?, limit(fields.next()?)?))
}

/// A capability by its number (capabilities(7)): to lock memory past the limit.
pub(crate) const CAP_IPC_LOCK: u32 = 14;
/// The capability to do what only an administrator may.
pub(crate) const CAP_SYS_ADMIN: u32 = 21;

/// Whether the process has the capability.
pub(crate) fn has(machine: &Machine, capability: u32) -> bool {
    let status = machine.text("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).is_some_and(|set| set >> capability & 1 != 0)
}
