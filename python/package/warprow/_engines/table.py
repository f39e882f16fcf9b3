"""A table of a checkpoint in the place of an engine's own, and what is done for it between two steps."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from typing import Any

import torch
import torch.nn.functional as F

from .. import store as stores
from ..errors import Busy, RowsFailed, RunsFailed, WarprowError, invalid
from ..torch import NgramTable
from .options import EngineOptions

logger = logging.getLogger("warprow")

#: All tables of this process.
_TABLES: weakref.WeakSet[EngineTable] = weakref.WeakSet()
#: Look-ups of a stream that may be under way, each of which may have failed, and one more.
_TRIES = 9
#: Seconds between two questions why rows fail, and between two tries of a drive that was given up.
_ASKED_EVERY, _RETRIED_EVERY = 1.0, 30.0


def model_device() -> torch.device:
    """The device on which the engine makes its model at this moment, as its own tensors lie there."""
    device = torch.get_default_device()
    # Weights may be made on no device first.
    kind = "cuda" if device.type == "meta" else device.type
    return torch.device("cuda", torch.accelerator.current_device_index()) if kind == "cuda" else torch.device(kind)


class EngineTable:
    """Reads rows where a checkpoint has them, for a layer of a model that an engine serves.

    A row that cannot be read is zeros. The engine goes on: what befell a step is told between that step and a later one.

    Parameters
    ----------
    options : EngineOptions
        What the user says.
    name : str
        What the table is called in messages.
    pattern : str
        The pattern of its tensor or shards.
    codes : bool
        Whether rows are codes without their scales, which the engine multiplies by itself.
    rows : int
        How many rows the model says that the whole table has.
    owned : (int, int)
        The range of rows that this rank owns. All other ids get zeros.
    dim : int
        Elements of a row.
    heads : int
        Ids of a token that this rank looks up.
    dtype : torch.dtype
        Type of the rows that the engine takes.
    max_tokens : int, optional
        The most tokens of a step.
    scales : Tensor of uint8, optional
        E8M0 scales of the rows that this rank owns, by which codes are multiplied. The engine fills it.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        name: str,
        pattern: str,
        codes: bool,
        rows: int,
        owned: tuple[int, int],
        dim: int,
        heads: int,
        dtype: torch.dtype = torch.bfloat16,
        max_tokens: int | None = None,
        scales: torch.Tensor | None = None,
    ) -> None:
        first, last = owned
        if not 0 <= first < last <= rows:
            raise invalid("owned", f"rows {first} to {last} of {rows}: this rank would have none")
        device = model_device()
        most = max_tokens if options.max_tokens is None else options.max_tokens
        address = options.address(name, pattern, codes=codes, rows=None if owned == (0, rows) else owned)
        #: What the table is called.
        self.name = name
        #: Ids of a token.
        self.heads = heads
        #: What befell steps, the latest 64.
        self.failures: deque[WarprowError] = deque(maxlen=64)
        #: How many rows could not be read, as far as that is known, in how many reports.
        self.failed_rows, self.failed_steps = 0, 0
        #: Of the latest step outside of graphs, or captured: true where a row could not be read. None without the option `mask`.
        self.failed: torch.Tensor | None = None
        self._dtype = dtype
        self._first, self._asked, self._retried = first, 0.0, 0.0
        self._told: dict[str, Any] | None = None
        self._lock = threading.Lock()
        self._store = stores.open(address, read_only=True, timeout=options.timeout)
        try:
            found = self._store.table(name)
            if found.dim != dim:
                raise invalid("dim", f"the model's rows have {dim} elements, and those of {address} have {found.dim}")
            # Of look-ups on the host none would give rows where one of them failed.
            self._masked = options.mask or device.type == "cpu"
            self._table = NgramTable(
                self._store.attach(device, **options.attach),
                name,
                heads=heads,
                rows=last - first,
                on_failure="mask" if self._masked else "raise",
                mask="failed",
                dtype=dtype,
                max_tokens=most,
                scales=scales,
            )
        except BaseException:
            self._store.close()
            raise
        _TABLES.add(self)
        logger.info("warprow reads %s rows of %d elements by %s, on %s", last - first, dim, address, device)

    @property
    def address(self) -> str:
        """The address of the rows."""
        return self._store.addresses[0]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the rows."""
        return self._dtype

    def read(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        """Fills `out`, `[tokens, heads, dim]`, with the rows of ids `[tokens, heads]` of the whole table.

        Ids that this rank does not own, such as -1, get zeros, and so do heads past the last column of `ids`.
        """
        if ids.dim() != 2 or ids.shape[1] > self.heads:
            raise invalid("ids", f"shape {tuple(ids.shape)}: give one of (tokens, {self.heads})")
        if ids.shape[1] < self.heads:
            ids = F.pad(ids, (0, self.heads - ids.shape[1]), value=-1)
        if self._first:
            ids = ids - self._first
        rows = out.view(ids.shape[0], -1)
        # A call tells first of an earlier look-up that failed, and has then launched nothing.
        for _ in range(_TRIES):
            try:
                found = self._table(ids, out=rows)
            except (RowsFailed, RunsFailed) as error:
                self._note(error)
            else:
                self.failed = found[1] if self._masked else None
                return
        raise self.failures[-1]

    def between_steps(self) -> None:
        """Tells what befell steps that have ended, and brings drives back that failed in a replay. It waits for no look-up.

        Raises
        ------
        RowsFailed
            A file was changed since it was attached: no row of it is right any more, so that the engine has to stop.
        """
        if self._masked:
            self._look_at_report()
        for _ in range(_TRIES):
            try:
                self._table.check(0.0)
            except Busy:
                break
            except (RowsFailed, RunsFailed) as error:
                self._note(error)
            else:
                break
        if self._masked:
            self._look_at_report()
        if self._table.recover():
            logger.warning("warprow started queues of %s anew, which had failed in a replay", self.address)
        if self.failed_steps:
            self._ask_why()

    def report(self) -> dict[str, Any] | None:
        """Counts and seconds of the latest look-up that is known to have ended."""
        return self._table.report()

    def _look_at_report(self) -> None:
        """Notes rows that failed where the look-up raises nothing."""
        report = self._table.report()
        if report is None or report == self._told:
            return
        self._told = report
        if report["failed"]:
            error = RowsFailed(f"{report['failed']} ids of {self.name} got no row: the drive {self.address} failed, and the mask has them")
            error.count, error.drive = report["failed"], self.address
            self._note(error)

    def _note(self, error: RowsFailed | RunsFailed) -> None:
        with self._lock:
            self.failures.append(error)
            self.failed_steps += error.count if isinstance(error, RunsFailed) else 1
            self.failed_rows += error.count if isinstance(error, RowsFailed) else 0
            steps = self.failed_steps
        # A drive that stays away would fill the log.
        if steps & (steps - 1) == 0:
            logger.error("warprow: rows of %s are zeros, in %d steps so far: %s", self.name, steps, error)

    def _ask_why(self) -> None:
        """Tries a drive again that was given up, and asks the host, which names a file that was changed."""
        now = time.monotonic()
        if now - self._asked < _ASKED_EVERY:
            return
        self._asked = now
        if now - self._retried >= _RETRIED_EVERY and any(drive.failure for drive in self._store.drives()):
            self._retried = now
            self._store.retry_drives()
        try:
            self._store.lookup(self.name, [0])
        except RowsFailed as error:
            # Of a drive that fails this is its address, and the engine goes on: the drive may come back.
            if str(error.drive).startswith("/"):
                raise
        except WarprowError as error:
            logger.warning("warprow: the host cannot read %s either: %s", self.address, error)

    def close(self) -> None:
        """Closes the store of the rows."""
        _TABLES.discard(self)
        self._store.close()


def tables() -> list[EngineTable]:
    """The tables of this process that stand in the place of an engine's own."""
    return sorted(_TABLES, key=lambda it: it.name)


def between_steps() -> None:
    """What is done between two steps, of all tables."""
    for table in list(_TABLES):
        table.between_steps()
