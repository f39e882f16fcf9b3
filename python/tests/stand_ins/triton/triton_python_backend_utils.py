"""As much of the module that Triton gives models of its Python backend as examples/serving uses."""

from __future__ import annotations

import json
from typing import Any


class Tensor:
    def __init__(self, name: str, array: Any) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._array


class TritonError(Exception):
    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE = range(5)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        super().__init__(message)
        self._message, self._code = message, code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class InferenceRequest:
    def __init__(self, inputs: list[Tensor], parameters: dict[str, Any] | None = None) -> None:
        self._inputs = {tensor.name(): tensor for tensor in inputs}
        self._parameters = json.dumps(parameters or {})

    def parameters(self) -> str:
        return self._parameters


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor], error: TritonError | None = None) -> None:
        self._outputs, self._error = output_tensors, error

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return request._inputs.get(name)
