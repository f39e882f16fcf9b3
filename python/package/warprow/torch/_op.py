"""Operators of torch's for look-ups, for graphs that `torch.compile` and `torch.export` make: those of the compiled library, where there
is one, or operators of Python's. Their schemas are the same, and so are exported programs."""

from __future__ import annotations

from typing import Any

import torch

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


#: Rows of ids, or sums of their bags: `(ids, offsets, weights, spec) -> Tensor`.
lookup: Any
#: The same, and for each id a bool.
lookup_masked: Any
if native.load():
    lookup, lookup_masked = torch.ops.warprow.lookup.default, torch.ops.warprow.lookup_masked.default
    torch.library.register_fake("warprow::lookup", _fake)
    torch.library.register_fake("warprow::lookup_masked", _fake_masked)
else:
    lookup = torch.library.custom_op("warprow::lookup", _lookup_in_python, mutates_args=())
    lookup_masked = torch.library.custom_op("warprow::lookup_masked", _lookup_masked_in_python, mutates_args=())
    lookup.register_fake(_fake)
    lookup_masked.register_fake(_fake_masked)
#: Of the compiled library, for eager calls: `(ids, offsets, weights, number) -> Tensor`.
numbered: Any = torch.ops.warprow.lookup_numbered.default if native.is_loaded() else None
