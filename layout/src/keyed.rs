//! Tables whose rows are looked up by sparse keys: which row belongs to which key while such a table is loaded. Key
//! number i is the one that the source gives i-th, from 0 on; its *position* is the number that the index gives it.

use std::sync::Arc;

use warprow_keys::{IndexBuildError, KeyIndex, KeySource};

use crate::key_spec::KeySpec;
use crate::ranks::{RankError, RankWidth, Ranks};

/// In which order the rows of a keyed table lie.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// In the order of the keys' positions, which is as good as random. It saves the 4 bytes a key that a permutation
    /// takes in memory.
    #[default]
    Positions,
    /// The rows in the order in which the source gives them, because the first rows are the hottest, or nobody knows which are.
    Given,
    /// By rank: entry i is the rank of row number i of the source.
    Ranks(Ranks),
}

/// The keys of a table to be loaded, and where their rows go. Row number i of the table's source is that of key number i.
///
/// In memory, key number → rank and key position → rank take 4 bytes a key each (8 if there are more than 2³² keys),
/// and keys that are stored in another order than the source's take 8.
pub struct TableKeys<'a> {
    index: Arc<KeyIndex>,
    source: &'a dyn KeySource,
    stored: bool,
    /// Key number → rank; `None`: they are equal.
    placement: Option<Ranks>,
    /// Key position → rank; `None`: they are equal.
    ranks: Option<Ranks>,
    /// The keys by rank, if keys are stored and the source does not give them in the order of ranks.
    by_rank: Option<Vec<u64>>,
}

/// Why an index, keys and ranks do not fit together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableKeysError {
    /// The index is not of these keys.
    #[error("the index has {index} keys, the source {source_keys}: build it from the same keys")]
    Count {
        /// Keys of the index.
        index: u64,
        /// Keys of the source.
        source_keys: u64,
    },
    /// The index gave two keys one position: it was built from other keys.
    #[error("two keys have one slot: the index was built from other keys")]
    Slots(#[source] RankError),
    /// There are more ranks than keys, or fewer.
    #[error("{given} ranks were given for {keys} keys")]
    Ranks {
        /// Ranks.
        given: u64,
        /// Keys.
        keys: u64,
    },
    /// The keys cannot be read, or are not those of the index.
    #[error(transparent)]
    Build(#[from] IndexBuildError),
}

/// Keys read at once.
const BLOCK: usize = 8192;

impl<'a> TableKeys<'a> {
    /// The keys of `source`, from which `index` was built, with rows in `order`. `stored`: whether the keys themselves
    /// are stored too.
    pub fn new(
        index: Arc<KeyIndex>,
        source: &'a dyn KeySource,
        order: RowOrder,
        stored: bool,
    ) -> Result<Self, TableKeysError> {
        let keys = source.len();
        if index.len() != keys || index.kind() != source.kind() {
            return Err(TableKeysError::Count { index: index.len(), source_keys: keys });
        }
        // This checks that positions are a permutation: an index of other keys gives none.
        let slots = match RankWidth::for_rows(keys) {
            RankWidth::U32 => Ranks::from_u32(index.place(source, 0)?),
            RankWidth::U64 => Ranks::from_u64(index.place(source, 0)?),
        }
        .map_err(TableKeysError::Slots)?;
        let (placement, ranks) = match order {
            RowOrder::Positions => (Some(slots), None),
            RowOrder::Given => (None, Some(slots.inverse())),
            RowOrder::Ranks(placement) if placement.len() != keys => {
                return Err(TableKeysError::Ranks { given: placement.len(), keys });
            }
            RowOrder::Ranks(placement) => {
                let ranks = slots.inverse().then(&placement);
                (Some(placement), Some(ranks))
            }
        };
        let mut keyed = Self { index, source, stored, placement, ranks, by_rank: None };
        keyed.by_rank = keyed.sorted_keys()?;
        Ok(keyed)
    }

    fn sorted_keys(&self) -> Result<Option<Vec<u64>>, IndexBuildError> {
        let Some(placement) = self.placement.as_ref().filter(|_| self.stored) else { return Ok(None) };
        let mut sorted = vec![0; usize::try_from(self.len()).unwrap_or(usize::MAX)];
        let mut block = vec![0; BLOCK];
        for first in (0..self.len()).step_by(BLOCK) {
            let block = &mut block[..(self.len() - first).min(BLOCK as u64) as usize];
            self.source.read(first, block).map_err(|source| IndexBuildError::Source { first, source })?;
            for (position, &key) in (first..).zip(&*block) {
                if let Some(place) = placement.get(position).and_then(|rank| sorted.get_mut(rank as usize)) {
                    *place = key;
                }
            }
        }
        Ok(Some(sorted))
    }

    /// How many keys there are, and rows.
    pub fn len(&self) -> u64 {
        self.index.len()
    }

    /// Whether there are no keys; there always are some.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The index of the keys.
    pub fn index(&self) -> &Arc<KeyIndex> {
        &self.index
    }

    /// Key number → rank, which says where each row goes; `None`: rows lie in the order of the source.
    pub fn placement(&self) -> Option<&Ranks> {
        self.placement.as_ref()
    }

    /// Key position → rank, which is stored; `None`: the two are equal.
    pub fn ranks(&self) -> Option<&Ranks> {
        self.ranks.as_ref()
    }

    /// What a table with these keys is declared with.
    pub fn spec(&self) -> KeySpec {
        KeySpec::new(&self.index, self.stored)
    }

    /// CRC32C of the keys by rank, if they are stored.
    pub(crate) fn keys_crc(&self) -> std::io::Result<u32> {
        if !self.stored {
            return Ok(0);
        }
        let mut block = vec![0; BLOCK * 8];
        let mut crc = 0;
        for first in (0..self.len()).step_by(BLOCK) {
            let bytes = (self.len() - first).min(BLOCK as u64) as usize * 8;
            self.fill_keys(first, &mut block[..bytes])?;
            crc = crc32c::crc32c_append(crc, &block[..bytes]);
        }
        Ok(crc)
    }

    /// Writes keys `first..` by rank, little-endian, into `out`, zeros past the last.
    pub(crate) fn fill_keys(&self, first: u64, out: &mut [u8]) -> std::io::Result<()> {
        let (places, _) = out.as_chunks_mut::<8>();
        let count = self.len().saturating_sub(first).min(places.len() as u64) as usize;
        let (places, rest) = places.split_at_mut(count);
        rest.fill([0; 8]);
        let mut block = vec![0; BLOCK.min(count)];
        for (first, places) in (first..).step_by(BLOCK).zip(places.chunks_mut(BLOCK)) {
            let keys = match &self.by_rank {
                Some(keys) => keys.get(first as usize..).unwrap_or_default(),
                None => {
                    let keys = &mut block[..places.len()];
                    self.source.read(first, keys)?;
                    keys
                }
            };
            places.iter_mut().zip(keys).for_each(|(place, key)| *place = key.to_le_bytes());
        }
        Ok(())
    }

    /// Writes bytes `first..` of the index into `out`, zeros past the last.
    pub(crate) fn fill_index(&self, first: u64, out: &mut [u8]) {
        let bytes = self.index.as_bytes().get(usize::try_from(first).unwrap_or(usize::MAX)..).unwrap_or_default();
        let (head, rest) = out.split_at_mut(bytes.len().min(out.len()));
        head.copy_from_slice(&bytes[..head.len()]);
        rest.fill(0);
    }
}

impl std::fmt::Debug for TableKeys<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableKeys").field("index", &self.index).field("stored", &self.stored).finish_non_exhaustive()
    }
}
