use std::fmt;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::{IoUring, opcode, types};
use warprow_dma::DmaMemory;

/// A transfer between a file and memory.
#[derive(Clone, Debug)]
pub struct FileTransfer {
    /// The file.
    pub file: Arc<File>,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// The memory.
    pub memory: DmaMemory,
    /// Offset in the memory, bytes.
    pub at: usize,
    /// Length, bytes, below 2 GiB.
    pub len: usize,
}

/// A read from one of the files that a ring was [made for](FileRing::with_files), into the memory that it was made for.
#[derive(Clone, Copy, Debug)]
pub struct OwnTransfer {
    /// The file's place among the ring's.
    pub file: usize,
    /// Offset in the file, bytes.
    pub offset: u64,
    /// Offset in the memory, bytes.
    pub at: usize,
    /// Length, bytes, below 2 GiB.
    pub len: usize,
}

/// What became of an operation.
#[derive(Debug)]
pub struct FileTransferResult {
    /// The token that it was pushed with.
    pub token: u64,
    /// Bytes moved, which may be fewer than asked for; 0 for a sync.
    pub result: Result<usize>,
}

/// As many operations are under way as the ring was made for. Take completions first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the io_uring is full; take completions before pushing more")]
pub struct FileRingFull;

/// What the kernel may be using.
#[derive(Debug)]
enum Operation {
    Free,
    Transfer {
        token: u64,
        _file: Arc<File>,
        _memory: DmaMemory,
    },
    /// Between what the ring itself holds.
    Own {
        token: u64,
    },
    Sync {
        token: u64,
        _file: Arc<File>,
    },
}

/// An io_uring with a fixed number of operations. Files and memory of an operation stay alive until the kernel has
/// done with it, also when the ring is dropped: that waits.
pub struct FileRing {
    ring: IoUring,
    operations: Vec<Operation>,
    free: Vec<u32>,
    /// The kernel says when a thread has to enter it for completions to appear.
    tells: bool,
    own: Own,
}

/// What a ring holds for as long as it lives.
#[derive(Default)]
struct Own {
    files: Vec<Arc<File>>,
    memory: Option<DmaMemory>,
    /// The kernel holds the files, so that it need not look descriptors up.
    has_files: bool,
    /// The kernel holds the memory's pages, so that it need not find and hold them for each transfer.
    has_memory: bool,
}

impl fmt::Debug for FileRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileRing").field("depth", &self.operations.len()).field("in_flight", &self.in_flight()).finish()
    }
}

impl FileRing {
    /// A ring for up to `depth` operations at a time, 1 to 32,768. Fails where the system forbids io_uring
    /// (`/proc/sys/kernel/io_uring_disabled`, or a container's system call filter).
    pub fn new(depth: u32) -> Result<Self> {
        // Completions need no interrupt of the thread that polls for them anyway; kernels before 5.19 do not know this.
        let told = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(depth);
        let (ring, tells) = match told {
            Ok(ring) => (ring, true),
            Err(_) => (IoUring::new(depth)?, false),
        };
        let operations = (0..depth).map(|_| Operation::Free).collect();
        Ok(Self { ring, operations, free: (0..depth).rev().collect(), tells, own: Own::default() })
    }

