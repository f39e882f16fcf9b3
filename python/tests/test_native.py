"""The library of operators: that it is compiled, what it does with calls that no module makes, and models that it runs without Python.

Where the library is loaded (`WARPROW_TORCH_LIBRARY`), all other tests of modules for torch look up with it: tests/python.sh runs them both
ways.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402
from warprow.torch import native  # noqa: E402

from test_memory_of_tensors import SMALLER  # noqa: E402
from test_torch import DEVICES, ROWS, attach, device, random_ids, same, stored  # noqa: E402, F401

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

loaded = pytest.mark.skipif(not native.is_loaded(), reason="the library of operators is not loaded: tests/python.sh compiles it")
supported = pytest.mark.skipif(
    not native.is_supported() or not native.compiler(), reason="the library of operators needs torch 2.10 and a C++ compiler"
)
SERVE = Path(__file__).parent.parent / "examples" / "serve"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled."""
    named = os.environ.get("WARPROW_TORCH_LIBRARY", "none")
    if named != "none":
        return Path(named)
    return native.build(tmp_path_factory.mktemp("operators") / "libwarprow_torch.so")


@supported
def test_a_compiler_that_fails_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(warprow.WarprowError, match="false -std"):
        native.build(tmp_path / "library.so")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises((warprow.WarprowError, OSError), match="no-such-compiler"):
        native.build(tmp_path / "library.so")
    assert list(tmp_path.iterdir()) == []


def test_a_library_of_another_kind_is_left_alone(tmp_path) -> None:
    wrong = tmp_path / "wrong.so"
    wrong.write_bytes(b"no library")
    text = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import warprow.torch
