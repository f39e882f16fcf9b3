"""The ways of a batch's ids to the ranks that look them up, and of what comes back into bags.

A *piece* is what a rank answers with one row: an id of a feature, which is sent once however often the batch has it, or the ids of one bag
that go to that rank. Ids are sorted by rank and by feature, so pieces of a rank follow each other, and within them those of a feature. An
*item* is what is added to a bag of this rank's batch: the row of a piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ._shard_plan import shard_of

#: Bits of an id beside which there is room for a key in one number.
_ID_BITS = 40


@dataclass(frozen=True)
class Route:
    """How ids of one feature find their rank."""

    #: "rows", "whole" or "replicated".
    kind: str
    #: With "whole", the rank.
    owner: int
    #: Whether an id is a piece, and not a bag.
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
        self._any_single = any(route.single for route in routes)
        self._any_local = bool(self._local.any())
        #: Keys by which ids are sorted: each rank's exchanged features, the replicated features, and what goes nowhere.
        self.keys = world * exchanged + (count - exchanged) + 1
        fit = all(route.rows is not None and route.rows + 2 <= 1 << _ID_BITS for route in routes if route.single)
        self._is_one_sort = fit and self.keys < 1 << (63 - _ID_BITS)

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
        order = self._order(key, ids, feature)
        key, bag_of, feature, sorted_ids = key[order], bag[order], feature[order], ids[order]
        single = self._single[feature]
        new_key, new_bag, new_id = (torch.ones_like(single) for _ in range(3))
        for new, values in ((new_key, key), (new_bag, bag_of), (new_id, sorted_ids)):
            torch.ne(values[1:], values[:-1], out=new[1:])
        begins = new_key | torch.where(single, new_id, new_bag)
        if self._any_local:
            within = torch.div(sorted_ids, self.world, rounding_mode="floor")
            sorted_ids = torch.where(self._local[feature], within, sorted_ids)
        sent = begins | ~single
        ends = torch.searchsorted(key, torch.arange(self.keys, device=ids.device), right=True)
        at = [flags.cumsum(0) for flags in (sent, begins)]
        kept = torch.zeros(max(bags, 1), dtype=torch.int64, device=ids.device)
        kept.scatter_add_(0, bag, (~nothing).to(torch.int64))
        return Sorted(
            ids=sorted_ids,
            order=order,
            bag=bag_of,
            piece=at[1] - 1,
            first=torch.where(single, order, bounded[bag_of]) if count else order,
            is_sent=sent,
            is_item=begins | single,
            ids_of_key=_between(at[0], ends),
            pieces_of_key=_between(at[1], ends),
            places_of_key=torch.diff(ends, prepend=ends.new_zeros(1)),
            kept=kept[:bags],
            wrong_offsets=wrong,
            missing=missing,
        )

    def _order(self, key: torch.Tensor, ids: torch.Tensor, feature: torch.Tensor) -> torch.Tensor:
        """The order by key, and where an id is a piece by id; else, and of equal ones, that of the batch."""
        # Fewer bits are sorted faster on a GPU.
        small = key.to(torch.int16) if self.keys < 1 << 15 else key
        if not self._any_single:
            return torch.sort(small, stable=True).indices
        by_id = torch.where(self._single[feature], ids, torch.zeros_like(ids))
        if self._is_one_sort:
            # All ids that a table lacks are beside each other: below its rows, and above.
            within = by_id.clamp_(min=-1).minimum(self._rows[feature]) + 1
            return torch.sort((key << _ID_BITS) + within, stable=True).indices
        order = torch.sort(by_id, stable=True).indices
        return order[torch.sort(small[order], stable=True).indices]


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
    #: By what items are sorted into bags again.
    first: torch.Tensor
    #: Whether each is sent, or was with an equal one before; and whether each is an item, or was with another of its bag.
    is_sent: torch.Tensor
    is_item: torch.Tensor
    #: By key how many ids are sent, how many pieces they are, and how many ids there are.
    ids_of_key: torch.Tensor
    pieces_of_key: torch.Tensor
    places_of_key: torch.Tensor
    #: By bag how many ids count for a mean.
    kept: torch.Tensor
    #: A bool: offsets descend, or do not go from 0 to the number of ids.
    wrong_offsets: torch.Tensor
    #: By position in the batch: the table lacks the id, and that is an error.
    missing: torch.Tensor

    def pieces(self, places: int, ids: int, pieces: int, items: int) -> Pieces:
        """What the first so many places have, which are those that are exchanged: so many ids that are sent, pieces and items."""
        piece = self.piece[:places]
        sent = _Chosen(self.is_sent[:places], ids)
        item = _Chosen(self.is_item[:places], items)
        lengths = torch.zeros(pieces, dtype=torch.int64, device=piece.device)
        return Pieces(
            ids=sent.of(self.ids[:places]),
            source=sent.of(self.order[:places]),
            lengths=lengths.scatter_add_(0, piece, self.is_sent[:places].to(torch.int64)),
            piece=item.of(piece),
            bag=item.of(self.bag[:places]),
            first=item.of(self.first[:places]),
            position=item.of(self.order[:places]),
        )


class _Chosen:
    """Those of some values that are chosen, of which it is known how many there are: nothing is waited for."""

    def __init__(self, chosen: torch.Tensor, count: int) -> None:
        self._count, self._is_all = count, count == chosen.shape[0]
        if not self._is_all:
            # The others go to a place behind the end.
            self._places = torch.where(chosen, chosen.cumsum(0) - 1, count)

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """The chosen ones."""
        if self._is_all:
            return values
        return values.new_zeros(self._count + 1).scatter_(0, self._places, values)[: self._count]


@dataclass(frozen=True)
class Pieces:
    """The pieces of a batch, in the order in which they are sent, and the items that they become."""

    #: The ids that are sent, and where each was in the batch.
    ids: torch.Tensor
    source: torch.Tensor
    #: By piece how many of them it has.
    lengths: torch.Tensor
    #: By item its piece, its bag, by what items are sorted, and its place in the batch (of a piece with one id).
    piece: torch.Tensor
    bag: torch.Tensor
    first: torch.Tensor
    position: torch.Tensor


def _between(counted: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Of running counts, how many belong to each part that ends there. (To count by adding to one number for each part is slow on a GPU,
    where all threads add to few numbers.)"""
    before = torch.cat([counted.new_zeros(1), counted])[ends]
    return torch.diff(before, prepend=before.new_zeros(1))


