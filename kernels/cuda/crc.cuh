// Checksums of rows: CRC32C of a row's rank (u64) and its bytes, by a warp. The layout's `row_crc`.
//
// A CRC is linear: each lane takes the quads of the row that it would copy, as if all others were zero, and multiplies what comes of
// it by x to as many bits as follow; the sum of all is the row's. By lane, for a row of up to 512 B: 16 look-ups in shared memory, of
// which 4 at a time wait for none of the others, a multiplication (32 steps, 4 at a time), five shuffles. For each 512 B more as much
// again without the shuffles. Traffic: the row from staging, where it has just been put, and 4 B.
#pragma once
#include "common.cuh"

constexpr u32 CRC_POLYNOMIAL = 0x82f63b78;  // reflected: bit 31 is the coefficient of 1
constexpr u32 CRC_SLICES = 1024;            // words of PlanTables.crc_slices

// What lies at Table.crcs.
struct RowCrcs {
    uint4 after[32];   // by lane: x to the bits that follow its last quad, and that times x^8, x^16, x^24; each modulo the polynomial
    uint4 between;     // of the bits between two quads of a lane, likewise
};

DEVICE u32 crc_step(u32 value) { return value >> 1 ^ (value & 1 ? CRC_POLYNOMIAL : 0); }

// value * by, modulo the polynomial. Four products of a byte each, side by side.
DEVICE u32 crc_times(u32 value, const uint4& by) {
    u32 power[4] = {by.x, by.y, by.z, by.w}, product[4] = {};
    for (u32 bit = 0; bit < 8; ++bit) {
        for (u32 byte = 0; byte < 4; ++byte) {
            if (value >> (31 - byte * 8 - bit) & 1) product[byte] ^= power[byte];
            power[byte] = crc_step(power[byte]);
        }
    }
    return product[0] ^ product[1] ^ product[2] ^ product[3];
}

// The next 4 bytes.
DEVICE u32 crc_word(const u32* slices, u32 crc, u32 word) {
    crc ^= word;
    return slices[768 + (crc & 255)] ^ slices[512 + (crc >> 8 & 255)] ^ slices[256 + (crc >> 16 & 255)] ^ slices[crc >> 24];
}

// By a whole warp: the checksum of the row at `row`, aligned to 16 B and padded to that; every lane gets it.
DEVICE u32 row_crc(const u32* slices, const RowCrcs& table, u64 rank, u64 row, u32 row_bytes) {
    const u32 lane = threadIdx.x % 32, quads = (row_bytes + 15) / 16;
    // The rank comes before the first quad.
    u32 crc = lane == 0 ? crc_word(slices, crc_word(slices, ~0u, (u32)rank), (u32)(rank >> 32)) : 0;
#pragma unroll 1
    for (u32 quad = lane; quad < quads; quad += 32) {
        const uint4 data = at<const uint4>(row)[quad];
        const u32 left = row_bytes - quad * 16;
        for (u32 i = 0; i < 4; ++i) {
            const u32 word = i < 2 ? (i == 0 ? data.x : data.y) : (i == 2 ? data.z : data.w);
            if (left >= i * 4 + 4) crc = crc_word(slices, crc, word);
            else for (u32 byte = i * 4; byte < left; ++byte) crc = crc >> 8 ^ slices[(crc ^ word >> byte % 4 * 8) & 255];
        }
        crc = crc_times(crc, quad + 32 < quads ? table.between : table.after[lane]);
    }
    for (u32 step = 16; step > 0; step /= 2) crc ^= __shfl_xor_sync(FULL, crc, step);
    return ~crc;
}
