// What the host hands to the kernels. src/abi.rs has the same structures; a test compares sizes and offsets.
// Addresses are device addresses, held as u64. Everything is little endian, fields are naturally aligned.
#pragma once

enum IdType : u32 { ID_I32, ID_I64, ID_U32, ID_U64 };
enum Element : u32 {
    ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16, ELEMENT_I8, ELEMENT_U8,
    ELEMENT_F8E4M3, ELEMENT_F8E5M2,
    ELEMENT_Q8, ELEMENT_Q4,
    ELEMENT_MXFP8, ELEMENT_F8E4M3S, ELEMENT_NVFP4
};
enum Pooling : u32 { POOLING_NONE, POOLING_SUM, POOLING_MEAN };
enum Missing : u32 { MISSING_DEFAULT, MISSING_ZERO, MISSING_SKIP };
// What the report says of missing ids: how many there are; that, and the first of them; nothing, for they count as padding; as BOUNDS_REPORT, and the
// launch fails.
enum Bounds : u32 { BOUNDS_COUNT, BOUNDS_REPORT, BOUNDS_IGNORE, BOUNDS_ERROR };
// Which types of ids a padding id is compared with: a negative one is no unsigned id, one of 2^63 or more is no signed id.
enum Padding : u32 { PADDING_NONE, PADDING_ANY, PADDING_SIGNED, PADDING_U64 };
enum Tier : u32 { TIER_DRAM = 1, TIER_SSD = 2 };
// How a launch of many ids finds its unique keys: by a bit for each key there is; by a hash table, and a sort of the unique keys; by a sort of all keys.
enum Dedupe : u32 { DEDUPE_BITMAP, DEDUPE_HASH, DEDUPE_RADIX };
// What reading from drives does without, as bits, so that its worth can be measured: rows of one LBA that share a command; one tail doorbell for all
// commands of a batch.
enum Ablated : u32 { ABLATED_SHARED_COMMANDS = 1, ABLATED_SHARED_DOORBELLS = 2 };

// Where a table's rows lie. Ranks 0 to hbm_rows - 1 are in GPU memory, those from there to dram_end - 1 in DRAM, the others on drives. With a list, dram_end
// is hbm_rows, and some ranks from there on lie in DRAM too: the row of the n-th of them lies where that of rank hbm_rows + n would, and has its key.
struct Table {
    u64 rows;
    u64 hbm_rows;
    u64 dram_end;
    u64 dram_key;     // key of rank hbm_rows, a multiple of 1024
    u64 ssd_key;      // key of rank dram_end, a multiple of 1024
    u64 hbm;          // where rank 0 lies; stride row_stride
    u64 dram;         // where rank hbm_rows lies; the same stride
    u64 default_row;  // in GPU memory
    u64 ranks;        // id -> rank, rank_bytes each; 0: the id is the rank
    u32 rank_bytes;
    u32 element;
    u32 dim;
    u32 row_bytes;
    u32 row_stride;   // a multiple of 16
    // How rows lie on drives: RowPacking and Placement of the layout.
    u32 row_lbas;
    u64 group_rows;
    u32 group_lbas;
    u32 step_lbas;
    u32 step_bytes;
    u32 stripe_shift;
    u64 first_lba;
    u64 map;          // u32 each: drive in the upper 8 bits, chunk in the lower 24
    u64 base_lba;
    u64 keys;         // KeyIndex; 0: ids are row numbers
    u32 chunks;       // entries of the map
    u32 chunk_shift;
    u64 crcs;         // RowCrcs, then u32 for each row on drives, by rank; 0: they are not checked
    u32 overlay;      // its number in the overlay, from 1; 0: none
    u32 cached;       // its number among Cache.ranges, from 1; 0: its rows are not cached
    u64 scales;       // where rank 0's scales lie that drives do not have; those of a row follow each other
    u32 scale_bytes;  // of a row, the last ones, lie there and not on drives; 0: drives have whole rows
    u32 caches_dram;  // 1: rows in DRAM are cached too, if `cached` is not 0
    u64 listed;       // ListedBlock for each 448 ranks: which of them are listed for DRAM; 0: there is no list
    u64 spare;
};

