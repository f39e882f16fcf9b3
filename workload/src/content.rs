//! What a table holds, and the comparison of a look-up's answer with it.

use warprow_layout::{DType, RowSource};

use crate::random::{mix_all, word_at};

/// The true content of a table, by id. Implementors compute it or take it from where the table was loaded from, never from
/// what is under test.
pub trait TableContent {
    /// Number of rows; the ids are `0..rows`.
    fn rows(&self) -> u64;

    /// Elements in a row.
    fn dim(&self) -> u32;

    /// Type of the elements.
    fn dtype(&self) -> DType;

    /// Writes the row of `id` into `row`, which has [`row_bytes`](Self::row_bytes) bytes.
    fn fill(&self, id: u64, row: &mut [u8]);

    /// Writes the row that stands for missing ids; zeros unless the table says otherwise.
    fn fill_default(&self, row: &mut [u8]) {
        row.fill(0);
    }

    /// Bytes of a row.
    fn row_bytes(&self) -> usize {
        self.dim() as usize * self.dtype().size() as usize
    }
}

/// A table whose every element is computed from (seed, table, id, element).
///
/// Floating-point elements are random in sign and significand, with a magnitude in [0.5, 1): sums of them stay finite, and
/// any two rows differ. Integers are random in all bits.
#[derive(Clone, Copy, Debug)]
pub struct ContentOracle {
    key: u64,
    rows: u64,
    dim: u32,
    dtype: DType,
    keep: u64,
    set: u64,
}

impl ContentOracle {
    /// Table number `table` of `seed`: `rows` rows of `dim` elements.
    pub fn new(seed: u64, table: u64, rows: u64, dim: u32, dtype: DType) -> Self {
        // Per element: the bits of sign and significand, and the exponent of 0.5.
        let (keep, set) = match dtype {
            DType::F32 => (0x807f_ffff_807f_ffff, 0x3f00_0000_3f00_0000),
            DType::F16 => (0x83ff_83ff_83ff_83ff, 0x3800_3800_3800_3800),
            DType::BF16 => (0x807f_807f_807f_807f, 0x3f00_3f00_3f00_3f00),
            DType::I8 | DType::U8 | DType::Q8 | DType::Q4 | DType::Mxfp8 | DType::F8E4M3S | DType::Nvfp4 => {
                (u64::MAX, 0)
            }
            // From 0.25 to below 2, of either sign.
            DType::F8E4M3 => (0x8f8f_8f8f_8f8f_8f8f, 0x3030_3030_3030_3030),
            DType::F8E5M2 => (0x8787_8787_8787_8787, 0x3838_3838_3838_3838),
        };
        Self { key: mix_all([seed, table]), rows, dim, dtype, keep, set }
    }

    /// What its rows are computed from beside id and element, for those who compute them elsewhere.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The bytes of the row of `id` from its 8-byte word number `word` on.
    #[inline]
    pub fn fill_from(&self, id: u64, word: u64, bytes: &mut [u8]) {
        let start = mix_all([self.key, id]);
        let word = |i: usize| (word_at(start, word + i as u64) & self.keep | self.set).to_le_bytes();
        let (words, tail) = bytes.as_chunks_mut::<8>();
        for (i, out) in words.iter_mut().enumerate() {
            *out = word(i);
        }
        if !tail.is_empty() {
            tail.copy_from_slice(&word(words.len())[..tail.len()]);
        }
    }
}

impl TableContent for ContentOracle {
    fn rows(&self) -> u64 {
        self.rows
    }

    fn dim(&self) -> u32 {
        self.dim
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline]
    fn fill(&self, id: u64, row: &mut [u8]) {
        self.fill_from(id, 0, row);
    }
}

/// The oracle's table can be loaded, in any order at no cost.
impl RowSource for ContentOracle {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        (first..).zip(rows.chunks_exact_mut(row_bytes.max(1))).for_each(|(id, row)| self.fill(id, row));
        Ok(())
    }
}

/// A look-up's answer: row `i` begins at byte `i * stride`.
#[derive(Clone, Copy, Debug)]
pub struct RowsAnswer<'a> {
    /// The rows' bytes.
    pub rows: &'a [u8],
    /// Bytes from one row's begin to the next row's.
    pub stride: usize,
    /// Per id 1 if it was found and 0 if it is missing, where the look-up says so.
    pub mask: Option<&'a [u8]>,
}

