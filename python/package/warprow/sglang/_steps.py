"""What is done between two steps: before the next one begins, outside of all graphs."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .._engines.table import between_steps
from ._asked import SGLANG, version


def install(module: ModuleType) -> None:
    """Puts it before the method that runs a step, of which a replay of a graph is a part."""
    SGLANG.check_signatures(version(), module, {"ModelRunner.forward": ("self", "forward_batch")})
    original = module.ModelRunner.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        between_steps()
        return original(self, *args, **kwargs)

    module.ModelRunner.forward = forward
