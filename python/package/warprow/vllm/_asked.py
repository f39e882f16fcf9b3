"""What a configuration of vLLM's says of the plug-in, and whether this vLLM is known."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from .._engines.options import EngineOptions
from .._engines.release import Engine

#: The releases whose sources were read.
VLLM = Engine("vLLM", ("0.32.0", "0.33.0"))
ARGUMENT = 'additional_config["warprow"]'


def version() -> str:
    """The version of the vLLM that runs."""
    return str(getattr(sys.modules.get("vllm"), "__version__", "without a version"))


def asked(config: Any) -> EngineOptions | None:
    """The options of a configuration; None: it does not ask for the plug-in."""
    additional = getattr(config, "additional_config", None)
    given = additional.get("warprow") if isinstance(additional, dict) else None
    if given is None or given is False:
        return None
    model = str(getattr(getattr(config, "model_config", None), "model", "") or "")
    options = EngineOptions.read(ARGUMENT, given, model if os.path.isdir(model) else "")
    VLLM.check_version(version(), allow_unknown=options.allow_unknown_version)
    return options


def install(module: ModuleType) -> None:
    """Has a configuration that asks for what cannot be be refused as soon as it is made, by the process that the user looks at."""
    config = getattr(module, "VllmConfig", None)
    original = getattr(config, "__post_init__", None)
    if config is None or original is None:
        return

    @functools.wraps(original)
    def __post_init__(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(self, *args, **kwargs)
        asked(self)
        return made

    config.__post_init__ = __post_init__
