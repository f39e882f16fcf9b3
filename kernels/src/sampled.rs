//! Ids that kernels have left to be counted, as the host takes them out of the ring: `cuda/sample.cuh` has the other side.

use crate::SAMPLED_IDS;

/// The plan that a sampled id is of, and the feature of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampledOf {
    /// The plan's number.
    pub plan: u32,
    /// The feature's number in the plan.
    pub feature: u32,
}

/// Where the host is in the ring.
#[derive(Clone, Debug, Default)]
pub struct SampledRing {
    /// Ids that were taken or lost, modulo 2³².
    next: u32,
}

/// Bytes of the ring.
pub const SAMPLED_BYTES: u64 = SAMPLED_IDS as u64 * 16;
/// Plans whose ids can be told apart.
pub const SAMPLED_PLANS: u32 = 1 << 23;

impl SampledRing {
    /// Behind so many ids, modulo 2³².
    pub fn begin_at(next: u32) -> Self {
        Self { next }
    }

    /// Takes the ids that are there, and at most as many as the ring has room for; `load` reads the word at a byte of the ring. Returns
    /// how many were overwritten before they could be taken.
    pub fn take(&mut self, load: impl Fn(usize) -> u64, give: &mut dyn FnMut(SampledOf, u64)) -> u64 {
        let mut lost = 0;
        for _ in 0..SAMPLED_IDS {
            let place = (self.next % SAMPLED_IDS) as usize * 16;
            let tag = load(place + 8);
            let lap = ((tag >> 48) as u16).wrapping_sub((self.next / SAMPLED_IDS) as u16);
            if tag >> 47 & 1 == 0 || lap >= 1 << 15 {
                // Empty, or of the lap before.
                break;
            }
            let id = load(place);
            if load(place + 8) != tag {
                // Another one is just coming: the next look finds it whole.
                break;
            }
            // Whoever was gone around lost so many.
            let over = u32::from(lap) * SAMPLED_IDS;
            lost += u64::from(over);
            self.next = self.next.wrapping_add(over + 1);
            give(SampledOf { plan: (tag >> 24) as u32 & (SAMPLED_PLANS - 1), feature: tag as u32 & 0xff_ffff }, id);
        }
        lost
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn ids_are_taken_in_order_and_those_overwritten_are_counted() {
        let ring = RefCell::new(vec![[0u64; 2]; SAMPLED_IDS as usize]);
        let put = |index: u64| {
            let tag = (index >> 16 << 48) | (1 << 47) | ((index % 7) << 24) | (index % 5);
            ring.borrow_mut()[(index % u64::from(SAMPLED_IDS)) as usize] = [index * 3, tag];
        };
        let load = |at: usize| ring.borrow()[at / 16][at % 16 / 8];
        let mut host = SampledRing::default();
        let mut taken = Vec::new();
        let mut take = |host: &mut SampledRing| {
            taken.clear();
            let lost = host.take(load, &mut |of, id| taken.push((of, id)));
            (taken.clone(), lost)
        };
        assert_eq!(take(&mut host), (vec![], 0));
        (0..10).for_each(put);
        let (ids, lost) = take(&mut host);
        assert_eq!((ids.len(), lost, ids[8].1), (10, 0, 24));
        assert_eq!(ids[8].0, SampledOf { plan: 1, feature: 3 });
        assert_eq!(take(&mut host).0.len(), 0);
        // Gone around, and then some.
        let end = 10 + u64::from(SAMPLED_IDS) + 500;
        (10..end).for_each(put);
        let (ids, lost) = take(&mut host);
        assert_eq!((ids[0].1 / 3, lost), (10 + u64::from(SAMPLED_IDS), u64::from(SAMPLED_IDS)));
        assert_eq!(ids.last().unwrap().1 / 3, end - 1);
        assert_eq!(take(&mut host).0.len(), 0);
        // The count of laps comes to its end, in a ring of its own.
        ring.borrow_mut().fill([0; 2]);
        let mut late = SampledRing { next: u32::MAX - 3 };
        let last = u64::from(u32::MAX);
        (last - 3..=last + 6).for_each(put);
        let (ids, lost) = take(&mut late);
        assert_eq!((ids.len(), lost, late.next), (10, 0, 6));
    }
}
