"""Scales of blocks that lie in memory of their own, by which codes are multiplied behind their look-up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ..errors import invalid, wrong_type

#: Elements of a row that have a scale, as MXFP8 has it.
BLOCK = 32

#: Types of the elements of tables that have no scales of their own.
CODES = ("f8e4m3", "f8e5m2")


class BlockScales(nn.Module):
    """E8M0 scales of a table's rows, on the device of its look-ups: byte 0 is 0, 255 is NaN, and others are two to the power of byte − 127.

    Parameters
    ----------
    scales : Tensor of uint8 or float8_e8m0fnu
        Of shape (rows, dim / 32). It is used where it is, and may be filled later.
    rows, dim : int
        Of the table.
    """

    def __init__(self, scales: torch.Tensor, rows: int, dim: int) -> None:
        super().__init__()
        if scales.dtype not in (torch.uint8, torch.float8_e8m0fnu):
            raise wrong_type("scales", f"elements of type {scales.dtype}: give torch.uint8 or torch.float8_e8m0fnu")
        if tuple(scales.shape) != (rows, dim // BLOCK) or dim % BLOCK:
            text = f"shape {tuple(scales.shape)}, where the table has {rows} rows of {dim} elements: give one of ({rows}, {dim // BLOCK})"
            raise invalid("scales", text)
        if not scales.is_contiguous():
            # A GPU's kernels read them by their address.
            raise invalid("scales", f"strides {scales.stride()}: give a contiguous tensor, by .contiguous()")
        self.register_buffer("bytes", scales.detach().view(torch.uint8), persistent=False)
        # Each byte's scale by its bits, so that a module's conversion to another type leaves it as it is.
        bits = torch.arange(256, dtype=torch.int32) << 23
        bits[255] = 0x7FC00000
        self.register_buffer("bits", bits[:, None].to(scales.device), persistent=False)

    bytes: torch.Tensor
    bits: torch.Tensor

    def of(self, ids: torch.Tensor) -> torch.Tensor:
        """The scales of ids of any shape, as float32 with a dimension more; 1 for ids that the table lacks, whose rows are zeros."""
        at = ids.clamp(0, self.bytes.shape[0] - 1)
        found = F.embedding(at, self.bytes)
        # The scale of another row may be NaN.
        found = torch.where((at == ids)[..., None], found, 127)
        return F.embedding(found.to(torch.int32), self.bits).view(torch.float32).squeeze(-1)


class Made:
    """Scales of a batch that is fetched ahead, which may be looked up on another stream."""

    def __init__(self, scales: torch.Tensor) -> None:
        self._scales = scales
        self._event = torch.cuda.Event() if scales.is_cuda else None
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(scales.device))

    def take(self) -> torch.Tensor:
        """The scales, behind which the current stream goes on."""
        if self._event is not None:
            stream = torch.cuda.current_stream(self._scales.device)
            stream.wait_event(self._event)
            self._scales.record_stream(stream)
        return self._scales


def multiply(rows: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Multiplies rows of codes in place: each product is of f32, and rounded to the rows' type."""
    rows.view(*scales.shape, BLOCK).mul_(scales[..., None])
    return rows