    /// As [`new`](Self::new), for reads from `files` into `memory` with [`read_own`](Self::read_own). The kernel is given both at
    /// once where it takes them (memory that it holds counts against `RLIMIT_MEMLOCK`), so that it has less to do for each read.
    pub fn with_files(depth: u32, files: Vec<Arc<File>>, memory: DmaMemory) -> Result<Self> {
        let mut ring = Self::new(depth)?;
        let descriptors: Vec<_> = files.iter().map(|file| file.as_raw_fd()).collect();
        let bytes = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: memory.len() };
        let submitter = ring.ring.submitter();
        let has_files = !files.is_empty() && submitter.register_files(&descriptors).is_ok();
        // SAFETY: the memory is this ring's until it is dropped, which waits for the kernel first; it is reached atomically, and never
        // through a reference.
        let has_memory = unsafe { submitter.register_buffers(&[bytes]) }.is_ok();
        ring.own = Own { files, memory: Some(memory), has_files, has_memory };
        Ok(ring)
    }

    /// One of the files that it was made for.
    pub fn own_file(&self, index: usize) -> Option<&Arc<File>> {
        self.own.files.get(index)
    }

    /// Operations that were pushed and whose completion was not taken.
    pub fn in_flight(&self) -> usize {
        self.operations.len() - self.free.len()
    }

    /// How many operations can be pushed now.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Pushes a read of the file into the memory, for [`submit`](Self::submit). Panics if the range is not inside the
    /// memory.
    pub fn read(&mut self, token: u64, transfer: &FileTransfer) -> std::result::Result<(), FileRingFull> {
        let (pointer, len) = range(transfer);
        let entry =
            opcode::Read::new(types::Fd(transfer.file.as_raw_fd()), pointer, len).offset(transfer.offset).build();
        self.push(entry, held(token, transfer))
    }

    /// Pushes a read between a file and the memory of this ring's own, for [`submit`](Self::submit). Panics if there is no such
    /// file, or the range is not inside the memory.
    pub fn read_own(&mut self, token: u64, transfer: OwnTransfer) -> std::result::Result<(), FileRingFull> {
        let OwnTransfer { file, offset, at, len } = transfer;
        let Own { files, memory, has_files, has_memory } = &self.own;
        let memory = memory.as_ref().expect("a ring that was made with memory");
        let (pointer, len) = bytes_of(memory, at, len);
        let descriptor = files[file].as_raw_fd();
        let entry = match (has_files, has_memory) {
            (true, true) => opcode::ReadFixed::new(types::Fixed(file as u32), pointer, len, 0).offset(offset).build(),
            (false, true) => opcode::ReadFixed::new(types::Fd(descriptor), pointer, len, 0).offset(offset).build(),
            (true, false) => opcode::Read::new(types::Fixed(file as u32), pointer, len).offset(offset).build(),
            (false, false) => opcode::Read::new(types::Fd(descriptor), pointer, len).offset(offset).build(),
        };
        self.push(entry, Operation::Own { token })
    }

    /// Pushes a write of the memory to the file, for [`submit`](Self::submit). Panics if the range is not inside the
    /// memory.
    pub fn write(&mut self, token: u64, transfer: &FileTransfer) -> std::result::Result<(), FileRingFull> {
        let (pointer, len) = range(transfer);
        let entry =
            opcode::Write::new(types::Fd(transfer.file.as_raw_fd()), pointer, len).offset(transfer.offset).build();
        self.push(entry, held(token, transfer))
    }

    /// Pushes an `fdatasync`. It does not wait for writes that were pushed before it and have not completed.
    pub fn sync(&mut self, token: u64, file: &Arc<File>) -> std::result::Result<(), FileRingFull> {
        let entry = opcode::Fsync::new(types::Fd(file.as_raw_fd())).flags(types::FsyncFlags::DATASYNC).build();
        self.push(entry, Operation::Sync { token, _file: file.clone() })
    }

    fn push(&mut self, entry: Entry, operation: Operation) -> std::result::Result<(), FileRingFull> {
        let slot = self.free.pop().ok_or(FileRingFull)?;
        let entry = entry.user_data(slot.into());
        // SAFETY: the file and the memory that the entry names are kept in `operations` until its completion is taken, or are
        // this ring's own, and dropping the ring waits for that; the memory is only reached atomically, and never through a
        // reference.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.free.push(slot);
            return Err(FileRingFull);
        }
        self.operations[slot as usize] = operation;
        Ok(())
    }

    /// Gives the kernel everything that was pushed, and lets it show completions. Nothing is asked of the kernel if it has nothing to
    /// do.
    pub fn submit(&mut self) -> Result<usize> {
        let tells = self.tells;
        let queue = self.ring.submission();
        if tells && queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
            return Ok(0);
        }
        drop(queue);
        self.enter(0)
    }

    /// Gives the kernel everything that was pushed, and waits until at least `count` operations have completed, or
    /// all, if fewer are in flight.
    pub fn submit_and_wait(&mut self, count: usize) -> Result<usize> {
        self.enter(count.min(self.in_flight()))
    }

    /// Gives the kernel everything that was pushed, and waits until `count` operations have completed that were not taken, or
    /// all, if fewer are in flight, but no longer than about `limit`. Kernels before 5.11 cannot: there it only submits.
    pub fn wait(&mut self, count: usize, limit: Duration) -> Result<()> {
        let count = count.min(self.in_flight());
        if count == 0 || !self.ring.params().is_feature_ext_arg() {
            return self.submit().map(drop);
        }
        let limit = types::Timespec::from(limit);
        match self.ring.submitter().submit_with_args(count, &types::SubmitArgs::new().timespec(&limit)) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY)) => Ok(()),
            result => result.map(drop),
        }
    }

    fn enter(&mut self, wait: usize) -> Result<usize> {
        loop {
            match self.ring.submitter().submit_and_wait(wait) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The kernel wants completions to be taken first; they are there to be taken.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Ok(0),
                result => return result,
            }
        }
    }

    /// Takes the next completion, if one is there.
    pub fn completion(&mut self) -> Option<FileTransferResult> {
        let entry = self.ring.completion().next()?;
        let slot = entry.user_data();
        let operation = std::mem::replace(self.operations.get_mut(slot as usize)?, Operation::Free);
        let (Operation::Transfer { token, .. } | Operation::Own { token } | Operation::Sync { token, .. }) = operation
        else {
            return None;
        };
        self.free.push(slot as u32);
        let result = entry.result();
        let result = if result < 0 { Err(Error::from_raw_os_error(-result)) } else { Ok(result as usize) };
        Some(FileTransferResult { token, result })
    }
}

