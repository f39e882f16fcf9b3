use super::engine::{Engine, MappedReads, PreadReads, Reads, UringReads};
use super::error::RivalError;
use super::interface::Rival;
use super::target::{Extent, RivalTable};

/// One read for each id.
#[derive(Debug)]
pub struct PerIdRival<E> {
    target: RivalTable,
    engine: E,
    /// Position and rank of each id that the table has.
    found: Vec<(u32, u64)>,
}

impl PerIdRival<PreadReads> {
    /// One `pread` after another.
    pub fn pread(target: RivalTable) -> Result<Self, RivalError> {
        let engine = PreadReads::new(&target, target.row_lbas)?;
        Ok(Self { target, engine, found: Vec::new() })
    }
}

impl PerIdRival<MappedReads> {
    /// One copy from a mapping of the file after another. Not past the page cache.
    pub fn mapped(target: RivalTable) -> Result<Self, RivalError> {
        let engine = MappedReads::new(&target, target.row_lbas)?;
        Ok(Self { target, engine, found: Vec::new() })
    }
}

impl PerIdRival<UringReads> {
    /// Up to `depth` reads (1 to 32,768) under way.
    pub fn uring(target: RivalTable, depth: u32) -> Result<Self, RivalError> {
        let engine = UringReads::new(&target, depth, target.row_lbas)?;
        Ok(Self { target, engine, found: Vec::new() })
    }
}

struct Rows<'a> {
    target: &'a RivalTable,
    found: &'a [(u32, u64)],
    rows: &'a mut [u8],
}

impl Rows<'_> {
    fn row(&mut self, index: usize) -> &mut [u8] {
        let row_bytes = self.target.row_bytes;
        &mut self.rows[self.found[index].0 as usize * row_bytes..][..row_bytes]
    }
}

impl Reads for Rows<'_> {
    fn count(&self) -> usize {
        self.found.len()
    }

    #[inline]
    fn extent(&self, index: usize) -> Result<Extent, RivalError> {
        self.target.row(self.found[index].1)
    }

    #[inline]
    fn place(&mut self, index: usize) -> Option<&mut [u8]> {
        self.target.is_exact().then(|| self.row(index))
    }

    fn landed(&mut self, _index: usize) {}

    #[inline]
    fn land(&mut self, index: usize, copy: impl Fn(usize, &mut [u8])) {
        copy(0, self.row(index));
    }

    fn meanwhile(&mut self) {}
}

impl<E: Engine> Rival for PerIdRival<E> {
    fn name(&self) -> String {
        E::NAME.to_owned()
    }

    fn lookup(&mut self, ids: &[i64], rows: &mut [u8], mask: &mut [u8]) -> Result<(), RivalError> {
        let Self { target, engine, found } = self;
        target.check(ids, rows, mask, u32::MAX as usize)?;
        found.clear();
        for ((position, &id), mask) in (0..).zip(ids).zip(mask) {
            *mask = match target.rank(id) {
                Some(rank) => {
                    found.push((position, rank));
                    1
                }
                None => {
                    let row = &mut rows[position as usize * target.row_bytes..][..target.row_bytes];
                    row.copy_from_slice(&target.default_row);
                    0
                }
            };
        }
        engine.run(target, &mut Rows { target, found, rows })
    }
}
