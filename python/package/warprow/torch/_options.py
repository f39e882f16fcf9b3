"""What modules of every kind are made with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import invalid


@dataclass(frozen=True)
class LookupOptions:
    """Options of look-ups, which the constructors of modules take by these names."""

    missing: str
    on_failure: str
    mask: str
    dtype: torch.dtype
    max_ids: int | None
    prefetch: int = 0

    def __post_init__(self) -> None:
        if self.missing not in ("error", "default", "zero", "skip"):
            raise invalid("missing", f'{self.missing!r}: give "error", "default", "zero" or "skip"')
        if self.on_failure not in ("raise", "nan", "mask"):
            raise invalid("on_failure", f'{self.on_failure!r}: give "raise", "nan" or "mask"')
        if self.on_failure == "nan" and not self.dtype.is_floating_point:
            raise invalid("on_failure", f'{self.dtype} has no NaN: choose "raise" or "mask"')
        if self.mask not in ("found", "failed"):
            raise invalid("mask", f'{self.mask!r}: give "found" or "failed"')
        if self.max_ids is not None and self.max_ids < 1:
            raise invalid("max_ids", f"{self.max_ids}: give a number from 1 on")
