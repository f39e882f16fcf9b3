//! Bugs planted in a copy of the sources, each of which the other tests' checks must find within so many seeds. What is found, and
//! how soon, shows what the shim is good for. It runs in a process of its own, for a kernel with a bug may write anywhere.
//!
//! What is not found is no proof: `simt/simt.h` lists what the shim does not see. So most fences less, a `.gpu` for a `.sys`, a
//! `__syncwarp` less between two plain accesses that the compiler does not move, go unnoticed here.

use std::io::Write;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, process};

use crate::covered::{Check, few as few_ids, hashed, held, many, sorted, whole};
use crate::shim::{Patch, Shim};
use crate::{
    ablations, adopt, cache, dedupe, few, ghosts, listed, lookups, ngrams, overlay, rich, ring, sample, sets, touches,
    windows, written,
};

/// Tells the child which bug is its own.
const CHOICE: &str = "WARPROW_PLANTED";

struct Planted {
    name: &'static str,
    patch: Patch,
    check: Check,
    /// Seeds within which it is found.
    seeds: u64,
}

const fn planted(name: &'static str, check: Check, seeds: u64, patch: Patch) -> Planted {
    Planted { name, patch, check, seeds }
}

const fn patch(file: &'static str, from: &'static str, to: &'static str) -> Patch {
    Patch { file, from, to, checked: false }
}

