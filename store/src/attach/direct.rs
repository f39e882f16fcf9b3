//! Attached tables read past the page cache: io_uring with O_DIRECT, many commands at once.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use warprow_dma::DmaMemory;
use warprow_soft_controller::{BackingEngine, BackingOperation, MediaError, Piece};
use warprow_uring::{FileRing, FileTransfer};

use super::{Attached, LBA, Rows, Stretch};
use crate::attached_files::AttachedFiles;

/// Transfers that the ring of an engine has room for at least: a command has one for each stripe unit and file that it touches.
const TRANSFERS: u32 = 256;

/// Blocks of a file on their way to a buffer, and what of them is wanted.
#[derive(Debug)]
struct Blocks {
    /// The descriptor that the tables have the file open with.
    descriptor: RawFd,
    file: Arc<File>,
    offset: u64,
    len: usize,
    /// Where the blocks go in the buffer.
    at: usize,
    skip: usize,
    wanted: usize,
}

/// A read command under way.
#[derive(Debug)]
struct Read {
    token: u32,
    lba: u64,
    pieces: Vec<Piece>,
    blocks: Vec<Blocks>,
    buffer: Option<DmaMemory>,
    /// Transfers that have not ended.
    left: usize,
    result: io::Result<()>,
}

#[derive(Debug)]
pub(super) struct DirectEngine {
    files: Arc<AttachedFiles>,
    attached: Arc<Attached>,
    ring: FileRing,
    depth: usize,
    reads: Vec<Option<Read>>,
    free: Vec<usize>,
    ended: Vec<(u32, Result<(), MediaError>)>,
    /// Reads whose transfers have ended, and whose files are to be looked at.
    arrived: Vec<Read>,
    /// Descriptors of files that are as they were: known for the reads that have arrived.
    same: Vec<RawFd>,
    /// Buffers that are not in use.
    buffers: Vec<DmaMemory>,
}

impl DirectEngine {
    /// A way to work on up to `depth` commands at once.
    pub(super) fn new(files: &Arc<AttachedFiles>, attached: &Arc<Attached>, depth: u32) -> io::Result<Self> {
        Ok(Self {
            files: files.clone(),
            attached: attached.clone(),
            ring: FileRing::new(depth.max(TRANSFERS))?,
            depth: depth as usize,
            reads: Vec::new(),
            free: Vec::new(),
            ended: Vec::new(),
            arrived: Vec::new(),
            same: Vec::new(),
            buffers: Vec::new(),
        })
    }

    /// The blocks that hold the rows of some LBAs, and the bytes of a buffer for them.
    fn blocks(&self, lba: u64, lbas: u64) -> io::Result<(Vec<Blocks>, usize)> {
        let mut blocks = Vec::new();
        let mut bytes = 0;
        self.attached.each(lba, lbas, |_, stretch| {
            let Stretch::Rows(rows) = stretch else { return Ok(()) };
            let mut unknown = false;
            rows.stretches(&mut |file, begin, len| {
                let descriptor = file.as_raw_fd();
                let Some(direct) = self.files.direct(descriptor) else {
                    unknown = true;
                    return;
                };
                let offset = begin / direct.align * direct.align;
                let whole = (begin + len).next_multiple_of(direct.align) - offset;
                blocks.push(Blocks {
                    descriptor,
                    file: direct.file.clone(),
                    offset,
                    len: whole as usize,
                    at: bytes,
                    skip: (begin - offset) as usize,
                    wanted: len as usize,
                });
                bytes += (whole as usize).next_multiple_of(4096);
            });
            if unknown { Err(io::Error::other("rows stand in a file that was not told of before")) } else { Ok(()) }
        })?;
        Ok((blocks, bytes))
    }

    fn buffer(&mut self, len: usize) -> io::Result<DmaMemory> {
        if let Some(index) = self.buffers.iter().position(|buffer| buffer.len() >= len) {
            return Ok(self.buffers.swap_remove(index));
        }
        DmaMemory::allocate(len.next_power_of_two(), warprow_dma::MemoryKind::Anonymous)
            .map_err(|error| io::Error::new(ErrorKind::OutOfMemory, error))
    }

    /// Takes completions of the ring.
    fn collect(&mut self) {
        while let Some(completion) = self.ring.completion() {
            let slot = (completion.token >> 16) as usize;
            let index = completion.token as usize & 0xffff;
            let Some(Some(read)) = self.reads.get_mut(slot) else { continue };
            read.left = read.left.saturating_sub(1);
            let least = read.blocks.get(index).map_or(0, |blocks| blocks.skip + blocks.wanted);
            // A file's last block may not be whole.
            let result = completion.result.and_then(|moved| {
                let gone = || io::Error::new(ErrorKind::UnexpectedEof, "the file ends before the row does");
                if moved >= least { Ok(()) } else { Err(gone()) }
            });
            if let Err(error) = result {
                read.result = Err(error);
            }
            if read.left == 0
                && let Some(read) = self.reads.get_mut(slot).and_then(Option::take)
            {
                self.free.push(slot);
                self.arrived.push(read);
            }
        }
        // What has arrived was read before its files are looked at: each file once.
        self.same.clear();
        for mut read in std::mem::take(&mut self.arrived) {
            if let Err(error) = self.check(&read) {
                read.result = Err(error);
            }
            self.end(read);
        }
    }

