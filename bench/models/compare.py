"""Comparison with what the model with all rows in memory says."""

from __future__ import annotations

import torch

from .errors import WrongPrediction

#: How far predictions may lie apart where the dense layers' sums were made in another order: they are between 0 and 1.
BOUND = 1e-5


def rows_equal(who: str, found: torch.Tensor, wanted: torch.Tensor, dim: int) -> None:
    """Compares embeddings (batch, tables * dim) bit for bit, and names the first that differs."""
    if found.shape != wanted.shape:
        raise WrongPrediction(f"{who}: embeddings of shape {tuple(found.shape)}, where {tuple(wanted.shape)} was wanted")
    wrong = found.view(torch.int32) != wanted.view(torch.int32)
    if bool(wrong.any()):
        sample, element = (int(it) for it in wrong.nonzero()[0])
        told = f"{found[sample, element].item()!r} where {wanted[sample, element].item()!r} was wanted"
        count = int(wrong.view(len(wrong), -1, dim).any(2).sum())
        raise WrongPrediction(f"{who}: sample {sample}, table {element // dim}, element {element % dim} is {told}; {count} embeddings differ")


def predictions_equal(who: str, found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Compares predictions; gives the largest difference: 0 where all are equal bit for bit. More than `BOUND` is an error."""
    if found.shape != wanted.shape:
        raise WrongPrediction(f"{who}: {tuple(found.shape)} predictions, where {tuple(wanted.shape)} were wanted")
    if torch.equal(found, wanted):
        return 0.0
    apart = (found - wanted).abs()
    # A NaN is no number that lies near another.
    bad = ~(apart <= BOUND)
    if bool(bad.any()):
        at = tuple(int(it) for it in bad.nonzero()[0])
        told = f"{found[at].item()!r} where {wanted[at].item()!r} was wanted"
        raise WrongPrediction(f"{who}: prediction {at} is {told}; {int(bad.sum())} of {found.numel()} are more than {BOUND:g} off")
    return float(apart.max())
