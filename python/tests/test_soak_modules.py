"""Many look-ups of modules, opens and closes, and Ctrl-C, on the CPU and, where there is one, on a GPU: memory stays as it is, and no thread, no
descriptor and no queue is left.

WARPROW_SOAK=full has a million look-ups, a thousand opens and hundreds of interrupts, some minutes. Then memory of the GPU is watched as well:
nothing else may run on it meanwhile.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402

from test_soak import DIM, FULL, ROWS, THREADS, held, resident, rows  # noqa: E402
from test_torch import device  # noqa: E402, F401

LOOKUPS, OPENS, INTERRUPTS = (1_000_000, 1000, 300) if FULL else (40_000, 40, 60)
#: Bytes that memory may grow behind the first rounds. What is kept for later is kept by then.
ROOM = 8 << 20
#: Ids of a look-up, and batches that are looked up in turn.
COUNT, BATCHES = 8, 64


def used(on: str) -> int:
    """Bytes of the GPU's memory that are in use, by whomever."""
    if on == "cpu" or not FULL:
        return 0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, every = torch.cuda.mem_get_info()
    return every - free


def flat(sizes: list[int]) -> None:
    """Whether memory stays as it is behind the first third of the rounds."""
    assert sizes[-1] - sizes[len(sizes) // 3] < ROOM, [size >> 10 for size in sizes]


class Worker:
    """A thread that looks up in every way that a module has, and compares every row."""

    def __init__(self, seed: int, on: str, shared: wt.Embedding, own: wt.Embedding, bags: wt.EmbeddingBagCollection, table: torch.Tensor) -> None:
        ids = torch.randint(0, ROWS, (BATCHES, COUNT), generator=torch.Generator().manual_seed(seed))
        self.ids, self.on, self.table = [it.to(on) for it in ids], on, table
        self.shared, self.own, self.bags = shared, own, bags
        self.wanted = [table[it] for it in self.ids]
        self.offsets = torch.arange(0, COUNT + 1, 2, device=on)
        self.sums = [it.reshape(-1, 2, DIM)[:, 0] + it.reshape(-1, 2, DIM)[:, 1] for it in self.wanted]
        self.out = torch.zeros(COUNT, DIM, device=on)
        self.stream = torch.cuda.Stream() if on == "cuda" else None
        self.missing = torch.full((COUNT,), ROWS, device=on)
        #: Look-ups whose rows were wrong: counted on the GPU, where it is read at the end.
        self.wrong = torch.zeros((), dtype=torch.int64, device=on)
        self.failures: list[object] = []

    def work(self, count: int) -> None:
        try:
            if self.stream is None:
                self.steps(count)
            else:
                with torch.cuda.stream(self.stream):
                    self.steps(count)
                self.stream.synchronize()
        except Exception as error:
            self.failures.append(error)

    def steps(self, count: int) -> None:
        for step in range(count):
            at = step % BATCHES
            ids, wanted = self.ids[at], self.wanted[at]
            if step % 5 == 0:
                found = self.shared(ids)
            elif step % 5 == 1:
                found = self.shared(ids, out=self.out)
            elif step % 5 == 2:
                found = self.shared.lookup(self.shared.prefetch(ids))
            elif step % 5 == 3:
                found, wanted = self.bags({"user": (ids, self.offsets)})["user"], self.sums[at]
            else:
                found = self.own(ids)
            self.wrong += (found != wanted).any()
            if step % 500 == 499:
                # An error leaves nothing behind either, and a batch that nobody looks up.
                self.own.prefetch(ids)
                with pytest.raises(warprow.MissingIds):
                    self.own(self.missing)
                    self.own.check()


def test_lookups_of_modules_leave_nothing(store: warprow.Store, device: str) -> None:  # noqa: F811
    table = torch.from_numpy(rows())
    store.load({"user": table})
    options = {"dram_bytes": table.nbytes // 4} | ({"hbm_bytes": table.nbytes // 4} if device == "cuda" else {})
    # What torch makes once is made before, and what tests before this one have left open is closed.
    table = table.to(device)
    (table[:2] != table[2:4]).any().item()
    gc.collect()
    before = held()
    with store.attach(device, **options) as executor:
        shared = wt.Embedding(executor, "user", prefetch=THREADS)
        bags = wt.EmbeddingBagCollection(executor, [warprow.Feature("user", "user", pooling="sum")])
        workers = [
            Worker(seed, device, shared, wt.Embedding(executor, "user", prefetch=1), bags, table) for seed in range(THREADS)
        ]
        sizes, on_gpu = [], []
        # All rounds look up on the threads of the first: others would have memory of their own. What they keep for later grows at first, in
        # look-ups that come before.
        with ThreadPoolExecutor(THREADS) as threads:
            for count in (20_000, *(LOOKUPS // 10,) * 10):
                list(threads.map(lambda worker: worker.work(count // THREADS), workers))
                sizes.append(resident())
                on_gpu.append(used(device))
        assert [worker.failures for worker in workers] == [[]] * THREADS
        assert [worker.wrong.item() for worker in workers] == [0] * THREADS
        shared.check()
        bags.check()
    del shared, bags, workers
    gc.collect()
    print(f"{LOOKUPS} look-ups: {sizes[-1] >> 20} MiB, {sizes[-1] - sizes[3] >> 10} KiB more than after three tenths; GPU {on_gpu[-1] - on_gpu[3] >> 10} KiB")
    flat(sizes)
    flat(on_gpu)
    assert held() == before


def test_replays_leave_nothing(store: warprow.Store, device: str) -> None:  # noqa: F811
    if device == "cpu":
        pytest.skip("the CPU has no graphs")
    table = torch.from_numpy(rows()).cuda()
    store.load({"user": table})
    with store.attach("cuda", hbm_bytes=table.nbytes // 2) as executor:
        ours = wt.Embedding(executor, "user", prefetch=1)
        ids = torch.randint(0, ROWS, (COUNT,), device="cuda")
        ours(ids)
        ours.lookup(ours.prefetch(ids))
        # What tests before this one have left open is closed.
        gc.collect()
        before, sizes, on_gpu, wrong = held(), [], [], torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(20):
            # A hundred look-ups in a graph, which goes afterwards.
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                found = [ours(ids) if at % 2 else ours.lookup(ours.prefetch(ids)) for at in range(100)]
            for step in range(LOOKUPS // 20 // 100):
                ids.random_(0, ROWS)
                graph.replay()
                if step % 10 == 0:
                    wrong += sum((it != table[ids]).any() for it in found)
            torch.cuda.synchronize()
            ours.check()
            assert ours.recover() is False
            del graph, found
            sizes.append(resident())
            on_gpu.append(used(device))
        assert wrong.item() == 0
        assert held() == before
    flat(sizes)
    flat(on_gpu)


def test_opens_and_closes_with_modules_leave_nothing(address: str, device: str) -> None:  # noqa: F811
    table = torch.from_numpy(rows())
    with warprow.format(address) as store:
        store.load({"user": table})
    table, ids = table.to(device), torch.arange(0, ROWS, 100, device=device)
    counts, sizes, on_gpu = [], [], []
    for number in range(OPENS):
        store = warprow.open(address, read_only=number % 2 == 0)
        options = {"hbm_bytes": 1 << 16} if device == "cuda" else {}
        module = wt.Embedding(store.attach(device, dram_bytes=1 << 16, **options), "user", prefetch=1)
        assert torch.equal(module(ids), table[ids])
        if number % 3 == 0:
            # Closed while a batch is fetched ahead.
            ahead = module.prefetch(ids)
        elif number % 3 == 1:
            module.executor.close()
        # Closed by its name, or because nobody refers to it any more.
        if number % 4 != 0:
            store.close()
        module = store = ahead = None
        if number % (OPENS // 10) == OPENS // 10 - 1:
            sizes.append(resident())
            on_gpu.append(used(device))
            counts.append(held())
    print(f"{OPENS} opens: {sizes[-1] >> 20} MiB, {sizes[-1] - sizes[3] >> 10} KiB more than after four tenths; GPU {on_gpu[-1] - on_gpu[3] >> 10} KiB")
    assert set(counts[1:]) == {counts[-1]}, counts
    # A kibibyte an open. (CUDA's driver leaves 100 KiB with each module that is loaded and unloaded.)
    assert not FULL or sizes[-1] - sizes[3] <= OPENS * 6 // 10 << 10, [size >> 10 for size in sizes]
    flat(sizes)
    flat(on_gpu)


def interrupted(call: Callable[[], object], delay: float) -> None:
    """Calls something again and again until Ctrl-C, which comes in so many seconds."""
    timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:
            call()
    except KeyboardInterrupt:
        pass
    finally:
        timer.cancel()
        timer.join()


def test_interrupts_leave_nothing(store: warprow.Store, device: str) -> None:  # noqa: F811
    numbers, table = random.Random(0), torch.from_numpy(rows())
    store.load({"user": table})
    other = torch.randn(20_000, DIM, generator=torch.Generator().manual_seed(1))
    with store.attach(device, dram_bytes=table.nbytes // 2) as executor:
        module = wt.Embedding(executor, "user", prefetch=1)
        ids = torch.arange(0, ROWS, 7, device=device)
        wanted = table.to(device)[ids]
        calls = [
            lambda: module(ids),
            lambda: module.lookup(module.prefetch(ids)),
            lambda: (module(ids), module.check()),
            lambda: store.load({"other": other}, replace=True),
        ]
        counts, sizes, on_gpu = [], [], []
        for number in range(INTERRUPTS):
            interrupted(calls[number % len(calls)], numbers.uniform(0.001, 0.03))
            # Batches that were fetched ahead when it came are forgotten with what held them.
            gc.collect()
            assert torch.equal(module(ids), wanted)
            assert torch.equal(module.lookup(module.prefetch(ids)), wanted)
            if number % (INTERRUPTS // 10) == INTERRUPTS // 10 - 1:
                # Loads that were superseded are dropped; and queue pairs are there.
                for generation in store.generations():
                    if not generation.found:
                        store.drop(generation.id)
                with store.attach(device) as again:
                    assert torch.equal(wt.Embedding(again, "user")(ids), wanted)
                sizes.append(resident())
                on_gpu.append(used(device))
                counts.append(held())
        module.check()
    print(f"{INTERRUPTS} interrupts: {sizes[-1] >> 20} MiB, {sizes[-1] - sizes[3] >> 10} KiB more than after four tenths")
    assert set(counts[1:]) == {counts[-1]}, counts
    flat(sizes)
    flat(on_gpu)