/// How much was compared, all of it equal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifiedRows {
    /// Rows, those of missing ids included.
    pub rows: u64,
    /// Missing ids among them.
    pub missing: u64,
}

/// The first difference between an answer and the truth.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowMismatch {
    /// The answer has no room for all rows or mask bytes.
    #[error("the answer has {got} bytes of {what}, but {need} are needed for {ids} ids")]
    Short {
        /// Rows or mask.
        what: &'static str,
        /// Bytes needed.
        need: usize,
        /// Bytes there.
        got: usize,
        /// Number of ids.
        ids: usize,
    },
    /// A row differs.
    #[error(
        "row {position} (id {id}{}): element {element} is {got} and should be {want} (bytes in memory order)",
        if *.missing { ", missing: the default row" } else { "" }
    )]
    Row {
        /// Position in the batch.
        position: usize,
        /// The id.
        id: i64,
        /// Whether the table has no such id, so that the default row was due.
        missing: bool,
        /// The first element that differs.
        element: usize,
        /// The element's bytes as they should be, hexadecimal.
        want: String,
        /// The element's bytes as they are, hexadecimal.
        got: String,
    },
    /// A mask byte differs.
    #[error("mask {position} (id {id}) is {got} and should be {want}")]
    Mask {
        /// Position in the batch.
        position: usize,
        /// The id.
        id: i64,
        /// What it should be.
        want: u8,
        /// What it is.
        got: u8,
    },
}

/// Compares every row of `answer`, bit for bit, and every mask byte with what `content` has for `ids`. Negative ids and
/// those past the last row are missing.
pub fn verify(content: &impl TableContent, ids: &[i64], answer: RowsAnswer<'_>) -> Result<VerifiedRows, RowMismatch> {
    let row_bytes = content.row_bytes();
    let short = |what, need, got| RowMismatch::Short { what, need, got, ids: ids.len() };
    let need = match ids.len() {
        0 => 0,
        n => (n - 1).saturating_mul(answer.stride).saturating_add(row_bytes),
    };
    if answer.rows.len() < need {
        return Err(short("rows", need, answer.rows.len()));
    }
    if let Some(mask) = answer.mask
        && mask.len() < ids.len()
    {
        return Err(short("mask", ids.len(), mask.len()));
    }
    let mut row = vec![0; row_bytes];
    let mut default = vec![0; row_bytes];
    content.fill_default(&mut default);
    let mut verified = VerifiedRows::default();
    for (position, &id) in ids.iter().enumerate() {
        let found = u64::try_from(id).ok().filter(|&id| id < content.rows());
        let want = match found {
            Some(id) => {
                content.fill(id, &mut row);
                &row
            }
            None => &default,
        };
        let got = &answer.rows[position * answer.stride..][..row_bytes];
        if got != want {
            return Err(difference(content.dtype(), position, id, found.is_none(), want, got));
        }
        if let Some(mask) = answer.mask {
            let want = u8::from(found.is_some());
            if mask[position] != want {
                return Err(RowMismatch::Mask { position, id, want, got: mask[position] });
            }
        }
        verified.rows += 1;
        verified.missing += u64::from(found.is_none());
    }
    Ok(verified)
}

