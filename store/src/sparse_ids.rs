//! How rows of a table with keys are found.

use std::sync::Arc;

use warprow_keys::KeyIndex;
use warprow_layout::Ranks;

/// What look-ups need to find the rows of a table by sparse ids.
#[derive(Debug, Clone)]
pub struct SparseIds {
    /// Id → key position.
    pub index: Arc<KeyIndex>,
    /// The ids themselves by rank, where each is to be compared.
    pub stored: Option<Arc<Vec<u64>>>,
    /// Key position → rank; `None`: the two are equal.
    pub ranks: Option<Arc<Ranks>>,
}

impl SparseIds {
    /// The key position of each of `raws`, which are numbers of the index's kind, given as bits; [`KeyIndex::ABSENT`]
    /// for those that the table does not have.
    pub fn positions_of(&self, raws: &[u64]) -> Vec<u64> {
        let mut slots = vec![0; raws.len()];
        self.index.positions(raws, &mut slots);
        let pairs = slots.iter_mut().zip(raws);
        pairs
            .filter(|(slot, raw)| **slot != KeyIndex::ABSENT && !self.is_stored(**slot, **raw))
            .for_each(|(slot, _)| *slot = KeyIndex::ABSENT);
        slots
    }

    /// The id whose key position is `slot`, where ids are stored.
    pub fn id_at(&self, slot: u64) -> Option<u64> {
        let rank = self.ranks.as_deref().map_or(Some(slot), |ranks| ranks.get(slot))?;
        self.stored.as_ref()?.get(usize::try_from(rank).ok()?).copied()
    }

    /// Whether the id whose key position is `slot` is `raw`. Where ids are not to be compared, this is taken to be so.
    #[inline]
    pub fn is_stored(&self, slot: u64, raw: u64) -> bool {
        let Some(stored) = &self.stored else { return true };
        let rank = self.ranks.as_deref().map_or(Some(slot), |ranks| ranks.get(slot));
        rank.and_then(|rank| stored.get(rank as usize)) == Some(&raw)
    }
}
