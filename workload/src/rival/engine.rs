//! How rivals read: one call after another, or many reads under way.

use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use warprow_dma::{DmaMemory, FileMapping, MemoryKind};
use warprow_uring::{FileRing, FileTransfer};

use super::error::RivalError;
use super::target::{Extent, RivalTable};

/// What is to be read, numbered from 0, and where it goes.
pub(super) trait Reads {
    /// How many reads there are.
    fn count(&self) -> usize;

    /// What read number `index` reads.
    fn extent(&self, index: usize) -> Result<Extent, RivalError>;

    /// Where read number `index` may go directly: as many bytes as its extent has. [`landed`](Self::landed) follows.
    fn place(&mut self, index: usize) -> Option<&mut [u8]>;

    /// Read number `index` is in its place.
    fn landed(&mut self, index: usize);

    /// Read number `index` has come elsewhere: `copy` fills a buffer from an offset in the extent.
    fn land(&mut self, index: usize, copy: impl Fn(usize, &mut [u8]));

    /// Work that needs no read, to be done once, while reads are under way if they can be.
    fn meanwhile(&mut self);
}

/// A way to read.
pub(super) trait Engine {
    const NAME: &'static str;

    fn run(&mut self, target: &RivalTable, reads: &mut impl Reads) -> Result<(), RivalError>;
}

/// `pread`: one read at a time.
#[derive(Debug)]
pub struct PreadReads {
    memory: DmaMemory,
}

impl PreadReads {
    /// For reads of up to `lbas` LBAs.
    pub(super) fn new(target: &RivalTable, lbas: u32) -> Result<Self, RivalError> {
        Ok(Self { memory: DmaMemory::allocate(target.largest(lbas), MemoryKind::Anonymous)? })
    }
}

impl Engine for PreadReads {
    const NAME: &'static str = "pread";

    fn run(&mut self, target: &RivalTable, reads: &mut impl Reads) -> Result<(), RivalError> {
        reads.meanwhile();
        for index in 0..reads.count() {
            let extent = reads.extent(index)?;
            match reads.place(index) {
                Some(place) => {
                    let Extent { drive, offset, len, .. } = extent;
                    let read = target.files[drive].read_exact_at(place, offset);
                    read.map_err(|source| RivalError::Read { drive, offset, len, source })?;
                    reads.landed(index);
                }
                None => {
                    target.read(&extent, &self.memory)?;
                    reads.land(index, |at, out| self.memory.read(extent.skip + at, out));
                }
            }
        }
        Ok(())
    }
}

/// A mapping of each file: a read is a copy, and whatever the processor waits for.
#[derive(Debug)]
pub struct MappedReads {
    mappings: Vec<FileMapping>,
    memory: Vec<u8>,
}

impl MappedReads {
    /// Of the target's files, whose rows are read at random (MADV_RANDOM).
    pub(super) fn new(target: &RivalTable, lbas: u32) -> Result<Self, RivalError> {
        let map = |file: &Arc<File>| FileMapping::new(file, file.metadata()?.len());
        let mappings = target.files.iter().map(map).collect::<std::io::Result<_>>();
        let unavailable = |source| RivalError::Unavailable { what: "mmap", source };
        Ok(Self { mappings: mappings.map_err(unavailable)?, memory: vec![0; target.largest(lbas)] })
    }
}

impl Engine for MappedReads {
    const NAME: &'static str = "mmap";

    fn run(&mut self, _: &RivalTable, reads: &mut impl Reads) -> Result<(), RivalError> {
        reads.meanwhile();
        for index in 0..reads.count() {
            let Extent { drive, offset, len, skip } = reads.extent(index)?;
            let failed = |source| RivalError::Read { drive, offset, len, source };
            let copy = |out: &mut [u8]| {
                let copied = self.mappings[drive].read(offset as usize, out);
                copied.map_err(|lost| failed(std::io::Error::other(lost)))
            };
            match reads.place(index) {
                Some(place) => {
                    copy(place)?;
                    reads.landed(index);
                }
                None => {
                    copy(&mut self.memory[..len])?;
                    reads.land(index, |at, out| out.copy_from_slice(&self.memory[skip + at..][..out.len()]));
                }
            }
        }
        Ok(())
    }
}