const PLANTED: &[Planted] = &[
    planted(
        "a touch that is noted by rank",
        touches::case,
        24,
        patch("keys.cuh", "at<u16>(index.touched)[row]", "at<u16>(index.touched)[rank_of(table, row)]"),
    ),
    planted(
        "touches in the epoch of the first launch",
        touches::case,
        24,
        patch("keys.cuh", "    const u32 epoch = *at", "    static const u32 epoch = *at"),
    ),
    planted(
        "keys that are touched once alone",
        touches::case,
        24,
        patch("keys.cuh", "if (last < epoch) last", "if (last == 0) last"),
    ),
    planted(
        "touches of ids that are not found",
        touches::case,
        24,
        patch("locate.cuh", "row != SLOT_ABSENT && !(padding", "!(padding"),
    ),
    planted(
        "touches of padding that is not read",
        touches::case,
        24,
        patch("locate.cuh", " && !(padding && lookup.plan.pooled)) touch", ") touch"),
    ),
    planted(
        "touches of keys that were not removed alone",
        touches::case,
        24,
        patch(
            "locate.cuh",
            "    // By what the index says, as on the host: removed keys are touched, and created ones are not.\n    if (",
            "    if (!(UPDATED && overlaid_row(lookup, table, id, row) == REMOVED) && ",
        ),
    ),
    planted(
        "ids to be counted that are left where others are",
        sample::case,
        24,
        patch("sample.cuh", " + __popc(lanes & ((1u << lane) - 1))", ""),
    ),
    planted(
        "ids to be counted of the feature before",
        sample::case,
        24,
        patch("sample.cuh", "middle * bags.per_feature) <= position", "middle * bags.per_feature) < position"),
    ),
    planted(
        "a ring whose laps are not told",
        sample::case,
        24,
        patch("sample.cuh", "(u64)(index >> SAMPLED_LOG2) << SAMPLED_LAP_SHIFT", "0"),
    ),
    planted(
        "listed rows that are counted from the block's begin alone",
        listed::case,
        24,
        patch("listed.cuh", "block.below + __popcll", "__popcll"),
    ),
    planted(
        "listed rows of the words before that are left out",
        listed::case,
        24,
        patch("listed.cuh", "before < word; ++before", "before + 1 < word; ++before"),
    ),
    planted(
        "a listed row that counts itself",
        listed::case,
        24,
        patch("listed.cuh", "own & ((1ull << bit % 64) - 1)", "own & ((2ull << bit % 64) - 1)"),
    ),
    planted(
        "ranks that are looked for in the wrong block",
        listed::by_one_kernel,
        24,
        patch("listed.cuh", "LISTED_RANKS = 7 * 64", "LISTED_RANKS = 8 * 64"),
    ),
    planted(
        "listed rows that are read where that rank would lie",
        listed::by_one_kernel,
        24,
        patch(
            "locate.cuh",
            "table.dram + listed * table.row_stride",
            "table.dram + (rank - table.hbm_rows) * table.row_stride",
        ),
    ),
    planted(
        "lists that go before updated rows",
        listed::updated,
        12,
        patch(
            "locate.cuh",
            "    if (UPDATED && updated != 0) {",
            "    if (UPDATED && updated != 0 && table.listed == 0) {",
        ),
    ),
    planted(
        "rows that several positions want, written for the first alone",
        written::case,
        24,
        patch("dedupe.cuh", "is_single = lookup.keys.repeats != 0 || i + 1 >= count;", "is_single = true;"),
    ),
    planted(
        "positions of one row in two warps, each taken for the only one",
        written::case,
        24,
        patch(
            "dedupe.cuh",
            "lane < 31 ? heads[k] >> (lane + 1) & 1 : words[i + 1] >> WORD_BITS != key",
            "lane == 31 || heads[k] >> (lane + 1) & 1",
        ),
    ),
    planted(
        "written rows that count as lost",
        written::case,
        24,
        patch("expand_unwritten.cuh", "    if (status == ROW_WRITTEN) return ROW_DONE;\n", ""),
    ),
    planted(
        "rows of a command that all go where its first row is wanted",
        written::case,
        24,
        patch("row_reads.cuh", "wanted_by(lookup)[unique]", "wanted_by(lookup)[tag]"),
    ),
    planted(
        "rows that failed, left as the output was",
        written::failing,
        8,
        patch("expand_unwritten.cuh", "__ballot_sync(FULL, row <= ROW_LOST)", "__ballot_sync(FULL, row < ROW_LOST)"),
    ),
    planted(
        "positions of rows in memory that are left out behind the first four",
        written::case,
        24,
        patch(
            "expand_unwritten.cuh",
            "ROW_DONE); left != 0;) {",
            "ROW_DONE), turns = 1; left != 0 && turns != 0; --turns) {",
        ),
    ),
    planted(
        "n-grams that go on before a token that takes no part",
        ngrams::case,
        120,
        patch("ngrams.cuh", "is_cut = is_cut || word >= NGRAM_DEAD", "is_cut = is_cut || word == NGRAM_MISSING"),
    ),
    planted(
        "n-grams that go on before the end of a text",
        ngrams::case,
        120,
        patch("ngrams.cuh", " || (back > 0 && word == batch.stop)", ""),
    ),
    planted(
        "histories that are read from the wrong end",
        ngrams::case,
        120,
        patch("ngrams.cuh", "batch.newest_first ? age : kept - 1 - age", "age"),
    ),
    planted(
        "sequences that see the one before them",
        ngrams::case,
        120,
        patch("ngrams.cuh", "back <= within", "back <= position"),
    ),
    planted(
        "rows behind a closed gate that nobody answers for",
        few::turned_away,
        40,
        patch("few.cuh", "FewPart part{0, set == 0 ? uniques : 0, shared.lower};", "FewPart part{0, 0, shared.lower};"),
    ),
    planted(
        "commands behind a closed gate",
        few::turned_away,
        40,
        patch("few.cuh", "    if (!is_open) return part;\n", ""),
    ),
    planted(
        "rows of two drives in one place",
        few::case,
        24,
        patch("few.cuh", "lower += home < drive;", "lower += 0;"),
    ),
    planted(
        "output rows that are written before their rows are there",
        few::case,
        24,
        patch("few.cuh", "        // Rows that a warp copied are read by others.\n        __syncthreads();\n", ""),
    ),
    planted(
        "turns of a row that are left out",
        few::repeated,
        24,
        patch("few.cuh", "i < few.count && few.numbers[i] == number; i += FEW_TURN)", "i == begin; i += FEW_TURN)"),
    ),
    planted(
        "blocks that are counted for the next launch",
        few::case,
        12,
        patch("few.cuh", "        if (shared.is_last) counts.blocks = 0;\n", ""),
    ),
    planted(
        "a launch that rests and tells of its gate",
        few::ahead,
        24,
        patch("few.cuh", "    counts.admitted = ADMISSION_GRANTED;\n", ""),
    ),
    planted(
        "a launch without the lease that writes",
        few::turned_away,
        40,
        patch(
            "few.cuh",
            "bool admitted = follows || !submits ? is_granted(lookup, shared) : true;",
            "bool admitted = (is_granted(lookup, shared), true);",
        ),
    ),
    planted(
        "failed rows whose output stays as it was",
        few::statuses,
        8,
        patch("few.cuh", "    if (!ahead && shared.read < part.end - part.begin) put_lost", "    if (false) put_lost"),
    ),
    planted(
        "places of rows ahead that are left out",
        few::ahead,
        24,
        patch(
            "few.cuh",
            "        at<u64>(lookup.unique.places)[position] = PLACE_STAGED | (part.base + number);\n",
            "",
        ),
    ),
    planted(
        "failed rows that are zeros where NaN is due",
        lookups::behind_a_closed_gate,
        40,
        patch("locate.cuh", "lookup.plan.lost & LOST_NAN", "lookup.plan.lost & 0"),
    ),
    planted(
        "a mask of failed rows that tells found ones",
        lookups::behind_a_closed_gate,
        40,
        patch("locate.cuh", " && !(lookup.plan.lost & LOST_MASK)", ""),
    ),
    planted(
        "failures that are told and not kept",
        rich::whole,
        240,
        patch("ticket.cuh", "    if (failed) ticket_state(lookup).failures = before + 1;\n", ""),
    ),
    planted(
        "counts of earlier tiles that are not waited for",
        sorted,
        24,
        patch(
            "sort.cuh",
            "    while ((value = load_relaxed(state)) == 0) pause(LOOK_PAUSE);",
            "    value = load_relaxed(state);",
        ),
    ),
    planted(
        "a look back that takes a tile's own count for that of all",
        sorted,
        240,
        patch("sort.cuh", "            if (state & STATE_ALL) break;\n", "            break;\n"),
    ),
    planted(
        "words whose order a later sweep turns around",
        sorted,
        12,
        patch("sort.cuh", "rank[k] = seen + before;", "rank[k] = seen + __popc(same) - 1 - before;"),
    ),
    planted(
        "states that a sweep finds of another",
        sorted,
        240,
        patch("sort.cuh", "        states_of(lookup, tile)[others + digit] = 0;\n", ""),
    ),
    planted(
        "a digit less than keys have",
        sorted,
        24,
        patch("sort.cuh", "(WORD_BITS + sweep * DIGIT_BITS)", "(WORD_BITS + 1 + sweep * DIGIT_BITS)"),
    ),
    planted(
        "a slot that two keys take",
        hashed,
        24,
        patch(
            "dedupe.cuh",
            "            found = atomicCAS(slots + slot, 0ull, word);",
            "            found = load_relaxed(slots + slot);\n            if (found == 0) store_relaxed(slots + slot, word);",
        ),
    ),
    planted(
        "slots that the next look-up finds taken",
        hashed,
        12,
        patch(
            "dedupe.cuh",
            "i < count; i += threads) at<u64>(lookup.sort.slots)",
            "i + 1 < count; i += threads) at<u64>(lookup.sort.slots)",
        ),
    ),
    planted(
        "a key that is new again in each row of words",
        sorted,
        12,
        patch("dedupe.cuh", "if (lane == 0 && i > 0 && i < count) before", "if (lane == 0 && i == 0) before"),
    ),
    planted(
        "uniques in DRAM that end one too early",
        sorted,
        24,
        patch(
            "dedupe.cuh",
            "< lookup.keys.first_ssd_key) tell_dram_uniques(slot, here);",
            "< lookup.keys.first_ssd_key) tell_dram_uniques(slot, here - 1);",
        ),
    ),
    planted(
        "no barrier before what a block has collected is given away",
        hashed,
        24,
        patch(
            "dedupe.cuh",
            "        __syncthreads();\n        if (threadIdx.x == 0 && collector.count != 0) collector.begin",
            "        if (threadIdx.x == 0 && collector.count != 0) collector.begin",
        ),
    ),
    planted(
        "a look-up that counts on from the one before",
        sorted,
        12,
        patch("finish.cuh", "at<Sorting>(lookup.sort.state)->count = 0;", "(void)0;"),
    ),
    planted(
        "updates that are published before their rows are there",
        overlay::readers_beside_updates,
        20,
        patch(
            "overlay.cuh",
            "    copy_quads(update.rows_to, update.rows_from, update.rows_bytes);",
            "    if (threadIdx.x == 0 && update.published != 0) store_relaxed(&at<Overlay>(update.overlay)->published, update.published);\n    \
             copy_quads(update.rows_to, update.rows_from, update.rows_bytes);",
        ),
    ),
    planted(
        "words that lead to records which are not there yet",
        overlay::readers_beside_updates,
        20,
        patch(
            "overlay.cuh",
            "    copy_quads(update.records_to, update.records_from, update.records_bytes);\n    __syncthreads();",
            "",
        ),
    ),
    planted(
        "records that came later are not passed over",
        overlay::updates_beside_readers,
        40,
        patch("overlay.cuh", "if (number <= count) return record->address;", "return record->address;"),
    ),
    planted(
        "blocks that take a snapshot each",
        overlay::updates_beside_readers,
        40,
        patch(
            "direct.cuh",
            "            if ((before & ~LEASE_ADOPTING) == 0) store_relaxed(&slot.snapshot, published(lookup));\n            else while",
            "            store_relaxed(&slot.snapshot, published(lookup));\n            while",
        ),
    ),
    planted(
        "a snapshot that outlives its launch",
        overlay::updates_beside_readers,
        40,
        patch("direct.cuh", "    if (UPDATED) store_relaxed(&slot.snapshot, 0ull);\n", ""),
    ),
    planted(
        "words of a side that is used again are not cleared",
        overlay::updates_beside_readers,
        60,
        patch("overlay.cuh", "i < update.cleared; i +=", "i < 0; i +="),
    ),
    planted(
        "created keys that are hidden by a fingerprint that passes",
        overlay::updates_beside_readers,
        40,
        patch("locate.cuh", "(row == SLOT_ABSENT || index.stored == 0) && is_key", "row == SLOT_ABSENT && is_key"),
    ),
    planted(
        "created keys of numbers that only look like them",
        overlay::updates_beside_readers,
        40,
        patch("locate.cuh", " && is_key(index, id, is_signed(lookup))) {", ") {"),
    ),
    planted(
        "created keys that are padding all the same",
        overlay::updates_beside_readers,
        60,
        patch("locate.cuh", "(lookup.plan.pooled || absent)", "(lookup.plan.pooled || row >= table.rows)"),
    ),
    planted(
        "created keys that are taken for rows",
        overlay::updates_beside_readers,
        40,
        patch("locate.cuh", "table.overlay | TABLE_CREATED, id", "table.overlay, id"),
    ),
    planted(
        "removed keys whose rows in the table are read",
        overlay::updates_beside_readers,
        40,
        patch("overlay.cuh", "return record->address;", "return record->address == REMOVED ? 0 : record->address;"),
    ),
    planted(
        "a search that a removed key ends",
        overlay::updates_beside_readers,
        60,
        patch(
            "overlay.cuh",
            "if (word >> 32 != hash >> 32) continue;",
            "if (records[(u32)word - 1].address == REMOVED && records[(u32)word - 1].row != row) return 0;\n        \
             if (word >> 32 != hash >> 32) continue;",
        ),
    ),
    planted(
        "created keys that are looked for by nobody",
        overlay::readers_beside_updates,
        20,
        patch("overlay.cuh", "SNAPSHOT_CREATED = 1ull << 62", "SNAPSHOT_CREATED = 1ull << 61"),
    ),
    planted(
        "tables that are being replaced are read",
        adopt::planted,
        40,
        patch("direct.cuh", "while (lease & LEASE_ADOPTING) {", "while (false) {"),
    ),
    planted(
        "blocks that never leave",
        adopt::planted,
        40,
        patch(
            "direct.cuh",
            "        leave<UPDATED>(lookup, slot);\n    }\n    if (RICH) first_missing",
            "    }\n    if (RICH) first_missing",
        ),
    ),
    planted(
        "a block that reads before it has entered",
        adopt::planted,
        40,
        patch(
            "direct.cuh",
            "        }\n    }\n    __syncthreads();\n}\n\n// One thread of the last",
            "        }\n    }\n}\n\n// One thread of the last",
        ),
    ),
    planted(
        "a scale of other lanes, where rows begin in the middle of a line",
        rich::one_feature,
        60,
        patch(
            "put_row.cuh",
            "% 4), begin + ((word / 4 - first) & (lanes - 1))",
            "% 4), begin + (word / 4 & (lanes - 1))",
        ),
    ),
    planted(
        "halves of a word that are one half",
        rich::one_feature,
        24,
        patch("put_row.cuh", "word_of(there, unit / 2 % 4) >> unit % 2 * 16", "word_of(there, unit / 2 % 4)"),
    ),
    planted(
        "a bag's rows with one scale",
        rich::whole,
        12,
        patch(
            "expand_bags.cuh",
            "Scale{__shfl_sync(FULL, own.scale, row + j)",
            "Scale{__shfl_sync(FULL, own.scale, row)",
        ),
    ),
    planted(
        "a bag's ids that each of its warps counts",
        rich::whole,
        24,
        patch("expand_bags.cuh", "input, from == 0, tally", "input, true, tally"),
    ),
    planted(
        "a bag's line that its next warp takes, too",
        rich::whole,
        24,
        patch("expand_bags.cuh", "from = bag.part * 32 * each", "from = bag.part / 2 * 32 * each"),
    ),
    planted(
        "bags of one id with the row of another bag",
        lookups::single_bags,
        12,
        patch("single_bags.cuh", "__shfl_sync(FULL, bags.row, bag)", "__shfl_sync(FULL, bags.row, base + k)"),
    ),
    planted(
        "bags of one id with the weight of another bag",
        lookups::single_bags,
        24,
        patch("single_bags.cuh", "__shfl_sync(FULL, bags.weight, bag)", "__shfl_sync(FULL, bags.weight, base + k)"),
    ),
    planted(
        "a scale of another bag of one id",
        lookups::single_bags,
        48,
        patch("single_bags.cuh", "__shfl_sync(FULL, own.scale, bag)", "__shfl_sync(FULL, own.scale, base)"),
    ),
    planted(
        "a bag of several ids that is pooled as one of one id",
        lookups::single_bags,
        24,
        patch("expand_bags.cuh", "__ballot_sync(FULL, end - begin > 1) == 0", "true"),
    ),
    planted(
        "bags that are pooled twice",
        lookups::single_bags,
        24,
        patch("expand_bags.cuh", "if (by_groups && has_single_bags(lookup, all_bags, scratch, number)) continue;", ""),
    ),
    planted(
        "bags that nobody pools, where those of other features have one id",
        lookups::single_bags,
        24,
        patch(
            "expand_bags.cuh",
            "return __ballot_sync(FULL, others) != 0;",
            "return __ballot_sync(FULL, others) == FULL;",
        ),
    ),
    planted(
        "rows of a long bag that are added before they are there",
        lookups::long_bags,
        12,
        patch("long_bags.cuh", "await_shared_copies<LONG_AHEAD - 1>()", "await_shared_copies<LONG_AHEAD>()"),
    ),
    planted(
        "a stage of a long bag that is filled while it is added",
        lookups::long_bags,
        24,
        patch("long_bags.cuh", "begin_stage(number + LONG_AHEAD);", "begin_stage(number + LONG_AHEAD + 1);"),
    ),
    planted(
        "weights of a tile with the rows of another",
        lookups::long_bags,
        24,
        patch("long_bags.cuh", "shared.weights[number >> tile_log2 & 1]", "shared.weights[0]"),
    ),
    planted(
        "lines of a long bag's rows that two blocks pool",
        lookups::long_bags,
        60,
        patch("long_bags.cuh", "from = bag.part * stretch", "from = bag.part / 2 * stretch"),
    ),
    planted(
        "a row of a long bag that only its warp knows to be lost",
        lookups::behind_a_closed_gate,
        40,
        patch("long_bags.cuh", "lost |= shared.lost[warp]", "lost = shared.lost[warp]"),
    ),
    planted(
        "scales of the rows in DRAM, in the place of those on drives",
        rich::scales_apart,
        12,
        patch("gather.cuh", "unique = slot.dram_uniques + (u64)block", "unique = slot.uniques + (u64)block"),
    ),
    planted(
        "scales of another row, by one kernel",
        rich::scales_apart,
        24,
        patch("few.cuh", "put_scales(lookup, key, part.base + number)", "put_scales(lookup, key, number)"),
    ),
    planted(
        "scales of another table's rows",
        rich::scales_apart,
        24,
        patch(
            "common.cuh",
            "table.scales + (segment.first_rank + (key - segment.first_key)) * bytes",
            "table.scales + key * bytes",
        ),
    ),
    planted(
        "checksums of 512 bytes",
        rich::checked,
        24,
        patch("crc.cuh", "quad + 32 < quads ? table.between : table.after[lane]", "table.after[lane]"),
    ),
    planted(
        "a row that is checked before the warp has it",
        rich::checked,
        24,
        patch("row_checks.cuh", "    __syncwarp();\n    const u64 staged", "    const u64 staged"),
    ),
    planted(
        "ignored ids that are missing all the same",
        rich::whole,
        12,
        patch("locate.cuh", "        --counts.missing;\n", ""),
    ),
    planted(
        "no barrier between the steps of the sort",
        few_ids,
        4,
        patch("block_sort.cuh", "            }\n            __syncthreads();\n        }", "            }\n        }"),
    ),
    planted(
        "no barrier before the words are sorted",
        few_ids,
        24,
        patch("prepare.cuh", "= NO_KEY;\n    __syncthreads();\n    block_sort", "= NO_KEY;\n    block_sort"),
    ),
    planted(
        "no barrier before a sum is taken from shared memory",
        many,
        4,
        patch("common.cuh", "= value;\n    __syncthreads();\n    u32 sum = 0;", "= value;\n    u32 sum = 0;"),
    ),
    planted(
        "no barrier between the entries and the doorbell",
        ring::case,
        8,
        patch(
            "row_reads.cuh",
            "            __syncthreads();\n            filled = filled + total < BATCH ? filled + total : BATCH;\n            \
             position = tile.next;\n            __syncthreads();",
            "            filled = filled + total < BATCH ? filled + total : BATCH;\n            position = tile.next;",
        ),
    ),
    planted(
        "no barrier before the batch's count is looked at",
        ring::case,
        8,
        patch("ring.cuh", "        __syncthreads();\n        width = ", "        width = "),
    ),
    planted(
        "no barrier before the next tile is known",
        ring::tiles,
        12,
        patch("row_reads.cuh", "            __syncthreads();\n            filled = ", "            filled = "),
    ),
    planted(
        "no barrier before failures are forgotten",
        ring::statuses,
        4,
        patch("ring.cuh", "        if (finished) {\n            __syncthreads();", "        if (finished) {"),
    ),
    planted(
        "no barrier before ready lanes are counted",
        ring::case,
        4,
        patch("ring.cuh", "        __syncthreads();\n        u32 found = 0;", "        u32 found = 0;"),
    ),
    planted(
        "no barrier before a verdict is read",
        ring::case,
        4,
        patch("ring.cuh", "        __syncthreads();\n        poison = ring.verdict;", "        poison = ring.verdict;"),
    ),
    planted(
        "no barrier before the last block ends the launch",
        held,
        12,
        patch(
            "finish.cuh",
            "    __syncthreads();\n    if (threadIdx.x == 0) {\n        fence_gpu();",
            "    if (threadIdx.x == 0) {\n        fence_gpu();",
        ),
    ),
    planted(
        "no `__syncwarp` before the report is read",
        lookups::many_by_one_kernel,
        12,
        patch(
            "direct.cuh",
            "    __syncwarp();\n    report<RICH>(lookup, slot, before, false);",
            "    report<RICH>(lookup, slot, before, false);",
        ),
    ),
    planted(
        "a barrier that some lanes do not reach",
        ring::case,
        2,
        patch(
            "ring.cuh",
            "        __syncthreads();\n        width = ",
            "        if (thread < found || found == 0) __syncthreads();\n        width = ",
        ),
    ),
    planted(
        "a shuffle by the lanes of one branch",
        many,
        2,
        patch(
            "bitmap.cuh",
            "        before += __shfl_sync(FULL, inclusive, 31);",
            "        if (word) before += __shfl_sync(FULL, inclusive, 31);",
        ),
    ),
    planted(
        "a phase that nobody checks",
        ring::case,
        4,
        patch("ring.cuh", "bool here = looks && (word >> 48 & 1) == ((wraps + 1) & 1);", "bool here = looks;"),
    ),
    planted("a phase that does not turn", ring::steady, 8, patch("ring.cuh", "== ((wraps + 1) & 1);", "== 1;")),
    planted(
        "a CID taken from the place in the SQ",
        ring::steady,
        4,
        patch(
            "ring.cuh",
            "const u32 cid = ring.generation[batch.slot] << queue.cid_shift | place;",
            "const u32 cid = ring.generation[batch.slot] << queue.cid_shift | ((batch.tail + number) % queue.sq_size & ((1u << queue.cid_shift) - 1));",
        ),
    ),
    planted(
        "completions taken in the order of submission",
        ring::steady,
        4,
        patch(
            "ring.cuh",
            "place = cid & mask, slot = place / BATCH;",
            "place = (cid & mask & 0) + old_slot * BATCH + thread % ring.count[old_slot], slot = place / BATCH;",
        ),
    ),
    planted(
        "retired without the generation",
        ghosts::case,
        4,
        patch(
            "ring.cuh",
            "slot < batches &&\n                               cid >> queue.cid_shift == ring.generation[slot];",
            "slot < batches;",
        ),
    ),
    planted(
        "a batch slot used again before its count is zero",
        ring::steady,
        8,
        patch(
            "ring.cuh",
            "if (newest - oldest < batches && work.more()) {",
            "if (newest - oldest <= batches && work.more()) {",
        ),
    ),
    planted(
        "bits set by a load and a store",
        many,
        24,
        patch(
            "bitmap.cuh",
            "if (atomicOr(word, bit) == 0) {",
            "u32 old = load_relaxed(word);\n        store_relaxed(word, old | bit);\n        if (old == 0) {",
        ),
    ),
    planted(
        "the last block known without an atomic",
        many,
        60,
        patch(
            "finish.cuh",
            "last = atomicAdd(&count, 1u) == gridDim.x - 1;",
            "u32 before = load_relaxed(&count);\n        store_relaxed(&count, before + 1);\n        last = before == gridDim.x - 1;",
        ),
    ),
    planted(
        "a batch taken one completion too early",
        ring::steady,
        4,
        patch(
            "ring.cuh",
            "finished = __ballot_sync(FULL, waits) == 0;",
            "one = waits && (ring.outstanding[old_slot * BATCH_WORDS + lane] & (ring.outstanding[old_slot * BATCH_WORDS + lane] - 1)) == 0;\n        \
             const u32 waiting = __ballot_sync(FULL, waits), single = __ballot_sync(FULL, one);\n        \
             const bool finished = waiting == 0 || (waiting == single && (waiting & (waiting - 1)) == 0);",
        ),
    ),
    planted(
        "16 bytes at once, wherever they lie",
        whole,
        120,
        Patch { checked: true, ..patch("put_row.cuh", "if (left >= 16 && to % 16 == 0) {", "if (left >= 16) {") },
    ),
    planted(
        "no atomic where failed rows are told from read ones",
        ring::statuses,
        16,
        patch(
            "ring.cuh",
            "                    atomicOr(&ring.failed[place / 32], bit);",
            "                    u32 known = load_relaxed(&ring.failed[place / 32]);\n                    store_relaxed(&ring.failed[place / 32], known | bit);",
        ),
    ),
    planted(
        "a poisoned queue's rows left to it",
        sets::case,
        4,
        patch(
            "fetch.cuh",
            "    QueueShare share = share_of(lookup, blockIdx.x / lookup.queues.drives, blockIdx.x % lookup.queues.drives, slot.launch);",
            "    QueueShare share = share_of(lookup, blockIdx.x / lookup.queues.drives, blockIdx.x % lookup.queues.drives, slot.launch);\n    share.healthy_before = \
             blockIdx.x / lookup.queues.drives;\n    share.healthy = lookup.queues.sets;",
        ),
    ),
    planted(
        "rows shared by what is healthy at the moment",
        sets::case,
        40,
        patch("fetch.cuh", "                healthy = load_relaxed(&state.poisoned_by) == launch;\n", ""),
    ),
    planted(
        "a window that is read whole, past the drive's end",
        windows::case,
        12,
        patch(
            "row_reads.cuh",
            "const u32 lbas = (u32)(behind - location.drive_lba), place",
            "const u32 lbas = has_windows() ? 1u << (queue.window & 0xff) : (u32)(behind - location.drive_lba), place",
        ),
    ),
    planted(
        "a second LBA that is looked for where the first landed",
        windows::case,
        12,
        patch("row_reads.cuh", " + ((row.drive_lba - first) << queue.lba_shift) + row.byte;", " + row.byte;"),
    ),
    planted(
        "a team that does not know the row before its part",
        windows::teams,
        24,
        patch("row_reads.cuh", "member == 0 && team != 0 ? location_at(unique - 1).drive_lba : ~0ull", "~0ull"),
    ),
    planted(
        "a team that does not know the row before its step",
        windows::teams,
        24,
        patch(
            "row_reads.cuh",
            "before = __shfl_sync(FULL, tile.drive_lbas[entry], thread % 32 | (TEAM - 1));",
            "before = ~0ull;",
        ),
    ),
    planted(
        "a team that does not know the row behind its step",
        windows::teams,
        24,
        patch(
            "row_reads.cuh",
            "tile.drive_lbas[entry + TEAM] = next.drive_lba;",
            "tile.drive_lbas[entry + TEAM] = ~0ull;",
        ),
    ),
    planted(
        "rows of a failed command that are not read again",
        windows::parts,
        12,
        patch(
            "row_reads.cuh",
            "            if (there && again) at<u8>(lookup.unique.status)[unique] = ROW_AGAIN;\n",
            "",
        ),
    ),
    planted(
        "a second pass that does not begin",
        windows::parts,
        12,
        patch("row_reads.cuh", " || (batches_in_flight == 0 && !is_second_pass && tile.split != 0); }", "; }"),
    ),
    planted(
        "a second pass that begins before the first has ended",
        windows::parts,
        60,
        patch(
            "row_reads.cuh",
            "(batches_in_flight == 0 && !is_second_pass && tile.split != 0)",
            "(!is_second_pass && tile.split != 0)",
        ),
    ),
    planted(
        "commands that are read again whatever the error",
        windows::parts,
        24,
        patch("row_reads.cuh", "if ((status >> 8 & 7) == MEDIA) return true;", "return true;"),
    ),
    planted(
        "rows of the next tile taken for a command's",
        windows::case,
        24,
        patch("row_reads.cuh", "has_windows() && unique < tile_end && share_window(", "has_windows() && share_window("),
    ),
    planted(
        "gaps of any width",
        windows::case,
        12,
        patch("row_reads.cuh", "next_at >= end && next_at - end <= queue.window >> 8 &&", "next_at >= end &&"),
    ),
    planted(
        "commands across windows",
        windows::case,
        12,
        patch(
            "row_reads.cuh",
            "(at ^ (next_end - 1)) >> (queue.window & 0xff) == 0",
            "(at ^ next_at) >> (queue.window & 0xff) == 0",
        ),
    ),
    planted(
        "a list of pages that begins with the first",
        windows::case,
        24,
        patch(
            "ring.cuh",
            "(((u64)place * queue.landing_stride >> 12) + 1) * 8",
            "((u64)place * queue.landing_stride >> 12) * 8",
        ),
    ),
    planted(
        "no barrier before a command's last row is known",
        windows::case,
        12,
        patch(
            "row_reads.cuh",
            "tile.last[own] = thread;\n                __syncthreads();",
            "tile.last[own] = thread;",
        ),
    ),
    planted(
        "a doorbell before the fence behind its commands",
        ring::steady,
        4,
        patch(
            "ring.cuh",
            "                fence_release();\n                if (owed != 0) {\n                    ring_bell(queue, queue.cq_head, head);",
            "                if (owed != 0) {\n                    ring_bell(queue, queue.cq_head, head);",
        ),
    ),
    planted(
        "a doorbell for each command, the first of them before the fence",
        ablations::case,
        24,
        patch(
            "ring.cuh",
            "                fence_release();\n                if (owed != 0) {",
            "                if (!work.rings_each()) fence_release();\n                if (owed != 0) {",
        ),
    ),
    planted(
        "a tail that goes to the head's doorbell",
        ring::steady,
        4,
        patch(
            "ring.cuh",
            "ring_bell(queue, queue.sq_tail, tail >= untold",
            "ring_bell(queue, queue.cq_head, tail >= untold",
        ),
    ),
    planted(
        "repeats that count as one where ids are not deduplicated",
        dedupe::repeated,
        12,
        patch("dedupe.cuh", "i == 0 || lookup.keys.repeats != 0 ||", "i == 0 ||"),
    ),
    planted(
        "commands that rows share all the same",
        ablations::case,
        12,
        patch("row_reads.cuh", "        if (!shares_commands()) return false;\n", ""),
    ),
    planted(
        "a turn that is not counted",
        ring::steady,
        4,
        patch(
            "ring.cuh",
            "                ++turn;
",
            "",
        ),
    ),
    planted(
        "rows that are kept by their place on drives, not by their rank",
        cache::case,
        40,
        patch(
            "cache.cuh",
            "cache_set_of(range, cache_number(table, key, is_cold))",
            "cache_set_of(range, is_cold ? key - table.ssd_key : cache_number(table, key, is_cold))",
        ),
    ),
    planted(
        "words of lines before their rows",
        cache::case,
        40,
        patch(
            "cache.cuh",
            "        if ((__ballot_sync(FULL, reserves) & team) != 0) {",
            "        if (reserves) store_relaxed(at<u64>(set.words) + way, CACHE_PUBLISHED | set.tag | slot.cache_launch);\n        \
             if ((__ballot_sync(FULL, reserves) & team) != 0) {",
        ),
    ),
    planted(
        "damaged rows that are kept",
        cache::case,
        40,
        patch(
            "cache.cuh",
            "if (is_cold && status != ROW_READ) return row;",
            "if (is_cold && status == ROW_FAILED) return row;",
        ),
    ),
    planted(
        "launches that tell no horizon",
        cache::case,
        40,
        patch("cache.cuh", "store_relaxed(running, number - cache.hold);", "store_relaxed(running, 0ull);"),
    ),
    planted(
        "a horizon that is taken back before the output is written",
        cache::case,
        40,
        patch(
            "cached.cuh",
            "    if (blockIdx.x >= keepers) {\n",
            "    if (blockIdx.x == 0 && threadIdx.x == 0) leave_cache(lookup);\n    if (blockIdx.x >= keepers) {\n",
        ),
    ),
    planted(
        "lines that are given away whoever reads them",
        cache::case,
        40,
        patch("cache.cuh", "if (horizon != 0) bound = min_of(bound, horizon);", ""),
    ),
    planted(
        "stamps that are not renewed",
        cache::case,
        40,
        patch("cache.cuh", "if ((word & CACHE_STAMP) < launch.horizon) {", "if (false) {"),
    ),
    planted(
        "lines that are filled for two rows",
        cache::case,
        240,
        patch("cache.cuh", "    if (word == 0) return 0;", "    if (word == 0 || word == CACHE_RESERVED) return 0;"),
    ),
    planted(
        "a line that two warps reserve",
        cache::case,
        240,
        patch(
            "cache.cuh",
            "            reserves = atomicCAS(at<u64>(set.words) + way, victim, CACHE_RESERVED) == victim;",
            "            reserves = load_relaxed(at<u64>(set.words) + way) == victim;\n            \
             if (reserves) store_relaxed(at<u64>(set.words) + way, CACHE_RESERVED);",
        ),
    ),
    planted(
        "empty lines that are found",
        cache::case,
        40,
        patch(
            "cache.cuh",
            "((word ^ CACHE_PUBLISHED ^ tag) & ~(CACHE_STAMP | CACHE_PINNED)) == 0",
            "((word ^ tag) & ~(CACHE_STAMP | CACHE_PINNED | CACHE_PUBLISHED)) == 0",
        ),
    ),
    planted(
        "tags of two bits",
        cache::case,
        40,
        patch("cache.cuh", "(image & CACHE_TAG) << CACHE_STAMP_BITS,", "(image & 3) << CACHE_STAMP_BITS,"),
    ),
    planted(
        "a sweep that waits for nobody",
        cache::case,
        40,
        patch(
            "cache_sweep.cuh",
            "        while (load_relaxed(at<const u64>(cache.running) + i) != 0) {",
            "        while (false) {",
        ),
    ),
    planted(
        "a sweep that leaves what it should empty",
        cache::case,
        40,
        patch("cache_sweep.cuh", "i < sweep.word_count; i +=", "i + 1 < sweep.word_count; i +="),
    ),
    planted(
        "a cache that a sweep leaves off",
        cache::case,
        40,
        patch("cache_sweep.cuh", "        atomicAnd(&cache.clock, ~CACHE_OFF);\n", ""),
    ),
    planted(
        "a clock that goes on into the tag",
        cache::worn,
        40,
        patch("cache.cuh", "if (number >= CACHE_CLOCK_END) {", "if (number >= CACHE_OFF) {"),
    ),
    planted(
        "rows that are kept by launches without a number",
        cache::worn,
        40,
        patch("cache.cuh", "if (slot.cache_launch == 0 || first_unique", "if (first_unique"),
    ),
    planted(
        "rows that are looked for by launches without a number",
        cache::worn,
        40,
        patch("cache.cuh", "table->cached != 0 && launch.number != 0;", "table->cached != 0;"),
    ),
    planted(
        "a row that is found for a lane of another team",
        cache::case,
        40,
        patch("cache.cuh", "if (lane / SETS_AT_ONCE == turn && lanes != 0 && wants) {", "if (lanes != 0 && wants) {"),
    ),
    planted(
        "a sort's words that a cache's last kernel leaves",
        cache::case,
        40,
        patch(
            "cached.cuh",
            "if ((how & EXPANSION_CLEARS) && threadIdx.x == 0) at<Sorting>(lookup.sort.state)->count = 0;",
            "",
        ),
    ),
    planted(
        "lanes of a team that count by themselves",
        cache::case,
        120,
        patch(
            "cache.cuh",
            "        u32 count = set.sketch != 0 && member == 0 ? sketched(set.sketch, set.tag) + counts : 0;\n        \
             count = __shfl_sync(FULL, count, lane / KEEP_LANES * KEEP_LANES);\n",
            "        const u32 count = set.sketch != 0 ? sketched(set.sketch, set.tag) + counts : 0;\n",
        ),
    ),
    planted(
        "output that is written before its rows are known",
        cache::case,
        40,
        patch(
            "served.cuh",
            "    if (counts.probed % DRAM_MISS != 0) fence_gpu();\n    __syncthreads();\n",
            "    if (counts.probed % DRAM_MISS != 0) fence_gpu();\n",
        ),
    ),
    planted(
        "a row alone that nobody writes",
        cache::case,
        40,
        patch("served.cuh", "    if (slot.uniques == 0) return;", "    if (slot.uniques <= 1) return;"),
    ),
    planted(
        "positions whose row was not read that nobody tells of",
        cache::case,
        40,
        patch("served.cuh", "                mask_lost(lookup, position);\n", ""),
    ),
    planted(
        "pinned lines that are given away",
        cache::case,
        40,
        patch("cache.cuh", "(word & CACHE_PUBLISHED) && !(word & CACHE_PINNED) &&", "(word & CACHE_PUBLISHED) &&"),
    ),
    planted(
        "stamps whose renewal lets a row go",
        cache::case,
        40,
        patch(
            "cache.cuh",
            "(word & ~CACHE_STAMP) | launch.number",
            "(word & ~(CACHE_STAMP | CACHE_PINNED)) | launch.number",
        ),
    ),
    planted(
        "pins that are stored over a stamp",
        cache::case,
        40,
        patch(
            "cache_pin.cuh",
            "        const u64 found = atomicCAS(place, word, wanted);\n",
            "        const u64 found = load_relaxed(place);\n        \
             if (found == word) store_relaxed(place, wanted);\n",
        ),
    ),
    planted(
        "an admission that is asked by those who have each row admitted",
        cache::case,
        40,
        patch("cache.cuh", "lookup.plan.admits != 0 || is_row_admitted", "is_row_admitted"),
    ),
    planted(
        "hits and misses that are not counted",
        cache::case,
        24,
        patch("finish.cuh", "    add_cache_count(lookup, count);\n", ""),
    ),
    planted(
        "hits that count as misses",
        cache::case,
        24,
        patch("cache.cuh", "threadIdx.x == 1 ? &cache.hits : &cache.misses", "&cache.misses"),
    ),
    planted(
        "an age from the beginning of the clock",
        cache::case,
        40,
        patch("cache.cuh", "slot.cache_launch - (victim & CACHE_STAMP)", "slot.cache_launch"),
    ),
    planted(
        "listed rows by the ranks that they would have without a list",
        cache::case_of_dram,
        40,
        patch("cache.cuh", "(table.listed != 0 ? table.rows : table.hbm_rows)", "table.hbm_rows"),
    ),
    planted(
        "rows in DRAM that are kept as those of drives",
        cache::case_of_dram,
        40,
        patch(
            "cache.cuh",
            "cache_set_of(range, cache_number(table, key, is_cold))",
            "cache_set_of(range, cache_number(table, is_cold ? key : table.ssd_key + (key - table.dram_key), true))",
        ),
    ),
    planted(
        "rows of DRAM in lines that are published before",
        cache::case_of_dram,
        40,
        patch(
            "cache.cuh",
            "        if ((__ballot_sync(FULL, reserves) & team) != 0) {",
            "        if (reserves) store_relaxed(at<u64>(set.words) + way, CACHE_PUBLISHED | set.tag | slot.cache_launch);\n        \
             if ((__ballot_sync(FULL, reserves) & team) != 0) {",
        ),
    ),
    planted(
        "a line that two warps reserve for rows of DRAM",
        cache::case_of_dram,
        240,
        patch(
            "cache.cuh",
            "            reserves = atomicCAS(at<u64>(set.words) + way, victim, CACHE_RESERVED) == victim;",
            "            reserves = load_relaxed(at<u64>(set.words) + way) == victim;\n            \
             if (reserves) store_relaxed(at<u64>(set.words) + way, CACHE_RESERVED);",
        ),
    ),
    planted(
        "rows of DRAM that are found for another version of the table",
        cache::case_of_dram,
        40,
        patch("cache.cuh", "spread_number(range.first + number, range.bits)", "spread_number(number, range.bits)"),
    ),
    planted(
        "rows of tables with lines of their own that are kept in those of the first table",
        cache::case_of_shares,
        40,
        patch(
            "cache.cuh",
            "at<const CacheRange>(cache.ranges)[table.cached - 1]",
            "at<const CacheRange>(cache.ranges)[0]",
        ),
    ),
    planted(
        "rows in DRAM that one block takes for rows on drives",
        cache::case_of_dram,
        40,
        patch("prepare.cuh", "slot.counters.rows_dram = slot.dram_uniques = dram;", "slot.counters.rows_dram = dram;"),
    ),
    planted(
        "misses in DRAM that nobody counts",
        cache::case_of_dram,
        40,
        patch("locate.cuh", "            counts.probed += DRAM_MISS;\n", ""),
    ),
    planted(
        "lines with rows of DRAM that go before updated ones",
        cache::updated_of_dram,
        24,
        patch(
            "locate.cuh",
            "    if (UPDATED && updated != 0) {",
            "    if (UPDATED && updated != 0 && !(table.caches_dram != 0 && row < table.rows && rank_of(table, row) >= table.hbm_rows)) {",
        ),
    ),
    planted(
        "rows in lines that go before updated ones",
        cache::updated,
        24,
        patch(
            "locate.cuh",
            "    if (UPDATED && updated != 0) {",
            "    if (UPDATED && updated != 0 && !(lookup.plan.cache != 0 && row < table.rows && rank_of(table, row) >= table.dram_end)) {",
        ),
    ),
];

