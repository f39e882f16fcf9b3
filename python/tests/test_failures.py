"""Drives that fail under look-ups, stores that another process holds, and what is raised then. Every row that is served is compared."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import warprow

ROWS, DIM = 1000, 128
#: Rows of one LBA each without neighbours among them, so that each is read by a command of its own.
IDS = np.arange(0, ROWS, 30)


def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((ROWS, DIM), dtype=np.float32)


@pytest.fixture
def store(address: str) -> Iterator[warprow.Store]:
    """A store with one table, on a drive that has to answer in 0.4 s."""
    with warprow.format(address, timeout=0.4) as store:
        store.load({"user": rows()})
        yield store


def planned(store: warprow.Store, pooling: str = "none", **options: object) -> warprow.Plan:
    feature = warprow.Feature("user", "user", pooling=pooling)
    return store.attach().plan([feature], max_batch=ROWS, max_ids=ROWS, **options)


@pytest.mark.parametrize(("fault", "told"), [("unreadable", "failed"), ("unanswered", "no answer"), ("fatal", None)])
def test_rows_that_fail_are_named(store: warprow.Store, fault: str, told: str | None) -> None:
    plan = planned(store)
    out = np.full((len(IDS), DIM), 7, dtype=np.float32)
    store.inject_fault(fault, nth=3)
    with pytest.raises(warprow.RowsFailed) as caught:
        plan.lookup(IDS, out=out)
    error = caught.value
    assert isinstance(error, OSError)
    failed = list(error.positions)
    assert 0 < len(failed) == error.count and failed == sorted(set(failed)) and failed[-1] < len(IDS)
    assert error.drive == store.drives()[0].name
    # Of a controller that failed no command is to blame.
    assert error.command is None if told is None else error.command is not None and told in error.command, error.command
    assert f"{error.count} of {len(IDS)}" in str(error) and error.remedy
    if fault == "unreadable":
        assert len(failed) == 1
    wanted = rows()[IDS]
    wanted[failed] = 0
    np.testing.assert_array_equal(out, wanted)
    # The store has brought queue and controller back by itself.
    np.testing.assert_array_equal(plan.lookup(IDS), rows()[IDS])
    np.testing.assert_array_equal(store.lookup("user", IDS), rows()[IDS])


def test_a_drive_that_does_not_answer_is_waited_for_as_long_as_it_was_said(store: warprow.Store) -> None:
    store.inject_fault("unanswered", times=None)
    began = time.monotonic()
    with pytest.raises(warprow.RowsFailed) as caught:
        store.lookup("user", IDS)
    assert caught.value.count == len(IDS) and 0.4 <= time.monotonic() - began < 20
    store.clear_faults()
    # It may have been given up meanwhile.
    store.retry_drives()
    assert all(drive.failure is None for drive in store.drives())
    np.testing.assert_array_equal(store.lookup("user", IDS), rows()[IDS])


@pytest.mark.parametrize("mask", ["found", "failed"])
@pytest.mark.parametrize("on_failure", ["nan", "mask"])
def test_rows_that_fail_are_marked_where_the_plan_says_so(store: warprow.Store, on_failure: str, mask: str) -> None:
    plan = planned(store, missing="zero", on_failure=on_failure, mask=mask)
    ids = IDS.copy()
    ids[5] = ROWS + 1
    store.inject_fault("unreadable", nth=2, times=3)
    found, told = plan.lookup(ids, mask=True)
    report = plan.report()
    assert report is not None and report["failed"] == 3 and report["missing"] == 1
    value = np.nan if on_failure == "nan" else 0
    failed = np.all(np.isnan(found) if on_failure == "nan" else found == 0, axis=1)
    if on_failure == "mask":
        # The missing id has zeros too.
        failed[5] = False
    assert failed.sum() == 3
    wanted = rows()[np.minimum(ids, ROWS - 1)]
    wanted[5], wanted[failed] = 0, value
    np.testing.assert_array_equal(found, wanted)
    is_missing = np.arange(len(ids)) == 5
    np.testing.assert_array_equal(told, failed if mask == "failed" else ~(failed | is_missing))
    # A plan whose failures are told by masks returns one in any case.
    again = plan.lookup(IDS)
    again = again[0] if on_failure == "mask" else again
    np.testing.assert_array_equal(again, rows()[IDS])


@pytest.mark.parametrize("on_failure", ["raise", "nan", "mask"])
def test_bags_with_a_row_that_failed(store: warprow.Store, on_failure: str) -> None:
    plan = planned(store, "sum", on_failure=on_failure)
    ids = IDS[:32]
    offsets = np.arange(0, 32, 4)
    sums = np.zeros((8, DIM), np.float32)
    for column in range(4):
        sums += rows()[ids.reshape(8, 4)[:, column]]
    store.inject_fault("unreadable", nth=7)
    out = np.full((8, DIM), 7, dtype=np.float32)
    if on_failure == "raise":
        with pytest.raises(warprow.RowsFailed) as caught:
            plan.lookup(ids, offsets=offsets, out=out)
        (position,) = caught.value.positions
    else:
        _, found = plan.lookup(ids, offsets=offsets, out=out, mask=True)
        (position,) = np.flatnonzero(~found)
    sums[position // 4] = np.nan if on_failure == "nan" else 0
    np.testing.assert_array_equal(out, sums)


def test_nan_and_masks_are_refused_where_they_cannot_be(store: warprow.Store) -> None:
    store.load({"bytes": np.ones((10, 8), np.int8)})
    feature = [warprow.Feature("bytes", "bytes")]
    for options, word in (
        ({"on_failure": "nan", "dtype": "i8"}, "NaN"),
        ({"on_failure": "perhaps"}, "on_failure|perhaps"),
        ({"mask": "perhaps"}, "perhaps"),
    ):
        with pytest.raises(warprow.InvalidArgument, match=word):
            store.attach().plan(feature, max_batch=10, max_ids=10, **options)


def test_a_row_with_a_wrong_bit_fails_where_rows_are_checked(store: warprow.Store) -> None:
    with store.attach(check_rows=True) as executor:
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=ROWS, max_ids=ROWS)
        store.inject_fault("corrupt", nth=4)
        with pytest.raises(warprow.RowsFailed, match="checksum") as caught:
            plan.lookup(IDS)
        assert caught.value.count == 1 and caught.value.drive == store.drives()[0].name
        np.testing.assert_array_equal(plan.lookup(IDS), rows()[IDS])


def test_a_drive_whose_file_was_cut_fails_for_good(make_store, tmp_path: Path) -> None:
    store = make_store(drives=2)
    store.load({"user": rows()})
    wanted = rows()
    names = [drive.name for drive in store.drives()]
    # Nobody asked for a fault: the second drive has lost all its rows.
    path = store.addresses[1].removeprefix("emulated:").partition("?")[0]
    assert Path(path).parent == tmp_path
    os.truncate(path, 4096)
    plan = planned(store, on_failure="mask", mask="failed")
    found, failed = plan.lookup(np.arange(ROWS))
    assert 0 < failed.sum() < ROWS
    np.testing.assert_array_equal(found[~failed], wanted[~failed])
    assert not found[failed].any()
    with pytest.raises(warprow.RowsFailed) as caught:
        store.lookup("user", np.flatnonzero(failed))
    assert caught.value.drive == names[1] and caught.value.count == failed.sum()
    np.testing.assert_array_equal(store.lookup("user", np.flatnonzero(~failed)), wanted[~failed])
    # A check says what is lost rather than raise for it, or names the drive.
    with pytest.raises(warprow.WarprowError, match=re.escape(names[1])):
        store.export("user")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"fault": "hiccup"}, "hiccup"),
        ({"fault": "fatal", "drive": 1}, "drive 1"),
        ({"fault": "fatal", "nth": 0}, "nth"),
        ({"fault": "fatal", "times": 0}, "times"),
    ],
)
def test_faults_that_cannot_be(store: warprow.Store, arguments: dict, word: str) -> None:
    with pytest.raises(warprow.InvalidArgument, match=word):
        store.inject_fault(**arguments)


def run(text: str, *arguments: str) -> subprocess.Popen[str]:
    """Runs a Python program, whose output is read."""
    command = [sys.executable, "-c", textwrap.dedent(text), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_store_in_use_names_the_process_that_has_it(address: str) -> None:
    warprow.format(address).close()
    holder = run(
        """
        import sys, warprow
        with warprow.open(sys.argv[1]):
            print("open", flush=True)
            sys.stdin.read()
        """,
        address,
    )
    assert holder.stdout is not None and holder.stdin is not None
    assert holder.stdout.readline() == "open\n"
    for call in (warprow.open, warprow.format, lambda it: warprow.open(it, read_only=True)):
        with pytest.raises(warprow.StoreInUse) as caught:
            call(address)
        assert isinstance(caught.value, warprow.OpenError) and str(holder.pid) in str(caught.value), caught.value
    holder.stdin.close()
    assert holder.wait(timeout=30) == 0
    warprow.open(address).close()


def test_a_compaction_copies_no_row_with_a_wrong_bit(store: warprow.Store) -> None:
    rows = np.random.default_rng(4).standard_normal((20_000, 16), dtype=np.float32)
    store.load({"many": rows})
    generation = store.table("many").generation
    store.update("many", [7], rows[:1] + 1)
    store.inject_fault("corrupt", times=None)
    for _ in range(2):
        with pytest.raises(warprow.Damaged, match="does not match its checksum") as caught:
            store.compact(generation)
        assert caught.value.table == "many" and caught.value.drive and caught.value.drive in str(caught.value)
    store.clear_faults()
    rows[7] = rows[0] + 1
    assert store.verify()["many"].is_sound and (store.lookup("many", np.arange(20_000)) == rows).all()
    assert store.compact(generation) > 0
    assert store.verify()["many"].is_sound and (store.export("many").rows == rows).all()


def test_a_drive_that_this_process_has_open_by_another_text(store: warprow.Store, tmp_path: Path) -> None:
    (ours,) = store.addresses
    path = Path(ours.removeprefix("emulated:").split("?")[0])
    link = tmp_path / "link.drive"
    link.symlink_to(path)
    inside = tmp_path / "inside"
    inside.mkdir()
    for other in (ours, f"emulated:{path.parent}/./{path.name}", f"emulated:{inside}/../{path.name}?size=64M", f"emulated:{link}"):
        for call in (warprow.open, warprow.format, lambda it: warprow.open(it, read_only=True)):
            with pytest.raises(warprow.StoreInUse) as caught:
                call(other)
            text = str(caught.value)
            assert repr(ours) in text and repr(other) in text and text.endswith(": use that warprow.Store, or close() it"), text
            assert (f"{other!r} as {ours!r}" in text) == (other != ours)
    store.close()
    warprow.open(f"emulated:{link}").close()


READER = """
import sys, warprow
with warprow.open(sys.argv[1], read_only=True) as store:
    print(store.lookup("user", [3, 999]).tolist(), flush=True)
    sys.stdin.read()
    print(store.lookup("user", [3, 999]).tolist(), flush=True)
