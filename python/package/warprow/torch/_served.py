"""What a rank looks up for all ranks of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..errors import WarprowError
from ..executor import Executor, Feature
from ._collection import EmbeddingBagCollection
from ._module import StoredModule
from ._options import LookupOptions
from ._prefetched import Prefetched
from ._routes import joined


class Asked:
    """Something that this rank is to look up: now, or from a batch whose rows were fetched ahead."""

    def __init__(
        self, module: StoredModule, ids: torch.Tensor, offsets: torch.Tensor, weights: torch.Tensor | None = None
    ) -> None:
        self._module, self._batch = module, (ids, offsets, weights)
        self._ahead: Prefetched | None = None

    def fetch(self) -> None:
        """Begins to fetch the rows."""
        lookup = self._module._lookup
        if isinstance(self._module, _Rows):
            self._ahead = Prefetched(lookup, *lookup.prefetch_lists(*self._batch[:2]))
        else:
            self._ahead = self._module._begin(lookup, *self._batch)

    def look_up(self) -> torch.Tensor:
        """The rows, or the sums of bags."""
        lookup = self._module._lookup
        if self._ahead is not None:
            found = StoredModule.lookup(self._module, self._ahead)
        elif isinstance(self._module, _Rows):
            found = lookup.run_lists(*self._batch[:2])
        else:
            found = self._module._run(lookup, *self._batch, None)
        return found  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Told:
    """What a rank has another look up in a step, as numbers on the host."""

    #: Bags of each feature of its batch.
    bags: int
    #: Ids of each feature whose sums come back: first of those that are placed whole, then of those that are spread by rows.
    ids: list[int]
    #: Of each group of features whose rows come back, how many different ids of each feature.
    chosen: list[list[int]]


@dataclass(frozen=True)
class Counts:
    """What ranks send each other in a step, by rank."""

    sent: list[Told]
    received: list[Told]
    #: Of each group of features whose rows come back, the numbers of their ids: shape (world, features).
    chosen: list[torch.Tensor]
    #: Codes: 0, or the number of the error by which a rank cannot go on.
    codes: list[int]
    #: By feature how many ids the shortest bag of this rank's batch has; without bags nothing.
    fewest: list[int]
    #: Which other rank failed in the call before.
    late: WarprowError | None


@dataclass(frozen=True)
class Duties:
    """Which features ranks look up for each other, by their places in the batch."""

    #: Those whose tables are placed whole, ordered by the ranks that have them, and these ranks.
    whole: list[int]
    owners: list[int]
    #: Those that are spread by rows, and whose sums come back.
    divided: list[int]
    #: Those that are spread by rows, and whose rows come back, in groups of one length of rows.
    groups: list[list[int]]

    def summed_by(self, rank: int) -> list[int]:
        """The features whose sums a rank gives."""
        return self.owned_by(rank) + self.divided

    def owned_by(self, rank: int) -> list[int]:
        """The features whose tables a rank has whole."""
        return [at for at, owner in zip(self.whole, self.owners, strict=True) if owner == rank]

    def place(self, feature: int) -> int:
        """Where `Told.ids` has a feature."""
        return self.whole.index(feature) if feature in self.whole else len(self.whole) + self.divided.index(feature)


class Served(nn.Module):
    """What looks up, for all ranks.

    Parameters
    ----------
    executor : Executor
        What looks this rank's rows up.
    features : sequence of Feature
        All features of a batch.
    duties : Duties
        Which ranks look up which.
    rank, world : int
        The rank, and how many there are.
    common : mapping
        Options of look-ups: missing, on_failure, max_ids, prefetch.
    """

    def __init__(
        self, executor: Executor, features: Sequence[Feature], duties: Duties, rank: int, world: int, common: dict[str, Any]
    ) -> None:
        super().__init__()
        self._duties, self._features = duties, duties.summed_by(rank)
        self._weighted = any(features[at].weighted for at in self._features)
        # What is spread has its padding ids taken out before: ranks that number rows by themselves do not know them.
        summed = [
            replace(features[at], pooling="sum", padding=features[at].padding if at in duties.whole else None) for at in self._features
        ]
        self._sums = EmbeddingBagCollection(executor, summed, **common) if summed else None
        self._rows = nn.ModuleList()
        options = LookupOptions(mask="found", dtype=torch.float32, **common)
        for group in duties.groups:
            # A feature for each rank that asks, so that ids are looked up in the order in which they come, and rows go back in it.
            asked = [Feature(f"{features[at].name} of rank {other}", features[at].table) for other in range(world) for at in group]
            self._rows.append(_Rows(executor, asked, options, has_last=True))

    @property
    def modules_that_look_up(self) -> list[StoredModule]:
        """Each by itself."""
        modules: list[Any] = [*self._rows, self._sums]
        return [module for module in modules if module is not None]

    def received(self, counts: Counts) -> list[list[int]]:
        """By rank how many numbers come here: lengths of bags, ids of bags, and of each group of features whose rows are wanted ids."""
        features = len(self._features)
        lengths = [it.bags * features for it in counts.received]
        groups = [[sum(it.chosen[which]) for it in counts.received] for which in range(len(self._duties.groups))]
        return [lengths, [sum(it.ids) for it in counts.received], *groups]

    def _parts(self, numbers: torch.Tensor, counts: Counts, which: int) -> list[torch.Tensor]:
        """By rank the numbers of one kind that came, in the order of `received`."""
        kinds, found, at = self.received(counts), [], 0
        for of_rank in zip(*kinds, strict=True):
            begin = at + sum(of_rank[:which])
            found.append(numbers[begin : begin + of_rank[which]])
            at += sum(of_rank)
        return found

    def rows_of(self, group: int, numbers: torch.Tensor, counts: Counts, begun: Callable[[Asked], Asked]) -> Asked:
        """The rows of a group of features that all ranks want of this one."""
        ids, asked = joined(self._parts(numbers, counts, 2 + group), numbers), counts.chosen[group].reshape(-1)
        offsets = torch.cat([asked.new_zeros(1), asked.cumsum(0)])
        module: Any = self._rows[group]
        return begun(Asked(module, ids, offsets))

    def sums_of(
        self, numbers: torch.Tensor, weights: torch.Tensor | None, counts: Counts, begun: Callable[[Asked], Asked]
    ) -> Asked | None:
        """The bags of all ranks whose sums this one gives: one rank's below the other's, one feature beside the other. None: it gives none."""
        features = self._features
        if self._sums is None:
            return None
        of_rank = [[it.ids[self._duties.place(at)] for at in features] for it in counts.received]

        def by_feature(parts: list[torch.Tensor], sizes: list[list[int]]) -> torch.Tensor:
            split = [part.split(size) for part, size in zip(parts, sizes, strict=True)]
            return joined([part for feature in zip(*split, strict=True) for part in feature], numbers)

        lengths = by_feature(self._parts(numbers, counts, 0), [[it.bags] * len(features) for it in counts.received])
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        ids = by_feature(self._parts(numbers, counts, 1), of_rank)
        factors = None
        if weights is not None and self._weighted:
            factors = by_feature(list(weights.split([sum(it) for it in of_rank])), of_rank)
        return begun(Asked(self._sums, ids, offsets, factors))

    def report(self) -> dict[str, Any] | None:
        """Counts and seconds of the latest look-ups, added up; None: there were none. Of what is no number, those of the first."""
        known = [report for report in (module.report() for module in self.modules_that_look_up) if report is not None]
        if not known:
            return None
        found = dict(known[0])
        for name, value in known[0].items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[name] = sum(report.get(name) or 0 for report in known)
        return found


class _Rows(StoredModule):
    """Rows of several features, which are not pooled."""
