"""Which rank looks up what: placements of tables, and a planner that proposes them from sizes and lengths of bags."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _options as arguments
from ..errors import invalid, wrong_type
from ..executor import Feature
from ..store import Store
from ._tensors import as_tensor

#: With fewer rows for sums than this share of the ids, sums are exchanged in the place of rows.
_WORTH_SUMS = 0.75


@dataclass(frozen=True)
class Placement:
    """Where the rows of a table are looked up.

    Parameters
    ----------
    table : str
        The table.
    kind : str
        "rows": each row by the rank that `shard_of` says; "whole": all rows by the rank `owner`; "replicated": each rank looks up the
        bags of its own batch, and nothing is exchanged.
    owner : int, optional
        With "whole", the rank.
    exchange : str
        With "rows", what ranks send each other: "rows" (sums have the bits of a module that is not sharded) or "sums" (fewer bytes
        where bags are long: each rank adds up its own rows of a bag, and these sums are added in the order of ranks).
    """

    table: str
    kind: str
    owner: int | None = None
    exchange: str = "rows"


@dataclass(frozen=True)
class ShardingPlan:
    """The placements of all tables among `world` ranks."""

    world: int
    placements: tuple[Placement, ...]

    def of(self, table: str) -> Placement:
        """The placement of a table.

        Parameters
        ----------
        table : str
            Its name.

        Raises
        ------
        InvalidArgument
            The plan does not place it.
        """
        for placement in self.placements:
            if placement.table == table:
                return placement
        raise invalid("plan", f"it says nothing of table {table!r}: it has {', '.join(it.table for it in self.placements)}")

    def check(self, tables: Sequence[str], world: int) -> None:
        """Whether it places each of these tables once, among so many ranks.

        Parameters
        ----------
        tables : sequence of str
            Their names.
        world : int
            How many ranks there are.

        Raises
        ------
        InvalidArgument
            The plan is for another number of ranks, does not place a table, places one twice, or has a kind, owner or exchange that cannot be.
        WrongType
            Its placements are none, or a table or owner in them is of another type.
        """
        if self.world != world:
            raise invalid("plan", f"it is for {self.world} ranks, and the group has {world}: plan_sharding(..., world={world})")
        for placement in arguments.several("plan", self.placements, Placement, "Placements"):
            arguments.text("plan", placement.table)
            arguments.maybe_number("plan", placement.owner)
        names = [placement.table for placement in self.placements]
        for placement in self.placements:
            if names.count(placement.table) > 1:
                raise invalid("plan", f"table {placement.table!r} is placed twice")
            if placement.kind not in ("rows", "whole", "replicated"):
                raise invalid("plan", f'table {placement.table!r} is placed {placement.kind!r}: give "rows", "whole" or "replicated"')
            if placement.exchange not in ("rows", "sums"):
                raise invalid("plan", f'table {placement.table!r} exchanges {placement.exchange!r}: give "rows" or "sums"')
            owned = placement.owner is not None and 0 <= placement.owner < world
            if (placement.kind == "whole") != owned:
                text = f'table {placement.table!r} is placed {placement.kind!r} with owner {placement.owner}'
                raise invalid("plan", f'{text}: "whole" goes with a rank from 0 to {world - 1}, and nothing else does')
        for table in tables:
            self.of(table)


def plan_sharding(
    tables: Store | Mapping[str, tuple[int, int]],
    features: Sequence[Feature],
    world: int,
    *,
    bag_lengths: float | Mapping[str, float] = 1.0,
    replicate_bytes: int = 1 << 20,
) -> ShardingPlan:
    """Places the tables of features among ranks. Every rank that plans with the same arguments gets the same plan.

    Small tables are replicated. Of the others, those of which a bag is one row, and those that are more than one rank's share of the
    bytes that are looked up, are spread by rows; the rest is placed whole, the costliest first, each where the least is yet.

    Parameters
    ----------
    tables : Store or mapping of str to (int, int)
        A store, or by table how many rows it has and the bytes of a row.
    features : sequence of Feature
        What is looked up.
    world : int
        How many ranks there are.
    bag_lengths : float or mapping of str to float
        The mean number of ids of a bag, of all features or by the name of each.
    replicate_bytes : int
        Tables of at most so many bytes are replicated.

    Returns
    -------
    ShardingPlan
        A placement for each table that features name.

    Raises
    ------
    InvalidArgument
        `world` is less than 1, a feature's table is not among `tables`, or its mean length is missing, negative or infinite.
    WrongType
        An argument is of another type than is named above.
    Closed, Forked
        Of a store, as `Store.tables`.
    """
    world = arguments.number("world", world, 1)
    replicate_bytes = arguments.number("replicate_bytes", replicate_bytes)
    features = arguments.several("features", features, Feature, "a list of warprow.Feature")
    if isinstance(tables, Store):
        tables = {table.name: (table.rows, table.row_bytes) for table in tables.tables()}
    else:
        tables = _sizes(tables)
    lengths: dict[str, list[float]] = {}
    for feature in features:
        if feature.table not in tables:
            raise invalid("features", f"feature {feature.name!r} is over table {feature.table!r}, and there are {', '.join(tables)}")
        given = bag_lengths.get(feature.name) if isinstance(bag_lengths, Mapping) else bag_lengths
        wanted = "the mean number of ids of its bags"
        if given is None:
            raise invalid("bag_lengths", f"feature {feature.name!r} has None: give {wanted}")
        is_nan = isinstance(given, float) and math.isnan(given)
        length = given if is_nan else arguments.real("bag_lengths", given, wanted)
        if not 0 <= length < float("inf"):
            raise invalid("bag_lengths", f"feature {feature.name!r} has {length}: give {wanted}")
        lengths.setdefault(feature.table, []).append(length)
    cost = {table: sum(lengths[table]) * tables[table][1] for table in lengths}
    placed: dict[str, Placement] = {}
    for table in lengths:
        if world == 1 or tables[table][0] * tables[table][1] <= replicate_bytes:
            placed[table] = Placement(table, "replicated")
    left = sorted((table for table in lengths if table not in placed), key=lambda table: (-cost[table], table))
    share = sum(cost[table] for table in left) / world
    loads = [0.0] * world
    for table in left:
        if max(lengths[table]) <= 1 or cost[table] > share:
            placed[table] = Placement(table, "rows", exchange=_exchange_of(lengths[table], world))
        else:
            owner = loads.index(min(loads))
            loads[owner] += cost[table]
            placed[table] = Placement(table, "whole", owner)
    return ShardingPlan(world, tuple(placed[table] for table in lengths))


def _sizes(given: Any) -> dict[str, tuple[int, int]]:
    """Rows of each table, and bytes of a row."""
    wanted = "a store, or a mapping of tables to (rows, bytes of a row)"
    if not isinstance(given, Mapping):
        raise wrong_type("tables", f"{arguments.told(given)}: give {wanted}")
    sizes = {}
    for name, of_table in given.items():
        pair = arguments.several("tables", of_table, object, wanted)
        if len(pair) != 2:
            raise invalid("tables", f"{of_table!r} of table {name!r}: give {wanted}")
        sizes[arguments.text("tables", name)] = (arguments.number("tables", pair[0]), arguments.number("tables", pair[1]))
    return sizes


def _exchange_of(lengths: list[float], world: int) -> str:
    """What is exchanged of a table that is spread by rows: sums if they are clearly fewer than rows. Each rank sends one for each bag."""
    return "sums" if world * len(lengths) <= _WORTH_SUMS * sum(lengths) else "rows"


def shard_of(ids: Any, world: int, *, keyed: bool = False) -> torch.Tensor:
    """The rank that looks up each id of a table that is spread by rows.

    Of a table with ids, id modulo `world`: rank r has rows r, r + world, r + 2 * world ..., so `rows[r::world]` is what it loads if each
    rank has a store of its own. Of a table with keys, a hash of the key.

    Parameters
    ----------
    ids : Tensor of int64, or array with `__dlpack__`
        Ids, or keys.
    world : int
        How many ranks there are.
    keyed : bool
        Whether the table has keys.

    Returns
    -------
    Tensor of int64
        Of the shape of `ids`: ranks from 0 to world − 1.

    Raises
    ------
    WrongType
        `ids` is neither a tensor nor an array that torch takes by DLPack, or has elements that are no integers; `world` is no number, or
        `keyed` neither true nor false.
    InvalidArgument
        `world` is less than 1.
    """
    world, keyed = arguments.number("world", world, 1), arguments.flag("keyed", keyed)
    numbers = as_tensor("ids", ids)
    if numbers.dtype.is_floating_point or numbers.dtype.is_complex or numbers.dtype == torch.bool:
        raise wrong_type("ids", f"elements of {numbers.dtype}: give integers")
    if keyed:
        numbers = _mixed(numbers.to(torch.int64)) & ((1 << 63) - 1)
    return torch.remainder(numbers, world)


def _mixed(numbers: torch.Tensor) -> torch.Tensor:
    """The finalizer of MurmurHash3, by which keys that have a pattern are spread. Products wrap around."""
    for factor in (-49064778989728563, -4265267296055464877):
        # A shift of int64 brings copies of the sign in.
        numbers = (numbers ^ ((numbers >> 33) & ((1 << 31) - 1))) * factor
    return numbers ^ ((numbers >> 33) & ((1 << 31) - 1))
