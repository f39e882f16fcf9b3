use std::any::Any;
use std::fmt;
use std::fs::File as StdFile;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use warprow_dma::DmaMemory;
use warprow_uring::{DirectAlignment, FileRing, FileTransfer};

use super::engine::{BackingEngine, BackingOperation, Piece};
use super::file::punch;
use super::file_end::FileEnd;
use super::interface::{Backing, DEPTH};
use super::media_error::MediaError;

/// Pieces that one operation has at most, if they are not to go through a buffer.
const PIECES: usize = 64;
/// Most that is moved at a time by the calls that wait.
const BOUNCE: usize = 1 << 20;

/// A file or block device past the page cache: io_uring and O_DIRECT. What a disk asks of addresses and a host does not
/// give (NVMe data may begin at any multiple of 4) goes through a buffer.
pub struct DirectBacking {
    file: Arc<StdFile>,
    len: u64,
    end: Arc<FileEnd>,
    alignment: DirectAlignment,
    bounce: Mutex<DmaMemory>,
    is_device: bool,
    depth: u32,
    _kept: Option<Box<dyn Any + Send + Sync>>,
}

impl fmt::Debug for DirectBacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectBacking")
            .field("len", &self.len)
            .field("alignment", &self.alignment)
            .finish_non_exhaustive()
    }
}

impl DirectBacking {
    /// The first `len` bytes, a positive multiple of 4096, of what [`open_direct`](warprow_uring::open_direct) opened.
    /// Fails also where the system forbids io_uring.
    pub fn new(file: StdFile, len: u64) -> std::io::Result<Self> {
        FileRing::new(1)?;
        let alignment = warprow_uring::alignment(&file)?;
        if alignment.offset > 4096 || alignment.memory > 4096 || len == 0 || !len.is_multiple_of(4096) {
            let why = format!("the disk takes transfers of multiples of {} bytes", alignment.offset);
            return Err(Error::new(ErrorKind::InvalidInput, why));
        }
        let bounce = DmaMemory::allocate(BOUNCE, warprow_dma::MemoryKind::Anonymous)
            .map_err(|error| std::io::Error::new(error.source.kind(), error))?;
        let is_device = file.metadata()?.file_type().is_block_device();
        let end = Arc::new(FileEnd::new(len, is_device));
        let file = Arc::new(file);
        let bounce = Mutex::new(bounce);
        let depth = DEPTH;
        Ok(Self { file, len, end, alignment, bounce, is_device, depth, _kept: None })
    }

    /// Has up to `depth` operations of each worker under way, 256 by default; at least one.
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth.max(1);
        self
    }

    /// Keeps something, such as a lock, for as long as this is used.
    pub fn keeping(mut self, kept: impl Any + Send + Sync) -> Self {
        self._kept = Some(Box::new(kept));
        self
    }

    /// The smallest LBA that the disk can serve, bytes.
    pub fn alignment(&self) -> usize {
        self.alignment.offset.max(512)
    }

    fn bounce(&self) -> MutexGuard<'_, DmaMemory> {
        self.bounce.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `each` with the whole blocks around parts of a range: their offset and length, where the part begins in
    /// them, how far the part is from the range's start, and its length.
    fn parts(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(u64, usize, usize, usize, usize) -> Result<(), MediaError>,
    ) -> Result<(), MediaError> {
        let block = self.alignment.offset as u64;
        let mut done = 0;
        while done < len {
            let from = offset + done;
            let start = from / block * block;
            let before = (from - start) as usize;
            let part = (len - done).min((BOUNCE - before) as u64);
            let whole = (before as u64 + part).next_multiple_of(block) as usize;
            each(start, whole, before, done as usize, part as usize)?;
            done += part;
        }
        Ok(())
    }
}

impl Backing for DirectBacking {
    fn size(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, to: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.end.check(offset, len as u64).map_err(MediaError::Read)?;
        let bounce = self.bounce();
        self.parts(offset, len as u64, |start, whole, before, done, part| {
            warprow_uring::read_at(&self.file, start, &bounce, 0, whole).map_err(MediaError::Read)?;
            bounce.copy_to(before, to, at + done, part);
            Ok(())
        })
    }

    fn write(&self, offset: u64, from: &DmaMemory, at: usize, len: usize) -> Result<(), MediaError> {
        self.end.look(&self.file).map_err(MediaError::Write)?;
        let bounce = self.bounce();
        self.parts(offset, len as u64, |start, whole, before, done, part| {
            if whole != part {
                warprow_uring::read_at(&self.file, start, &bounce, 0, whole).map_err(MediaError::Read)?;
            }
            from.copy_to(at + done, &bounce, before, part);
            warprow_uring::write_at(&self.file, start, &bounce, 0, whole).map_err(MediaError::of_write)
        })
    }

