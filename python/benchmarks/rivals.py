"""Look-ups of modules on a GPU, beside the ways that PyTorch's users have without Warprow, in turns in one run. Every row is compared.

    python python/benchmarks/rivals.py [--tier hbm dram drives] [--ids 24 1024 …] [--dim 32 128] [--alpha 1.05] [--json FILE]

Ids lie in GPU memory, are fresh in each turn, and follow a power law, or are uniform (`--alpha 0`). A time is the caller's: from an idle
GPU until the rows lie in GPU memory, in microseconds. The figures are medians; a ratio is the median of the turns' ratios, and above 1
Warprow is faster. Where `python -m warprow.torch.native build` was run, Warprow is there twice: `warprow` with operators in Python,
`compiled` with those of the library; of each rival there are then two ratios, to either.

Where a table lies, and who reads it there:

- *hbm*: all rows in GPU memory. Rivals: `F.embedding`, and `F.embedding_bag` for bags of 16 ids.
- *dram*: all rows in the host's memory. Rivals: a Triton kernel that reads pinned memory (`uva`), `index_select` into pinned memory and a
  copy (`pinned`), `F.embedding` on the CPU and a copy (`cpu`). The last two fetch the ids first, as they must.
- *drives*: 5% of the rows, the most frequent, in the host's memory, the others on an emulated drive, whose part a thread of the host plays
  from the page cache. Rivals: NumPy's gather from a mapped file of the rows, whose pages are in the page cache, and a copy (`memmap`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

import warprow
import warprow.torch
from warprow.torch import _op

#: The operator of eager calls that was compiled; None: it was not.
COMPILED = _op.numbered

BAG = 16
BUDGET_S = 1.2


@triton.jit
def gather_kernel(table, ids, out, dim: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, dim)
    place = tl.load(ids + row).to(tl.int64)
    tl.store(out + row * dim + lanes, tl.load(table + place * dim + lanes))


def by(operator: Callable | None, module: Callable) -> Callable:
    """Calls of a module by the compiled operator, or by Python's."""

    def call(ids: torch.Tensor) -> torch.Tensor:
        _op.numbered = operator
        return module(ids)

    return call


def ours(module: Callable) -> dict[str, Callable]:
    """Warprow's contenders."""
    found = {"warprow": by(None, module)}
    return found if COMPILED is None else {**found, "compiled": by(COMPILED, module)}


class Batches:
    """Fresh ids in GPU memory."""

    def __init__(self, rows: int, alpha: float, seed: int) -> None:
        self.rows, self.alpha = rows, alpha
        self.generator = np.random.default_rng(seed)
        self.ids_of_ranks = self.generator.permutation(rows)

    def next(self, count: int) -> torch.Tensor:
        uniform = self.generator.random(count)
        if self.alpha == 0:
            ranks = uniform * self.rows
        else:
            # The inverse of the power law's distribution function, of reals from 1 to rows + 1.
            power = 1 - self.alpha
            ranks = (1 + uniform * ((self.rows + 1) ** power - 1)) ** (1 / power) - 1
        ranks = ranks.astype(np.int64).clip(0, self.rows - 1)
        return torch.from_numpy(self.ids_of_ranks[ranks]).cuda()


