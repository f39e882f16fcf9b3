//! Scales that lie in memory, of rows that lie on drives.

use cudarc::driver::sys::CUdeviceptr;
use warprow_layout::{DType, Table};
use warprow_lookup::MissingPolicy;
use warprow_store::StoreError;

use crate::error::GpuError;
use crate::launch::check_address;
use crate::table::GpuTable;
use crate::view::View;

/// Elements of a row that share a scale.
const BLOCK: u32 = 32;

/// The scales of a table's rows in memory of the caller's, where the table itself has rows of codes alone
/// (`scales=` in the address of an attached checkpoint). Look-ups read the codes from drives, and give what they would
/// give of a table of type `mxfp8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidentScales {
    /// The table, of type `f8e4m3`, whose rows have a multiple of 32 elements.
    pub table: String,
    /// Where they begin, in GPU memory or in host memory that CUDA has pinned: E8M0 scales of blocks of 32 elements,
    /// dim / 32 bytes for each row, by id.
    pub address: CUdeviceptr,
    /// How many bytes there are: rows · dim / 32.
    pub bytes: u64,
}

impl ResidentScales {
    /// The table as look-ups see it: its rows have their scales behind them.
    pub(crate) fn scaled(table: &Table) -> Table {
        Table { dtype: DType::Mxfp8, ..table.clone() }
    }

    /// Bytes of the scales of a row.
    pub(crate) fn bytes_of_row(table: &Table) -> u32 {
        table.dim / BLOCK
    }

    /// Whether a plan on `view` can use these scales. The GPU's context is current.
    pub(crate) fn check(&self, view: &View) -> Result<(), GpuError> {
        let known = || view.tables.iter().map(|table| table.located.table().name.clone()).collect();
        let found = view.tables.iter().find(|table| table.located.table().name == self.table);
        let found = found.ok_or_else(|| StoreError::NoSuchTable { table: self.table.clone(), known: known() })?;
        self.check_table(found)?;
        if view.follows || view.updated {
            return self.refuse("rows may be replaced or updated: attach without adopting, and without overlay_bytes");
        }
        let needed = found.located.table().rows * u64::from(Self::bytes_of_row(found.located.table()));
        if self.bytes != needed {
            let why = format!("{} bytes of scales of table {:?}, whose rows have {needed}", self.bytes, self.table);
            return Err(GpuError::Invalid { what: "the scales", why });
        }
        check_address("the scales", self.address, needed, 1, needed == 0)
    }

    fn check_table(&self, found: &GpuTable) -> Result<(), GpuError> {
        let table = found.located.table();
        if table.dtype != DType::F8E4M3 || !table.dim.is_multiple_of(BLOCK) {
            let (rows, what) = (format!("rows of {} elements of type {}", table.dim, table.dtype), "f8e4m3");
            return self
                .refuse(&format!("it has {rows}: scales in memory are for multiples of {BLOCK} of type {what}"));
        }
        if found.ranks.is_some() || found.keys.is_some() {
            return self
                .refuse("its rows are not in the order of ids: load it in that order, or attach the file itself");
        }
        if found.hbm_rows > 0 || found.dram_rows() > 0 {
            return self.refuse(
                "rows of it lie in GPU memory or DRAM, without scales: attach with hbm_bytes and dram_bytes of 0",
            );
        }
        Ok(())
    }

    /// Whether ids that the table lacks can have the rows that a plan wants.
    pub(crate) fn check_missing(&self, missing: MissingPolicy) -> Result<(), GpuError> {
        match missing {
            MissingPolicy::Default => {
                self.refuse("its default row has no scales: choose another policy for missing ids")
            }
            _ => Ok(()),
        }
    }

    fn refuse(&self, why: &str) -> Result<(), GpuError> {
        Err(GpuError::Unsupported(format!("table {:?} cannot have scales in memory: {why}", self.table)))
    }
}
