"""The ranker behind Triton's Python backend. Triton gathers batches, by `config.pbtxt`; the model is the one that the ASGI server calls."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

import warprow


class TritonPythonModel:
    """What Triton makes of this file."""

    def initialize(self, args: dict[str, str]) -> None:
        """Opens the store that the parameters of `config.pbtxt` name."""
        config = json.loads(args["model_config"])
        parameters = {name: it["string_value"] for name, it in config.get("parameters", {}).items()}
        if parameters.get("python_path"):
            sys.path.insert(0, parameters["python_path"])
        from serving.ranker import Ranker
        from serving.requests import Refused, Sample

        self._refused, self._sample = Refused, Sample
        self._admin = parameters.get("admin") == "yes"
        items = next(it for it in config["input"] if it["name"] == "ITEMS")
        self._store = warprow.open(parameters["drives"].split(";"))
        self._ranker = Ranker(
            self._store,
            Path(parameters["versions"]),
            max_batch=max(1, int(config["max_batch_size"])),
            max_items=int(items["dims"][0]),
            dram_bytes=int(parameters.get("dram_bytes", "0")),
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers all requests of a batch by one look-up. A request with a sample that gets no score gets an error, and no other does."""
        responses: list[Any] = [None] * len(requests)
        samples: list[Any] = []
        counts: list[int] = []
        for at, request in enumerate(requests):
            try:
                self._publish(request)
                given = self._samples_of(request)
            except (warprow.WarprowError, OSError, KeyError, ValueError) as error:
                responses[at], given = _error(f"bad_request: {type(error).__name__}: {error}", "INVALID_ARG"), []
            samples += given
            counts.append(len(given))
        try:
            answers = self._ranker.answer(samples) if samples else []
        except warprow.WarprowError as error:
            refused = self._refused("store_failed", f"{type(error).__name__}: {error}")
            answers = [refused] * len(samples)
        before = 0
        for at, count in enumerate(counts):
            part, before = answers[before : before + count], before + count
            if responses[at] is None:
                responses[at] = self._response(part)
        return responses

    def _samples_of(self, request: Any) -> list[Any]:
        users = pb_utils.get_input_tensor_by_name(request, "USER").as_numpy().reshape(-1).tolist()
        items = pb_utils.get_input_tensor_by_name(request, "ITEMS").as_numpy().reshape(len(users), -1).tolist()
        return [self._sample(user, [it for it in row if it != -1]) for user, row in zip(users, items, strict=True)]

    def _publish(self, request: Any) -> None:
        """Brings a new generation first, if the request says so: `{"publish": FOLDER}` in its parameters."""
        source = json.loads(request.parameters() or "{}").get("publish")
        if source is None:
            return
        if not self._admin:
            raise ValueError('publish: the parameter "admin" of config.pbtxt is not "yes"')
        self._ranker.publish(Path(source))

    def _response(self, answers: list[Any]) -> Any:
        for answer in answers:
            if isinstance(answer, self._refused):
                code = {422: "NOT_FOUND", 503: "UNAVAILABLE"}.get(answer.status, "INTERNAL")
                return _error(f"{answer.kind}: {answer}", code)
        scores = np.array([[answer.score] for answer in answers], dtype=np.float32)
        generations = np.array([[answer.generation] for answer in answers], dtype=np.int64)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SCORE", scores), pb_utils.Tensor("GENERATION", generations)])

    def finalize(self) -> None:
        """Closes the store."""
        self._ranker.close()
        self._store.close()


def _error(text: str, code: str) -> Any:
    # Older backends have no codes.
    number = getattr(pb_utils.TritonError, code, None)
    error = pb_utils.TritonError(text) if number is None else pb_utils.TritonError(text, number)
    return pb_utils.InferenceResponse(output_tensors=[], error=error)