// Which of 448 ranks are listed for DRAM, a bit each, and how many ranks below them are.
struct ListedBlock {
    u64 below;
    u64 bits[7];
};

// The index of a table of sparse ids: they are keys, and its slots are row numbers. Parts begin at multiples of 128.
struct KeyIndex {
    u64 keys;          // and slots
    u64 seed;
    u64 parts;
    u64 pilots;        // u8 each
    u64 remap;     // for slots from `keys` on: remap_bytes each
    u64 fingerprints;  // by slot: fingerprint_bytes each
    u64 stored;        // the keys themselves by rank, u64 each; 0: fingerprints are believed
    u32 buckets;       // of a part
    u32 slots;         // of a part
    u32 remap_bytes;
    u32 fingerprint_bytes;
    u32 is_signed;
    u32 unused;
    u64 touched;       // by slot, u16 each: the epoch at which a look-up last found the key; 0: nobody notes it
    u64 epoch;         // u32, in GPU memory: the epoch of now
};

// A range of keys: the part of one table that one tier holds. Ascending by first_key; ranges do not overlap.
struct Segment {
    u64 first_key;
    u64 first_rank;
    u64 rows;
    u32 table;
    u32 tier;
};

struct Feature {
    Table table;      // a copy: all that a position needs is read at once
    u32 pooling;
    u32 missing;
    u32 weighted;
    u32 column;       // its first element in a pooled output row
    u32 has_padding;
    u32 bounds;
    u64 padding;      // sign-extended
};

// What became of a launch.
enum Outcome : u32 { OUTCOME_NONE, OUTCOME_DONE, OUTCOME_BUSY };
// What was wrong with a batch that only the device could see; what it concerns was read as empty.
enum Flaw : u32 { FLAW_TOO_MANY_IDS = 1, FLAW_OFFSETS = 2, FLAW_TOO_MANY_BAGS = 4 };
// What the output has of rows that could not be read, as bits: NaN in the place of zeros; a mask that is 1 for the ids of such rows and 0 for all
// others, in the place of one that is 1 for rows that were found and read.
enum Lost : u32 { LOST_NAN = 1, LOST_MASK = 2 };

struct Counters {
    u64 ids, missing, padding, ids_hbm, ids_dram, ids_ssd, failed;
    u64 rows_dram, rows_ssd, commands, doorbells, bytes, anomalies;
    u64 damaged;        // rows on drives that are not what was written
    u64 split;          // commands that failed and were read again in parts, which `commands` does not count
    u64 ids_cached;     // ids whose row lay in a line of the cache
    u64 first_missing;  // ~ the lowest position of an id whose feature reports it, without bit 63 unless the feature has BOUNDS_ERROR; 0: there is none
};

// What became of a launch at the lease and at the gate, as bits of TicketState.admitted. Only launches of `few` are refused, or tell of the gate.
enum Admission : u32 { ADMISSION_GRANTED = 1, ADMISSION_REFUSED = 2, ADMISSION_OPEN = 4, ADMISSION_CLOSED = 8 };

// What GPU memory has of each ticket. One load reads the first 16 bytes (`counts_before` of cuda/ticket.cuh).
struct TicketState {
    u64 launches;     // that have ended
    u32 failures;     // of the launches that have ended, those that failed: the slot was in use, the batch was wrong, or rows were not read
    u32 admitted;     // Admission: not zero between the kernels of a launch that has the slot's lease; 0 between launches
    u32 blocks;       // of `few`: its blocks that have begun, and in the upper half those that have ended; 0 between launches
    u32 unused[3];
};

