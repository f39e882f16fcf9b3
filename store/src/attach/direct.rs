//! Attached tables read past the page cache: io_uring with O_DIRECT, many commands at once.

use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use warprow_dma::{DmaMemory, MemoryKind};
use warprow_soft_controller::{BackingEngine, BackingOperation, MediaError, Piece};
use warprow_uring::{FileRing, FileTransfer, OwnTransfer};

use super::{Attached, LBA, Rows, Scratch, Stretch};
use crate::attached_files::AttachedFiles;

/// Transfers that the ring of an engine has room for at least: a command has one for each stripe unit and file that it touches.
const TRANSFERS: u32 = 256;
/// Bytes of the ring's own memory for each command under way: blocks of a row and of its scales. Longer ones have buffers apart.
const ROOM: usize = 8 << 10;
/// Commands under way from which on the disk decides how long all take, and the thread sleeps until some have ended.
const MANY: usize = 32;
/// How long fewer are waited for without sleeping: a disk's latency.
const AWAKE: Duration = Duration::from_micros(100);

/// Blocks of a file on their way to a buffer, and what of them is wanted.
#[derive(Debug)]
struct Blocks {
    /// The file's place among the engine's.
    file: usize,
    offset: u64,
    len: usize,
    /// Where the blocks go in the buffer.
    at: usize,
    skip: usize,
    wanted: usize,
}

/// A place for a read command. Its lists keep their memory from one command to the next.
#[derive(Debug, Default)]
struct Read {
    token: u32,
    lba: u64,
    pieces: Vec<Piece>,
    blocks: Vec<Blocks>,
    /// Of blocks that the ring's own memory has no room for.
    buffer: Option<DmaMemory>,
    /// Transfers that have not ended.
    left: usize,
    failure: Option<io::Error>,
}

/// A file that is read.
#[derive(Debug)]
struct OpenFile {
    /// The descriptor that the tables have it open with.
    descriptor: RawFd,
    /// Offsets and lengths of transfers are multiples of this.
    align: u64,
    /// Blocks begin at multiples of this in memory.
    memory_align: usize,
    /// It was found to be what it was, since the latest of the reads that have arrived.
    same: bool,
}

#[derive(Debug)]
pub(super) struct DirectEngine {
    files: Arc<AttachedFiles>,
    attached: Arc<Attached>,
    ring: FileRing,
    /// The ring's own memory: `ROOM` bytes for each place.
    memory: DmaMemory,
    opened: Vec<OpenFile>,
    /// By descriptor: the file's place in `opened`.
    by_descriptor: Vec<Option<usize>>,
    reads: Vec<Read>,
    /// Places that no command has.
    free: Vec<usize>,
    ended: Vec<(u32, Result<(), MediaError>)>,
    /// Places of reads whose transfers have ended, and whose files are to be looked at.
    arrived: Vec<usize>,
    /// Buffers that are not in use.
    buffers: Vec<DmaMemory>,
    scratch: Scratch,
    /// The names of the files were looked at in this turn.
    looked: bool,
    /// When the latest command was begun; `None`: that is longer ago than `AWAKE`.
    begun: Option<Instant>,
}

impl DirectEngine {
    /// A way to work on up to `depth` commands at once.
    pub(super) fn new(files: &Arc<AttachedFiles>, attached: &Arc<Attached>, depth: u32) -> io::Result<Self> {
        let places = depth as usize;
        let memory = memory(places * ROOM)?;
        let (mut opened, mut by_descriptor, mut of_ring) = (Vec::new(), Vec::new(), Vec::new());
        for (descriptor, direct) in files.all_direct() {
            let place = usize::try_from(descriptor).map_err(io::Error::other)?;
            if by_descriptor.len() <= place {
                by_descriptor.resize(place + 1, None);
            }
            by_descriptor[place] = Some(opened.len());
            opened.push(OpenFile { descriptor, align: direct.align, memory_align: direct.memory_align, same: false });
            of_ring.push(direct.file.clone());
        }
        Ok(Self {
            files: files.clone(),
            attached: attached.clone(),
            ring: FileRing::with_files(depth.max(TRANSFERS), of_ring, memory.clone())?,
            memory,
            opened,
            by_descriptor,
            reads: std::iter::repeat_with(Read::default).take(places).collect(),
            free: (0..places).rev().collect(),
            ended: Vec::new(),
            arrived: Vec::new(),
            buffers: Vec::new(),
            scratch: Scratch::default(),
            looked: false,
            begun: None,
        })
    }