/// io_uring: up to a depth of reads under way, submitted together.
#[derive(Debug)]
pub struct UringReads {
    ring: FileRing,
    memory: DmaMemory,
    /// Bytes of landing memory for each read under way.
    place_bytes: usize,
    free: VecDeque<u32>,
    /// By place: the read whose data lands there.
    under_way: Vec<(usize, Extent)>,
}

impl UringReads {
    /// For up to `depth` reads at a time (1 to 32,768), of up to `lbas` LBAs.
    pub(super) fn new(target: &RivalTable, depth: u32, lbas: u32) -> Result<Self, RivalError> {
        let ring = FileRing::new(depth).map_err(|source| RivalError::Unavailable { what: "io_uring", source })?;
        let place_bytes = target.largest(lbas);
        let memory = DmaMemory::allocate(place_bytes * depth as usize, MemoryKind::Anonymous)?;
        let nothing = (0, Extent { drive: 0, offset: 0, len: 0, skip: 0 });
        Ok(Self { ring, memory, place_bytes, free: (0..depth).collect(), under_way: vec![nothing; depth as usize] })
    }

    /// Takes what has come.
    fn reap(&mut self, reads: &mut impl Reads) -> Result<usize, RivalError> {
        let mut count = 0;
        while let Some(completion) = self.ring.completion() {
            let place = completion.token as usize;
            let (index, Extent { drive, offset, len, skip }) = self.under_way[place];
            self.free.push_back(place as u32);
            let source = match completion.result {
                Ok(moved) if moved == len => {
                    let at = place * self.place_bytes + skip;
                    reads.land(index, |from, out| self.memory.read(at + from, out));
                    count += 1;
                    continue;
                }
                Ok(_) => std::io::ErrorKind::UnexpectedEof.into(),
                Err(source) => source,
            };
            return Err(RivalError::Read { drive, offset, len, source });
        }
        Ok(count)
    }

    /// After an error nothing may land in memory that is used again.
    fn drain(&mut self) {
        while self.ring.in_flight() > 0 && self.ring.submit_and_wait(1).is_ok() {
            while let Some(completion) = self.ring.completion() {
                self.free.push_back(completion.token as u32);
            }
        }
    }

    fn read_all(&mut self, target: &RivalTable, reads: &mut impl Reads) -> Result<(), RivalError> {
        let mut next = 0;
        let mut done = 0;
        let count = reads.count();
        let mut first = true;
        while done < count {
            while next < count
                && let Some(&place) = self.free.front()
            {
                let extent = reads.extent(next)?;
                let transfer = FileTransfer {
                    file: target.files[extent.drive].clone(),
                    offset: extent.offset,
                    memory: self.memory.clone(),
                    at: place as usize * self.place_bytes,
                    len: extent.len,
                };
                if self.ring.read(place.into(), &transfer).is_err() {
                    break;
                }
                self.free.pop_front();
                self.under_way[place as usize] = (next, extent);
                next += 1;
            }
            let wait = usize::from(!first);
            let unavailable = |source| RivalError::Unavailable { what: "io_uring", source };
            self.ring.submit_and_wait(wait).map_err(unavailable)?;
            if std::mem::take(&mut first) {
                reads.meanwhile();
            }
            done += self.reap(reads)?;
        }
        if first {
            reads.meanwhile();
        }
        Ok(())
    }
}

impl Engine for UringReads {
    const NAME: &'static str = "io_uring";

    fn run(&mut self, target: &RivalTable, reads: &mut impl Reads) -> Result<(), RivalError> {
        self.read_all(target, reads).inspect_err(|_| self.drain())
    }
}
