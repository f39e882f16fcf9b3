//! Which rows of a table ids name, as the host finds out.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use warprow_keys::{KeyIndex, KeyKind};
use warprow_layout::Ranks;
use warprow_store::StoreError;
use warprow_store::view::{SparseIds, StoreView, TableVersion};

use crate::batch::IdType;
use crate::error::GpuError;

/// What leads from a table's ids to ranks.
pub(crate) struct RowNames {
    /// `None`: ids are no keys.
    sparse: Option<SparseIds>,
    /// `None`: the id, or the position of its key, is the rank.
    ranks: Option<Arc<Ranks>>,
    rows: u64,
}

impl RowNames {
    /// Reads it from the drives. `check_keys`: keys are compared with those that are stored, as look-ups do.
    pub(crate) fn read(store: &StoreView, table: &TableVersion, check_keys: bool) -> Result<Self, GpuError> {
        let read = || {
            let ranks = store.read_ranks(table)?.map(Arc::new);
            let index = store.read_key_index(table)?;
            let stored = if check_keys && index.is_some() { store.read_keys(table)?.map(Arc::new) } else { None };
            let sparse = index.map(|index| SparseIds { index: Arc::new(index), stored, ranks: ranks.clone() });
            Ok::<_, StoreError>(Self { sparse, ranks, rows: table.table().rows })
        };
        Ok(read()?)
    }

    /// As look-ups are given the ids.
    pub(crate) fn id_type(&self) -> IdType {
        match &self.sparse {
            Some(sparse) if sparse.index.kind() == KeyKind::I64 => IdType::I64,
            _ => IdType::U64,
        }
    }

    /// The id of each rank, or the bits of its key; `None`: keys are not stored.
    pub(crate) fn ids_of(&self, ranks: &[u64]) -> Option<Vec<u64>> {
        if let Some(sparse) = &self.sparse {
            let stored = sparse.stored.as_ref()?;
            return ranks.iter().map(|&rank| stored.get(rank as usize).copied()).collect();
        }
        let Some(order) = &self.ranks else { return Some(ranks.to_vec()) };
        let wanted: HashSet<u64> = ranks.iter().copied().collect();
        let ranked = (0..order.len()).filter_map(|id| Some((order.get(id)?, id)));
        let ids: HashMap<u64, u64> = ranked.filter(|(rank, _)| wanted.contains(rank)).collect();
        ranks.iter().map(|rank| ids.get(rank).copied()).collect()
    }

    /// The rank of each id, or of each key by its bits; `None`: the table has no such row.
    pub(crate) fn ranks_of(&self, ids: &[u64]) -> Vec<Option<u64>> {
        let positions = match &self.sparse {
            None => ids.to_vec(),
            Some(sparse) => sparse.positions_of(ids),
        };
        let rank_of = |position: u64| {
            let position = Some(position).filter(|&it| it != KeyIndex::ABSENT && it < self.rows)?;
            self.ranks.as_ref().map_or(Some(position), |ranks| ranks.get(position))
        };
        positions.into_iter().map(rank_of).collect()
    }
}
