"""Look-ups of one module: its plan, which grows with its batches, and the calls of the native module."""

from __future__ import annotations

import copy
import threading
import weakref
from typing import Any

import torch

from .. import _native, store as stores
from ..errors import Closed, invalid, wrong_type
from ..executor import Executor
from ._spec import Spec, parse
from ._tensors import check_apart, check_output, check_tensor, plain, refuse_trace, written

#: Of ids and offsets, the names of their types.
_INTEGERS = {torch.int64: "i64", torch.int32: "i32"}
#: Look-ups by the text of their spec, for operators in graphs.
_BY_TEXT: weakref.WeakValueDictionary[str, Lookup] = weakref.WeakValueDictionary()
#: Those that graphs found nobody else to hold.
_OPENED: dict[str, Lookup] = {}
_STREAM = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)


def of_text(text: str) -> Lookup:
    """The look-up of a spec: of a module of this process, or one for which the store is opened."""
    found = _BY_TEXT.get(text)
    if found is None or found.is_left_behind():
        found = _OPENED[text] = Lookup(parse(text))
    return found


def of_pickle(text: str) -> Lookup:
    """The look-up of a module that was pickled: one that this process has, or one that opens the store when it is first used.

    None that was closed: a module that comes out of a pickle begins anew.
    """
    found = _BY_TEXT.get(text)
    return Lookup(parse(text)) if found is None or found.is_closed() else found


def native_of_text(text: str) -> _native.ModuleLookup:
    """What the native half looks a spec up with. Operators call this for a text that no module of this process has."""
    return of_text(text).native


def check_ids(argument: str, ids: torch.Tensor, device: torch.device) -> None:
    """Whether a tensor has ids, on this device."""
    if ids.device != device:
        text = f"a tensor on {ids.device}, where the module is on {device}: move one with .to()"
        raise invalid(argument, text)
    if ids.dtype not in _INTEGERS:
        raise wrong_type(argument, f"elements of type {ids.dtype}: give torch.int64 or torch.int32")


