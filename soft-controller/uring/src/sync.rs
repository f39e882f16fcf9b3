use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;

use warprow_dma::DmaMemory;

/// `pread`: fills `len` bytes of `memory` from its byte `at` with the file's bytes from `offset`. The file ending
/// earlier is an error. Panics if the range is not inside the memory.
pub fn read_at(file: &File, offset: u64, memory: &DmaMemory, at: usize, len: usize) -> Result<()> {
    whole(offset, memory, at, len, |pointer, len, offset| {
        // SAFETY: `whole` passes a range inside the memory, which outlives this call.
        unsafe { libc::pread(file.as_raw_fd(), pointer.cast(), len, offset) }
    })
}

/// `pwrite`: the reverse of [`read_at`].
pub fn write_at(file: &File, offset: u64, memory: &DmaMemory, at: usize, len: usize) -> Result<()> {
    whole(offset, memory, at, len, |pointer, len, offset| {
        // SAFETY: as in `read_at`.
        unsafe { libc::pwrite(file.as_raw_fd(), pointer.cast_const().cast(), len, offset) }
    })
}

/// Calls `transfer` with address, length and file offset until everything has moved.
fn whole(
    offset: u64,
    memory: &DmaMemory,
    at: usize,
    len: usize,
    transfer: impl Fn(*mut u8, usize, libc::off_t) -> isize,
) -> Result<()> {
    assert!(memory.contains(at, len), "{len} bytes at {at:#x} are not inside {:#x} bytes of memory", memory.len());
    let mut done = 0;
    while done < len {
        let position = offset
            .checked_add(done as u64)
            .and_then(|position| libc::off_t::try_from(position).ok())
            .ok_or_else(|| Error::from(ErrorKind::InvalidInput))?;
        match transfer(memory.as_ptr().wrapping_add(at + done), len - done, position) {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            moved if moved > 0 => done += moved as usize,
            _ => {
                let error = Error::last_os_error();
                if error.kind() != ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use warprow_dma::{MemoryKind, PAGE};

    #[test]
    fn moves_bytes_both_ways() {
        let file = tempfile::tempfile().unwrap();
        let memory = DmaMemory::allocate(3 * PAGE, MemoryKind::Anonymous).unwrap();
        let data: Vec<u8> = (0..9000u32).map(|i| ((i * 31) >> 3) as u8).collect();
        memory.write(7, &data);
        write_at(&file, 1000, &memory, 7, data.len()).unwrap();
        let mut got = vec![0; data.len()];
        file.read_exact_at(&mut got, 1000).unwrap();
        assert_eq!(got, data);
        memory.fill(0, memory.len(), 0);
        read_at(&file, 1000, &memory, 11, data.len()).unwrap();
        memory.read(11, &mut got);
        assert_eq!(got, data);
        assert_eq!(read_at(&file, 9999, &memory, 0, 2).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(write_at(&file, u64::MAX, &memory, 0, 2).is_err());
    }

    #[test]
    #[should_panic(expected = "not inside")]
    fn refuses_ranges_outside_the_memory() {
        let memory = DmaMemory::allocate(PAGE, MemoryKind::Anonymous).unwrap();
        let _ = read_at(&tempfile::tempfile().unwrap(), 0, &memory, PAGE - 1, 2);
    }
}
