"""Rows of a mapped file by their ids, as numpy does it: `memmap[ids]`.

The only argument is a JSON object: `path`, `rows`, `row_bytes` (of float32 elements), `cold` (the file is mapped anew for each
batch, and the page cache is asked to forget it before, and behind it: numpy's mapping reads far around each row). First a line of JSON is printed: `version`, or `missing`. Then, for each
batch on standard input, the number of ids and the ids, little-endian words of 64 bits, the answer is the nanoseconds that the
rows took, and the rows.
"""

import json
import os
import struct
import sys
import time

asked = json.loads(sys.argv[1])
out = sys.stdout.buffer
try:
    import numpy
except ImportError as error:
    print(json.dumps({"missing": f"numpy is not installed for python3: {error}"}), flush=True)
    sys.exit(0)

file = open(asked["path"], "rb")
shape = (asked["rows"], asked["row_bytes"] // 4)


def mapped():
    return numpy.memmap(file, dtype="<f4", mode="r", shape=shape)


def forget():
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if asked["cold"]:
    forget()
table = mapped()
out.write(json.dumps({"version": numpy.__version__}).encode() + b"\n")
out.flush()
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
