//! How an index is built.

use crate::fingerprint::FingerprintWidth;

/// How an index is built. The keys, the seed and the fingerprint alone decide its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexOptions {
    /// What the seeds of the hash are derived from: if one gives no index, the build tries the next.
    pub seed: u64,
    /// How foreign keys, which the index was not built from, are told.
    pub fingerprint: FingerprintWidth,
    /// Threads; 0: as many as the machine has cores for this process.
    pub threads: usize,
    /// The most bytes of hashes in memory, 8 a key; where the hashes take more, the source is read once for each part
    /// of them that fits. Besides, a build takes memory for the index, a bit a key, about 4 MiB a thread, and 8 bytes a
    /// thread for each 131,072 keys.
    pub memory: u64,
}

impl Default for IndexOptions {
    /// Seed 0, 16 bits of fingerprint, all cores, 4 GiB.
    fn default() -> Self {
        Self { seed: 0, fingerprint: FingerprintWidth::default(), threads: 0, memory: 4 << 30 }
    }
}

impl IndexOptions {
    /// With that seed.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// With such fingerprints.
    #[must_use]
    pub fn with_fingerprint(self, fingerprint: FingerprintWidth) -> Self {
        Self { fingerprint, ..self }
    }

    /// With so many threads.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// With so many bytes of hashes at a time.
    #[must_use]
    pub fn with_memory(self, memory: u64) -> Self {
        Self { memory, ..self }
    }

    /// Threads that a build has.
    pub(super) fn thread_count(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        if self.threads == 0 { all() } else { self.threads.min(1024) }
    }
}
