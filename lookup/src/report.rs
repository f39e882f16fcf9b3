//! What a look-up did.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::feature::MissingId;

/// A stage of a look-up, in their order; [`Report::stages`] is indexed by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Stage {
    /// Ids to unique keys and the inverse.
    Dedupe,
    /// Keys to ranks and tiers.
    Route,
    /// Rows on drives in order of address.
    Order,
    /// Addresses to commands.
    Merge,
    /// Submitting commands and waiting for them, while nothing else was there to do.
    Read,
    /// Rows to the output. It runs while the drives work.
    Expand,
}

impl Stage {
    /// All of them, in their order.
    pub const ALL: [Self; 6] = [Self::Dedupe, Self::Route, Self::Order, Self::Merge, Self::Read, Self::Expand];

    /// The lower-case name.
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
        /// `ids` = `padding` + `missing` + `failed` + `ids_dram` + `ids_ssd`; `unique` = `rows_dram` + `rows_ssd`;
        /// `commands` = `rows_ssd` - `merges`.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Report {
            $($(#[$doc])* pub $name: u64,)*
            /// The latest generation among those that were read.
            pub generation: u64,
            /// The first id that its table does not have, of features with [`Bounds::Report`](crate::Bounds::Report).
            pub first_missing: Option<MissingId>,
            /// Time in each stage, indexed by [`Stage`]. They do not overlap: what the drives do while rows are expanded costs
            /// nothing.
            pub stages: [Duration; 6],
        }

        /// Totals over all look-ups of a store.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Metrics {
            /// Look-ups that returned a report, in success or not.
            pub lookups: u64,
            /// Drives that serve nothing at this moment ([`Store::drive_states`](warprow_store::Store::drive_states)).
            pub drives_failed: u64,
            $($(#[$doc])* pub $name: u64,)*
            /// Time in each stage, indexed by [`Stage`].
            pub stages: [Duration; 6],
        }

        /// The totals as they grow.
        #[derive(Debug, Default)]
        pub(crate) struct Totals {
            lookups: AtomicU64,
            $($name: AtomicU64,)*
            nanos: [AtomicU64; 6],
        }

        impl Totals {
            pub(crate) fn add(&self, report: &Report) {
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

            pub(crate) fn snapshot(&self) -> Metrics {
                Metrics {
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
    /// Ids given.
    ids,
    /// Ids that were the padding id and were not read (unpooled padding is read, and counts as its tier), and missing ids of
    /// features that ignore them.
    padding,
    /// Ids that their table does not have, but for ignored ones.
    missing,
    /// Ids whose row could not be read.
    failed,
    /// Different rows among the ids.
    unique,
    /// Different rows that lay in DRAM.
    rows_dram,
    /// Different rows that had to be read from drives.
    rows_ssd,
    /// Ids served from DRAM.
    ids_dram,
    /// Ids served from drives.
    ids_ssd,
    /// Read commands, but for parts of failed ones.
    commands,
    /// Rows that needed no command of their own: in the same LBA as another, or [near](crate::Merging) it.
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
    /// Bytes of the rows among them.
    bytes_needed,
}
