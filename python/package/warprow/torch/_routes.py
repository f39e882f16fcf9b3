"""The ways of a batch's ids to the ranks that look them up, and of what comes back into bags.

A *piece* is what a rank answers with one row: an id, or the ids of one bag that go to that rank. Ids are sorted by rank, then by feature,
then as they were in the batch; so pieces of a rank follow each other, and within them those of a feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ._shard_plan import shard_of


@dataclass(frozen=True)
class Route:
    """How ids of one feature find their rank."""

    #: "rows", "whole" or "replicated".
    kind: str
    #: With "whole", the rank.
    owner: int
    #: Whether each id is a piece of its own.
    single: bool
    #: Rows of the table; None: it has keys, and nobody but the look-up knows which.
    rows: int | None
    #: What becomes of ids that the table lacks.
    missing: str
    padding: int | None
    #: Whether ids are numbered within each rank: id // world.
    local: bool


class Router:
    """The routes of all features, as tensors on a device.

    Parameters
    ----------
    routes : sequence of Route
        By feature, in the order of the batch.
    order : sequence of int
        The features in the order in which they are sent; first those that are exchanged, then those that are replicated.
    exchanged : int
        How many of them are exchanged.
    """

    def __init__(self, routes: Sequence[Route], order: Sequence[int], exchanged: int, world: int, device: torch.device) -> None:
        self.routes, self.order, self.exchanged, self.world, self.device = list(routes), list(order), exchanged, world, device
        count = len(routes)
        place = [0] * count
        for at, feature in enumerate(order):
            place[feature] = at

        def tensor(values: list[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self._place = tensor(place)
        self._single = tensor([int(route.single) for route in routes], torch.bool)
        self._owner = tensor([route.owner for route in routes])
        self._spread = tensor([int(route.kind == "rows") for route in routes], torch.bool)
        self._keyed = tensor([int(route.rows is None) for route in routes], torch.bool)
        self._rows = tensor([(1 << 63) - 1 if route.rows is None else route.rows for route in routes])
        self._refuses = tensor([int(route.missing == "error") for route in routes], torch.bool)
        self._skips = tensor([int(route.missing == "skip") for route in routes], torch.bool)
        self._local = tensor([int(route.local and route.kind == "rows" and route.rows is not None) for route in routes], torch.bool)
        self._padding = tensor([0 if route.padding is None else route.padding for route in routes])
        self._padded = tensor([int(route.padding is not None) for route in routes], torch.bool)
        self._any_keyed = any(route.rows is None and route.kind == "rows" for route in routes)
        self._any_local = bool(self._local.any())
        #: Keys by which ids are sorted: each rank's exchanged features, the replicated features, and what goes nowhere.
        self.keys = world * exchanged + (count - exchanged) + 1

    def send(self, ids: torch.Tensor, offsets: torch.Tensor) -> Sorted:
        """Sorts the ids of a batch. Nothing is waited for."""
        count, features = ids.shape[0], len(self.routes)
        ids, offsets = ids.to(torch.int64), offsets.to(torch.int64)
        bags = offsets.shape[0] - 1
        # Whatever the offsets are, nothing is written past an end.
        bounded = offsets.clamp(0, count)
        wrong = (offsets[1:] < offsets[:-1]).any() | (offsets[0] != 0) | (offsets[-1] != count)
        marks = torch.zeros(count + 1, dtype=torch.int64, device=ids.device)
        marks.scatter_add_(0, bounded[1:-1], torch.ones_like(bounded[1:-1]))
        bag = marks.cumsum(0)[:count].clamp_(max=max(bags - 1, 0))
        feature = torch.div(bag, max(bags // features, 1), rounding_mode="floor")
        absent = (ids < 0) | (ids >= self._rows[feature])
        absent &= ~self._keyed[feature]
        padding = self._padded[feature] & (ids == self._padding[feature])
        absent &= ~padding
        missing = absent & self._refuses[feature]
        # Padding adds nothing, nor does what is skipped. Features that are replicated are looked up as they are.
        nothing = padding | (absent & self._skips[feature])
        owner = shard_of(ids, self.world)
        if self._any_keyed:
            owner = torch.where(self._keyed[feature], shard_of(ids, self.world, keyed=True), owner)
        owner = torch.where(self._spread[feature], owner, self._owner[feature])
        place = self._place[feature]
        stays = place >= self.exchanged
        key = owner * self.exchanged + place
        key = torch.where(nothing, torch.full_like(key, self.keys - 1), key)
        key = torch.where(stays, place + (self.world - 1) * self.exchanged, key)
        # Fewer bits are sorted faster on a GPU.
        small = key.to(torch.int16) if self.keys < 1 << 15 else key
        order = torch.sort(small, stable=True).indices
        key, bag_of, feature = key[order], bag[order], feature[order]
        sorted_ids = ids[order]
        if self._any_local:
            within = torch.div(sorted_ids, self.world, rounding_mode="floor")
            sorted_ids = torch.where(self._local[feature], within, sorted_ids)
        begins = self._single[feature]
        begins[1:] |= (key[1:] != key[:-1]) | (bag_of[1:] != bag_of[:-1])
        begins[:1] = True
        per_key = torch.zeros(self.keys, dtype=torch.int64, device=ids.device)
        pieces = per_key.scatter_add(0, key, begins.to(torch.int64))
        per_key = per_key.scatter_add(0, key, torch.ones_like(key))
        kept = torch.zeros(max(bags, 1), dtype=torch.int64, device=ids.device)
        kept.scatter_add_(0, bag, (~nothing).to(torch.int64))
        return Sorted(
            ids=sorted_ids,
            order=order,
            bag=bag_of,
            piece=begins.cumsum(0) - 1,
            first=torch.where(self._single[feature], order, bounded[bag_of]) if count else order,
            ids_of_key=per_key,
            pieces_of_key=pieces,
            kept=kept[:bags],
            wrong_offsets=wrong,
            missing=missing,
        )


@dataclass(frozen=True)
class Sorted:
    """The ids of a batch in the order in which they are sent, and what is known of each."""

    ids: torch.Tensor
    #: Where each was in the batch.
    order: torch.Tensor
    #: The bag of each, over all features.
    bag: torch.Tensor
    #: The piece of each.
    piece: torch.Tensor
    #: By what pieces are sorted into bags again.
    first: torch.Tensor
    #: By key how many ids and pieces there are.
    ids_of_key: torch.Tensor
    pieces_of_key: torch.Tensor
    #: By bag how many ids count for a mean.
    kept: torch.Tensor
    #: A bool: offsets descend, or do not go from 0 to the number of ids.
    wrong_offsets: torch.Tensor
    #: By position in the batch: the table lacks the id, and that is an error.
    missing: torch.Tensor

    def pieces(self, ids: int, pieces: int) -> Pieces:
        """The first so many ids and their pieces, which are those that are exchanged."""
        piece = self.piece[:ids]
        zeros = torch.zeros(pieces, dtype=torch.int64, device=piece.device)
        return Pieces(
            lengths=zeros.scatter_add(0, piece, torch.ones_like(piece)),
            bag=zeros.scatter(0, piece, self.bag[:ids]),
            first=zeros.scatter(0, piece, self.first[:ids]),
            position=zeros.scatter(0, piece, self.order[:ids]),
        )


@dataclass(frozen=True)
class Pieces:
    """The pieces of a batch, in the order in which they are sent."""

    #: Ids of each.
    lengths: torch.Tensor
    bag: torch.Tensor
    first: torch.Tensor
    #: The place in the batch of one of the ids: of a piece with one id, of that.
    position: torch.Tensor


def spans(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Where parts of these lengths begin and end that follow each other."""
    ends, at = [], 0
    for length in lengths:
        ends.append((at, at + length))
        at += length
    return ends


def sums_of_bags(rows: torch.Tensor, bag: torch.Tensor, first: torch.Tensor, bags: int) -> torch.Tensor:
    """Adds rows of pieces up, from +0, in each bag in the order of `first`, and of the pieces where that is equal.

    Parameters
    ----------
    rows : Tensor of float32, shape (n, dim)
        What came back for each piece.
    bag, first : Tensor of int64, shape (n,)
        The bag of each, from 0 on, and by what they are put in order. Bags with greater numbers have greater `first`.
    bags : int
        How many bags there are.
    """
    order = torch.sort(first, stable=True).indices
    lengths = torch.zeros(bags, dtype=torch.int64, device=rows.device).scatter_add_(0, bag, torch.ones_like(bag))
    if bags == 0 or rows.shape[0] == 0:
        return rows.new_zeros((bags, rows.shape[1]))
    return torch.segment_reduce(rows[order], "sum", lengths=lengths, axis=0, unsafe=True, initial=0)