// Pinned memory. `sequence` is stored behind what the launch did; of a launch of few ids the other words may arrive after it, and whoever
// reads while the next launch stores sees some of either: the report is whole when `check` says so.
struct Ticket {
    u64 sequence;     // launches of this ticket that have ended
    u32 outcome;
    u32 flaws;
    u32 gate_was_closed;
    u32 faults;       // queues of the slot that are poisoned
    Counters counters;
    u64 began, prepared, fetched, ended;  // nanoseconds of the GPU's clock
    u64 launch;       // SlotState.launch
    u64 generation;   // SlotState.generation
    u64 missing_id;   // the id that Counters.first_missing is of
    u64 failures;     // TicketState.failures
    u64 check;        // of what is above but for the first three times: see check_of
};

// Ids of a launch, and bags of each feature.
struct Size {
    u64 ids;
    u64 bags;
};

// SlotState.lease is a count of launches, or of blocks of one, with this bit while tables are being replaced.
constexpr u32 LEASE_ADOPTING = 1u << 31;

// GPU memory, one for each slot, and one for each ticket of launches that need no slot. Behind each lies a description of its own.
struct SlotState {
    u32 lease;        // 0: free
    u32 flaws;
    u32 gate_was_closed;
    u32 faults;
    Size size;
    u32 uniques;
    u32 dram_uniques;
    u32 expand_left, finish_left;  // blocks that have ended
    u64 few;          // sums of a launch of few ids
    Counters counters;
    u64 began, prepared, fetched;
    u64 launch;       // number of the launch, from 1: what faults name it by
    u64 generation;   // the latest of those that the description is of
    u64 snapshot;     // Overlay.published as the launch took it; 0 between launches of many blocks without a first kernel
    u64 missing_id;   // of a launch that rests: Ticket.missing_id
    u64 cache_launch; // the launch's number by Cache.clock; 0: the launch does without the cache
};

// The parts of a launch. The host fills them in, kernels only read them.

// The ids of the batch, and how they form bags.
struct BatchIds {
    u64 ids;          // of id_type
    u64 offsets;      // where bags begin, of offset_type; 0: all bags are of one length
    u64 weights;      // f32 for each id; 0: none
    u64 counts;       // u64 ids, u64 bags in device memory; 0: the next two fields say it
    u64 id_count;
    u64 bag_count;    // of each feature
    u64 max_ids;      // what the slot has room for
    u64 max_bags;
    u32 id_type;      // IdType
    u32 offset_type;  // IdType
    u32 has_end;      // offsets has an entry past the last bag
    u32 unused;
};

// What the look-up writes for its caller.
struct OutputRows {
    u64 rows;
    u64 row_stride;   // elements
    u64 mask;         // u8 for each id; 0: none
    u64 kept_mask;    // u8[max_ids]: the mask of a look-up whose rows were fetched ahead; 0: the look-up is none. Else BatchIds.ids is not to be used
    u32 element;      // Element
    u32 width;        // elements of a row
};

// The plan: its features, and the tables that they read.
struct PlanTables {
    u64 features;     // Feature[feature_count]
    u64 tables;       // Table[]
    u64 segments;     // Segment[segment_count]
    u64 overlay;      // Overlay; 0: no row is ever updated. Else `follows` and `rich` are set
    u64 crc_slices;   // u32[1024]: CRC32C of one byte with 0 to 3 zeros behind it; 0: rows are not checked
    u64 cache;        // Cache; 0: no row is cached. Else `rich` is set
    u32 pooled;       // rows of a bag become one
    u32 feature_count;
    u32 segment_count;
    u32 rich;         // the plan takes the kernels that can do everything: tables of any element, missing ids told of in any way. Groups of
                      // lanes that share a row are then parts of a warp (RowLanes.row_lanes = 1 << RowLanes.group_log2)
    u32 follows;      // the description may be replaced between launches: `first_feature` is not to be used
    u32 lost;         // Lost
    u32 admits;       // the cache takes each row that was read from a drive, whatever its admission says
    u32 scaled;       // some table has scales that drives do not have
    Feature first_feature;  // a copy of features[0]: a parameter takes no load
};

