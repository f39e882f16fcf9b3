// Elements of rows, several at a time: widened to f32, narrowed to what the output has. The host executor's arithmetic, bit for bit.
#pragma once
#include "scales.cuh"

DEVICE u32 element_bits(u32 element) { return element == ELEMENT_Q4 || element == ELEMENT_NVFP4 ? 4 : element_bytes(element) * 8; }

// EACH elements of so many bits side by side, as they are stored: four, or those of one word.
template <u32 BITS, u32 EACH = 4> struct Raw {
    u32 word[(BITS * EACH + 31) / 32];
};

template <u32 EACH> struct Values {
    float value[EACH];
};
using Four = Values<4>;

// Elements `first` (a multiple of EACH) and the next ones of a row. One load of 16 to 2 bytes; the row's padding may be among them.
template <u32 BITS, u32 EACH> DEVICE Raw<BITS, EACH> load_part(u64 row, u32 first) {
    if constexpr (BITS * EACH == 128) {
        const uint4 four = at<const uint4>(row)[first / EACH];
        return Raw<BITS, EACH>{{four.x, four.y, four.z, four.w}};
    } else if constexpr (BITS * EACH == 64) {
        const u64 two = at<const u64>(row)[first / EACH];
        return Raw<BITS, EACH>{{(u32)two, (u32)(two >> 32)}};
    } else if constexpr (BITS * EACH == 32) return Raw<BITS, EACH>{{at<const u32>(row)[first / EACH]}};
    else return Raw<BITS, EACH>{{at<const u16>(row)[first / EACH]}};
}

// One branch for all of them at most: to choose for each would cost more than to widen it.
template <u32 BITS, u32 EACH = 4> DEVICE Values<EACH> widen_part(u32 element, const Raw<BITS, EACH>& raw, const Scale& by) {
    static_assert(BITS > 8 || EACH == 4, "less than a word is not taken apart further");
    Values<EACH> four;
    const u32 word = raw.word[0];
    if constexpr (BITS == 32) {
        for (u32 i = 0; i < EACH; ++i) four.value[i] = bits_to_float(raw.word[i]);
    } else if constexpr (BITS == 16) {
        const bool is_f16 = element == ELEMENT_F16;
        for (u32 i = 0; i < EACH; ++i) {
            const u16 half = (u16)(raw.word[i / 2] >> i % 2 * 16);
            four.value[i] = is_f16 ? widen_f16(half) : widen_bf16(half);
        }
    } else if constexpr (BITS == 4) {
        const bool is_float = element == ELEMENT_NVFP4;
        for (u32 i = 0; i < 4; ++i) four.value[i] = is_float ? __fmul_rn(widen_e2m1(word >> i * 4), by.scale) : scaled(word >> i * 4 & 15, by);
    } else if (element == ELEMENT_MXFP8 || element == ELEMENT_F8E4M3S) {
        for (u32 i = 0; i < 4; ++i) four.value[i] = __fmul_rn(widen_f8(false, word >> i * 8), by.scale);
    } else if (element == ELEMENT_Q8) {
        for (u32 i = 0; i < 4; ++i) four.value[i] = scaled(word >> i * 8 & 255, by);
    } else if (element == ELEMENT_F8E4M3 || element == ELEMENT_F8E5M2) {
        for (u32 i = 0; i < 4; ++i) four.value[i] = widen_f8(element == ELEMENT_F8E5M2, word >> i * 8);
    } else {
        for (u32 i = 0; i < 4; ++i) four.value[i] = element == ELEMENT_I8 ? (float)(signed char)(word >> i * 8) : (float)(u8)(word >> i * 8);
    }
    return four;
}

// Writes elements `first` (a multiple of 4) and later ones below `dim` of an output row, narrowed: by one store, if they are aligned.
// Outputs of integers are only ever copied.
DEVICE void put_four(u64 out, u32 element, u32 first, u32 dim, const Four& four) {
    const bool whole = first + 4 <= dim;
    if (element == ELEMENT_F32) {
        const u64 to = out + (u64)first * 4;
        if (whole && to % 16 == 0) {
            uint4 quad;
            quad.x = __float_as_uint(four.value[0]), quad.y = __float_as_uint(four.value[1]);
            quad.z = __float_as_uint(four.value[2]), quad.w = __float_as_uint(four.value[3]);
            *at<uint4>(to) = quad;
            return;
        }
        for (u32 i = 0; i < 4; ++i)
            if (first + i < dim) at<float>(to)[i] = four.value[i];
        return;
    }
    u16 half[4];
    for (u32 i = 0; i < 4; ++i) half[i] = element == ELEMENT_F16 ? narrow_f16(four.value[i]) : narrow_bf16(four.value[i]);
    const u64 to = out + (u64)first * 2;
    if (whole && to % 8 == 0) {
        *at<u64>(to) = (u64)half[0] | (u64)half[1] << 16 | (u64)half[2] << 32 | (u64)half[3] << 48;
        return;
    }
    for (u32 i = 0; i < 4; ++i)
        if (first + i < dim) at<u16>(to)[i] = half[i];
}
