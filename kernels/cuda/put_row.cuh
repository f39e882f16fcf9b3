// Rows to the caller's output, as they are or converted.
#pragma once
#include "elements.cuh"

// Word `word` of the four.
DEVICE u32 word_of(const uint4& quad, u32 word) {
    return word < 2 ? (word == 0 ? quad.x : quad.y) : (word == 2 ? quad.z : quad.w);
}

// Writes the first `left` bytes of a quad, as they are.
DEVICE void put_quad(u64 to, u32 left, const uint4& quad) {
    if (left >= 16 && to % 16 == 0) {
        *at<uint4>(to) = quad;
    } else if ((to | left) % 4 == 0) {
        for (u32 i = 0; i < 4 && i * 4 < left; ++i) at<u32>(to)[i] = word_of(quad, i);
    } else if ((to | left) % 2 == 0) {
        for (u32 i = 0; i < 8 && i * 2 < left; ++i) at<u16>(to)[i] = (u16)(word_of(quad, i / 2) >> i % 2 * 16);
    } else {
        for (u32 i = 0; i < 16 && i < left; ++i) at<u8>(to)[i] = (u8)(word_of(quad, i / 4) >> i % 4 * 8);
    }
}

// Writes a part of a row whose length and address are multiples of 4 B, by the lanes that share it: neighbours write neighbouring words.
// `first`: the number of the part's first quad; lane i holds quad `first` + i.
DEVICE void put_words(u64 out, u32 row_bytes, u32 first, u32 lanes, const uint4& quad) {
    const u32 lane = threadIdx.x & (lanes - 1), begin = threadIdx.x % 32 - lane;
    const u32 all = lanes == 32 ? FULL : ((1u << lanes) - 1) << begin;
    for (u32 i = 0; i < 4; ++i) {
        const u32 from = begin + (i * lanes + lane) / 4;
        uint4 there;
        there.x = __shfl_sync(all, quad.x, from);
        there.y = __shfl_sync(all, quad.y, from);
        there.z = __shfl_sync(all, quad.z, from);
        there.w = __shfl_sync(all, quad.w, from);
        // A number before the row's begin wraps to beyond its end.
        const u32 word = first * 4 + i * lanes + lane;
        if (word < row_bytes / 4) at<u32>(out)[word] = word_of(there, lane % 4);
    }
}

// Writes the elements of a part of a row, converted, by the lanes that share it. Lane i holds quad `first` + i; a number before the row's begin wraps
// to beyond its end. Each lane writes four elements at a time, and neighbours write neighbouring elements: so output rows are written by whole lines, for
// four shuffles each time. Groups of lanes are parts of a warp, as they are in all rich plans. BITS: of an element of the table.
template <u32 BITS> DEVICE void put_widened_as(const Lookup& lookup, u64 out, const Table& table, u64 row, u32 first, const uint4& quad) {
    const u32 lanes = lookup.lanes.row_lanes, lane = threadIdx.x & (lanes - 1), begin = threadIdx.x % 32 - lane;
    const u32 all = lanes == 32 ? FULL : ((1u << lanes) - 1) << begin;
    Scale by{};
    if (is_scaled(table.element)) {
        const u32 at = scale_at(table.element, table.dim);
        if (lookup.lanes.parts_of_row == 1) {
            // Lanes of this group hold the scale: that saves a load, of memory that may be behind a bus.
            u32 words[3];
            for (u32 i = 0; i < 3; ++i) {
                const u32 word = at / 4 + i;
                words[i] = __shfl_sync(all, word_of(quad, word % 4), begin + ((word / 4 - first) & (lanes - 1)));
            }
            by = scale_of(table.element, at, words[0], words[1], words[2]);
        } else {
            by = load_scale(row, table.element, table.dim);
        }
    }
    // Of a lane each, words of the row: of a lane that holds them, or loaded.
    const auto word_at = [&](u32 word) {
        if (lookup.lanes.parts_of_row != 1) return at<const u32>(row)[word];
        const u32 from = begin + ((word / 4 - first) & (lanes - 1));
        uint4 there;
        there.x = __shfl_sync(all, quad.x, from);
        there.y = __shfl_sync(all, quad.y, from);
        there.z = __shfl_sync(all, quad.z, from);
        there.w = __shfl_sync(all, quad.w, from);
        return word_of(there, word % 4);
    };
    // A quad has four times as many elements as there are turns.
    for (u32 turn = 0; turn < 32 / BITS; ++turn) {
        const u32 unit = turn * lanes + lane, from = begin + unit * BITS / 32;
        const u32 e = first * (128 / BITS) + unit * 4;
        uint4 there = quad;
        if constexpr (BITS != 32) {
            there.x = __shfl_sync(all, quad.x, from);
            there.y = __shfl_sync(all, quad.y, from);
            there.z = __shfl_sync(all, quad.z, from);
            there.w = __shfl_sync(all, quad.w, from);
        }
        Raw<BITS> raw;
        if constexpr (BITS == 32) raw = Raw<BITS>{{there.x, there.y, there.z, there.w}};
        if constexpr (BITS == 16) raw = unit % 2 == 0 ? Raw<BITS>{{there.x, there.y}} : Raw<BITS>{{there.z, there.w}};
        if constexpr (BITS == 8) raw = Raw<BITS>{{word_of(there, unit % 4)}};
        if constexpr (BITS == 4) raw = Raw<BITS>{{word_of(there, unit / 2 % 4) >> unit % 2 * 16}};
        Scale own = by;
        if (BITS <= 8 && has_blocks(table.element)) {
            // Of lanes without elements, some byte of the row.
            const u32 byte = block_at(table.element, table.dim, e < table.dim ? e : 0);
            own.scale = block_scale(table.element, word_at(byte / 4) >> byte % 4 * 8 & 255, by);
        }
        if (e < table.dim) put_four(out, lookup.output.element, e, table.dim, widen_part<BITS>(table.element, raw, own));
    }
}

// The same for elements of any size.
DEVICE void put_widened(const Lookup& lookup, u64 out, const Table& table, u64 row, u32 first, const uint4& quad) {
    switch (element_bits(table.element)) {
        case 32: return put_widened_as<32>(lookup, out, table, row, first, quad);
        case 16: return put_widened_as<16>(lookup, out, table, row, first, quad);
        case 8: return put_widened_as<8>(lookup, out, table, row, first, quad);
        default: return put_widened_as<4>(lookup, out, table, row, first, quad);
    }
}