    fn zero(&self, offset: u64, len: u64, _deallocate: bool) -> Result<(), MediaError> {
        self.end.look(&self.file).map_err(MediaError::Write)?;
        if !self.is_device {
            return punch(&self.file, offset, len);
        }
        let bounce = self.bounce();
        bounce.fill(0, BOUNCE, 0);
        self.parts(offset, len, |start, whole, _, _, _| {
            warprow_uring::write_at(&self.file, start, &bounce, 0, whole).map_err(MediaError::of_write)
        })
    }

    fn flush(&self) -> Result<(), MediaError> {
        self.end.look(&self.file).map_err(MediaError::Write)?;
        self.file.sync_data().map_err(MediaError::Write)
    }

    fn is_volatile(&self) -> bool {
        true
    }

    fn wants_whole_commands(&self) -> bool {
        true
    }

    fn smallest_lba(&self) -> u32 {
        self.alignment() as u32
    }

    fn engine(&self) -> std::io::Result<Option<Box<dyn BackingEngine>>> {
        Ok(Some(Box::new(DirectEngine {
            file: self.file.clone(),
            end: self.end.clone(),
            alignment: self.alignment,
            ring: FileRing::new(self.depth.clamp(2 * PIECES as u32, 4096))?,
            depth: self.depth as usize,
            operations: Vec::new(),
            free: Vec::new(),
            ended: Vec::new(),
            buffers: Vec::new(),
        })))
    }
}

/// An operation under way.
#[derive(Debug)]
struct Running {
    token: u32,
    operation: BackingOperation,
    /// Transfers that have not ended, or the one sync.
    left: usize,
    result: Result<(), MediaError>,
    pieces: Vec<Piece>,
    /// Stands in for the pieces.
    buffer: Option<DmaMemory>,
    len: usize,
    syncing: bool,
}

#[derive(Debug)]
struct DirectEngine {
    file: Arc<StdFile>,
    end: Arc<FileEnd>,
    alignment: DirectAlignment,
    ring: FileRing,
    /// Most operations under way.
    depth: usize,
    operations: Vec<Option<Running>>,
    free: Vec<usize>,
    ended: Vec<(u32, Result<(), MediaError>)>,
    /// Buffers that are not in use.
    buffers: Vec<DmaMemory>,
}

impl DirectEngine {
    fn buffer(&mut self, len: usize) -> Option<DmaMemory> {
        if let Some(index) = self.buffers.iter().position(|buffer| buffer.len() >= len) {
            return Some(self.buffers.swap_remove(index));
        }
        DmaMemory::allocate(len.next_power_of_two(), warprow_dma::MemoryKind::Anonymous).ok()
    }

    /// Takes completions of the ring.
    fn collect(&mut self) {
        while let Some(completion) = self.ring.completion() {
            let slot = (completion.token >> 16) as usize;
            let index = completion.token as usize & 0xffff;
            let Some(Some(running)) = self.operations.get_mut(slot) else { continue };
            running.left -= 1;
            let expected = match (running.syncing, &running.buffer) {
                (true, _) => 0,
                (false, Some(_)) => running.len,
                (false, None) => running.pieces.get(index).map_or(0, |piece| piece.2),
            };
            let result = completion
                .result
                .and_then(|moved| if moved == expected { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) });
            if let Err(error) = result {
                running.result = Err(match running.operation {
                    BackingOperation::Read => MediaError::Read(error),
                    _ => MediaError::of_write(error),
                });
            }
            if running.left > 0 {
                continue;
            }
            if running.operation == (BackingOperation::Write { durable: true })
                && running.result.is_ok()
                && !running.syncing
            {
                // A completion was just taken, so that there is room.
                running.syncing = true;
                running.left = 1;
                if self.ring.sync((slot as u64) << 16, &self.file).is_ok() {
                    continue;
                }
                running.result = Err(MediaError::Write(ErrorKind::ResourceBusy.into()));
            }
            self.end(slot);
        }
    }

    fn end(&mut self, slot: usize) {
        let Some(running) = self.operations.get_mut(slot).and_then(Option::take) else { return };
        self.free.push(slot);
        if let Some(buffer) = running.buffer {
            if running.operation == BackingOperation::Read && running.result.is_ok() {
                let mut from = 0;
                for (memory, at, len) in &running.pieces {
                    buffer.copy_to(from, memory, *at, *len);
                    from += len;
                }
            }
            self.buffers.push(buffer);
        }
        self.ended.push((running.token, running.result));
    }

    /// Hands everything to the kernel. If that fails, what was pushed stays in the ring and goes with the next call.
    fn submit(&mut self) {
        let _ = self.ring.submit();
    }
}

