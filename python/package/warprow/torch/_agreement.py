"""What ranks have to agree on before they look anything up for each other."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .. import _arrays
from ..errors import RanksDisagree
from ..executor import Executor, Feature
from ..records import Table
from ._shard_plan import Placement, ShardingPlan

#: The form of what ranks send each other: of another version of the package it may be another.
PROTOCOL = 3
#: Rows of each table that are compared, spread over it.
_COMPARED = 8


@dataclass(frozen=True)
class Shape:
    """A table as all ranks together have it."""

    rows: int
    dim: int
    keyed: bool


def tables_of(executor: Executor, features: Sequence[Feature], stores: str) -> dict[str, dict[str, Any]]:
    """What a rank tells of the tables that it has. With stores of their own, ranks need not have all of them."""
    names = list(dict.fromkeys(feature.table for feature in features))
    there = {table.name: table for table in executor.store.tables()}
    if stores == "shared":
        for name in names:
            executor.store.table(name)
    found = {name: there[name] for name in names if name in there}
    samples = _samples(executor, [table for table in found.values() if not table.keyed and table.rows > 0])
    return {
        name: {
            "dim": table.dim,
            "dtype": table.dtype,
            "keyed": table.keyed,
            "rows": table.rows,
            "generation": table.generation,
            "content": samples.get(name, (None, True))[0],
            "uniform": samples.get(name, (None, True))[1],
        }
        for name, table in found.items()
    }


def _samples(executor: Executor, tables: Sequence[Table]) -> dict[str, tuple[int, bool]]:
    """A checksum over some rows of each table, so that stores of one shape with other rows are told apart; and whether these rows are all equal."""
    if not tables:
        return {}
    np = _arrays.numpy()
    ids = [np.linspace(0, table.rows - 1, _COMPARED).astype(np.int64) for table in tables]
    with executor.store.attach("cpu") as reader:
        plan = reader.plan(
            [Feature(table.name, table.name) for table in tables], max_batch=_COMPARED, max_ids=_COMPARED * len(tables)
        )
        rows = plan.lookup(np.concatenate(ids), batch=_COMPARED).reshape(len(tables), _COMPARED, -1)
    return {
        table.name: (zlib.crc32(of_table.tobytes()), bool((of_table.view(np.uint8) == of_table[:1].view(np.uint8)).all()))
        for table, found in zip(tables, rows, strict=True)
        for of_table in [np.ascontiguousarray(found[:, : table.dim])]
    }


def describe(
    executor: Executor, features: Sequence[Feature], plan: ShardingPlan, stores: str, options: dict[str, Any]
) -> dict[str, Any]:
    """What a rank tells all others."""
    return {
        "options": {**options, "stores": stores, "protocol": PROTOCOL},
        "features": [asdict(feature) for feature in features],
        "plan": [asdict(placement) for placement in plan.placements],
        "tables": tables_of(executor, features, stores),
    }


def agreed(told: Sequence[dict[str, Any]], plan: ShardingPlan, stores: str) -> dict[str, Shape]:
    """The tables as all ranks have them. Raises `RanksDisagree` with the first rank that says something else than it should.

    Every rank calls it with the same list, and so every rank raises the same.
    """
    for rank, given in enumerate(told):
        if "error" in given:
            raise _disagree(rank, "error", f"rank {rank} could not take part: {given['error']}")
    for what in ("options", "features", "plan"):
        for rank, given in enumerate(told):
            if given[what] != told[0][what]:
                text = f"rank {rank} has {what} {_first_difference(given[what], told[0][what])}"
                raise _disagree(rank, what, text)
    shapes = {}
    for placement in plan.placements:
        if placement.table not in {feature["table"] for feature in told[0]["features"]}:
            continue
        of_ranks = [given["tables"].get(placement.table) for given in told]
        shapes[placement.table] = _shared(placement.table, of_ranks) if stores == "shared" else _own(placement, of_ranks)
    return shapes


def _shared(table: str, of_ranks: Sequence[dict[str, Any] | None]) -> Shape:
    """Of a table that every rank has whole."""
    return _same(table, of_ranks, ("dim", "dtype", "keyed", "rows", "generation", "content"))


def _own(placement: Placement, of_ranks: Sequence[dict[str, Any] | None]) -> Shape:
    """Of a table of which ranks have their own rows."""
    table, world = placement.table, len(of_ranks)
    if placement.kind == "replicated":
        return _same(table, of_ranks, ("dim", "dtype", "keyed", "rows", "content"))
    if placement.kind == "whole":
        assert placement.owner is not None, "the plan was checked"
        owner = of_ranks[placement.owner]
        if owner is None:
            raise _disagree(placement.owner, "tables", f"rank {placement.owner} lacks table {table!r}, which the plan places there")
        return Shape(owner["rows"], owner["dim"], owner["keyed"])
    shape = _same(table, of_ranks, ("dim", "dtype", "keyed"))
    counts = [given["rows"] for given in of_ranks if given is not None]
    total = sum(counts)
    if not shape.keyed:
        for rank, count in enumerate(counts):
            wanted = (total - rank + world - 1) // world
            if count != wanted:
                text = f"rank {rank} has {count} rows of table {table!r}, where {total} rows among {world} ranks make {wanted}"
                raise _disagree(rank, "rows", f"{text}: load rows[{rank}::{world}] there")
        _refuse_equal_parts(table, of_ranks)
    return Shape(total, shape.dim, shape.keyed)


def _refuse_equal_parts(table: str, of_ranks: Sequence[dict[str, Any] | None]) -> None:
    """Finds ranks that have loaded the part of another, or all of them the whole table. Parts whose rows are all equal tell nothing."""
    seen: dict[tuple[int, int], int] = {}
    for rank, given in enumerate(of_ranks):
        if given is None or given["uniform"]:
            continue
        other = seen.setdefault((given["rows"], given["content"]), rank)
        if other != rank:
            text = f"rank {rank} has the rows of table {table!r} that rank {other} has"
            raise _disagree(rank, "content", f"{text}: load rows[{rank}::{len(of_ranks)}] there, rows[{other}::{len(of_ranks)}] on rank {other}")


def _same(table: str, of_ranks: Sequence[dict[str, Any] | None], fields: Sequence[str]) -> Shape:
    first = of_ranks[0]
    for rank, given in enumerate(of_ranks):
        if given is None:
            raise _disagree(rank, "tables", f"rank {rank} lacks table {table!r}: load it there, or place it otherwise")
        assert first is not None, "rank 0 was looked at first"
        for name in fields:
            if given[name] == first[name]:
                continue
            if name == "content":
                text = f"rank {rank} has other rows in table {table!r} than rank 0: have both open the same files, or equal copies"
            else:
                text = f"rank {rank} has {name} {given[name]} of table {table!r}, rank 0 has {first[name]}: open the same store"
            raise _disagree(rank, name, text)
    assert first is not None, "there is a rank"
    return Shape(first["rows"], first["dim"], first["keyed"])


def _first_difference(given: Any, wanted: Any) -> str:
    """Two values, or the first parts of them that differ."""
    if isinstance(given, dict) and isinstance(wanted, dict):
        for name in given:
            if given[name] != wanted.get(name):
                return f"{name}={given[name]!r}, rank 0 has {wanted.get(name)!r}: give the same on all ranks"
    if isinstance(given, list) and isinstance(wanted, list) and len(given) == len(wanted):
        for one, other in zip(given, wanted, strict=True):
            if one != other:
                return f"{one}, rank 0 has {other}: give the same on all ranks"
    return f"{given}, rank 0 has {wanted}: give the same on all ranks"


def _disagree(rank: int, what: str, text: str) -> RanksDisagree:
    error = RanksDisagree(text)
    error.rank, error.what = rank, what
    return error
