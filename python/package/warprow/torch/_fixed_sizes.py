"""A sharded collection whose ranks exchange parts of fixed sizes, so that a CUDA graph can have a whole step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..errors import RanksDisagree, _make, invalid
from ._exchange import rank_failed, tried, without_positions
from ._lookup import check_ids
from ._routes import Bags, Placed, Routed, joined, runs
from ._served import Asked, Counts, Told
from ._tensors import as_tensor

if TYPE_CHECKING:
    from ._sharded import ShardedEmbeddingBagCollection

#: What can be wrong with a rank's batch, as bits, and the class of the error that tells of it.
_OFFSETS, _MISSING, _ROOM = 1, 2, 4
_KINDS = {_OFFSETS: "InvalidArgument", _MISSING: "MissingIds", _ROOM: "InvalidArgument"}
#: Room for ids is a multiple of so many.
_ROUND = 64


@dataclass(frozen=True)
class Sizes:
    """What a rank tells all others of its batches, which all have these sizes."""

    bags: int
    #: By feature, how many ids.
    ids: tuple[int, ...]
    #: Of each group of features whose rows come back, the most different ids that one rank was asked for.
    chosen: tuple[int, ...]
    #: By what room is multiplied, which has one size on all ranks.
    slack: float = 1.0
    #: What this rank cannot take part with; "": nothing.
    error: str = ""


def agreed(told: Sequence[Sizes]) -> list[Sizes]:
    """What all ranks have told. Raises `RanksDisagree` with the first that cannot take part, or that has another `slack`."""
    for rank, sizes in enumerate(told):
        if sizes.error:
            error = RanksDisagree(f"rank {rank} could not fix its sizes: {sizes.error}")
            error.rank, error.what = rank, "error"
            raise error
    for rank, sizes in enumerate(told):
        if sizes.slack != told[0].slack:
            text = f"rank {rank} has slack={sizes.slack}, rank 0 has {told[0].slack}: give the same on all ranks"
            error = RanksDisagree(text)
            error.rank, error.what = rank, "slack"
            raise error
    return list(told)


class FixedSizeBags(nn.Module):
    """A `ShardedEmbeddingBagCollection` for batches of one size. `ShardedEmbeddingBagCollection.fixed_sizes` makes it.

    A step waits for nothing on the CPU, and a CUDA graph can have it, exchanges included. All ranks capture it, and replay their graphs
    equally often, in one order.
    """

    def __init__(self, bags: ShardedEmbeddingBagCollection, told: Sequence[Sizes], ones: Sequence[bool], number: int) -> None:
        super().__init__()
        exchange = bags._exchange
        # No module within this one: it has nothing that a checkpoint has not by that.
        self._of = (bags,)
        #: Which of the collection's it is, as ranks count them.
        self._number = number
        self._told, self._own = told, told[exchange.rank]
        starts = [0]
        for count in self._own.ids:
            starts.append(starts[-1] + count)
        self._starts, self._bags = tuple(starts), self._own.bags
        duties, world, device = bags._duties, exchange.size, exchange.device
        self._columns = bags._router._columns(self._starts)
        self._room = []
        for which, features in enumerate(duties.groups):
            # More than all ids of a batch no rank can be asked for.
            most = max(sum(sizes.ids[at] for at in features) for sizes in told)
            wanted = max(sizes.chosen[which] for sizes in told) * self._own.slack
            self._room.append(min(-(-max(math.ceil(wanted), 1) // _ROUND) * _ROUND, max(most, 1)))
        #: By group, whether each bag of all its features has one id.
        self._all_one = [all(ones[at] for at in features) for features in duties.groups]
        self._headers = sum(len(features) for features in duties.groups)
        owned = [duties.owned_by(rank) for rank in range(world)]
        mine = owned[exchange.rank]
        self._sent, self._sent_weights = [], []
        self._received, self._received_weights = [], []
        for rank in range(world):
            count = sum(self._own.ids[at] for at in owned[rank])
            self._sent.append(1 + self._headers + self._bags * len(owned[rank]) + count + sum(self._room))
            self._sent_weights.append(count)
            count = sum(told[rank].ids[at] for at in mine)
            self._received.append(1 + self._headers + told[rank].bags * len(mine) + count + sum(self._room))
            self._received_weights.append(count)
        ours, theirs = Told(self._bags, [], []), [Told(sizes.bags, [], []) for sizes in told]
        self._counts = Counts([ours] * world, theirs, [], [], [], None)
        #: Where ids of each feature begin and end, as columns; and offsets that are right for so many ids: all are of the first bags.
        self._begins = self._columns.starts[:-1].unsqueeze(1)
        self._ends = self._columns.starts[1:].unsqueeze(1)
        spread = self._ends.expand(-1, self._bags).reshape(-1)
        self._fallback = torch.cat([self._columns.starts[:1], spread])
        self._places = [torch.arange(world, device=device).unsqueeze(1) * room for room in self._room]
        self._nan = torch.full((), math.nan, device=device)
        #: By rank what was wrong with its batches since `check` was last called, as bits; and the most different ids that one rank was asked
        #: for, by group.
        self._seen = torch.zeros(world, dtype=torch.int64, device=device)
        self._most = torch.zeros(max(len(duties.groups), 1), dtype=torch.int64, device=device)

    @property
    def device(self) -> torch.device:
        """The device on which the module looks up."""
        return self._of[0].device

    @property
    def room(self) -> list[int]:
        """How many different ids a rank can ask another for, of each group of features whose rows are of one length."""
        return list(self._room)

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        """Bags of all features of this rank's batch. All ranks call it, or capture it.

        Parameters
        ----------
        batch : mapping of str to tuple, or KeyedJaggedTensor
            As `ShardedEmbeddingBagCollection.forward` takes it, with as many bags, and as many ids of each feature, as the batch by which
            sizes were fixed.

        Returns
        -------
        dict of str to Tensor
            By feature shape (B, dim). All are NaN if something is wrong with the batch, which `check` tells.

        Raises
        ------
        InvalidArgument, WrongType
            The batch has another size, or as `ShardedEmbeddingBagCollection.forward`; values raise in `check`.
        RankFailed
            Another rank could not look up what it was asked for, which it raises; on a GPU the next call or `check` tells of it. All ranks can
            go on. While a graph is captured, the rank alone raises it.
        RanksDisagree, ExchangeFailed, Busy, GpuError
            As `ShardedEmbeddingBagCollection.forward`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        whole = self._of[0]
        if whole._is_replicated:
            assert whole._replicated is not None, "there is a feature"
            return whole._replicated(batch)  # type: ignore[no-any-return]
        with torch.no_grad():
            given, wrong = self._joined(batch)
            with whole._exchange.lock:
                whole._exchange.call("a step of fixed sizes", self._number)
                return self._step(given, wrong)

    def _joined(self, batch: Any) -> tuple[Bags, torch.Tensor]:
        """The batch, and whether its offsets are wrong, which nobody waits for."""
        features, bags = self._of[0].features, self._bags
        weighted = any(feature.weighted for feature in features)
        weights: torch.Tensor | None = None
        if isinstance(batch, Mapping):
            ids, offsets, weights, wrong = self._of_mapping(batch, weighted)
        else:
            if not all(hasattr(batch, name) for name in ("keys", "values", "offsets")):
                raise invalid("batch", "give a mapping of features to (ids, offsets), or a KeyedJaggedTensor")
            names = [feature.name for feature in features]
            if list(batch.keys()) != names:
                raise invalid("batch", f"its keys are {list(batch.keys())}, the module's features {names}: permute() it")
            ids, offsets = batch.values(), batch.offsets()
            weights = batch.weights_or_none() if weighted else None
            self._check(ids, offsets, (len(names) * bags + 1,))
            offsets = offsets.to(torch.int64)
            wrong = (offsets[::bags] != self._columns.starts).any()
        if weighted and (weights is None or weights.shape != ids.shape or weights.device != ids.device):
            raise invalid("per_sample_weights", "a feature is weighted: give a weight for each id, on the same device")
        lengths = torch.diff(offsets)
        wrong = wrong | (lengths < 0).any()
        for all_one, group in zip(self._all_one, self._of[0]._duties.groups, strict=True):
            if all_one:
                # So each bag has one.
                for first, last in runs(group):
                    wrong = wrong | (lengths[first * bags : last * bags] != 1).any()
        # What is looked up is never outside the batch, whatever offsets say.
        offsets = torch.where(wrong, self._fallback, offsets)
        weights = None if weights is None else weights.to(torch.float32)
        return Bags(ids.to(torch.int64), offsets, weights, self._starts, bags), wrong

    def _of_mapping(
        self, batch: Mapping[str, Any], weighted: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
        features, bags = self._of[0].features, self._bags
        if set(batch) != {feature.name for feature in features}:
            raise invalid("batch", f"it has {sorted(batch)}, the module's features are {[it.name for it in features]}")
        ids, every, factors = [], [], []
        for feature, count in zip(features, self._own.ids, strict=True):
            given = batch[feature.name]
            if not isinstance(given, tuple) or len(given) != (3 if feature.weighted else 2):
                raise invalid("batch", f"feature {feature.name!r}: give (ids, offsets{', weights' if feature.weighted else ''})")
            given = tuple(as_tensor(f"batch[{feature.name!r}]", it) for it in given)
            if given[0].shape != (count,) or given[1].shape != (bags + 1,):
                text = f"feature {feature.name!r} has ids of shape {tuple(given[0].shape)} and offsets of {tuple(given[1].shape)}"
                raise invalid("batch", f"{text}, and sizes were fixed to {count} and {bags + 1}: make the module anew for other sizes")
            ids.append(given[0])
            every.append(given[1])
            if weighted:
                factors.append(given[2] if feature.weighted else torch.ones_like(given[0], dtype=torch.float32))
        together = torch.cat(ids)
        offsets = torch.cat(every).reshape(len(features), bags + 1)
        self._check(together, offsets, tuple(offsets.shape))
        offsets = offsets.to(torch.int64) + self._begins
        wrong = ((offsets[:, :1] != self._begins) | (offsets[:, -1:] != self._ends)).any()
        offsets = torch.cat([offsets[:, :-1].reshape(-1), self._columns.starts[-1:]])
        return together, offsets, torch.cat(factors) if weighted else None, wrong

    def _check(self, ids: torch.Tensor, offsets: torch.Tensor, shape: tuple[int, ...]) -> None:
        check_ids("input", ids, self.device)
        check_ids("offsets", offsets, self.device)
        if tuple(ids.shape) != (self._starts[-1],) or tuple(offsets.shape) != shape:
            text = f"ids of shape {tuple(ids.shape)} and offsets of {tuple(offsets.shape)}"
            raise invalid("batch", f"{text}, and sizes were fixed to {self._starts[-1]} and {shape}: make the module anew for other sizes")

    def _step(self, given: Bags, wrong: torch.Tensor) -> dict[str, torch.Tensor]:
        whole = self._of[0]
        router, duties = whole._router, whole._duties
        absent, nothing = router._absent(given.ids, self._columns)
        placed = router.place(given, absent, nothing, self._columns, self._room)
        flags = wrong.to(torch.int64) * _OFFSETS
        if absent is not None:
            flags = flags + absent.any().to(torch.int64) * _MISSING
            # Nobody else is to meet an id that the table lacks.
            given = given._replace(ids=torch.where(absent, torch.zeros_like(given.ids), given.ids))
        if placed:
            needed = torch.stack([it.needed for it in placed])
            room = torch.stack([it.is_full for it in placed]).any()
            flags = flags + room.to(torch.int64) * _ROOM
            torch.maximum(self._most, needed, out=self._most)
        coming = self._send(given, flags, placed)
        # What fails from here on is raised behind the last exchange: other ranks take part in each, and would wait.
        kept, error = tried(lambda: whole._look_up_kept(given))
        numbers, weights = (None if it is None else it.get() for it in coming)
        assert numbers is not None, "ids are sent"
        blocks = list(numbers.split(self._received))
        codes = torch.cat([block[:1] for block in blocks])
        torch.bitwise_or(self._seen, codes, out=self._seen)
        rows = []
        for at in range(len(duties.groups)):
            asked, failed = tried(partial(self._rows_of, at, blocks))
            error = error or failed
            rows.append(self._send_rows(at, asked))
        sums, failed = tried(lambda: self._sums_of(blocks, weights))
        error = without_positions(error or failed)
        # What a graph has runs again without Python, and nothing of it is raised: whether this rank failed is for the other calls.
        telling = None if self._is_captured() else whole._tell(error)
        summed = whole._send_sums(sums, self._counts, math.nan) if duties.whole else None
        outputs: dict[str, torch.Tensor] = {}
        # NaN, if something is wrong with the batch, and else 0, which changes no sum from +0.
        poison = torch.where(flags != 0, self._nan, torch.zeros_like(self._nan))
        routed = Routed(wrong, absent, given.offsets, given.offsets, nothing, [], None)
        if kept is not None:
            dims = [whole._dims[at] for at in whole._kept]
            parts = torch.where(flags != 0, self._nan.to(kept.dtype), kept).split(dims, dim=1)
            outputs.update(zip([whole.features[at].name for at in whole._kept], parts, strict=True))
        for at, of_group in enumerate(rows):
            outputs.update(self._bags_of_rows(at, of_group.get(), placed[at], given, routed, poison))
        if summed is not None:
            outputs.update(whole._bags_of_sums(summed.get().add_(poison), routed, given))
        if telling is not None:
            whole._tell_of_step(telling.get(), error)
        if error is not None:
            raise error
        return {feature.name: outputs[feature.name] for feature in whole.features}

    def _is_captured(self) -> bool:
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def _send(self, given: Bags, flags: torch.Tensor, placed: Sequence[Placed]) -> tuple[Any, Any]:
        """Begins to send each rank one part: flags, where ids of each feature begin, lengths and ids of bags, and ids whose rows come back."""
        whole = self._of[0]
        duties, bags, world = whole._duties, self._bags, whole._exchange.size
        lengths = torch.diff(given.offsets)
        parts: list[torch.Tensor] = []
        factors: list[torch.Tensor] = []
        for rank in range(world):
            own = duties.owned_by(rank)
            parts.append(flags.reshape(1))
            parts += [it.begins[rank] for it in placed]
            parts += [lengths[first * bags : last * bags] for first, last in runs(own)]
            parts += [given.ids[slice(*it)] for it in given.spans(own)]
            parts += [it.ids[rank] for it in placed]
            if given.weights is not None and whole._weights_sent:
                factors += [given.weights[slice(*it)] for it in given.spans(own)]
        numbers = whole._exchange.begin("ids", torch.cat(parts), self._sent, self._received)
        if not whole._weights_sent or given.weights is None:
            return numbers, None
        sent = joined(factors, given.weights).contiguous()
        return numbers, whole._exchange.begin("weights", sent, self._sent_weights, self._received_weights)

    def _rows_of(self, group: int, blocks: Sequence[torch.Tensor]) -> torch.Tensor:
        """The rows of a group of features that all ranks want of this one. Room that is left over asks for the first row of a table."""
        whole = self._of[0]
        groups, room = whole._duties.groups, self._room[group]
        first = 1 + sum(len(it) for it in groups[:group])
        behind = sum(self._room[group:])
        ids = torch.cat([block[len(block) - behind : len(block) - behind + room] for block in blocks])
        begins = torch.stack([block[first : first + len(groups[group])] for block in blocks])
        offsets = torch.cat([(begins + self._places[group]).reshape(-1), begins.new_full((1,), room * len(blocks))])
        module: Any = whole._served._rows[group]
        return Asked(module, ids, offsets).look_up()

    def _sums_of(self, blocks: Sequence[torch.Tensor], weights: torch.Tensor | None) -> torch.Tensor | None:
        """The bags of all ranks whose sums this one gives, one rank's below the other's. None: it gives none."""
        whole = self._of[0]
        served, mine = whole._served, whole._duties.owned_by(whole._exchange.rank)
        if served._sums is None:
            return None
        begin = 1 + self._headers
        lengths, ids = [], []
        for block, sizes in zip(blocks, self._told, strict=True):
            middle = begin + sizes.bags * len(mine)
            lengths.append(list(block[begin:middle].split([sizes.bags] * len(mine))))
            counts = [sizes.ids[at] for at in mine]
            ids.append(list(block[middle : middle + sum(counts)].split(counts)))
        # Feature after feature, of each the ranks one after the other.
        ended = torch.cat([part for feature in zip(*lengths, strict=True) for part in feature]).cumsum(0)
        offsets = torch.cat([ended.new_zeros(1), ended])
        factors = None
        if weights is not None and served._weighted:
            sizes_of = [[sizes.ids[at] for at in mine] for sizes in self._told]
            split = [part.split(counts) for part, counts in zip(weights.split(self._received_weights), sizes_of, strict=True)]
            factors = torch.cat([part for feature in zip(*split, strict=True) for part in feature])
        return Asked(served._sums, torch.cat([part for feature in zip(*ids, strict=True) for part in feature]), offsets, factors).look_up()

    def _send_rows(self, group: int, found: torch.Tensor | None) -> Any:
        """Begins to send each rank the rows of its ids, NaN if they could not be looked up, and to get those of this rank's. Behind these is
        a row of zeros."""
        whole = self._of[0]
        world, room = whole._exchange.size, self._room[group]
        dim = whole._dims[whole._duties.groups[group][0]]
        if found is None:
            found = torch.full((world * room, dim), math.nan, device=self.device)
        into = torch.empty((world * room + 1, dim), device=self.device)
        into[-1].zero_()
        return whole._exchange.begin("rows", found, [room] * world, [room] * world, into[:-1])

    def _bags_of_rows(
        self, which: int, rows: torch.Tensor, placed: Placed, given: Bags, routed: Routed, poison: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Adds rows that came back up, into the bags of this rank's batch."""
        whole = self._of[0]
        group = whole._duties.groups[which]
        rows = rows.as_strided((rows.shape[0] + 1, rows.shape[1]), (rows.shape[1], 1))
        if self._all_one[which] and not any(whole.features[at].weighted for at in group):
            # Each bag is a row. A sum from +0 has no -0.
            sums = rows.add_(poison).index_select(0, placed.places)
        else:
            sums = whole._added_up(which, rows, placed.places, given).add_(poison)
        return whole._of_group(which, sums, routed, given)

    def check(self, patience: float = 60.0) -> None:
        """Waits until what the current stream was given has ended, and raises what befell it, or what was wrong with a batch since the last call.

        A graph waits for a rank that has died for as long as it takes: call this before anything that waits for the GPU without a limit.

        Parameters
        ----------
        patience : float
            Seconds to wait, at most.

        Raises
        ------
        MissingIds
            This rank's batch had ids that their table lacks, and `missing` is "error".
        InvalidArgument
            Offsets of this rank's batch were wrong, or it had more different ids than there is room for: make the module anew with more
            `slack`.
        RankFailed
            Another rank's batch was wrong.
        ExchangeFailed
            A rank of this machine has died, and a step waits for it, which never ends: end this process too.
        RowsFailed, Busy, GpuError, ContextLost
            As `ShardedEmbeddingBagCollection.check`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        whole = self._of[0]
        if self.device.type == "cuda":
            # NCCL waits in a graph for as long as it takes, and so would whoever waits for the GPU.
            ended = torch.cuda.Event()
            ended.record()
            whole._exchange.wait_for(ended.query, patience)
        whole.check(patience)
        found, most = self._seen.tolist(), self._most.tolist()
        self._seen.zero_()
        own = whole._exchange.rank
        if found[own] & _OFFSETS:
            text = "of a batch descend, do not go from 0 to the number of ids, or leave bags without the one id that all had when sizes were fixed"
            raise invalid("offsets", text)
        if found[own] & _MISSING:
            raise _make("MissingIds", "ids of a batch are missing from their tables", {"positions": [], "count": 0, "id": None})
        if found[own] & _ROOM:
            text = f"it asked one rank for {most} different ids, and there is room for {self._room}: fix sizes anew, with more slack"
            raise invalid("batch", text)
        for rank, bits in enumerate(found):
            if bits:
                raise rank_failed(rank, next(kind for bit, kind in _KINDS.items() if bits & bit))

    def recover(self) -> bool:
        """Starts this rank's queues anew that take no commands, as `EmbeddingBagCollection.recover`.

        Raises
        ------
        DriveFailed, GpuError
            A queue could not be started anew.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return self._of[0].recover()

    def extra_repr(self) -> str:
        return f"{self._bags} bags of each feature, {self._starts[-1]} ids, room for {self._room} different ids of each rank"
