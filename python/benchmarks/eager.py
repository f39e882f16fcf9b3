"""What an eager call of a module costs the CPU, and what a replayed graph takes, against `F.embedding` in one run. Rows are compared.

    python python/benchmarks/eager.py [--ids 24 1024 65536] [--dim 32 128] [--library libwarprow.so] [--json FILE]

All rows lie in GPU memory. *CPU* is the time until the call has returned, in microseconds, as the least of several rounds of calls that are not
waited for: of modules whose operators are Python's (*python*) and compiled (*compiled*, where `python -m warprow.torch.native build` was run).
*Whole* is the median time of a call and the wait for its rows, from an idle GPU. *GPU* is the time of a replay of a graph with four look-ups,
for each of them: of a module, and with `--library` of the same look-up captured by the C interface, without Python's part (*C*). The graphs are
replayed in turns, and figures are medians; *module - C* is the median of the turns' differences, with its quartiles.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

import warprow
import warprow.torch
from warprow.torch import _op, native

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


def whole_time(call: Callable[[], object]) -> float:
    """Microseconds of a call and of the wait for it."""
    times = []
    for _ in range(400):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def replay_times(calls: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Microseconds of one of four look-ups in a graph, which is replayed five times: for each call, of so many rounds. In a round each graph has
    its turn, in an order that goes round."""
    graphs = [torch.cuda.CUDAGraph() for _ in calls]
    # Each look-up has an output of its own: torch would give an output that nobody keeps to the next one, which lies in the GPU's cache then.
    kept: list[object] = []
    for graph, call in zip(graphs, calls, strict=True):
        with torch.cuda.graph(graph):
            kept += [call() for _ in range(4)]
    times: list[list[float]] = [[] for _ in calls]
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    # The first rounds are not counted.
    for number in range(-3, rounds):
        for turn in range(len(graphs)):
            at = (turn + number) % len(graphs)
            torch.cuda.synchronize()
            begin.record()
            for _ in range(5):
                graphs[at].replay()
            end.record()
            end.synchronize()
            if number >= 0:
                times[at].append(begin.elapsed_time(end) / 20 * 1e3)
    return times


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """The median, and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, low, high


class CLookup:
    """A look-up by the C interface, on a store of its own."""

    def __init__(self, library: str, drive: str, rows_bytes: int, most: int) -> None:
        self._library = ctypes.CDLL(library)
        self._library.warprow_error_message.restype = ctypes.c_char_p
        self._library.warprow_error_message.argtypes = [ctypes.c_void_p]
        self._keep = [drive.encode(), b"t"]
        drives = (ctypes.c_char_p * 1)(self._keep[0])
        store = self._made("warprow_store_open", ctypes.c_uint32(0x10000), drives, ctypes.c_size_t(1), None)
        options = (ctypes.c_uint64 * 8)(64, rows_bytes)
        executor = self._made("warprow_gpu_executor_attach", store, ctypes.c_uint32(0), options)
        feature = (ctypes.c_uint64 * 7)(56, 0, ctypes.cast(self._keep[1], ctypes.c_void_p).value or 0)
        # As modules have it, an id that the table lacks is an error: WARPROW_MISSING_ERROR.
        planned = (ctypes.c_uint64 * 8)(64, most, most, 0, 4)
        plan = self._made("warprow_gpu_executor_plan", executor, feature, ctypes.c_size_t(1), planned)
        self._slot = self._made("warprow_gpu_plan_slot", plan)

    def _call(self, name: str, *arguments: object) -> None:
        error = ctypes.c_void_p()
        if getattr(self._library, name)(*arguments, ctypes.byref(error)) != 0:
            raise RuntimeError(self._library.warprow_error_message(error).decode())

    def _made(self, name: str, *arguments: object) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call(name, *arguments, ctypes.byref(made))
        return made

    def __call__(self, ids: torch.Tensor, out: torch.Tensor) -> ctypes.c_void_p:
        # warprow_batch and warprow_output; ids are signed, of 64 bits, and rows f32: both are 0.
        batch = (ctypes.c_uint64 * 9)(72, ids.data_ptr(), ids.numel(), ids.numel())
        output = (ctypes.c_uint64 * 7)(56, out.data_ptr(), out.numel())
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        return self._made("warprow_gpu_slot_lookup", self._slot, stream, batch, output)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ids", type=int, nargs="+", default=[24, 1024, 65536])
    arguments.add_argument("--dim", type=int, nargs="+", default=[32, 128])
    arguments.add_argument("--rows", type=int, default=100_000)
    arguments.add_argument("--rounds", type=int, default=200, help="rounds of replays")
    arguments.add_argument("--library")
    arguments.add_argument("--json")
    given = arguments.parse_args()
    found = []
    compiled = _op.numbered
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds; all rows in GPU memory; operators compiled: {native.is_loaded()}")
    print(f"{'':>11} | {'CPU':<32} | {'whole':<26} | GPU")
    names = ("F.embedding", "python", "compiled")
    print(f"{'dim':>4} {'ids':>6} | {names[0]:>12} {names[1]:>9} {names[2]:>9} | {names[0]:>12} {names[2]:>13} | {names[0]:>12} {'module':>8} {'C':>8}   module - C")
    with tempfile.TemporaryDirectory() as folder:
        for dim in given.dim:
            table = torch.randn(given.rows, dim)
            drives = [f"emulated:{folder}/{dim}-{number}.drive?size=256M" for number in range(2)]
            with warprow.format(drives[1]) as store:
                store.load({"t": table})
            by_c = CLookup(given.library, drives[1], table.nbytes * 2, max(given.ids)) if given.library else None
            with warprow.format(drives[0]) as store:
                store.load({"t": table})
                executor = store.attach("cuda", hbm_bytes=table.nbytes * 2)
                assert executor.tiers("t")["hbm"] == given.rows
                on_gpu = table.cuda()
                for count in given.ids:
                    module = warprow.torch.Embedding(executor, "t", max_ids=max(count, 4096))
                    ids = torch.randint(0, given.rows, (count,), device="cuda")
                    wanted, outs = F.embedding(ids, on_gpu), [torch.empty(count, dim, device="cuda") for _ in range(4)]
                    each = itertools.cycle(outs)
                    plain, ours = (lambda: F.embedding(ids, on_gpu)), (lambda: module(ids))
                    with torch.inference_mode():
                        cpu = [cpu_time(plain)]
                        for operator in (None, compiled):
                            _op.numbered = operator
                            assert torch.equal(ours(), wanted)
                            cpu.append(cpu_time(ours))
                        whole = whole_time(plain), whole_time(ours)
                        calls = [plain, ours] + ([lambda: by_c(ids, next(each))] if by_c is not None else [])
                        times = replay_times(calls, given.rounds)
                        assert by_c is None or all(torch.equal(out, wanted) for out in outs)
                    module.check()
                    text = f"{dim:>4} {count:>6} | {cpu[0]:>12.2f} {cpu[1]:>9.2f} {cpu[2]:>9.2f} | {whole[0]:>12.2f} {whole[1]:>13.2f} | "
                    gpu = [quartiles(each) for each in times]
                    text += " ".join(f"{median:>{width}.2f}" for (median, _, _), width in zip(gpu, (12, 8, 8), strict=False))
                    if by_c is not None:
                        between = quartiles([module - c for module, c in zip(times[1], times[2], strict=True)])
                        text += "   {:+.2f} ({:+.2f} to {:+.2f})".format(*between)
                    print(text)
                    found.append({"dim": dim, "ids": count, "cpu": cpu, "whole": whole, "gpu": gpu})
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "found": found}, file)


if __name__ == "__main__":
    main()
