"""Operators of torch's for look-ups, for graphs that `torch.compile` and `torch.export` make: those of the compiled library, where there
is one, or operators of Python's. Their schemas are the same, and so are exported programs."""

from __future__ import annotations

from typing import Any

import torch

from .. import _native
from . import _lookup, native
from ._spec import parse


def _lookup_in_python(
    ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, spec: str
) -> torch.Tensor:
    rows: torch.Tensor = _lookup.of_text(spec).run(ids, offsets, weights)
    return rows


def _lookup_masked_in_python(
    ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, spec: str
) -> tuple[torch.Tensor, torch.Tensor]:
    rows: torch.Tensor
    rows, mask = _lookup.of_text(spec).run(ids, offsets, weights)
    return rows, mask


def _fake(ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, spec: str) -> torch.Tensor:
    told = parse(spec)
    return ids.new_empty(told.shape(ids, offsets), dtype=told.dtype)


def _fake_masked(
    ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, spec: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake(ids, offsets, weights, spec), ids.new_empty(ids.shape, dtype=torch.bool)


class _Typed:
    """Calls a compiled operator, and raises the class of what it fails with: torch turns every exception of C++ into a RuntimeError."""

    def __init__(self, operator: Any) -> None:
        self._operator = operator

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._operator(*args, **kwargs)
        except RuntimeError as error:
            _native.raise_operator_error(str(error))
            raise

    # An overload has the hash of what it calls, and a packet its attributes.
    def __hash__(self) -> int:
        return hash(self._operator)

    def __eq__(self, other: object) -> bool:
        return self is other or self._operator == other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operator, name)


def _typed(overload: Any) -> Any:
    """An overload of the library's, by which graphs that torch has compiled raise our classes.

    Such a graph calls the overload itself, and its errors pass through no code of ours. Torch has no hook there, but for the callable that
    an overload calls. An overload that has none keeps RuntimeError, with the text.
    """
    # A packet stands for all overloads of a name, of which there is one here.
    called: Any
    for called in (overload, getattr(overload, "overloadpacket", None)):
        if callable(getattr(called, "_op", None)) and not isinstance(called._op, _Typed):
            called._op = _Typed(called._op)
    return overload


#: Rows of ids, or sums of their bags: `(ids, offsets, weights, spec) -> Tensor`.
lookup: Any
#: The same, and for each id a bool.
lookup_masked: Any
if native.load():
    lookup, lookup_masked = _typed(torch.ops.warprow.lookup.default), _typed(torch.ops.warprow.lookup_masked.default)
    torch.library.register_fake("warprow::lookup", _fake)
    torch.library.register_fake("warprow::lookup_masked", _fake_masked)
else:
    lookup = torch.library.custom_op("warprow::lookup", _lookup_in_python, mutates_args=())
    lookup_masked = torch.library.custom_op("warprow::lookup_masked", _lookup_masked_in_python, mutates_args=())
    lookup.register_fake(_fake)
    lookup_masked.register_fake(_fake_masked)
#: Of the compiled library, for eager calls: `(ids, offsets, weights, number) -> Tensor`. What an overload calls is called without the
#: overload, which costs the processor a microsecond.
numbered: Any = None
if native.is_loaded():
    numbered = getattr(torch.ops.warprow.lookup_numbered.default, "_op", torch.ops.warprow.lookup_numbered.default)
