"""What all modules have in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .. import _native
from .. import _options as arguments
from ..errors import WarprowError, invalid, wrong_type
from ..executor import Executor, Feature, Options
from ..store import Store
from . import _op
from ._lookup import Lookup
from ._options import LookupOptions
from ._prefetched import Prefetched, check_prefetched
from ._spec import Spec, out_name
from ._tensors import check_memory, has_own_dispatch, written

# An eager call of few ids takes as long on the processor as on a GPU: what it asks for is found once.
_MODES = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
_TENSOR, _IS_COMPILING, _IS_TRACING = torch.Tensor, torch.compiler.is_compiling, torch._C._is_tracing


def is_eager(ids: torch.Tensor) -> bool:
    """Whether a call with these ids looks rows up at once, and is not traced."""
    return type(ids) is _TENSOR and not _IS_COMPILING() and not _IS_TRACING() and _MODES() == 0


def _are_eager(ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None) -> bool:
    """Whether all tensors of a batch are what they seem, so that their memory can be read past torch's operators."""
    if has_own_dispatch(offsets) or has_own_dispatch(weights):
        return False
    return not any(it is not None and torch._is_functional_tensor(it) for it in (ids, offsets, weights))


#: Options by which modules over the same rows give different numbers.
_DECIDING = ("pooling", "weighted", "padding", "missing")


def _agree(name: str, theirs: Any, mine: Any, remedy: str) -> None:
    if theirs != mine:
        raise invalid("state_dict", f"the checkpoint has {name} {theirs}, the module {mine}: {remedy}")


def executor_of(given: Executor | Store) -> Executor:
    """An executor, or that of a store's modules on the CPU."""
    if isinstance(given, Store):
        return given._shared("cpu", Options())
    if isinstance(given, Executor):
        return given
    raise invalid("executor", f"a {type(given).__name__}: give a store, or what its attach() returns")


def _table_of(executor: Executor, table: str) -> tuple[int, int, int]:
    """Generation, rows and elements of a table, as an executor finds it."""
    found = executor._tables.get(table)
    if found is None:
        executor.store.table(table)
        raise invalid("executor", f"attached before table {table!r} was there: attach another, or have it adopt() the tables of now")
    return found


