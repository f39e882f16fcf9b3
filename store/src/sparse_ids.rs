//! How rows of a table with keys are found.

use std::sync::Arc;

use warprow_keys::KeyIndex;
use warprow_layout::Ranks;

/// What look-ups have to know of a table's sparse ids.
#[derive(Debug, Clone)]
pub struct SparseIds {
    /// Id → slot.
    pub index: Arc<KeyIndex>,
    /// The ids themselves by rank, where each is to be compared.
    pub stored: Option<Arc<Vec<u64>>>,
    /// Slot → rank; `None`: they are the same.
    pub ranks: Option<Arc<Ranks>>,
}

impl SparseIds {
    /// The slot of each of `raws`, numbers of the index's kind by their bits; [`KeyIndex::ABSENT`] of those that are not there.
    pub fn slots_of(&self, raws: &[u64]) -> Vec<u64> {
        let mut slots = vec![0; raws.len()];
        self.index.slots(raws, &mut slots);
        let pairs = slots.iter_mut().zip(raws);
        pairs
            .filter(|(slot, raw)| **slot != KeyIndex::ABSENT && !self.is_stored(**slot, **raw))
            .for_each(|(slot, _)| *slot = KeyIndex::ABSENT);
        slots
    }

    /// The id at `slot`, where ids are stored.
    pub fn id_at(&self, slot: u64) -> Option<u64> {
        let rank = self.ranks.as_deref().map_or(Some(slot), |ranks| ranks.get(slot))?;
        self.stored.as_ref()?.get(usize::try_from(rank).ok()?).copied()
    }

    /// Whether the id at `slot` is `raw`, as far as that is to be looked at.
    #[inline]
    pub fn is_stored(&self, slot: u64, raw: u64) -> bool {
        let Some(stored) = &self.stored else { return true };
        let rank = self.ranks.as_deref().map_or(Some(slot), |ranks| ranks.get(slot));
        rank.and_then(|rank| stored.get(rank as usize)) == Some(&raw)
    }
}
