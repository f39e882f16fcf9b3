//! How look-ups run on the host.

use std::time::Duration;

use crate::merging::Merging;

/// How look-ups run on the host.
///
/// ```
/// # use std::ops::ControlFlow;
/// # use warprow_lookup::*;
/// # use warprow_store::*;
/// # let device = Device::open(&"emulated:example?backing=ram&size=64M".parse()?, Create::IfMissing)?;
/// # let store = FormatPlan::new(&[device.clone()], FormatSettings::default())?.run(&Consent::None, &mut |_, _| {})?;
/// # let rows: Vec<u8> = (0..1000 * 4).flat_map(|i| (i as f32).to_le_bytes()).collect();
/// # let (spec, source) = (TableSpec::new("user", 1000, 4, DType::F32), &rows[..]);
/// # store.load("m", &[TableLoad::new(&spec, &source)], &LoadOptions::default(), &mut |_| ControlFlow::Continue(()))?;
/// // Memory for 10 rows, every row from drives checked, and rows of neighbouring LBAs read by one command.
/// let options = HostOptions::default().with_dram_bytes(160).with_merging(Merging::Neighbours);
/// let host = Host::attach(&store, options)?;
/// let plan = host.plan(&[Feature::new("f", "user")], PlanOptions::default())?;
/// let ids: Vec<i64> = (0..100).collect();
/// let mut rows = vec![0.0f32; 400];
/// let report = plan.slot()?.lookup(&Batch::new(&ids, 100), &mut Output::new(Rows::F32(&mut rows), 4))?;
/// assert!(rows.iter().enumerate().all(|(at, &x)| x == at as f32));
/// assert_eq!((report.rows_dram, report.rows_ssd, report.commands), (10, 90, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HostOptions {
    /// Bytes of rows to keep in DRAM. Tables share it: first each gets what its `hot_rows` ask for, then what is left goes
    /// by size. Always the hottest ranks of a table.
    pub dram_bytes: u64,
    /// Queue pairs that a slot keeps busy on every drive. One reaches the bandwidth of a drive; a controller that serves
    /// each queue by a thread or a core of its own may gain from more.
    pub workers: u32,
    /// Commands in flight on each queue pair, at most.
    pub depth: u32,
    /// The longest wait for a read; `None`: as the store was opened.
    pub timeout: Option<Duration>,
    /// Check every row that is read from a drive against its checksum, where the table has them: four bytes of memory a row,
    /// and a CRC32C for each read.
    pub check_rows: bool,
    /// Compare every sparse id with the stored one, which takes eight bytes of memory a row: a foreign id is then missing for certain.
    /// Else one in 2⁸, 2¹⁶ or 2³² gets some row, by its table's fingerprints. A table that does not store its ids is refused.
    pub check_keys: bool,
    /// Which rows on drives share a read command.
    pub merging: Merging,
}

impl Default for HostOptions {
    /// No DRAM tier, one worker, 1,023 commands in flight, the store's time-out, no checks, neighbouring
    /// rows in one command.
    fn default() -> Self {
        let merging = Merging::default();
        Self { dram_bytes: 0, workers: 1, depth: 1023, timeout: None, check_rows: false, check_keys: false, merging }
    }
}

impl HostOptions {
    /// With a DRAM tier of that size.
    #[must_use]
    pub fn with_dram_bytes(self, dram_bytes: u64) -> Self {
        Self { dram_bytes, ..self }
    }

    /// With that many queue pairs per slot and drive.
    #[must_use]
    pub fn with_workers(self, workers: u32) -> Self {
        Self { workers, ..self }
    }

    /// With that many commands in flight.
    #[must_use]
    pub fn with_depth(self, depth: u32) -> Self {
        Self { depth, ..self }
    }

    /// With that limit for a read.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// With every sparse id compared with the stored one.
    #[must_use]
    pub fn with_checked_keys(self) -> Self {
        Self { check_keys: true, ..self }
    }

    /// With rows sharing commands like that.
    #[must_use]
    pub fn with_merging(self, merging: Merging) -> Self {
        Self { merging, ..self }
    }

    /// With every row checked.
    #[must_use]
    pub fn with_checked_rows(self) -> Self {
        Self { check_rows: true, ..self }
    }
}