    /// Finds the blocks that hold the rows of some LBAs; the result is how many bytes of a buffer they take.
    fn find_blocks(&self, lba: u64, lbas: u64, blocks: &mut Vec<Blocks>) -> io::Result<usize> {
        blocks.clear();
        let mut bytes = 0usize;
        self.attached.each(lba, lbas, |_, stretch| {
            let Stretch::Rows(rows) = stretch else { return Ok(()) };
            let mut unknown = false;
            rows.stretches(&mut |file, begin, len| {
                let descriptor = file.as_raw_fd() as usize;
                let Some(file) = self.by_descriptor.get(descriptor).copied().flatten() else {
                    unknown = true;
                    return;
                };
                let OpenFile { align, memory_align, .. } = self.opened[file];
                let offset = begin / align * align;
                let whole = ((begin + len).next_multiple_of(align) - offset) as usize;
                let (skip, wanted) = ((begin - offset) as usize, len as usize);
                let at = bytes.next_multiple_of(memory_align);
                blocks.push(Blocks { file, offset, len: whole, at, skip, wanted });
                bytes = at + whole;
            });
            if unknown { Err(io::Error::other("rows stand in a file that was not told of before")) } else { Ok(()) }
        })?;
        Ok(bytes)
    }

    fn buffer(&mut self, len: usize) -> io::Result<DmaMemory> {
        match self.buffers.iter().position(|buffer| buffer.len() >= len) {
            Some(index) => Ok(self.buffers.swap_remove(index)),
            None => memory(len.next_power_of_two()),
        }
    }

    /// Takes completions of the ring.
    fn collect(&mut self) {
        while let Some(completion) = self.ring.completion() {
            let place = (completion.token >> 16) as usize;
            let index = completion.token as usize & 0xffff;
            let Some(read) = self.reads.get_mut(place).filter(|read| read.left > 0) else { continue };
            read.left -= 1;
            let least = read.blocks.get(index).map_or(0, |blocks| blocks.skip + blocks.wanted);
            // A file's last block may not be whole.
            let result = completion.result.and_then(|moved| {
                let gone = || io::Error::new(ErrorKind::UnexpectedEof, "the file ends before the row does");
                if moved >= least { Ok(()) } else { Err(gone()) }
            });
            if let Err(error) = result {
                read.failure = Some(error);
            }
            if read.left == 0 {
                self.arrived.push(place);
            }
        }
        if self.arrived.is_empty() {
            return;
        }
        // What has arrived was read before its files are looked at: each file once.
        self.opened.iter_mut().for_each(|file| file.same = false);
        let mut arrived = std::mem::take(&mut self.arrived);
        for place in arrived.drain(..) {
            let mut read = std::mem::take(&mut self.reads[place]);
            if let Err(error) = self.check(&read) {
                read.failure = Some(error);
            }
            self.end(place, &mut read);
            self.reads[place] = read;
            self.free.push(place);
        }
        self.arrived = arrived;
    }

    /// Fails if a file that was read from is not what it was.
    fn check(&mut self, read: &Read) -> io::Result<()> {
        for blocks in &read.blocks {
            let file = &mut self.opened[blocks.file];
            if !file.same {
                self.files.check_direct(file.descriptor)?;
                file.same = true;
            }
        }
        Ok(())
    }

