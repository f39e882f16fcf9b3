"""Arguments that are tensors, or become tensors by DLPack, as arrays of NumPy, CuPy and JAX do."""

from __future__ import annotations

from typing import Any

import torch

from .._arrays import has_memory
from ..errors import WarprowError, invalid, wrong_type


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


def has_own_dispatch(tensor: torch.Tensor | None) -> bool:
    """Whether operators on a tensor are its class's own, as of a FakeTensor: such a tensor need not have memory."""
    return tensor is not None and type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def address_of(argument: str, tensor: torch.Tensor) -> int:
    """Where the elements of a tensor lie, which is read or written past torch.

    Raises
    ------
    WrongType
        It has no memory of its own, or its storage has fewer bytes than it names.
    """
    address = 0
    if not has_own_dispatch(tensor):
        try:
            # Torch warns of numbers that are asked for in a trace.
            address = tensor.data_ptr() if torch._C._is_tracing() or has_memory(tensor) else 0
        except RuntimeError:
            # Of what stands for a tensor under a transform of torch.func.
            address = 0
        if address or tensor.numel() == 0:
            return address
    raise wrong_type(argument, f"a {type(tensor).__name__} that has no memory of its own: give a torch.Tensor that has")


def check_memory(ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None) -> None:
    """Whether the tensors of a batch have memory of their own.

    Raises
    ------
    WrongType
        One has none.
    """
    for argument, tensor in (("input", ids), ("offsets", offsets), ("per_sample_weights", weights)):
        if tensor is not None:
            address_of(argument, tensor)


def plain(argument: str, tensor: torch.Tensor | None, dtype: torch.dtype | None = None) -> Any:
    """A tensor whose elements follow each other in memory, aligned, of a type, and are what memory has.

    Raises
    ------
    WrongType
        It has no memory of its own.
    """
    if tensor is None:
        return None
    # Before torch copies it, which would read what is not there.
    address = address_of(argument, tensor)
    if dtype is not None and tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    elif address % tensor.element_size():
        # As tensors over bytes of a file or a message may lie.
        tensor = tensor.clone()
    return tensor


def check_output(out: torch.Tensor) -> None:
    """Whether rows can be written where an output lies.

    Raises
    ------
    WrongType
        It has no memory of its own.
    InvalidArgument
        It requires a gradient, or is not aligned, or torch negates what its memory has.
    """
    if address_of("out", out) % out.element_size():
        raise invalid("out", f"it lies at an address that is no multiple of the {out.element_size()} bytes of an element: give a new tensor")
    if out.is_neg():
        raise invalid("out", "torch negates what its memory has (is_neg()): give out.resolve_neg(), or a new tensor")
    if out.requires_grad and torch.is_grad_enabled():
        raise invalid("out", "it requires a gradient, and rows have none: give out.detach(), or call under torch.no_grad()")


def check_apart(out: torch.Tensor, **given: torch.Tensor | None) -> None:
    """Whether an output shares no memory with what is read while it is filled: contiguous tensors, by their arguments' names.

    Raises
    ------
    InvalidArgument
        It does with one of them.
    """
    begin, bytes_ = out.data_ptr(), out.numel() * out.element_size()
    for argument, tensor in given.items():
        if tensor is not None and begin < (at := tensor.data_ptr()) + tensor.numel() * tensor.element_size() and at < begin + bytes_:
            raise invalid("out", f"it shares memory with {argument}: give a tensor of its own")


def written(out: torch.Tensor) -> None:
    """Tells autograd that an output is overwritten, so that no gradient is computed of what it held before."""
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


def refuse_trace() -> None:
    """A trace by torch.jit has operators alone, and what is looked up past them would be memory that nobody filled.

    Raises
    ------
    WarprowError
        A trace is being made.
    """
    if torch._C._is_tracing():
        raise WarprowError("torch.jit.trace records forward() of a module without out=, and nothing else: trace that, or use torch.export")
