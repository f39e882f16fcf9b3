//! Rows of any elements, and what they are as f32.

use warprow_layout::{DType, RowSource, float8};
use warprow_workload::{ContentOracle, TableContent};

/// A table of random rows that all mean finite numbers.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    dtype: DType,
    row_bytes: usize,
    elements: ContentOracle,
    /// Scale and bias, of elements that have them.
    scales: Option<ContentOracle>,
    /// What each code of 8 bits or 16 means.
    values: Vec<f32>,
}

impl Rows {
    /// `None` where no row has so many elements, and for types of which this makes no rows.
    pub(super) fn new(seed: u64, rows: u64, dim: u32, dtype: DType) -> Option<Self> {
        let row_bytes = dtype.row_bytes(dim)? as usize;
        let (elements, scales) = match dtype {
            DType::Q8 => (ContentOracle::new(seed, 0, rows, dim, DType::U8), Some(DType::F32)),
            DType::Q4 => (ContentOracle::new(seed, 0, rows, dim / 2, DType::U8), Some(DType::F16)),
            _ => (ContentOracle::new(seed, 0, rows, dim, dtype), None),
        };
        let scales = scales.map(|dtype| ContentOracle::new(seed, 1, rows, 2, dtype));
        let values = match dtype {
            DType::F16 | DType::Q4 => (0..=u16::MAX).map(f16_value).collect(),
            DType::BF16 => (0..=u16::MAX).map(|code| f32::from_bits(u32::from(code) << 16)).collect(),
            DType::F8E4M3 | DType::F8E5M2 => float8::values_of(dtype).map_or_else(Vec::new, |values| values.to_vec()),
            DType::I8 => (0..=u8::MAX).map(|code| f32::from(code.cast_signed())).collect(),
            DType::F32 | DType::U8 | DType::Q8 => Vec::new(),
            DType::Mxfp8 | DType::F8E4M3S | DType::Nvfp4 => return None,
        };
        Some(Self { dtype, row_bytes, elements, scales, values })
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Writes the row of an id as it is stored.
    pub(super) fn fill(&self, id: u64, row: &mut [u8]) {
        let (elements, behind) = row.split_at_mut(self.elements.row_bytes().min(row.len()));
        self.elements.fill(id, elements);
        if let Some(scales) = &self.scales {
            scales.fill(id, behind);
        }
    }

    /// The numbers that a row means.
    pub(super) fn decode(&self, row: &[u8], out: &mut [f32]) {
        let halves = || row.as_chunks::<2>().0.iter().map(|bytes| usize::from(u16::from_le_bytes(*bytes)));
        let words = |from: usize| row[from..].as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let places = out.len();
        match self.dtype {
            DType::F32 => out.iter_mut().zip(words(0)).for_each(|(out, word)| *out = word),
            DType::F16 | DType::BF16 => out.iter_mut().zip(halves()).for_each(|(out, code)| *out = self.values[code]),
            DType::I8 | DType::F8E4M3 | DType::F8E5M2 => {
                out.iter_mut().zip(row).for_each(|(out, &code)| *out = self.values[usize::from(code)]);
            }
            DType::U8 => out.iter_mut().zip(row).for_each(|(out, &code)| *out = f32::from(code)),
            DType::Q8 => {
                let mut by = words(places);
                let scale = by.next().unwrap_or(0.0);
                let bias = by.next().unwrap_or(0.0);
                out.iter_mut().zip(row).for_each(|(out, &code)| *out = f32::from(code) * scale + bias);
            }
            DType::Q4 => {
                let behind = row[places / 2..].as_chunks::<2>().0;
                let mut by = behind.iter().map(|bytes| self.values[usize::from(u16::from_le_bytes(*bytes))]);
                let scale = by.next().unwrap_or(0.0);
                let bias = by.next().unwrap_or(0.0);
                for (pair, &code) in out.as_chunks_mut::<2>().0.iter_mut().zip(row) {
                    *pair = [code & 15, code >> 4].map(|code| f32::from(code) * scale + bias);
                }
            }
            // There are no such rows.
            DType::Mxfp8 | DType::F8E4M3S | DType::Nvfp4 => {}
        }
    }
}

fn f16_value(code: u16) -> f32 {
    let exponent = i32::from(code >> 10 & 31);
    let mantissa = f32::from(code & 1023);
    let magnitude = match exponent {
        0 => mantissa * 2f32.powi(-24),
        31 if mantissa == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + mantissa) * 2f32.powi(exponent - 25),
    };
    if code >> 15 == 1 { -magnitude } else { magnitude }
}

impl RowSource for Rows {
    fn read(&self, first: u64, row_bytes: usize, rows: &mut [u8]) -> std::io::Result<()> {
        (first..).zip(rows.chunks_exact_mut(row_bytes.max(1))).for_each(|(id, row)| self.fill(id, row));
        Ok(())
    }

    fn is_computed(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use warprow_layout::TableSpec;
    use warprow_lookup::{Feature, HostOptions, Ids, Output, PlanOptions};
    use zerocopy::IntoBytes;

    use super::*;
    use crate::fixtures::Fixture;

    /// What is decoded here is what the host executor makes of the same rows, which shares no code with it.
    #[test]
    fn every_type_is_decoded_as_the_host_does() {
        for dtype in DType::ALL.into_iter().filter(|dtype| dtype.is_made() || !dtype.is_scaled()) {
            for dim in [2u32, 6, 128] {
                let Some(rows) = Rows::new(7, 300, dim, dtype) else { panic!("{dtype}: {dim}") };
                let spec = TableSpec::new("t", 300, dim, dtype);
                let (store, _drives) = Fixture::default().load(&[(spec, &rows)], 1 << 28, None).unwrap();
                let mut row = vec![0; rows.row_bytes()];
                store
                    .scan("t", 0..300, &mut |rank, stored| {
                        rows.fill(rank, &mut row);
                        assert!(stored == row, "{dtype}: row {rank}");
                        ControlFlow::Continue(())
                    })
                    .unwrap();
                let host = warprow_lookup::HostExecutor::attach(&store, HostOptions::default()).unwrap();
                let plan = host.plan(&[Feature::new("f", "t")], PlanOptions::default().with_max(1, 300)).unwrap();
                let mut slot = plan.slot().unwrap();
                let ids: Vec<i64> = (0..300).rev().collect();
                let mut out = vec![f32::NAN; 300 * dim as usize];
                let batch = warprow_lookup::Batch::new(Ids::I64(&ids), 1);
                slot.lookup(&batch, &mut Output::new(warprow_lookup::OutputRows::F32(&mut out), dim as usize)).unwrap();
                let mut wanted = vec![0f32; dim as usize];
                for (&id, got) in ids.iter().zip(out.chunks_exact(dim as usize)) {
                    rows.fill(id as u64, &mut row);
                    rows.decode(&row, &mut wanted);
                    assert_eq!(got.as_bytes(), wanted.as_bytes(), "{dtype}, {dim} elements: row {id}");
                    assert!(wanted.iter().all(|value| value.is_finite()), "{dtype}: row {id}");
                }
            }
        }
        assert!(Rows::new(7, 300, 3, DType::Q4).is_none(), "halves of bytes come in pairs");
    }
}
