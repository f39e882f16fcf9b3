"""Rows in the memory of a second GPU, beside rows in GPU memory and in DRAM: how many rows a second a look-up gives.

    python python/benchmarks/peer_gpu.py [--peer 1] [--gib 2] [--ids 1024 16384 262144 1000000] [--json FILE]

One table of rows of `--dim` float32 lies whole in one place after the other: the memory of the GPU that looks up (`hbm_bytes`), the memory of
GPU `--peer` (`dram_bytes` with `peer_gpu`), and DRAM (`dram_bytes`). A look-up of a module of one feature is captured in a CUDA graph, and
replayed with other ids; ids are uniform, so that few repeat. Every row of every look-up that is compared is computed from its id. Times are
of CUDA events around `--replays` replays, the median of five.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

import warprow
import warprow.torch as wt

ROUNDS = 5


def content(ids: torch.Tensor, dim: int) -> torch.Tensor:
    """The rows of ids, the same bits on every device."""
    numbers = ids.unsqueeze(1) * 7919 + torch.arange(dim, device=ids.device) * 104729
    return ((numbers * 2654435761) % 65521).float() * 2.0**-16 - 0.5


def table(rows: int, dim: int) -> torch.Tensor:
    """All rows, which a GPU makes, some at a time."""
    made = torch.empty(rows, dim)
    for ids in torch.arange(rows, device="cuda").split(1 << 19):
        made[ids[0] : ids[-1] + 1] = content(ids, dim).cpu()
    return made


def measure(executor: warprow.Executor, rows: int, dim: int, count: int, replays: int) -> dict[str, float]:
    """Rows a second of look-ups of `count` ids, after rows were compared."""
    module = wt.Embedding(executor, "t", max_ids=count)
    random = torch.Generator(device="cuda").manual_seed(count)
    every = [torch.randint(rows, (count,), generator=random, device="cuda") for _ in range(4)]
    ids = every[0].clone()
    module(ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module(ids)
    for given in every:
        ids.copy_(given)
        graph.replay()
        if not torch.equal(out, content(ids, dim)):
            raise SystemExit(f"{count} ids: rows were wrong")
    times = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1000 / replays)
    module.check()
    graph.reset()
    seconds = statistics.median(times)
    return {"ids": count, "seconds": seconds, "rows_per_second": count / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=int, default=1, help="the number of the GPU that has the rows")
    parser.add_argument("--gib", type=float, default=2, help="bytes of all rows, GiB")
    parser.add_argument("--dim", type=int, default=128, help="elements of a row")
    parser.add_argument("--ids", type=int, nargs="+", default=[1024, 16384, 262_144, 1_000_000], help="ids of a look-up")
    parser.add_argument("--replays", type=int, default=20, help="replays that are timed together")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = int(options.gib * (1 << 30)) // (4 * options.dim)
    room = 2 * rows * 4 * options.dim
    lines: list[dict[str, Any]] = []
    with warprow.format(f"emulated:peer-gpu?backing=ram&size={room + (64 << 20)}") as store:
        store.load({"t": table(rows, options.dim)})
        places = {
            "GPU memory": {"hbm_bytes": room},
            f"memory of GPU {options.peer}": {"dram_bytes": room, "peer_gpu": options.peer},
            "DRAM": {"dram_bytes": room},
        }
        for place, given in places.items():
            with store.attach("cuda:0", **given) as executor:
                found = executor.tiers("t")
                if found["drives"] != 0:
                    raise SystemExit(f"{found['drives']} rows lie on the drive")
                for count in options.ids:
                    lines.append({"place": place, **measure(executor, rows, options.dim, count, options.replays)})
    print(f"{rows:,} rows of {4 * options.dim} B, {torch.cuda.get_device_name(0)}; every compared row was right")
    print("| ids of a look-up | " + " | ".join(places) + f" | GPU {options.peer}'s, of DRAM's |")
    print("|---" * (2 + len(places)) + "|")
    for count in options.ids:
        rates = [line["rows_per_second"] for line in lines if line["ids"] == count]
        print(f"| {count:,} | " + " | ".join(f"{rate / 1e6:.1f} M" for rate in rates) + f" | {rates[1] / rates[2]:.2f} |")
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