// How lanes share rows, each with 16 B.
struct RowLanes {
    u32 group_log2;   // log2 of the lanes that share a row, or a part of it
    u32 parts_of_row; // of so many lanes, of the widest row in memory
    u32 row_lanes;    // as many lanes, or only as many as the widest row needs, where rows are copied by whole 16 B
    u32 by_lines;     // lanes of a row are aligned to lines of 128 B: there are 7 more of them than the widest row needs
    u32 lines_of_row; // pooled: lines of 128 B of the longest row: as many warps may share a bag; 1: one does
    u32 long_bags;    // pooled: a block pools a bag of launches whose bags have so many ids on the average; 0: never. Else tables are of ELEMENT_F32 to
                      // ELEMENT_BF16
};

// The slot that the launch runs in, and the ticket that it reports to.
struct SlotPlaces {
    u64 state;        // SlotState
    u64 tickets;      // Ticket[], pinned
    u64 counts;       // TicketState[], of the same tickets
    u64 gate;         // Gate, pinned
    u32 ticket;       // index among both
    u32 cache_slot;   // the slot's index in Cache.running
    u64 sampling;     // Sampling; 0: no id is counted
    u32 plan_number;  // the plan's number among those whose ids are counted
    u32 unused;
};

// Where ids are left that are to be counted, in GPU memory: cuda/sample.cuh.
struct Sampling {
    u64 ring;         // u64[2] for each of 65536 ids, pinned: the id, and the word that tells whose it is
    u32 tail;         // ids that were left, modulo 2^32
    u32 every;        // of so many ids one
};

// The queues of the slot: each set has one on every drive.
struct DriveQueues {
    u64 descriptors;  // QueueDescriptor[sets * drives]
    u32 sets;
    u32 drives;
    u32 ablated;      // Ablated
    u32 writes_output; // 1: rows that one position wants go from the landing area to the output, others to staging. With DEDUPE_RADIX, of plans whose rows are
                       // neither pooled nor converted, cached, checked, nor of other lengths than output rows, and begin at multiples of 16 B in both
};

// The keys of all rows outside GPU memory.
struct KeySpace {
    u64 count;          // a multiple of 1024
    u64 first_ssd_key;  // the first key of a row on drives
    u32 dedupe;         // Dedupe
    u32 repeats;        // with DEDUPE_RADIX: ids are not deduplicated, and each position with a key has a unique of its own
};

// DEDUPE_BITMAP: where unique keys are found as bits. `bits` and `summary` are zero between launches; cuda/bitmap.cuh.
struct KeyBitmap {
    u64 bits;         // u32[keys / 32]: a bit for each key
    u64 summary;      // u32[keys / 32768, rounded up]: a bit for each 1024 keys
    u64 base;         // u32[keys / 1024]: how many unique keys come before each 1024
    u64 parts;        // u32[warps of the grid]: how many keys each warp counted
};

// DEDUPE_HASH and DEDUPE_RADIX: where unique keys are found by sorting; cuda/sort.cuh.
struct KeySort {
    u64 state;        // Sorting, and behind it the states of tiles; zero between launches
    u64 words;        // u64 for each unique, or each id
    u64 sorted;       // as many
    u64 slots;        // of DEDUPE_HASH: u64[1 << slots_log2], zero between launches: a key, and 1 more; at least twice as many as uniques
    u64 numbers;      // u32[1 << slots_log2]: of each slot the number among the uniques
    u32 slots_log2;
    u32 sweeps;       // bytes of the highest key
};

// The unique rows of the batch, in the order of their keys.
struct UniqueRows {
    u64 places;       // u64[max_ids]: what each position stands for; PLACE_* of cuda/common.cuh
    u64 keys;         // u64[max unique], ascending
    u64 status;       // u8[max unique]: RowStatus of rows on drives
    u64 staging;      // the rows themselves, staging_stride bytes for each
    u64 staging_stride;
};

// A launch, by value: the parameter of every kernel of a look-up.
struct Lookup {
    BatchIds batch;
    OutputRows output;
    PlanTables plan;
    RowLanes lanes;
    SlotPlaces slot;
    DriveQueues queues;
    KeySpace keys;
    KeyBitmap bitmap;
    KeySort sort;
    UniqueRows unique;
};

