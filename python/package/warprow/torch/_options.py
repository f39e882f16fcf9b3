"""What modules of every kind are made with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .. import _options as arguments
from ..errors import invalid
from ..executor import MASKS, MISSING, ON_FAILURE
from ._spec import out_name


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
        arguments.choice("missing", self.missing, MISSING)
        arguments.choice("on_failure", self.on_failure, ON_FAILURE)
        arguments.choice("mask", self.mask, MASKS)
        arguments.instance("dtype", self.dtype, torch.dtype, "a dtype of torch, such as torch.float32")
        out_name(self.dtype)
        # As numbers of Python's, of which a text can be made.
        object.__setattr__(self, "max_ids", arguments.maybe_number("max_ids", self.max_ids, 1))
        object.__setattr__(self, "prefetch", arguments.number("prefetch", self.prefetch, 0, 1 << 32))
        if self.on_failure == "nan" and not self.dtype.is_floating_point:
            raise invalid("on_failure", f'{self.dtype} has no NaN: choose "raise" or "mask"')
