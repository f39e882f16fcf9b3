//! What is measured of elements and checksums.

use anyhow::ensure;
use warprow_layout::DType;
use warprow_workload::PowerLaw;

/// Elements that are compared, f32 first.
pub const ELEMENTS: [DType; 7] =
    [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2, DType::Q8, DType::Q4];

/// What is measured.
#[derive(Clone, Debug)]
pub struct ElementSetup {
    /// Rows of each table.
    pub rows: u64,
    /// Elements of a row.
    pub dim: u32,
    /// Bags of a look-up.
    pub bags: u64,
    /// Ids of a bag.
    pub hot: u64,
    /// Exponent of the power law of ids; 0: uniform.
    pub alpha: f64,
    /// Elements, each in a table of its own.
    pub elements: Vec<DType>,
    /// Repetitions, each with fresh ids.
    pub runs: u32,
    /// Of contents and ids.
    pub seed: u64,
}

impl ElementSetup {
    /// Refuses what cannot be measured; no GPU is needed for that.
    pub fn check(&self) -> anyhow::Result<()> {
        ensure!((1..=1 << 32).contains(&self.rows), "{} rows: 1 to 2^32 are possible", self.rows);
        ensure!((1..=2048).contains(&self.dim), "rows of {} elements: 1 to 2048 are possible", self.dim);
        let odd = self.elements.iter().find(|dtype| dtype.row_bytes(self.dim).is_none());
        ensure!(odd.is_none(), "rows of {} elements of q4: they come in pairs", self.dim);
        let ids = self.bags.checked_mul(self.hot).filter(|ids| (1..=1 << 24).contains(ids));
        ensure!(ids.is_some(), "{} bags of {} ids: 1 to 2^24 ids are possible", self.bags, self.hot);
        ensure!(PowerLaw::new(self.rows, self.alpha).is_some(), "no power law has the exponent {}", self.alpha);
        ensure!(self.runs > 0, "no repetitions: nothing is left to measure");
        Ok(())
    }

    pub(super) fn ids(&self) -> u64 {
        self.bags * self.hot
    }
}

/// What checksums are measured on.
#[derive(Clone, Debug)]
pub struct ChecksumSetup {
    /// Bytes of the rows of a table, all on drives.
    pub size: u64,
    /// Bytes of a row, of f32, in turn.
    pub row_bytes: Vec<u32>,
    /// Numbers of ids.
    pub counts: Vec<u64>,
    /// Emulated drives in memory, each with a thread that answers as fast as it can.
    pub drives: u32,
    /// Repetitions, each with fresh ids.
    pub runs: u32,
    /// Of contents and ids.
    pub seed: u64,
}

impl ChecksumSetup {
    /// Refuses what cannot be measured; no GPU is needed for that.
    pub fn check(&self) -> anyhow::Result<()> {
        for &row in &self.row_bytes {
            ensure!(
                row.is_multiple_of(4) && (4..=8192).contains(&row),
                "rows of {row} bytes: multiples of 4 up to 8192"
            );
            let most = (self.size / u64::from(row)).min(1 << 24);
            let bad = self.counts.iter().find(|count| !(1..=most).contains(count));
            ensure!(bad.is_none(), "{} ids of rows of {row} bytes: 1 to {most} are possible", bad.unwrap_or(&0));
        }
        ensure!((1..=64).contains(&self.drives), "{} drives: 1 to 64 are possible", self.drives);
        ensure!(
            !self.row_bytes.is_empty() && !self.counts.is_empty(),
            "no rows, or no ids: nothing is left to measure"
        );
        ensure!(self.runs > 0, "no repetitions: nothing is left to measure");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_setups_are_refused() {
        let good = ElementSetup {
            rows: 1000,
            dim: 128,
            bags: 8,
            hot: 32,
            alpha: 0.0,
            elements: ELEMENTS.to_vec(),
            runs: 3,
            seed: 1,
        };
        good.check().unwrap();
        for (bad, why) in [
            (ElementSetup { rows: 0, ..good.clone() }, "0 rows"),
            (ElementSetup { dim: 127, ..good.clone() }, "pairs"),
            (ElementSetup { dim: 0, ..good.clone() }, "0 elements"),
            (ElementSetup { hot: 0, ..good.clone() }, "0 ids"),
            (ElementSetup { alpha: -1.0, ..good.clone() }, "exponent"),
            (ElementSetup { runs: 0, ..good.clone() }, "repetitions"),
        ] {
            assert!(bad.check().unwrap_err().to_string().contains(why), "{bad:?}");
        }
        ElementSetup { dim: 127, elements: vec![DType::Q8], ..good }.check().unwrap();
        let good =
            ChecksumSetup { size: 1 << 20, row_bytes: vec![128], counts: vec![8192], drives: 1, runs: 1, seed: 1 };
        good.check().unwrap();
        for (bad, why) in [
            (ChecksumSetup { row_bytes: vec![130], ..good.clone() }, "130"),
            (ChecksumSetup { counts: vec![8193], ..good.clone() }, "8193 ids"),
            (ChecksumSetup { counts: vec![], ..good.clone() }, "no ids"),
            (ChecksumSetup { drives: 0, ..good.clone() }, "0 drives"),
        ] {
            assert!(bad.check().unwrap_err().to_string().contains(why), "{bad:?}");
        }
    }
}
