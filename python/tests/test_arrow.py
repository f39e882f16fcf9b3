"""Loads of arrow tables. Every row that is read is compared."""

from __future__ import annotations

import gc
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

import warprow  # noqa: E402


def rows(count: int, dim: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(dtype)


@pytest.fixture
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where temporary files go."""
    folder = tmp_path / "spool"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def column(array: np.ndarray):
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])


def in_pieces(array, cuts: list[int]):
    """A column in pieces, slices of one another's memory."""
    ends = [0, *cuts, len(array)]
    return pa.chunked_array([array.slice(a, b - a) for a, b in zip(ends, ends[1:], strict=False)], type=array.type)


class Stream:
    """What has the interface for C alone, as tables of other libraries."""

    def __init__(self, inner) -> None:
        self._inner = inner

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._inner.__arrow_c_stream__(requested_schema)


class One:
    """A record batch of another library."""

    def __init__(self, inner) -> None:
        self._inner = inner

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return self._inner.__arrow_c_array__(requested_schema)


USER, ITEM = rows(300, 8), rows(300, 5, 1, np.float16)
KEYS = np.random.default_rng(2).choice(2**40, 300, replace=False) - 2**39


def table(cuts: list[int], key_cuts: list[int] | None = None):
    keys = in_pieces(pa.array(KEYS), cuts if key_cuts is None else key_cuts)
    return pa.table({"id": keys, "user": in_pieces(column(USER), cuts), "item": in_pieces(column(ITEM), cuts)})


SOURCES = {
    "one piece": lambda: table([]),
    "pieces": lambda: table([1, 1, 130, 299], [7]),
    "slice": lambda: pa.concat_tables([table([5, 6]).slice(2, 100), table([]).slice(102), table([]).slice(0, 2)]),
    "batch": lambda: table([]).to_batches()[0],
    "reader": lambda: table([1, 130]).to_reader(),
    "stream": lambda: Stream(table([100, 200])),
    "stream of one": lambda: Stream(table([])),
    "batch of another library": lambda: One(table([]).to_batches()[0]),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_columns_are_tables(store: warprow.Store, spool: Path, kind: str) -> None:
    order = np.roll(np.arange(300), -2) if kind == "slice" else np.arange(300)
    store.load(SOURCES[kind](), keys="id")
    assert {it.name: (it.rows, it.dim, it.dtype, it.keyed) for it in store.tables()} == {
        "user": (300, 8, "f32", True),
        "item": (300, 5, "f16", True),
    }
    for name, wanted in (("user", USER), ("item", ITEM)):
        shuffled = np.random.default_rng(3).permutation(300)
        np.testing.assert_array_equal(store.lookup(name, KEYS[shuffled]), wanted[shuffled])
        exported = store.export(name)
        np.testing.assert_array_equal(exported.keys, KEYS[order])
        np.testing.assert_array_equal(exported.rows, wanted[order])
    store.load(SOURCES[kind](), select="user", names={"user": "by_id"})
    assert not store.table("by_id").keyed
    np.testing.assert_array_equal(store.lookup("by_id", np.arange(300)), USER[order])
    assert not list(spool.iterdir())


@pytest.mark.parametrize("cuts", [[], [100]])
def test_keys_of_some_tables(store: warprow.Store, cuts: list[int]) -> None:
    numbers = np.arange(300, dtype=np.uint64)[::-1] + 2**63
    source = table(cuts)
    # A column of keys is no table, also if another table has it.
    store.load(source, names={"user": "u"}, keys={"u": "id", "item": numbers}, hotness={"u": np.arange(300)}, dtype={"u": "bf16"})
    np.testing.assert_array_equal(store.lookup("item", numbers), ITEM)
    np.testing.assert_allclose(store.lookup("u", KEYS), USER, rtol=2**-8)
    assert store.table("u").dtype == "bf16"


def test_a_column_in_one_piece_is_not_copied(make_store, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(size="256M")
    # Nothing can be spooled.
    monkeypatch.setattr("tempfile.tempdir", "/nobody")
    wanted = rows(1 << 16, 64)
    source, seen = pa.table({"v": column(wanted)}), []
    gc.collect()
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        for given in (source, Stream(source), source.to_batches()[0]):
            store.load(given, replace=True, progress=lambda done, total: seen.append(pa.total_allocated_bytes()))
            np.testing.assert_array_equal(store.lookup("v", [0, 65535]), wanted[[0, 65535]])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Of 16 MiB, neither NumPy nor arrow has a second copy.
    assert seen and max(seen) - before < 1 << 20 and peak < 1 << 20, (before, seen, peak)
    np.testing.assert_array_equal(store.export("v").rows, wanted)


def test_a_stream_takes_the_memory_of_a_batch(make_store, spool: Path) -> None:
    store = make_store(size="256M")
    schema = pa.schema([("id", pa.int32()), ("v", pa.list_(pa.float32(), 64))])
    held = []

    def batches() -> Iterator[object]:
        for number in range(64):
            held.append(pa.total_allocated_bytes())
            values = pa.array(np.full(4096 * 64, number, np.float32)).cast(pa.float64()).cast(pa.float32())
            ids = pa.array(np.arange(number * 4096, (number + 1) * 4096, dtype=np.int32)[::-1])
            yield pa.record_batch([ids, pa.FixedSizeListArray.from_arrays(values, 64)], schema=schema)

    store.load(pa.RecordBatchReader.from_batches(schema, batches()), keys="id")
    # 64 batches of 1 MiB.
    assert max(held) - held[0] < 4 << 20, held
    ids = np.arange(0, 64 * 4096, 511)
    np.testing.assert_array_equal(store.lookup("v", ids), np.repeat((ids // 4096)[:, None], 64, axis=1))
    assert not list(spool.iterdir())


def of(array, name: str = "v"):
    return pa.table({name: array})


NULL_ROW = pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2))
NULL_ELEMENT = pa.array([[1, 2], [None, 5], [3, 4]], pa.list_(pa.float32(), 2))
GOOD = column(rows(3, 2))


def breaking() -> Iterator[object]:
    yield pa.record_batch([GOOD], names=["v"])
    yield pa.record_batch([GOOD], names=["v"])
    raise OSError("the disk has gone")


@pytest.mark.parametrize(
    ("source", "options", "error", "words"),
    [
        (lambda: of(NULL_ROW), {}, warprow.InvalidArgument, ["source", "'v'", "1 rows that are null"]),
        (lambda: of(NULL_ELEMENT), {}, warprow.InvalidArgument, ["source", "'v'", "1 elements that are null"]),
        (lambda: of(pa.chunked_array([GOOD, NULL_ROW])), {}, warprow.InvalidArgument, ["'v'", "null"]),
        (lambda: of(pa.chunked_array([GOOD, GOOD, NULL_ELEMENT])), {}, warprow.InvalidArgument, ["'v'", "null"]),
        (lambda: of(pa.chunked_array([GOOD, NULL_ROW])).to_reader(), {}, warprow.InvalidArgument, ["'v'", "null"]),
        (lambda: of(pa.array([1.5, 2])), {}, warprow.InvalidArgument, ["'v'", "double", "select="]),
        (lambda: of(pa.array(["a"])), {}, warprow.InvalidArgument, ["'v'", "string", "fixed-size lists"]),
        (lambda: of(pa.array([[1.5], [2, 3]])), {}, warprow.InvalidArgument, ["'v'", "cast", "list_"]),
        (lambda: of(column(rows(3, 2, 0, np.float64))), {}, warprow.WrongType, ["'v'", "double", "cast"]),
        (lambda: of(pa.array([], pa.list_(pa.float32(), 2))), {}, warprow.InvalidArgument, ["'v'", "no rows"]),
        (lambda: of(pa.array([], pa.list_(pa.float32(), 2))).to_reader(), {}, warprow.InvalidArgument, ["no rows"]),
        (lambda: of(pa.array([[], []], pa.list_(pa.float32(), 0))), {}, warprow.InvalidArgument, ["'v'", "no element"]),
        (lambda: pa.table({}), {}, warprow.InvalidArgument, ["no tables"]),
        (lambda: pa.table([GOOD, GOOD], names=["v", "v"]), {}, warprow.InvalidArgument, ["two columns", "'v'"]),
        (lambda: of(GOOD), {"select": "w"}, warprow.InvalidArgument, ["select", "there are v"]),
        (lambda: of(GOOD), {"keys": "id"}, warprow.InvalidArgument, ["keys", "'id'", "there are v"]),
        (lambda: of(GOOD), {"keys": {"w": [1, 2, 3]}}, warprow.InvalidArgument, ["keys", "'w'"]),
        (lambda: table([]), {"keys": {"w": "id"}}, warprow.InvalidArgument, ["keys", "'w'"]),
        (lambda: table([]), {}, warprow.InvalidArgument, ["'id'", "int64", "select="]),
        (lambda: table([]), {"keys": "user", "select": "item"}, warprow.WrongType, ["keys", "'user'", "integers"]),
        (
            lambda: pa.table({"id": pa.array([1, None, 3]), "v": GOOD}), {"keys": "id"},
            warprow.InvalidArgument, ["keys", "'id'", "1 nulls"],
        ),
        (
            lambda: pa.table({"id": pa.array([1, 2, 1]), "v": GOOD}), {"keys": "id"},
            warprow.InvalidArgument, ['"v"', "twice"],
        ),
        (lambda: of(GOOD, "kept"), {}, warprow.TableExists, ["kept", "replace"]),
        (lambda: pa.chunked_array([GOOD]), {}, warprow.WrongType, ["source", "ChunkedArray", "table"]),
        (
            lambda: pa.RecordBatchReader.from_batches(pa.schema([("v", GOOD.type)]), breaking()), {},
            OSError, ["the disk has gone"],
        ),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(store: warprow.Store, spool: Path, source, options, error, words) -> None:
    wanted = rows(10, 4, 9)
    store.load({"kept": wanted})
    before = store.free_bytes(), len(os.listdir("/proc/self/fd"))
    with pytest.raises(error) as caught:
        store.load(source(), **options)
    assert all(word in str(caught.value) for word in words), caught.value
    del caught
    assert not list(spool.iterdir())
    assert (store.free_bytes(), len(os.listdir("/proc/self/fd"))) == before
    assert [it.name for it in store.tables()] == ["kept"]
    np.testing.assert_array_equal(store.lookup("kept", np.arange(10)), wanted)


def test_nulls_outside_a_slice_do_not_count(store: warprow.Store) -> None:
    for number, given in enumerate((NULL_ROW, NULL_ELEMENT)):
        store.load(of(given.slice(2), f"v{number}"))
        np.testing.assert_array_equal(store.lookup(f"v{number}", [0]), [[3, 4]])
