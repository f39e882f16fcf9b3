//! What a look-up did.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::feature::MissingId;

/// A stage of a look-up on the host, as [`LookupReport::stages`] counts its time: `stages[Stage::Read as usize]`.
///
/// A look-up begins with `Route` for all ids, which splits them into rows in DRAM and rows on drives. The rows on
/// drives then go through `Dedupe`, the rest of `Route`, `Order` and `Merge`. After that the thread changes between
/// `Read` and `Expand`, and counts the different rows in DRAM (under `Dedupe`), while drives work. Each moment of the
/// thread counts for one stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Stage {
    /// Finds the different rows among the ids on drives. The time for counting the different rows in DRAM is added to
    /// it.
    Dedupe,
    /// Finds where each row lies: first the rank and the tier of each id's row, and keys where rows are found by key;
    /// after `Dedupe`, the drive and the LBA of each different row on drives.
    Route,
    /// Sorts the rows on drives by address.
    Order,
    /// Makes read commands of addresses.
    Merge,
    /// Submits commands, and waits for them once nothing else is left to do.
    Read,
    /// Writes rows to the output, converted or pooled, while drives still read others.
    Expand,
}

impl Stage {
    /// All stages, in their order.
    pub const ALL: [Self; 6] = [Self::Dedupe, Self::Route, Self::Order, Self::Merge, Self::Read, Self::Expand];

    /// The name of the stage, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dedupe => "dedupe",
            Self::Route => "route",
            Self::Order => "order",
            Self::Merge => "merge",
            Self::Read => "read",
            Self::Expand => "expand",
        }
    }
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts and times of one look-up.
        ///
        /// `ids` = `padding` + `missing` + `failed` + `ids_dram` + `ids_cached` + `ids_ssd`; `unique` = `rows_dram` +
        /// `rows_cached` + `rows_ssd`; `commands` = `rows_ssd` - `merges`.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct LookupReport {
            $($(#[$doc])* pub $name: u64,)*
            /// The latest generation among those that were read.
            pub generation: u64,
            /// The first id that its table does not have, of features with
            /// [`BoundsCheck::Report`](crate::BoundsCheck::Report).
            pub first_missing: Option<MissingId>,
            /// Time in each stage, indexed by [`Stage`]. The times do not overlap, and add up to the time of the
            /// look-up: while rows are expanded, the time that drives work is not counted again.
            pub stages: [Duration; 6],
        }

        /// Totals over all look-ups of one executor on the host and its clones.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct LookupMetrics {
            /// Look-ups that returned a report, whether they succeeded or not.
            pub lookups: u64,
            /// Drives that serve nothing at this moment ([`Store::drive_states`](warprow_store::Store::drive_states)).
            pub drives_failed: u64,
            $($(#[$doc])* pub $name: u64,)*
            /// Time in each stage, indexed by [`Stage`].
            pub stages: [Duration; 6],
        }

        /// The totals of a host executor, which each look-up adds to.
        #[derive(Debug, Default)]
        pub(crate) struct Totals {
            lookups: AtomicU64,
            $($name: AtomicU64,)*
            nanos: [AtomicU64; 6],
        }

        impl Totals {
            pub(crate) fn add(&self, report: &LookupReport) {
                let add = |total: &AtomicU64, value: u64| {
                    if value != 0 {
                        total.fetch_add(value, Ordering::Relaxed);
                    }
                };
                add(&self.lookups, 1);
                $(add(&self.$name, report.$name);)*
                for (total, time) in self.nanos.iter().zip(report.stages) {
                    add(total, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
                }
            }

            pub(crate) fn snapshot(&self) -> LookupMetrics {
                LookupMetrics {
                    lookups: self.lookups.load(Ordering::Relaxed),
                    drives_failed: 0,
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    stages: std::array::from_fn(|i| {
                        Duration::from_nanos(self.nanos.get(i).map_or(0, |nanos| nanos.load(Ordering::Relaxed)))
                    }),
                }
            }
        }
    };
}

counts! {
    /// Ids of the batch.
    ids,
    /// Padding ids that were not read, and missing ids of features with
    /// [`BoundsCheck::Ignore`](crate::BoundsCheck::Ignore). (An unpooled padding id that its table has is read, and
    /// counts in `ids_dram` or `ids_ssd`.)
    padding,
    /// Ids that their table does not have, except those of features with
    /// [`BoundsCheck::Ignore`](crate::BoundsCheck::Ignore).
    missing,
    /// Ids whose row could not be read.
    failed,
    /// Different rows among the ids.
    unique,
    /// Different rows that lay in DRAM.
    rows_dram,
    /// Different rows that were found in the cache ([`HostOptions::cache_bytes`](crate::HostOptions::cache_bytes)).
    rows_cached,
    /// Different rows that had to be read from drives.
    rows_ssd,
    /// Ids served from DRAM.
    ids_dram,
    /// Ids served from the cache.
    ids_cached,
    /// Ids served from drives.
    ids_ssd,
    /// Read commands. The parts in which failed commands were read again do not count.
    commands,
    /// Rows that needed no command of their own, because another row's command read them too
    /// ([`ReadMerging`](crate::ReadMerging)).
    merges,
    /// Commands that a drive failed for a bad block, and that were read again in parts.
    split,
    /// Different rows that drives wrote straight to the output ([`OutputBuffer`](crate::OutputBuffer)).
    landed,
    /// Stores to submission queue doorbells.
    sq_doorbells,
    /// Stores to completion queue doorbells.
    cq_doorbells,
    /// Bytes read from drives.
    bytes_read,
    /// Bytes of the rows that were to be read from drives, each row once: what `bytes_read` would be without the rest
    /// of LBAs and gaps.
    bytes_needed,
}
