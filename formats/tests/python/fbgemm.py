"""Rows with a scale and a bias of their own, as FBGEMM fuses them, computed here with NumPy alone: fbgemm.py FOLDER

The arithmetic is that of src/QuantUtils.cc of pytorch/FBGEMM: FloatOrHalfToFused8BitRowwiseQuantizedSBFloatRef,
FloatOrHalfToFusedNBitRowwiseQuantizedSBHalfRef (4 bits) and their inverses; every step in float32.
"""

import pathlib
import sys

import numpy as np

f32, f16 = np.float32, np.float16


def rows():
    rng = np.random.default_rng(7)
    table = rng.normal(size=(40, 16)).astype(f32)
    table[0] = 1
    table[1] = 0
    table[2] = np.resize([-64, -2.75, 61.625, 191], 16)
    table[3] *= f32(1e-9)
    table[4] *= f32(1e4)
    table[5] = f32(-3e-8)
    table[6] = np.resize([1e-7, 1.0000001e-7], 16)
    table[7] = np.arange(16) - f32(7.5)
    table[8, 3] = 65000
    return table


def eight(row):
    low, high = row.min(), row.max()
    spread = f32(high - low)
    inverse = f32(255) / f32(spread + f32(1e-8))
    codes = np.rint((row - low).astype(f32) * inverse).astype(np.uint8)
    scale = f32(spread / f32(255))
    return codes.tobytes() + scale.tobytes() + low.tobytes(), codes.astype(f32) * scale + low


def four(row):
    low = f32(f16(row.min()))
    spread = f32(row.max() - low)
    scale = f32(f16(f32(1) if spread == 0 else f32(spread / f32(15))))
    with np.errstate(divide="ignore", over="ignore"):
        if scale == 0 or np.isinf(f32(1) / scale):
            scale = f32(1)
    codes = np.clip(np.rint((row - low).astype(f32) * (f32(1) / scale)), 0, 15).astype(np.uint8)
    packed = codes[0::2] | codes[1::2] << 4
    return packed.tobytes() + f16(scale).tobytes() + f16(low).tobytes(), codes.astype(f32) * scale + low


def main(folder):
    table = rows()
    for name, fuse in (("q8", eight), ("q4", four)):
        fused = [fuse(row) for row in table]
        (folder / f"fbgemm.{name}").write_bytes(b"".join(row for row, _ in fused))
        (folder / f"fbgemm.{name}.f32").write_bytes(np.array([wide for _, wide in fused], dtype=f32).tobytes())
    (folder / "fbgemm.f32").write_bytes(table.tobytes())


main(pathlib.Path(sys.argv[1]))