    /// Fails if a file that was read from is not what it was.
    fn check(&mut self, read: &Read) -> io::Result<()> {
        for blocks in &read.blocks {
            if !self.same.contains(&blocks.descriptor) {
                self.files.check(blocks.descriptor, &blocks.file)?;
                self.same.push(blocks.descriptor);
            }
        }
        Ok(())
    }

    fn end(&mut self, read: Read) {
        let Read { token, lba, pieces, blocks, buffer, result, .. } = read;
        let result = result.and_then(|()| {
            let mut out = vec![0; pieces.iter().map(|piece| piece.2).sum()];
            // Rows are asked for in the order in which their blocks were.
            let mut blocks = blocks.iter();
            self.attached.fill(lba, &mut out, |rows: &Rows<'_>, out: &mut [u8]| {
                rows.put_together(out, |mut stored| {
                    while !stored.is_empty() {
                        let (Some(next), Some(buffer)) = (blocks.next(), &buffer) else {
                            return Err(ErrorKind::UnexpectedEof.into());
                        };
                        let (now, rest) = stored.split_at_mut(next.wanted.min(stored.len()));
                        buffer.read(next.at + next.skip, now);
                        stored = rest;
                    }
                    Ok(())
                })
            })?;
            let mut from = 0;
            for (memory, at, len) in &pieces {
                memory.write(*at, out.get(from..from + len).unwrap_or_default());
                from += len;
            }
            Ok(())
        });
        self.buffers.extend(buffer);
        self.ended.push((token, result.map_err(MediaError::Read)));
    }
}

impl BackingEngine for DirectEngine {
    fn begin(&mut self, token: u32, operation: BackingOperation, offset: u64, pieces: &[Piece]) -> bool {
        match operation {
            BackingOperation::Read => {}
            BackingOperation::Write { .. } => {
                self.ended.push((token, Err(MediaError::ReadOnly)));
                return true;
            }
            BackingOperation::Flush => {
                self.ended.push((token, Ok(())));
                return true;
            }
        }
        if self.reads.len() - self.free.len() >= self.depth {
            return false;
        }
        if let Err(error) = self.files.check_all() {
            self.ended.push((token, Err(MediaError::Read(error))));
            return true;
        }
        let bytes: usize = pieces.iter().map(|piece| piece.2).sum();
        let lba = offset / u64::from(LBA);
        let found = self.blocks(lba, (bytes as u64).div_ceil(LBA.into()));
        let (blocks, bytes) = match found {
            Ok(found) => found,
            Err(error) => {
                self.ended.push((token, Err(MediaError::Read(error))));
                return true;
            }
        };
        if self.ring.room() < blocks.len() {
            if self.ring.in_flight() > 0 {
                return false;
            }
            let error = io::Error::new(ErrorKind::InvalidInput, "a command reads from more places than a ring holds");
            self.ended.push((token, Err(MediaError::Read(error))));
            return true;
        }
        let mut read = Read { token, lba, pieces: pieces.to_vec(), left: 0, blocks, buffer: None, result: Ok(()) };
        if read.blocks.is_empty() {
            self.end(read);
            return true;
        }
        let buffer = match self.buffer(bytes) {
            Ok(buffer) => buffer,
            Err(error) => {
                self.ended.push((token, Err(MediaError::Read(error))));
                return true;
            }
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.reads.push(None);
            self.reads.len() - 1
        });
        for (index, it) in read.blocks.iter().enumerate() {
            let file = it.file.clone();
            let memory = buffer.clone();
            let transfer = FileTransfer { file, offset: it.offset, memory, at: it.at, len: it.len };
            // There is room for all.
            read.left += usize::from(self.ring.read((slot as u64) << 16 | index as u64, &transfer).is_ok());
        }
        read.buffer = Some(buffer);
        self.reads[slot] = Some(read);
        true
    }

    fn poll(&mut self, done: &mut Vec<(u32, Result<(), MediaError>)>) {
        if self.ring.in_flight() > 0 {
            // If that fails, what was pushed stays in the ring and goes with the next call.
            let _ = self.ring.submit();
            self.collect();
        }
        done.append(&mut self.ended);
    }

    fn in_flight(&self) -> usize {
        self.reads.len() - self.free.len() + self.ended.len()
    }

    fn wait(&mut self, limit: Duration) {
        // A failure shows when the operations' time is up; there is nothing to report here.
        let _ = self.ring.wait(limit);
    }

    fn settle(&mut self) {
        while self.ring.in_flight() > 0 {
            if self.ring.submit_and_wait(1).is_err() {
                std::thread::yield_now();
            }
            self.collect();
        }
    }
}
