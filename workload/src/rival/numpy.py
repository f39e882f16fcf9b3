"""Rows of a mapped file by their ids, as numpy does it: `memmap[ids]`.

First a line of JSON is printed: `version`, or `missing`. Then a line of JSON is read: `path`, `rows`, `row_bytes`, `dtype` of an
element as numpy calls it, and `cold`: the page cache is asked to forget the file before each batch and behind it, and the file is
mapped anew, since numpy's mapping reads far around each row. The answer is a line of JSON, with `failed` if that cannot be. Then, for each batch, the number of
ids and the ids are read, little-endian words of 64 bits, and the answer is the nanoseconds that the rows took, and the rows.
"""

import json
import os
import struct
import sys
import time

out = sys.stdout.buffer


def say(**members):
    out.write(json.dumps(members).encode() + b"\n")
    out.flush()


try:
    import numpy
except ImportError as error:
    say(missing=f"python3 has no numpy: {error}")
    sys.exit(0)

say(version=str(numpy.__version__))
line = sys.stdin.buffer.readline()
if not line:
    sys.exit(0)
asked = json.loads(line)


def mapped():
    dtype = numpy.dtype(asked["dtype"])
    shape = (asked["rows"], asked["row_bytes"] // dtype.itemsize)
    return numpy.memmap(file, dtype=dtype, mode="r", shape=shape)


def forget():
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


try:
    file = open(asked["path"], "rb")
    table = mapped()
except Exception as error:
    say(failed=str(error))
    sys.exit(0)
say()
while len(header := sys.stdin.buffer.read(8)) == 8:
    (count,) = struct.unpack("<Q", header)
    ids = numpy.frombuffer(sys.stdin.buffer.read(8 * count), dtype="<i8")
    if asked["cold"]:
        forget()
    begin = time.perf_counter_ns()
    rows = table[ids]
    took = time.perf_counter_ns() - begin
    if asked["cold"]:
        del table
        forget()
        table = mapped()
    out.write(struct.pack("<Q", took))
    out.write(rows.tobytes())
    out.flush()
