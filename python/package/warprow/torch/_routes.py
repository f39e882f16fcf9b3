"""The ways of a batch's ids to the ranks that look them up.

A *piece* is what a rank answers with one row. Of a feature whose rows come back, a piece is an id, and each different id of the batch is sent
once. Of a feature whose sums come back, each bag is a piece of the rank that has the table, or of each of the ranks that it is spread over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import NamedTuple

import torch

from ._shard_plan import shard_of

#: Larger than every id.
_BEYOND = (1 << 63) - 1


@dataclass(frozen=True)
class Route:
    """How ids of one feature find their rank."""

    #: Rows of the table; None: it has keys, and nobody but the look-up knows which.
    rows: int | None
    padding: int | None
    #: Whether ids are numbered within each rank: id // world.
    local: bool


class Bags(NamedTuple):
    """The bags of a batch, feature after feature."""

    ids: torch.Tensor
    #: Shape (F * B + 1,).
    offsets: torch.Tensor
    #: One for each id, where a feature is weighted.
    weights: torch.Tensor | None
    #: Where the ids of each feature begin, and where those of the last end, as the CPU knows it.
    starts: tuple[int, ...]
    #: B.
    bags: int

    def spans(self, features: Sequence[int]) -> list[tuple[int, int]]:
        """Where the ids of features lie; of those that follow each other, as one part."""
        return [(self.starts[first], self.starts[last]) for first, last in runs(features)]

    def count(self, features: Sequence[int]) -> int:
        """How many ids features have."""
        return sum(end - begin for begin, end in self.spans(features))

    def lengths(self, features: Sequence[int]) -> torch.Tensor:
        """How many ids each bag of features has."""
        parts = [torch.diff(self.offsets[first * self.bags : last * self.bags + 1]) for first, last in runs(features)]
        return joined(parts, self.offsets).to(torch.int64)

    def own_offsets(self, features: Sequence[int]) -> torch.Tensor:
        """Where bags of features begin among their ids alone, and where the last ends."""
        among = runs(features)
        if len(among) == 1:
            first, last = among[0]
            return self.offsets[first * self.bags : last * self.bags + 1].to(torch.int64) - self.starts[first]
        lengths = self.lengths(features)
        return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


def runs(features: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending numbers as ranges, each with the number behind its last."""
    found: list[tuple[int, int]] = []
    for feature in features:
        if found and found[-1][1] == feature:
            found[-1] = (found[-1][0], feature + 1)
        else:
            found.append((feature, feature + 1))
    return found


