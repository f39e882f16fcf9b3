"""All features of a batch in one look-up of several processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice, pairwise
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .. import _options as arguments
from ..errors import _CLASSES, ExchangeFailed, RanksDisagree, WarprowError, _make, invalid, wrong_type
from ..executor import Executor, Feature
from ..store import Store
from ._agreement import Shape, agreed, describe
from ._batches import check_features
from ._batches import joined as joined_bags
from ._collection import EmbeddingBagCollection
from ._exchange import Coming, Exchange, calls_differ, rank_failed, tried, without_positions
from ._fixed_sizes import FixedSizeBags, Sizes
from ._fixed_sizes import agreed as agreed_sizes
from ._lookup import check_ids
from ._module import StoredModule, executor_of
from ._options import LookupOptions
from ._prefetched import Prefetched, check_prefetched
from ._routes import Bags, Route, Routed, Router, joined, runs
from ._served import Asked, Counts, Duties, Served, Told
from ._shard_plan import ShardingPlan, plan_sharding
from ._sharded_prefetched import ShardedPrefetched

#: Classes of errors by the number that ranks send each other; 0: there is none.
_KINDS = ["", *sorted(_CLASSES)]
#: Added to that number by ranks that call `prefetch`.
_AHEAD = 1 << 16
#: The most that `slack` can be: room never is for more than all ids of a batch.
_MOST_SLACK = 1e9


@dataclass(frozen=True)
class _Step:
    """A batch whose ids ranks have exchanged."""

    given: Bags
    route: Routed
    counts: Counts
    #: Of what this rank looks up for itself: rows, or a batch that is fetched ahead. None: there is nothing, or it failed.
    kept: torch.Tensor | Asked | None
    #: What this rank is asked for: rows by group of features, and sums. None: it failed.
    rows: list[Asked | None]
    sums: Asked | None
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
            arguments.choice("stores", stores, ("shared", "own"))
            if plan is not None:
                arguments.instance("plan", plan, ShardingPlan, "a ShardingPlan, as plan_sharding makes one")
            if plan is None and stores == "own":
                raise invalid("plan", 'with stores="own" no rank knows all sizes: give the plan by which rows were loaded')
            chosen = plan_sharding(executor.store, checked, self._exchange.size) if plan is None else plan
            chosen.check([feature.table for feature in checked], self._exchange.size)
            return checked, chosen, describe(executor, checked, chosen, stores, options)

        # A rank that cannot take part tells the others, which would wait for it.
        prepared, error = tried(prepare)
        told = self._exchange.gather({"error": f"{type(error).__name__}: {error}"} if error is not None else prepared[2])
        self._exchange.meet()
        if error is not None:
            raise error
        self.features, self.plan, _ = prepared
        self.stores, self.dtype, self.missing, self.on_failure = stores, dtype, missing, on_failure
        shapes = agreed(told, self.plan, stores)
        _, error = tried(lambda: self._make(executor, shapes, missing, on_failure, max_ids, prefetch))
        self._leave_together(self._exchange.gather(_code(error)), error)
        #: What other ranks told of their latest look-ups, on a GPU; read when the CPU waits for the GPU anyway.
        self._told: torch.Tensor | None = None
        #: How often all ranks have called `prefetch` and `fixed_sizes`.
        self._prefetched = self._fixed = 0

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
        order = range(len(self.features))
        self._kept = [at for at in order if placements[at].kind == "replicated"]
        owned = sorted((placements[at].owner or 0, at) for at in order if placements[at].kind == "whole")
        spread = [at for at in order if placements[at].kind == "rows"]
        by_rows = [at for at in spread if placements[at].exchange == "rows"]
        self._duties = Duties(
            whole=[at for _, at in owned],
            owners=[owner for owner, _ in owned],
            divided=[at for at in spread if placements[at].exchange == "sums"],
            groups=[[at for at in by_rows if self._dims[at] == dim] for dim in sorted({self._dims[at] for at in by_rows})],
        )
        routes = []
        for feature, placement in zip(self.features, placements, strict=True):
            shape = shapes[feature.table]
            rows, local = None if shape.keyed else shape.rows, placement.kind == "rows" and self.stores == "own"
            routes.append(Route(rows, feature.padding, local and not shape.keyed))
        self._router = Router(routes, self._duties.groups, self._duties.divided, missing, world, self._exchange.device)
        # Weights go with ids where sums come back, and are multiplied here where rows do.
        self._weights_sent = any(self.features[at].weighted for at in (*self._duties.whole, *self._duties.divided))
        common: dict[str, Any] = {"missing": missing, "on_failure": on_failure, "max_ids": max_ids, "prefetch": prefetch}
        self._prefetch = prefetch
        self._served = Served(executor, self.features, self._duties, rank, world, common)
        kept = [self.features[at] for at in self._kept]
        self._replicated = EmbeddingBagCollection(executor, kept, dtype=self.dtype, **common) if kept else None
        #: Ids of features that are placed whole, for each rank, as `Bags.starts` of the latest batch has it.
        self._latest: tuple[tuple[int, ...], torch.Tensor] | None = None

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
        RanksDisagree
            Another rank makes another call. All ranks raise it, and can go on.
        ExchangeFailed
            A rank is gone, or did not answer within the time-out of the group: the group is of no use any more.
        Busy, GpuError
            As `Embedding.forward`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        if self._is_replicated:
            # Nothing is exchanged.
            assert self._replicated is not None, "there is a feature"
            return self._replicated(batch)  # type: ignore[no-any-return]
        given, error = tried(lambda: self._checked(batch))
        with torch.no_grad(), self._exchange.lock:
            self._exchange.call("forward")
            return self._finish(self._begin(given, error, ahead=False))

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
        WrongType, MissingIds, RankFailed, RanksDisagree, ExchangeFailed
            As `forward`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        # All ranks were made alike.
        if self._prefetch == 0:
            raise invalid("batch", "the module was made without prefetch=: say how many batches are held at once")
        if self._is_replicated:
            assert self._replicated is not None, "there is a feature"
            ahead = self._replicated.prefetch(batch)
            whole = self._replicated
            return ShardedPrefetched(self, lambda: whole.lookup(ahead), ahead._held[0].numel() if ahead._held else 0)
        given, error = tried(lambda: self._checked(batch))
        with torch.no_grad(), self._exchange.lock:
            self._exchange.call("prefetch")
            self._prefetched += 1
            number = self._prefetched
            step = self._begin(given, error, ahead=True)
        return ShardedPrefetched(self, lambda: self._look_up(step), step.given.ids.numel(), number)

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
        RanksDisagree
            As `forward`; or another rank looks another batch up. The batch can be looked up yet.
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
        finish = prefetched._take_from(self)
        if self._is_replicated:
            return finish()  # type: ignore[no-any-return]
        with self._exchange.lock:
            try:
                self._exchange.call("lookup", prefetched._number)
            except RanksDisagree:
                # Nothing was looked up.
                prefetched._finish = finish
                raise
            found: dict[str, torch.Tensor] = finish()
        return found

    def fixed_sizes(self, batch: Any, *, slack: float = 1.25) -> FixedSizeBags:
        """This collection for batches of one size, whose steps wait for nothing on the CPU: a CUDA graph can have them. All ranks call it.

        Batches of a rank have as many bags as `batch`, and as many ids of each feature; features of which each bag of `batch` has one id keep
        that. Ranks may differ. What this collection looks up meanwhile, and what the one that is made does, run one at a time.

        Parameters
        ----------
        batch : mapping of str to tuple, or KeyedJaggedTensor
            A batch as later ones are: its ids say how many different ones there will be.
        slack : float
            Room for so many times the different ids that `batch` asks a rank for, from 1 to 1e9, the same on all ranks; the most of all ranks
            counts.

        Returns
        -------
        FixedSizeBags
            Called, or captured, by all ranks.

        Raises
        ------
        InvalidArgument
            `slack` is less than 1 or more than 1e9; `on_failure` is "raise"; the batch has no bags; a table that is not replicated has keys; one that exchanges sums: place it with
            `exchange="rows"`; or one that is spread by rows has fewer rows than there are ranks: replicate it. Or as `forward`.
        RanksDisagree
            Another rank could not take part, or has another `slack`: `rank` is its number. Or as `forward`.
        WrongType
            `slack` is no number. Or as `forward`.
        ExchangeFailed
            As `forward`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """

        def sizes() -> tuple[Sizes, list[bool]]:
            if isinstance(slack, bool) or not isinstance(slack, Real):
                raise wrong_type("slack", f"{slack!r}: give a number from 1 to {_MOST_SLACK:g}")
            if not 1 <= slack <= _MOST_SLACK:
                raise invalid("slack", f"{slack}: give a number from 1 to {_MOST_SLACK:g}")
            if self.on_failure != "nan" and not self._is_replicated:
                text = 'ranks would get zeros for rows that another could not read: make the collection with on_failure="nan"'
                raise invalid("on_failure", text)
            if self._duties.divided:
                name = self.features[self._duties.divided[0]].table
                raise invalid("plan", f'table {name!r} exchanges sums, whose number changes: place it with exchange="rows"')
            for feature, route in zip(self.features, self._router.routes, strict=True):
                kind = self.plan.of(feature.table).kind
                if kind != "replicated" and route.rows is None:
                    raise invalid("plan", f"table {feature.table!r} has keys, none of which could fill room: replicate it")
                if kind == "rows" and route.rows is not None and route.rows < self._exchange.size:
                    raise invalid("plan", f"table {feature.table!r} has fewer rows than there are ranks: replicate it")
            if not self._router.is_one_sort:
                raise invalid("plan", "tables that are spread by rows have more rows than 64-bit numbers: place some whole")
            given = self._checked(batch)
            if given.bags == 0:
                raise invalid("batch", "it has no bags")
            routed = self._router.send(given)
            if bool(routed.wrong_offsets):
                raise _wrong_offsets(given.ids.shape[0])
            ids = tuple(last - first for first, last in pairwise(given.starts))
            ones = [count == given.bags and fewest == 1 for count, fewest in zip(ids, routed.fewest.tolist(), strict=True)]
            return Sizes(given.bags, ids, tuple(int(it.counts.sum(1).max()) for it in routed.chosen), float(slack)), ones

        found, error = tried(sizes)
        with self._exchange.lock:
            self._exchange.call("fixed_sizes")
            told = self._exchange.gather(Sizes(0, (), (), error=f"{type(error).__name__}: {error}") if error is not None else found[0])
            self._fixed += 1
            number = self._fixed
        if error is not None:
            raise error
        return FixedSizeBags(self, agreed_sizes(told), found[1], number)

    def _look_up(self, step: _Step) -> dict[str, torch.Tensor]:
        """The second half of a batch that is fetched ahead."""
        with torch.no_grad():
            return self._finish(step)

    @property
    def _is_replicated(self) -> bool:
        return len(self._kept) == len(self.features)

    def _checked(self, batch: Any) -> Bags:
        is_counted = isinstance(batch, Mapping) or hasattr(batch, "length_per_key")
        given = joined_bags(self.features, batch, counted=is_counted)
        check_ids("input", given.ids, self.device)
        check_ids("offsets", given.offsets, self.device)
        if given.ids.dim() != 1 or given.offsets.dim() != 1 or (given.offsets.shape[0] - 1) % len(self.features) != 0:
            raise invalid("batch", f"ids and offsets have one dimension, offsets F * B + 1 entries for {len(self.features)} features")
        weights = given.weights
        if weights is not None:
            if weights.shape != given.ids.shape or weights.device != given.ids.device:
                raise invalid("per_sample_weights", f"shape {tuple(weights.shape)}: give one for each id, on the same device")
            if weights.requires_grad and torch.is_grad_enabled():
                raise invalid("per_sample_weights", "they require a gradient, and this module is for inference: detach() them")
            weights = weights.to(torch.float32)
        bags, count = (given.offsets.shape[0] - 1) // len(self.features), given.ids.shape[0]
        starts = [0, *accumulate(given.counts)]
        if not is_counted:
            # The GPU alone knows it: the CPU waits for it, as a KeyedJaggedTensor does that has not been asked before.
            starts = given.offsets[::bags].tolist() if bags else [0] * len(self.features) + [count]
        if starts[0] != 0 or starts[-1] != count or any(it < last for last, it in pairwise(starts)):
            raise _wrong_offsets(count)
        return Bags(given.ids, given.offsets, weights, tuple(starts), bags)

    def _begin(self, given: Bags, error: Exception | None, *, ahead: bool) -> _Step:
        """Exchanges ids. What this rank looks up for itself is looked up; with `ahead`, that and what it is asked for begins to be fetched."""
        if error is not None:
            nothing = torch.zeros(1, dtype=torch.int64, device=self.device)
            given = Bags(nothing[:0], nothing, None, (0,) * (len(self.features) + 1), 0)
        route = self._router.send(given)
        counts = self._counts(route, given, error, ahead)
        if any(counts.codes):
            self._leave_together(counts.codes, error or self._wrong_values(given, route))
        coming = self._send(route, given, counts)

        def begun(asked: Asked) -> Asked:
            if ahead:
                asked.fetch()
            return asked

        # What this rank looks up for itself is looked up while ids are on their way.
        kept, error = tried(lambda: self._keep(given, begun) if ahead else self._look_up_kept(given))
        numbers, weights = (None if it is None else it.get() for it in coming)
        assert numbers is not None, "ids are sent"
        rows = []
        for at in range(len(self._duties.groups)):
            asked, failed = tried(partial(self._served.rows_of, at, numbers, counts, begun))
            error = error or failed
            rows.append(asked)
        sums, failed = tried(lambda: self._served.sums_of(numbers, weights, counts, begun))
        return _Step(given, route, counts, kept, rows, sums, error or failed)

    def _finish(self, step: _Step) -> dict[str, torch.Tensor]:
        """Sends rows to the ranks whose batches want them, and puts those that come into the bags of this rank's."""
        given, route, counts, error = step.given, step.route, step.counts, step.error
        kept, failed = tried(step.kept.look_up) if isinstance(step.kept, Asked) else (step.kept, None)
        error = error or failed
        # Sums are looked up while rows are on their way.
        coming = []
        for at, asked in enumerate(step.rows):
            found, failed = (None, None) if asked is None else tried(asked.look_up)
            error = error or failed
            coming.append(self._send_rows(at, found, counts))
        sums, failed = (None, None) if step.sums is None else tried(step.sums.look_up)
        error = without_positions(error or failed)
        # Other ranks get zeros where this one failed, and are told.
        telling = self._tell(error)
        blocks = self._send_sums(sums, counts) if self._duties.whole or self._duties.divided else None
        outputs: dict[str, torch.Tensor] = {}
        if kept is not None:
            dims = [self._dims[at] for at in self._kept]
            outputs.update(zip([self.features[at].name for at in self._kept], kept.split(dims, dim=1), strict=True))
        for at, of_group in enumerate(coming):
            outputs.update(self._bags_of_rows(at, of_group.get(), route, given, counts))
        if blocks is not None:
            outputs.update(self._bags_of_sums(blocks.get(), route, given))
        self._tell_of_step(telling.get(), error)
        # On a GPU a failure of the call before is told now, behind the exchanges in which all ranks take part.
        if error is not None or counts.late is not None:
            raise error or counts.late  # type: ignore[misc]
        return {feature.name: outputs[feature.name] for feature in self.features}

    def _tell_of_step(self, told: torch.Tensor, error: Exception | None) -> None:
        """Raises what befell a step, by the codes of all ranks; on a GPU the next call does, or `check`."""
        if self.device.type == "cpu":
            self._leave_together(told.tolist(), error)
        else:
            # To read it would wait for the GPU. What is not read yet of a look-up before stays.
            self._told = told if self._told is None else torch.where(self._told != 0, self._told, told)

    def _counts(self, route: Routed, given: Bags, error: Exception | None, ahead: bool) -> Counts:
        """Tells all ranks how much this one sends, and is told how much they send. The CPU waits for the GPU here, and, but for a
        KeyedJaggedTensor, nowhere else."""
        world, device, call = self._exchange.size, self.device, _AHEAD if ahead else 0
        if self._latest is None or self._latest[0] != (call, given.bags, *given.starts):
            counts = [given.starts[at + 1] - given.starts[at] for at in self._duties.whole]
            known = [
                [call, given.bags, *(count if owner == rank else 0 for count, owner in zip(counts, self._duties.owners, strict=True))]
                for rank in range(world)
            ]
            self._latest = ((call, given.bags, *given.starts), torch.tensor(known, dtype=torch.int64, device=device))
        known_here = self._latest[1]
        if error is not None:
            known_here = known_here.clone()
            known_here[:, 0] = _code(error) + call
        # Two bits, and what the CPU knows.
        bits = [route.wrong_offsets, route.wrong_offsets if route.missing is None else route.missing.any()]
        parts = [*(bit.reshape(1, 1).expand(world, 1) for bit in bits), known_here]
        parts += [] if route.divided is None else [route.divided.counts]
        head = torch.cat([*parts, *(it.counts for it in route.chosen)], dim=1)
        received = self._exchange.swap("how many ids they send", head)
        told = self._told if self._told is not None else head.new_zeros(world)
        fewest = route.fewest.to(torch.int64)
        values = torch.cat([head.reshape(-1), received.reshape(-1), told, fewest]).tolist()
        self._told = None
        columns, lists = head.shape[1], []
        for at in range(0, 2 * world * columns, columns):
            summed = len(self._duties.whole) + len(self._duties.divided)
            line = iter(values[at + 3 : at + columns])
            lists.append(Told(next(line), list(islice(line, summed)), [list(islice(line, len(group))) for group in self._duties.groups]))
        sizes = [len(group) for group in self._duties.groups]
        chosen = received[:, columns - sum(sizes) :].split(sizes, dim=1) if sizes else ()
        heads = [values[at : at + 3] for at in range(world * columns, 2 * world * columns, columns)]
        calls = [code // _AHEAD for _, _, code in heads]
        for rank, it in enumerate(calls):
            if it not in (0, 1):
                raise _out_of_step(rank)
            if it != calls[0]:
                raise calls_differ(rank, *("prefetch" if called else "forward" for called in (it, calls[0])))
        codes = [_code_of(wrong_offsets, missing, code % _AHEAD) for wrong_offsets, missing, code in heads]
        behind = 2 * world * columns
        late = _first_failed(values[behind : behind + world], self._exchange.rank)
        return Counts(lists[:world], lists[world:], list(chosen), codes, values[behind + world :], late)

    def _leave_together(self, codes: Sequence[int], error: Exception | None) -> None:
        """Raises on all ranks if one of them failed: there what befell it, elsewhere which rank it was."""
        if error is not None:
            raise error
        failed = _first_failed(codes, self._exchange.rank)
        if failed is not None:
            raise failed

    def _wrong_values(self, given: Bags, route: Routed) -> Exception | None:
        """What is wrong with the values of this rank's batch."""
        if bool(route.wrong_offsets):
            return _wrong_offsets(given.ids.shape[0])
        positions = [] if route.missing is None else torch.nonzero(route.missing).reshape(-1).tolist()
        if not positions:
            return None
        text = f"{len(positions)} of {given.ids.shape[0]} ids are missing from their tables, the first at position {positions[0]}"
        details = {"positions": positions, "count": len(positions), "id": int(given.ids[positions[0]])}
        return _make("MissingIds", text, details)

    def _send(self, route: Routed, given: Bags, counts: Counts) -> tuple[Coming, Coming | None]:
        """Begins to send each rank the ids that it looks up: how many each bag of a feature has whose sum comes back, ids of bags, and
        ids whose rows come back. Their weights are sent by another exchange."""
        world, bags = self._exchange.size, given.bags
        ids, lengths, weights = given.ids.to(torch.int64), route.lengths, given.weights
        parts: list[torch.Tensor] = []
        factors: list[torch.Tensor] = []
        sizes, weight_sizes = [], []
        at_divided, at_chosen = 0, [0] * len(self._duties.groups)
        in_order = None
        if route.divided is not None and weights is not None and self._weights_sent:
            in_order = joined([weights[slice(*it)] for it in given.spans(self._duties.divided)], weights)[route.divided.order]
        for rank in range(world):
            own = self._duties.owned_by(rank)
            told, begin = counts.sent[rank], len(parts)
            parts += [lengths[first * bags : last * bags] for first, last in runs(own)]
            if route.divided is not None:
                parts.append(route.divided.lengths[rank])
            parts += [ids[slice(*it)] for it in given.spans(own)]
            factors += [weights[slice(*it)] for it in given.spans(own)] if weights is not None and self._weights_sent else []
            if route.divided is not None:
                end = at_divided + sum(told.ids[len(self._duties.whole) :])
                parts.append(route.divided.ids[at_divided:end])
                factors += [] if in_order is None else [in_order[at_divided:end]]
                at_divided = end
            for which, chosen in enumerate(route.chosen):
                end = at_chosen[which] + sum(told.chosen[which])
                parts.append(chosen.ids[at_chosen[which] : end])
                at_chosen[which] = end
            sizes.append(sum(it.shape[0] for it in parts[begin:]))
            weight_sizes.append(sum(told.ids))
        received = [sum(it) for it in zip(*self._served.received(counts), strict=True)]
        numbers = self._exchange.begin("ids", joined(parts, ids).contiguous(), sizes, received)
        if not self._weights_sent:
            return numbers, None
        assert weights is not None, "a feature is weighted"
        return numbers, self._exchange.begin("weights", joined(factors, weights), weight_sizes, [sum(it.ids) for it in counts.received])

    def _keep(self, given: Bags, begun: Callable[[Asked], Asked]) -> Asked | None:
        """What this rank looks up for itself, features one beside the other. None: there is nothing."""
        if self._replicated is None:
            return None
        ids = joined([given.ids[slice(*it)] for it in given.spans(self._kept)], given.ids)
        weights = None
        if any(self.features[at].weighted for at in self._kept):
            assert given.weights is not None, "a feature is weighted"
            weights = joined([given.weights[slice(*it)] for it in given.spans(self._kept)], given.weights)
        return begun(Asked(self._replicated, ids, given.own_offsets(self._kept), weights))

    def _look_up_kept(self, given: Bags) -> torch.Tensor | None:
        asked = self._keep(given, lambda it: it)
        return None if asked is None else asked.look_up()

    def _send_rows(self, group: int, found: torch.Tensor | None, counts: Counts) -> Coming:
        """Begins to send each rank the rows of its ids, and to get those of this rank's. Behind these is a row of zeros."""
        dim = self._dims[self._duties.groups[group][0]]
        sizes, received = ([sum(it.chosen[group]) for it in side] for side in (counts.received, counts.sent))
        if found is None:
            found = torch.zeros((sum(sizes), dim), device=self.device)
        into = torch.empty((sum(received) + 1, dim), device=self.device)
        into[-1].zero_()
        return self._exchange.begin("rows", found, sizes, received, into[:-1])

    def _send_sums(self, found: torch.Tensor | None, counts: Counts, nothing: float = 0.0) -> Coming:
        """Begins to send each rank the sums of its bags, `nothing` where there are none, and to get those of this rank's."""
        rank, world = self._exchange.rank, self._exchange.size
        widths = [sum(self._dims[at] for at in self._duties.summed_by(other)) for other in range(world)]
        sizes, received = [it.bags * widths[rank] for it in counts.received], [counts.sent[0].bags * it for it in widths]
        if found is None:
            found = torch.full((sum(sizes),), nothing, device=self.device)
        return self._exchange.begin("sums", found.reshape(-1), sizes, received)

    def _tell(self, error: Exception | None) -> Coming:
        """Begins to tell all ranks whether this one's look-ups have failed."""
        codes = torch.full((self._exchange.size,), _code(error), dtype=torch.int64, device=self.device)
        return self._exchange.begin("whether look-ups failed", codes)

    def _bags_of_rows(
        self, which: int, rows: torch.Tensor, route: Routed, given: Bags, counts: Counts
    ) -> dict[str, torch.Tensor]:
        """Adds rows that came back up, into the bags of this rank's batch."""
        group, dim = self._duties.groups[which], rows.shape[1]
        # With the row of zeros behind them, which is that of ids that went nowhere.
        rows = rows.as_strided((rows.shape[0] + 1, dim), (dim, 1))
        places = route.chosen[which].places
        weighted = any(self.features[at].weighted for at in group)
        if not weighted and given.bags and places.shape[0] == len(group) * given.bags and min(counts.fewest[at] for at in group) == 1:
            # Each bag is a row. A sum from +0 has no -0.
            sums = rows.add_(0.0).index_select(0, places)
        else:
            sums = self._added_up(which, rows, places, given)
        return self._of_group(which, sums, route, given)

    def _added_up(self, which: int, rows: torch.Tensor, places: torch.Tensor, given: Bags) -> torch.Tensor:
        """The bags of a group of features, of which `places` says where in `rows` the row of each id is."""
        group, factors = self._duties.groups[which], None
        if any(self.features[at].weighted for at in group):
            assert given.weights is not None, "a feature is weighted"
            ones = given.weights.new_ones
            parts = [
                given.weights[first:last] if self.features[at].weighted else ones(last - first)
                for at in group
                for first, last in given.spans([at])
            ]
            factors = joined(parts, given.weights)
        return sums_of_bags(rows, places, given.own_offsets(group), factors)

    def _of_group(self, which: int, sums: torch.Tensor, route: Routed, given: Bags) -> dict[str, torch.Tensor]:
        """The bags of a group of features, by the names of these."""
        group = self._duties.groups[which]
        by_feature = sums.reshape(len(group), given.bags, sums.shape[1])
        return {self.features[at].name: self._finished(of_feature, at, route, given) for at, of_feature in zip(group, by_feature, strict=True)}

    def _bags_of_sums(self, came: torch.Tensor, route: Routed, given: Bags) -> dict[str, torch.Tensor]:
        """Adds the sums of ranks up, in their order."""
        outputs: dict[str, torch.Tensor] = {}
        begin = 0
        for rank in range(self._exchange.size):
            features = self._duties.summed_by(rank)
            dims = [self._dims[at] for at in features]
            block = came[begin : begin + given.bags * sum(dims)].reshape(given.bags, sum(dims))
            begin += block.numel()
            for at, part in zip(features, block.split(dims, dim=1), strict=True):
                name = self.features[at].name
                outputs[name] = outputs[name] + part if name in outputs else part
        return {name: self._finished(outputs[name], at, route, given) for at in (*self._duties.whole, *self._duties.divided) for name in [self.features[at].name]}

    def _finished(self, sums: torch.Tensor, feature: int, route: Routed, given: Bags) -> torch.Tensor:
        """Bags of a feature: means divided, and of the output's type."""
        if self.features[feature].pooling == "mean":
            bounds = given.offsets[feature * given.bags : (feature + 1) * given.bags + 1].to(torch.int64)
            if route.nothing is not None:
                counted = (~route.nothing).cumsum(0)
                bounds = torch.cat([counted.new_zeros(1), counted])[bounds]
            sums = sums / torch.diff(bounds).clamp(min=1).unsqueeze(1)
        return sums.to(self.dtype)

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
        for module in self._looking_up:
            module.check(patience)
        told, self._told = self._told, None
        if told is not None:
            self._leave_together(told.tolist(), None)

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
        return any([it.recover() for it in self._looking_up])

    def reports(self) -> dict[str, dict[str, Any] | None]:
        """Counts and seconds of this rank's latest look-ups for all ranks ("served"), added up, and for itself ("replicated")."""
        found = {}
        if self._served.modules_that_look_up:
            found["served"] = self._served.report()
        if self._replicated is not None:
            found["replicated"] = self._replicated.report()
        return found

    @property
    def _looking_up(self) -> list[StoredModule]:
        kept = [] if self._replicated is None else [self._replicated]
        return [*self._served.modules_that_look_up, *kept]

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


def _wrong_offsets(count: int) -> Exception:
    return invalid("offsets", f"they descend, or do not go from 0 to {count}, the number of ids")


def sums_of_bags(rows: torch.Tensor, places: torch.Tensor, offsets: torch.Tensor, factors: torch.Tensor | None) -> torch.Tensor:
    """Adds rows up, from +0, in each bag in its order.

    Parameters
    ----------
    rows : Tensor of float32, shape (p, dim)
    places : Tensor of int64, shape (n,)
        By id of a bag its row.
    offsets : Tensor of int64, shape (bags + 1,)
        Where each bag begins in `places`, and where the last ends.
    factors : Tensor of float32, shape (n,), optional
        By what the row of each id is multiplied.
    """
    if offsets.shape[0] == 1 or places.shape[0] == 0:
        return rows.new_zeros((offsets.shape[0] - 1, rows.shape[1]))
    if factors is None:
        return F.embedding_bag(places, rows, offsets, mode="sum", include_last_offset=True)
    # Products are rounded before they are added.
    products = rows.index_select(0, places) * factors.unsqueeze(1)
    return torch.segment_reduce(products, "sum", lengths=torch.diff(offsets), axis=0, unsafe=True, initial=0)


def _code(error: Exception | None) -> int:
    """The number of an error's class."""
    if error is None:
        return 0
    named = next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), "WarprowError")
    return _KINDS.index(named)


def _code_of(wrong_offsets: int, missing: int, code: int) -> int:
    """The number of the error that a rank tells of its batch, by what is wrong with its values, or by what it could not begin with."""
    if code:
        return code
    return _KINDS.index("InvalidArgument") if wrong_offsets else _KINDS.index("MissingIds") if missing else 0


def _first_failed(codes: Sequence[int], own: int) -> WarprowError | None:
    """Which other rank failed, of codes by rank."""
    for rank, code in enumerate(codes):
        if code and rank != own:
            return rank_failed(rank, _KINDS[code]) if 0 < code < len(_KINDS) else _out_of_step(rank)
    return None


def _out_of_step(rank: int) -> ExchangeFailed:
    """What a rank raises that got something else than another should have sent."""
    return ExchangeFailed(f"rank {rank} sent what belongs to another call: ranks call forward, prefetch and lookup in different orders")