print(warprow.torch.native.is_loaded(), any("wrong.so" in str(it.message) for it in caught))
"""
    environment = {**os.environ, "WARPROW_TORCH_LIBRARY": str(wrong)}
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment)
    expected = ["False", "True"] if native.is_supported() else ["False", "False"]
    assert found.stdout.split() == expected, found.stderr


@loaded
def test_eager_calls_take_the_operator(stored, device) -> None:  # noqa: F811
    store, table = stored
    ours = wt.Embedding(attach(store, device), "user")
    ids = random_ids(50).to(device)
    same(ours(ids), table[ids.cpu()].to(device))
    found = torch.ops.warprow.lookup_numbered(ids, None, None, ours._lookup.native.number)
    same(found, table[ids.cpu()].to(device))
    torch.library.opcheck(torch.ops.warprow.lookup_numbered, (ids, None, None, ours._lookup.native.number), test_utils="test_schema")
    ours.check()


@loaded
def test_operators_check_what_nobody_checked_before(stored) -> None:  # noqa: F811
    store, _ = stored
    rows, bags = wt.Embedding(store, "user"), wt.EmbeddingBag(store, "user", mode="sum")
    masked = wt.Embedding(store, "user", on_failure="mask")
    number, text = rows._lookup.native.number, bags._lookup.text
    ids, floats = random_ids(6), torch.rand(6)
    lookup, numbered, lookup_masked = torch.ops.warprow.lookup, torch.ops.warprow.lookup_numbered, torch.ops.warprow.lookup_masked
    for call, word in [
        (lambda: numbered(floats, None, None, number), "input: elements of type torch.float32"),
        (lambda: numbered(ids.short(), None, None, number), "torch.int16"),
        (lambda: numbered(ids, ids, None, number), "offsets"),
        (lambda: numbered(ids, None, floats, number), "per_sample_weights"),
        (lambda: numbered(ids, None, None, 1 << 40), "no look-up number"),
        (lambda: numbered(ids, None, None, -1), "no look-up number"),
        (lambda: lookup(ids, None, None, text), "offsets"),
        (lambda: lookup(ids, torch.zeros(2, 2, dtype=torch.int64), None, text), "offsets: 2 dimensions"),
        (lambda: lookup(ids, torch.tensor([0, 3, 2]), None, text), "offsets"),
        (lambda: lookup(ids, torch.tensor([0, 3]), floats, text), "per_sample_weights"),
        (lambda: lookup(ids, torch.tensor([0, 3]), floats[:3], bags._weighted.text), "per_sample_weights"),
        (lambda: lookup(ids, torch.tensor([0, 3]), ids, bags._weighted.text), "per_sample_weights"),
        (lambda: lookup(ids, None, None, masked._lookup.text), "on_failure"),
        (lambda: lookup_masked(ids, None, None, rows._lookup.text), "on_failure"),
        (lambda: lookup(ids, None, None, ""), "compile the model anew"),
        (lambda: lookup(ids, None, None, rows._lookup.text.replace('"drives"', '"disks"')), "compile the model anew"),
        (lambda: numbered(ids.reshape((1,) * 15 + (6,)), None, None, number), "dimensions"),
        # Read, they would end the process.
        *(
            (call, f"{word}: a tensor whose storage has [0-9]+ bytes of the [0-9]+ that it names: give")
            for make in SMALLER
            for call, word in [
                (lambda make=make: numbered(make(ids), None, None, number), "input"),
                (lambda make=make: lookup(make(ids), None, None, rows._lookup.text), "input"),
                (lambda make=make: lookup_masked(make(ids), None, None, masked._lookup.text), "input"),
                (lambda make=make: lookup(ids, make(torch.tensor([0, 3])), None, text), "offsets"),
                (lambda make=make: lookup(ids, torch.tensor([0, 3]), make(floats), bags._weighted.text), "per_sample_weights"),
                (lambda make=make: lookup(ids, torch.tensor([0, 3]), make(floats.double()), bags._weighted.text), "per_sample_weights"),
            ]
        ),
    ]:
        with pytest.raises((RuntimeError, warprow.WarprowError, ValueError, TypeError, KeyError), match=word):
            call()
    # A module that is gone takes its number with it.
    gone = wt.Embedding(store, "user")
    left = gone._lookup.native.number
    del gone
    gc.collect()
    with pytest.raises(RuntimeError, match=f"no look-up number {left}"):
        numbered(ids, None, None, left)
    same(numbered(ids, None, None, number), rows(ids))


@loaded
def test_errors_of_eager_calls_have_their_classes(stored) -> None:  # noqa: F811
    store, table = stored
    ours = wt.Embedding(store, "user")
    with pytest.raises(warprow.MissingIds) as caught:
        ours(torch.tensor([3, ROWS, 5, -1]))
    assert list(caught.value.positions) == [1, 3]
    # What an operator failed with in another way does not turn up behind a call of a module.
    with pytest.raises(RuntimeError, match="missing"):
        torch.ops.warprow.lookup_numbered.default(torch.tensor([ROWS]), None, None, ours._lookup.native.number)
    with pytest.raises(warprow.InvalidArgument, match="input: a tensor on meta"):
        ours(torch.tensor([1], device="meta"))
    same(ours(torch.tensor([7])), table[7:8])
    store.close()
    with pytest.raises(warprow.Closed):
        ours(torch.tensor([7]))


@loaded
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_errors_of_compiled_calls_have_their_classes(stored, backend: str) -> None:  # noqa: F811
    store, table = stored
    if backend == "inductor" and not native.compiler():
        pytest.skip("inductor needs a C++ compiler")
    ours = wt.Embedding(store, "user")
    masked = wt.Embedding(store, "user", on_failure="mask")
    plain, with_mask = (torch.compile(it, backend=backend, fullgraph=True) for it in (ours, masked))
    ids = random_ids(8)
    with torch.no_grad():
        same(plain(ids), table[ids])
        same(with_mask(ids)[0], table[ids])
        for call in (plain, with_mask):
            with pytest.raises(warprow.MissingIds) as caught:
                call(torch.tensor([3, ROWS, 5, -1, 0, 1, 2, 6]))
            assert list(caught.value.positions) == [1, 3] and caught.value.remedy
        # An operator that is called by its text, as exported programs do, likewise.
        for operator in (torch.ops.warprow.lookup, torch.ops.warprow.lookup.default):
            with pytest.raises(warprow.MissingIds):
                operator(torch.tensor([ROWS]), None, None, ours._lookup.text)
        store.inject_fault("unreadable", times=None)
        with pytest.raises(warprow.RowsFailed) as failed:
            plain(ids)
        assert failed.value.count == 8 and failed.value.drive and failed.value.command
        store.clear_faults()
        same(plain(ids), table[ids])
        store.close()
        with pytest.raises(warprow.Closed):
            plain(ids)


def libwarprow() -> Path | None:
    """The C library that Cargo has built last, if there is one."""
    named = os.environ.get("WARPROW_LIBRARY")
    if named:
        return Path(named)
    target = Path(os.environ.get("CARGO_TARGET_DIR") or Path(__file__).parents[2] / "target")
    found = [it for profile in ("debug", "release") for it in (target / profile / "deps").glob("libwarprow_capi*.so")]
    return max(found, key=lambda it: it.stat().st_mtime, default=None)


@supported
@pytest.mark.parametrize("where", DEVICES)
def test_a_compiled_model_is_served_without_python(library, tmp_path, where) -> None:
    environment = {**os.environ, "WARPROW_TORCH_LIBRARY": str(library), "PYTHONWARNINGS": "ignore"}
    # It loads the package in Python, and compares it there.
    made = subprocess.run([sys.executable, SERVE / "export.py", tmp_path, where], capture_output=True, text=True, env=environment)
    assert made.returncode == 0, made.stderr[-4000:]
    c_library = libwarprow()
    if c_library is None:
        pytest.skip("serving without Python needs libwarprow: cargo build -p warprow-capi")
    environment["WARPROW_LIBRARY"] = str(c_library)

    torch_folder = Path(torch.__file__).parent
    program, lib = tmp_path / "serve", torch_folder / "lib"
    command = [*native.compiler(), "-std=c++20", "-O1", "-isystem", torch_folder / "include", "-I", native.SOURCES[0].parent]
    command += [SERVE / "serve.cpp", "-o", program, f"-L{lib}", f"-Wl,-rpath,{lib}", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    compiled = subprocess.run([str(it) for it in command], capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr[-4000:]

    # As on another machine, where the drive has another name.
    (tmp_path / "model.drive").rename(tmp_path / "moved.drive")
    arguments = [program, library, tmp_path / "model.pt2", tmp_path / "batches.pt"]
    renamed = [f"emulated:{tmp_path}/model.drive?size=64M", f"emulated:{tmp_path}/moved.drive"]
    found = subprocess.run([*arguments, *renamed], capture_output=True, text=True, env=environment)
    assert found.returncode == 0, found.stderr[-4000:]
    lines = found.stdout.splitlines()
    assert lines[0] == "1066 predictions, all equal bit for bit"
    assert lines[1].startswith("refused: ") and "missing" in lines[1] and lines[2] == "all is closed"

    # Without the other name, the drive is not found, and nothing is made in its place.
    found = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    assert found.returncode == 1 and not (tmp_path / "model.drive").exists()
    missing = {**environment, "WARPROW_LIBRARY": str(tmp_path / "none.so")}
    found = subprocess.run([*arguments, *renamed], capture_output=True, text=True, env=missing)
    assert found.returncode == 1 and "none.so" in found.stderr
