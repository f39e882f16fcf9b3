"""The time of a look-up of few rows, alone beside its drives, which a GPU plays.

    CUDA_MODULE_LOADING=EAGER python python/benchmarks/few_rows.py [--rows 48] [--drives 1 4] [--rate "" gen6] [--linger 20us 2ms] [--gpu 0]

A table of rows of 512 B lies on emulated drives. A look-up of a module of one feature is captured in a CUDA graph, and replayed with other ids
each time, every `--pause` seconds; ids are uniform, so that hardly any repeat. Every row of every look-up is computed from its id and compared.
A drive that lingers shortly has its kernel launched for each look-up; the kernel of one that lingers longer than the pause is there already,
as a drive of the market is. Nothing waits for the whole device here: that would be a wait for the drives' kernels, too. Times are microseconds by the GPU's clock, the median of `--times` look-ups: the phases as `report()` has them, and CUDA events around
the replay, which add what starting a graph takes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import warprow
import warprow.torch as wt

DIM = 128


def content(ids: torch.Tensor) -> torch.Tensor:
    """The rows of ids, the same bits on every device."""
    numbers = ids.unsqueeze(1) * 7919 + torch.arange(DIM, device=ids.device) * 104729
    return ((numbers * 2654435761) % 65521).float() * 2.0**-16 - 0.5


def measure(executor: warprow.Executor, rows: int, count: int, times: int, pause: float) -> dict[str, float]:
    """Medians of the phases of look-ups of `count` ids, each compared."""
    module = wt.Embedding(executor, "t", max_ids=count)
    random = torch.Generator(device="cuda").manual_seed(count)
    ids = torch.randint(rows, (count,), generator=random, device="cuda")
    module(ids)
    torch.cuda.current_stream().synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = module(ids)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found: dict[str, list[float]] = {"prepare": [], "fetch": [], "expand": [], "look-up": [], "replay": []}
    for turn in range(times + 10):
        ids.copy_(torch.randint(rows, (count,), generator=random, device="cuda"))
        torch.cuda.current_stream().synchronize()
        time.sleep(pause)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.current_stream().synchronize()
        if not torch.equal(out, content(ids)):
            raise SystemExit(f"look-up {turn}: rows were wrong")
        module.check()
        report = module.report()
        if report is None or report["rows_ssd"] == 0:
            raise SystemExit(f"look-up {turn} read nothing from a drive: {report}")
        if turn < 10:
            continue
        for phase in ("prepare", "fetch", "expand"):
            found[phase].append(report[f"{phase}_seconds"] * 1e6)
        found["look-up"].append(report["seconds"] * 1e6)
        found["replay"].append(begin.elapsed_time(end) * 1e3)
    graph.reset()
    return {name: statistics.median(values) for name, values in found.items()} | {
        "p90": statistics.quantiles(found["look-up"], n=10)[8],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[48], help="ids of a look-up")
    parser.add_argument("--drives", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rate", nargs="+", default=["", "gen6"], help="profiles of the drives; '': no limit")
    parser.add_argument("--linger", nargs="+", default=["20us", "2ms"], help="how long drives look for commands behind the latest")
    parser.add_argument("--gpu", type=int, default=0, help="the number of the GPU that plays the drives")
    parser.add_argument("--pause", type=float, default=0.0005, help="seconds between two look-ups")
    parser.add_argument("--times", type=int, default=50, help="look-ups that are measured")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = 200_000
    lines = []
    print(f"{torch.cuda.get_device_name(0)}, drives by GPU {options.gpu}, rows of {4 * DIM} B; µs by the GPU's clock, medians of {options.times}")
    print("| rows | drives | profile | linger | until the first command | until the last row | behind it | look-up | its p90 | replay |")
    print("|---" * 10 + "|")
    for drives in options.drives:
        for rate in options.rate:
            for linger in options.linger:
                address = f"backing=ram&size=256M&gpu={options.gpu}&linger={linger}" + (f"&profile={rate}" if rate else "")
                with warprow.format([f"emulated:few-{at}?{address}" for at in range(drives)]) as store:
                    store.load({"t": content(torch.arange(rows))})
                    with store.attach("cuda:0") as executor:
                        for count in options.rows:
                            line = measure(executor, rows, count, options.times, options.pause)
                            lines.append({"rows": count, "drives": drives, "profile": rate, "linger": linger, **line})
                            numbers = " | ".join(f"{line[name]:.1f}" for name in ("prepare", "fetch", "expand", "look-up", "p90", "replay"))
                            print(f"| {count} | {drives} | {rate or 'none'} | {linger} | {numbers} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