class Lookup:
    """Looks rows up for a module. In another process it opens the store when it is first used."""

    def __init__(self, spec: Spec, executor: Executor | None = None, held: torch.Tensor | None = None) -> None:
        self.spec = spec
        #: The tensor with the scales of the spec, if it has some.
        self._held = held
        self.text = spec.text()
        self.device = spec.torch_device
        self._dtype = spec.dtype
        #: Whether look-ups have a mask.
        self.masked = spec.on_failure == "mask"
        self._on_gpu = self.device.type == "cuda"
        self._executor = executor
        self._native: _native.ModuleLookup | None = None
        #: By which the operator of eager calls knows it; 0 before the first call.
        self.number = 0
        self._lock = threading.Lock()
        _BY_TEXT[self.text] = self

    @property
    def executor(self) -> Executor:
        """The executor, attached when it is first needed."""
        with self._lock:
            if self._executor is None:
                store = stores._OPEN.get(self.spec.drives)
                if store is None or store.closed:
                    store = stores.open(self.spec.drives, read_only=True)
                self._executor = store._shared(self.spec.device, self.spec.options)
            return self._executor

    def is_left_behind(self) -> bool:
        """Whether its store was closed, and another one is open on the same drives."""
        if not self.is_closed():
            return False
        store = stores._OPEN.get(self.spec.drives)
        return store is not None and not store.closed

    def is_closed(self) -> bool:
        """Whether its store or its executor was closed."""
        with self._lock:
            executor = self._executor
        return executor is not None and executor._is_closed()

    def __reduce__(self) -> Any:
        return of_pickle, (self.text,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Lookup:
        return Lookup(self.spec, self.executor)

    def __copy__(self) -> Lookup:
        return copy.deepcopy(self)

    def moved(self, device: torch.device, dtype: torch.dtype) -> Lookup:
        """On another device, or with output of another type."""
        executor = self.executor.on(device)
        return Lookup(self.spec.moved(executor.device, dtype), executor)

    @property
    def native(self) -> _native.ModuleLookup:
        """What looks up: its plan grows with the batches that it meets."""
        if self._native is None:
            executor = self.executor
            self._check_shapes(executor)
            with self._lock:
                if self._native is None:
                    native = executor._native.module(self.text)
                    executor._plans.add(native)
                    self.number, self._native = native.number, native
        return self._native

    def _check_shapes(self, executor: Executor) -> None:
        for feature, (rows, dim) in zip(self.spec.features, self.spec.shapes, strict=True):
            found = executor._tables.get(feature.table)
            if found is not None and found[1:] != (rows, dim):
                text = f"made for {rows} rows of {dim} elements of table {feature.table!r}, which has {found[1]} of {found[2]} now"
                raise invalid("model", f"{text}: make the module, or compile the model, anew")

    def check_batch(self, ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None) -> None:
        """Whether types, shapes and devices of a batch are right."""
        check_ids("input", ids, self.device)
        if offsets is not None:
            check_ids("offsets", offsets, self.device)
            if offsets.dim() != 1:
                raise invalid("offsets", f"{offsets.dim()} dimensions: give one")
        if weights is not None:
            if weights.shape != ids.shape:
                text = f"shape {tuple(weights.shape)}: give that of input, {tuple(ids.shape)}"
                raise invalid("per_sample_weights", text)
            if weights.device != self.device:
                raise invalid("per_sample_weights", f"a tensor on {weights.device}, where the module is on {self.device}")
            if not weights.is_floating_point():
                raise wrong_type("per_sample_weights", f"elements of type {weights.dtype}: give torch.float32")

    def _batch(
        self, ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None, bags: int
    ) -> tuple[Any, ...]:
        there = None if offsets is None else (offsets.data_ptr(), offsets.numel(), _INTEGERS[offsets.dtype])
        at = None if weights is None else weights.data_ptr()
        return ((ids.data_ptr(), ids.numel(), _INTEGERS[ids.dtype]), there, at, bags)

    def output(self, shape: tuple[int, ...], out: torch.Tensor | None) -> torch.Tensor:
        """A new tensor for rows; or the caller's, if it fits."""
        if out is None:
            return torch.empty(shape, dtype=self._dtype, device=self.device)
        check_tensor("out", out)
        if out.dtype != self._dtype:
            raise wrong_type("out", f"elements of type {out.dtype}: give {self._dtype}")
        if out.device != self.device or tuple(out.shape) != shape or not out.is_contiguous():
            text = f"shape {tuple(out.shape)} on {out.device}: give a contiguous tensor of {shape} on {self.device}"
            raise invalid("out", text)
        check_output(out)
        return out

    def run(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> Any:
        """Looks a batch up. Returns rows, and with `on_failure="mask"` a bool for each id."""
        refuse_trace()
        self.check_batch(ids, offsets, weights)
        ids, offsets = plain("input", ids), plain("offsets", offsets)
        weights = plain("per_sample_weights", weights, torch.float32)
        shape = self.spec.shape(ids, offsets)
        rows = self.output(shape, out)
        if out is not None:
            check_apart(out, input=ids, offsets=offsets, per_sample_weights=weights)
            written(out)
        mask = torch.empty(ids.shape, dtype=torch.bool, device=self.device) if self.masked else None
        count = ids.numel()
        if count == 0:
            rows.zero_()
            return rows if mask is None else (rows, mask)
        batch = self._batch(ids, offsets, weights, shape[0] if self.spec.pooled else count)
        at = (rows.data_ptr(), rows.numel(), None if mask is None else mask.data_ptr())
        self.native.lookup(self._stream(), batch, at)
        return rows if mask is None else (rows, mask)

    def run_lists(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """Rows of ids of several features that are not pooled, feature after feature, as wide as the widest.

        `offsets` says where the ids of each feature begin, and where those of the last end. Both are of int64, on the device.
        """
        refuse_trace()
        rows = torch.empty((ids.shape[0], self.spec.width), dtype=self._dtype, device=self.device)
        if ids.shape[0] > 0:
            batch = self._batch(ids, offsets, None, 1)
            self.native.lookup(self._stream(), batch, (rows.data_ptr(), rows.numel(), None))
        return rows

    def prefetch_lists(self, ids: torch.Tensor, offsets: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
        """As `prefetch`, of what `run_lists` looks up."""
        refuse_trace()
        held = (ids, offsets, None, (ids.shape[0], self.spec.width))
        if ids.shape[0] == 0:
            return None, held
        return self.native.prefetch(self._stream(), self._batch(ids, offsets, None, 1), None), held

    def _stream(self) -> int:
        return _STREAM(self.device.index) if self._on_gpu else 0

    def prefetch(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        behind: Any = None,
    ) -> tuple[Any, tuple[Any, ...]]:
        """Begins to fetch the rows of a batch, behind those of another one: what holds them, and the tensors to be held."""
        refuse_trace()
        if self.spec.prefetch == 0:
            raise invalid("input", "the module was made without prefetch=: say how many batches are held at once")
        self.check_batch(ids, offsets, weights)
        ids, offsets = plain("input", ids), plain("offsets", offsets)
        weights = plain("per_sample_weights", weights, torch.float32)
        shape = self.spec.shape(ids, offsets)
        held = (ids, offsets, weights, shape)
        count = ids.numel()
        if count == 0:
            return None, held
        batch = self._batch(ids, offsets, weights, shape[0] if self.spec.pooled else count)
        return self.native.prefetch(self._stream(), batch, behind), held

    def run_prefetched(self, native: Any, held: tuple[Any, ...], rows: torch.Tensor) -> Any:
        """Looks up what was prefetched, into an output that `output` has made or checked."""
        refuse_trace()
        ids, offsets, weights, _ = held
        mask = torch.empty(ids.shape, dtype=torch.bool, device=self.device) if self.masked else None
        if native is None:
            rows.zero_()
            return rows if mask is None else (rows, mask)
        at = (rows.data_ptr(), rows.numel(), None if mask is None else mask.data_ptr())
        if self._on_gpu:
            # They are free to be used again once what this stream was given has ended.
            stream = torch.cuda.current_stream(self.device)
            for tensor in (ids, offsets, weights):
                if tensor is not None:
                    tensor.record_stream(stream)
        native.lookup(self._stream(), at)
        return rows if mask is None else (rows, mask)

    def check(self, patience: float) -> None:
        """Waits until all look-ups have ended, and raises what befell them."""
        if self._native is not None:
            self._native.check(patience)

    def recover(self) -> bool:
        """Starts queues anew that take no commands."""
        return self._native is not None and self._native.recover()

    def report(self) -> dict[str, Any] | None:
        """Counts and seconds of the latest look-up that is known to have ended well."""
        return None if self._native is None else self._native.report()

    def check_open(self) -> None:
        """Raises `Closed` if the store is."""
        if self.executor.store.closed:
            raise Closed("the store is closed: open it again, and make the module anew")
