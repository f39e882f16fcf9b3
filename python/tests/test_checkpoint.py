"""Checkpoints of language models, attached where they lie: shards, scales, files that change. Every row is compared with NumPy's."""

from __future__ import annotations

import json
import os
import struct
import time

import numpy as np
import pytest

import warprow


def write(folder, files: list[dict[str, tuple[str, list[int], bytes]]]) -> None:
    """Safetensors files and their index. Headers end anywhere, so that rows begin at odd bytes too."""
    weight_map = {}
    for number, tensors in enumerate(files):
        name, at, header = f"model-{number}.safetensors", 0, {}
        for tensor, (dtype, shape, body) in tensors.items():
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(body)]}
            at += len(body)
            weight_map[tensor] = name
        text = json.dumps(header).encode() + b" " * number
        (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(body for _, _, body in tensors.values()))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def e4m3(codes: np.ndarray) -> np.ndarray:
    """By the format's definition, in float64, where all is exact."""
    exponent, mantissa = (codes >> 3 & 15).astype(np.int64), (codes & 7).astype(np.float64)
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(8 + mantissa, exponent - 10))
    value[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -value, value)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
E2M1[8] = -0.0


def same(one: np.ndarray, other: np.ndarray) -> None:
    """Bit for bit; a NaN is any NaN."""
    assert one.shape == other.shape and one.dtype == other.dtype == np.float32
    bits = (one.view(np.uint32) == other.view(np.uint32)) | (np.isnan(one) & np.isnan(other))
    assert bits.all(), np.argwhere(~bits)[:3]


@pytest.mark.parametrize("resident", ["", ",resident=1"])
def test_rows_with_scales_come_from_a_checkpoint(tmp_path, resident: str) -> None:
    random = np.random.default_rng(7)
    count, shards = 40, 3
    codes = random.integers(0, 256, (count, 64), dtype=np.uint8)
    powers = random.integers(100, 140, (count, 2), dtype=np.uint8)
    powers[0] = (0, 255)
    eights = random.integers(0, 256, (shards, count, 32), dtype=np.uint8)
    pairs = random.integers(0, 256, (count, 16), dtype=np.uint8)
    blocks = random.integers(0, 256, (count, 2), dtype=np.uint8)
    scale = np.array([0x3951], dtype=np.uint16)  # 0.000199… in bf16
    write(
        tmp_path,
        [
            {
                "l.embed.weight": ("F8_E4M3", [count, 64], codes.tobytes()),
                "t.shard_2.weight": ("F8_E4M3", [count, 32], eights[2].tobytes()),
                "t.weight_scale": ("BF16", [1], scale.tobytes()),
            },
            {
                "t.shard_0.weight": ("F8_E4M3", [count, 32], eights[0].tobytes()),
                "l.embed.scale": ("F8_E8M0", [count, 2], powers.tobytes()),
                "t.shard_1.weight": ("F8_E4M3", [count, 32], eights[1].tobytes()),
            },
            {
                "n.weight": ("U8", [count, 16], pairs.tobytes()),
                "n.weight_scale": ("F8_E4M3", [count, 2], blocks.tobytes()),
                "n.weight_scale_2": ("F32", [], np.float32(0.0013).tobytes()),
            },
        ],
    )
    with warprow.open(f"attached:{tmp_path}{resident}") as store:
        assert store.read_only
        assert {it.name: (it.rows, it.dim, it.dtype) for it in store.tables()} == {
            "l.embed.weight": (count, 64, "mxfp8"),
            "t.weight": (count * shards, 32, "f8e4m3s"),
            "n.weight": (count, 32, "nvfp4"),
        }
        ids = random.permutation(count)
        with np.errstate(over="ignore", invalid="ignore"):
            power = np.where(powers == 0, 0.0, np.ldexp(1.0, powers.astype(np.int64) - 127))
            power[powers == 255] = np.nan
            wanted = (e4m3(codes) * np.repeat(power, 32, axis=1)).astype(np.float32)
            same(store.lookup("l.embed.weight", ids), wanted[ids])
            whole = eights.reshape(-1, 32)
            one = (scale.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
            ids = random.permutation(len(whole)).astype(np.int32)
            same(store.lookup("t.weight", ids), (e4m3(whole) * one).astype(np.float32)[ids])
            block = (e4m3(blocks) * np.float64(np.float32(0.0013))).astype(np.float32).astype(np.float64)
            nibbles = np.stack((pairs & 15, pairs >> 4), axis=-1).reshape(count, 32)
            same(store.lookup("n.weight", np.arange(count)), (E2M1[nibbles] * np.repeat(block, 16, axis=1)).astype(np.float32))
        # Ids of no row are zeros, as engines pad with them.
        found = store.lookup("t.weight", np.array([-1, 5, count * shards]), missing="zero")
        assert not found[0].any() and not found[2].any()
        # Rows as they are, with their scales.
        with store.attach() as executor:
            plan = executor.plan([warprow.Feature("f", "l.embed.weight")], max_ids=count, max_batch=count, dtype="mxfp8")
            assert (plan.width, plan.dtype) == (66, "u8")
            np.testing.assert_array_equal(plan.lookup(np.arange(count)), np.concatenate((codes, powers), axis=1))
        with pytest.raises(warprow.ReadOnly) as caught:
            store.load({"v": np.zeros((3, 4), np.float32)})
        assert "attached are never written" in caught.value.remedy


def test_a_checkpoint_that_changes_gives_no_row(tmp_path) -> None:
    table = np.arange(4000, dtype=np.float32).reshape(500, 8)
    write(tmp_path, [{"embed": ("F32", [500, 8], table.tobytes())}])
    with warprow.open(f"attached:{tmp_path}") as store:
        np.testing.assert_array_equal(store.lookup("embed", np.arange(500)), table)
        assert store.changed_files() == []
        time.sleep(0.02)
        with open(tmp_path / "model-0.safetensors", "r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(b"changed!")
        with pytest.raises(warprow.RowsFailed, match="was written to while it was attached") as caught:
            store.lookup("embed", np.array([3]))
        assert "open it again" in caught.value.remedy and "look up again" not in caught.value.remedy.lower()
        changed = [warprow.ChangedFile(path=str(tmp_path / "model-0.safetensors"), what="was written to")]
        assert store.changed_files() == changed
    with pytest.raises(warprow.Closed):
        store.changed_files()


def test_what_a_checkpoint_lacks_is_named(tmp_path) -> None:
    shard = ("U8", [4, 8], bytes(32))
    write(tmp_path, [{"t.shard_0.weight": shard, "t.shard_2.weight": shard}])
    with pytest.raises(warprow.WarprowError, match="shard 1 of"):
        warprow.open(f"attached:{tmp_path},tensor=t.shard_{{}}.weight")
    with pytest.raises(warprow.WarprowError, match="it has tensor, direct"):
        warprow.open(f"attached:{tmp_path},tensors=a")
