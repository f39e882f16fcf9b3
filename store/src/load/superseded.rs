//! Which generations give way to a load.

use std::collections::BTreeSet;

use warprow_layout::GenerationSpec;

use super::options::LoadOptions;
use crate::StoreError;
use crate::table_version::TableVersion;

/// The generations all of whose tables that count `spec` replaces, where `current` are those that count.
pub(super) fn superseded(
    current: Vec<TableVersion>,
    spec: &GenerationSpec,
    options: &LoadOptions,
) -> Result<Vec<u64>, StoreError> {
    if options.standby {
        return Ok(Vec::new());
    }
    let named = |name: &str| spec.tables.iter().any(|table| table.name == name);
    if !options.replace
        && let Some(table) = current.iter().map(TableVersion::table).find(|table| named(&table.name))
    {
        return Err(StoreError::TableExists { table: table.name.clone() });
    }
    let survives = |id| current.iter().any(|version| version.generation.id == id && !named(&version.table().name));
    // What is standby, or was hidden before, stays.
    let counting: BTreeSet<u64> = current.iter().map(|version| version.generation.id).collect();
    Ok(counting.into_iter().filter(|&id| !survives(id)).collect())
}
