"""What tests of the plug-ins share: engines' modules from stand-ins or from real sources, and a torch that has no GPU where engines want one."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

STAND_INS = Path(__file__).parent / "stand_ins"
HAS_GPU = torch.cuda.is_available()


def origins(package: str) -> list[Any]:
    """Folders that have a package of an engine's: stand-ins; unpacked wheels that the environment names; the installed one."""
    found = [pytest.param(STAND_INS, id="stand-ins")]
    named = os.environ.get(f"WARPROW_{package.upper()}_SOURCES", "")
    found += [pytest.param(Path(it), id=Path(it).name) for it in named.split(os.pathsep) if it]
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.origin is not None:
        found.append(pytest.param(Path(spec.origin).parent.parent, id="installed"))
    if len(found) == 1:
        why = f"{package} is not installed, and WARPROW_{package.upper()}_SOURCES names no folder with an unpacked wheel of it"
        found.append(pytest.param(None, id="installed", marks=pytest.mark.skip(reason=why)))
    return found


class _Stream:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


@contextlib.contextmanager
def without_gpu(patch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The device on which engines make a model, under `with device:`. Without a GPU it is the CPU, and what engines ask CUDA for does nothing."""
    if HAS_GPU:
        yield torch.device("cuda", torch.cuda.current_device())
        return
    empty = torch.empty
    # Each of these can be asked for before any kernel is launched.
    patch.setattr(torch, "empty", lambda *args, **kwargs: empty(*args, **{k: v for k, v in kwargs.items() if k != "pin_memory"}))
    patch.setattr(torch.cuda, "get_device_properties", lambda *_: types.SimpleNamespace(multi_processor_count=1))
    patch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    for name in ("Stream", "Event", "current_stream"):
        patch.setattr(torch.cuda, name, _Stream)
    patch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    patch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    yield torch.device("cpu")
