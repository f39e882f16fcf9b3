//! What the host hands to the kernels: `cuda/abi.h`, field by field. Addresses are device addresses. Types without a padding byte,
//! so that they are copied as bytes.

/// Tickets of a slot, but for those of captured launches.
pub const TICKETS: usize = 16;
/// Keys that share a word of the summary's bits: bases of keys are multiples of it.
pub const KEY_ALIGN: u64 = 1024;

/// Types of ids and offsets.
pub mod id {
    /// Signed, 32 bits.
    pub const I32: u32 = 0;
    /// Signed, 64 bits.
    pub const I64: u32 = 1;
    /// Unsigned, 32 bits.
    pub const U32: u32 = 2;
    /// Unsigned, 64 bits.
    pub const U64: u32 = 3;
}

/// Types of elements.
pub mod element {
    /// IEEE 754, 32 bits.
    pub const F32: u32 = 0;
    /// IEEE 754, 16 bits.
    pub const F16: u32 = 1;
    /// The upper half of an F32.
    pub const BF16: u32 = 2;
    /// Signed, 8 bits.
    pub const I8: u32 = 3;
    /// Unsigned, 8 bits.
    pub const U8: u32 = 4;
    /// A float of 8 bits, 4 of them exponent.
    pub const F8E4M3: u32 = 5;
    /// A float of 8 bits, 5 of them exponent.
    pub const F8E5M2: u32 = 6;
    /// Unsigned, 8 bits, with the row's scale and bias behind them, an F32 each.
    pub const Q8: u32 = 7;
    /// Unsigned, 4 bits, with the row's scale and bias behind them, an F16 each.
    pub const Q4: u32 = 8;
    /// A float of 8 bits, 4 of them exponent; a power of two for each 32 stands behind them.
    pub const MXFP8: u32 = 9;
    /// A float of 8 bits, 4 of them exponent, with the row's scale behind them, an F32.
    pub const F8E4M3S: u32 = 10;
    /// A float of 4 bits; a scale for each 16 stands behind them, an F8E4M3, then one for these, an F32.
    pub const NVFP4: u32 = 11;
}

/// How rows of a bag become one.
pub mod pooling {
    /// Rows are not pooled: each id has an output row.
    pub const NONE: u32 = 0;
    /// A bag becomes the sum of its rows.
    pub const SUM: u32 = 1;
    /// A bag becomes the mean of its rows.
    pub const MEAN: u32 = 2;
}

/// What an id stands for that its table does not have.
pub mod missing {
    /// The default row.
    pub const DEFAULT: u32 = 0;
    /// A row of zeros.
    pub const ZERO: u32 = 1;
    /// Nothing.
    pub const SKIP: u32 = 2;
}

/// What is told of ids that their table lacks.
pub mod bounds {
    /// The report says how many ids are missing.
    pub const COUNT: u32 = 0;
    /// The report says how many ids are missing, and which is the first.
    pub const REPORT: u32 = 1;
    /// Nothing: they count as padding.
    pub const IGNORE: u32 = 2;
    /// As [`REPORT`], and the launch fails.
    pub const ERROR: u32 = 3;
}

/// What the output has of rows that could not be read, as bits.
pub mod lost {
    /// NaN, in the place of zeros.
    pub const NAN: u32 = 1;
    /// A mask that is 1 for the ids of such rows, and 0 for all others.
    pub const MASK: u32 = 2;
}

/// Which ids a padding id is compared with.
pub mod padding {
    /// None.
    pub const NONE: u32 = 0;
    /// Padding ids of ids of any type.
    pub const ANY: u32 = 1;
    /// Signed ones: it is negative.
    pub const SIGNED: u32 = 2;
    /// Unsigned ones of 64 bits: it is beyond all signed ones.
    pub const U64: u32 = 3;
}

/// Tiers of a segment.
pub mod tier {
    /// Pinned memory.
    pub const DRAM: u32 = 1;
    /// Drives.
    pub const SSD: u32 = 2;
}

/// How a launch of many ids finds the different ones.
pub mod dedupe {
    /// A bit for each key there is.
    pub const BITMAP: u32 = 0;
    /// A hash table, and a sort of what is different.
    pub const HASH: u32 = 1;
    /// A sort of all.
    pub const RADIX: u32 = 2;
}

