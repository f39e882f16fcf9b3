"""Operators of torch's for look-ups, for graphs that `torch.compile` and `torch.export` make. Eager calls do without."""

from __future__ import annotations

import torch

from . import _lookup
from ._spec import parse


@torch.library.custom_op("warprow::lookup", mutates_args=())
def lookup(ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, spec: str) -> torch.Tensor:
    """Rows of ids, or sums of their bags."""
    rows: torch.Tensor = _lookup.of_text(spec).run(ids, offsets, weights)
    return rows


@lookup.register_fake
def _(ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, spec: str) -> torch.Tensor:
    told = parse(spec)
    return ids.new_empty(told.shape(ids, offsets), dtype=told.dtype)


@torch.library.custom_op("warprow::lookup_masked", mutates_args=())
def lookup_masked(
    ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, spec: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ids, or sums of their bags, and for each id whether its row was found and read."""
    rows: torch.Tensor
    rows, mask = _lookup.of_text(spec).run(ids, offsets, weights)
    return rows, mask


@lookup_masked.register_fake
def _(
    ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, spec: str
) -> tuple[torch.Tensor, torch.Tensor]:
    told = parse(spec)
    rows = ids.new_empty(told.shape(ids, offsets), dtype=told.dtype)
    return rows, ids.new_empty(ids.shape, dtype=torch.bool)
