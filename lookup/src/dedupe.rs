//! Methods by which an executor on a GPU finds the different rows of a batch.

/// The method by which look-ups on a GPU find the different rows among the ids of a batch. Rows in GPU memory are not
/// deduplicated. All methods give the same unique rows in the same order, that of their addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DedupeMethod {
    /// One thread block sorts keys in its shared memory: up to 8,192 ids. It deduplicates rows on drives only; rows in
    /// DRAM are read where they lie.
    Block,
    /// A bit for each row outside GPU memory, and sums over them: ordered without a sort. It takes one bit of GPU
    /// memory for each such row: 1 GiB for 2³³ rows, the most.
    Bitmap,
    /// A hash table finds the different keys, and a radix sort orders them. It takes 41 to 65 B for each different row
    /// of a batch.
    Hash,
    /// A radix sort of the keys of all ids, repeats included. It takes 17 B for each id.
    Radix,
}
