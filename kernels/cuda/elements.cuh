// Elements of rows: widened to f32, narrowed to what the output has. The host executor's arithmetic, bit for bit.
#pragma once
#include "common.cuh"

DEVICE float bits_to_float(u32 bits) { return __uint_as_float(bits); }

// Exact; NaNs keep their payload and become quiet.
DEVICE float widen_f16(u16 half) {
    u32 sign = (u32)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x400000 : 0));
    if (exponent != 0) return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
    float magnitude = __fmul_rn((float)mantissa, 5.9604644775390625e-8f);  // 2^-24
    return bits_to_float(sign | __float_as_uint(magnitude));
}

// To nearest, ties to even.
DEVICE u16 narrow_f16(float value) {
    u32 bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (u16)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return (u16)(sign | 0x7c00);  // 65520 and above
    if (magnitude < 0x38800000) {                              // below 2^-14: subnormal, counted in units of 2^-24
        float units = __fmul_rn(bits_to_float(magnitude), 16777216.0f);
        return (u16)(sign | (u32)__float2int_rn(units));
    }
    u32 rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (u16)(sign | ((rounded - 0x38000000) >> 13));
}

DEVICE float widen_bf16(u16 half) {
    u32 bits = (u32)half << 16, quiet = (half & 0x7fff) > 0x7f80 ? 0x400000 : 0;
    return bits_to_float(bits | quiet);
}

DEVICE u16 narrow_bf16(float value) {
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (u16)(bits >> 16 | 0x40);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

DEVICE u32 element_bytes(u32 element) {
    return element == ELEMENT_F32 ? 4 : element == ELEMENT_F16 || element == ELEMENT_BF16 ? 2 : 1;
}

DEVICE void narrow(u64 row, u32 element, u64 index, float value) {
    switch (element) {
        case ELEMENT_F32: at<float>(row)[index] = value; break;
        case ELEMENT_F16: at<u16>(row)[index] = narrow_f16(value); break;
        case ELEMENT_BF16: at<u16>(row)[index] = narrow_bf16(value); break;
        // Integers are only ever copied or cleared.
        default: at<u8>(row)[index] = 0;
    }
}

// --- Elements of eight bits and four -------------------------------------------------------------------------------------------

// OCP E4M3, or E5M2. As an f32's exponent and mantissa the lower seven bits say 2^-120 times too little (2^-112), subnormals included: the
// product is exact. E4M3 has no infinity.
DEVICE float widen_f8(bool is_e5m2, u32 code) {
    const u32 magnitude = code & 0x7f, sign = (code & 0x80) << 24;
    const float power = is_e5m2 ? 5.192296858534828e33f : 1.329227995784916e36f;
    const float value = __fmul_rn(bits_to_float(magnitude << (is_e5m2 ? 21 : 20)), power);
    const u32 special = is_e5m2 && magnitude == 0x7c ? 0x7f800000 : 0x7fc00000;
    return bits_to_float(sign | (magnitude >= (is_e5m2 ? 0x7c : 0x7f) ? special : __float_as_uint(value)));
}

// What a row's numbers are multiplied by, and what is then added.
struct Scale {
    float scale, bias;
};

DEVICE bool is_scaled(u32 element) { return element == ELEMENT_Q8 || element == ELEMENT_Q4; }

DEVICE float scaled(u32 number, const Scale& by) { return __fadd_rn(__fmul_rn((float)number, by.scale), by.bias); }

DEVICE u32 element_bits(u32 element) { return element == ELEMENT_Q4 ? 4 : element_bytes(element) * 8; }

// Where in a row its scale and bias begin: an f32 each behind bytes, an f16 each behind halves of bytes.
DEVICE u32 scale_at(u32 element, u32 dim) { return element == ELEMENT_Q4 ? dim / 2 : dim; }

// From the words at, and behind, the whole word in which they begin.
DEVICE Scale scale_of(u32 element, u32 begin, u32 word0, u32 word1, u32 word2) {
    const u32 shift = begin % 4 * 8;
    const u32 first = (u32)(((u64)word1 << 32 | word0) >> shift), second = (u32)(((u64)word2 << 32 | word1) >> shift);
    if (element == ELEMENT_Q4) return Scale{widen_f16((u16)first), widen_f16((u16)(first >> 16))};
    return Scale{bits_to_float(first), bits_to_float(second)};
}

// Of a row in memory. Rows are padded to 16 B: no whole word that a row ends in lies beyond.
DEVICE Scale load_scale(u64 row, u32 element, u32 dim) {
    const u32 begin = scale_at(element, dim), bytes = element == ELEMENT_Q4 ? 4 : 8;
    const u32* words = at<const u32>(row + begin / 4 * 4);
    const u32 last = (begin + bytes - 1) / 4 - begin / 4;
    return scale_of(element, begin, words[0], last >= 1 ? words[1] : 0, last >= 2 ? words[2] : 0);
}

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
        for (u32 i = 0; i < 4; ++i) four.value[i] = scaled(word >> i * 4 & 15, by);
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
