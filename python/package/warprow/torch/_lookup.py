"""Look-ups of one module: its plan, which grows with its batches, and the calls of the native module."""

from __future__ import annotations

import copy
import threading
import weakref
from typing import Any

import torch

from .. import _native, store as stores
from ..errors import Closed, RowsFailed, invalid, wrong_type
from ..executor import Executor
from ._spec import Spec, parse

#: Of ids and offsets, the names of their types.
_INTEGERS = {torch.int64: "i64", torch.int32: "i32"}
#: What a plan has room for at first.
_LEAST = 4096
#: Look-ups by the text of their spec, for operators in graphs.
_BY_TEXT: weakref.WeakValueDictionary[str, Lookup] = weakref.WeakValueDictionary()
#: Those that graphs found nobody else to hold.
_OPENED: dict[str, Lookup] = {}
_CAPTURING = getattr(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
_STREAM = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0)


def of_text(text: str) -> Lookup:
    """The look-up of a spec: of a module of this process, or one for which the store is opened."""
    found = _BY_TEXT.get(text)
    if found is None:
        found = _OPENED[text] = Lookup(parse(text))
    return found


class Lookup:
    """Looks rows up for a module. In another process it opens the store when it is first used."""

    def __init__(self, spec: Spec, executor: Executor | None = None) -> None:
        self.spec = spec
        self.text = spec.text()
        self.device = spec.torch_device
        self._width, self._dtype, self._raises = spec.width, spec.dtype, spec.on_failure == "raise"
        self._executor = executor
        self._plan: _native.HostPlan | _native.GpuPlan | None = None
        self._room = (0, 0)
        #: Plans of graphs that were captured before a larger plan took their place.
        self._kept: list[_native.GpuPlan] = []
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

    def __reduce__(self) -> Any:
        return of_text, (self.text,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Lookup:
        return Lookup(self.spec, self.executor)

    def __copy__(self) -> Lookup:
        return copy.deepcopy(self)

    def moved(self, device: torch.device, dtype: torch.dtype) -> Lookup:
        """On another device, or with output of another type."""
        executor = self.executor.on(device)
        return Lookup(self.spec.moved(executor.device, dtype), executor)

    def plan(self, ids: int, bags: int) -> Any:
        """A plan with room for so many ids and bags."""
        if ids <= self._room[0] and bags <= self._room[1] and self._plan is not None:
            return self._plan
        return self._grow(ids, bags)

    def _grow(self, ids: int, bags: int) -> Any:
        spec, executor = self.spec, self.executor
        most = spec.max_ids
        if most is not None and ids > most:
            raise invalid("input", f"{ids} ids, where the module was made with max_ids={most}: split the batch")
        if self.device.type == "cuda" and _CAPTURING():
            text = "a graph is being captured, and there is no plan yet for batches of this size: call the module once before"
            raise invalid("input", f"{text}, or make it with max_ids=")
        with self._lock:
            if ids <= self._room[0] and bags <= self._room[1] and self._plan is not None:
                return self._plan
            room = (
                most or max(self._room[0], _LEAST, 1 << max(ids - 1, 0).bit_length()),
                max(self._room[1], _LEAST, most or 0, 1 << max(bags - 1, 0).bit_length()),
            )
            before, self._plan, self._room = self._plan, None, (0, 0)
            if isinstance(before, _native.GpuPlan) and before.has_captures():
                self._kept.append(before)
            # The queue pairs of the old plan are free once nobody looks up with that plan.
            del before
            native, features = executor._native, [feature._args() for feature in spec.features]
            args = (room[1], room[0], spec.out, 1, spec.missing, spec.prefetch, executor.options.adopting)
            if isinstance(native, _native.Gpu):
                plan: _native.HostPlan | _native.GpuPlan = native.plan(features, args, self._raises)
            else:
                plan = native.plan(features, args)
            executor._plans.add(plan)
            self._plan, self._room = plan, room
            return plan

    def check_ids(self, argument: str, ids: torch.Tensor) -> None:
        """Whether a tensor has ids, on this device."""
        if ids.device != self.device:
            text = f"a tensor on {ids.device}, where the module is on {self.device}: move one with .to()"
            raise invalid(argument, text)
        if ids.dtype not in _INTEGERS:
            raise wrong_type(argument, f"elements of type {ids.dtype}: give torch.int64 or torch.int32")

    def _check(self, ids: torch.Tensor, offsets: torch.Tensor | None, weights: torch.Tensor | None) -> None:
        self.check_ids("input", ids)
        if offsets is not None:
            self.check_ids("offsets", offsets)
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

    def _output(self, shape: tuple[int, ...], out: torch.Tensor | None) -> torch.Tensor:
        if out is None:
            return torch.empty(shape, dtype=self._dtype, device=self.device)
        if out.dtype != self._dtype:
            raise wrong_type("out", f"elements of type {out.dtype}: give {self._dtype}")
        if out.device != self.device or tuple(out.shape) != shape or not out.is_contiguous():
            text = f"shape {tuple(out.shape)} on {out.device}: give a contiguous tensor of {shape} on {self.device}"
            raise invalid("out", text)
        return out

    def run(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
        out: torch.Tensor | None = None,
    ) -> Any:
        """Looks a batch up. Returns rows, and with `on_failure="mask"` a bool for each id."""
        self._check(ids, offsets, weights)
        ids, offsets, weights = _plain(ids), _plain(offsets), _plain(weights, torch.float32)
        shape = self.spec.shape(ids, offsets)
        rows = self._output(shape, out)
        masked = self.spec.on_failure != "raise"
        mask = torch.empty(ids.shape, dtype=torch.bool, device=self.device) if masked else None
        count = ids.numel()
        if count == 0:
            rows.zero_()
            return (rows, mask) if self.spec.on_failure == "mask" else rows
        bags = shape[0] if self.spec.pooled else count
        plan = self.plan(count, bags)
        batch = self._batch(ids, offsets, weights, bags)
        at = (rows.data_ptr(), rows.numel(), None if mask is None else mask.data_ptr())
        self._call(plan, "lookup", batch, at, (ids, offsets, rows, mask))
        return (rows, mask) if self.spec.on_failure == "mask" else rows

    def _call(self, plan: Any, name: str, batch: Any, at: Any, tensors: tuple[Any, ...]) -> None:
        ids, offsets, rows, mask = tensors
        if self.device.type == "cuda":
            stream = _STREAM(self.device.index)
            if name == "lookup":
                plan.lookup(stream, _CAPTURING(), batch, at)
            else:
                plan.lookup_prefetched(stream, batch, at)
            if self.spec.on_failure == "nan":
                rows_of_failed = self._failed(ids, mask)
                _fill(self.spec, rows, rows_of_failed, offsets)
            return
        try:
            getattr(plan, name)(batch, at)
        except RowsFailed as error:
            if self._raises:
                raise
            if self.spec.on_failure == "nan":
                failed = torch.zeros(ids.numel(), dtype=torch.bool)
                failed[list(error.positions)] = True
                _fill(self.spec, rows, failed.view(ids.shape), offsets)

    def _failed(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Which ids got no row because a drive failed: not those that are padding, or not in their table."""
        failed = ~mask
        padding = self.spec.features[0].padding
        if padding is not None:
            failed &= ids != padding
        if not self.spec.keyed:
            failed &= (ids >= 0) & (ids < self.spec.shapes[0][0])
        return failed

    def prefetch(
        self, ids: torch.Tensor, offsets: torch.Tensor | None = None, weights: torch.Tensor | None = None
    ) -> tuple[Any, Any, tuple[Any, ...]]:
        """Begins to fetch the rows of a batch: the plan, what it gave, and the tensors to be held."""
        if self.spec.prefetch == 0:
            raise invalid("input", "the module was made without prefetch=: say how many batches are held at once")
        self._check(ids, offsets, weights)
        ids, offsets, weights = _plain(ids), _plain(offsets), _plain(weights, torch.float32)
        shape = self.spec.shape(ids, offsets)
        held = (ids, offsets, weights, shape)
        count = ids.numel()
        if count == 0:
            return None, None, held
        bags = shape[0] if self.spec.pooled else count
        plan = self.plan(count, bags)
        batch = self._batch(ids, offsets, weights, bags)
        if self.device.type == "cuda":
            if _CAPTURING():
                raise invalid("input", "a graph is being captured, and a prefetch cannot be: capture the look-up alone")
            return plan, plan.prefetch(_STREAM(self.device.index), batch), held
        return plan, plan.prefetch(batch), held

    def run_prefetched(self, plan: Any, native: Any, held: tuple[Any, ...], out: torch.Tensor | None) -> Any:
        """Looks up what was prefetched."""
        ids, offsets, weights, shape = held
        rows = self._output(shape, out)
        masked = self.spec.on_failure != "raise"
        mask = torch.empty(ids.shape, dtype=torch.bool, device=self.device) if masked else None
        if plan is None:
            rows.zero_()
            return (rows, mask) if self.spec.on_failure == "mask" else rows
        if self.device.type == "cuda":
            # They are free to be used again once what this stream was given has ended.
            stream = torch.cuda.current_stream(self.device)
            for tensor in (ids, offsets, weights):
                if tensor is not None:
                    tensor.record_stream(stream)
        at = (rows.data_ptr(), rows.numel(), None if mask is None else mask.data_ptr())
        self._call(plan, "lookup_prefetched", native, at, (ids, offsets, rows, mask))
        return (rows, mask) if self.spec.on_failure == "mask" else rows

    def check(self, patience: float) -> None:
        """Waits until all look-ups have ended, and raises what befell them."""
        plan = self._plan
        for plan in (*self._kept, plan):
            if isinstance(plan, _native.GpuPlan):
                plan.check(patience)

    def recover(self) -> bool:
        """Starts queues anew that take no commands."""
        plans = [plan for plan in (*self._kept, self._plan) if isinstance(plan, _native.GpuPlan)]
        return any([plan.recover() for plan in plans])

    def forget_captures(self) -> int:
        """Takes tickets of captured look-ups back, whose graphs run no more."""
        plans = [plan for plan in (*self._kept, self._plan) if isinstance(plan, _native.GpuPlan)]
        forgotten = sum(plan.forget_captures() for plan in plans)
        self._kept.clear()
        return forgotten

    def report(self) -> dict[str, Any] | None:
        """Counts and seconds of the latest look-up that is known to have ended well."""
        return None if self._plan is None else self._plan.report()

    def check_open(self) -> None:
        """Raises `Closed` if the store is."""
        if self.executor.store.closed:
            raise Closed("the store is closed: open it again, and make the module anew")


def _plain(tensor: torch.Tensor | None, dtype: torch.dtype | None = None) -> Any:
    """A tensor whose elements follow each other, of a type."""
    if tensor is None:
        return None
    if dtype is not None and tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _fill(spec: Spec, rows: torch.Tensor, failed: torch.Tensor, offsets: torch.Tensor | None) -> None:
    """Makes rows NaN whose ids failed, or bags with such ids. Everything happens on the device, without a synchronisation."""
    if not spec.pooled:
        rows.masked_fill_(failed.unsqueeze(-1), float("nan"))
        return
    if offsets is None:
        bags = failed.view(rows.shape[0], -1).any(dim=1)
    else:
        before = torch.nn.functional.pad(failed.cumsum(0), (1, 0))
        first = offsets[:-1] if spec.has_last else offsets
        last = offsets[1:] if spec.has_last else torch.nn.functional.pad(offsets[1:], (0, 1), value=failed.numel())
        bags = before[last.long()] > before[first.long()]
    rows.masked_fill_(bags.unsqueeze(-1), float("nan"))
