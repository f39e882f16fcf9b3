// Rows of n-gram tables from tokens: keys/src/ngram.rs says what is hashed how, and does the same on the host (docs/ngram.md).
#pragma once
#include "common.cuh"

// In the place of a word, which is below 2^63. The first is NgramHash.stop, too, where no word ends a text.
constexpr u64 NGRAM_MISSING = ~0ull;  // there is no token, or it has no word
constexpr u64 NGRAM_DEAD = ~0ull - 1;  // the token takes no part: n-grams end at it

// What is hashed in the place of the token at `index`.
DEVICE u64 ngram_word(const NgramTokens& batch, u64 tokens, u64 index) {
    const u64 token = batch.token_type == ID_I32 ? (u64)(long long)at<const int>(tokens)[index] : at<const u64>(tokens)[index];
    if (token >> 63) return NGRAM_MISSING;
    if (batch.words == 0) return token;
    if (token >= batch.word_count) return NGRAM_MISSING;
    const u32 word = at<const u32>(batch.words)[token];
    return word == ~0u ? NGRAM_DEAD : word;
}

// The sequence of a position: the first one that ends behind it; the number of sequences, if none does.
DEVICE u32 ngram_sequence(const NgramTokens& batch, u64 position) {
    const u32* starts = at<const u32>(batch.starts);
    u32 low = 0, high = batch.sequences;
    while (low < high) {
        const u32 middle = low + (high - low) / 2;
        if (starts[middle + 1] <= position) low = middle + 1; else high = middle;
    }
    return low;
}

// The id of the n-gram that ends at a position, of one head; all bits set where the position is padding.
DEVICE u64 ngram_id(const NgramTokens& batch, u64 position, u32 head) {
    const u32 order = head / batch.heads_per_order + 2;
    const u32 sequence = batch.starts == 0 ? 0 : ngram_sequence(batch, position);
    const u64 begin = batch.starts == 0 ? 0 : sequence < batch.sequences ? at<const u32>(batch.starts)[sequence] : ~0ull;
    // Whatever the starts are, no token is read but those of the batch.
    if (begin > position) return ~0ull;
    const u64 within = position - begin, kept = batch.order - 1;
    u64 mixed = 0;
    bool is_cut = false;
    for (u32 back = 0; back < order; ++back) {
        u64 word = NGRAM_MISSING;
        if (!is_cut && back <= within) {
            word = ngram_word(batch, batch.tokens, position - back);
        } else if (!is_cut && batch.history != 0) {
            const u64 age = back - within - 1;
            word = ngram_word(batch, batch.history, sequence * kept + (batch.newest_first ? age : kept - 1 - age));
        }
        if (back == 0 && word == NGRAM_MISSING) return ~0ull;
        is_cut = is_cut || word >= NGRAM_DEAD || (back > 0 && word == batch.stop);
        mixed ^= (is_cut ? batch.fill : word) * batch.multipliers[back];
    }
    const NgramHead& place = at<const NgramHead>(batch.heads)[head];
    return mixed % place.prime + place.first_row;
}

// Reads: tokens, where their sequences begin, and their history.
// Writes: an id for each position and column, that of one thread.
// Relies on: nothing but its parameter. grid: any; more blocks are faster.
KERNEL __launch_bounds__(256) warprow_ngrams(const NgramTokens batch) {
    const u64 count = batch.token_count * batch.columns;
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < count; i += (u64)gridDim.x * 256) {
        const u64 position = divide(i, batch.columns);
        const u32 head = batch.first_head + (u32)(i - position * batch.columns);
        const u64 id = head < batch.head_count ? ngram_id(batch, position, head) : ~0ull;
        if (batch.id_type == ID_I32) at<u32>(batch.ids)[i] = (u32)id; else at<u64>(batch.ids)[i] = id;
    }
}
