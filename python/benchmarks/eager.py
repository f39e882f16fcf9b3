"""What an eager call of a module costs the CPU, and what a replayed graph takes, against `F.embedding` in one run. Rows are compared.

    python python/benchmarks/eager.py [--ids 24 1024 65536] [--dim 32 128] [--json FILE]

All rows lie in GPU memory. *CPU* is the time until the call has returned, in microseconds, as the least of several rounds of calls that are not
waited for; *GPU* is the time of a replay of a graph with four look-ups, for each of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import warprow
import warprow.torch

ROUNDS, CALLS = 15, 100


def cpu_time(call: Callable[[], object]) -> float:
    """Microseconds a call."""
    best = float("inf")
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, (time.perf_counter() - began) / CALLS)
        torch.cuda.synchronize()
    return best * 1e6


def replay_time(call: Callable[[], object]) -> float:
    """Microseconds of one of four look-ups in a graph, which is replayed five times."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(4):
            call()
    best = float("inf")
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(5):
            graph.replay()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 20)
    return best * 1e3


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ids", type=int, nargs="+", default=[24, 1024, 65536])
    arguments.add_argument("--dim", type=int, nargs="+", default=[32, 128])
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--json")
    given = arguments.parse_args()
    found = []
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds; all rows in GPU memory")
    print(f"{'dim':>4} {'ids':>6} | {'CPU: F.embedding':>17} {'warprow':>8} {'more':>6} | {'GPU: F.embedding':>17} {'warprow':>8}")
    with tempfile.TemporaryDirectory() as folder:
        for dim in given.dim:
            table = torch.randn(given.rows, dim)
            with warprow.format(f"emulated:{folder}/{dim}.drive?size=256M") as store:
                store.load({"t": table})
                executor = store.attach("cuda", hbm_bytes=table.nbytes * 2)
                assert executor.tiers("t")["hbm"] == given.rows
                on_gpu = table.cuda()
                for count in given.ids:
                    module = warprow.torch.Embedding(executor, "t", max_ids=max(count, 4096))
                    ids = torch.randint(0, given.rows, (count,), device="cuda")
                    assert torch.equal(module(ids), F.embedding(ids, on_gpu))
                    with torch.inference_mode():
                        plain, ours = cpu_time(lambda: F.embedding(ids, on_gpu)), cpu_time(lambda: module(ids))
                        replays = replay_time(lambda: F.embedding(ids, on_gpu)), replay_time(lambda: module(ids))
                    module.check()
                    print(f"{dim:>4} {count:>6} | {plain:>17.2f} {ours:>8.2f} {ours - plain:>+6.2f} | {replays[0]:>17.2f} {replays[1]:>8.2f}")
                    found.append({"dim": dim, "ids": count, "cpu": [plain, ours], "gpu": replays})
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "found": found}, file)


if __name__ == "__main__":
    main()
