//! Which versions of a generation have the same rows, but for those that updates have changed: so that what was kept in memory of the other
//! rows still holds after a compaction.

use std::sync::{Arc, Mutex, Weak};

use warprow_layout::Placement;

use super::state::Updates;
use crate::drive_access::lock;
use crate::overlay::Overlay;
use crate::table_version::TableVersion;

/// Chunk maps that compactions have made of each other by copying chunks, of all generations of a store, since it was opened. A map that
/// came about otherwise, as by rows that were replaced or keys that were created, is not among them, or has no kin.
#[derive(Debug, Default)]
pub(crate) struct Kinship(Mutex<Vec<Kin>>);

#[derive(Debug)]
struct Kin {
    /// Of maps that were made of one, directly or not, this is equal.
    family: u64,
    /// While this is here, no other map has its address.
    map: Weak<Placement>,
}

impl Kinship {
    /// Notes that `after` was made of `before` by copying chunks, with the rows of updates in them and no others changed.
    pub(super) fn note(&self, before: &Weak<Placement>, after: &Arc<Placement>) {
        let mut all = lock(&self.0);
        let family = all.iter().find(|kin| kin.map.ptr_eq(before)).map(|kin| kin.family);
        let is_new = family.is_none();
        let family = family.unwrap_or_else(|| all.iter().map(|kin| kin.family + 1).max().unwrap_or(0));
        all.retain(|kin| kin.map.strong_count() > 0);
        if is_new && before.strong_count() > 0 {
            all.push(Kin { family, map: before.clone() });
        }
        all.push(Kin { family, map: Arc::downgrade(after) });
    }

    /// Whether updates alone have changed rows between two maps.
    fn are_kin(&self, a: &Arc<Placement>, b: &Arc<Placement>) -> bool {
        let all = lock(&self.0);
        let family = |map: &Arc<Placement>| {
            let map = Arc::downgrade(map);
            all.iter().find(|kin| kin.map.ptr_eq(&map)).map(|kin| kin.family)
        };
        Arc::ptr_eq(a, b) || family(a).is_some_and(|of_a| family(b) == Some(of_a))
    }
}

impl Updates {
    /// What [`StoreView::changed_rows`](crate::view::StoreView::changed_rows) says.
    pub(crate) fn changed_rows(
        &self,
        before: &TableVersion,
        overlay: &Overlay,
        now: &TableVersion,
    ) -> Option<Vec<u64>> {
        let (a, b) = (&before.generation, &now.generation);
        if (a.id, before.index) != (b.id, now.index) || !self.kinship.are_kin(&a.placement, &b.placement) {
            return None;
        }
        // Each update is in this overlay before a compaction can bring it into chunks.
        let Some(snapshot) = overlay.snapshot() else { return Some(Vec::new()) };
        let table = before.index as u32;
        Some(snapshot.rows(table).map(|(id, _)| id).chain(snapshot.removed(table)).collect())
    }
}