// Updated rows, in GPU memory: cuda/overlay.cuh.
struct Overlay {
    u64 published;    // bit 0: the side that is read; bits 1 to 32: how many of its records are to be seen; bit 62: some are of created keys; bit 63: 1
    u64 words[2];     // of each side: u64[mask + 1]
    u64 records[2];   // of each side: Record[]
    u64 mask;
};

// An updated row. Written once.
struct Record {
    u64 row;          // its number: the id, or the slot of the key; the key itself where that was created
    u64 address;      // where it lies; 1: its key was removed
    u32 table;        // Table.overlay; with its highest bit, a key of it that was created
    u32 before;       // the number of the record before of the same row; 0: none
    u64 unused;
};

// More updated rows, by value. What is put in lies in pinned memory.
struct Update {
    u64 overlay;
    u64 words;        // of the side
    u64 cleared;      // words to clear first
    u64 rows_to, rows_from, rows_bytes;          // a multiple of 16 bytes
    u64 records_to, records_from, records_bytes;
    u64 entries;      // two u64 each: place among the words, word
    u64 count;        // of entries
    u64 published;    // Overlay.published from then on; 0: as it was
    u64 result;       // u64, pinned: `number` when it has ended
    u64 number;
};

// Rows that look-ups have brought in, in GPU memory: cuda/cache.cuh. What is written often, what is never written, and what is counted lie in lines of
// their own.
struct Cache {
    u64 clock;        // launches that have asked it, from `hold` + 1 on; bit 63: the cache is off
    u64 clock_room[15];
    u64 ranges;       // CacheRange[]
    u64 running;      // u64[running_count]: for each slot the horizon of its launch; 0 between launches
    u64 running_count;
    u64 hold;         // launches for which a line that was used is not given away, and its stamp not renewed
    u64 admission;    // CacheAdmission
    u64 chance;       // of CACHE_ADMISSION_CHANCE: a row is admitted if 32 random bits are below this
    u64 caches_dram;  // 1: of some tables rows in DRAM are cached (Table.caches_dram)
    u64 constant_room[9];
    u64 admissions;   // rows that were given a line
    u64 evictions;    // lines that were taken from a row for that
    u64 full;         // rows that found no line of their set that could be given away
    u64 refusals;     // rows that the admission refused
    u64 swept;        // lines that sweeps have emptied
    u64 hits;         // ids whose row lay in a line
    u64 misses;       // ids whose row was read from a drive, or from DRAM where such rows are cached
    u64 evicted_age;  // of all evictions together: launches since the stamp of the row that went
    u64 count_room[8];
};

// The numbers of one table's rows, as the table was prepared, and the lines in which they may lie.
struct CacheRange {
    u64 first;        // the number of rank 0; with a list, that of the n-th listed rank is Table.rows + n behind
    u64 words;        // u64[8 * sets]: a word for each line
    u64 lines;        // rows, `stride` apart
    u64 sets;
    u32 bits;         // numbers are below 1 << bits
    u32 stride;       // a multiple of 16
    u64 sketch;       // u8[64 * sets]: how often rows of each set were asked for (cache.cuh); 0: nobody counts
};

// Which rows are kept that were read from a drive.
enum CacheAdmission : u32 { CACHE_ADMISSION_ALWAYS, CACHE_ADMISSION_CHANCE, CACHE_ADMISSION_SKETCH };

// A cache that is to be emptied, by value.
struct CacheSweep {
    u64 cache;        // Cache
    u64 words;        // u64[word_count]: the words of all lines
    u64 word_count;
    u64 timeout_ns;
    u64 result;       // u64[2], pinned: CacheSwept, and of CACHE_SWEPT_BUSY the slot whose launch did not end
};

// Rows of one table that are to stay in a cache, or need not any more, by value.
struct CachePin {
    u64 cache;        // Cache
    u64 ranks;        // u64[count]
    u64 found;        // u8[count]: 1 where a line had the row
    u64 count;
    u32 range;        // the table's number among Cache.ranges, from 1
    u32 pins;         // 0: the rows may lose their lines again
};

