"""What is done between two steps: before the inputs of the next one are prepared, outside of all graphs."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any

from .._engines.table import between_steps
from ._asked import VLLM, version

#: The method that runs once a step, eagerly, before a graph is replayed: of the states of models, and of the runner that has no such states.
METHODS = {
    "DeepseekV41ModelState": "prepare_inputs",
    "Qwen4ExpModelState": "prepare_inputs",
    "GPUModelRunner": "_prepare_inputs",
}


def check(name: str, owner: str) -> None:
    """Refuses a vLLM in which nothing would run between two steps."""
    VLLM.check_signatures(version(), importlib.import_module(name), {f"{owner}.{METHODS[owner]}": ("self", "input_batch", "req_states")})


def install(module: ModuleType) -> None:
    """Puts it before the method that prepares inputs."""
    for name, method in METHODS.items():
        owner = vars(module).get(name)
        original = vars(owner).get(method) if owner is not None else None
        if owner is not None and original is not None and owner.__module__ == module.__name__:
            setattr(owner, method, _behind(original))


def _behind(original: Any) -> Any:
    @functools.wraps(original)
    def prepared(self: Any, *args: Any, **kwargs: Any) -> Any:
        between_steps()
        return original(self, *args, **kwargs)

    return prepared
