//! The bytes of an index: a header of 128 bytes, then pilots, stand-ins and fingerprints, each at a multiple of 128.

use std::ops::Range;

use crate::error::IndexError;
use crate::fingerprint::FingerprintWidth;
use crate::format::{FORMAT_VERSION, HEADER_BYTES};
use crate::index::{KeyIndex, little_endian};
use crate::key_kind::KeyKind;
use crate::shape::Shape;

const MAGIC: [u8; 8] = *b"\x89WARPKEY";

impl Shape {
    /// The header of an index in whose `bytes` all else is there already.
    pub(crate) fn seal(&self, bytes: &mut [u8]) {
        let layout = self.layout();
        let crc = |range: &Range<u64>| crc32c::crc32c(&bytes[range.start as usize..range.end as usize]);
        let crcs = [crc(&layout.pilots), crc(&layout.remap), crc(&layout.prints)];
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[12..16].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        header[16..24].copy_from_slice(&self.keys.to_le_bytes());
        header[24..32].copy_from_slice(&self.seed.to_le_bytes());
        header[32..40].copy_from_slice(&self.parts.to_le_bytes());
        header[40..44].copy_from_slice(&self.buckets.to_le_bytes());
        header[44..48].copy_from_slice(&self.slots.to_le_bytes());
        header[48] = self.fingerprint.bits() as u8;
        header[49] = match self.kind {
            KeyKind::U64 => 0,
            KeyKind::I64 => 1,
        };
        for (place, crc) in header[52..64].as_chunks_mut::<4>().0.iter_mut().zip(crcs) {
            *place = crc.to_le_bytes();
        }
        let crc = crc32c::crc32c(&header[12..]);
        header[8..12].copy_from_slice(&crc.to_le_bytes());
        bytes[..HEADER_BYTES].copy_from_slice(&header);
    }

    /// From a header, which may be anything.
    fn open(header: &[u8; HEADER_BYTES]) -> Result<(Self, [u32; 3]), IndexError> {
        let mut rest = &header[..];
        let magic = take::<8>(&mut rest);
        let expected = u32(&mut rest);
        if magic != MAGIC {
            return Err(IndexError::Magic);
        }
        let found = u32(&mut rest);
        // Before the checksum: another version may have it elsewhere.
        if found != FORMAT_VERSION {
            return Err(IndexError::Version { found });
        }
        check_crc("header", expected, &header[12..])?;
        let keys = u64(&mut rest);
        let seed = u64(&mut rest);
        let parts = u64(&mut rest);
        let buckets = u32(&mut rest);
        let slots = u32(&mut rest);
        let [bits, kind, zero, zero_too] = take(&mut rest);
        let crcs = [u32(&mut rest), u32(&mut rest), u32(&mut rest)];
        let bad = |what| IndexError::Field { what };
        let fingerprint = FingerprintWidth::from_bits(bits.into())
            .ok_or_else(|| bad("its fingerprints have none of 8, 16 and 32 bits"))?;
        let kind = match kind {
            0 => KeyKind::U64,
            1 => KeyKind::I64,
            _ => return Err(bad("its kind of keys is unknown")),
        };
        if zero != 0 || zero_too != 0 || rest.iter().any(|&byte| byte != 0) {
            return Err(bad("bytes of its header that must be zero are not"));
        }
        let shape = Self { keys, seed, parts, buckets, slots, fingerprint, kind };
        shape.check()?;
        Ok((shape, crcs))
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> [u8; N] {
    let (head, tail) = rest.split_first_chunk().map_or(([0; N], &[][..]), |(head, tail)| (*head, tail));
    *rest = tail;
    head
}

fn u32(rest: &mut &[u8]) -> u32 {
    u32::from_le_bytes(take(rest))
}

fn u64(rest: &mut &[u8]) -> u64 {
    u64::from_le_bytes(take(rest))
}

fn check_crc(part: &'static str, expected: u32, bytes: &[u8]) -> Result<(), IndexError> {
    let found = crc32c::crc32c(bytes);
    if found == expected { Ok(()) } else { Err(IndexError::Damaged { part, expected, found }) }
}

impl KeyIndex {
    /// The index in `bytes`, which may be anything: checks every checksum and field. An index that is accepted can be
    /// evaluated, and gives positions below its number of keys.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, IndexError> {
        let given = bytes.len() as u64;
        let header = bytes.first_chunk().ok_or(IndexError::Length { expected: HEADER_BYTES as u64, given })?;
        let (shape, crcs) = Shape::open(header)?;
        let layout = shape.layout();
        if given != layout.prints.end {
            return Err(IndexError::Length { expected: layout.prints.end, given });
        }
        let part = |range: &Range<u64>| bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
        let parts = [("pilots", &layout.pilots), ("stand-ins", &layout.remap), ("fingerprints", &layout.prints)];
        for ((name, range), expected) in parts.into_iter().zip(crcs) {
            check_crc(name, expected, part(range))?;
        }
        let gaps = [layout.pilots.end..layout.remap.start, layout.remap.end..layout.prints.start];
        if gaps.iter().any(|gap| part(gap).iter().any(|&byte| byte != 0)) {
            return Err(IndexError::Field { what: "bytes between its parts are not zero" });
        }
        let remap = part(&layout.remap);
        let below = match shape.remap_bytes() {
            4 => remap.as_chunks::<4>().0.iter().all(|slot| little_endian(slot) < shape.keys),
            _ => remap.as_chunks::<8>().0.iter().all(|slot| little_endian(slot) < shape.keys),
        };
        if !below {
            return Err(IndexError::Field { what: "a stand-in is no slot" });
        }
        Ok(Self::of(shape, bytes))
    }

    /// How many bytes the index has that begins with `header`.
    pub fn bytes_of(header: &[u8; HEADER_BYTES]) -> Result<u64, IndexError> {
        Ok(Shape::open(header)?.0.layout().prints.end)
    }
}
