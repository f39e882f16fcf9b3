#!/usr/bin/env python3
"""Loading and exporting a table in every format, against dd.

    bench/formats.py WARPROW [--rows N] [--pairs N] [--dir FOLDER] [--json]

The formats' own writers, where they have public ones (safetensors, numpy, pyarrow), write a table of f32, 128 wide, into FOLDER; it is
loaded onto an emulated drive there, by one process that formats nothing else, and every row compared with the file's afterwards
(`warprow verify --against`). dd writes as many bytes as the table has to another file there in the same turn, as the drive writes them
(past the page cache, if the file system lets it) and flushes them. Then the table is exported, compared byte by byte with what was loaded, and dd
copies as many bytes of the drive's file to another. Figures are medians; the ratio is the median of the turns' ratios. Files are read from the page cache.

Needs numpy, safetensors and pyarrow, and four times the table's size in FOLDER.
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy

DIM = 128


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("warprow", help="the command, of a release build")
    parser.add_argument("--rows", type=int, default=1 << 20, help="rows of 512 B [default: 1048576]")
    parser.add_argument("--pairs", type=int, default=3, help="turns of each format [default: 3]")
    parser.add_argument("--dir", default="/var/tmp", help="where files are made, and removed [default: /var/tmp]")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    args = parser.parse_args()
    if args.rows < 2 or args.pairs < 1:
        parser.error("--rows 2 and --pairs 1 at least")
    # Whole MiB, as dd has them.
    args.rows = max(args.rows & ~2047, 2048)
    return args


def timed(command):
    start = time.perf_counter()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return time.perf_counter() - start


def raw(path, *parts):
    with open(path, "wb") as file:
        for part in parts:
            file.write(part)


def head(kind):
    """Of a file of an embedding collection."""
    return struct.pack("<ii", kind, 0).ljust(128, b"\0")


class Formats:
    """Writes the table, and says how it is loaded and compared."""

    def __init__(self, folder, rows, seed=1):
        rng = np.random.default_rng(seed)
        self.folder, self.rows = folder, rows
        self.table = rng.standard_normal((rows, DIM), dtype=np.float32)
        self.ids = rng.permutation(rows).astype(np.int64)
        # What nobody would call ids.
        self.keys = self.ids * 2654435761 + 12345

    def path(self, name):
        return os.path.join(self.folder, name)

    def safetensors(self):
        safetensors.numpy.save_file({"t": self.table}, self.path("t.safetensors"))
        return self.path("t.safetensors"), []

    def safetensors_index(self):
        folder, half = self.path("sharded"), self.rows // 2
        os.makedirs(folder)
        safetensors.numpy.save_file({"t": self.table[:half]}, os.path.join(folder, "model-1.safetensors"))
        safetensors.numpy.save_file({"u": self.table[half:]}, os.path.join(folder, "model-2.safetensors"))
        with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as file:
            json.dump({"weight_map": {"t": "model-1.safetensors", "u": "model-2.safetensors"}}, file)
        return folder, ["--all"]

    def npy(self):
        np.save(self.path("t.npy"), self.table)
        return self.path("t.npy"), []

    def npz(self):
        np.savez(self.path("t.npz"), t=self.table)
        return self.path("t.npz"), []

    def npz_deflated(self):
        np.savez_compressed(self.path("p.npz"), t=self.table)
        return self.path("p.npz"), []

    def hugectr(self, keys, name):
        folder = self.path(name)
        os.makedirs(folder)
        raw(os.path.join(folder, "key"), keys)
        raw(os.path.join(folder, "emb_vector"), self.table)
        return folder, []

    def hugectr_ids(self):
        return self.hugectr(self.ids, "ids")

    def hugectr_keys(self):
        return self.hugectr(self.keys, "keys")

    def embedding_collection(self):
        folder = self.path("collection")
        os.makedirs(folder)
        raw(os.path.join(folder, "meta_data"), struct.pack("<iiiii", 1, 1, 0, 0, 0), struct.pack("<iQi", 0, self.rows, DIM))
        raw(os.path.join(folder, "key0"), head(1), self.keys)
        raw(os.path.join(folder, "weight0"), head(2), self.table)
        return folder, []

    def dynamicemb(self):
        folder, half = self.path("dynamic"), self.rows // 2
        os.makedirs(folder)
        for rank, part in enumerate((slice(None, half), slice(half, None))):
            raw(os.path.join(folder, f"t_emb_keys.rank_{rank}.world_size_2"), self.keys[part])
            raw(os.path.join(folder, f"t_emb_values.rank_{rank}.world_size_2"), self.table[part])
        return folder, []

    def parquet(self):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(self.table.reshape(-1)), DIM)
        table = pa.table({"id": pa.array(np.arange(self.rows)), "vector": vectors})
        pq.write_table(table, self.path("t.parquet"), compression="none", use_dictionary=False)
        return self.path("t.parquet"), []

    def parquet_zstd(self):
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(self.table.reshape(-1)), DIM)
        table = pa.table({"id": pa.array(self.ids), "vector": vectors})
        pq.write_table(table, self.path("z.parquet"), compression="zstd")
        return self.path("z.parquet"), []

    def raw(self):
        raw(self.path("t.bin"), self.table)
        return self.path("t.bin"), ["--shape", f"{self.rows}x{DIM}:f32"]

    def all(self):
        """In ids' order, in another, of sparse keys."""
        return {
            "safetensors": self.safetensors,
            "safetensors-index": self.safetensors_index,
            "npy": self.npy,
            "npz": self.npz,
            "npz, deflated": self.npz_deflated,
            "raw": self.raw,
            "parquet": self.parquet,
            "parquet, zstd, ids in disorder": self.parquet_zstd,
            "hugectr, ids in disorder": self.hugectr_ids,
            "hugectr, sparse keys": self.hugectr_keys,
            "embedding-collection, sparse keys": self.embedding_collection,
            "dynamicemb, sparse keys": self.dynamicemb,
        }


