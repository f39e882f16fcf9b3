"""The model of examples/serving behind Triton's Python backend, called as Triton calls it, with a stand-in for Triton's module."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import warprow

EXAMPLES = Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

from serving.example_model import ROWS, ExampleModel  # noqa: E402
from serving.requests import Sample  # noqa: E402

LAYOUT = EXAMPLES / "serving" / "model_repository" / "warprow_ranker"
ITEMS = 32


def config(tmp_path: Path, **parameters: str) -> dict[str, Any]:
    """What Triton makes of `config.pbtxt`, as far as the model reads it."""
    text = re.sub(r"#.*", "", (LAYOUT / "config.pbtxt").read_text())
    found = {name: {"string_value": value} for name, value in re.findall(r'key: "(\w+)" value: \{ string_value: "([^"]*)" \}', text)}
    given = {"drives": f"emulated:{tmp_path}/a.drive", "versions": str(tmp_path / "versions"), **parameters}
    assert set(given) <= set(found)
    found.update({name: {"string_value": value} for name, value in given.items()})
    tensors = re.findall(r'name: "(\w+)" data_type: (\w+) dims: \[ (\d+) \]', text)
    assert tensors == [
        ("USER", "TYPE_INT64", "1"),
        ("ITEMS", "TYPE_INT64", str(ITEMS)),
        ("SCORE", "TYPE_FP32", "1"),
        ("GENERATION", "TYPE_INT64", "1"),
    ]
    batch = re.search(r"max_batch_size: (\d+)", text)
    assert batch
    inputs = [{"name": name, "dims": [int(dims)]} for name, _, dims in tensors[:2]]
    return {"max_batch_size": int(batch[1]), "input": inputs, "parameters": found}


@pytest.fixture
def utils(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "stand_ins" / "triton"))
    return importlib.import_module("triton_python_backend_utils")


@pytest.fixture
def model(utils: ModuleType, tmp_path: Path) -> Iterator[Any]:
    with warprow.format(f"emulated:{tmp_path}/a.drive?size=64M") as store:
        ExampleModel(1).load(store, tmp_path / "versions")
    spec = importlib.util.spec_from_file_location("triton_model", LAYOUT / "1" / "model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.TritonPythonModel()
    made.initialize({"model_config": json.dumps(config(tmp_path, admin="yes", python_path=str(EXAMPLES)))})
    yield made
    made.finalize()


def request(utils: ModuleType, samples: list[Sample], **parameters: str) -> Any:
    """A request of one batch of samples, padded."""
    users = np.array([[sample.user] for sample in samples], dtype=np.int64).reshape(len(samples), 1)
    items = np.full((len(samples), ITEMS), -1, dtype=np.int64)
    for row, sample in zip(items, samples, strict=True):
        row[: len(sample.items)] = sample.items
    return utils.InferenceRequest([utils.Tensor("USER", users), utils.Tensor("ITEMS", items)], parameters)


def compare(response: Any, samples: list[Sample], model: ExampleModel) -> int:
    assert not response.has_error(), response.error()
    score, generation = response.output_tensors()
    assert (score.name(), generation.name()) == ("SCORE", "GENERATION")
    assert score.as_numpy().shape == generation.as_numpy().shape == (len(samples), 1)
    assert score.as_numpy()[:, 0].tolist() == [model.score(sample) for sample in samples]
    assert len(set(generation.as_numpy()[:, 0].tolist())) == 1
    return int(generation.as_numpy()[0, 0])


def test_scores(model: Any, utils: ModuleType) -> None:
    drawn = np.random.default_rng(1)
    batches = [
        [Sample(int(drawn.integers(ROWS["user"])), drawn.integers(0, ROWS["item"], n % (ITEMS + 1)).tolist()) for n in range(size)]
        for size in (1, 40, 7)
    ]
    responses = model.execute([request(utils, samples) for samples in batches])
    for response, samples in zip(responses, batches, strict=True):
        compare(response, samples, ExampleModel(1))
    # One look-up for all of them.
    assert model._ranker.executor.metrics()["lookups"] == 1


def test_errors_belong_to_their_requests(model: Any, utils: ModuleType) -> None:
    good, wrong = [Sample(1, [2])], [Sample(3, []), Sample(4, [ROWS["item"]])]
    first, second, third = model.execute([request(utils, good), request(utils, wrong), request(utils, good)])
    compare(first, good, ExampleModel(1))
    compare(third, good, ExampleModel(1))
    assert second.error().code() == utils.TritonError.NOT_FOUND and "no row of id 5000" in second.error().message()
    model._store.inject_fault("unreadable", times=None)
    (lost,) = model.execute([request(utils, good)])
    assert lost.error().code() == utils.TritonError.UNAVAILABLE and "rows_failed" in lost.error().message()
    model._store.clear_faults()
    model._store.retry_drives()
    compare(model.execute([request(utils, good)])[0], good, ExampleModel(1))


def test_a_request_brings_a_generation(model: Any, utils: ModuleType, tmp_path: Path) -> None:
    samples = [Sample(1, [2, 3])]
    before = compare(model.execute([request(utils, samples)])[0], samples, ExampleModel(1))
    ExampleModel(2).write(tmp_path / "next")
    (wrong,) = model.execute([request(utils, samples, publish=str(tmp_path / "nothing"))])
    assert wrong.error().code() == utils.TritonError.INVALID_ARG
    (published,) = model.execute([request(utils, samples, publish=str(tmp_path / "next"))])
    assert compare(published, samples, ExampleModel(2)) != before
    model._admin = False
    (denied,) = model.execute([request(utils, samples, publish=str(tmp_path / "next"))])
    assert "admin" in denied.error().message()
