//! Which rows on drives share a read command that a GPU sends.

use std::sync::Arc;

use warprow_gpu_queues::MAX_LANDING_BYTES;
use warprow_gpu_queues::abi::ReadWindow;

use crate::attached::Attached;
use warprow_lookup::stage::MergeRule;
use warprow_store::view::MemberDrive;

/// Bytes of a queue's landing area, at most, where commands for several LBAs take more than those for one.
const LANDING: u32 = 16 << 20;

/// The windows of drives, by member, of a plan whose rows have `row_lbas` LBAs or more, and of queues with so many
/// commands in flight. They are part of a queue as long as it lives: graphs that were captured do not meet others.
pub(crate) fn windows(attached: &Attached, row_lbas: u32, commands: u32) -> Vec<ReadWindow> {
    let members = attached.store.drives();
    let merge_rules = attached.options.merging.merge_rules(&attached.curves, members);
    let bytes = (LANDING / commands.max(1)).min(MAX_LANDING_BYTES);
    let window = |(member, joining): (&Option<Arc<MemberDrive>>, &MergeRule)| {
        let (shift, gap) = joining.window(row_lbas, bytes / member.as_ref()?.namespace().lba_bytes());
        Some(ReadWindow { shift, gap })
    };
    members.iter().zip(&merge_rules).filter_map(window).collect()
}
