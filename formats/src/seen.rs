//! The checksum of a stored member of an archive, computed from its rows as they are read, in any order, so that
//! nothing is read twice for it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crc32fast::Hasher;

use crate::error::FileError;
use crate::input::Input;
use crate::zip::ZipMember;

/// The most pieces of a member that are kept apart. If rows are read in more pieces than that, the member is read once
/// more at the end.
const PIECES: usize = 1 << 12;
/// Bytes that are read at once where nobody has read.
const RUN: u64 = 1 << 20;

/// Which bytes of a member were read, and their checksums.
#[derive(Default)]
pub(crate) struct Seen {
    /// The pieces that were read, by their first byte in the file: the byte behind the last, and the CRC-32.
    pieces: BTreeMap<u64, (u64, u32)>,
    given_up: bool,
}

impl Seen {
    /// Notes that `bytes` were read from byte `at` of the file on. Bytes that were noted before do not count again.
    pub(crate) fn note(&mut self, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let before = self.pieces.range(..=at).next_back().map(|(&at, &piece)| (at, piece));
        let after = self.pieces.range(at..).next().map(|(&at, &piece)| (at, piece));
        let overlaps = before.is_some_and(|(_, piece)| piece.0 > at) || after.is_some_and(|(begin, _)| begin < end);
        if self.given_up || overlaps || bytes.is_empty() {
            return;
        }
        let (begin, mut hasher) = match before.filter(|(_, piece)| piece.0 == at) {
            Some((begin, (_, crc))) => (begin, Hasher::new_with_initial_len(crc, at - begin)),
            None => (at, Hasher::new()),
        };
        hasher.update(bytes);
        let end = match after.filter(|(begin, _)| *begin == end) {
            Some((begin, (end, crc))) => {
                self.pieces.remove(&begin);
                hasher.combine(&Hasher::new_with_initial_len(crc, end - begin));
                end
            }
            None => end,
        };
        self.pieces.insert(begin, (end, hasher.finalize()));
        if self.pieces.len() > PIECES {
            *self = Self { pieces: BTreeMap::new(), given_up: true };
        }
    }

    /// Reads those bytes of `member` that were not read yet, and compares the member's checksum with the one in the
    /// archive's directory. `read` is called after each run of bytes, and may end the check.
    pub(crate) fn compare(
        &self,
        input: &Input,
        member: &ZipMember,
        read: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, FileError> {
        let ZipMember { name, at, bytes, crc, .. } = member;
        let end = at.saturating_add(*bytes);
        let mut hasher = Hasher::new();
        let mut next = *at;
        let mut buf = input.room((*bytes).min(RUN))?;
        let last = (end, (end, 0));
        for (begin, (piece_end, crc)) in self.pieces.iter().map(|(&at, &piece)| (at, piece)).chain([last]) {
            while next < begin {
                let run = buf.get_mut(..(begin - next).min(RUN) as usize).unwrap_or_default();
                input.read(next, run)?;
                hasher.update(run);
                next += run.len() as u64;
                if read(run.len() as u64).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            hasher.combine(&Hasher::new_with_initial_len(crc, piece_end - begin));
            next = piece_end;
        }
        if hasher.finalize() != *crc {
            return Err(input.damaged(format!("the checksum of {name} does not match what is stored")).at(*at));
        }
        Ok(ControlFlow::Continue(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zip::ZipPacking;
    use proptest::prelude::*;

    fn input(bytes: &[u8]) -> (tempfile::TempDir, Input) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        std::fs::write(&path, bytes).unwrap();
        let input = Input::open(&path).unwrap();
        (dir, input)
    }

    fn member(bytes: &[u8], at: usize) -> ZipMember {
        let len = (bytes.len() - at) as u64;
        let crc = crc32fast::hash(&bytes[at..]);
        ZipMember { name: "a.npy".into(), packing: ZipPacking::Stored, crc, packed: len, bytes: len, at: at as u64 }
    }

    proptest! {
        #[test]
        fn whatever_was_read_the_checksum_is_that_of_all(
            bytes in proptest::collection::vec(any::<u8>(), 40..300),
            reads in proptest::collection::vec((0usize..300, 0usize..60), 0..20),
            flipped in proptest::option::of(30usize..40),
        ) {
            let member = member(&bytes, 30);
            let mut bytes = bytes;
            if let Some(at) = flipped {
                bytes[at] ^= 16;
            }
            let (_dir, input) = input(&bytes);
            let mut seen = Seen::default();
            for (at, len) in reads {
                let at = 30 + at % (bytes.len() - 30);
                seen.note(at as u64, &bytes[at..bytes.len().min(at + len)]);
            }
            let mut missing = member.bytes - seen.pieces.iter().map(|(begin, piece)| piece.0 - begin).sum::<u64>();
            let compared = seen.compare(&input, &member, &mut |read| {
                missing -= read;
                ControlFlow::Continue(())
            });
            prop_assert_eq!((compared.is_err(), missing), (flipped.is_some(), 0));
        }
    }

    #[test]
    fn what_is_read_in_too_many_pieces_is_read_again() {
        let bytes: Vec<u8> = (0..40_000u32).map(|at| ((at * 7) >> 3) as u8).collect();
        let member = member(&bytes, 0);
        let (_dir, input) = input(&bytes);
        let mut seen = Seen::default();
        (0..PIECES * 2).for_each(|piece| seen.note(piece as u64 * 4, &bytes[piece * 4..][..2]));
        assert!(seen.given_up && seen.pieces.is_empty());
        let mut on = |_| ControlFlow::Continue(());
        assert!(seen.compare(&input, &member, &mut on).unwrap().is_continue());
        assert!(seen.compare(&input, &ZipMember { crc: member.crc ^ 1, ..member }, &mut on).is_err());
        // From the first byte to the last, it is one piece.
        let mut seen = Seen::default();
        bytes.chunks(100).enumerate().for_each(|(nth, bytes)| seen.note(nth as u64 * 100, bytes));
        assert_eq!(seen.pieces.len(), 1);
    }

    #[test]
    fn reading_what_is_missing_can_be_ended() {
        let bytes = vec![7; 5 << 20];
        let member = member(&bytes, 0);
        let (_dir, input) = input(&bytes);
        let mut heard = Vec::new();
        let ended = Seen::default().compare(&input, &member, &mut |read| {
            heard.push(read);
            if heard.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(ended.unwrap().is_break());
        assert_eq!(heard, [RUN; 3]);
    }
}
