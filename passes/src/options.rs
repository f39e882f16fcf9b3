//! How passes are run.

use std::path::PathBuf;
use std::sync::Arc;

/// Where rows are between passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PassMode {
    /// All rows of the table in memory, from the opening on.
    Staged,
    /// The rows of some passes in memory, the others on the drives.
    Cached(CacheOptions),
}

/// What stays in memory from pass to pass. As in HugeCTR's embedding training cache, but that a row is never there twice.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheOptions {
    /// Passes that are kept, at most. Rows of a pass that is not kept go when the next has been staged; 0: before that.
    pub num_blocks: u32,
    /// When so many passes are kept, the oldest makes way for one of which a smaller share than this was in memory.
    pub target_hit_rate: f64,
    /// How often that happens, at most; then what is kept stays as it is.
    pub max_num_evict: u32,
}

/// What rows a key begins with that the table does not have: asked for the key, of an `i64` its bits, and the row to fill, which is
/// zeros. The same for a key each time.
pub type NewRow = Arc<dyn Fn(u64, &mut [u8]) + Send + Sync>;

/// What becomes of keys that the table does not have.
#[derive(Clone)]
pub enum NewKeys {
    /// The pass is refused.
    Refuse,
    /// New keys become rows, durable with the pass: the table is written anew for that.
    Create(NewRow),
}

impl std::fmt::Debug for NewKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Refuse => "Refuse",
            Self::Create(_) => "Create",
        })
    }
}

/// How passes over a table are run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PassOptions {
    /// Where rows are between passes.
    pub mode: PassMode,
    /// Bytes of memory for rows, at most: of passes that are kept, of the one under way and of the next. Beside it 4 bytes for each
    /// row of the table, 12 for each row in memory, and what finds rows by key.
    pub memory: u64,
    /// What becomes of keys that the table does not have.
    pub new_keys: NewKeys,
    /// After how many passes they become durable: 1, each when it is finished.
    pub commit_every: u32,
    /// Whether a pass becomes durable while the next goes on, rather than before it is finished.
    pub behind: bool,
    /// Threads that copy rows; 0: as many as there are processors.
    pub threads: usize,
    /// How many of a row's first elements are the vector; the others are state of the optimizer. `None`: all.
    pub vector: Option<u32>,
    /// The file that remembers which keys were touched, so that an incremental model is whole after a restart.
    pub journal: Option<PathBuf>,
}

impl PassOptions {
    /// All rows in at most `memory` bytes; each pass durable when it is finished.
    pub fn staged(memory: u64) -> Self {
        Self {
            mode: PassMode::Staged,
            memory,
            new_keys: NewKeys::Refuse,
            commit_every: 1,
            behind: false,
            threads: 0,
            vector: None,
            journal: None,
        }
    }

    /// The rows of some passes in at most `memory` bytes; each pass durable when it is finished.
    pub fn cached(memory: u64, cache: CacheOptions) -> Self {
        Self { mode: PassMode::Cached(cache), ..Self::staged(memory) }
    }

    /// Creating keys, with such rows.
    #[must_use]
    pub fn with_new_keys(self, row: impl Fn(u64, &mut [u8]) + Send + Sync + 'static) -> Self {
        Self { new_keys: NewKeys::Create(Arc::new(row)), ..self }
    }

    /// Durable after every so many passes, or when [`commit`](crate::Passes::commit) says so.
    #[must_use]
    pub fn with_commit_every(self, passes: u32) -> Self {
        Self { commit_every: passes, ..self }
    }

    /// Becoming durable while the next pass goes on.
    #[must_use]
    pub fn with_behind(self) -> Self {
        Self { behind: true, ..self }
    }

    /// With so many threads that copy rows.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// With vectors of so many elements, and state behind them.
    #[must_use]
    pub fn with_vector(self, elements: u32) -> Self {
        Self { vector: Some(elements), ..self }
    }

    /// With a file that remembers which keys were touched.
    #[must_use]
    pub fn with_journal(self, path: impl Into<PathBuf>) -> Self {
        Self { journal: Some(path.into()), ..self }
    }
}
