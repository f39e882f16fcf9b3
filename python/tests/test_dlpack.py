"""Arrays of JAX and CuPy, by DLPack: where these libraries are installed. (Of any other library, an array that has `__dlpack__` and nothing
else stands in, in test_sources.py and test_torch.py.)"""

from __future__ import annotations

import numpy as np
import pytest

import warprow

ROWS, DIM = 1000, 16


def table() -> np.ndarray:
    return np.random.default_rng(3).random((ROWS, DIM), dtype=np.float32)


@pytest.fixture
def jax(monkeypatch: pytest.MonkeyPatch):
    # Beside torch, JAX does not take most of a GPU's memory.
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return pytest.importorskip("jax", reason="JAX is not installed")


@pytest.fixture
def cupy():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
    if cupy.cuda.runtime.getDeviceCount() == 0:
        pytest.skip("CuPy needs a GPU")
    return cupy


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def test_jax_on_the_host(store: warprow.Store, jax) -> None:
    host = jax.devices("cpu")[0]
    rows = jax.device_put(table(), host)
    store.load({"user": rows, "half": rows.astype("bfloat16")})
    ids = jax.device_put(np.array([[5, 0], [999, 7]], dtype=np.int32), host)
    found = jax.dlpack.from_dlpack(store.lookup("user", ids))
    assert isinstance(found, jax.Array)
    np.testing.assert_array_equal(np.asarray(found), table()[np.asarray(ids)])
    np.testing.assert_array_equal(store.lookup("half", ids), np.asarray(rows.astype("bfloat16").astype("float32"))[np.asarray(ids)])
    with store.attach() as executor:
        plan = executor.plan([warprow.Feature("user", "user", pooling="sum", weighted=True)], max_batch=4, max_ids=8)
        offsets = jax.device_put(np.array([0, 3], dtype=np.int32), host)
        weights = jax.device_put(np.array([1, 2, 3, 4], dtype=np.float32), host)
        sums = plan.lookup(ids.reshape(-1), offsets=offsets, weights=weights)
        wanted = [table()[[5]] * 1 + table()[[0]] * 2 + table()[[999]] * 3, table()[[7]] * 4]
        np.testing.assert_array_equal(sums, np.concatenate(wanted))
    store.update("user", ids.reshape(-1), jax.device_put(np.full((4, DIM), 2.5, dtype=np.float32), host))
    assert (store.lookup("user", np.array([5, 0, 999, 7])) == 2.5).all()


def test_modules_take_and_give_arrays_of_jax(store: warprow.Store, jax, torch) -> None:
    import warprow.torch as wt

    store.load({"user": table()})
    host = jax.devices("cpu")[0]
    ids = jax.device_put(np.arange(0, 600, 7, dtype=np.int32), host)
    found = wt.Embedding(store, "user")(ids)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(np.asarray(jax.dlpack.from_dlpack(found)), table()[np.asarray(ids)])
    if not torch.cuda.is_available() or jax.default_backend() != "gpu":
        return
    module = wt.Embedding(store.attach("cuda", hbm_bytes=1 << 16), "user")
    there = jax.device_put(ids, jax.devices("gpu")[0])
    found = jax.dlpack.from_dlpack(module(there))
    np.testing.assert_array_equal(np.asarray(found), table()[np.asarray(ids)])
    module.check()


def test_modules_take_and_give_arrays_of_cupy(store: warprow.Store, cupy, torch) -> None:
    import warprow.torch as wt

    # Rows of a GPU are refused by name where rows have to lie in host memory.
    with pytest.raises((warprow.InvalidArgument, warprow.WrongType), match="user"):
        store.load({"user": cupy.asarray(table())})
    store.load({"user": table()})
    module = wt.Embedding(store.attach("cuda", hbm_bytes=1 << 15, dram_bytes=1 << 15), "user")
    bag = wt.EmbeddingBag(module.executor, "user", mode="sum")
    ids = cupy.arange(0, 600, 7, dtype=cupy.int64)
    cupy.cuda.get_current_stream().synchronize()
    found = cupy.from_dlpack(module(ids))
    torch.cuda.synchronize()
    assert isinstance(found, cupy.ndarray)
    np.testing.assert_array_equal(cupy.asnumpy(found), table()[cupy.asnumpy(ids)])
    offsets = cupy.arange(0, len(ids), 2, dtype=cupy.int64)
    cupy.cuda.get_current_stream().synchronize()
    sums = cupy.from_dlpack(bag(ids, offsets))
    torch.cuda.synchronize()
    wanted = [sum((table()[at : at + 1] for at in part), np.zeros((1, DIM), np.float32)) for part in np.split(cupy.asnumpy(ids), range(2, len(ids), 2))]
    np.testing.assert_array_equal(cupy.asnumpy(sums), np.concatenate(wanted))
    # An array of CuPy's on a module that looks up on the host.
    with pytest.raises(warprow.InvalidArgument, match="input"):
        wt.Embedding(store, "user")(ids)
    module.check()
