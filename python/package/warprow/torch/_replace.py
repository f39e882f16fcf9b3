"""Putting a model's embeddings into a store."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from torch import nn

from .. import _options as arguments
from ..errors import TableExists, _make, invalid
from ..executor import ON_FAILURE, Executor, device_name
from ..store import Store
from ._embedding import Embedding
from ._embedding_bag import EmbeddingBag
from ._module import StoredModule

_Model = TypeVar("_Model", bound=nn.Module)


def replace(
    model: _Model,
    store: Store,
    *,
    min_rows: int = 0,
    select: str | Sequence[str] | None = None,
    device: object = None,
    on_failure: str = "raise",
    model_name: str = "model",
    **attach: Any,
) -> _Model:
    """Loads the weights of a model's embeddings into a store, and puts modules of this package in their places.

    The model is changed, and returned. Tables have the names of the modules. If the store has tables of all these names and shapes
    already, they are used as they are, and nothing is loaded: the model's own weights are not looked at.

    Parameters
    ----------
    model : nn.Module
        With `nn.Embedding` or `nn.EmbeddingBag` modules.
    store : Store
        The store.
    min_rows : int
        Embeddings with fewer rows stay where they are.
    select : str or sequence of str, optional
        Globs: only modules whose names match.
    device : str or torch.device, optional
        Where rows are looked up; by default where the weights are.
    on_failure : str
        As of `Embedding`.
    model_name : str
        What the model is called in the store.
    **attach
        Options of `Store.attach`: `hbm_bytes`, `dram_bytes` and others.

    Returns
    -------
    nn.Module
        The model; or, if the model is an embedding itself, the module in its place.

    Raises
    ------
    InvalidArgument
        The model has no embedding that is to be replaced, or one with `max_norm`, `sparse=True` or `mode="max"`; `store` is no store; an
        option is out of its range.
    WrongType
        `model` is no module, or an option is of another type than is named above, or none of `Store.attach`.
    TableExists
        The store has a table of a module's name with another shape, or tables of some of the names.
    NoSpace, ReadOnly, DriveFailed
        As `Store.load`.
    Busy, GpuError
        As `Store.attach`.
    Closed, Forked
        As `Store.tables`.
    """
    if not isinstance(store, Store):
        raise invalid("store", f"a {type(store).__name__}: give what warprow.format or warprow.open returns")
    arguments.instance("model", model, nn.Module, "a torch.nn.Module")
    min_rows, patterns = arguments.number("min_rows", min_rows), arguments.texts("select", select)
    arguments.choice("on_failure", on_failure, ON_FAILURE)
    arguments.text("model_name", model_name)
    if device is not None:
        device_name(device)
    options = store._attach_options(**attach)
    found = {
        name: module
        for name, module in model.named_modules(remove_duplicate=True)
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and module.num_embeddings >= min_rows
        and (patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns))
    }
    if not found:
        every = [name for name, module in model.named_modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
        there = f"its embeddings are {', '.join(every)}" if every else "it has no nn.Embedding and no nn.EmbeddingBag"
        raise invalid("model", f"nothing to replace: {there}")
    for name, module in found.items():
        _refuse(name, module)
    names = {name: name or "embedding" for name in found}
    weights = {names[name]: module.weight.detach() for name, module in found.items()}
    shapes = {table.name: (table.rows, table.dim) for table in store.tables()}
    if any(shapes.get(name) != tuple(weight.shape) for name, weight in weights.items()):
        _load(store, weights, model_name)
    executors: dict[str, Executor] = {}
    made: dict[int, StoredModule] = {}
    for name, module in found.items():
        where = str(device if device is not None else module.weight.device)
        if where not in executors:
            executors[where] = store._shared(_named(where), options)
        made[id(module)] = _module(module, executors[where], names[name], on_failure)
    if id(model) in made:
        return made[id(model)]  # type: ignore[return-value]
    for parent in list(model.modules()):
        for child, module in list(parent._modules.items()):
            if id(module) in made:
                setattr(parent, child, made[id(module)])
    return model


def _load(store: Store, weights: dict[str, Any], model_name: str) -> None:
    try:
        store.load(weights, model=model_name)
    except TableExists as error:
        text = f"table {error.table!r} is there already, and other tables of this model are not, or have another shape"
        remedy = "Give the model a store of its own, or load its weights before, by Store.load(..., replace=True) and the modules' names."
        raise _make("TableExists", text, {"table": error.table, "remedy": remedy}) from error


def _named(device: str) -> str:
    return device if device == "cpu" or ":" in device else f"{device}:0"


def _refuse(name: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
    named = f"module {name!r}" if name else "the module"
    if module.max_norm is not None:
        raise invalid("model", f"{named} has max_norm, which changes rows at each look-up: leave it out by select=")
    if module.sparse:
        raise invalid("model", f"{named} has sparse gradients, so it is trained: leave it out by select=")
    if isinstance(module, nn.EmbeddingBag) and module.mode == "max":
        raise invalid("model", f'{named} has mode="max", which is not there: leave it out by select=')


def _module(
    module: nn.Embedding | nn.EmbeddingBag, executor: Executor, table: str, on_failure: str
) -> StoredModule:
    common: dict[str, Any] = {
        "padding_idx": module.padding_idx,
        "on_failure": on_failure,
        "dtype": module.weight.dtype,
    }
    made: StoredModule
    if isinstance(module, nn.Embedding):
        made = Embedding(executor, table, **common)
    else:
        made = EmbeddingBag(
            executor, table, mode=module.mode, include_last_offset=module.include_last_offset, **common
        )
    return made.train(module.training)
