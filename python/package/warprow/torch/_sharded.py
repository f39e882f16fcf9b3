"""All features of a batch in one look-up of several processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import nn

from ..errors import _CLASSES, RankFailed, _make, invalid
from ..executor import Executor, Feature
from ..store import Store
from ._agreement import Shape, agreed, describe
from ._batches import Joined, check_features, joined
from ._collection import EmbeddingBagCollection
from ._exchange import Exchange
from ._lookup import check_ids
from ._module import StoredModule, executor_of
from ._options import LookupOptions
from ._prefetched import Prefetched, check_prefetched
from ._routes import Pieces, Route, Router, Sorted, spans, sums_of_bags
from ._shard_plan import ShardingPlan, plan_sharding
from ._sharded_prefetched import ShardedPrefetched

#: Classes of errors by the number that ranks send each other; 0: there is none.
_KINDS = ["", *sorted(_CLASSES)]


@dataclass(frozen=True)
class _Group:
    """Exchanged features whose tables have rows of one length."""

    dim: int
    #: Their places in the order in which features are sent.
    places: range
    #: Their places in the batch.
    features: list[int]
    #: By place in the batch the number of the feature in the group, on the module's device; None: they are all there are.
    numbers: torch.Tensor | None


@dataclass(frozen=True)
class _Counts:
    """What ranks send each other in a step, as numbers on the host."""

    #: By rank and by the place of a feature, what this rank sends: ids, and the pieces that they are; and what the pieces become here.
    ids: list[list[int]]
    pieces: list[list[int]]
    items: list[list[int]]
    #: Ids of the batch that are exchanged, with those that are sent once for several; and ids that this rank looks up for itself.
    places: int
    kept: int
    #: By rank a code, and by the place of a feature ids and pieces that it sends here.
    theirs: list[list[int]]
    #: Which other rank failed in the call before.
    late: RankFailed | None


#: A look-up of a collection of this rank's, or the first half of one: of ids, offsets and weights.
_Call = Callable[[EmbeddingBagCollection, torch.Tensor, torch.Tensor, "torch.Tensor | None"], Any]


def _whole(
    collection: EmbeddingBagCollection, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    return collection._run(collection._lookup, ids, offsets, weights, None)  # type: ignore[no-any-return]


def _ahead(
    collection: EmbeddingBagCollection, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None
) -> Prefetched:
    return collection._begin(collection._lookup, ids, offsets, weights)


@dataclass(frozen=True)
class _Step:
    """A batch whose ids ranks have exchanged."""

    given: Joined
    route: Sorted
    counts: _Counts
    #: What this rank has sent.
    mine: Pieces
    #: Of what this rank looks up for itself, and for all: rows, or a batch that is fetched ahead; None where there is none, or that failed.
    kept: Any
    served: Any
    #: Where the rows that each rank wants lie among those of `served`, by the place of a feature.
    where: list[list[tuple[int, int]]]
    error: Exception | None


class ShardedEmbeddingBagCollection(nn.Module):
    """Bags of several tables, looked up by all ranks of a process group: each rank looks up a part of the rows, for all ranks.

    Every rank makes the module with the same arguments, over an executor of its own, and calls `forward` equally often, each with its
    own batch; batches may have different sizes. Ranks that disagree are refused.

    Parameters
    ----------
    executor : Executor or Store
        What looks this rank's rows up. On the CPU the group's backend is gloo, on a GPU NCCL.
    features : sequence of Feature
        All pooled. Several may be over one table.
    plan : ShardingPlan, optional
        Which rank looks up what; by default `plan_sharding` of the store, for bags of one id.
    group : ProcessGroup, optional
        The ranks; by default all.
    stores : str
        "shared": every rank's store has all tables, whole: they open the same files, or equal copies. "own": each rank's store has only
        the rows that the plan gives it.
    missing : str
        As of `Embedding`. Ids that are an error raise `MissingIds` on the rank whose batch has them, on a GPU too.
    on_failure : str
        "raise" or "nan", as of `Embedding`.
    dtype : torch.dtype
        Type of the output. Ranks exchange float32.
    max_ids : int, optional
        The most ids that this rank looks up in one call; without, plans grow with the batches.
    prefetch : int
        How many batches can be held by `prefetch`.

    Raises
    ------
    InvalidArgument
        An option has a value that is not named above, the plan does not place the tables, or the backend of the group is not that of the device.
    RanksDisagree
        Ranks have other tables, features, plans or options: all raise it.
    RankFailed
        Another rank could not make its part.
    ExchangeFailed
        A rank is gone, or did not answer within the time-out of the group.
    NoSuchTable
        The store lacks a feature's table.
    Closed
        The store or the executor is closed.
    Forked
        This process was forked from the one that opened the store.
    """

    def __init__(
        self,
        executor: Executor | Store,
        features: Sequence[Feature],
        *,
        plan: ShardingPlan | None = None,
        group: Any = None,
        stores: str = "shared",
        missing: str = "error",
        on_failure: str = "raise",
        dtype: torch.dtype = torch.float32,
        max_ids: int | None = None,
        prefetch: int = 0,
    ) -> None:
        super().__init__()
        executor = executor_of(executor)
        self._exchange = Exchange(group, torch.device(executor.device))
        options = {"missing": missing, "on_failure": on_failure, "dtype": str(dtype), "prefetch": prefetch}

        def prepare() -> tuple[list[Feature], ShardingPlan, dict[str, Any]]:
            checked = check_features(features)
            LookupOptions(missing, on_failure, "found", dtype, max_ids, prefetch)
            if on_failure == "mask":
                raise invalid("on_failure", 'a sharded collection has no masks: give "raise" or "nan"')
            if stores not in ("shared", "own"):
                raise invalid("stores", f'{stores!r}: give "shared" or "own"')
            if plan is None and stores == "own":
                raise invalid("plan", 'with stores="own" no rank knows all sizes: give the plan by which rows were loaded')
            chosen = plan_sharding(executor.store, checked, self._exchange.size) if plan is None else plan
            chosen.check([feature.table for feature in checked], self._exchange.size)
            return checked, chosen, describe(executor, checked, chosen, stores, options)

        # A rank that cannot take part tells the others, which would wait for it.
        prepared, error = _tried(prepare)
        told = self._exchange.gather({"error": f"{type(error).__name__}: {error}"} if error is not None else prepared[2])
        if error is not None:
            raise error
        self.features, self.plan, _ = prepared
        self.stores, self.dtype, self.missing = stores, dtype, missing
        shapes = agreed(told, self.plan, stores)
        _, error = _tried(lambda: self._make(executor, shapes, missing, on_failure, max_ids, prefetch))
        self._leave_together(self._exchange.gather(_code(error)), error)
        #: What other ranks told of their latest look-ups, on a GPU; read when the CPU waits for the GPU anyway.
        self._told: torch.Tensor | None = None

    def _make(
        self,
        executor: Executor,
        shapes: dict[str, Shape],
        missing: str,
        on_failure: str,
        max_ids: int | None,
        prefetch: int,
    ) -> None:
        """The two collections of this rank: of what it looks up for all, and of what it looks up for itself."""
        rank, world = self._exchange.rank, self._exchange.size
        placements = [self.plan.of(feature.table) for feature in self.features]
        self._dims = [shapes[feature.table].dim for feature in self.features]
        for feature, placement in zip(self.features, placements, strict=True):
            if feature.pooling == "mean" and missing == "skip" and placement.kind != "replicated" and shapes[feature.table].keyed:
                text = f"the mean of feature {feature.name!r} leaves missing keys out, and only the rank that looks them up knows which"
                raise invalid("missing", f'{text}: give missing="zero", or place table {feature.table!r} "replicated"')
        exchanged = [at for at, placement in enumerate(placements) if placement.kind != "replicated"]
        # Features whose rows have one length follow each other: they come back together.
        exchanged.sort(key=lambda at: (self._dims[at], at))
        self._kept = [at for at, placement in enumerate(placements) if placement.kind == "replicated"]
        self._sent, self._groups = exchanged, []
        for dim in sorted({self._dims[at] for at in exchanged}):
            places = [place for place, at in enumerate(exchanged) if self._dims[at] == dim]
            members = [exchanged[place] for place in places]
            numbers = torch.zeros(len(self.features), dtype=torch.int64)
            numbers[members] = torch.arange(len(members))
            is_all = members == list(range(len(self.features)))
            on_device = None if is_all else numbers.to(self._exchange.device)
            self._groups.append(_Group(dim, range(places[0], places[-1] + 1), members, on_device))
        routes = []
        for feature, placement in zip(self.features, placements, strict=True):
            shape, single = shapes[feature.table], placement.kind == "rows" and placement.exchange == "rows"
            rows = None if shape.keyed else shape.rows
            routes.append(
                Route(placement.kind, placement.owner or 0, single, rows, missing, feature.padding, self.stores == "own")
            )
        self._router = Router(routes, [*exchanged, *self._kept], len(exchanged), world, self._exchange.device)
        self._single = [routes[at].single for at in exchanged]
        #: By rank the places of the features that it looks up for all.
        self._places_of = [
            [place for place, at in enumerate(exchanged) if placements[at].kind == "rows" or placements[at].owner == other]
            for other in range(world)
        ]
        # Weights go with ids where sums come back, and are multiplied here where rows do.
        self._weights_sent = any(self.features[at].weighted and not routes[at].single for at in exchanged)
        self._weighted_here = [feature.weighted and route.single for feature, route in zip(self.features, routes, strict=True)]
        self._is_weighted = torch.tensor(self._weighted_here, device=self._exchange.device)
        served = [
            Feature(feature.name, feature.table, pooling="sum", weighted=feature.weighted and not routes[at].single)
            for at in (exchanged[place] for place in self._places_of[rank])
            for feature in (self.features[at],)
        ]
        common: dict[str, Any] = {"missing": missing, "on_failure": on_failure, "max_ids": max_ids, "prefetch": prefetch}
        self._prefetch = prefetch
        self._served = EmbeddingBagCollection(executor, served, **common) if served else None
        kept = [self.features[at] for at in self._kept]
        self._replicated = EmbeddingBagCollection(executor, kept, dtype=self.dtype, **common) if kept else None

    @property
    def device(self) -> torch.device:
        """The device on which the module looks up."""
        return self._exchange.device

    def forward(self, batch: Any) -> dict[str, torch.Tensor]:
        """Bags of all features of this rank's batch. All ranks call it.

        Parameters
        ----------
        batch : mapping of str to tuple, or KeyedJaggedTensor
            As `EmbeddingBagCollection.forward` takes it.

        Returns
        -------
        dict of str to Tensor
            By feature shape (B, dim).

        Raises
        ------
        InvalidArgument, WrongType
            As `EmbeddingBagCollection.forward`; offsets raise at once, on a GPU too.
        MissingIds
            This rank's batch has ids that their table lacks, and `missing` is "error"; `positions` has all of them.
        RowsFailed
            This rank could not read rows, on a GPU of the call before. Other ranks raise `RankFailed`.
        RankFailed
            Another rank failed, which `rank` and `kind` name. All ranks can go on.
        ExchangeFailed
            A rank is gone, or did not answer within the time-out of the group: the group is of no use any more.
        Busy, GpuError
            As `Embedding.forward`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        if not self._sent:
            # Nothing is exchanged.
            assert self._replicated is not None, "there is a feature"
            return self._replicated(batch)  # type: ignore[no-any-return]
        given, error = _tried(lambda: self._checked(batch))
        with torch.no_grad():
            step = self._begin(given, error, _whole)
            return self._finish(step, step.kept, step.served, step.error)

    def prefetch(self, batch: Any) -> Prefetched:
        """Sends ids to the ranks that have their rows, each of which begins to fetch them, for `lookup`. All ranks call it.

        Ranks call `forward`, `prefetch` and `lookup` in one order, and look the same batches up. On a GPU both halves are called on one
        stream. What befalls the fetching, `lookup` raises.

        Parameters
        ----------
        batch : mapping of str to tuple, or KeyedJaggedTensor
            As `forward` takes it.

        Returns
        -------
        Prefetched
            Looked up once, by this module. If all ranks drop theirs, it is forgotten.

        Raises
        ------
        InvalidArgument
            The module was made without `prefetch=`; or as `forward`.
        WrongType, MissingIds, RankFailed, ExchangeFailed
            As `forward`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        # All ranks were made alike.
        if self._prefetch == 0:
            raise invalid("batch", "the module was made without prefetch=: say how many batches are held at once")
        if not self._sent:
            assert self._replicated is not None, "there is a feature"
            ahead = self._replicated.prefetch(batch)
            whole = self._replicated
            return ShardedPrefetched(self, lambda: whole.lookup(ahead), ahead._held[0].numel() if ahead._held else 0)
        given, error = _tried(lambda: self._checked(batch))
        with torch.no_grad():
            step = self._begin(given, error, _ahead)
        return ShardedPrefetched(self, lambda: self._look_up(step), step.given.ids.numel())

    def lookup(self, prefetched: Prefetched) -> dict[str, torch.Tensor]:
        """What `forward` would have given for a batch when it was prefetched. All ranks call it.

        Parameters
        ----------
        prefetched : Prefetched
            What `prefetch` of this module returned.

        Returns
        -------
        dict of str to Tensor
            As `forward` returns it.

        Raises
        ------
        InvalidArgument
            Another module made `prefetched`, or it was looked up already.
        WrongType
            `prefetched` is nothing that a `prefetch` returned.
        Busy
            This rank held as many batches as the module was made for when `prefetch` was called. Other ranks raise `RankFailed`.
        RowsFailed, RankFailed, ExchangeFailed, GpuError
            As `forward`.
        MissingIds
            As `forward`, of a table with keys; of other tables `prefetch` raises it.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        check_prefetched(prefetched)
        if not isinstance(prefetched, ShardedPrefetched):
            raise invalid("prefetched", "another module prefetched it: look it up there")
        found: dict[str, torch.Tensor] = prefetched._take_from(self)()
        return found

    def _look_up(self, step: _Step) -> dict[str, torch.Tensor]:
        """The second half of a batch that is fetched ahead."""

        def rows(collection: EmbeddingBagCollection | None, ahead: Any) -> Any:
            if collection is None or not isinstance(ahead, Prefetched):
                return ahead
            return StoredModule.lookup(collection, ahead)

        with torch.no_grad():
            kept, error = _tried(lambda: rows(self._replicated, step.kept))
            served, failed = _tried(lambda: rows(self._served, step.served))
            return self._finish(step, kept, served, step.error or error or failed)

    def _checked(self, batch: Any) -> Joined:
        given = joined(self.features, batch, counted=False)
        check_ids("input", given.ids, self.device)
        check_ids("offsets", given.offsets, self.device)
        if given.ids.dim() != 1 or given.offsets.dim() != 1 or (given.offsets.shape[0] - 1) % len(self.features) != 0:
            raise invalid("batch", f"ids and offsets have one dimension, offsets F * B + 1 entries for {len(self.features)} features")
        if given.weights is not None:
            if given.weights.shape != given.ids.shape or given.weights.device != given.ids.device:
                raise invalid("per_sample_weights", f"shape {tuple(given.weights.shape)}: give one for each id, on the same device")
            if given.weights.requires_grad and torch.is_grad_enabled():
                raise invalid("per_sample_weights", "they require a gradient, and this module is for inference: detach() them")
            given = given._replace(weights=given.weights.to(torch.float32))
        return given

    def _begin(self, given: Joined, error: Exception | None, call: _Call) -> _Step:
        """Exchanges ids, and looks up what they ask of this rank, or begins to."""
        if error is not None:
            nothing = torch.zeros(1, dtype=torch.int64, device=self.device)
            given = Joined(nothing[:0], nothing, None, [])
        route = self._router.send(given.ids, given.offsets)
        counts = self._counts(route, error)
        codes = [it[0] for it in counts.theirs]
        if any(codes):
            self._leave_together(codes, error or self._wrong_values(given, route))
        ids, pieces, items = (sum(map(sum, it)) for it in (counts.ids, counts.pieces, counts.items))
        mine = route.pieces(counts.places, ids, pieces, items)
        numbers, weights = self._send(mine, given, counts)
        kept, error = _tried(lambda: self._keep(route, given, counts, call))
        found, failed = _tried(lambda: self._serve(numbers, weights, counts.theirs, call))
        served, where = (None, []) if found is None else found
        return _Step(given, route, counts, mine, kept, served, where, error or failed)

    def _finish(self, step: _Step, kept: Any, served: Any, error: Exception | None) -> dict[str, torch.Tensor]:
        """Sends rows to the ranks whose batches want them, and puts those that come into the bags of this rank's."""
        error = _without_positions(error)
        # Other ranks get zeros where this one failed, and are told.
        self._tell(error)
        given, counts = step.given, step.counts
        bags = (given.offsets.shape[0] - 1) // len(self.features)
        outputs: dict[str, torch.Tensor] = {}
        if kept is not None:
            dims = [self._dims[at] for at in self._kept]
            outputs.update(zip([self.features[at].name for at in self._kept], kept.split(dims, dim=1), strict=True))
        for group in self._groups:
            rows = self._bring_back(group, None if served is None else (served, step.where), counts)
            outputs.update(self._bags_of(group, rows, step.mine, counts, step.route, given, bags))
        # On a GPU a failure of the call before is told now, behind the exchanges in which all ranks take part.
        if error is not None or counts.late is not None:
            raise error or counts.late  # type: ignore[misc]
        return {feature.name: outputs[feature.name] for feature in self.features}

    def _counts(self, route: Sorted, error: Exception | None) -> _Counts:
        """Tells all ranks how much this one sends, and is told how much they send. The CPU waits for the GPU here, and nowhere else."""
        world, sent = self._exchange.size, len(self._sent)
        code = torch.where(route.missing.any(), _KINDS.index("MissingIds"), 0)
        code = torch.where(route.wrong_offsets, _KINDS.index("InvalidArgument"), code)
        if error is not None:
            code = torch.full_like(code, _code(error))
        used = world * sent
        by_rank = [it[:used].reshape(world, sent) for it in (route.ids_of_key, route.pieces_of_key)]
        head = torch.cat([code.reshape(1, 1).expand(world, 1), *by_rank], dim=1).contiguous()
        received = self._exchange.swap("how many ids they send", head)
        told = self._told if self._told is not None else code.new_zeros(world)
        parts = [*by_rank, route.places_of_key[:used], route.ids_of_key[used:-1].sum(), received, told]
        values = iter(torch.cat([part.reshape(-1) for part in parts]).tolist())
        ids, pieces, places = ([list(islice(values, sent)) for _ in range(world)] for _ in range(3))
        kept = next(values)
        theirs = [list(islice(values, 1 + 2 * sent)) for _ in range(world)]
        self._told = None
        items = [
            [place if single else piece for place, piece, single in zip(*of_rank, self._single, strict=True)]
            for of_rank in zip(places, pieces, strict=True)
        ]
        late = _first_failed(list(values), self._exchange.rank)
        return _Counts(ids, pieces, items, sum(map(sum, places)), kept, theirs, late)

    def _leave_together(self, codes: Sequence[int], error: Exception | None) -> None:
        """Raises on all ranks if one of them failed: there what befell it, elsewhere which rank it was."""
        if error is not None:
            raise error
        failed = _first_failed(codes, self._exchange.rank)
        if failed is not None:
            raise failed

    def _wrong_values(self, given: Joined, route: Sorted) -> Exception | None:
        """What is wrong with the values of this rank's batch."""
        if bool(route.wrong_offsets):
            return invalid("offsets", f"they descend, or do not go from 0 to {given.ids.shape[0]}, the number of ids")
        positions = torch.nonzero(route.missing).reshape(-1).tolist()
        if not positions:
            return None
        text = f"{len(positions)} of {given.ids.shape[0]} ids are missing from their tables, the first at position {positions[0]}"
        details = {"positions": positions, "count": len(positions), "id": int(given.ids[positions[0]])}
        return _make("MissingIds", text, details)

    def _send(self, mine: Pieces, given: Joined, counts: _Counts) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Sends each rank the lengths of its pieces and their ids; and weights. Returns what came."""
        ids_of, pieces_of = [sum(it) for it in counts.ids], [sum(it) for it in counts.pieces]
        parts = []
        for ids, pieces in zip(spans(ids_of), spans(pieces_of), strict=True):
            parts += [mine.lengths[slice(*pieces)], mine.ids[slice(*ids)]]
        sent = len(self._sent)
        received_ids = [sum(it[1 : 1 + sent]) for it in counts.theirs]
        received = [sum(it[1:]) for it in counts.theirs]
        sizes = [one + other for one, other in zip(ids_of, pieces_of, strict=True)]
        numbers = self._exchange.swap("ids", torch.cat(parts), sizes, received)
        if not self._weights_sent:
            return numbers, None
        assert given.weights is not None, "a feature is weighted"
        return numbers, self._exchange.swap("weights", given.weights[mine.source], ids_of, received_ids)

    def _keep(self, route: Sorted, given: Joined, counts: _Counts, call: _Call) -> Any:
        """Looks up the features that each rank looks up for itself, one beside the other; or begins to. None: there are none."""
        if self._replicated is None:
            return None
        bags = (given.offsets.shape[0] - 1) // len(self.features)
        lengths = (given.offsets[1:] - given.offsets[:-1]).to(torch.int64).reshape(len(self.features), bags)[self._kept].reshape(-1)
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        # They lie behind those that are exchanged, and before those that go nowhere.
        part = slice(counts.places, counts.places + counts.kept)
        ids = route.ids[part]
        weights = None
        if any(self.features[at].weighted for at in self._kept):
            assert given.weights is not None, "a feature is weighted"
            weights = given.weights[route.order[part]]
        return call(self._replicated, ids, offsets, weights)

    def _serve(
        self, numbers: torch.Tensor, weights: torch.Tensor | None, theirs: list[list[int]], call: _Call
    ) -> tuple[Any, list[list[tuple[int, int]]]]:
        """Looks up what all ranks want of this one, or begins to: rows of pieces, one feature beside the other, and where those of each
        rank lie."""
        places, sent = self._places_of[self._exchange.rank], len(self._sent)
        lengths: list[list[torch.Tensor]] = [[] for _ in places]
        ids: list[list[torch.Tensor]] = [[] for _ in places]
        factors: list[list[torch.Tensor]] = [[] for _ in places]
        counts: list[list[int]] = [[] for _ in places]
        at = at_weights = 0
        for given in theirs:
            for which, place in enumerate(places):
                pieces = given[1 + sent + place]
                lengths[which].append(numbers[at : at + pieces])
                counts[which].append(pieces)
                at += pieces
            for which, place in enumerate(places):
                count = given[1 + place]
                ids[which].append(numbers[at : at + count])
                at += count
                if weights is not None:
                    factors[which].append(weights[at_weights : at_weights + count])
                at_weights += count
        where = [spans(it) for it in counts]
        if self._served is None:
            return numbers.new_zeros((0, 0), dtype=torch.float32), where
        bags = max(sum(it) for it in counts)
        # Every feature of a look-up has as many bags: empty ones are added.
        padded = [torch.cat([*own, own[0].new_zeros(bags - sum(many))]) for own, many in zip(lengths, counts, strict=True)]
        offsets = torch.cat([numbers.new_zeros(1), torch.cat(padded).cumsum(0)])
        joined_ids = torch.cat([part for own in ids for part in own])
        joined_weights = None if weights is None else torch.cat([part for own in factors for part in own])
        if not any(feature.weighted for feature in self._served.features):
            joined_weights = None
        return call(self._served, joined_ids, offsets, joined_weights), where

    def _tell(self, error: Exception | None) -> None:
        """Tells all ranks whether this one's look-ups have failed, and on the CPU raises if another's have."""
        world = self._exchange.size
        codes = torch.full((world,), _code(error), dtype=torch.int64, device=self.device)
        told = self._exchange.swap("whether look-ups failed", codes)
        if self.device.type == "cuda":
            # To read it would wait for the GPU. What is not read yet of a look-up before stays.
            self._told = told if self._told is None else torch.where(self._told != 0, self._told, told)
            return
        self._leave_together(told.tolist(), error)

    def _bring_back(
        self,
        group: _Group,
        found: tuple[torch.Tensor, list[list[tuple[int, int]]]] | None,
        counts: _Counts,
    ) -> torch.Tensor:
        """Sends each rank the rows of its pieces, and returns those of this rank's own."""
        sent, places = len(self._sent), self._places_of[self._exchange.rank]
        sizes = [sum(given[1 + sent + place] for place in group.places) for given in counts.theirs]
        received = [sum(it[place] for place in group.places) for it in counts.pieces]
        if found is None:
            rows = torch.zeros((sum(sizes), group.dim), device=self.device)
        else:
            parts, columns = [], spans([self._dims[self._sent[place]] for place in places])
            for rank in range(len(counts.theirs)):
                for which, place in enumerate(places):
                    if place in group.places:
                        begin, end = found[1][which][rank]
                        parts.append(found[0][begin:end, slice(*columns[which])])
            rows = torch.cat(parts) if parts else torch.zeros((0, group.dim), device=self.device)
        return self._exchange.swap("rows", rows, sizes, received)

    def _bags_of(
        self, group: _Group, rows: torch.Tensor, mine: Pieces, counts: _Counts, route: Sorted, given: Joined, bags: int
    ) -> dict[str, torch.Tensor]:
        """Puts what came back into the bags of this rank's batch."""
        piece, bag, first, position = mine.piece, mine.bag, mine.first, mine.position
        if len(self._groups) > 1:
            # Of each rank's items, those of the group, with their pieces numbered as these came back.
            parts, came = [], 0
            before = [(sum(map(sum, counts.items[:at])), sum(map(sum, counts.pieces[:at]))) for at in range(len(counts.items))]
            for (items, pieces), of_items, of_pieces in zip(before, counts.items, counts.pieces, strict=True):
                begin = items + sum(of_items[: group.places.start])
                part = slice(begin, begin + sum(of_items[place] for place in group.places))
                parts.append((part, came - pieces - sum(of_pieces[: group.places.start])))
                came += sum(of_pieces[place] for place in group.places)
            piece = torch.cat([piece[part] + shift for part, shift in parts])
            bag, first, position = (torch.cat([it[part] for part, _ in parts]) for it in (bag, first, position))
        factors = None
        if any(self._weighted_here[at] for at in group.features):
            assert given.weights is not None, "a feature is weighted"
            weighted = self._is_weighted[bag // max(bags, 1)]
            factors = torch.where(weighted, given.weights[position], 1.0)
        if group.numbers is not None:
            bag = group.numbers[bag // max(bags, 1)] * bags + bag % max(bags, 1)
        sums = sums_of_bags(rows, piece, bag, first, factors, len(group.features) * bags)
        sums = sums.reshape(len(group.features), bags, group.dim)
        outputs = {}
        for of_feature, at in zip(sums, group.features, strict=True):
            if self.features[at].pooling == "mean":
                kept = route.kept.reshape(len(self.features), bags)[at].clamp(min=1)
                of_feature = of_feature / kept.unsqueeze(1)
            outputs[self.features[at].name] = of_feature.to(self.dtype)
        return outputs

    def check(self, patience: float = 60.0) -> None:
        """Waits until this rank's look-ups have ended, and raises what befell them, or which other rank told of a failure.

        On the CPU each call has raised by itself. No other rank has to call it. `patience` is in seconds.

        Parameters
        ----------
        patience : float
            Seconds to wait, at most.

        Raises
        ------
        RankFailed
            Another rank told of a failure in its latest look-up.
        MissingIds, RowsFailed, Busy, GpuError, ContextLost
            As `Embedding.check`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        for collection in (self._served, self._replicated):
            if collection is not None:
                collection.check(patience)
        if self._told is not None:
            codes, self._told = self._told.tolist(), None
            self._leave_together(codes, None)

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
        return any([it.recover() for it in (self._served, self._replicated) if it is not None])

    def reports(self) -> dict[str, dict[str, Any] | None]:
        """Counts and seconds of this rank's latest look-up for all ranks ("served") and for itself ("replicated")."""
        named = (("served", self._served), ("replicated", self._replicated))
        return {name: collection.report() for name, collection in named if collection is not None}

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        before = torch.empty(0, dtype=self.dtype, device=self.device)
        after = fn(before)
        if (after.device, after.dtype) != (before.device, before.dtype):
            text = f"the module is on {before.device} with output of {before.dtype}, as all ranks agreed"
            raise invalid("device", f"{text}: make it anew, over an executor on {after.device} and with dtype={after.dtype}")
        return self

    def extra_repr(self) -> str:
        placed = [f"{it.table}: {it.kind}{'' if it.owner is None else f' by rank {it.owner}'}" for it in self.plan.placements]
        return f"rank {self._exchange.rank} of {self._exchange.size}, {', '.join(placed)}, device={str(self.device)!r}"


def _tried(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a call returns, or what it raises. Other ranks are told of whatever it is: they would wait for this one."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def _without_positions(error: Exception | None) -> Exception | None:
    """An error of a look-up for all ranks: positions among their ids say nothing to anybody."""
    if getattr(error, "positions", None):
        error.positions = ()  # type: ignore[union-attr]
    return error


def _code(error: Exception | None) -> int:
    """The number of an error's class."""
    if error is None:
        return 0
    named = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), "WarprowError")
    return _KINDS.index(named)


def _first_failed(codes: Sequence[int], own: int) -> RankFailed | None:
    """Which other rank failed, of codes by rank."""
    for rank, code in enumerate(codes):
        if code and rank != own:
            kind = _KINDS[code]
            error = RankFailed(f"rank {rank} of the group has failed with {kind}: what befell it is raised there")
            error.rank, error.kind = rank, kind
            return error
    return None
