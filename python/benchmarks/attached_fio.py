"""Rows of a file in place beside fio on the same file: reads a second, and reads a second of each core.

    python python/benchmarks/attached_fio.py --folder FOLDER [--fio fio] [--gib 4] [--seconds 3] [--json FILE]
    python python/benchmarks/attached_fio.py --folder FOLDER --loop      without fio: `uring_reads.c`, which `cc` compiles

A safetensors file of random bytes is written: rows of 512 B, which begin 8 B behind a multiple of 16. Both read random places of it past the page
cache, with 256 reads under way for each thread: `fio` blocks of 4 KiB by io_uring, and Warprow whole rows through `attached:`, by look-ups of 16,384
different ids on the host, each row compared. The loop of `uring_reads.c` does what fio does, with the file and the memory registered: fewer steps a
read can hardly have. *48 rows* is the median of microseconds of so many reads at once, and of a look-up of as many ids. `workers=` is the number of Warprow's threads, and of fio's jobs. Processor time is that of all threads,
in the kernel too: for Warprow the caller's as well, which makes the output.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

import warprow

DIM, BATCH, DEPTH = 128, 16_384, 256


def write(path: Path, rows: int, random: np.random.Generator) -> None:
    header = json.dumps({"t": {"dtype": "F32", "shape": [rows, DIM], "data_offsets": [0, rows * DIM * 4]}}).encode()
    header += b" " * ((8 - (8 + len(header))) % 16)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        for first in range(0, rows, 1 << 16):
            random.integers(0, 1 << 32, (min(1 << 16, rows - first), DIM), dtype=np.uint32).tofile(file)
        file.flush()
        os.fsync(file.fileno())


def by_warprow(path: Path, workers: int, seconds: float, random: np.random.Generator) -> dict[str, Any]:
    content = np.memmap(path, np.uint32, "r")
    with warprow.open(f"attached:{path},direct=1,depth={DEPTH},workers={workers}", read_only=True) as store:
        (table,) = store.tables()
        begin = (path.stat().st_size - table.rows * DIM * 4) // 4
        words = content[begin:].reshape(table.rows, DIM)
        plan = store.attach("cpu").plan([warprow.Feature("f", table.name)], max_batch=BATCH, max_ids=BATCH)
        out = np.empty((BATCH, DIM), np.float32)
        batches = [random.choice(table.rows, BATCH, replace=False) for _ in range(16)]
        plan.lookup(batches[0], out=out)
        if not np.array_equal(out.view(np.uint32), words[batches[0]]):
            raise SystemExit("wrong rows")
        reads, began, processor = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - began < seconds:
            ids = batches[reads // BATCH % len(batches)]
            plan.lookup(ids, out=out)
            reads += BATCH
        taken, cores = time.perf_counter() - began, (time.process_time() - processor) / (time.perf_counter() - began)
        if not np.array_equal(out.view(np.uint32), words[ids]):
            raise SystemExit("wrong rows")
        few = []
        for turn in range(100):
            time.sleep(0.005)
            ids, part = batches[0][48 * turn : 48 * (turn + 1)], out[:48]
            began = time.perf_counter()
            plan.lookup(ids, out=part)
            few.append((time.perf_counter() - began) * 1e6)
            if not np.array_equal(part.view(np.uint32), words[ids]):
                raise SystemExit("wrong rows")
    return {"way": "warprow", "workers": workers, "reads": reads / taken, "cores": cores, "few_us": statistics.median(few)}


def by_fio(fio: str, path: Path, workers: int, seconds: float) -> dict[str, Any]:
    job = {"name": "reads", "filename": path, "ioengine": "io_uring", "direct": 1, "rw": "randread", "bs": "4k", "iodepth": DEPTH}
    job |= {"numjobs": workers, "thread": 1, "group_reporting": 1, "time_based": 1, "runtime": f"{seconds}s", "output-format": "json"}
    job |= {"randrepeat": 0, "norandommap": 1}
    told = subprocess.run([fio, *(f"--{name}={value}" for name, value in job.items())], check=True, capture_output=True, text=True)
    (found,) = json.loads(told.stdout[told.stdout.index("{") :])["jobs"]
    # Percent of the time of all jobs together.
    cores = (found["usr_cpu"] + found["sys_cpu"]) / 100 * workers
    return {"way": "fio", "workers": workers, "reads": found["read"]["iops"], "cores": cores}


def by_loop(loop: Path, path: Path, seconds: float) -> dict[str, Any]:
    def told(*given: str) -> list[float]:
        return [float(it) for it in subprocess.run([loop, path, *given], check=True, capture_output=True, text=True).stdout.split()]

    reads, cores = told(str(seconds), str(DEPTH))
    return {"way": "loop", "workers": 1, "reads": reads, "cores": cores, "few_us": told("1", "48", "48")[2]}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--folder", type=Path, required=True)
    arguments.add_argument("--fio", default="fio")
    arguments.add_argument("--loop", action="store_true", help="a loop of C in the place of fio, of one thread")
    arguments.add_argument("--gib", type=float, default=4)
    arguments.add_argument("--workers", type=int, nargs="+", default=[1, 4])
    arguments.add_argument("--seconds", type=float, default=3)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    random = np.random.default_rng(1)
    given.folder.mkdir(parents=True, exist_ok=True)
    path = given.folder / "rows.safetensors"
    write(path, int(given.gib * (1 << 30)) // (DIM * 4), random)
    found, loop = [], given.folder / "uring_reads"
    if given.loop:
        subprocess.run(["cc", "-O2", "-o", loop, Path(__file__).parent / "uring_reads.c"], check=True)
    print(f"{os.cpu_count()} cores, {given.gib} GiB\n{'':>10} {'workers':>7} {'reads a second':>14} {'cores':>6} {'a core':>9} {'48 rows':>8}")
    for _ in range(given.rounds):
        for workers in [1] if given.loop else given.workers:
            rival = by_loop(loop, path, given.seconds) if given.loop else by_fio(given.fio, path, workers, given.seconds)
            for it in (rival, by_warprow(path, workers, given.seconds, random)):
                found.append(it)
                few = f"{it['few_us']:8.0f}" if "few_us" in it else ""
                print(f"{it['way']:>10} {workers:>7} {it['reads']:>14,.0f} {it['cores']:>6.2f} {it['reads'] / it['cores']:>9,.0f} {few}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    path.unlink()


if __name__ == "__main__":
    main()