impl BackingEngine for DirectEngine {
    fn begin(&mut self, token: u32, operation: BackingOperation, offset: u64, pieces: &[Piece]) -> bool {
        let len = pieces.iter().map(|piece| piece.2).sum();
        let there = match operation {
            BackingOperation::Read => self.end.check(offset, len as u64).map_err(MediaError::Read),
            _ => self.end.look(&self.file).map_err(MediaError::Write),
        };
        if there.is_err() {
            self.ended.push((token, there));
            return true;
        }
        let memory = self.alignment.memory;
        let block = self.alignment.offset;
        let aligned =
            |(host, at, len): &Piece| (host.as_ptr().addr() + at).is_multiple_of(memory) && len.is_multiple_of(block);
        let direct = pieces.len() <= PIECES && pieces.iter().all(aligned);
        // One more than needed, so that a durable write finds room for its sync.
        let needed = if direct { pieces.len().max(1) + 1 } else { 2 };
        let under_way = self.operations.len() - self.free.len();
        if self.ring.room() < needed || under_way >= self.depth {
            return false;
        }
        let mut buffer = None;
        if !direct {
            let Some(taken) = self.buffer(len) else { return false };
            if operation != BackingOperation::Read {
                let mut to = 0;
                for (memory, at, len) in pieces {
                    memory.copy_to(*at, &taken, to, *len);
                    to += len;
                }
            }
            buffer = Some(taken);
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.operations.push(None);
            self.operations.len() - 1
        });
        let mark = (slot as u64) << 16;
        let mut transfers = Vec::new();
        if operation != BackingOperation::Flush {
            match &buffer {
                Some(buffer) => transfers.push((buffer.clone(), 0, len)),
                None => transfers.extend(pieces.iter().cloned()),
            }
        }
        let mut at = offset;
        let mut pushed = 0;
        for (memory, start, len) in &transfers {
            let transfer =
                FileTransfer { file: self.file.clone(), offset: at, memory: memory.clone(), at: *start, len: *len };
            at += *len as u64;
            let mark = mark | pushed as u64;
            let result = match operation {
                BackingOperation::Read => self.ring.read(mark, &transfer),
                _ => self.ring.write(mark, &transfer),
            };
            pushed += usize::from(result.is_ok());
        }
        if operation == BackingOperation::Flush {
            pushed += usize::from(self.ring.sync(mark, &self.file).is_ok());
        }
        let syncing = operation == BackingOperation::Flush;
        let running =
            Running { token, operation, left: pushed, result: Ok(()), pieces: pieces.to_vec(), buffer, len, syncing };
        self.operations[slot] = Some(running);
        true
    }

    fn poll(&mut self, done: &mut Vec<(u32, Result<(), MediaError>)>) {
        if self.ring.in_flight() > 0 {
            self.submit();
            self.collect();
        }
        done.append(&mut self.ended);
    }

    fn in_flight(&self) -> usize {
        self.operations.len() - self.free.len() + self.ended.len()
    }

    fn wait(&mut self, limit: Duration) {
        // A failure shows when the operations' time is up; there is nothing to report here.
        let _ = self.ring.wait(1, limit);
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

#[cfg(test)]
mod tests {
    use super::*;
    use warprow_dma::PAGE;

    fn direct(len: u64) -> (tempfile::TempDir, DirectBacking) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("drive");
        StdFile::create(&path).unwrap().set_len(len).unwrap();
        (folder, DirectBacking::new(warprow_uring::open_direct(&path).unwrap(), len).unwrap())
    }

    fn wait(engine: &mut dyn BackingEngine, count: usize) -> Vec<u32> {
        let mut done = Vec::new();
        while done.len() < count {
            engine.poll(&mut done);
        }
        let mut tokens: Vec<u32> = done.into_iter().map(|(token, result)| result.map(|()| token).unwrap()).collect();
        tokens.sort_unstable();
        tokens
    }

    #[test]
    fn no_more_than_the_depth_is_under_way() {
        let (_folder, backing) = direct(1 << 20);
        let memory = DmaMemory::allocate(PAGE, warprow_dma::MemoryKind::Anonymous).unwrap();
        let mut backing = backing;
        for depth in [1, 3, 100] {
            backing = backing.depth(depth);
            let mut engine = backing.engine().unwrap().unwrap();
            let read = |engine: &mut dyn BackingEngine, token| {
                engine.begin(token, BackingOperation::Read, 4096, &[(memory.clone(), 0, PAGE)])
            };
            let begun = (0..200).take_while(|&token| read(&mut *engine, token)).count();
            assert_eq!(begun, depth as usize);
            assert_eq!(wait(&mut *engine, begun).len(), begun);
            assert!(read(&mut *engine, 0), "there is room again");
            engine.settle();
        }
    }

    #[test]
    fn engine_and_waiting_calls_agree_at_any_alignment() {
        let (_folder, backing) = direct(1 << 20);
        let mut engine = backing.engine().unwrap().unwrap();
        let memory = DmaMemory::allocate(16 * PAGE, warprow_dma::MemoryKind::Anonymous).unwrap();
        let data: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(3 * PAGE).collect();
        for (turn, at) in [0, 4, 4092, PAGE].into_iter().enumerate() {
            let offset = (turn * 4 * PAGE) as u64;
            memory.write(at, &data);
            let split = 1000 + turn * 24;
            let pieces = if at == PAGE {
                vec![(memory.clone(), at, PAGE), (memory.clone(), at + PAGE, 2 * PAGE)]
            } else {
                vec![(memory.clone(), at, split), (memory.clone(), at + split, 3 * PAGE - split)]
            };
            let durable = turn % 2 == 0;
            assert!(engine.begin(1, BackingOperation::Write { durable }, offset, &pieces));
            assert_eq!(wait(&mut *engine, 1), [1]);
            memory.fill(0, 16 * PAGE, 0);
            backing.read(offset + 4, &memory, 8, 3 * PAGE - 4).unwrap();
            let mut got = vec![0; 3 * PAGE - 4];
            memory.read(8, &mut got);
            assert_eq!(got, data[4..]);
            memory.fill(0, 16 * PAGE, 0);
            assert!(engine.begin(2, BackingOperation::Read, offset, &pieces));
            assert!(engine.begin(3, BackingOperation::Flush, 0, &[]));
            assert_eq!(engine.in_flight(), 2);
            engine.settle();
            assert_eq!(wait(&mut *engine, 2), [2, 3]);
            let mut got = vec![0; 3 * PAGE];
            memory.read(at, &mut got);
            assert_eq!(got, data);
            backing.write(offset + 2048, &memory, at, 1024).unwrap();
            backing.read(offset + 2048, &memory, 8 * PAGE, 2048).unwrap();
            let mut got = vec![0; 2048];
            memory.read(8 * PAGE, &mut got);
            assert_eq!(got[..1024], data[..1024]);
            assert_eq!(got[1024..], data[3072..4096]);
        }
        backing.zero(0, 512, true).unwrap();
        backing.read(0, &memory, 0, 512).unwrap();
        assert_eq!(memory.load_u64(0), 0);
    }

    #[test]
    fn a_file_that_was_shortened_is_not_written() {
        let (folder, backing) = direct(1 << 20);
        let file = StdFile::options().write(true).open(folder.path().join("drive")).unwrap();
        let mut engine = backing.engine().unwrap().unwrap();
        let memory = DmaMemory::allocate(PAGE, warprow_dma::MemoryKind::Anonymous).unwrap();
        file.set_len(1 << 19).unwrap();
        let piece = [(memory.clone(), 0, PAGE)];
        let mut failure = |operation, offset| {
            assert!(engine.begin(1, operation, offset, &piece));
            let mut done = Vec::new();
            while done.is_empty() {
                engine.poll(&mut done);
            }
            assert_eq!(engine.in_flight(), 0);
            done.remove(0).1.unwrap_err().to_string()
        };
        failure(BackingOperation::Read, 1 << 19);
        for operation in [BackingOperation::Write { durable: true }, BackingOperation::Flush, BackingOperation::Read] {
            let error = failure(operation, 1 << 19);
            assert!(error.contains("shortened to 524288 bytes"), "{operation:?}: {error}");
        }
        assert!(engine.begin(1, BackingOperation::Read, 0, &piece));
        assert_eq!(wait(&mut *engine, 1), [1]);
        for result in [backing.write(0, &memory, 0, PAGE), backing.flush(), backing.zero(0, 1 << 20, true)] {
            assert!(matches!(result, Err(MediaError::Write(_))), "{result:?}");
        }
        assert!(matches!(backing.read(1 << 19, &memory, 0, 512), Err(MediaError::Read(_))));
        assert_eq!(file.metadata().unwrap().len(), 1 << 19);
    }

    #[test]
    fn more_than_it_takes_is_refused_until_later() {
        let (_folder, backing) = direct(4 << 20);
        let mut engine = backing.engine().unwrap().unwrap();
        let memory = DmaMemory::allocate(512 * PAGE, warprow_dma::MemoryKind::Anonymous).unwrap();
        let mut begun = 0;
        for i in 0..1000usize {
            let pieces = [(memory.clone(), i % 512 * PAGE, PAGE)];
            if !engine.begin(i as u32, BackingOperation::Read, (i * PAGE) as u64 % (4 << 20), &pieces) {
                break;
            }
            begun += 1;
        }
        assert!((200..=256).contains(&begun), "{begun}");
        assert_eq!(wait(&mut *engine, begun).len(), begun);
        assert!(engine.begin(0, BackingOperation::Read, 0, &[(memory, 0, PAGE)]));
        engine.settle();
    }
}
