"""A plug-in of SGLang's: n-gram tables of models that SGLang serves, read where the checkpoint has them.

SGLang finds it by its entry point `warprow` of the group `sglang.srt.plugins`. It does nothing unless it is asked for:

    WARPROW_SGLANG='{"path": "/models/DeepSeek-V4.1-Flash"}' python -m sglang.launch_server --model-path /models/DeepSeek-V4.1-Flash
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._engines.imports import when_any_imported
from .._engines.release import UnknownRelease
from ..errors import WarprowError

if TYPE_CHECKING:
    from .._engines.table import EngineTable

__all__ = ["UnknownRelease", "register", "tables"]


#: Modules of this package, and SGLang's modules that they change.
HOOKS = {
    "_engram": ("sglang.srt.layers.engram",),
    "_ple": ("sglang.srt.models.qwen4_exp",),
    "_steps": ("sglang.srt.model_executor.model_runner",),
}


def register() -> None:
    """Has SGLang's modules changed once SGLang imports them. SGLang calls this, in each of its processes.

    Raises
    ------
    SystemExit
        `WARPROW_SGLANG` asks for something that cannot be: SGLang would go on with a table of its own after any other exception.
    """
    from . import _asked

    try:
        if _asked.asked() is None:
            return
    except WarprowError as error:
        # SGLang logs what a plug-in raises, and would go on with a table of its own.
        raise SystemExit(f"warprow.sglang: {error}") from error
    when_any_imported(HOOKS, __name__)


def tables() -> list[EngineTable]:
    """The tables of this process that stand in the place of SGLang's own."""
    from .._engines.table import tables

    return tables()
