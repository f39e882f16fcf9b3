//! Which rows on drives share a read command: what the caller asks for, and what that is for each drive.

use std::sync::Arc;

use crate::stage::MergeRule;
use warprow_store::view::MemberDrive;
use warprow_store::{ReadCurve, StoreError};

/// Which rows on drives share a read command. Rows of the same LBA always do. No command is longer than MDTS, or 1 MiB;
/// of a GPU, none for several LBAs leaves an aligned window of the drive, of 64 KiB at most (`docs/merging.md`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReadMerging {
    /// Rows of the same LBA, and no others.
    Separate,
    /// Rows of neighbouring LBAs as well: nothing is read in vain but the rest of an LBA.
    #[default]
    Neighbours,
    /// What one command reads more cheaply than two, with the LBAs between them, by each drive's [`ReadCurve`]. It is
    /// measured when the executor is attached, on LBAs that hold rows: 50 ms for each drive, one after another. A drive
    /// that holds too little, or does not answer, has no curve: there `Neighbours` applies.
    Measured,
    /// What one command reads more cheaply than two, by curves that the caller gives: one for all drives, or one for
    /// each drive, in the order of members.
    Curves(Vec<ReadCurve>),
}

impl ReadMerging {
    /// The read curves that the caller gave, one for each of `members` drives; `None`: the curve is not known yet, or
    /// not needed.
    pub fn given(&self, members: usize) -> Result<Vec<Option<ReadCurve>>, StoreError> {
        match self {
            Self::Curves(curves) => match &curves[..] {
                [one] => Ok(vec![Some(one.clone()); members]),
                many if many.len() == members => Ok(many.iter().cloned().map(Some).collect()),
                many => Err(StoreError::ExecutorOptions {
                    reason: format!(
                        "{} read curves for {members} drives: give one for all, or one for each",
                        many.len()
                    ),
                }),
            },
            Self::Separate | Self::Neighbours | Self::Measured => Ok(vec![None; members]),
        }
    }

    /// The rule by which each member's reads are merged, in the order of members.
    pub fn merge_rules(&self, curves: &[Option<ReadCurve>], members: &[Option<Arc<MemberDrive>>]) -> Box<[MergeRule]> {
        let curves = curves.iter().map(Option::as_ref).chain(std::iter::repeat(None));
        let joining = |(member, curve): (&Option<Arc<MemberDrive>>, Option<&ReadCurve>)| {
            let Some(member) = member else { return MergeRule::separate() };
            let lba_bytes = member.namespace().lba_bytes();
            let most = member.transfer_limit() / u64::from(lba_bytes);
            let max_lbas = u32::try_from(most).unwrap_or(u32::MAX).min(1 << 16);
            match (self, curve) {
                (Self::Separate, _) => MergeRule::separate(),
                (Self::Neighbours, _) | (_, None) => MergeRule::neighbours(max_lbas),
                (_, Some(curve)) => MergeRule::by_curve(curve, lba_bytes, max_lbas),
            }
        };
        members.iter().zip(curves).map(joining).collect()
    }
}