def race(contenders: dict[str, Callable], batches: Batches, count: int, truth: Callable) -> dict[str, dict]:
    """Times by name, with ratios to each of Warprow's."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    began = time.perf_counter()
    turn = 0
    while turn < 7 or (turn < 200 and time.perf_counter() - began < BUDGET_S):
        names = list(contenders)
        # Whoever goes first changes.
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            ids = batches.next(count)
            torch.cuda.synchronize()
            start = time.perf_counter()
            rows = contenders[name](ids)
            torch.cuda.synchronize()
            taken = time.perf_counter() - start
            # The first two turns warm up.
            if turn >= 2:
                times[name].append(taken * 1e6)
            wanted = truth(ids)
            # PyTorch adds the rows of a bag up in an order of its own.
            is_right = torch.allclose(rows, wanted, atol=1e-4) if name == "F.embedding_bag" else torch.equal(rows, wanted)
            if not is_right:
                raise SystemExit(f"{name}, {count} ids: wrong rows")
            del rows, wanted
        turn += 1
    own = {name: times[name] for name in ("warprow", "compiled") if name in times}
    return {
        name: {
            "median_us": statistics.median(taken),
            "ratios": {mine: statistics.median(theirs / we for theirs, we in zip(taken, own[mine])) for mine in own},
            "turns": len(taken),
        }
        for name, taken in times.items()
    }


def contenders_of(tier: str, module, bag, table: torch.Tensor, on_gpu: torch.Tensor, mapped: np.ndarray, count: int) -> dict[str, dict[str, Callable]]:
    """Contenders by what they look up: rows, or sums of bags."""
    dim = table.shape[1]
    if tier == "hbm":
        bags = {**ours(lambda ids: bag(ids.view(-1, BAG))), "F.embedding_bag": lambda ids: F.embedding_bag(ids.view(-1, BAG), on_gpu, mode="sum")}
        rows = {**ours(module), "F.embedding": lambda ids: F.embedding(ids, on_gpu)}
        return {"rows": rows, "bags": bags} if count % BAG == 0 else {"rows": rows}
    if tier == "dram":
        staging = torch.empty(count, dim, pin_memory=True)

        def uva(ids: torch.Tensor) -> torch.Tensor:
            out = torch.empty(count, dim, device="cuda")
            gather_kernel[(count,)](table, ids, out, dim, num_warps=1)
            return out

        def pinned(ids: torch.Tensor) -> torch.Tensor:
            torch.index_select(table, 0, ids.cpu(), out=staging)
            return staging.to("cuda", non_blocking=True)

        return {"rows": {**ours(module), "uva": uva, "pinned": pinned, "cpu": lambda ids: F.embedding(ids.cpu(), table).cuda()}}
    return {"rows": {**ours(module), "memmap": lambda ids: torch.from_numpy(mapped[ids.cpu().numpy()]).cuda()}}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tier", nargs="+", choices=["hbm", "dram", "drives"], default=["hbm", "dram", "drives"])
    arguments.add_argument("--ids", type=int, nargs="+", default=[24, 1024, 16384, 262144, 2097152])
    arguments.add_argument("--dim", type=int, nargs="+", default=[32, 128])
    arguments.add_argument("--bytes", type=int, default=512 << 20, help="bytes of the table")
    arguments.add_argument("--alpha", type=float, default=1.05)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--json")
    given = arguments.parse_args()
    device = torch.cuda.get_device_name()
    print(f"{device}, {os.cpu_count()} cores, torch {torch.__version__}; α = {given.alpha}, seed {given.seed}; microseconds, medians")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for dim in given.dim:
            rows = given.bytes // 4 // dim
            batches = Batches(rows, given.alpha, given.seed)
            table = torch.empty(rows, dim, pin_memory=True)
            table.copy_(torch.randn(rows, dim, generator=torch.Generator().manual_seed(given.seed)))
            on_gpu = table.cuda()
            file = Path(folder) / f"{dim}.rows"
            table.numpy().tofile(file)
            mapped = np.memmap(file, dtype=np.float32, mode="r", shape=(rows, dim))
            np.add.reduce(mapped[::8], axis=0)
            hotness = np.empty(rows, np.int64)
            hotness[batches.ids_of_ranks] = np.arange(rows, 0, -1)
            with warprow.format(f"emulated:{folder}/{dim}.drive?size={2 * given.bytes + (256 << 20)}") as store:
                store.load({"t": table}, hotness={"t": hotness})
                memory = {
                    "hbm": {"hbm_bytes": 2 * given.bytes},
                    "dram": {"dram_bytes": 2 * given.bytes},
                    "drives": {"dram_bytes": given.bytes // 20},
                }
                for tier in given.tier:
                    with store.attach("cuda", **memory[tier]) as executor:
                        in_tier = executor.tiers("t")
                        for count in given.ids:
                            module = warprow.torch.Embedding(executor, "t", max_ids=max(count, 4096))
                            bag = warprow.torch.EmbeddingBag(executor, "t", mode="sum", max_ids=max(count, 4096))
                            with torch.inference_mode():
                                for what, contenders in contenders_of(tier, module, bag, table, on_gpu, mapped, count).items():
                                    if what == "rows":
                                        # By another kernel than any contender's, which would find its own code warm.
                                        truth = lambda ids: on_gpu[ids]
                                    else:
                                        truth = lambda ids: sums_in_order(ids.view(-1, BAG), on_gpu)
                                    result = race(contenders, batches, count, truth)
                                    module.check(), bag.check()
                                    line = ", ".join(
                                        f"{name} {one['median_us']:.1f}"
                                        + ("" if name == "warprow" else f" ({', '.join(f'{it:.2f}×' for it in one['ratios'].values())})")
                                        for name, one in result.items()
                                    )
                                    print(f"{tier:>6} {what} dim {dim:>3} ids {count:>7} | {line}", flush=True)
                                    found.append({"tier": tier, "what": what, "dim": dim, "ids": count, "in": in_tier, "found": result})
                            del module, bag
            del on_gpu, table, mapped
            torch.cuda.empty_cache()
    if given.json:
        Path(given.json).write_text(json.dumps({"device": device, "torch": torch.__version__, "alpha": given.alpha, "found": found}, indent=1))


def sums_in_order(bags: torch.Tensor, on_gpu: torch.Tensor) -> torch.Tensor:
    """Sums of bags, added up one row after the other, as Warprow does."""
    total = on_gpu[bags[:, 0]].clone()
    for place in range(1, bags.shape[1]):
        total += on_gpu[bags[:, place]]
    return total


if __name__ == "__main__":
    main()