impl Drop for FileRing {
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            if self.submit_and_wait(1).is_err() {
                // The kernel may still use them, and does not say when it has done: they are never freed.
                std::mem::forget(std::mem::take(&mut self.operations));
                std::mem::forget(std::mem::take(&mut self.own));
                return;
            }
            while self.completion().is_some() {}
        }
    }
}

fn range(transfer: &FileTransfer) -> (*mut u8, u32) {
    bytes_of(&transfer.memory, transfer.at, transfer.len)
}

fn bytes_of(memory: &DmaMemory, at: usize, len: usize) -> (*mut u8, u32) {
    assert!(memory.contains(at, len), "{len} bytes at {at:#x} are not inside {:#x} bytes of memory", memory.len());
    assert!(len <= i32::MAX as usize, "a transfer of {len} bytes is too long");
    (memory.as_ptr().wrapping_add(at), len as u32)
}

fn held(token: u64, transfer: &FileTransfer) -> Operation {
    Operation::Transfer { token, _file: transfer.file.clone(), _memory: transfer.memory.clone() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use warprow_dma::{MemoryKind, PAGE};

    fn memory(pages: usize) -> DmaMemory {
        DmaMemory::allocate(pages * PAGE, MemoryKind::Anonymous).unwrap()
    }

    #[test]
    fn many_reads_and_writes_land_where_they_should() {
        let mut ring = FileRing::new(8).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        let memory = memory(16);
        let data: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(16 * PAGE).collect();
        memory.write(0, &data);
        for (write, offset) in [(true, 0), (false, 3)] {
            if !write {
                memory.fill(0, memory.len(), 0);
            }
            let mut next = 0;
            let mut seen = [false; 16];
            while seen.contains(&false) {
                while next < 16 {
                    let at = next * PAGE;
                    let transfer = FileTransfer {
                        file: file.clone(),
                        offset: (at + offset) as u64,
                        memory: memory.clone(),
                        at,
                        len: PAGE - 4,
                    };
                    let pushed =
                        if write { ring.write(next as u64, &transfer) } else { ring.read(next as u64, &transfer) };
                    if pushed == Err(FileRingFull) {
                        assert_eq!(ring.in_flight(), 8);
                        break;
                    }
                    next += 1;
                }
                ring.submit_and_wait(1).unwrap();
                while let Some(completion) = ring.completion() {
                    assert!(!std::mem::replace(&mut seen[completion.token as usize], true));
                    // Only the last read meets the end of the file.
                    let short = if !write && completion.token == 15 { 3 } else { 0 };
                    assert_eq!(completion.result.unwrap(), PAGE - 4 - short);
                }
            }
        }
        let mut back = vec![0; 64];
        memory.read(5 * PAGE, &mut back);
        assert_eq!(back, data[5 * PAGE + 3..][..64]);
        let mut stored = vec![0; 64];
        file.read_exact_at(&mut stored, 7 * PAGE as u64).unwrap();
        assert_eq!(stored, data[7 * PAGE..][..64]);
    }

    #[test]
    fn files_and_memory_of_the_ring_are_read_and_written() {
        let files: Vec<_> = (0..3).map(|_| Arc::new(tempfile::tempfile().unwrap())).collect();
        let data: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(8 * PAGE).collect();
        for (number, file) in files.iter().enumerate() {
            file.write_all_at(&data, number as u64 * 100).unwrap();
        }
        let memory = memory(16);
        let mut ring = FileRing::with_files(8, files, memory.clone()).unwrap();
        // Others' files and memory go through the same ring.
        let (other, elsewhere) = (Arc::new(tempfile::tempfile().unwrap()), self::memory(1));
        other.write_all_at(&data[..100], 0).unwrap();
        for turn in 0..20 {
            memory.fill(0, memory.len(), 0);
            elsewhere.fill(0, PAGE, 0);
            for file in 0..3 {
                let transfer =
                    OwnTransfer { file, offset: 100 * file as u64 + turn, at: file * 4 * PAGE + 8, len: PAGE };
                ring.read_own(file as u64, transfer).unwrap();
            }
            let transfer = FileTransfer { file: other.clone(), offset: 0, memory: elsewhere.clone(), at: 0, len: 100 };
            ring.read(9, &transfer).unwrap();
            let mut tokens = Vec::new();
            while tokens.len() < 4 {
                ring.wait(4, Duration::from_secs(1)).unwrap();
                while let Some(completion) = ring.completion() {
                    assert_eq!(completion.result.unwrap(), if completion.token == 9 { 100 } else { PAGE });
                    tokens.push(completion.token);
                }
            }
            tokens.sort_unstable();
            assert_eq!(tokens, [0, 1, 2, 9]);
            let mut back = vec![0; PAGE];
            for file in 0..3 {
                memory.read(file * 4 * PAGE + 8, &mut back);
                assert!(back == data[turn as usize..][..PAGE], "file {file}, turn {turn}");
            }
            elsewhere.read(0, &mut back[..100]);
            assert_eq!(back[..100], data[..100]);
        }
    }

    #[test]
    fn what_has_nothing_to_do_is_not_asked_of_the_kernel() {
        let mut ring = FileRing::new(4).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.write_all_at(&[7; 64], 0).unwrap();
        assert_eq!(ring.submit().unwrap(), 0);
        for turn in 0..100 {
            let memory = memory(1);
            let transfer = FileTransfer { file: file.clone(), offset: 0, memory: memory.clone(), at: 0, len: 64 };
            ring.read(turn, &transfer).unwrap();
            let begin = std::time::Instant::now();
            // Without a wait: completions appear by submissions alone.
            let completion = loop {
                ring.submit().unwrap();
                if let Some(completion) = ring.completion() {
                    break completion;
                }
                assert!(begin.elapsed() < Duration::from_secs(10), "turn {turn} does not end");
            };
            assert_eq!((completion.token, completion.result.unwrap()), (turn, 64));
            assert_eq!(memory.load_u8(63), 7);
        }
    }

    #[test]
    fn sync_and_errors_come_back_with_their_token() {
        let mut ring = FileRing::new(4).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        ring.sync(70, &file).unwrap();
        let read_only = Arc::new(File::open("/dev/null").unwrap());
        let transfer = FileTransfer { file: read_only, offset: 0, memory: memory(1), at: 0, len: 8 };
        ring.write(71, &transfer).unwrap();
        ring.submit_and_wait(2).unwrap();
        let mut results: Vec<_> = std::iter::from_fn(|| ring.completion()).collect();
        results.sort_by_key(|completion| completion.token);
        assert_eq!(results.len(), 2);
        assert_eq!(*results[0].result.as_ref().unwrap(), 0);
        assert_eq!(results[1].result.as_ref().unwrap_err().raw_os_error(), Some(libc::EBADF));
    }

    #[test]
    fn dropping_waits_for_what_the_kernel_uses() {
        let (receiver, sender) = std::io::pipe().unwrap();
        let memory = memory(1);
        let mut ring = FileRing::new(2).unwrap();
        let file = Arc::new(File::from(std::os::fd::OwnedFd::from(receiver)));
        // A pipe has no offset.
        let transfer = FileTransfer { file, offset: u64::MAX, memory: memory.clone(), at: 16, len: 4 };
        ring.read(1, &transfer).unwrap();
        drop(transfer);
        ring.wait(1, Duration::from_millis(1)).unwrap();
        assert!(ring.completion().is_none());
        let writer = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            std::io::Write::write_all(&mut &sender, b"late").unwrap();
        });
        drop(ring);
        let mut got = [0; 4];
        memory.read(16, &mut got);
        assert_eq!(&got, b"late");
        writer.join().unwrap();
    }
}
