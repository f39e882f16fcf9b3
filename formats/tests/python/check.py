"""Compares tables that Warprow has written with what public readers find in them: the second, independent reader.

    check.py FILE NAME ROWS DIM TYPE HEX

Prints "same", or what differs.
"""

import sys

import numpy as np

path, name, rows, dim, kind, data = sys.argv[1:]
if path.endswith(".npy"):
    array = np.load(path)
else:
    from safetensors.numpy import load_file

    tensors = load_file(path)
    assert list(tensors) == [name], list(tensors)
    array = tensors[name]
types = {"f32": np.float32, "f16": np.float16, "i8": np.int8, "u8": np.uint8}
assert array.shape == (int(rows), int(dim)), array.shape
assert array.dtype == types[kind], array.dtype
assert array.tobytes().hex() == data, "the content differs"
print("same")
