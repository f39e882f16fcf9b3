"""Loads from iterators of blocks and from arrays of other libraries. Every row that is read is compared."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import warprow


def rows(count: int, dim: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(dtype)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where temporary files go."""
    folder = tmp_path / "spool"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


class Foreign:
    """An array of another library: it has DLPack's two methods, and nothing else."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self._array, self._device = array, device

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._device, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8, np.uint8])
def test_blocks_make_a_table(store: warprow.Store, spool: Path, dtype: type) -> None:
    wanted = (rows(1000, 12) * 40).astype(dtype)
    seen = []

    def blocks() -> Iterator[np.ndarray]:
        for at in range(0, 1000, 130):
            seen.append(len(list(spool.rglob("*.safetensors"))))
            yield wanted[at : at + 130]
            # A block without rows adds nothing.
            yield wanted[:0]

    other = rows(20, 3, 1)
    store.load({"user": blocks(), "item": other, "list": iter([other[:7], other[7:].tolist()[:0], other[7:]][::2])})
    assert seen == [1] * 8 and not list(spool.iterdir())
    assert store.lookup("user", [0]).dtype == dtype
    np.testing.assert_array_equal(store.lookup("user", np.arange(1000)), wanted)
    np.testing.assert_array_equal(store.export("user").rows, wanted)
    np.testing.assert_array_equal(store.lookup("item", np.arange(20)), other)
    np.testing.assert_array_equal(store.lookup("list", np.arange(20)), other)
    assert all(it.is_sound and it.checked for it in store.verify().values())


def test_blocks_take_the_options_of_a_load(store: warprow.Store, spool: Path) -> None:
    wanted = rows(300, 8)
    keys = np.random.default_rng(1).choice(2**40, 300, replace=False)
    counts = np.zeros(300, np.int64)
    counts[[5, 200, 299]] = [1, 2, 3]
    order = np.asfortranarray(wanted)

    def blocks() -> Iterator[np.ndarray]:
        # In another byte order, and by columns in memory.
        yield order[:100]
        yield wanted[100:200].astype(">f4")
        yield Foreign(wanted[200:])  # type: ignore[misc]

    store.load(
        {"a.user": blocks(), "mlp": iter([])},
        select="a.*", names={"a.user": "user"}, keys={"user": keys}, hotness={"user": counts}, dtype="f16",
    )
    np.testing.assert_array_equal(store.lookup("user", keys), wanted.astype(np.float16))
    with store.attach(dram_bytes=3 * 16) as executor:
        plan = executor.plan([warprow.Feature("user", "user")], max_batch=8, max_ids=8)
        np.testing.assert_array_equal(plan.lookup(keys[[5, 200, 299]]), wanted[[5, 200, 299]].astype(np.float16))
        report = plan.report()
        assert report is not None and (report["ids_dram"], report["ids_ssd"]) == (3, 0)
    assert not list(spool.iterdir())


def test_other_byte_orders_in_memory(store: warprow.Store) -> None:
    wanted = rows(30, 8)
    store.load({"user": wanted.astype(">f4")})
    np.testing.assert_array_equal(store.lookup("user", np.arange(30).astype(">i8")), wanted)


def test_blocks_take_the_memory_of_one(make_store, spool: Path) -> None:
    store = make_store(size="256M")

    def blocks() -> Iterator[np.ndarray]:
        for number in range(64):
            yield np.full((4096, 64), number, np.float32)

    tracemalloc.start()
    try:
        store.load({"user": blocks()})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # 64 blocks of 1 MiB.
    assert peak < 3 << 20, peak
    ids = np.arange(0, 64 * 4096, 511)
    np.testing.assert_array_equal(store.lookup("user", ids), np.repeat((ids // 4096)[:, None], 64, axis=1))


class Stopped(Exception):
    """What a generator of the tests raises."""


def failing() -> Iterator[np.ndarray]:
    yield rows(10, 4)
    raise Stopped("the source has gone")


def interrupted() -> Iterator[np.ndarray]:
    yield rows(10, 4)
    signal.raise_signal(signal.SIGINT)
    yield rows(10, 4)


@pytest.mark.parametrize(
    ("source", "options", "error", "words"),
    [
        (lambda: {"v": iter([])}, {}, warprow.InvalidArgument, ["source['v']", "no block"]),
        (lambda: {"v": iter([rows(0, 4)])}, {}, warprow.InvalidArgument, ["source['v']", "none of which has a row"]),
        (lambda: {"v": iter([rows(3, 4), rows(3, 5)])}, {}, warprow.InvalidArgument, ["source['v'], block 1", "5", "4"]),
        (lambda: {"v": iter([rows(3, 4), rows(0, 5)])}, {}, warprow.InvalidArgument, ["source['v'], block 1"]),
        (lambda: {"v": iter([rows(3, 4), rows(3, 4, 0, np.float16)])}, {}, warprow.WrongType, ["block 1", "f16", "f32"]),
        (lambda: {"v": iter([rows(3, 4).astype(np.float64)])}, {}, warprow.WrongType, ["block 0", "float64"]),
        (lambda: {"v": iter([rows(3, 4)[0]])}, {}, warprow.InvalidArgument, ["block 0", "two dimensions"]),
        (lambda: {"v": iter([rows(3, 4), None])}, {}, warprow.InvalidArgument, ["block 1"]),
        (lambda: {"v": failing()}, {}, Stopped, ["the source has gone"]),
        (lambda: {"w": rows(3, 4), "v": failing()}, {}, Stopped, ["the source has gone"]),
        (lambda: {"user": failing()}, {}, warprow.TableExists, ["user", "replace"]),
        (lambda: {"user": failing()}, {"replace": True}, Stopped, ["the source has gone"]),
        (lambda: {"v": failing()}, {"select": "w"}, warprow.InvalidArgument, ["select"]),
        (lambda: {"v": failing()}, {"hotness": {"w": [1]}}, warprow.InvalidArgument, ["hotness", "'w'"]),
        (lambda: {"v": failing(), "w": failing()}, {"names": {"w": "v"}}, warprow.InvalidArgument, ["names", "'v'"]),
        (lambda: {"v": failing()}, {"keys": {"v": [1.5]}}, warprow.WrongType, ["keys", "float64"]),
        (lambda: {"v": failing()}, {"hotness": {"v": [-1]}}, warprow.InvalidArgument, ["hotness", "negative"]),
        (lambda: {"v": failing()}, {"progress": 3}, warprow.WrongType, ["progress"]),
        (lambda: {"v": interrupted()}, {}, KeyboardInterrupt, []),
        (lambda: {"v": iter([rows(3, 4)])}, {"keys": {"v": [1, 2]}}, warprow.InvalidArgument, ["keys", "3 rows"]),
        (lambda: {"v": iter([rows(3, 4)])}, {"keys": "id"}, warprow.InvalidArgument, ["keys", "no arrow table"]),
        (lambda: {"v": iter([rows(3, 4)])}, {"dtype": "f64"}, warprow.InvalidArgument, ["f64", "no type"]),
        (lambda: {"v": Foreign(rows(3, 4), 2)}, {}, warprow.InvalidArgument, ["source['v']", "GPU"]),
        (lambda: {"v": Foreign(rows(3, 4).astype(">f4"))}, {}, warprow.WrongType, ["source['v']", "Foreign"]),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(store: warprow.Store, spool: Path, source, options, error, words) -> None:
    wanted = rows(10, 4, 9)
    store.load({"user": wanted})
    before = store.free_bytes(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(error) as caught:
        store.load(source(), **options)
    assert all(word in str(caught.value) for word in words), caught.value
    del caught
    assert not list(spool.iterdir())
    assert (store.free_bytes(), len(os.listdir("/proc/self/fd"))) == before
    assert [it.name for it in store.tables()] == ["user"] and len(store.generations()) == 1
    np.testing.assert_array_equal(store.lookup("user", np.arange(10)), wanted)


def test_nothing_is_read_for_a_store_that_cannot_be_written(address: str) -> None:
    with warprow.format(address) as store:
        store.load({"user": rows(10, 4)})
    with pytest.raises(warprow.Closed):
        store.load({"v": failing()})
    with warprow.open(address, read_only=True) as store, pytest.raises(warprow.ReadOnly):
        store.load({"v": failing()})


def test_a_callback_that_raises_leaves_no_file(store: warprow.Store, spool: Path) -> None:
    def told(done: int, total: int) -> None:
        raise Stopped("enough")

    with pytest.raises(Stopped, match="enough"):
        store.load({"user": iter([rows(1000, 16)])}, progress=told)
    assert not store.tables() and not list(spool.iterdir())


def test_a_spool_without_room_is_named(store: warprow.Store, spool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(warprow.WarprowError, match=f"spooled to {spool}.*TMPDIR"):
            store.load({"user": iter([rows(10, 16), rows(1000, 16)])})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(spool.iterdir())
    monkeypatch.setattr("tempfile.tempdir", str(spool / "nobody"))
    with pytest.raises(warprow.WarprowError, match=r"nobody.*TMPDIR"):
        store.load({"user": iter([rows(10, 16)])})
    assert not store.tables()


def test_ids_and_results_by_dlpack(store: warprow.Store) -> None:
    wanted = rows(50, 8)
    store.load({"user": Foreign(wanted)})
    for kind in (np.int64, np.int32, np.uint32, np.uint64):
        found = store.lookup("user", Foreign(np.arange(50).astype(kind)))
        np.testing.assert_array_equal(np.from_dlpack(found), wanted)
    with pytest.raises(warprow.InvalidArgument, match="ids: a Foreign in a GPU's memory .*copy it to the host"):
        store.lookup("user", Foreign(np.arange(50), 2))
    with pytest.raises(warprow.WrongType, match="ids: elements of type float32"):
        store.lookup("user", Foreign(wanted[0]))
    store.update("user", Foreign(np.array([3])), Foreign(wanted[4:5]))
    np.testing.assert_array_equal(store.lookup("user", [3]), wanted[4:5])


def test_plans_take_arrays_by_dlpack(store: warprow.Store) -> None:
    wanted, weights = rows(50, 8), rows(6, 1, 2)[:, 0]
    store.load({"user": wanted})
    ids, offsets = np.array([3, 9, 1, 4, 4, 49]), np.array([0, 2, 2])
    with store.attach() as executor:
        plan = executor.plan([warprow.Feature("user", "user", "sum", weighted=True)], max_batch=3, max_ids=6)
        found = plan.lookup(Foreign(ids), offsets=Foreign(offsets), weights=Foreign(weights))
        sums = np.zeros((3, 8), np.float32)
        for at, bag in enumerate([0, 0, 2, 2, 2, 2]):
            sums[bag] += wanted[ids[at]] * weights[at]
        np.testing.assert_array_equal(found, sums)


def test_an_arrow_table_without_pyarrow_is_refused_by_name(store: warprow.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise AssertionError("nobody reads it")

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(warprow.WarprowError, match=r"pyarrow is not installed: pip install 'warprow\[arrow\]'"):
        store.load(Stream())
    assert not store.tables()


def test_importing_the_package_does_not_import_pyarrow() -> None:
    text = "import sys, warprow; print('pyarrow' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"]
