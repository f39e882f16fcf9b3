// Scales that stand behind the elements of a row: one for all of them, one for each block, or both.
#pragma once
#include "numbers.cuh"

// What a row's numbers, or a block's, are multiplied by, and what is then added.
struct Scale {
    float scale, bias;
};

// One scale for all elements.
DEVICE bool is_scaled(u32 element) { return element == ELEMENT_Q8 || element == ELEMENT_Q4 || element == ELEMENT_F8E4M3S || element == ELEMENT_NVFP4; }

// A scale of a byte for each block.
DEVICE bool has_blocks(u32 element) { return element == ELEMENT_MXFP8 || element == ELEMENT_NVFP4; }

DEVICE float scaled(u32 number, const Scale& by) { return __fadd_rn(__fmul_rn((float)number, by.scale), by.bias); }

// Where a row's scale for all elements begins: an f32 and a bias behind bytes, an f16 and a bias behind halves of bytes, an f32 alone behind bytes, and
// behind the scales of blocks.
DEVICE u32 scale_at(u32 element, u32 dim) { return element == ELEMENT_Q4 ? dim / 2 : element == ELEMENT_NVFP4 ? dim / 2 + dim / 16 : dim; }

// From the words at, and behind, the whole word in which they begin.
DEVICE Scale scale_of(u32 element, u32 begin, u32 word0, u32 word1, u32 word2) {
    const u32 shift = begin % 4 * 8;
    const u32 first = (u32)(((u64)word1 << 32 | word0) >> shift), second = (u32)(((u64)word2 << 32 | word1) >> shift);
    if (element == ELEMENT_Q4) return Scale{widen_f16((u16)first), widen_f16((u16)(first >> 16))};
    return Scale{bits_to_float(first), element == ELEMENT_Q8 ? bits_to_float(second) : 0.0f};
}

// Of a row in memory. Rows are padded to 16 B: no whole word that a row ends in lies beyond.
DEVICE Scale load_scale(u64 row, u32 element, u32 dim) {
    const u32 begin = scale_at(element, dim), bytes = element == ELEMENT_Q8 ? 8 : 4;
    const u32* words = at<const u32>(row + begin / 4 * 4);
    const u32 last = (begin + bytes - 1) / 4 - begin / 4;
    return scale_of(element, begin, words[0], last >= 1 ? words[1] : 0, last >= 2 ? words[2] : 0);
}

// The byte of a row that has the scale of the block that element `index` is in.
DEVICE u32 block_at(u32 element, u32 dim, u32 index) { return element == ELEMENT_NVFP4 ? dim / 2 + index / 16 : dim + index / 32; }

// The scale of a block by its byte, and by that of the row where there is one.
DEVICE float block_scale(u32 element, u32 byte, const Scale& row) {
    return element == ELEMENT_NVFP4 ? __fmul_rn(widen_f8(false, byte), row.scale) : widen_e8m0(byte);
}
