use std::collections::BTreeMap;

/// The first address given out: beyond 4 GiB, so that an address cut to 32 bits never works by accident.
const FIRST: u64 = 0x10_0000_0000;
/// One past the last.
const END: u64 = 1 << 47;
/// Between two mappings: what runs over the one must not reach the other.
const GAP: u64 = 2 << 20;

/// I/O virtual addresses in use. They go around before one is used again, so that a stale one hits nothing.
#[derive(Debug)]
pub(crate) struct Iovas {
    used: BTreeMap<u64, u64>,
    next: u64,
}

impl Default for Iovas {
    fn default() -> Self {
        Self { used: BTreeMap::new(), next: FIRST }
    }
}

impl Iovas {
    pub(crate) fn allocate(&mut self, len: u64) -> Option<u64> {
        let needed = len.checked_next_multiple_of(GAP)?.checked_add(GAP)?;
        let iova = self.gap(self.next, needed).or_else(|| self.gap(FIRST, needed))?;
        self.next = iova + needed;
        self.used.insert(iova, needed);
        Some(iova)
    }

    fn gap(&self, from: u64, needed: u64) -> Option<u64> {
        let before = self.used.range(..from).next_back().map_or(from, |(at, len)| at + len);
        let mut at = from.max(before);
        for (&used, len) in self.used.range(from..) {
            if used.saturating_sub(at) >= needed {
                return Some(at);
            }
            at = used + len;
        }
        (at.checked_add(needed)? <= END).then_some(at)
    }

    pub(crate) fn release(&mut self, iova: u64) {
        self.used.remove(&iova);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_go_around_and_never_touch() {
        let mut iovas = Iovas::default();
        let a = iovas.allocate(1).unwrap();
        let b = iovas.allocate(GAP + 1).unwrap();
        assert_eq!((a, b), (FIRST, FIRST + 2 * GAP));
        iovas.release(a);
        assert_eq!(iovas.allocate(4096), Some(FIRST + 5 * GAP), "not at once");
        iovas.next = END - GAP;
        assert_eq!(iovas.allocate(4096), Some(a));
        iovas.next = END;
        assert_eq!(iovas.allocate(4096), Some(FIRST + 7 * GAP));
        assert_eq!(iovas.allocate(END), None);
        assert_eq!(iovas.allocate(u64::MAX), None);
    }
}
