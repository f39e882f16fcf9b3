//! Which rows on drives share a read command: what the caller asks for, and what that is for each drive.

use std::sync::Arc;

use crate::stage::Joining;
use warprow_store::view::MemberDrive;
use warprow_store::{ReadCurve, StoreError};

/// Which rows on drives share a read command. Rows of the same LBA always do. No command is longer than MDTS, or 1 MiB; of a GPU, none for several LBAs leaves an
/// aligned window of the drive, of 64 KiB at most (`docs/merging.md`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Merging {
    /// Rows of the same LBA, and no others.
    Separate,
    /// Those of neighbouring LBAs as well: nothing is read for nothing but the rest of an LBA.
    #[default]
    Neighbours,
    /// What one command reads more cheaply than two, with the LBAs between them, by each drive's [`ReadCurve`]. It is measured when the executor
    /// is attached, on LBAs that hold rows: 50 ms for each drive, one after another. Of a drive that holds too little, or does not answer,
    /// there is no curve: neighbours.
    Measured,
    /// The same by curves that are given: one for all drives, or one for each, in the order of members.
    Curves(Vec<ReadCurve>),
}

impl Merging {
    /// The curves that are given, one for each of so many members; `None`: they are not known yet, or not needed.
    pub fn given(&self, members: usize) -> Result<Vec<Option<ReadCurve>>, StoreError> {
        match self {
            Self::Curves(curves) => match &curves[..] {
                [one] => Ok(vec![Some(one.clone()); members]),
                many if many.len() == members => Ok(many.iter().cloned().map(Some).collect()),
                many => Err(StoreError::PlanOptions {
                    reason: format!(
                        "{} read curves for {members} drives: give one for all, or one for each",
                        many.len()
                    ),
                }),
            },
            Self::Separate | Self::Neighbours | Self::Measured => Ok(vec![None; members]),
        }
    }

    /// What that is for each member, in their order.
    pub fn joinings(&self, curves: &[Option<ReadCurve>], members: &[Option<Arc<MemberDrive>>]) -> Box<[Joining]> {
        let curves = curves.iter().map(Option::as_ref).chain(std::iter::repeat(None));
        let joining = |(member, curve): (&Option<Arc<MemberDrive>>, Option<&ReadCurve>)| {
            let Some(member) = member else { return Joining::separate() };
            let lba_bytes = member.namespace().lba_bytes();
            let most = member.transfer_limit() / u64::from(lba_bytes);
            let max_lbas = u32::try_from(most).unwrap_or(u32::MAX).min(1 << 16);
            match (self, curve) {
                (Self::Separate, _) => Joining::separate(),
                (Self::Neighbours, _) | (_, None) => Joining::neighbours(max_lbas),
                (_, Some(curve)) => Joining::by_curve(curve, lba_bytes, max_lbas),
            }
        };
        members.iter().zip(curves).map(joining).collect()
    }
}
