//! Lack of room on the drives: how much is needed, and how much is there.

use warprow_layout::VolumeError;
use warprow_store::StoreError;
use warprow_workload::units;

use super::remedies::COMPACT;
use crate::failure::Failure;

/// Says of a lack of room what there is and what is needed; any other failure stays as it is.
pub(super) fn with_room(failure: Failure, error: &StoreError) -> Failure {
    match *error {
        StoreError::Volume(VolumeError::NoSpace { needed, free, kept, pinned, chunk_size }) => {
            let what = format!("{}{}", needed_and_free(needed, free, chunk_size), apart(free, kept, pinned));
            let failure = Failure { message: what, ..failure };
            if kept > 0 && needed <= free { failure.remedy(COMPACT) } else { failure }
        }
        StoreError::Volume(VolumeError::NoLogSpace { generation, needed, free, kept, pinned, chunk_size }) => {
            let what = format!(
                "updates of generation {generation} need {} of {} more for their log, {} are free{}",
                units::plural(needed, "chunk"),
                units::bytes(chunk_size),
                units::count(free),
                apart(free, kept, pinned)
            );
            let failure = Failure { message: what, ..failure };
            let failure = failure.detail("generation", generation).detail("needed", needed).detail("free", free);
            failure.detail("kept", kept).detail("pinned", pinned)
        }
        StoreError::NoRoomToCreate { generation, needed, free, chunk_size } => {
            let what = format!(
                "with these keys created or removed, a compaction of generation {generation} would need {} of {}, and {} are free; nothing \
                 was changed",
                units::plural(needed, "chunk"),
                units::bytes(chunk_size),
                units::count(free)
            );
            Failure { message: what, ..failure }
        }
        StoreError::NoRoomToGrow { generation, needed, free, chunk_size } => {
            let room = needed_and_free(needed, free, chunk_size);
            let what = format!(
                "created and removed keys need room for all tables of generation {generation} twice, until a compaction has ended: {room}"
            );
            Failure { message: what, ..failure }
        }
        StoreError::Volume(VolumeError::CatalogueFull { needed, capacity }) => {
            let needed = units::bytes(needed);
            let capacity = units::bytes(capacity);
            let what = format!("the catalogue would have {needed}, its place holds {capacity}");
            Failure { message: what, ..failure }
        }
        _ => failure,
    }
}

fn needed_and_free(needed: u64, free: u64, chunk_size: u64) -> String {
    let chunks = units::plural(needed, "chunk");
    let verb = |count: u64| if count == 1 { "is" } else { "are" };
    format!(
        "{chunks} of {} {} needed, {} {} free",
        units::bytes(chunk_size),
        verb(needed),
        units::count(free),
        verb(free)
    )
}

/// Which free chunks are not to be had, and which will be free.
fn apart(free: u64, kept: u64, pinned: u64) -> String {
    let kept = match kept.min(free) {
        0 => String::new(),
        kept => format!(", {} of them kept for the compaction of updated rows", units::count(kept)),
    };
    let pinned =
        if pinned > 0 { format!(" ({} more are still being read)", units::count(pinned)) } else { String::new() };
    kept + &pinned
}