def spans(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Where parts of these lengths begin and end that follow each other."""
    ends, at = [], 0
    for length in lengths:
        ends.append((at, at + length))
        at += length
    return ends


def sums_of_bags(
    rows: torch.Tensor, piece: torch.Tensor, bag: torch.Tensor, first: torch.Tensor, factors: torch.Tensor | None, bags: int
) -> torch.Tensor:
    """Adds rows of items up, from +0, in each bag in the order of `first`, and of the items where that is equal.

    Parameters
    ----------
    rows : Tensor of float32, shape (p, dim)
        What came back for each piece.
    piece, bag, first : Tensor of int64, shape (n,)
        By item its piece and its bag, both from 0 on, and by what items are put in order. Bags with greater numbers have greater `first`.
    factors : Tensor of float32, shape (n,), optional
        By what the row of each item is multiplied.
    bags : int
        How many bags there are.
    """
    if bags == 0 or piece.shape[0] == 0:
        return rows.new_zeros((bags, rows.shape[1]))
    order = torch.sort(first.to(torch.int32) if first.shape[0] < 1 << 31 else first, stable=True).indices
    lengths = torch.zeros(bags, dtype=torch.int64, device=rows.device).scatter_add_(0, bag, torch.ones_like(bag))
    of_items = rows.index_select(0, piece[order])
    if factors is not None:
        of_items = of_items * factors[order].unsqueeze(1)
    return torch.segment_reduce(of_items, "sum", lengths=lengths, axis=0, unsafe=True, initial=0)
