"""What an eager call of a module costs the CPU, and what a replayed graph takes, against `F.embedding` in one run. Rows are compared.

    python python/benchmarks/eager.py [--ids 24 1024 65536] [--dim 32 128] [--library libwarprow.so] [--json FILE]

All rows lie in GPU memory. *CPU* is the time until the call has returned, in microseconds, as the least of several rounds of calls that are not
waited for: of modules whose operators are Python's (*python*) and compiled (*compiled*, where `python -m warprow.torch.native build` was run).
*Whole* is the median time of a call and the wait for its rows, from an idle GPU. *GPU* is the time of a replay of a graph with four look-ups,
for each of them: of a module, and with `--library` of the same look-up captured by the C interface, without Python's part (*C*).
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
    arguments.add_argument("--library")
    arguments.add_argument("--json")
    given = arguments.parse_args()
    found = []
    compiled = _op.numbered
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; microseconds; all rows in GPU memory; operators compiled: {native.is_loaded()}")
    print(f"{'':>11} | {'CPU':<32} | {'whole':<26} | GPU")
    names = ("F.embedding", "python", "compiled")
    print(f"{'dim':>4} {'ids':>6} | {names[0]:>12} {names[1]:>9} {names[2]:>9} | {names[0]:>12} {names[2]:>13} | {names[0]:>12} {'module':>8} {'C':>8}")
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
                        gpu = [replay_time(plain), replay_time(ours)]
                        if by_c is not None:
                            gpu.append(replay_time(lambda: by_c(ids, next(each))))
                            assert all(torch.equal(out, wanted) for out in outs)
                    module.check()
                    text = f"{dim:>4} {count:>6} | {cpu[0]:>12.2f} {cpu[1]:>9.2f} {cpu[2]:>9.2f} | {whole[0]:>12.2f} {whole[1]:>13.2f} | "
                    print(text + f"{gpu[0]:>12.2f} {gpu[1]:>8.2f} {gpu[2] if by_c else float('nan'):>8.2f}")
                    found.append({"dim": dim, "ids": count, "cpu": cpu, "whole": whole, "gpu": gpu})
    if given.json:
        with open(given.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "found": found}, file)


if __name__ == "__main__":
    main()
