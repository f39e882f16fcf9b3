"""N-gram rows beside a decoder's matrix products, in captured graphs: on drives that a GPU plays, beside the ways that engines have.

    python python/benchmarks/ngram_layers.py --tokens english.u32 --words words.u32 [--end 0] [--what decode prefill cpu] [--json FILE]

A step of the decoder is one graph: 40 layers, each of matrix products in bf16 that fill the GPU, of about 0.3 ms for few tokens. Layers 1 and
14 take rows of an n-gram table: 24 ids a token and layer, DeepSeek-V4.1-Flash's hashes of real text (`bench/ngram/tokens.py` makes the two
files), each token of a sequence of its own. Rows have 256 elements; the ids count modulo `--rows`, since the drives' rows lie in GPU memory.
In each step, all ways get the same fresh ids in turns, and every row is compared.

- `none`: the products alone. Rows are zeros, which have the same products.
- `pinned`: a Triton kernel that reads codes of E4M3 and E8M0 scales in pinned memory, on a stream beside the layers, as vLLM does.
- `warprow N`: `NgramTable` over N drives with the timing of a Gen5 TLC drive: both layers' prefetches are captured at the start of the step,
  layer 14's behind layer 1's. The rows on drives are the same numbers in bf16, 512 B each. `--player` says who answers the drives' reads: a
  GPU by its number, or a thread of the host for each drive. A GPU that decodes and plays the drives shares its multiprocessors among both,
  as no drive of its own would.
- `attached`: with `--disk FOLDER`, `NgramTable` over sparse files of the table's true size, read past the page cache by a thread of the
  host; the rows of all ids are in the files. `+ scales on GPU`: the same with codes alone on the disk, and all scales in GPU memory.
- `host read`: the ids are copied to the host, the stream is synchronised, each different row is read by `preadv` from a file in the page
  cache, and copied up: then the graph runs.
- `mmap`: the same by NumPy from a mapped file in the page cache.
- `io_uring`: with `--disk`, a thread of the host (`uring_rows.c`, which `cc` compiles) reads the rows past the page cache from the file that
  `attached` reads. The graph copies the ids to pinned memory, asks by `cuStreamWriteValue32`, waits by `cuStreamWaitValue32` beside the
  layers, and reads the rows from pinned memory: no step is synchronised. `+ scales in DRAM`: codes alone are read.
- `host look-up N`: with `--host-lookups`, the same asking and waiting, and a thread of Python that looks rows up by a host executor on the
  drives of `warprow N`.

`--priorities high normal` runs the ways of Warprow once with each `prefetch_priority`. `--without WAY…` leaves other ways out. `--recover` calls
`recover` of the tables before each step, as serving engines do: threads that play drives are awake then.

*step* is the caller's time in microseconds from before the copy of the ids until the step has ended, *GPU* that of the graph alone by events;
both are medians. *exposed* is the median of the turns' differences to `none`. *of pinned* is pinned's step over that of the way: 1 is level.
*cpu* is apart from these: processor time of all threads over time, in cores, of steps of one way after the other with no other store
open; whoever waits for a step's end sleeps.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import statistics
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import triton
import triton.language as tl

import warprow
import warprow.torch

HEADS, DIM, BLOCK = 24, 256, 32
HIDDEN, WIDE, KEYS = 5120, 20480, 25600
ENGRAM = (1, 14)
LAYERS = 40


@triton.jit
def pinned_kernel(codes, scales, ids, out, dim: tl.constexpr, block: tl.constexpr):
    """A row of codes and its scales, as bf16."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, dim)
    place = tl.load(ids + row).to(tl.int64)
    code = tl.load(codes + place * dim + lanes).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    power = tl.load(scales + place * (dim // block) + lanes // block).to(tl.int32)
    factor = (power << 23).to(tl.float32, bitcast=True)
    tl.store(out + row * dim + lanes, (code * factor).to(tl.bfloat16))


class Table:
    """Rows of codes and scales, made by a seed: in pinned memory, in GPU memory for comparison, and as numbers."""

    def __init__(self, rows: int, seed: int) -> None:
        random = torch.Generator(device="cuda").manual_seed(seed)
        codes = torch.randint(0, 127, (rows, DIM), generator=random, dtype=torch.uint8, device="cuda")
        codes |= torch.randint(0, 2, (rows, DIM), generator=random, dtype=torch.uint8, device="cuda") << 7
        scales = torch.randint(118, 134, (rows, DIM // BLOCK), generator=random, dtype=torch.uint8, device="cuda")
        self.rows, self.on_gpu, self.scales_on_gpu = rows, codes, scales
        self.codes = torch.empty(codes.shape, dtype=torch.uint8, pin_memory=True)
        self.scales = torch.empty(scales.shape, dtype=torch.uint8, pin_memory=True)
        self.codes.copy_(codes), self.scales.copy_(scales)

    def numbers(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids in GPU memory, by the formats' definition."""
        return numbers_of(self.on_gpu[ids.long()], self.scales_on_gpu[ids.long()])

    def blocks(self) -> Any:
        """All rows as bf16, a part at a time."""
        for first in range(0, self.rows, 1 << 18):
            part = slice(first, first + (1 << 18))
            yield numbers_of(self.on_gpu[part], self.scales_on_gpu[part]).cpu()


def numbers_of(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    factors = torch.exp2(scales.float() - 127).repeat_interleave(BLOCK, -1)
    return (codes.view(torch.float8_e4m3fn).float() * factors).to(torch.bfloat16)


class Decoder:
    """Matrix products of a decoder's shapes, without attention."""

    def __init__(self, layers: int, seed: int) -> None:
        random = torch.Generator(device="cuda").manual_seed(seed)

        def weights(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=random, device="cuda", dtype=torch.bfloat16) / shape[0] ** 0.5

        self.layers = layers
        # Four sets, which no cache of the GPU holds.
        self.sets = [[(weights(HIDDEN, WIDE), weights(WIDE, HIDDEN)) for _ in range(2)] for _ in range(4)]
        self.into = [weights(HEADS * DIM, KEYS) for _ in ENGRAM]

    def layer(self, hidden: torch.Tensor, number: int, products: int = 2) -> torch.Tensor:
        for up, down in (self.sets[number % 4] * products)[:products]:
            hidden = F.rms_norm(hidden, (HIDDEN,)) + F.silu(hidden @ up) @ down
        return hidden

    def with_rows(self, hidden: torch.Tensor, rows: torch.Tensor, which: int) -> torch.Tensor:
        """Four keys and a value of the rows; gates by the keys."""
        *keys, value = (rows @ self.into[which]).split(HIDDEN, -1)
        gate = sum(torch.sigmoid((key * hidden).sum(-1, keepdim=True) / HIDDEN) for key in keys)
        return hidden + gate * value


def nothing(*_: Any) -> None:
    pass


class Step:
    """One graph of a step, by some way of getting rows."""

    def __init__(self, way: str, decoder: Decoder, tokens: int, begin: Callable, end: Callable, before: Callable | None = None) -> None:
        self.way, self.before, self.tokens = way, before, tokens
        #: What engines call between two steps.
        self.between: Callable | None = None
        self.ids = [torch.zeros((tokens, HEADS), dtype=torch.int64, device="cuda") for _ in ENGRAM]
        self.rows = [torch.zeros((tokens, HEADS * DIM), dtype=torch.bfloat16, device="cuda") for _ in ENGRAM]
        self.hidden = torch.ones((tokens, HIDDEN), dtype=torch.bfloat16, device="cuda")
        self.begin, self.end, self.decoder = begin, end, decoder
        self.graph = torch.cuda.CUDAGraph()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # What CUDA loads or allocates for the products could wait for a look-up, which waits for a drive that a GPU plays.
            self.layers()
            torch.cuda.synchronize()
            for _ in range(2):
                self.run()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.out = self.run()

    def run(self) -> torch.Tensor:
        held = self.begin(self)
        return self.layers(lambda which: self.end(self, held, which))

    def layers(self, rows_there: Callable[[int], None] = nothing) -> torch.Tensor:
        hidden = self.hidden
        for number in range(self.decoder.layers):
            if number in ENGRAM:
                which = ENGRAM.index(number)
                rows_there(which)
                hidden = self.decoder.with_rows(hidden, self.rows[which], which)
            hidden = self.decoder.layer(hidden, number)
        return hidden

    def step(self, ids: list[torch.Tensor], begin: torch.cuda.Event, end: torch.cuda.Event) -> None:
        for place, given in zip(self.ids, ids):
            place.copy_(given)
        if self.between is not None:
            self.between()
        if self.before is not None:
            self.before(self)
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()


def pinned_way(table: Table) -> tuple[Callable, Callable]:
    """As vLLM has it: one stream beside the layers, an event for each layer."""
    stream, events = torch.cuda.Stream(), [torch.cuda.Event() for _ in ENGRAM]

    def begin(step: Step) -> None:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for ids, rows, event in zip(step.ids, step.rows, events):
                pinned_kernel[(ids.numel(),)](table.codes, table.scales, ids, rows, DIM, BLOCK, num_warps=1)
                event.record()

    def end(step: Step, held: None, which: int) -> None:
        torch.cuda.current_stream().wait_event(events[which])

    return begin, end


def warprow_way(modules: list[warprow.torch.NgramTable]) -> tuple[Callable, Callable]:
    """Both halves of each layer's look-up, the second layer's rows behind the first one's."""

    def begin(step: Step) -> list[Any]:
        held: list[Any] = []
        for module, ids in zip(modules, step.ids):
            held.append(module.prefetch(ids, behind=held[-1] if held else None))
        return held

    def end(step: Step, held: list[Any], which: int) -> None:
        modules[which].lookup(held[which], out=step.rows[which])

    return begin, end


class Staged:
    """Rows that the host fetches before the graph."""

    def __init__(self, most: int) -> None:
        self.codes = torch.empty((most, DIM), dtype=torch.uint8, pin_memory=True)
        self.scales = torch.empty((most, DIM // BLOCK), dtype=torch.uint8, pin_memory=True)
        self.codes_up, self.scales_up = (torch.empty(it.shape, dtype=torch.uint8, device="cuda") for it in (self.codes, self.scales))

    def up(self, count: int, inverse: torch.Tensor, out: torch.Tensor) -> None:
        """Copies rows up, and puts them where their ids are."""
        for there, here in ((self.codes_up, self.codes), (self.scales_up, self.scales)):
            there[:count].copy_(here[:count], non_blocking=True)
        places = inverse.to("cuda", non_blocking=True)
        pinned_kernel[(places.numel(),)](self.codes_up, self.scales_up, places, out, DIM, BLOCK, num_warps=1)


def read_way(files: tuple[int, int], most: int) -> Callable:
    """One `preadv` for each different row, as `host_file_gather` does."""
    staged = Staged(most)
    codes, scales = staged.codes.numpy(), staged.scales.numpy()

    def before(step: Step) -> None:
        for ids, out in zip(step.ids, step.rows):
            unique, inverse = np.unique(ids.cpu().numpy(), return_inverse=True)
            for place, row in enumerate(unique.tolist()):
                os.preadv(files[0], [codes[place]], row * DIM)
                os.preadv(files[1], [scales[place]], row * (DIM // BLOCK))
            staged.up(len(unique), torch.from_numpy(inverse.reshape(-1)), out)
            # The staging memory is used again.
            torch.cuda.current_stream().synchronize()

    return before


def mapped_way(maps: tuple[np.ndarray, np.ndarray], most: int) -> Callable:
    staged = Staged(most)
    codes, scales = staged.codes.numpy(), staged.scales.numpy()

    def before(step: Step) -> None:
        for ids, out in zip(step.ids, step.rows):
            unique, inverse = np.unique(ids.cpu().numpy(), return_inverse=True)
            np.take(maps[0], unique, axis=0, out=codes[: len(unique)])
            np.take(maps[1], unique, axis=0, out=scales[: len(unique)])
            staged.up(len(unique), torch.from_numpy(inverse.reshape(-1)), out)
            torch.cuda.current_stream().synchronize()

    return before


class Waiting:
    """The graph's half of ways in which a thread of the host brings rows, while the graph waits for a word in pinned memory."""

    DRIVER = ctypes.CDLL("libcuda.so.1")

    def __init__(self, count: int) -> None:
        self.ids = [torch.zeros(count, dtype=torch.int64, pin_memory=True) for _ in ENGRAM]
        # Of each layer: rows are asked for; rows are there.
        self.asked, self.done = (torch.zeros(len(ENGRAM), dtype=torch.int32, pin_memory=True) for _ in range(2))
        self.stream, self.events = torch.cuda.Stream(), [torch.cuda.Event() for _ in ENGRAM]

    def tell(self, call: str, words: torch.Tensor, which: int, value: int) -> None:
        """`cuStreamWriteValue32`, or `cuStreamWaitValue32` until the word is `value` or more."""
        stream, at = ctypes.c_void_p(self.stream.cuda_stream), ctypes.c_uint64(words.data_ptr() + 4 * which)
        code = getattr(self.DRIVER, call)(stream, at, ctypes.c_uint32(value), ctypes.c_uint(0))
        if code != 0:
            raise SystemExit(f"{call}: CUDA's error {code}")

    def take(self, step: Step, which: int) -> None:
        """Rows from pinned memory to the step."""
        raise NotImplementedError

    def way(self) -> tuple[Callable, Callable]:
        def begin(step: Step) -> None:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                for which, ids in enumerate(step.ids):
                    self.ids[which].copy_(ids.view(-1), non_blocking=True)
                    self.tell("cuStreamWriteValue32_v2", self.asked, which, 1)
                for which, event in enumerate(self.events):
                    self.tell("cuStreamWaitValue32_v2", self.done, which, 1)
                    self.tell("cuStreamWriteValue32_v2", self.done, which, 0)
                    self.take(step, which)
                    event.record()

        def end(step: Step, held: None, which: int) -> None:
            torch.cuda.current_stream().wait_event(self.events[which])

        return begin, end


class RingLayer(ctypes.Structure):
    """`struct layer` of `uring_rows.c`."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("codes_at", "scales_at", "scales_here", "asked", "done", "ids", "codes", "scales")] + [
        (name, ctypes.c_uint32) for name in ("count", "code_bytes", "scale_bytes", "failed")
    ]


class Ring(Waiting):
    """Rows by io_uring from a file whose header `write_attached` has made."""

    library: ctypes.CDLL | None = None

    def __init__(self, file: Path, count: int, scales: list[np.ndarray] | None, folder: str) -> None:
        super().__init__(count)
        if Ring.library is None:
            built = Path(folder) / "uring_rows.so"
            source = Path(__file__).parent / "uring_rows.c"
            subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", built, source], check=True)
            Ring.library = ctypes.CDLL(str(built))
            Ring.library.rows_begin.restype = ctypes.c_void_p
        self.codes, self.scales = (
            [torch.zeros((count, width), dtype=torch.uint8, pin_memory=True) for _ in ENGRAM] for width in (DIM, DIM // BLOCK)
        )
        self.places = torch.arange(count, device="cuda")
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length))
        layers = (RingLayer * len(ENGRAM))()
        for which, layer in enumerate(ENGRAM):
            begins = [8 + length + header[f"layers.{layer}.engram.embed.{name}"]["data_offsets"][0] for name in ("weight", "scale")]
            here = 0 if scales is None else scales[which].ctypes.data
            words = [it.data_ptr() + 4 * which for it in (self.asked, self.done)]
            rows = [it[which].data_ptr() for it in (self.ids, self.codes, self.scales)]
            layers[which] = RingLayer(*begins, here, *words, *rows, count, DIM, DIM // BLOCK, 0)
        error = ctypes.c_int()
        self.held = scales
        self.rows = Ring.library.rows_begin(str(file).encode(), layers, 256, ctypes.byref(error))
        if not self.rows:
            raise SystemExit(f"{file}: io_uring: {os.strerror(error.value)}")

    def take(self, step: Step, which: int) -> None:
        pinned_kernel[(self.places.numel(),)](self.codes[which], self.scales[which], self.places, step.rows[which], DIM, BLOCK, num_warps=1)

    def close(self) -> None:
        assert Ring.library is not None
        failed = Ring.library.rows_end(ctypes.c_void_p(self.rows))
        if failed:
            raise SystemExit(f"io_uring: {os.strerror(failed)}")


class HostLookups(Waiting):
    """Rows by a host executor, whose output is f32 in pinned memory."""

    def __init__(self, store: warprow.Store, count: int) -> None:
        super().__init__(count)
        self.staged = [torch.zeros((count, DIM), pin_memory=True) for _ in ENGRAM]
        plan = store.attach("cpu").plan([warprow.Feature("f", "t")], max_batch=count, max_ids=count)
        self.ends, self.thread = False, threading.Thread(target=self.serve, args=(plan,), daemon=True)
        self.thread.start()

    def serve(self, plan: warprow.Plan) -> None:
        asked, done = self.asked.numpy(), self.done.numpy()
        ids, staged = [it.numpy() for it in self.ids], [it.numpy() for it in self.staged]
        while not self.ends:
            for which in range(len(ENGRAM)):
                if asked[which]:
                    asked[which] = 0
                    try:
                        plan.lookup(ids[which], out=staged[which])
                    finally:
                        # The graph waits without a limit; rows are compared.
                        done[which] = 1
            # The thread that launches steps gets the interpreter.
            time.sleep(0)

    def take(self, step: Step, which: int) -> None:
        step.rows[which].view(-1, DIM).copy_(self.staged[which], non_blocking=True)

    def close(self) -> None:
        self.ends = True
        self.thread.join()


class Text:
    """Ids of both layers of each token of a text."""

    def __init__(self, tokens: Path, words: Path, end: int, rows: int, seed: int, most: int) -> None:
        text, own = np.fromfile(tokens, np.uint32)[:most], np.fromfile(words, np.uint32)
        self.whole = [warprow.NgramHash(f"engram-{layer}", words=own, end=end).ids(text) for layer in ENGRAM]
        self.of_rows = [torch.from_numpy(it % rows).cuda() for it in self.whole]
        self.count = len(text)
        self.random = np.random.default_rng(seed)

    def starts(self, sequences: int, steps: int, within: int) -> torch.Tensor:
        """Where sequences begin, among the first tokens."""
        return torch.from_numpy(self.random.choice(within - steps, sequences, replace=False)).cuda()

    def shares(self, count: int) -> float:
        """Different rows among the ids of one layer of so many tokens that follow each other."""
        return len(np.unique(self.whole[0][:count])) / self.whole[0][:count].size


def drives_of(folder: str, drives: int, size: int, player: str, profile: str) -> list[str]:
    each = (size // drives + (192 << 20)) >> 20
    by = "" if player == "host" else f"&gpu={int(player)}"
    return [f"emulated:{folder}/{drives}-{number}.drive?size={each}M&backing=ram{by}&profile={profile}" for number in range(drives)]


#: Rows of DeepSeek-V4.1-Flash's tables.
TRUE_ROWS = (384_006_168, 384_016_682)


def write_attached(folder: Path, table: Table, whole: list[np.ndarray], most: int) -> str:
    """A checkpoint of one sparse file of the tables' true size, with the rows of some ids. Row r has the content of row r modulo `table.rows`."""
    header, at = {}, 0
    for layer, rows in zip(ENGRAM, TRUE_ROWS):
        for name, dtype, width in (("weight", "F8_E4M3", DIM), ("scale", "F8_E8M0", DIM // BLOCK)):
            header[f"layers.{layer}.engram.embed.{name}"] = {"dtype": dtype, "shape": [rows, width], "data_offsets": [at, at + rows * width]}
            at += rows * width
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
        for layer, ids in zip(ENGRAM, whole):
            unique = np.unique(ids[:most])
            places = torch.from_numpy(unique % table.rows)
            codes, scales = table.codes[places].numpy(), table.scales[places].numpy()
            for name, content in (("weight", codes), ("scale", scales)):
                first = 8 + len(text) + header[f"layers.{layer}.engram.embed.{name}"]["data_offsets"][0]
                for row, one in zip(unique.tolist(), content):
                    os.pwrite(file.fileno(), one.tobytes(), first + row * content.shape[1])
        os.fsync(file.fileno())
    return f"attached:{folder}"


def told(modules: list[Any]) -> None:
    """Raises what befell look-ups."""
    for module in modules:
        module.check()


def race(
    steps: dict[str, Step], modules: dict[str, list[Any]], batches: Callable[[int, str], list[torch.Tensor]], table: Table, rounds: int
) -> dict[str, Any]:
    """Times of all ways in turns. Every row of every step is compared."""
    walls, graphs = {way: [] for way in steps}, {way: [] for way in steps}
    events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    compared = 0
    for turn in range(rounds + 3):
        order = list(steps)
        for way in order[turn % len(order) :] + order[: turn % len(order)]:
            ids = batches(turn, way)
            torch.cuda.synchronize()
            began = time.perf_counter()
            steps[way].step(ids, *events)
            wall = time.perf_counter() - began
            # The first three turns warm up.
            if turn >= 3:
                walls[way].append(wall * 1e6)
                graphs[way].append(events[0].elapsed_time(events[1]) * 1e3)
            told(modules.get(way, []))
            for given, rows in zip(ids, steps[way].rows):
                wanted = torch.zeros_like(rows) if way == "none" else table.numbers(given % table.rows).flatten(1)
                if not torch.equal(rows.view(torch.int16), wanted.view(torch.int16)):
                    raise SystemExit(f"{way}, {steps[way].tokens} tokens, turn {turn}: wrong rows")
                compared += given.numel()
    found: dict[str, Any] = {"compared": compared}
    for way in steps:
        found[way] = {
            "step_us": statistics.median(walls[way]),
            "gpu_us": statistics.median(graphs[way]),
            "exposed_us": statistics.median(mine - alone for mine, alone in zip(walls[way], walls["none"])),
            "exposed_gpu_us": statistics.median(mine - alone for mine, alone in zip(graphs[way], graphs["none"])),
            "of_pinned": statistics.median(theirs / mine for theirs, mine in zip(walls["pinned"], walls[way])),
        }
    return found


def cores_of(step: Step, batches: Callable[[int], list[torch.Tensor]], table: Table, rounds: int) -> float:
    """Processor time over time of steps one after the other. The last step's rows are compared."""
    events = torch.cuda.Event(enable_timing=True, blocking=True), torch.cuda.Event(enable_timing=True, blocking=True)
    step.step(batches(0), *events)
    began, processor = time.perf_counter(), time.process_time()
    for turn in range(1, rounds):
        step.step(batches(turn), *events)
    cores = (time.process_time() - processor) / (time.perf_counter() - began)
    for given, rows in zip(batches(rounds - 1), step.rows):
        if step.way != "none" and not torch.equal(rows, table.numbers(given % table.rows).flatten(1)):
            raise SystemExit(f"{step.way}: wrong rows")
    return cores


class Prefill:
    """8,192 tokens: one layer's rows behind the matrix products of one layer before it."""

    TOKENS = 8192

    def __init__(self, decoder: Decoder, table: Table, text: Text, products: int) -> None:
        self.decoder, self.table, self.text, self.products = decoder, table, text, products
        self.hidden = torch.ones((self.TOKENS, HIDDEN), dtype=torch.bfloat16, device="cuda")
        self.rows = torch.zeros((self.TOKENS, HEADS * DIM), dtype=torch.bfloat16, device="cuda")
        self.ids = torch.zeros((self.TOKENS, HEADS), dtype=torch.int64, device="cuda")
        self.side, self.beside = torch.cuda.Stream(), torch.cuda.Stream()
        self.alone = self.captured(nothing, nothing, True)
        head = f"{'products':>9} {'rows':>7} {'margin':>7} {'together':>9} {'exposed':>8}"
        print(f"{'prefill, 8,192 tokens':>30} | {head} | of pinned   (ms)", flush=True)

    def captured(self, begin: Callable, end: Callable, has_products: bool) -> torch.cuda.CUDAGraph:
        def run() -> None:
            held = begin()
            if has_products:
                self.decoder.layer(self.hidden, 0, self.products)
            end(held)

        graph = torch.cuda.CUDAGraph()
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.decoder.layer(self.hidden, 0, self.products)
            torch.cuda.synchronize()
            run()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            run()
        return graph

    def pinned(self) -> tuple[Callable, Callable]:
        def begin() -> None:
            self.beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.beside):
                pinned_kernel[(self.ids.numel(),)](self.table.codes, self.table.scales, self.ids, self.rows, DIM, BLOCK, num_warps=1)

        return begin, lambda _: torch.cuda.current_stream().wait_stream(self.beside)

    def warprow(self, module: Any) -> tuple[Callable, Callable]:
        return lambda: module.prefetch(self.ids), lambda held: module.lookup(held, out=self.rows)

    def timed(self, graph: torch.cuda.CUDAGraph, fresh: torch.Tensor | None, what: str, module: Any) -> float:
        """Milliseconds of a replay, whose rows are compared."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.rows.zero_()
        torch.cuda.synchronize()
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        told([module])
        if fresh is not None and not torch.equal(self.rows.view(torch.int16), self.table.numbers(fresh).flatten(1).view(torch.int16)):
            raise SystemExit(f"prefill by {what}: wrong rows")
        return begin.elapsed_time(end)

    def race(self, name: str, module: Any, rounds: int) -> list[dict[str, Any]]:
        """A module beside pinned memory, in turns: the products alone, the rows alone, and both."""
        ways = {"pinned": self.pinned(), name: self.warprow(module)}
        graphs = {way: (self.captured(*it, False), self.captured(*it, True)) for way, it in ways.items()}
        times: dict[str, list[tuple[float, float, float]]] = {way: [] for way in graphs}
        for turn in range(rounds + 2):
            first = int(self.text.random.integers(0, self.text.count - self.TOKENS))
            fresh = self.text.of_rows[0][first : first + self.TOKENS]
            self.ids.copy_(fresh)
            for way, (fetch, both) in graphs.items():
                beside = f"{way} beside products"
                taken = self.timed(self.alone, None, way, module), self.timed(fetch, fresh, way, module), self.timed(both, fresh, beside, module)
                # The first two turns warm up.
                if turn >= 2:
                    times[way].append(taken)
        module.check()
        found = []
        for way, taken in times.items():
            products, rows, both = (statistics.median(it) for it in zip(*taken))
            exposed = statistics.median(together - alone for alone, _, together in taken)
            of_pinned = statistics.median(theirs[2] / mine[2] for theirs, mine in zip(times["pinned"], taken))
            print(f"{way:>30} | {products:9.2f} {rows:7.2f} {products - rows:7.2f} {both:9.2f} {exposed:8.2f} | {of_pinned:9.3f}", flush=True)
            in_ms = {"products_ms": products, "rows_ms": rows, "together_ms": both, "exposed_ms": exposed}
            found.append({"way": way, "beside": name, **in_ms, "of_pinned": of_pinned})
        return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tokens", type=Path, required=True, help="a text's tokens, a u32 each")
    arguments.add_argument("--words", type=Path, required=True, help="each token's word, a u32 each")
    arguments.add_argument("--end", type=int, default=0, help="the token between two texts")
    arguments.add_argument("--what", nargs="+", choices=["decode", "prefill", "cpu"], default=["decode", "prefill", "cpu"])
    arguments.add_argument("--sequences", type=int, nargs="+", default=[1, 4, 16, 64])
    arguments.add_argument("--rows", type=int, default=4 << 20)
    arguments.add_argument("--drives", type=int, nargs="+", default=[1, 4])
    arguments.add_argument("--prefill-drives", type=int, nargs="+", default=[1, 4, 8])
    arguments.add_argument("--multiprocessors", type=int, nargs="+", default=[0, 8, 16, 32], help="budgets of prefills; 0: none")
    arguments.add_argument("--profile", default="gen5-tlc")
    arguments.add_argument("--player", default="host", help="the GPU that plays the drives, or \"host\"")
    arguments.add_argument("--disk", type=Path, help="a folder for sparse files")
    arguments.add_argument("--priorities", nargs="+", choices=["high", "normal"], default=["high"], help="of what fetches rows ahead")
    arguments.add_argument("--without", nargs="+", choices=["host read", "mmap"], default=[], help="ways that are left out")
    arguments.add_argument("--recover", action="store_true", help="call recover of the tables before each step")
    arguments.add_argument("--host-lookups", action="store_true", help="also look up by a host executor on the same drives")
    arguments.add_argument("--cpu-sequences", type=int, default=16, help="sequences of the steps whose processor time is measured")
    arguments.add_argument("--layers", type=int, default=LAYERS)
    arguments.add_argument("--products", type=int, default=3, help="pairs of products of the layer that a prefill hides behind")
    arguments.add_argument("--rounds", type=int, default=40)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    text = Text(given.tokens, given.words, given.end, given.rows, given.seed, 200_000)
    table = Table(given.rows, given.seed)
    decoder = Decoder(given.layers, given.seed)
    shares = {count: text.shares(count) for count in (64, 8192)}
    print(
        f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores, torch {torch.__version__}, drives played by {given.player}; seed {given.seed}; "
        f"{given.rows} rows; different rows of a layer's ids: {', '.join(f'{share:.1%} of {count} tokens' for count, share in shares.items())}",
        flush=True,
    )

    def write() -> None:
        if given.json:
            given.json.write_text(json.dumps(result, indent=1))

    result: dict[str, Any] = {"player": given.player, "device": torch.cuda.get_device_name(), "torch": torch.__version__, "shares": shares}
    result |= {"decode": [], "prefill": []}
    most = max(given.sequences)
    steps_in_all = given.rounds + 3
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        files = [Path(folder) / name for name in ("codes", "scales")]
        for file, content in zip(files, (table.codes, table.scales)):
            content.numpy().tofile(file)
        descriptors = (os.open(files[0], os.O_RDONLY), os.open(files[1], os.O_RDONLY))
        shapes = (tuple(table.codes.shape), tuple(table.scales.shape))
        maps = (np.memmap(files[0], np.uint8, "r", shape=shapes[0]), np.memmap(files[1], np.uint8, "r", shape=shapes[1]))
        for it in maps:
            np.add.reduce(it[::8], axis=0)

        def others(sequences: int) -> dict[str, Step]:
            """Steps without Warprow."""
            before = {"none": lambda: None, "pinned": lambda: None}
            before["host read"] = lambda: read_way(descriptors, sequences * HEADS)
            before["mmap"] = lambda: mapped_way(maps, sequences * HEADS)
            made = {}
            for way in (way for way in before if way not in given.without):
                begin, end = pinned_way(table) if way == "pinned" else (nothing, nothing)
                made[way] = Step(way, decoder, sequences, begin, end, before[way]())
            return made

        def modules_of(executor: warprow.Executor, names: list[str]) -> list[Any]:
            return [warprow.torch.NgramTable(executor, name, heads=HEADS, max_tokens=most, prefetch=1) for name in names]

        if "cpu" in given.what:
            starts = text.starts(given.cpu_sequences, steps_in_all, text.count)

            def some(turn: int) -> list[torch.Tensor]:
                return [it[starts + turn] for it in text.of_rows]

            cores = {way: cores_of(step, some, table, given.rounds) for way, step in others(given.cpu_sequences).items()}
            for drives in given.drives:
                addresses = drives_of(folder, drives, given.rows * DIM * 2, given.player, given.profile)
                with warprow.format(addresses) as store:
                    store.load({"t": table.blocks()}, checksums=False)
                    with store.attach("cuda") as executor:
                        step = Step("warprow", decoder, given.cpu_sequences, *warprow_way(modules_of(executor, ["t"] * len(ENGRAM))))
                        cores[f"warprow {drives}"] = cores_of(step, some, table, given.rounds)
                        del step
                        torch.cuda.synchronize()
            print(f"cores, T = {given.cpu_sequences}: {', '.join(f'{way} {it:.2f}' for way, it in cores.items())}", flush=True)
            result["cores"] = {"sequences": given.cpu_sequences, **cores}
            write()
        opened: dict[int, warprow.Store] = {}

        def store_of(drives: int) -> warprow.Store:
            if drives not in opened:
                began = time.perf_counter()
                opened[drives] = warprow.format(drives_of(folder, drives, given.rows * DIM * 2, given.player, given.profile))
                opened[drives].load({"t": table.blocks()}, checksums=False)
                print(f"loaded on {drives} drives in {time.perf_counter() - began:.1f} s", flush=True)
            return opened[drives]

        for priority in given.priorities if "decode" in given.what else ():
            tables: dict[str, list[Any]] = {}
            rings: dict[str, list[np.ndarray] | None] = {}
            of_file = ("attached", "+ scales on GPU", "io_uring", "+ scales in DRAM")
            within = text.count
            executors: list[warprow.Executor] = []
            for drives in given.drives:
                executor = store_of(drives).attach("cuda", prefetch_priority=priority)
                executors.append(executor)
                tables[f"warprow {drives}"] = modules_of(executor, ["t"] * len(ENGRAM))
            if given.disk is not None:
                began = time.perf_counter()
                given.disk.mkdir(parents=True, exist_ok=True)
                used = 8_000
                store = warprow.open(write_attached(given.disk, table, text.whole, used), read_only=True)
                executor = store.attach("cuda", prefetch_priority=priority)
                names = [f"layers.{layer}.engram.embed.weight" for layer in ENGRAM]
                tables["attached"] = modules_of(executor, names)
                codes = ",".join(f"tensor={name}={name},scales=" for name in names)
                executor = warprow.open(f"attached:{given.disk},{codes}", read_only=True).attach("cuda", prefetch_priority=priority)
                tables["+ scales on GPU"] = []
                for name, rows, ids in zip(names, TRUE_ROWS, text.whole):
                    scales = torch.zeros((rows, DIM // BLOCK), dtype=torch.uint8, device="cuda")
                    places = torch.from_numpy(np.unique(ids[:used])).cuda()
                    scales[places] = table.scales_on_gpu[places % table.rows]
                    module = warprow.torch.NgramTable(executor, name, heads=HEADS, max_tokens=most, prefetch=1, scales=scales)
                    tables["+ scales on GPU"].append(module)
                file, in_dram = given.disk / "model.safetensors", []
                for rows, ids in zip(TRUE_ROWS, text.whole):
                    # Pages that nobody touches take no memory.
                    in_dram.append(np.zeros((rows, DIM // BLOCK), np.uint8))
                    unique = np.unique(ids[:used])
                    in_dram[-1][unique] = table.scales.numpy()[unique % table.rows]
                rings = {"io_uring": None, "+ scales in DRAM": in_dram}
                within = used
                print(f"wrote sparse files and attached them in {time.perf_counter() - began:.1f} s", flush=True)
            whole = [torch.from_numpy(it[:within]).cuda() for it in text.whole]
            for sequences in given.sequences:
                starts = text.starts(sequences, steps_in_all, within)
                steps = others(sequences)
                for way, modules in tables.items():
                    steps[way] = Step(way, decoder, sequences, *warprow_way(modules))
                    if given.recover:
                        steps[way].between = lambda modules=modules: [module.recover() for module in modules]
                waiting: dict[str, Ring | HostLookups] = {}
                for way, scales in rings.items():
                    waiting[way] = Ring(file, sequences * HEADS, scales, folder)
                for drives in given.drives if given.host_lookups else ():
                    waiting[f"host look-up {drives}"] = HostLookups(store_of(drives), sequences * HEADS)
                for way, one in waiting.items():
                    steps[way] = Step(way, decoder, sequences, *one.way())

                def batches(turn: int, way: str) -> list[torch.Tensor]:
                    ids = whole if way in of_file else text.of_rows
                    return [it[starts + turn] for it in ids]

                found = race(steps, tables, batches, table, given.rounds)
                print(
                    f"{'T = ' + str(sequences):>16} | {'step':>9} {'GPU':>9} | {'exposed':>8} {'on GPU':>8} | {'of pinned':>9} "
                    f"({found['compared']} rows compared, priority {priority})"
                )
                for way in steps:
                    it = found[way]
                    print(
                        f"{way:>16} | {it['step_us']:9.1f} {it['gpu_us']:9.1f} | {it['exposed_us']:8.1f} {it['exposed_gpu_us']:8.1f} | "
                        f"{it['of_pinned']:9.4f}",
                        flush=True,
                    )
                for modules in tables.values():
                    told(modules)
                result["decode"].append({"sequences": sequences, "priority": priority, "found": found})
                write()
                for one in waiting.values():
                    one.close()
                del steps, waiting
                torch.cuda.synchronize()
            del tables
            # Each has its queues to itself, since a GPU that plays drives has a block for each queue.
            for executor in executors:
                executor.close()
        for store in opened.values():
            store.close()
        opened.clear()
        if "prefill" in given.what:
            prefill = Prefill(decoder, table, text, given.products)
            for drives in given.prefill_drives:
                budgets = given.multiprocessors if drives == max(given.prefill_drives) else [0]
                for budget, priority in itertools.product(budgets, given.priorities):
                    # Each has its queues to itself, since a GPU that plays drives has a block for each queue.
                    with store_of(drives).attach("cuda", prefetch_multiprocessors=budget or None, prefetch_priority=priority) as executor:
                        name = f"warprow {drives}" + (f", {budget} multiprocessors" if budget else "") + f", {priority}"
                        module = warprow.torch.NgramTable(executor, "t", heads=HEADS, max_tokens=Prefill.TOKENS, prefetch=1)
                        result["prefill"] += prefill.race(name, module, given.rounds // 4)
                        write()
                        del module
                opened.pop(drives).close()


if __name__ == "__main__":
    main()
