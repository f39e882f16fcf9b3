//! Warprow's host executor in the race.

use std::cell::{Cell, RefCell};

use warprow_lookup::{Batch, LookupReport, Output, Slot};
use warprow_soft_controller::{Fault, Rule, RuleId, SoftController};
use warprow_spec::NvmOpcode;

use super::replay::Contender;
use super::workload::TABLE;
use crate::failure::Failure;
use crate::rows::RowBuffer;
use crate::store_failure::of_lookup;
use crate::tally;

/// The threads that Warprow keeps busy.
pub(crate) const THREADS: &str = "1, and 1 that is the drive";
/// Which read command after the warm-up goes wrong, if one is to.
pub(crate) const STRUCK: u64 = 100;

/// Warprow in the race.
pub(crate) struct Warprow<'a> {
    pub slot: Slot,
    pub width: usize,
    pub mask: Vec<u8>,
    pub total: &'a RefCell<LookupReport>,
    /// The drive, if it is to go wrong, and the rule by which it does.
    pub faulty: Option<(&'a SoftController, &'a Cell<Option<RuleId>>)>,
}

impl Contender for Warprow<'_> {
    fn answer(&mut self, ids: &[i64], rows: &mut RowBuffer) -> Result<(), Failure> {
        let mut output = Output::new(rows.rows(), self.width).with_mask(&mut self.mask[..ids.len()]);
        match self.slot.lookup(&Batch::new(ids, ids.len()), &mut output) {
            Ok(report) => {
                tally::add(&mut self.total.borrow_mut(), &report);
                Ok(())
            }
            Err(error) => Err(of_lookup(&error, TABLE)),
        }
    }

    fn warmed_up(&mut self) {
        self.total.take();
        if let Some((drive, rule)) = self.faulty {
            rule.set(Some(drive.faults().inject(Rule::new(Fault::Corrupt).io(NvmOpcode::READ).nth(STRUCK))));
        }
    }

    fn mask(&self) -> Option<&[u8]> {
        Some(&self.mask)
    }
}
