//! Small numbers as Parquet has them: levels, and indices into a dictionary. Runs of one number, and groups of eight that are
//! packed bit by bit.

/// Numbers one after another.
pub(super) enum Run<'a> {
    /// One number, and how many times it comes.
    Same(u32, usize),
    /// Packed numbers, and how many they are.
    Packed(Packed<'a>, usize),
}

/// The runs that hold `left` numbers of `width` bits.
pub(super) struct Hybrid<'a> {
    bytes: &'a [u8],
    width: u32,
    left: usize,
}

impl<'a> Hybrid<'a> {
    /// `count` numbers of `width` bits, at most 32.
    pub(super) fn new(bytes: &'a [u8], width: u32, count: usize) -> Self {
        Self { bytes, width, left: count }
    }

    /// The next run; `None` behind the last number, an error if the bytes end before it.
    pub(super) fn next(&mut self) -> Result<Option<Run<'a>>, CutOff> {
        if self.left == 0 {
            return Ok(None);
        }
        let mut header = 0u32;
        for shift in (0..35).step_by(7) {
            let byte = self.bytes.split_off_first().ok_or(CutOff)?;
            header |= u32::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            if shift == 28 {
                return Err(CutOff);
            }
        }
        let runs = (header >> 1) as usize;
        let count = if header & 1 == 0 { runs } else { runs.saturating_mul(8) }.min(self.left);
        if count == 0 {
            return Err(CutOff);
        }
        self.left -= count;
        // Numbers of no bits take no bytes, however they are packed.
        if self.width == 0 {
            return Ok(Some(Run::Same(0, count)));
        }
        Ok(Some(if header & 1 == 0 {
            let bytes = self.bytes.split_off(..self.width.div_ceil(8) as usize).ok_or(CutOff)?;
            let value = bytes.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
            Run::Same(value, count)
        } else {
            // Some writers leave out what fills the last group up.
            let whole = runs.saturating_mul(self.width as usize).min(self.bytes.len());
            let bytes = self.bytes.split_off(..whole).ok_or(CutOff)?;
            if (bytes.len() as u64) * 8 < count as u64 * u64::from(self.width) {
                return Err(CutOff);
            }
            Run::Packed(Packed { bytes, width: self.width }, count)
        }))
    }
}

/// The bytes end, or make no sense, before all numbers have come.
pub(super) struct CutOff;

/// Numbers packed bit by bit, from the lowest bit of a byte on.
pub(super) struct Packed<'a> {
    bytes: &'a [u8],
    width: u32,
}

impl<'a> Packed<'a> {
    /// The numbers, packed, as bytes.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes behind so many groups of eight.
    pub(super) fn skip_groups(self, groups: usize) -> Self {
        Self { bytes: self.bytes.get(groups * self.width as usize..).unwrap_or_default(), ..self }
    }

    /// All of them, and perhaps some that only fill the last group up.
    pub(super) fn numbers(self) -> impl Iterator<Item = u32> + use<'a> {
        let width = self.width.min(32);
        let mask = (1u64 << width) - 1;
        self.bytes.chunks(width.max(1) as usize).flat_map(move |group| {
            let mut bytes = [0; 40];
            bytes.iter_mut().zip(group).for_each(|(to, from)| *to = *from);
            (0..8).map(move |index| {
                let bit = (index * width) as usize;
                let mut word = [0; 8];
                word.copy_from_slice(&bytes[bit / 8..bit / 8 + 8]);
                (u64::from_le_bytes(word) >> (bit % 8) & mask) as u32
            })
        })
    }
}