/// What reading from drives does without, as bits, so that its worth can be measured.
pub mod ablated {
    /// Rows of one LBA that share a command.
    pub const SHARED_COMMANDS: u32 = 1;
    /// One tail doorbell for all commands of a batch.
    pub const SHARED_DOORBELLS: u32 = 2;
}

/// What became of a launch.
pub mod outcome {
    /// The launch has not ended.
    pub const NONE: u32 = 0;
    /// The launch ran.
    pub const DONE: u32 = 1;
    /// The slot was in use when the launch began, and the launch did nothing.
    pub const BUSY: u32 = 2;
}

/// What was wrong with a batch, as bits.
pub mod flaw {
    /// More ids than planned: none was read.
    pub const TOO_MANY_IDS: u32 = 1;
    /// Offsets that do not ascend from 0 to the number of ids.
    pub const OFFSETS: u32 = 2;
    /// More bags than planned: none was read.
    pub const TOO_MANY_BAGS: u32 = 4;
}

macro_rules! plain {
    ($(#[$doc:meta])* $name:ident, $size:literal { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        const _: () = {
            // No padding: what is copied is all initialised.
            assert!(size_of::<$name>() == $size && $size == 0 $(+ size_of::<$type>())*);
        };

        impl $name {
            /// As bytes.
            pub fn as_bytes(&self) -> &[u8] {
                // SAFETY: a plain structure of integers without padding.
                unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), $size) }
            }
        }
    };
}

plain!(
    /// Where a table's rows lie.
    Table, 208 {
        /// Rows it has.
        rows: u64,
        /// Ranks below this are in GPU memory.
        hbm_rows: u64,
        /// Ranks below this, and not in GPU memory, are in DRAM.
        dram_end: u64,
        /// Key of rank `hbm_rows`.
        dram_key: u64,
        /// Key of rank `dram_end`.
        ssd_key: u64,
        /// Where rank 0 lies in GPU memory.
        hbm: u64,
        /// Where rank `hbm_rows` lies in pinned memory.
        dram: u64,
        /// The row of ids that the table lacks, in GPU memory.
        default_row: u64,
        /// id → rank; 0: ids are ranks.
        ranks: u64,
        /// Bytes of an entry of `ranks`: 4 or 8.
        rank_bytes: u32,
        /// See [`element`].
        element: u32,
        /// Elements of a row.
        dim: u32,
        /// Bytes of a row.
        row_bytes: u32,
        /// Bytes from a row to the next in memory, a multiple of 16.
        row_stride: u32,
        /// LBAs to read for a row.
        row_lbas: u32,
        /// Rows of a group.
        group_rows: u64,
        /// LBAs of a group.
        group_lbas: u32,
        /// LBAs from a row to the next in its group.
        step_lbas: u32,
        /// Bytes from a row to the next in its group.
        step_bytes: u32,
        /// log₂ of the LBAs in a stripe unit.
        stripe_shift: u32,
        /// First LBA of the rows in their generation.
        first_lba: u64,
        /// Chunk map: u32, drive in the upper 8 bits.
        map: u64,
        /// LBA at which chunk 0 begins.
        base_lba: u64,
        /// A [`KeyIndex`]; 0: ids are row numbers.
        keys: u64,
        /// Entries of `map`.
        chunks: u32,
        /// log₂ of the LBAs in a chunk.
        chunk_shift: u32,
        /// A `RowCrcs` (crc.rs), then the checksum of each row on drives, a u32 each, by rank; 0: they are not checked.
        crcs: u64,
        /// The table's number in the overlay, from 1; 0: none.
        overlay: u32,
        /// The table's number among [`Cache::ranges`], from 1; 0: its rows are not cached.
        cached: u32,
        /// Where rank 0's scales lie that drives do not have; those of a row follow each other, and rows too.
        scales: u64,
        /// The last bytes of a row that lie there, and not on drives; 0: drives have whole rows.
        scale_bytes: u32,
        /// 1: rows in DRAM are cached too, if `cached` is not 0.
        caches_dram: u32,
        /// Which ranks from `dram_end` on, which is `hbm_rows` then, lie in DRAM: a [`ListedBlock`] for each 448 ranks of the
        /// table; 0: there is no list.
        listed: u64,
        /// Zero.
        spare: u64,
    }
);

plain!(
    /// Which of 448 ranks are listed for DRAM.
    ListedBlock, 64 {
        /// How many ranks below them are.
        below: u64,
        /// A bit for each, the lowest first.
        bits: [u64; 7],
    }
);