enum CacheSwept : u32 { CACHE_SWEPT_NOT, CACHE_SWEPT_DONE, CACHE_SWEPT_BUSY };

// Other tables for the states of a plan, by value: block i replaces the description of state i.
struct Adoption {
    u64 states;       // SlotState, stride apart
    u64 stride;
    u64 place;        // from a state to its description, a multiple of 16
    u64 source;       // the new one
    u64 bytes;        // of it, a multiple of 16; 0: only the wait
    u64 generation;
    u64 results;      // u32[states], pinned: Adopted
    u64 timeout_ns;
};

// A head of an n-gram hash: its part of a table.
struct NgramHead {
    u64 prime;        // rows
    u64 first_row;    // the id of the first
};

// Tokens to hash, by value: the parameter of `ngrams`.
struct NgramTokens {
    u64 tokens;       // of token_type
    u64 starts;       // u32[sequences + 1]: where each sequence begins, and where the last one ends; 0: all tokens are one sequence
    u64 history;      // of token_type, order - 1 for each sequence: the tokens before its first one; 0: none
    u64 words;        // u32[word_count]: what is hashed in the place of each token; 0: the tokens are
    u64 heads;        // NgramHead[head_count]
    u64 ids;          // of id_type, `columns` for each token
    u64 token_count;
    u64 word_count;
    u64 fill;         // the word in the place of tokens that are missing, or that an n-gram does not reach
    u64 stop;         // the word that ends a text; all bits set: none does
    u64 multipliers[8];
    u32 sequences;
    u32 order;        // tokens of the longest n-gram: multipliers that are used
    u32 heads_per_order;
    u32 head_count;
    u32 first_head;   // of the first column
    u32 columns;
    u32 token_type;   // IdType: ID_I32 or ID_I64
    u32 id_type;      // IdType: ID_I32 or ID_I64
    u32 newest_first; // a sequence's history begins with its latest token
    u32 unused;
};

// Bits of the second parameter of `expand`: its last block ends the launch, for there is nothing to clear; rows were fetched ahead. Of plans with a cache: the
// sort's state is cleared before the launch ends; and the bits from EXPANSION_KEEPERS on say how many of the blocks, the first ones, keep rows in the cache.
enum Expansion : u32 { EXPANSION_ENDS = 1, EXPANSION_FETCHED = 2, EXPANSION_CLEARS = 4, EXPANSION_KEEPERS = 256 };

enum Adopted : u32 { ADOPTED_NOT = 0, ADOPTED_DONE, ADOPTED_BUSY };

static_assert(sizeof(Adoption) == 64 && sizeof(Overlay) == 48 && sizeof(Record) == 32 && sizeof(Update) == 112, "src/abi.rs");
static_assert(sizeof(NgramHead) == 16 && sizeof(NgramTokens) == 184, "src/abi.rs");
static_assert(sizeof(KeyIndex) == 96 && sizeof(Table) == 208 && sizeof(Segment) == 32 && sizeof(Feature) == 240 && sizeof(ListedBlock) == 64, "src/abi.rs");
static_assert(sizeof(Counters) == 136 && sizeof(TicketState) == 32 && sizeof(Ticket) == 232 && sizeof(SlotState) == 256, "src/abi.rs");
static_assert(sizeof(BatchIds) == 80 && sizeof(OutputRows) == 40 && sizeof(PlanTables) == 320 && sizeof(RowLanes) == 24, "src/abi.rs");
static_assert(sizeof(SlotPlaces) == 56 && sizeof(Sampling) == 16 && sizeof(DriveQueues) == 24 && sizeof(KeySpace) == 24 && sizeof(KeyBitmap) == 32, "src/abi.rs");
static_assert(sizeof(KeySort) == 48 && sizeof(UniqueRows) == 40 && sizeof(Lookup) == 688, "src/abi.rs");
static_assert(sizeof(Cache) == 384 && sizeof(CacheRange) == 48 && sizeof(CacheSweep) == 40 && sizeof(CachePin) == 40, "src/abi.rs");
