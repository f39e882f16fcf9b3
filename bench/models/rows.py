"""Contents of rows: small multiples of 2^-7, so that a sum of up to a thousand of them is exact in f32 in whatever order it is made."""

from __future__ import annotations

import torch

#: Elements that are made at a time.
_PIECE = 1 << 26


def fill(into: torch.Tensor, table: int, seed: int) -> None:
    """Writes the rows of a table into a tensor [rows, dim].

    An element is between -1 and 1, and is told by the seed, the table's number, the row's and its own.
    """
    rows, dim = into.shape
    step = max(1, _PIECE // dim)
    column = torch.arange(dim, device=into.device, dtype=torch.int64)
    start = ((seed * 0x2545F491 + table) * 0x9E3779B1) & 0x7FFFFFFF
    for first in range(0, rows, step):
        last = min(rows, first + step)
        row = torch.arange(first, last, device=into.device, dtype=torch.int64)
        # Two rounds of multiply and shift; all stays below 2^63.
        mixed = ((row * 0x9E3779B1 + start) & 0x7FFFFFFF).unsqueeze(1) * 0x85EBCA6B + column * 0xC2B2AE35
        mixed = ((mixed & 0x7FFFFFFF) ^ ((mixed >> 15) & 0x7FFFFFFF)) * 0x27D4EB2F
        # Never -0: a sum that begins with +0 would lose its sign.
        into[first:last] = ((((mixed >> 20) & 0xFF) - 127).to(torch.float32) / 128).add_(0.0)