plain!(
    /// The index of a table of sparse ids: they are keys, and its slots are row numbers. Parts begin at multiples of 128.
    KeyIndex, 96 {
        /// Keys, and slots.
        keys: u64,
        /// Of the function.
        seed: u64,
        /// Parts of the function.
        parts: u64,
        /// A byte each.
        pilots: u64,
        /// For slots from `keys` on: `remap_bytes` each.
        remap: u64,
        /// By slot: `fingerprint_bytes` each.
        fingerprints: u64,
        /// The keys themselves by rank, u64 each; 0: fingerprints are believed.
        stored: u64,
        /// Of a part.
        buckets: u32,
        /// Of a part.
        slots: u32,
        /// Bytes of a stand-in.
        remap_bytes: u32,
        /// Bytes of a fingerprint.
        fingerprint_bytes: u32,
        /// Not zero: keys are signed.
        is_signed: u32,
        /// Zero.
        unused: u32,
        /// By slot, u16 each: the epoch at which a look-up last found the key; 0: nobody notes it.
        touched: u64,
        /// u32, in GPU memory: the epoch of now.
        epoch: u64,
    }
);

plain!(
    /// The part of a table that one tier holds, as a range of keys.
    Segment, 32 {
        /// The table's first key, a multiple of [`KEY_ALIGN`].
        first_key: u64,
        /// The rank of that.
        first_rank: u64,
        /// Rows it has.
        rows: u64,
        /// Index of the table.
        table: u32,
        /// See [`tier`].
        tier: u32,
    }
);

plain!(
    /// A feature of the plan.
    Feature, 240 {
        /// A copy of its table: all that a position needs is read at once.
        table: Table,
        /// See [`pooling`].
        pooling: u32,
        /// See [`missing`].
        missing: u32,
        /// Not zero: rows are multiplied by weights.
        weighted: u32,
        /// The feature's first element in a pooled output row.
        column: u32,
        /// See [`padding`].
        has_padding: u32,
        /// See [`bounds`].
        bounds: u32,
        /// The padding id, sign-extended.
        padding: u64,
    }
);

plain!(
    /// What a launch counts.
    Counters, 136 {
        /// Ids.
        ids: u64,
        /// Ids that their tables lack.
        missing: u64,
        /// Padding ids that were not read.
        padding: u64,
        /// Ids of rows in GPU memory.
        ids_hbm: u64,
        /// Ids of rows in DRAM.
        ids_dram: u64,
        /// Ids of rows on drives, failed ones included.
        ids_ssd: u64,
        /// Ids whose row could not be read.
        failed: u64,
        /// Different rows in DRAM.
        rows_dram: u64,
        /// Different rows on drives.
        rows_ssd: u64,
        /// Commands sent.
        commands: u64,
        /// Doorbell stores.
        doorbells: u64,
        /// Bytes asked of drives.
        bytes: u64,
        /// Completions that nobody waited for.
        anomalies: u64,
        /// Rows on drives that did not match their checksum.
        damaged: u64,
        /// Commands that failed and were read again in parts, which `commands` does not count.
        split: u64,
        /// Ids whose row lay in a line of the cache.
        ids_cached: u64,
        /// `!` the lowest position of an id whose feature reports it as missing, without [`MISSING_IS_ERROR`] unless the feature has
        /// [`bounds::ERROR`]; 0: there is none.
        first_missing: u64,
    }
);

/// The bit of [`Counters::first_missing`] that says that the id is an error.
pub const MISSING_IS_ERROR: u64 = 1 << 63;

plain!(
    /// What GPU memory has of each ticket; zero to begin with.
    TicketState, 32 {
        /// Launches that have ended.
        launches: u64,
        /// Of the launches that have ended, those that failed: the slot was in use, the batch was wrong, or rows were not read.
        failures: u32,
        /// [`admission`]: not zero between the kernels of a launch that has the slot's lease; 0 between launches.
        admitted: u32,
        /// Of the kernel `few`: its blocks that have begun, and in the upper half those that have ended; 0 between launches.
        blocks: u32,
        /// Zero.
        unused: [u32; 3],
    }
);

