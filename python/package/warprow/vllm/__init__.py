"""A plug-in of vLLM's: n-gram tables of models that vLLM serves, read where the checkpoint has them.

vLLM finds it by its entry point `warprow` of the group `vllm.general_plugins`. It does nothing unless it is asked for:

    vllm serve /models/DeepSeek-V4.1-Flash --additional-config '{"warprow": true}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._engines.imports import when_any_imported
from .._engines.release import UnknownRelease

if TYPE_CHECKING:
    from .._engines.table import EngineTable

__all__ = ["UnknownRelease", "register", "tables"]


#: Modules of this package, and vLLM's modules that they change.
HOOKS = {
    "_asked": ("vllm.config.vllm",),
    "_engram": ("vllm.models.deepseek_v41.common.engram",),
    "_ple": ("vllm.models.qwen4_exp.nvidia.ngram_embedding",),
    "_steps": (
        "vllm.models.deepseek_v41.nvidia.model_state",
        "vllm.models.qwen4_exp.nvidia.model_state",
        "vllm.v1.worker.gpu_model_runner",
    ),
}


def register() -> None:
    """Has vLLM's modules changed once vLLM imports them. vLLM calls this, in each of its processes."""
    when_any_imported(HOOKS, __name__)


def tables() -> list[EngineTable]:
    """The tables of this process that stand in the place of vLLM's own."""
    from .._engines.table import tables

    return tables()
