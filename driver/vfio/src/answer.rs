//! Answers of VFIO that grow: a structure that begins with its length, and a chain of capabilities behind it (linux/vfio.h).

use std::io;

/// Asks until the buffer holds the whole answer. `buffer` is the structure, and `ask` the ioctl, which writes the length
/// that it needs to the first word.
pub(crate) fn ask(
    mut buffer: Vec<u8>,
    mut ask: impl FnMut(&mut [u8]) -> nix::Result<()>,
) -> Result<Vec<u8>, io::Error> {
    // The answer may grow in between, when devices come.
    for _ in 0..8 {
        let len = buffer.len() as u32;
        buffer[..4].copy_from_slice(&len.to_ne_bytes());
        ask(&mut buffer)?;
        let needed = word(&buffer, 0).unwrap_or(0);
        if needed <= len {
            return Ok(buffer);
        }
        buffer.resize(needed as usize, 0);
    }
    Err(io::Error::other("its answer keeps growing"))
}

/// The pairs of numbers that capability `id` lists (IOVA ranges, or areas that can be mapped). `Some(None)` if the
/// answer has no such capability, `None` if the answer contradicts itself. `first` is the offset of the first
/// capability, 0 if there is none.
pub(crate) fn pairs(buffer: &[u8], first: u32, id: u32) -> Option<Option<Vec<(u64, u64)>>> {
    let mut found = None;
    let mut at = first as usize;
    // Each capability has the offset of the next; 0 ends the chain. A chain that runs backwards is refused, so this
    // ends.
    while at != 0 {
        if word(buffer, at)? & 0xffff == id {
            let count = word(buffer, at + 8)? as usize;
            let pair = |i: usize| Some((long(buffer, at + 16 + i * 16)?, long(buffer, at + 24 + i * 16)?));
            found = Some((0..count).map(pair).collect::<Option<Vec<_>>>()?);
        }
        let next = word(buffer, at + 4)? as usize;
        if next != 0 && next <= at {
            return None;
        }
        at = next;
    }
    Some(found)
}

pub(crate) fn word(buffer: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*buffer.get(at..)?.first_chunk()?))
}

pub(crate) fn long(buffer: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*buffer.get(at..)?.first_chunk()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// `head`, and behind it the capabilities: each an id and its words.
    pub(crate) fn chained(head: &[u8], caps: &[(u16, &[u64])]) -> Vec<u8> {
        let mut bytes = head.to_vec();
        for (i, (id, words)) in caps.iter().enumerate() {
            let next = if i + 1 < caps.len() { bytes.len() + 8 + words.len() * 8 } else { 0 };
            bytes.extend(id.to_ne_bytes());
            bytes.extend(1u16.to_ne_bytes());
            bytes.extend((next as u32).to_ne_bytes());
            for word in *words {
                bytes.extend(word.to_ne_bytes());
            }
        }
        bytes
    }

    #[test]
    fn asks_again_for_longer_answers() {
        let mut lengths = Vec::new();
        let answer = ask(vec![0; 8], |buffer| {
            lengths.push(buffer.len());
            buffer[..4].copy_from_slice(&24u32.to_ne_bytes());
            buffer[4] = 7;
            Ok(())
        });
        assert_eq!((answer.unwrap().len(), lengths), (24, vec![8, 24]));
        let growing = ask(vec![0; 8], |buffer| {
            let more = buffer.len() as u32 + 1;
            buffer[..4].copy_from_slice(&more.to_ne_bytes());
            Ok(())
        });
        assert!(growing.unwrap_err().to_string().contains("growing"));
        assert!(ask(vec![0; 8], |_| Err(nix::errno::Errno::ENODEV)).is_err());
    }

    #[test]
    fn chains_that_run_in_circles_are_no_answer() {
        let mut bytes = chained(&[0; 8], &[(7, &[]), (1, &[1, 5, 6])]);
        assert_eq!(pairs(&bytes, 8, 1), Some(Some(vec![(5, 6)])));
        assert_eq!(pairs(&bytes, 8, 2), Some(None));
        assert_eq!(pairs(&bytes, 0, 1), Some(None));
        bytes[20..24].copy_from_slice(&8u32.to_ne_bytes());
        assert_eq!(pairs(&bytes, 8, 1), None);
        assert_eq!(pairs(&bytes, u32::MAX, 1), None);
    }
}
