"""Arguments that are tensors, or become tensors by DLPack, as arrays of NumPy, CuPy and JAX do."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import wrong_type


def as_tensor(argument: str, value: Any) -> torch.Tensor:
    """`value` itself if it is a tensor, else a tensor over the same memory."""
    # What stands for a tensor while a graph is traced (`torch.fx.Proxy`) is none, and has every attribute: its type is asked.
    if isinstance(value, torch.Tensor) or hasattr(type(value), "__torch_function__"):
        return value  # type: ignore[no-any-return]
    if not hasattr(type(value), "__dlpack__"):
        raise wrong_type(argument, f"a {type(value).__name__}: give a tensor, or an array that has __dlpack__")
    try:
        return torch.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        text = f"a {type(value).__name__} that torch cannot take by DLPack ({error}): give a tensor"
        raise wrong_type(argument, text) from error


def check_tensor(argument: str, value: Any) -> None:
    """Whether `value` is a tensor of torch: of an output no other array will do.

    Raises
    ------
    WrongType
        It is something else.
    """
    if not isinstance(value, torch.Tensor):
        raise wrong_type(argument, f"a {type(value).__name__}: give a tensor of torch")
