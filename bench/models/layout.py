"""How ids of a batch, which come sample by sample, become ids of the one tensor of all rows, or ids feature by feature."""

from __future__ import annotations

import itertools

import torch

from .shapes import Shape


class IdLayout:
    """Index tensors for batches of one size.

    Parameters
    ----------
    shape : Shape
        The tables.
    batch : int
        Samples of a batch.
    device : torch.device
        Where ids lie.
    """

    def __init__(self, shape: Shape, batch: int, device: torch.device) -> None:
        first = [0, *itertools.accumulate(shape.rows)][:-1]
        starts = [first[table] for table, _ in shape.features]
        each = [own for _, own in shape.features]
        hot = torch.tensor(each)
        #: Added to the ids of a sample, shape (ids of a sample,): ids of the tensor of all rows.
        self.starts = torch.tensor(starts).repeat_interleave(hot).to(device)
        bags = hot.repeat(batch).cumsum(0)
        #: Where each bag begins, sample by sample, and where the last ends: (batch * bags of a sample + 1,).
        self.bags = torch.cat([torch.zeros(1, dtype=torch.int64), bags]).to(device)
        place = torch.arange(batch * shape.ids).view(batch, shape.ids)
        ends = list(itertools.accumulate(each))
        parts = [place[:, end - own : end].reshape(-1) for end, own in zip(ends, each, strict=True)]
        #: Of the ids feature by feature, each one's place among those sample by sample: (batch * ids of a sample,).
        self.by_feature = torch.cat(parts).to(device)
        counts = hot.repeat_interleave(batch).cumsum(0)
        #: Where each bag begins, feature by feature, and where the last ends: (bags of a sample * batch + 1,).
        self.feature_bags = torch.cat([torch.zeros(1, dtype=torch.int64), counts]).to(device)
        self.is_one_hot = max(shape.hot) == 1
