//! Ways in which an executor on a GPU finds the different rows of a batch.

/// How look-ups on a GPU find the different rows among the ids of a batch, of rows that are not in GPU memory. All give the same uniques in the same
/// order, that of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dedupe {
    /// One block sorts keys in its shared memory: up to 8,192 ids. Of rows on drives only; those in DRAM are read where they lie.
    Block,
    /// A bit for each row outside GPU memory, and sums over them: ordered without a sort. Memory by rows: 1 GiB for 2³³, the most.
    Bitmap,
    /// A hash table, and a sort of what is different. Memory by different rows of a batch: 41 to 65 B each.
    Hash,
    /// A sort of all. Memory by ids: 17 B each.
    Radix,
}
