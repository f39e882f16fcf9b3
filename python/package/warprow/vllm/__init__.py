"""A plug-in of vLLM's: n-gram tables of models that vLLM serves, read where the checkpoint has them.

vLLM finds it by its entry point `warprow` of the group `vllm.general_plugins`. It does nothing unless it is asked for:

    vllm serve /models/DeepSeek-V4.1-Flash --additional-config '{"warprow": true}'
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from .._engines.imports import when_imported
from .._engines.release import UnknownRelease

if TYPE_CHECKING:
    from .._engines.table import EngineTable

__all__ = ["UnknownRelease", "register", "tables"]


def register() -> None:
    """Has vLLM's modules changed once vLLM imports them. vLLM calls this, in each of its processes."""

    # What these import, torch above all, is there by the time that vLLM imports its own modules.
    def configured(module: ModuleType) -> None:
        from . import _asked

        _asked.install(module)

    def engram(module: ModuleType) -> None:
        from . import _engram

        _engram.install(module)

    def ple(module: ModuleType) -> None:
        from . import _ple

        _ple.install(module)

    def steps(module: ModuleType) -> None:
        from . import _steps

        _steps.install(module)

    when_imported("vllm.config.vllm", configured)
    when_imported("vllm.models.deepseek_v41.common.engram", engram)
    when_imported("vllm.models.qwen4_exp.nvidia.ngram_embedding", ple)
    for name in ("vllm.models.deepseek_v41.nvidia.model_state", "vllm.models.qwen4_exp.nvidia.model_state", "vllm.v1.worker.gpu_model_runner"):
        when_imported(name, steps)


def tables() -> list[EngineTable]:
    """The tables of this process that stand in the place of vLLM's own."""
    from .._engines.table import tables

    return tables()