class StoredModule(nn.Module):
    """A module whose rows lie in a store. It is for inference: rows have no gradient."""

    _lookup: Lookup

    def __init__(
        self,
        executor: Executor | Store,
        features: Sequence[Feature],
        options: LookupOptions,
        *,
        has_last: bool,
    ) -> None:
        super().__init__()
        executor = executor_of(executor)
        tables = [_table_of(executor, feature.table) for feature in features]
        spec = Spec(
            drives=executor.store.addresses,
            device=executor.device,
            options=executor.options,
            features=tuple(features),
            shapes=tuple((rows, dim) for _, rows, dim in tables),
            generation=max(generation for generation, _, _ in tables),
            missing=options.missing,
            on_failure=options.on_failure,
            mask=options.mask,
            out=out_name(options.dtype),
            max_ids=options.max_ids,
            prefetch=options.prefetch,
            has_last=has_last,
        )
        self._lookup = Lookup(spec, executor)

    @property
    def device(self) -> torch.device:
        """The device on which the module looks up."""
        return self._lookup.device

    @property
    def executor(self) -> Executor:
        """The executor that looks rows up."""
        return self._lookup.executor

    def _run(
        self,
        lookup: Lookup,
        ids: torch.Tensor,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
        out: torch.Tensor | None,
    ) -> Any:
        if weights is not None and weights.requires_grad and torch.is_grad_enabled():
            text = "they require a gradient, and this module is for inference: detach() them, or train with torch's own module"
            raise invalid("per_sample_weights", text)
        # A tensor that stands for another, or a mode that looks at operators, gets an operator.
        if is_eager(ids):
            operator = _op.numbered
            if operator is not None and out is None and not lookup.masked:
                try:
                    return operator(ids, offsets, weights, lookup.number or lookup.native.number)
                except RuntimeError as error:
                    _native.raise_operator_error(str(error))
                    # Torch itself refuses tensors of a device for which the operator has no code.
                    lookup.check_batch(ids, offsets, weights)
                    # So does the operator of tensors whose storage was emptied, in a text alone.
                    check_memory(ids, offsets, weights)
                    raise
            if _are_eager(ids, offsets, weights):
                return lookup.run(ids, offsets, weights, out)
        if out is not None:
            raise invalid("out", "a graph is being traced, and an operator in it has an output of its own: leave out= away")
        if lookup.spec.on_failure == "mask":
            return _op.lookup_masked(ids, offsets, weights, lookup.text)
        return _op.lookup(ids, offsets, weights, lookup.text)

    def lookup(self, prefetched: Prefetched, *, out: torch.Tensor | None = None) -> Any:
        """What `forward` would have given for a batch when it was prefetched.

        Parameters
        ----------
        prefetched : Prefetched
            What `prefetch` of this module returned.
        out : Tensor, optional
            Filled instead of a new tensor, as by `forward`.

        Returns
        -------
        Tensor
            As `forward` returns it; with `on_failure="mask"` two.

        Raises
        ------
        InvalidArgument
            Another module made `prefetched`, or it was looked up already; one half is in a capture and the other is not; `out` has another shape
            or device.
        WrongType
            `prefetched` is nothing that a `prefetch` returned; `out` is no tensor of the module's dtype.
        RowsFailed
            Rows could not be read, and `on_failure` is "raise": on the CPU of this batch, on CUDA of a call before.
        GpuError
            As `forward`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        check_prefetched(prefetched)
        lookup = prefetched._lookup
        if lookup not in self._lookups():
            raise invalid("prefetched", "another module prefetched it, or this one before it moved: look it up there")
        # An output that does not fit leaves the batch held.
        rows = lookup.output(prefetched._shape(), out)
        if out is not None:
            written(out)
        return lookup.run_prefetched(*prefetched._take(), rows)

    def _lookups(self) -> list[Lookup]:
        return [self._lookup]

    def _begin(
        self,
        lookup: Lookup,
        ids: torch.Tensor,
        offsets: torch.Tensor | None,
        weights: torch.Tensor | None,
        behind: Prefetched | None = None,
    ) -> Prefetched:
        if behind is not None and not isinstance(behind, Prefetched):
            raise wrong_type("behind", f"a {type(behind).__name__}: give what prefetch() of a module returned")
        # What was looked up already is there, and of an empty batch there is nothing to wait for.
        return Prefetched(lookup, *lookup.prefetch(ids, offsets, weights, None if behind is None else behind._native))

    def check(self, patience: float = 60.0) -> None:
        """Waits until the module's look-ups have ended, and raises what befell them; and what befell runs of graphs, of those that have
        ended by now and that no call before told of.

        On the CPU each call has raised by itself. `patience` is in seconds.

        Parameters
        ----------
        patience : float
            Seconds to wait, at most.

        Raises
        ------
        MissingIds
            On CUDA: a table lacks ids, and `missing` is "error".
        InvalidArgument
            On CUDA: offsets descended, or did not begin with 0.
        RowsFailed
            On CUDA: rows could not be read, and `on_failure` is "raise".
        RunsFailed
            Runs of a graph failed before its latest, which has overwritten what was wrong with them; `count` says how many.
        Busy
            A look-up did not end within `patience`; or two graphs of the module ran at once, and one of them did nothing.
        GpuError, ContextLost
            CUDA failed.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        arguments.seconds("patience", patience)
        for lookup in self._lookups():
            lookup.check(patience)

    def recover(self) -> bool:
        """Starts queues anew that take no commands, after a replay of a graph has met a drive that failed.

        A serving engine calls it between two steps, behind `check` and before it replays the next graph. Returns whether there was
        anything to do. If not, it costs about a microsecond and synchronises with nothing, also while a graph is captured.

        Raises
        ------
        DriveFailed, GpuError
            A queue could not be started anew.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        return any([lookup.recover() for lookup in self._lookups()])

    def report(self) -> dict[str, Any] | None:
        """Counts and seconds of the latest look-up that is known to have ended well.

        On a GPU the seconds are by its clock, and also given by stage: until the different rows were known ("prepare_seconds"), until
        they were in GPU memory ("fetch_seconds"), and until the look-up had ended ("expand_seconds").

        Raises
        ------
        Forked
            This process was forked from the one that opened the store.
        """
        return self._lookup.report()

    def get_extra_state(self) -> dict[str, Any]:
        """Where the rows are, and how they are looked up: addresses, tables, shapes, generation, options. Never the rows."""
        spec: dict[str, Any] = json.loads(self._lookup.text)
        features = spec.pop("features")
        state = {name: spec.pop(name) for name in ("drives", "shapes", "generation")}
        by_feature = {name: [feature[name] for feature in features] for name in ("name", "pooling", "weighted", "padding")}
        options = {"executor": spec.pop("options"), **spec, **by_feature, **self._own_options()}
        return {**state, "tables": [feature["table"] for feature in features], "options": options}

    def _own_options(self) -> dict[str, Any]:
        """Options of the class alone, which a checkpoint carries and the module that loads it must share."""
        return {}

    def set_extra_state(self, state: Any) -> None:
        """Compares what a checkpoint says of the rows with what the module has: tables, shapes, and options that decide what it computes.

        Device, dtype, policy of failures and sizes stay the module's own. A checkpoint without options, as earlier versions made them, is taken.

        Parameters
        ----------
        state : dict
            What `get_extra_state` of a module made.

        Raises
        ------
        InvalidArgument
            Something that decides the numbers differs: the message names it; or `state` is nothing that a module made.
        """
        own = self.get_extra_state()
        options = state.get("options", {}) if isinstance(state, dict) else None
        if not isinstance(options, dict) or "tables" not in state or "shapes" not in state:
            text = "its _extra_state is none that a module over a store has made: take that of warprow.torch's own state_dict()"
            raise invalid("state_dict", text)
        for name in ("tables", "shapes"):
            _agree(name, state[name], own[name], "make the module over those tables")
        for name in (*_DECIDING, *self._own_options()):
            mine = own["options"][name]
            _agree(name, options.get(name, mine), mine, "make the module with the checkpoint's")

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        errors = args[-1]
        if prefix + "weight" in state_dict:
            errors.append(
                f"{prefix}weight: the rows of this module lie in a store: load them there (Store.load), and leave the entry out"
            )
            return
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        before = torch.empty(0, dtype=self._lookup.spec.dtype, device=self.device)
        after = fn(before)
        if after.device.type == "meta":
            raise invalid("device", "a module over a store has no rows that could be on the meta device")
        device = after.device
        if (device, after.dtype) != (before.device, before.dtype):
            self._move(device, after.dtype)
        return super()._apply(fn, recurse)

    def _move(self, device: torch.device, dtype: torch.dtype) -> None:
        self._lookup = self._lookup.moved(device, dtype)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Refused: the rows lie in a store.

        Parameters
        ----------
        requires_grad : bool
            Whether gradients are wanted.

        Raises
        ------
        WarprowError
            They are.
        """
        if requires_grad:
            raise WarprowError(
                "the rows of this module lie in a store and have no gradient: train with torch's own module, or by passes (docs/passes.md)"
            )
        return self

    def _replicate_for_data_parallel(self) -> Any:
        raise WarprowError(
            "DataParallel copies parameters, and the rows of this module are none: give each process a module of its own, by DistributedDataParallel"
        )

    def __getattr__(self, name: str) -> Any:
        if name == "weight":
            raise AttributeError(
                "the rows of this module lie in a store: Store.export gives them, Store.update changes them, and nothing here has a gradient"
            )
        return super().__getattr__(name)
