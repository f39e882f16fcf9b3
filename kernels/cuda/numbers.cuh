// Single numbers: widened to f32, narrowed to what the output has. The host executor's arithmetic, bit for bit.
#pragma once
#include "common.cuh"

DEVICE float bits_to_float(u32 bits) { return __uint_as_float(bits); }

// Exact; NaNs keep their payload and become quiet. As an f32's exponent and mantissa the lower fifteen bits say 2^-112 times too little, subnormals
// included: the product is exact. There is no branch, for sums widen each element of each row.
DEVICE float widen_f16(u16 half) {
    const u32 magnitude = half & 0x7fff, sign = (u32)(half & 0x8000) << 16;
    const u32 widened = __float_as_uint(__fmul_rn(bits_to_float(magnitude << 13), 5.192296858534828e33f));
    // The product of what is no number is finite; its exponent becomes the highest.
    const u32 special = magnitude >= 0x7c00 ? 0x7f800000 : 0, quiet = magnitude > 0x7c00 ? 0x400000 : 0;
    return bits_to_float(sign | widened | special | quiet);
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

// OCP E4M3, or E5M2. As an f32's exponent and mantissa the lower seven bits say 2^-120 times too little (2^-112), subnormals included: the
// product is exact. E4M3 has no infinity.
DEVICE float widen_f8(bool is_e5m2, u32 code) {
    const u32 magnitude = code & 0x7f, sign = (code & 0x80) << 24;
    const float power = is_e5m2 ? 5.192296858534828e33f : 1.329227995784916e36f;
    const float value = __fmul_rn(bits_to_float(magnitude << (is_e5m2 ? 21 : 20)), power);
    const u32 special = is_e5m2 && magnitude == 0x7c ? 0x7f800000 : 0x7fc00000;
    return bits_to_float(sign | (magnitude >= (is_e5m2 ? 0x7c : 0x7f) ? special : __float_as_uint(value)));
}

// OCP E2M1, from the lower four bits. As an f32's exponent and mantissa its bits say 2^-126 times too little, the subnormal included: the product is exact.
DEVICE float widen_e2m1(u32 code) {
    const float value = __fmul_rn(bits_to_float((code & 7) << 22), 8.507059173023462e37f);
    return bits_to_float((code & 8) << 28 | __float_as_uint(value));
}

// OCP E8M0: a power of two; 0 for 0, and no number for 255.
DEVICE float widen_e8m0(u32 byte) { return bits_to_float(byte == 255 ? 0x7fc00000 : byte << 23); }