def joined(parts: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
    """Parts, one behind the other; without a copy if there is but one, and none of them like the elements of a tensor."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(list(parts)) if parts else like[:0]


@dataclass(frozen=True)
class Chosen:
    """The different ids of some features, each once, by rank, and within a rank by feature."""

    #: As each rank knows them; behind them is nothing of use.
    ids: torch.Tensor
    #: Of each id of the batch, its place among them; behind them all, if it goes nowhere.
    places: torch.Tensor
    #: Shape (world, features).
    counts: torch.Tensor


@dataclass(frozen=True)
class Placed:
    """The different ids of some features, each once, in as much room for each rank as was fixed."""

    #: Shape (world, room): as each rank knows them, by feature; zeros behind them.
    ids: torch.Tensor
    #: Of each id of the batch, its place among them; behind them all, if it goes nowhere or there is no room for it.
    places: torch.Tensor
    #: Shape (world, features): where the ids of each feature begin.
    begins: torch.Tensor
    #: The most different ids of one rank, and whether there is no room for them.
    needed: torch.Tensor
    is_full: torch.Tensor


@dataclass(frozen=True)
class Divided:
    """All ids of some features, by rank, and within a rank in their order."""

    ids: torch.Tensor
    #: Their order among those of the batch; at the end those that go nowhere.
    order: torch.Tensor
    #: Of each rank, how many ids each bag has: shape (world, features * B).
    lengths: torch.Tensor
    #: Shape (world, features).
    counts: torch.Tensor


@dataclass(frozen=True)
class Routed:
    """What is known of a batch's ways; nothing was waited for."""

    #: A bool: offsets descend, or do not go from 0 to the number of ids, or not as `Bags.starts` has it.
    wrong_offsets: torch.Tensor
    #: By position in the batch: the table lacks the id, and that is an error. None: it never is.
    missing: torch.Tensor | None
    #: By bag, feature after feature, how many ids it has; and by feature the fewest of these (of no bags none).
    lengths: torch.Tensor
    fewest: torch.Tensor
    #: By position in the batch: the id adds nothing to its bag, which is known here. None: all do.
    nothing: torch.Tensor | None
    chosen: list[Chosen]
    divided: Divided | None


class Router:
    """The routes of all features, as tensors on a device.

    Parameters
    ----------
    routes : sequence of Route
        By feature, in the order of the batch.
    chosen : sequence of list of int
        Groups of features whose rows come back.
    divided : list of int
        The features that are spread by rows, and whose sums come back.
    missing : str
        What becomes of ids that tables lack.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        chosen: Sequence[list[int]],
        divided: list[int],
        missing: str,
        world: int,
        device: torch.device,
    ) -> None:
        self.routes, self.divided, self.world, self.device = list(routes), divided, world, device

        def tensor(values: Sequence[int], dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        self._keyed = tensor([int(route.rows is None) for route in routes], torch.bool)
        self._rows = tensor([_BEYOND if route.rows is None else route.rows for route in routes])
        self._padding = tensor([0 if route.padding is None else route.padding for route in routes])
        self._padded = tensor([int(route.padding is not None) for route in routes], torch.bool)
        self._any_keyed = any(route.rows is None for route in routes)
        self._any_padded = any(route.padding is not None for route in routes)
        self._missing = missing
        self._least = torch.full((), -1, dtype=torch.int64, device=device)
        self._false = torch.zeros((), dtype=torch.bool, device=device)
        self._groups = [_Group(features, [routes[at].rows for at in features], world, device) for features in chosen]
        #: What follows from `Bags.starts` alone, of the latest batch: batches of a server often have the same.
        self._latest: tuple[tuple[int, ...], _Columns] | None = None

    def send(self, given: Bags) -> Routed:
        """Finds the ways of a batch's ids."""
        columns = self._columns(given.starts)
        ids, lengths = given.ids.to(torch.int64), torch.diff(given.offsets)
        # (What the CPU knows of offsets without bags it has looked at.)
        fewest, wrong = lengths, self._false
        if given.bags:
            fewest = lengths.reshape(len(self.routes), given.bags).amin(1)
            wrong = (fewest < 0).any() | (given.offsets[:: given.bags] != columns.starts).any()
        missing, nothing = self._absent(ids, columns)
        chosen = []
        for group, of_group in zip(self._groups, columns.groups, strict=True):
            own = self._of(given, group.features, ids)
            dropped = None if nothing is None else self._of(given, group.features, nothing)
            bounded = own if of_group is None else own.clamp(self._least, of_group.rows)
            owner = self._owners(given, group.features, bounded)
            within = self._within(given, group.features, bounded)
            chosen.append(group.choose(bounded, owner, within, dropped, of_group, given))
        divided = self._divide(given, ids, nothing) if self.divided else None
        return Routed(wrong, missing, lengths.to(torch.int64), fewest, nothing, chosen, divided)

    @property
    def is_one_sort(self) -> bool:
        """Whether `place` can be called."""
        return all(group.is_one_sort for group in self._groups)

    def place(
        self, given: Bags, absent: torch.Tensor | None, nothing: torch.Tensor | None, columns: _Columns, room: Sequence[int]
    ) -> list[Placed]:
        """The ways of ids whose rows come back, by group of features, if each rank has so much room for them.

        Ids that are an error and those that add nothing go nowhere.
        """
        dropped = absent if nothing is None else nothing if absent is None else absent | nothing
        found = []
        for group, of_group, most in zip(self._groups, columns.groups, room, strict=True):
            assert of_group is not None, "is_one_sort"
            own = self._of(given, group.features, given.ids).clamp(self._least, of_group.rows)
            owner, within = self._owners(given, group.features, own), self._within(given, group.features, own)
            none = None if dropped is None else self._of(given, group.features, dropped)
            found.append(group.place(own, owner, within, none, of_group, most))
        return found

    def _columns(self, starts: tuple[int, ...]) -> _Columns:
        if self._latest is None or self._latest[0] != starts:
            on_device = torch.tensor(starts, dtype=torch.int64, device=self.device)
            counts, total = torch.diff(on_device), starts[-1]

            def spread(values: torch.Tensor) -> torch.Tensor:
                return torch.repeat_interleave(values, counts, output_size=total)

            bounds = spread(self._rows)
            keyed = spread(self._keyed) if self._any_keyed else None
            padding = (spread(self._padded), spread(self._padding)) if self._any_padded else None
            groups = [group.columns(starts) for group in self._groups]
            self._latest = (starts, _Columns(on_device, bounds, keyed, padding, groups))
        return self._latest[1]

    def _absent(self, ids: torch.Tensor, columns: _Columns) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Which ids are an error, and which add nothing to their bags."""
        padding = None
        if columns.padding is not None:
            padding = columns.padding[0] & (ids == columns.padding[1])
        if self._missing not in ("error", "skip"):
            return None, padding
        absent = (ids < 0) | (ids >= columns.rows)
        if columns.keyed is not None:
            absent &= ~columns.keyed
        if padding is not None:
            absent &= ~padding
        if self._missing == "error":
            return absent, padding
        return None, absent if padding is None else absent | padding

    @staticmethod
    def _of(given: Bags, features: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        """The values of the ids of features, of those of all."""
        return joined([values[begin:end] for begin, end in given.spans(features)], values)

    def _parts(self, given: Bags, features: Sequence[int], values: torch.Tensor) -> list[tuple[Route, torch.Tensor]]:
        """Values of ids of features, in parts whose features have routes of one kind."""
        found, at = [], 0
        for _, alike in groupby(features, key=lambda at: (self.routes[at].rows is None, self.routes[at].local)):
            members = list(alike)
            count = given.count(members)
            found.append((self.routes[members[0]], values[at : at + count]))
            at += count
        return found

    def _owners(self, given: Bags, features: Sequence[int], ids: torch.Tensor) -> torch.Tensor:
        parts = self._parts(given, features, ids)
        return joined([shard_of(own, self.world, keyed=route.rows is None) for route, own in parts], ids)

    def _within(self, given: Bags, features: Sequence[int], ids: torch.Tensor) -> torch.Tensor:
        """Ids as the ranks know them that look them up."""
        if not any(self.routes[at].local for at in features):
            return ids
        parts = self._parts(given, features, ids)
        return joined(
            [torch.div(own, self.world, rounding_mode="floor") if route.local else own for route, own in parts], ids
        )

    def _divide(self, given: Bags, ids: torch.Tensor, nothing: torch.Tensor | None) -> Divided:
        """Ids of features that are spread over ranks, and whose sums come back."""
        own, count, bags = self._of(given, self.divided, ids), given.ids.shape[0], given.bags
        owner = self._owners(given, self.divided, own)
        if nothing is not None:
            owner = torch.where(self._of(given, self.divided, nothing), torch.full_like(owner, self.world), owner)
        # The bag of each id. Whatever offsets are, nothing is written past an end.
        inner = given.offsets[1:-1].to(torch.int64).clamp(0, count)
        marks = torch.zeros(count + 1, dtype=torch.int64, device=ids.device)
        every = marks.scatter_add_(0, inner, torch.ones_like(inner)).cumsum(0)
        parts, before = [], 0
        for first, last in runs(self.divided):
            parts.append(every[given.starts[first] : given.starts[last]] + (before - first) * bags)
            before += last - first
        total = len(self.divided) * bags
        bag = joined(parts, every).clamp(0, max(total - 1, 0))
        lengths = torch.zeros((self.world + 1) * total, dtype=torch.int64, device=ids.device)
        if total:
            lengths.scatter_add_(0, owner * total + bag, torch.ones_like(bag))
        lengths = lengths.reshape(self.world + 1, total)[: self.world]
        # Fewer bits are sorted faster on a GPU.
        order = torch.sort(owner.to(torch.uint8 if self.world < 256 else torch.int32), stable=True).indices
        counts = lengths.reshape(self.world, len(self.divided), bags).sum(2)
        return Divided(self._within(given, self.divided, own)[order], order, lengths, counts)


@dataclass(frozen=True)
class _Spread:
    """Of each id of a group's features: how many rows its table has, and the number of its id -1."""

    rows: torch.Tensor
    first: torch.Tensor


@dataclass(frozen=True)
class _Columns:
    """What is known of each id of a batch from its feature alone."""

    starts: torch.Tensor
    rows: torch.Tensor
    keyed: torch.Tensor | None
    #: Whether the feature has a padding id, and which.
    padding: tuple[torch.Tensor, torch.Tensor] | None
    groups: list[_Spread | None]


class _Group:
    """Features whose rows come back, and are of one length."""

    def __init__(self, features: list[int], rows: Sequence[int | None], world: int, device: torch.device) -> None:
        self.features, self._world, self._device = features, world, device
        # Ids from -1 to the number of rows have numbers, feature after feature, so that one sort finds equal ids of a feature. All that a
        # table lacks are one id.
        firsts = [0, *accumulate((0 if it is None else it) + 2 for it in rows)]
        self._total = firsts[-1]
        self.is_one_sort = None not in rows and world * self._total < _BEYOND
        # Fewer bits are sorted faster on a GPU.
        self._number = torch.int32 if world * self._total < (1 << 31) - 1 else torch.int64
        if self.is_one_sort:
            edges = [rank * self._total + first for rank in range(world) for first in firsts[:-1]] + [world * self._total]
            self._rows = torch.tensor(rows, dtype=torch.int64, device=device)
            self._firsts = torch.tensor(firsts[:-1], dtype=torch.int64, device=device)
        else:
            edges, self._number = list(range(world * len(features) + 1)), torch.int64
        self._edges = torch.tensor(edges, dtype=self._number, device=device)
        self._zero = torch.zeros(1, dtype=torch.int64, device=device)

    def columns(self, starts: tuple[int, ...]) -> _Spread | None:
        """Of a batch whose features' ids begin so; None if equal ids are not found by one sort."""
        if not self.is_one_sort:
            return None
        counts = self._counts(starts)
        total = sum(starts[at + 1] - starts[at] for at in self.features)
        rows = torch.repeat_interleave(self._rows, counts, output_size=total)
        return _Spread(rows, torch.repeat_interleave(self._firsts + 1, counts, output_size=total))

    def _counts(self, starts: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor([starts[at + 1] - starts[at] for at in self.features], dtype=torch.int64, device=self._device)

    def choose(
        self,
        ids: torch.Tensor,
        owner: torch.Tensor,
        within: torch.Tensor,
        nothing: torch.Tensor | None,
        spread: _Spread | None,
        given: Bags,
    ) -> Chosen:
        """The different ones of ids, which their owners know as `within`."""
        nowhere = self._world * (self._total if spread is not None else len(self.features))
        if spread is not None:
            key = torch.add(spread.first, owner, alpha=self._total) + ids
        else:
            own = torch.arange(len(self.features), device=ids.device)
            count = ids.shape[0]
            key = owner * len(self.features) + torch.repeat_interleave(own, self._counts(given.starts), output_size=count)
        if nothing is not None:
            key = torch.where(nothing, torch.full_like(key, nowhere), key)
        new = torch.ones(ids.shape, dtype=torch.bool, device=ids.device)
        if spread is not None:
            key, order = torch.sort(key.to(self._number))
            torch.ne(key[1:], key[:-1], out=new[1:])
        else:
            order = torch.sort(ids).indices
            order = order[torch.sort(key[order], stable=True).indices]
            key, by_id = key[order], ids[order]
            # What goes nowhere is behind all others, and whether it is one piece or many is of no matter.
            torch.ne(key[1:], key[:-1], out=new[1:])
            new[1:] |= by_id[1:] != by_id[:-1]
        ends = new.cumsum(0)
        before = torch.cat([self._zero, ends])[torch.searchsorted(key, self._edges)]
        piece = ends - 1
        places = torch.empty_like(piece).scatter_(0, order, piece)
        return Chosen(
            ids=torch.empty_like(within).scatter_(0, piece, within[order]),
            places=places if nothing is None else torch.minimum(places, before[-1]),
            counts=torch.diff(before).reshape(self._world, len(self.features)),
        )

    def place(
        self,
        ids: torch.Tensor,
        owner: torch.Tensor,
        within: torch.Tensor,
        nothing: torch.Tensor | None,
        spread: _Spread,
        room: int,
    ) -> Placed:
        """As `choose`, with the different ids of each rank at the beginning of its room."""
        world, features = self._world, len(self.features)
        key = torch.add(spread.first, owner, alpha=self._total) + ids
        if nothing is not None:
            key = torch.where(nothing, torch.full_like(key, world * self._total), key)
        key, order = torch.sort(key.to(self._number))
        new = torch.ones(ids.shape, dtype=torch.bool, device=ids.device)
        torch.ne(key[1:], key[:-1], out=new[1:])
        ends = new.cumsum(0)
        before = torch.cat([self._zero, ends])[torch.searchsorted(key, self._edges)]
        # What goes nowhere is of a rank behind the last.
        first = before[::features]
        rank = torch.div(key, self._total, rounding_mode="floor").to(torch.int64)
        among = ends - 1 - first[rank]
        # What there is no room for goes behind all rooms, where nothing is looked up.
        place = torch.where((among < room) & (rank < world), rank * room + among, world * room)
        sent = torch.zeros(world * room + 1, dtype=within.dtype, device=ids.device).scatter_(0, place, within[order])
        own = before[:-1].reshape(world, features)
        most = torch.diff(first).amax()
        return Placed(
            ids=sent[:-1].reshape(world, room),
            places=torch.empty_like(place).scatter_(0, order, place),
            begins=(own - own[:, :1]).clamp(max=room),
            needed=most,
            is_full=most > room,
        )
