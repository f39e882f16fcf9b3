"""Many look-ups, from several threads, and many opens and closes: memory stays as it is, and no thread and no descriptor is left.

WARPROW_SOAK=full has a million look-ups and a thousand opens, some minutes.
"""

from __future__ import annotations

import gc
import os
import threading

import numpy as np

import warprow

FULL = os.environ.get("WARPROW_SOAK") == "full"
LOOKUPS, OPENS = (1_000_000, 1000) if FULL else (100_000, 200)
ROWS, DIM, THREADS = 4000, 32, 4


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def resident() -> int:
    """Bytes of memory."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, DIM), dtype=np.float32)


def look_up(plan: warprow.Plan, wanted: np.ndarray, count: int, seed: int, failures: list[object]) -> None:
    """Looks up batches of 8 ids, and compares every row."""
    random = np.random.default_rng(seed)
    batches = random.integers(0, ROWS, (512, 8))
    expected = [wanted[ids] for ids in batches]
    out = np.empty((8, DIM), dtype=np.float32)
    for step in range(count):
        at = step % len(batches)
        if step % 100 == 99:
            # An error leaves nothing behind either.
            try:
                plan.lookup([ROWS + step])
                failures.append((seed, step, "no error"))
            except warprow.MissingIds:
                pass
        plan.lookup(batches[at], out=out)
        if not np.array_equal(out, expected[at]):
            failures.append((seed, step))


def test_lookups_leave_nothing(store: warprow.Store) -> None:
    wanted, failures = rows(), []
    store.load({"user": wanted})
    # What tests before this one have left open is closed first.
    gc.collect()
    before = held()
    with store.attach(dram_bytes=wanted.nbytes // 2) as executor:
        feature = [warprow.Feature("user", "user")]
        plan = executor.plan(feature, max_batch=8, max_ids=8, slots=THREADS)

        def work(count: int) -> int:
            """All threads look up; afterwards memory is counted."""
            threads = [
                threading.Thread(target=look_up, args=(plan, wanted, count // THREADS, seed, failures))
                for seed in range(THREADS)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return resident()

        sizes = [work(LOOKUPS // 10) for _ in range(10)]
        lookups = executor.metrics()["lookups"]
    assert failures == []
    assert lookups >= LOOKUPS
    # The first rounds fill what is kept for later ones.
    assert sizes[-1] - sizes[2] < 4 << 20, [size >> 10 for size in sizes]
    assert held() == before


def test_opens_and_closes_leave_nothing(address: str) -> None:
    wanted = rows()
    with warprow.format(address) as store:
        store.load({"user": wanted})
    ids = np.arange(0, ROWS, 100)
    counts, sizes = [], []
    for number in range(OPENS):
        store = warprow.open(address, read_only=number % 2 == 0)
        plan = store.attach(dram_bytes=1 << 16).plan([warprow.Feature("user", "user")], max_batch=64, max_ids=64)
        np.testing.assert_array_equal(plan.lookup(ids), wanted[ids])
        if number % 3 == 0:
            np.testing.assert_array_equal(store.lookup("user", ids), wanted[ids])
        # Closed by its name, or because nobody refers to it any more.
        if number % 4 != 0:
            store.close()
        del store, plan
        if number % 20 == 19:
            sizes.append(resident())
            counts.append(held())
    assert set(counts[1:]) == {counts[-1]}, counts
    assert sizes[-1] - sizes[2] < 4 << 20, [size >> 10 for size in sizes]
