//! The bytes of an index: a header of 128 bytes, then pilots, stand-ins and fingerprints, each at a multiple of 128.

use std::ops::Range;

use crate::index::little_endian;
use crate::{Fingerprint, IndexError, KeyIndex, KeyKind, MAX_KEYS};

const MAGIC: [u8; 8] = *b"\x89WARPKEY";

/// The version of the bytes and of the function that they describe.
pub const FORMAT_VERSION: u32 = 1;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 128;

/// Where parts begin: at cache lines of a GPU.
const ALIGN: u64 = 128;

/// Slots and buckets of a part, at most: what a build's tables hold.
pub(crate) const MAX_PART: u32 = 1 << 30;

/// The numbers of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub keys: u64,
    pub seed: u64,
    pub parts: u64,
    pub buckets: u32,
    pub slots: u32,
    pub fingerprint: Fingerprint,
    pub kind: KeyKind,
}

/// Where the parts of an index lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    pub pilots: Range<u64>,
    pub stand_ins: Range<u64>,
    pub prints: Range<u64>,
}

impl Shape {
    /// Whether it can be, and so whether all arithmetic on it stays in its numbers.
    fn check(&self) -> Result<(), IndexError> {
        let bad = |what| Err(IndexError::Field { what });
        if self.keys == 0 || self.keys > MAX_KEYS {
            return bad("it has no keys, or too many");
        }
        if self.parts == 0 || self.parts > self.keys {
            return bad("it has no parts, or more than keys");
        }
        if self.buckets == 0 || self.buckets > MAX_PART || self.slots == 0 || self.slots > MAX_PART {
            return bad("its parts have no buckets or slots, or too many");
        }
        // Below 2⁴⁰ · 2³⁰.
        let slots = u128::from(self.parts) * u128::from(self.slots);
        if slots < self.keys.into() || slots > u128::from(self.keys) * 2 + 1024 {
            return bad("its slots are fewer than its keys, or far more");
        }
        if u128::from(self.parts) * u128::from(self.buckets) > u128::from(self.keys) * 2 + 1024 {
            return bad("its buckets are far more than its keys");
        }
        Ok(())
    }

    /// Slots in all, before those from `keys` on are given stand-ins.
    pub(crate) fn total_slots(&self) -> u64 {
        self.parts * u64::from(self.slots)
    }

    /// Bytes of a stand-in.
    pub(crate) fn stand_in_bytes(&self) -> usize {
        if self.keys <= 1 << 32 { 4 } else { 8 }
    }

    pub(crate) fn layout(&self) -> Layout {
        let after = |end: u64, bytes: u64| {
            let begin = end.next_multiple_of(ALIGN);
            begin..begin + bytes
        };
        let pilots = after(HEADER_BYTES as u64, self.parts * u64::from(self.buckets));
        let stand_ins = after(pilots.end, (self.total_slots() - self.keys) * self.stand_in_bytes() as u64);
        let prints = after(stand_ins.end, self.keys * self.fingerprint.bytes() as u64);
        Layout { pilots, stand_ins, prints }
    }

    /// The header of an index in whose `bytes` all else is there already.
    pub(crate) fn seal(&self, bytes: &mut [u8]) {
        let layout = self.layout();
        let crc = |range: &Range<u64>| crc32c::crc32c(&bytes[range.start as usize..range.end as usize]);
        let crcs = [crc(&layout.pilots), crc(&layout.stand_ins), crc(&layout.prints)];
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
        let (keys, seed, parts) = (u64(&mut rest), u64(&mut rest), u64(&mut rest));
        let (buckets, slots) = (u32(&mut rest), u32(&mut rest));
        let [bits, kind, zero, zero_too] = take(&mut rest);
        let crcs = [u32(&mut rest), u32(&mut rest), u32(&mut rest)];
        let bad = |what| IndexError::Field { what };
        let fingerprint = Fingerprint::from_bits(bits.into())
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
    /// The index that `bytes` are, which may be anything: checks every checksum and field. Whatever is accepted can be evaluated,
    /// and gives slots below its number of keys.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, IndexError> {
        let given = bytes.len() as u64;
        let header = bytes.first_chunk().ok_or(IndexError::Length { expected: HEADER_BYTES as u64, given })?;
        let (shape, crcs) = Shape::open(header)?;
        let layout = shape.layout();
        if given != layout.prints.end {
            return Err(IndexError::Length { expected: layout.prints.end, given });
        }
        let part = |range: &Range<u64>| bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
        let parts = [("pilots", &layout.pilots), ("stand-ins", &layout.stand_ins), ("fingerprints", &layout.prints)];
        for ((name, range), expected) in parts.into_iter().zip(crcs) {
            check_crc(name, expected, part(range))?;
        }
        let gaps = [layout.pilots.end..layout.stand_ins.start, layout.stand_ins.end..layout.prints.start];
        if gaps.iter().any(|gap| part(gap).iter().any(|&byte| byte != 0)) {
            return Err(IndexError::Field { what: "bytes between its parts are not zero" });
        }
        let stand_ins = part(&layout.stand_ins);
        let below = match shape.stand_in_bytes() {
            4 => stand_ins.as_chunks::<4>().0.iter().all(|slot| little_endian(slot) < shape.keys),
            _ => stand_ins.as_chunks::<8>().0.iter().all(|slot| little_endian(slot) < shape.keys),
        };
        if !below {
            return Err(IndexError::Field { what: "a stand-in is no slot" });
        }
        Ok(Self::of(shape, bytes))
    }

    /// How many bytes the index has that begins with `header`, of which that many are needed to tell.
    pub fn bytes_of(header: &[u8; HEADER_BYTES]) -> Result<u64, IndexError> {
        Ok(Shape::open(header)?.0.layout().prints.end)
    }
}
