"""Writes small tables with the formats' own public writers into a folder, and beside each what it holds.

    write.py FOLDER

expected.json: file -> table -> {rows, dim, type, keys, data}, data in hexadecimal. Values are from fixed seeds.
"""

import json
import os
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
rng = np.random.default_rng(7)
expected = {}


def note(file, table, array, kind, keys=None):
    entry = {"rows": array.shape[0], "dim": array.shape[1], "type": kind, "data": array.tobytes().hex()}
    entry["keys"] = None if keys is None else [int(key) for key in keys]
    expected.setdefault(file, {})[table] = entry


f32 = rng.standard_normal((37, 5)).astype(np.float32)
f32[3, 2], f32[4, 0], f32[5, 1] = np.nan, np.inf, -0.0
f16 = rng.standard_normal((11, 3)).astype(np.float16)
i8 = rng.integers(-128, 128, (8, 4), dtype=np.int8)
u8 = rng.integers(0, 256, (5, 1), dtype=np.uint8)
arrays = {"f32": f32, "f16": f16, "i8": i8, "u8": u8}


def path(name):
    return os.path.join(folder, name)


safetensors.numpy.save_file(arrays, path("numpy.safetensors"), metadata={"format": "np"})
np.savez(path("stored.npz"), **arrays)
np.savez_compressed(path("packed.npz"), **arrays)
for kind, array in arrays.items():
    note("numpy.safetensors", kind, array, kind)
    note("stored.npz", kind, array, kind)
    note("packed.npz", kind, array, kind)
    np.save(path(f"{kind}.npy"), array)
    note(f"{kind}.npy", kind, array, kind)

keys = rng.permutation(37).astype(np.int64)
vectors = pa.array(list(f32), type=pa.list_(pa.float32()))
table = pa.table({"id": pa.array(keys), "vector": vectors, "name": pa.array([str(key) for key in keys])})
pq.write_table(table, path("pyarrow.parquet"), row_group_size=10, data_page_size=64, compression="snappy")
note("pyarrow.parquet", "pyarrow", f32, "f32", keys)
fixed = pa.FixedSizeListArray.from_arrays(pa.array(f16.reshape(-1), type=pa.float16()), 3)
table = pa.table({"vector": fixed, "key": pa.array(np.arange(11)[::-1].astype(np.uint64))})
pq.write_table(table, path("fixed.parquet"), compression="zstd")
note("fixed.parquet", "fixed", f16, "f16", np.arange(11)[::-1])

# Every encoding that writers use for floats, in pages of both versions.
words = rng.choice(rng.standard_normal(11).astype(np.float32), (60, 7))
halves = words[:, :3].astype(np.float16)
for name, options in {
    "words": {"data_page_version": "1.0", "compression": "gzip", "use_dictionary": True},
    "words2": {"data_page_version": "2.0", "compression": "lz4", "use_dictionary": True},
    "plain2": {"data_page_version": "2.0", "compression": "none", "use_dictionary": False},
    "split": {"column_encoding": {"v.list.element": "BYTE_STREAM_SPLIT"}, "use_dictionary": False},
}.items():
    for ending, array in (("", words), ("16", halves)):
        vectors = pa.array(list(array), type=pa.list_(pa.from_numpy_dtype(array.dtype)))
        file = f"{name}{ending}.parquet"
        pq.write_table(pa.table({"v": vectors}), path(file), row_group_size=25, data_page_size=128, write_batch_size=10, **options)
        note(file, f"{name}{ending}", array, "f16" if ending else "f32")

with open(path("expected.json"), "w") as out:
    json.dump(expected, out)