plain!(
    /// The end of a launch, in pinned memory.
    Ticket, 232 {
        /// Launches of this ticket that have ended.
        sequence: u64,
        /// See [`outcome`].
        outcome: u32,
        /// See [`flaw`].
        flaws: u32,
        /// Not zero: the gate was closed, so that nothing was read from drives.
        gate_was_closed: u32,
        /// Queues of the slot that take no more commands.
        faults: u32,
        /// What it counted.
        counters: Counters,
        /// When it began, in nanoseconds of the GPU's clock.
        began: u64,
        /// When its uniques were known.
        prepared: u64,
        /// When its rows were there.
        fetched: u64,
        /// When it ended.
        ended: u64,
        /// The launch's number, counted by its slot from 1.
        launch: u64,
        /// The latest generation among those that it read, where its plan follows; else 0.
        generation: u64,
        /// The id that `counters.first_missing` is of.
        missing_id: u64,
        /// [`TicketState::failures`].
        failures: u64,
        /// Of the words before, but for the first three times: [`check_of`].
        check: u64,
    }
);

/// What `Ticket::check` holds for these words of a ticket and no others: those before the times, and the end and what follows it.
pub fn check_of(words: impl IntoIterator<Item = (usize, u64)>) -> u64 {
    let mut low = 0u32;
    let mut high = 0u32;
    for (index, word) in words {
        let mixed = word.wrapping_mul((2 * index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (low, high) = (low.wrapping_add(mixed as u32), high.wrapping_add((mixed >> 32) as u32));
    }
    u64::from(high) << 32 | u64::from(low)
}

plain!(
    /// What a slot keeps in GPU memory; zero to begin with.
    SlotState, 256 {
        /// Launches that run, or blocks of one; [`LEASE_ADOPTING`] while tables are being replaced.
        lease: u32,
        /// Of the launch.
        flaws: u32,
        /// Of the launch.
        gate_was_closed: u32,
        /// Of the launch.
        faults: u32,
        /// Ids of the launch.
        ids: u64,
        /// Bags of each feature.
        bags: u64,
        /// Different rows in DRAM and on drives.
        uniques: u32,
        /// Different rows in DRAM.
        dram_uniques: u32,
        /// Blocks of `expand` that have ended.
        expand_left: u32,
        /// Blocks of `finish` that have ended.
        finish_left: u32,
        /// Sums of a launch of few ids.
        few: u64,
        /// Of the launch.
        counters: Counters,
        /// Of the launch.
        began: u64,
        /// Of the launch.
        prepared: u64,
        /// Of the launch.
        fetched: u64,
        /// Number of the latest launch that was admitted, from 1.
        launch: u64,
        /// The latest of those that the description is of.
        generation: u64,
        /// `Overlay::published` as the launch took it.
        snapshot: u64,
        /// Of a launch that rests: [`Ticket::missing_id`].
        missing_id: u64,
        /// The launch's number by [`Cache::clock`]; 0: the launch does without the cache.
        cache_launch: u64,
    }
);

/// The bit of [`SlotState::lease`] that keeps launches waiting.
pub const LEASE_ADOPTING: u32 = 1 << 31;

/// What became of a launch at the lease and at the gate, as bits.
pub mod admission {
    /// The launch has the slot's lease.
    pub const GRANTED: u32 = 1;
    /// Another launch has it.
    pub const REFUSED: u32 = 2;
    /// The gate is open for the launch.
    pub const OPEN: u32 = 4;
    /// The gate is closed.
    pub const CLOSED: u32 = 8;
}

/// How `expand` runs.
pub mod expansion {
    /// The last block of *expand* ends the launch, and there is nothing to clear.
    pub const ENDS: u32 = 1;
    /// Rows were fetched ahead.
    pub const FETCHED: u32 = 2;
    /// Of plans with a cache, with [`ENDS`]: the sort's state is cleared first, that of a large look-up.
    pub const CLEARS: u32 = 4;
    /// From this bit on: how many blocks, the first ones, keep rows in the cache.
    pub const KEEPERS: u32 = 256;
}

/// Which rows a cache keeps that were read from a drive.
pub mod cache_admission {
    /// All.
    pub const ALWAYS: u32 = 0;
    /// Each with the probability [`Cache::chance`](super::Cache::chance) / 2³².
    pub const CHANCE: u32 = 1;
    /// Those that were asked for more often than the row whose line they would get, by [`CacheRange::sketch`](super::CacheRange::sketch).
    pub const SKETCH: u32 = 2;
}

/// What became of a sweep of a cache.
pub mod cache_swept {
    /// The sweep has not ended.
    pub const NOT: u32 = 0;
    /// The cache is empty.
    pub const DONE: u32 = 1;
    /// A launch did not end in time: the cache is as it was.
    pub const BUSY: u32 = 2;
}

/// The bit of [`Cache::clock`] that says that the cache is off.
pub const CACHE_OFF: u64 = 1 << 63;

/// Lines of a set of a cache: a row may lie in one set alone.
pub const CACHE_WAYS: u64 = 8;

/// Bits of the tag in a word of a cache.
pub const CACHE_TAG_BITS: u32 = 24;

/// Bits of the stamp in a word of a cache, below the tag.
pub const CACHE_STAMP_BITS: u32 = 38;

/// From this number on launches do without a cache, until it is swept.
pub const CACHE_CLOCK_END: u64 = (1 << CACHE_STAMP_BITS) - (1 << 20);

/// What became of a state in an adoption.
pub mod adopted {
    /// Whether the state takes the new description is not known yet.
    pub const NOT: u32 = 0;
    /// The state has the new description.
    pub const DONE: u32 = 1;
    /// Launches did not end in time: it is as it was.
    pub const BUSY: u32 = 2;
}

/// Bit of [`Overlay::published`] that is always set.
pub const SNAPSHOT_TAKEN: u64 = 1 << 63;

/// Bit of [`Overlay::published`] that says that some of its records are of created keys.
pub const SNAPSHOT_CREATED: u64 = 1 << 62;

/// In [`Record::table`]: its row is a key that the table's index does not have.
pub const TABLE_CREATED: u32 = 1 << 31;

/// In the place of [`Record::address`]: its key was removed.
pub const REMOVED: u64 = 1;

plain!(
    /// Updated rows, in GPU memory.
    Overlay, 48 {
        /// Bit 0: the side that is read; bits 1 to 32: how many of its records are to be seen; [`SNAPSHOT_CREATED`], [`SNAPSHOT_TAKEN`].
        published: u64,
        /// Of each side `mask` + 1 words: 32 bits of the hash, and the number of a record, from 1; 0: empty.
        words: [u64; 2],
        /// Of each side its [`Record`]s.
        records: [u64; 2],
        /// Words of a side, a power of two, less one.
        mask: u64,
    }
);

plain!(
    /// An updated row, written once.
    Record, 32 {
        /// The number of the row: the id, or the slot of the key; with [`TABLE_CREATED`], the key.
        row: u64,
        /// The address of the row, a multiple of 16; [`REMOVED`].
        address: u64,
        /// [`Table::overlay`], maybe with [`TABLE_CREATED`].
        table: u32,
        /// The number of the record before of the same row; 0: none.
        before: u32,
        /// Zero.
        unused: u64,
    }
);

plain!(
    /// More updated rows: what is put in lies in pinned memory.
    Update, 112 {
        /// [`Overlay`].
        overlay: u64,
        /// Words of the side.
        words: u64,
        /// How many of them are to be cleared first.
        cleared: u64,
        /// Where rows go.
        rows_to: u64,
        /// The address that rows are copied from.
        rows_from: u64,
        /// Bytes of them, a multiple of 16.
        rows_bytes: u64,
        /// Where records go.
        records_to: u64,
        /// The address that records are copied from.
        records_from: u64,
        /// Bytes of them.
        records_bytes: u64,
        /// Two u64 each: a place among the words, and the word.
        entries: u64,
        /// How many.
        count: u64,
        /// `Overlay::published` from then on; 0: as it was.
        published: u64,
        /// A u64, pinned: `number` when it has ended.
        result: u64,
        /// Of the update.
        number: u64,
    }
);

plain!(
    /// Other tables for the states of a plan: block i replaces the description of state i.
    Adoption, 64 {
        /// [`SlotState`]s, `stride` apart.
        states: u64,
        /// Bytes.
        stride: u64,
        /// Bytes from a state to its description, a multiple of 16.
        place: u64,
        /// The new description.
        source: u64,
        /// Bytes of it, a multiple of 16; 0: no description is replaced, launches are only waited for.
        bytes: u64,
        /// The latest generation that it is of.
        generation: u64,
        /// A u32 a state, pinned: see [`adopted`].
        results: u64,
        /// Wait for launches under way.
        timeout_ns: u64,
    }
);

plain!(
    /// The ids of a launch's batch, and how they form bags.
    BatchIds, 80 {
        /// Ids, of `id_type`.
        ids: u64,
        /// Where bags begin, of `offset_type`; 0: all bags are of one length.
        offsets: u64,
        /// One f32 an id; 0: none.
        weights: u64,
        /// Two u64 in device memory, ids and bags of a feature; 0: the next two fields say it.
        counts: u64,
        /// Ids.
        id_count: u64,
        /// Bags of a feature.
        bag_count: u64,
        /// Most ids that the slot has room for.
        max_ids: u64,
        /// Most bags of a feature.
        max_bags: u64,
        /// See [`id`].
        id_type: u32,
        /// See [`id`].
        offset_type: u32,
        /// Not zero: `offsets` has an entry past the last bag.
        has_end: u32,
        /// Zero.
        unused: u32,
    }
);

plain!(
    /// What a look-up writes for its caller.
    OutputRows, 40 {
        /// Output rows.
        rows: u64,
        /// Elements from one row to the next.
        row_stride: u64,
        /// One byte an id; 0: none.
        mask: u64,
        /// One byte an id: the mask of a look-up whose rows were fetched ahead; 0: the look-up is none. Else [`BatchIds::ids`] is not to be
        /// used.
        kept_mask: u64,
        /// See [`element`].
        element: u32,
        /// Elements of a row.
        width: u32,
    }
);

plain!(
    /// The plan of a look-up: its features, and the tables that they read.
    PlanTables, 320 {
        /// [`Feature`]s.
        features: u64,
        /// [`Table`]s.
        tables: u64,
        /// [`Segment`]s, ascending.
        segments: u64,
        /// [`Overlay`]; 0: no row is ever updated. Else `follows` and `rich` are not zero.
        overlay: u64,
        /// [`slices`](crate::crc::slices); 0: rows are not checked.
        crc_slices: u64,
        /// A [`Cache`]; 0: no row is cached. Else `rich` is set.
        cache: u64,
        /// Not zero: rows of bags become one.
        pooled: u32,
        /// How many features there are.
        feature_count: u32,
        /// How many segments there are.
        segment_count: u32,
        /// Not zero: the plan takes the kernels that can do everything. Tables may then be of any element, and missing ids told of in any
        /// way; [`RowLanes::row_lanes`] is 1 << [`RowLanes::group_log2`].
        rich: u32,
        /// Not zero: the description may be replaced between launches, and `first_feature` is not to be used.
        follows: u32,
        /// See [`lost`].
        lost: u32,
        /// Not zero: the cache takes each row that was read from a drive, whatever its admission says.
        admits: u32,
        /// Not zero: some table has scales that drives do not have ([`Table::scale_bytes`]).
        scaled: u32,
        /// The first of the features: a parameter takes no load.
        first_feature: Feature,
    }
);

plain!(
    /// How lanes share rows, each with 16 B.
    RowLanes, 24 {
        /// log₂ of the lanes that share a row, or a part of it.
        group_log2: u32,
        /// Parts of so many lanes of the widest row in memory.
        parts_of_row: u32,
        /// As many lanes, or only as many as the widest row needs: where the output is written, and rows have whole 16 B.
        row_lanes: u32,
        /// Not zero: lanes of a row are aligned to lines of 128 B, and there are 7 more of them than the widest row needs.
        by_lines: u32,
        /// Of bags: lines of 128 B of the longest row; as many warps may share a bag where there are few. 1: one does.
        lines_of_row: u32,
        /// Of bags: where bags have so many ids on the average, a block pools a bag; 0: never. Else tables are of [`element::F32`] to [`element::BF16`].
        long_bags: u32,
    }
);

plain!(
    /// The slot that a launch runs in, and the ticket that it reports to.
    SlotPlaces, 56 {
        /// [`SlotState`].
        state: u64,
        /// [`Ticket`]s, pinned.
        tickets: u64,
        /// [`TicketState`]s of the same tickets.
        counts: u64,
        /// The gate, pinned.
        gate: u64,
        /// Index of the ticket among both.
        ticket: u32,
        /// The slot's index in [`Cache::running`].
        cache_slot: u32,
        /// A [`Sampling`]; 0: no id is counted.
        sampling: u64,
        /// The plan's number among those whose ids are counted.
        plan_number: u32,
        /// Zero.
        unused: u32,
    }
);

plain!(
    /// Where ids are left that are to be counted, in GPU memory.
    Sampling, 16 {
        /// Two words for each of [`SAMPLED_IDS`](crate::SAMPLED_IDS) ids, in pinned memory: the id, and the word that tells whose it is.
        ring: u64,
        /// Ids that were left, modulo 2³².
        tail: u32,
        /// Of so many ids one is left.
        every: u32,
    }
);

plain!(
    /// The queues of a slot: each set has one on every drive.
    DriveQueues, 24 {
        /// `QueueDescriptor`s, drives of set 0 first.
        descriptors: u64,
        /// Queue sets.
        sets: u32,
        /// Drives.
        drives: u32,
        /// See [`ablated`].
        ablated: u32,
        /// Not zero: rows that one position wants go from the landing area to the output, others to staging. With [`dedupe::RADIX`], of plans
        /// whose rows are neither pooled nor converted, cached, checked, nor of other lengths than output rows, and begin at multiples of 16 B in
        /// both.
        writes_output: u32,
    }
);

plain!(
    /// The keys of all rows outside GPU memory.
    KeySpace, 24 {
        /// Keys there are, a multiple of [`KEY_ALIGN`].
        count: u64,
        /// The first key of a row on drives.
        first_ssd_key: u64,
        /// See [`dedupe`].
        dedupe: u32,
        /// Not zero, with [`dedupe::RADIX`]: ids are not deduplicated, and each position with a key has a unique of its own.
        repeats: u32,
    }
);

plain!(
    /// Of [`dedupe::BITMAP`]: where unique keys are found as bits.
    KeyBitmap, 32 {
        /// One bit a key, zero between launches.
        bits: u64,
        /// One bit for each [`KEY_ALIGN`] keys, zero between launches.
        summary: u64,
        /// One u32 for each [`KEY_ALIGN`] keys: how many unique keys come before them.
        base: u64,
        /// One u32 for each warp that counts.
        parts: u64,
    }
);

plain!(
    /// Of [`dedupe::HASH`] and [`dedupe::RADIX`]: where unique keys are found by sorting.
    KeySort, 48 {
        /// [`sorting_bytes`](crate::dedupe::sorting_bytes), zero between launches.
        state: u64,
        /// A u64 for each unique, or each id.
        words: u64,
        /// As many.
        sorted: u64,
        /// Of [`dedupe::HASH`]: a u64 each, zero between launches: a key, and 1 more. At least twice as many as there may be uniques.
        slots: u64,
        /// Of each slot its key's number among the uniques, a u32.
        numbers: u64,
        /// [`slots_log2`](crate::dedupe::slots_log2) of the uniques there may be.
        slots_log2: u32,
        /// [`sweeps`](crate::dedupe::sweeps) for the keys there are.
        sweeps: u32,
    }
);

plain!(
    /// The unique rows of a batch, in the order of their keys.
    UniqueRows, 40 {
        /// One u64 an id: what each position stands for.
        places: u64,
        /// One u64 a unique key, ascending.
        keys: u64,
        /// One byte a unique key.
        status: u64,
        /// Rows of unique keys.
        staging: u64,
        /// Bytes from one to the next, a multiple of 16.
        staging_stride: u64,
    }
);

plain!(
    /// A launch: the parameter of every kernel of a look-up.
    Lookup, 688 {
        /// The ids.
        batch: BatchIds,
        /// What is written for the caller.
        output: OutputRows,
        /// Features and tables.
        plan: PlanTables,
        /// How lanes share rows.
        lanes: RowLanes,
        /// The slot and the ticket.
        slot: SlotPlaces,
        /// The slot's queues.
        queues: DriveQueues,
        /// Keys of rows outside GPU memory.
        keys: KeySpace,
        /// What finds unique keys as bits.
        bitmap: KeyBitmap,
        /// What finds unique keys by sorting, in the place of `bitmap`.
        sort: KeySort,
        /// Unique keys and their rows.
        unique: UniqueRows,
    }
);

plain!(
    /// A head of an n-gram hash: its part of a table.
    NgramHead, 16 {
        /// Rows.
        prime: u64,
        /// The id of the first.
        first_row: u64,
    }
);

plain!(
    /// Rows that look-ups have brought in, in GPU memory.
    Cache, 384 {
        /// Launches that have asked the cache, from `hold` + 1 on; with [`CACHE_OFF`] the cache is off.
        clock: u64,
        /// Zero.
        clock_room: [u64; 15],
        /// [`CacheRange`]s.
        ranges: u64,
        /// For each slot the horizon of its launch, a u64; 0 between launches.
        running: u64,
        /// How many slots there may be.
        running_count: u64,
        /// Launches for which a line that was used is not given away, and its stamp not renewed.
        hold: u64,
        /// See [`cache_admission`].
        admission: u64,
        /// Of [`cache_admission::CHANCE`]: a row is admitted if 32 random bits are below this.
        chance: u64,
        /// 1: of some tables rows in DRAM are cached ([`Table::caches_dram`]).
        caches_dram: u64,
        /// Zero.
        constant_room: [u64; 9],
        /// Rows that were given a line.
        admissions: u64,
        /// Lines that were taken from a row for that.
        evictions: u64,
        /// Rows that found no line of their set that could be given away.
        full: u64,
        /// Rows that the admission refused.
        refusals: u64,
        /// Lines that sweeps have emptied.
        swept: u64,
        /// Ids whose row lay in a line.
        hits: u64,
        /// Ids whose row was read from a drive, or from DRAM where such rows are cached.
        misses: u64,
        /// Of all evictions together: launches since the stamp of the row that went.
        evicted_age: u64,
        /// Zero.
        count_room: [u64; 8],
    }
);

plain!(
    /// Tokens to hash: the parameter of the kernel that does.
    NgramTokens, 184 {
        /// Of [`NgramTokens::token_type`].
        tokens: u64,
        /// A u32 for each sequence, where it begins, and one where the last one ends; 0: all tokens are one sequence.
        starts: u64,
        /// Of [`NgramTokens::token_type`], one fewer than `order` for each sequence: the tokens before its first one; 0: none.
        history: u64,
        /// A u32 for each token there is: what is hashed in its place, all bits set for a token that takes no part; 0: the tokens are.
        words: u64,
        /// [`NgramHead`]s.
        heads: u64,
        /// Of [`NgramTokens::id_type`], so many for each token as there are columns.
        ids: u64,
        /// Tokens.
        token_count: u64,
        /// How many tokens there are words of.
        word_count: u64,
        /// The word in the place of tokens that are missing, or that an n-gram does not reach.
        fill: u64,
        /// The word that ends a text; all bits set: none does.
        stop: u64,
        /// What the words of an n-gram's tokens are multiplied by, the latest token's first.
        multipliers: [u64; 8],
        /// How many sequences there are.
        sequences: u32,
        /// Tokens of the longest n-gram: multipliers that are used.
        order: u32,
        /// Heads of each order.
        heads_per_order: u32,
        /// Heads there are.
        head_count: u32,
        /// The head of the first column.
        first_head: u32,
        /// Columns.
        columns: u32,
        /// See [`id`]: I32 or I64.
        token_type: u32,
        /// See [`id`]: I32 or I64.
        id_type: u32,
        /// Not zero: a sequence's history begins with its latest token.
        newest_first: u32,
        /// Zero.
        unused: u32,
    }
);

plain!(
    /// The numbers of one table's rows, as the table was prepared, and the lines in which they may lie.
    CacheRange, 48 {
        /// The number of rank 0.
        first: u64,
        /// A word for each line of the pool.
        words: u64,
        /// The lines, `stride` bytes apart.
        lines: u64,
        /// Sets of [`CACHE_WAYS`] lines.
        sets: u64,
        /// Numbers are below 2 to this power.
        bits: u32,
        /// Bytes from a line to the next, a multiple of 16.
        stride: u32,
        /// 64 bytes a set: how often its rows were asked for. 0: nobody counts.
        sketch: u64,
    }
);

plain!(
    /// A cache that is to be emptied.
    CacheSweep, 40 {
        /// A [`Cache`].
        cache: u64,
        /// The words of all lines, u64 each.
        words: u64,
        /// How many words there are.
        word_count: u64,
        /// How long the sweep waits for launches.
        timeout_ns: u64,
        /// Two u64 in pinned memory: [`cache_swept`], and the slot whose launch did not end.
        result: u64,
    }
);

plain!(
    /// Rows of one table that are to stay in a cache, or need not any more.
    CachePin, 40 {
        /// A [`Cache`].
        cache: u64,
        /// The rows' ranks, u64 each.
        ranks: u64,
        /// A byte for each rank, which becomes 1 where a line had the row, else 0.
        found: u64,
        /// How many ranks there are.
        count: u64,
        /// The table's number among [`Cache::ranges`], from 1.
        range: u32,
        /// Not zero: rows stay. Zero: they may lose their lines again.
        pins: u32,
    }
);