/// Runs one planted bug until it is found.
#[test]
#[ignore = "run by the tests below, in a process of its own"]
fn child() {
    let Some(planted) = env::var(CHOICE).ok().and_then(|choice| PLANTED.get(choice.parse::<usize>().ok()?)) else {
        return;
    };
    let Some(mut shim) = Shim::patched(std::slice::from_ref(&planted.patch)) else { return };
    for seed in 0..planted.seeds {
        println!("\nseed {seed}");
        std::io::stdout().flush().unwrap();
        if let Err(wrong) = (planted.check)(&mut shim, seed) {
            println!("found: {wrong}");
            process::exit(1);
        }
    }
}

/// Runs a child: how many seeds it took, whether the bug was found, and how.
fn run(choice: usize) -> (usize, bool, String) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["planted::child", "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.env(CHOICE, choice.to_string()).env("RUST_BACKTRACE", "0").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    let how = said.lines().find(|line| line.starts_with("found: ")).map(str::to_owned);
    let how = how.unwrap_or_else(|| format!("{}: {}", output.status, complained.trim()));
    (said.lines().filter(|line| line.starts_with("seed ")).count(), !output.status.success(), how)
}

#[test]
fn bugs_are_found() {
    if Shim::new().is_none() {
        return;
    }
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let work = || {
        while let Some((choice, planted)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, PLANTED.get(i)?)))
        {
            let (seeds, found, how) = run(choice);
            eprintln!("{}: after {seeds} of {} seeds, {how}", planted.name, planted.seeds);
            // A child that does not even begin has found nothing.
            if !found || seeds == 0 {
                missed.lock().unwrap().push(planted.name);
            }
        }
    };
    std::thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    assert!(missed.lock().unwrap().is_empty(), "not found: {missed:?}");
}
