"""Exports of tables that change meanwhile, and exports that are ended: no row that the table never had, and no error that it does not have."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import warprow


@pytest.fixture
def beside() -> Callable[..., threading.Event]:
    """Has a thread call a function again and again, with numbers from 1 on, until the event is set; what it raises fails the test."""
    stop, threads, failures = threading.Event(), [], []

    def begin(work: Callable[[int], object]) -> threading.Event:
        def run() -> None:
            number = 0
            while not stop.is_set():
                number += 1
                try:
                    work(number)
                except BaseException as error:
                    failures.append(error)
                    return

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return stop

    yield begin
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures, failures


def exports(store: warprow.Store, has_seen_enough: Callable[[], object]) -> Iterator[warprow.Exported]:
    """At least 30 exports of the table "user", until they have seen what they are to see."""
    until = time.monotonic() + 60
    done = 0
    while done < 30 or not has_seen_enough():
        assert time.monotonic() < until, f"{done} exports saw no change"
        try:
            yield store.export("user")
            done += 1
        except warprow.Busy:
            # It says so where the table changes faster than it is read.
            pass


def test_ctrl_c_ends_an_export(make_store) -> None:
    store = make_store(size="512M")
    store.load({"user": np.ones((500_000, 64), np.float32)})
    timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        rows = store.export("user").rows
        assert (rows == 1).all(), "it went on, with rows that were never read"
        timer.join()
        time.sleep(0.1)
    assert (store.export("user").rows == 1).all()


def test_an_export_beside_updates_finds_no_damage(store: warprow.Store, beside) -> None:
    count = 20_000
    store.load({"user": np.zeros((count, 8), np.float32)})
    generation = store.table("user").generation

    def update(number: int) -> None:
        ids = np.random.default_rng(number).permutation(count)[:200]
        store.update("user", ids, np.full((200, 8), number, np.float32))
        if number % 10 == 0:
            store.compact(generation)

    beside(update)
    before = np.zeros(count)
    for found in exports(store, lambda: before.any()):
        rows = found.rows
        # Each row is whole, and none is older than in the export before.
        assert (rows == rows[:, :1]).all() and (rows[:, 0] >= before).all()
        before = rows[:, 0]


def test_an_export_beside_new_and_removed_keys_has_each_key_with_its_row(store: warprow.Store, beside) -> None:
    keys = np.arange(2000) * 7
    store.load({"user": np.repeat(keys[:, None], 4, axis=1).astype(np.float32)}, keys={"user": keys})
    generation = store.table("user").generation

    def change(number: int) -> None:
        new = 100_000 + number
        store.update("user", [new], np.full((1, 4), new, np.float32), create=True)
        assert store.remove("user", [7 * (number % 2000), new - 3]) >= (number > 3)
        time.sleep(0.02)
        if number % 20 == 0:
            store.compact(generation)

    beside(change)
    seen = set()
    for found in exports(store, lambda: len(seen) > 2):
        seen.add(found.keys.max())
        assert len(np.unique(found.keys)) == len(found.keys) == len(found.rows)
        np.testing.assert_array_equal(found.rows, np.repeat(found.keys[:, None], 4, axis=1))


def test_an_export_beside_switches_has_rows_of_one_generation(store: warprow.Store, beside) -> None:
    # By other ranks each, so that rows of one by the order of the other would lie at wrong ids.
    count = 5000
    rows = np.repeat(np.arange(count, dtype=np.float32)[:, None], 4, axis=1)
    hot = np.random.default_rng(1).permutation(count)
    first = store.load({"user": rows}, hotness={"user": hot}).generation
    second = store.load({"user": rows + count}, hotness={"user": hot[::-1]}, standby=True).generation

    def switch(number: int) -> None:
        store.switch((first, second)[number % 2])
        time.sleep(0.05)

    beside(switch)
    seen = set()
    for found in exports(store, lambda: len(seen) == 2):
        assert np.array_equal(found.rows, rows) or np.array_equal(found.rows, rows + count)
        seen.add(found.rows[0, 0])


def test_an_export_tells_of_a_row_with_a_wrong_bit(store: warprow.Store) -> None:
    rows = np.random.default_rng(4).standard_normal((20_000, 16), dtype=np.float32)
    store.load({"user": rows})
    store.inject_fault("corrupt", times=None)
    with pytest.raises(warprow.Damaged) as caught:
        store.export("user")
    assert caught.value.table == "user" and caught.value.drive in str(caught.value)
    store.clear_faults()
    np.testing.assert_array_equal(store.export("user").rows, rows)
