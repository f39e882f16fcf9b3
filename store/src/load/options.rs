//! How tables are loaded.

use std::path::PathBuf;

use warprow_layout::{ChunkSpread, GenerationSpec, TableSpec};

/// How tables are loaded.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Whether tables of the same names are dropped in the same commit. Until then both versions need room.
    pub replace: bool,
    /// Whether the generation is on standby at first: names do not find its tables before it is
    /// [switched](crate::Store::switch) to, and tables of the same names stay.
    pub standby: bool,
    /// Bytes of memory for putting a permuted table's rows in order. Larger tables are written twice.
    pub memory: u64,
    /// Which free chunks to take.
    pub span: ChunkSpread,
    /// Bytes of a stripe unit; `None`: as the layout thinks best.
    pub stripe_unit: Option<u32>,
    /// The file in which to note what is written, so that the same load goes on where it was killed or stopped; and what tells
    /// the sources from others, such as their names, sizes and times. The file goes when the load is done.
    pub journal: Option<(PathBuf, String)>,
}

impl Default for LoadOptions {
    /// Replaces nothing, takes up to 1 GiB of memory.
    fn default() -> Self {
        Self {
            replace: false,
            standby: false,
            memory: 1 << 30,
            span: ChunkSpread::default(),
            stripe_unit: None,
            journal: None,
        }
    }
}

impl LoadOptions {
    /// Replacing tables of the same names.
    #[must_use]
    pub fn with_replace(self) -> Self {
        Self { replace: true, ..self }
    }

    /// Noting in the file at `path` what is written, to go on there if it is killed or stopped: the same load of the same
    /// `sources`, on a store that nothing else was committed to meanwhile, reads what it had written back and compares it, which
    /// takes less than writing it. Of a table that is put in order, and larger than [`memory`](Self::memory), parts of that size are found.
    #[must_use]
    pub fn with_journal(self, path: impl Into<PathBuf>, sources: impl Into<String>) -> Self {
        Self { journal: Some((path.into(), sources.into())), ..self }
    }

    /// Beside what there is: see [`standby`](Self::standby).
    #[must_use]
    pub fn with_standby(self) -> Self {
        Self { standby: true, ..self }
    }

    pub(super) fn generation(&self, model: &str, tables: Vec<TableSpec>) -> GenerationSpec {
        let mut spec = GenerationSpec::new(model, tables);
        (spec.span, spec.stripe_unit, spec.standby) = (self.span, self.stripe_unit, self.standby);
        spec
    }

    /// With that much memory for permuted tables.
    #[must_use]
    pub fn with_memory(self, memory: u64) -> Self {
        Self { memory, ..self }
    }
}