    /// Puts rows where the command wants them.
    fn end(&mut self, place: usize, read: &mut Read) {
        let (memory, first) = match &read.buffer {
            Some(buffer) => (buffer, 0),
            None => (&self.memory, place * ROOM),
        };
        let result = read.failure.take().map_or(Ok(()), Err).and_then(|()| {
            let Scratch { out, rows: scratch } = &mut self.scratch;
            out.resize(read.pieces.iter().map(|piece| piece.2).sum(), 0);
            // Rows are asked for in the order in which their blocks were.
            let mut blocks = read.blocks.iter();
            self.attached.fill(read.lba, out, scratch, |rows: &Rows<'_>, out: &mut [u8]| {
                rows.put_together(out, |mut stored| {
                    while !stored.is_empty() {
                        let Some(next) = blocks.next() else { return Err(ErrorKind::UnexpectedEof.into()) };
                        let (now, rest) = stored.split_at_mut(next.wanted.min(stored.len()));
                        memory.read(first + next.at + next.skip, now);
                        stored = rest;
                    }
                    Ok(())
                })
            })?;
            let mut from = 0;
            for (memory, at, len) in &read.pieces {
                memory.write(*at, out.get(from..from + len).unwrap_or_default());
                from += len;
            }
            Ok(())
        });
        // The host's memory is not kept for longer than it is needed.
        read.pieces.clear();
        self.buffers.extend(read.buffer.take());
        self.ended.push((read.token, result.map_err(MediaError::Read)));
    }

    /// Pushes the transfers of a command; false if the ring has no room for them now.
    fn push(&mut self, place: usize, read: &mut Read, bytes: usize) -> io::Result<bool> {
        if self.ring.room() < read.blocks.len() {
            if self.ring.in_flight() > 0 {
                return Ok(false);
            }
            return Err(io::Error::new(ErrorKind::InvalidInput, "a command reads from more places than a ring holds"));
        }
        if bytes > ROOM {
            read.buffer = Some(self.buffer(bytes)?);
        }
        for (index, it) in read.blocks.iter().enumerate() {
            let token = (place as u64) << 16 | index as u64;
            // There is room for all.
            let pushed = match &read.buffer {
                None => {
                    let at = place * ROOM + it.at;
                    self.ring.read_own(token, OwnTransfer { file: it.file, offset: it.offset, at, len: it.len })
                }
                Some(buffer) => {
                    let Some(file) = self.ring.own_file(it.file) else { continue };
                    let (file, memory) = (file.clone(), buffer.clone());
                    self.ring.read(token, &FileTransfer { file, offset: it.offset, memory, at: it.at, len: it.len })
                }
            };
            read.left += usize::from(pushed.is_ok());
        }
        Ok(true)
    }

    /// Begins to read; false if there is too much under way.
    fn begin_read(&mut self, place: usize, read: &mut Read) -> io::Result<bool> {
        if !self.looked {
            self.looked = true;
            self.files.check_all()?;
        }
        let bytes: usize = read.pieces.iter().map(|piece| piece.2).sum();
        let bytes = self.find_blocks(read.lba, (bytes as u64).div_ceil(LBA.into()), &mut read.blocks)?;
        self.push(place, read, bytes)
    }

    /// Commands under way.
    fn under_way(&self) -> usize {
        self.reads.len() - self.free.len()
    }
}

fn memory(len: usize) -> io::Result<DmaMemory> {
    DmaMemory::allocate(len, MemoryKind::Anonymous).map_err(|error| io::Error::new(ErrorKind::OutOfMemory, error))
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
        let Some(place) = self.free.pop() else { return false };
        let mut read = std::mem::take(&mut self.reads[place]);
        (read.token, read.lba) = (token, offset / u64::from(LBA));
        read.pieces.extend_from_slice(pieces);
        let has_room = match self.begin_read(place, &mut read) {
            Ok(true) if read.left > 0 => true,
            Ok(true) => {
                self.end(place, &mut read);
                true
            }
            Ok(false) => {
                read.pieces.clear();
                false
            }
            Err(error) => {
                read.pieces.clear();
                self.ended.push((token, Err(MediaError::Read(error))));
                true
            }
        };
        match read.left {
            0 => self.free.push(place),
            _ => self.begun = None,
        }
        self.reads[place] = read;
        has_room
    }

    fn poll(&mut self, done: &mut Vec<(u32, Result<(), MediaError>)>) {
        self.looked = false;
        if self.ring.in_flight() > 0 {
            // If that fails, what was pushed stays in the ring and goes with the next call.
            let _ = self.ring.submit();
            self.collect();
        }
        done.append(&mut self.ended);
    }

    fn in_flight(&self) -> usize {
        self.under_way() + self.ended.len()
    }

    fn wait(&mut self, limit: Duration) {
        let under_way = self.under_way();
        if under_way < MANY && self.begun.get_or_insert_with(Instant::now).elapsed() < AWAKE {
            return;
        }
        // Some at a time: a wake costs as much as a read.
        let (count, limit) = if under_way < MANY { (1, limit) } else { (under_way / MANY, 2 * limit) };
        // A failure shows when the operations' time is up; there is nothing to report here.
        let _ = self.ring.wait(count, limit);
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