def takes_direct(folder):
    path = os.path.join(folder, "direct")
    done = subprocess.run(
        ["dd", "if=/dev/zero", f"of={path}", "bs=4096", "count=1", "oflag=direct"], capture_output=True, check=False
    )
    os.remove(path)
    return done.returncode == 0


def measure(args, folder):
    formats = Formats(folder, args.rows)
    size = args.rows * DIM * 4
    direct = takes_direct(folder)
    drive, other = os.path.join(folder, "a.drive"), os.path.join(folder, "dd")
    address = f"emulated:{drive}" + (",direct=1" if direct else "")
    results = []

    def fresh():
        for path in (drive, drive + ".nvme.toml"):
            if os.path.exists(path):
                os.remove(path)
        made = f"emulated:{drive},size={(size * 5 >> 1) + (128 << 20) >> 20 << 20}"
        timed([args.warprow, "format", "-d", made, "--yes"])

    def dd_write():
        flags = ["oflag=direct"] if direct else []
        took = timed(["dd", "if=/dev/zero", f"of={other}", "bs=1M", f"count={size >> 20}", "conv=fsync", *flags])
        os.remove(other)
        return took

    for name, write in formats.all().items():
        print(f"  {name}", file=sys.stderr)
        file, extra = write()
        loads = []
        for _ in range(args.pairs):
            fresh()
            took = timed([args.warprow, "load", "-d", address, file, *extra])
            loads.append((size / took, size / dd_write()))
        shape = [] if extra == ["--all"] else extra
        timed([args.warprow, "verify", "-d", address, "--against", file, *shape])
        results.append(entry("load", name, loads))
        if name == "npy":
            for ending in ("safetensors", "npy"):
                out, exports = os.path.join(folder, f"out.{ending}"), []
                for _ in range(args.pairs):
                    took = timed([args.warprow, "export", "-d", address, "--table", "t", "--out", out, "--force"])
                    # The end of it is durable, as dd's is.
                    flags = ["iflag=direct"] if direct else []
                    copied = timed(["dd", f"if={drive}", f"of={other}", "bs=1M", f"count={size >> 20}", "conv=fsync", *flags])
                    os.remove(other)
                    exports.append((size / took, size / copied))
                read = np.load(out) if ending == "npy" else safetensors.numpy.load_file(out)["t"]
                if read.tobytes() != formats.table.tobytes():
                    sys.exit(f"{out} is not what was loaded")
                os.remove(out)
                results.append(entry("export", ending, exports))
        shutil.rmtree(file) if os.path.isdir(file) else os.remove(file)
    return {"schema": 1, "size": size, "row_bytes": DIM * 4, "pairs": args.pairs, "direct": direct, "results": results}


def entry(what, name, pairs):
    ours, dd = (statistics.median(column) for column in zip(*pairs))
    ratios = [a / b for a, b in pairs]
    return {
        "what": what,
        "format": name,
        "bytes_per_second": ours,
        "dd_bytes_per_second": dd,
        "ratio": statistics.median(ratios),
        "ratios": [min(ratios), max(ratios)],
    }


def main():
    args = parse()
    with tempfile.TemporaryDirectory(prefix="warprow-formats-", dir=args.dir) as folder:
        result = measure(args, folder)
    if args.json:
        print(json.dumps(result))
        return
    way = "past the page cache" if result["direct"] else "through the page cache"
    print(f"{result['size']} B of rows of {result['row_bytes']} B, drive and dd {way}; medians of {args.pairs}\n")
    print(f"{'':8}{'format':36}{'MB/s':>8}{'dd':>8}   of dd")
    for it in result["results"]:
        ours, dd, (least, most) = it["bytes_per_second"] / 1e6, it["dd_bytes_per_second"] / 1e6, it["ratios"]
        print(f"{it['what']:8}{it['format']:36}{ours:8.0f}{dd:8.0f}   {it['ratio']:.2f} ({least:.2f}-{most:.2f})")


if __name__ == "__main__":
    main()