"""


def test_a_store_is_read_by_several_processes_and_written_to_by_one(address: str) -> None:
    with warprow.format(address) as store:
        store.load({"user": rows()})
    wanted = f"{rows()[[3, 999]].tolist()}\n"
    readers = [run(READER, address) for _ in range(3)]
    for reader in readers:
        assert reader.stdout is not None and reader.stdout.readline() == wanted
    # This process reads too, and whatever it opens only reads.
    with warprow.open(address, read_only=True) as store, warprow.open(address, read_only=True) as again:
        assert store.lookup("user", [7]).tolist() == again.lookup("user", [7]).tolist() == rows()[[7]].tolist()
        with pytest.raises(warprow.ReadOnly):
            again.update("user", [1], rows()[[0]])
    # One that is killed leaves nothing behind.
    readers[0].kill()
    readers[0].wait(timeout=30)
    for call in (warprow.open, warprow.format):
        with pytest.raises(warprow.StoreInUse, match="open for reading") as caught:
            call(address)
        for reader in readers[1:]:
            assert str(reader.pid) in str(caught.value), caught.value
    for reader in readers[1:]:
        assert reader.communicate(timeout=30)[0] == wanted and reader.returncode == 0
    with warprow.open(address) as store:
        store.update("user", [3], rows()[[0]])
    with warprow.open(address, read_only=True) as store:
        assert store.lookup("user", [3]).tolist() == rows()[[0]].tolist()


def test_a_drive_with_a_rate_is_shared_by_no_more_than_it_says(address: str) -> None:
    with warprow.format(address) as store:
        store.load({"user": rows()})
    one = f"{address}&profile=gen6"
    with warprow.open(one, read_only=True):
        with pytest.raises(warprow.StoreInUse, match="sharers=2"):
            warprow.open(one, read_only=True)
        with warprow.open(f"{one}&sharers=2", read_only=True) as second:
            assert second.lookup("user", [3]).tolist() == rows()[[3]].tolist()


def rows_in_a_child(address: str, ids: list[int]) -> list[list[float]] | str:
    """What another process finds, or the name of what it raises."""
    try:
        with warprow.open(address, read_only=True) as store:
            found: list[list[float]] = store.lookup("user", ids).tolist()
            return found
    except warprow.WarprowError as error:
        return f"{type(error).__name__}: {error}"


def test_a_child_made_by_spawn_opens_the_store_itself(address: str) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with warprow.format(address) as store:
            store.load({"user": rows()})
            told = pool.apply(rows_in_a_child, (address, [1, 2]))
            assert isinstance(told, str) and told.startswith("StoreInUse") and str(os.getpid()) in told
        assert pool.apply(rows_in_a_child, (address, [3, 999])) == rows()[[3, 999]].tolist()


def test_ctrl_c_ends_a_load_and_leaves_the_store_as_it_was(address: str) -> None:
    warprow.format(address).close()
    loader = run(
        """
        import sys, time, numpy, warprow
        def tell(done, total):
            print("loading", flush=True)
            time.sleep(0.02)
        store = warprow.open(sys.argv[1])
        try:
            store.load({"user": numpy.ones((100_000, 64), numpy.float32)}, progress=tell)
        except KeyboardInterrupt:
            print("interrupted", [it.name for it in store.tables()], store.closed)
        """,
        address,
    )
    assert loader.stdout is not None
    assert loader.stdout.readline() == "loading\n"
    loader.send_signal(signal.SIGINT)
    told, _ = loader.communicate(timeout=60)
    assert told.splitlines()[-1] == "interrupted [] False" and loader.returncode == 0
    with warprow.open(address) as store:
        assert store.tables() == [] and store.generations() == []
        store.load({"user": rows()})
        np.testing.assert_array_equal(store.lookup("user", IDS), rows()[IDS])


def test_ctrl_c_ends_a_wait_for_a_slot(store: warprow.Store) -> None:
    # The one slot is taken by a look-up of another thread, whose drive does not answer in time.
    plan = planned(store)
    store.inject_fault("unanswered", times=None)
    told = []

    def look_up() -> None:
        try:
            plan.lookup(IDS)
        except warprow.RowsFailed as error:
            told.append(error)

    thread = threading.Thread(target=look_up)
    thread.start()
    time.sleep(0.05)
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(100):
            try:
                plan.lookup(IDS)
            except warprow.RowsFailed:
                pass
    assert time.monotonic() - began < 10
    store.clear_faults()
    thread.join()
    timer.join()
    assert len(told) == 1