#[cold]
fn difference(dtype: DType, position: usize, id: i64, missing: bool, want: &[u8], got: &[u8]) -> RowMismatch {
    let size = dtype.size() as usize;
    let element = want.iter().zip(got).position(|(want, got)| want != got).unwrap_or(0) / size;
    let hex =
        |row: &[u8]| -> String { row.iter().skip(element * size).take(size).map(|b| format!("{b:02x}")).collect() };
    RowMismatch::Row { position, id, missing, element, want: hex(want), got: hex(got) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(content: &ContentOracle, ids: &[i64], stride: usize) -> (Vec<u8>, Vec<u8>) {
        let mut rows = vec![0xee; ids.len() * stride];
        for (row, &id) in rows.chunks_mut(stride).zip(ids) {
            let row = &mut row[..content.row_bytes()];
            if (0..content.rows() as i64).contains(&id) {
                content.fill(id as u64, row)
            } else {
                content.fill_default(row)
            }
        }
        (rows, ids.iter().map(|&id| u8::from((0..content.rows() as i64).contains(&id))).collect())
    }

    #[test]
    fn true_answers_pass_and_every_flipped_bit_is_found() {
        for (dtype, dim) in [(DType::F32, 5), (DType::F16, 7), (DType::BF16, 3), (DType::I8, 13), (DType::U8, 1)] {
            let content = ContentOracle::new(7, 3, 100, dim, dtype);
            let stride = content.row_bytes() + 6;
            let ids = [5, 99, 0, 5, -1, 100, i64::MAX, i64::MIN, 42];
            let (mut rows, mut mask) = answer(&content, &ids, stride);
            let check =
                |rows: &[u8], mask: &[u8]| verify(&content, &ids, RowsAnswer { rows, stride, mask: Some(mask) });
            assert_eq!(check(&rows, &mask), Ok(VerifiedRows { rows: 9, missing: 4 }));
            for bit in 0..rows.len() * 8 {
                let byte = bit / 8;
                let position = bit / 8 / stride;
                rows[byte] ^= 1 << (bit % 8);
                match check(&rows, &mask) {
                    Ok(_) => assert!(byte % stride >= content.row_bytes(), "{dtype}: byte {byte} was not compared"),
                    Err(RowMismatch::Row { position: at, element, missing, .. }) => {
                        assert_eq!((at, element), (position, byte % stride / dtype.size() as usize));
                        assert_eq!(missing, mask[position] == 0);
                    }
                    Err(other) => panic!("{other}"),
                }
                rows[byte] ^= 1 << (bit % 8);
            }
            for position in 0..ids.len() {
                mask[position] ^= 1;
                assert!(matches!(check(&rows, &mask), Err(RowMismatch::Mask { position: at, .. }) if at == position));
                mask[position] ^= 3;
                assert!(matches!(check(&rows, &mask), Err(RowMismatch::Mask { .. })), "a mask is strictly 0 or 1");
                mask[position] ^= 2;
            }
        }
    }

    #[test]
    fn short_answers_are_refused() {
        let content = ContentOracle::new(0, 0, 10, 4, DType::F32);
        let short = |rows: &[u8], mask| verify(&content, &[1, 2], RowsAnswer { rows, stride: 16, mask }).unwrap_err();
        assert!(matches!(short(&[0; 31], None), RowMismatch::Short { what: "rows", need: 32, got: 31, ids: 2 }));
        assert!(matches!(short(&[0; 32], Some(&[1])), RowMismatch::Short { what: "mask", .. }));
        assert_eq!(
            verify(&content, &[], RowsAnswer { rows: &[], stride: 16, mask: None }),
            Ok(VerifiedRows::default())
        );
    }

    #[test]
    fn a_mismatch_names_id_element_and_bytes() {
        let content = ContentOracle::new(1, 0, 10, 4, DType::F32);
        let (mut rows, _) = answer(&content, &[3], 16);
        let want = rows[8..12].to_vec();
        rows[8..12].copy_from_slice(&[1, 2, 3, 4]);
        let text = verify(&content, &[3], RowsAnswer { rows: &rows, stride: 16, mask: None }).unwrap_err().to_string();
        let hex: String = want.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(text, format!("row 0 (id 3): element 2 is 01020304 and should be {hex} (bytes in memory order)"));
    }

    #[test]
    fn rows_depend_on_seed_table_and_id_and_are_finite() {
        let mut seen = std::collections::HashSet::new();
        for (seed, table) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let content = ContentOracle::new(seed, table, 1000, 2, DType::F32);
            for id in 0..1000 {
                let mut row = [0; 8];
                content.fill(id, &mut row);
                assert!(seen.insert(row), "seed {seed}, table {table}, id {id}: a row came twice");
                for element in row.as_chunks::<4>().0 {
                    let value = f32::from_le_bytes(*element);
                    assert!((0.5..1.0).contains(&value.abs()), "{value}");
                }
            }
        }
    }
}
