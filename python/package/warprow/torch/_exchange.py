"""What ranks send each other, through a process group of torch.distributed."""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ..errors import Busy, ExchangeFailed, RankFailed, RanksDisagree, invalid, wrong_type
from . import _processes

_T = TypeVar("_T")
#: How often a wait looks whether a rank has died, seconds.
_LOOK = 0.1
#: How long a step may take to end behind the end of another rank, seconds.
_LAST = 1.0
#: What ranks call, by the number by which they tell each other.
_CALLS = ("forward", "prefetch", "lookup", "fixed_sizes", "a step of fixed sizes")
#: One lock for each process group: gloo ends the process if exchanges of two threads meet.
_LOCKS: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()
_LOCKS_LOCK = threading.Lock()
_NUMBERS = itertools.count()


def _died(ranks: Sequence[int]) -> str:
    many = len(ranks) > 1
    return f"rank{'s' if many else ''} {', '.join(map(str, ranks))} of this machine {'have' if many else 'has'} died"


def rank_failed(rank: int, kind: str) -> RankFailed:
    """What all other ranks raise when one of them raises an error of the class `kind`."""
    error = RankFailed(f"rank {rank} of the group has failed with {kind}: what befell it is raised there")
    error.rank, error.kind = rank, kind
    return error


def calls_differ(rank: int, call: str, first: str) -> RanksDisagree:
    """What all ranks raise when a rank makes another call than rank 0."""
    error = RanksDisagree(f"rank {rank} calls {call}, where rank 0 calls {first}: make the same calls on all ranks, in one order")
    error.rank, error.what = rank, "call"
    return error


def tried(call: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a call returns, or what it raises. Other ranks are told of whatever it is: they would wait for this one."""
    try:
        return call(), None
    except Exception as error:
        return None, error


def without_positions(error: Exception | None) -> Exception | None:
    """An error of a look-up for all ranks: positions among their ids say nothing to anybody."""
    if getattr(error, "positions", None):
        error.positions = ()  # type: ignore[union-attr]
    return error


class Exchange:
    """A process group, and the device whose tensors it exchanges. After an exchange that failed, every later one fails at once."""

    def __init__(self, group: Any, device: torch.device) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise invalid("group", "there is no process group: call torch.distributed.init_process_group first")
        self._group = dist.group.WORLD if group is None else group
        try:
            self.rank: int = dist.get_rank(self._group)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise wrong_type("group", f"a {type(group).__name__}: give a process group of torch.distributed") from error
        if self.rank < 0:
            raise invalid("group", "this process is not in it: make the module on the ranks of the group alone")
        self.size: int = dist.get_world_size(self._group)
        self.device = device
        backend = str(dist.get_backend_config(self._group)) if hasattr(dist, "get_backend_config") else str(dist.get_backend(self._group))
        wanted = "nccl" if device.type == "cuda" else "gloo"
        if wanted not in backend:
            raise invalid("group", f'its backend is {backend}, and the executor is on {device}: make one with backend="{wanted}"')
        #: The processes of all ranks, once they have told.
        self.processes: list[_processes.Process] = []
        self._failed: tuple[str, list[int]] | None = None
        #: Which collection of this group it is, by a number that all ranks have once they have met.
        self._number = -1
        with _LOCKS_LOCK:
            #: Held for a whole call: one thread at a time exchanges with the ranks of a group.
            self.lock = _LOCKS.setdefault(self._group, threading.RLock())

    def meet(self) -> None:
        """Tells all ranks this process, and gives the collection its number. All ranks call it, once."""
        met = self.gather((_processes.own(), next(_NUMBERS)))
        self.processes = [process for process, _ in met]
        self._number = met[0][1]

    def call(self, which: str, number: int = 0) -> None:
        """Compares which call ranks make, before they exchange parts of sizes that only this call has. Calls of one kind over different things
        have different numbers. On a GPU nothing is compared: to read what came would wait for it.

        Raises
        ------
        RanksDisagree
            A rank makes another call. All ranks raise it, and the next call works.
        """
        if self.device.type != "cpu" or self.size == 1:
            return
        mine = [self._number, _CALLS.index(which), number]
        came = self.swap("which call they make", torch.tensor([mine] * self.size)).tolist()
        for rank, told in enumerate(came):
            if told == came[0]:
                continue
            names = [_CALLS[it[1]] if 0 <= it[1] < len(_CALLS) else "something else" for it in (told, came[0])]
            if told[0] != came[0][0]:
                names[0] += " of another collection"
            elif told[1] == came[0][1]:
                names[0] += f" of number {told[2]}"
                names[1] += f" of number {came[0][2]}"
            raise calls_differ(rank, *names)

    def _guarded(self, what: str, call: Callable[[], _T]) -> _T:
        if self._failed is None:
            try:
                return call()
            # What torch raises of a rank that is gone, or that does not answer within the group's time-out.
            except RuntimeError as error:
                gone = _processes.ended(self.processes, _processes.ENDING)
                who = _died(gone) if gone else "a rank has died, or made no call within the time-out of the process group"
                self._failed = (f"ranks could not exchange {what} ({str(error).splitlines()[0]}): {who}", gone)
                raise self._error() from error
        raise self._error()

    def _error(self) -> ExchangeFailed:
        assert self._failed is not None, "an exchange has failed"
        error = ExchangeFailed(self._failed[0])
        error.ranks = tuple(self._failed[1])
        return error

    def wait_for(self, has_ended: Callable[[], bool], patience: float) -> None:
        """Waits for what exchanges are part of, and that nobody else ends if a rank has died.

        Raises
        ------
        ExchangeFailed
            It has not ended, and a rank of this machine has.
        Busy
            It did not end within `patience` seconds.
        """
        began = looked = seen = time.monotonic()
        gone: list[int] = []
        while not has_ended():
            now = time.monotonic()
            if gone and now - seen > _LAST:
                self._failed = (f"a step did not end: {_died(gone)}", gone)
                raise self._error()
            if not gone and now - looked > _LOOK:
                # What a rank has sent before it ended may be all that is waited for.
                looked, seen, gone = now, now, _processes.ended(self.processes)
            if now - began > patience:
                raise Busy("a step did not end in time: another rank has not begun it, or its stream waits for something else")
            time.sleep(20e-6 if now - began < 0.01 else 1e-3)

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank."""
        values: list[Any] = [None] * self.size

        def call() -> None:
            if self.device.type == "cuda":
                with torch.cuda.device(self.device):
                    dist.all_gather_object(values, value, group=self._group)
            else:
                dist.all_gather_object(values, value, group=self._group)

        with self.lock:
            self._guarded("what they know of the store", call)
        return values

    def swap(self, what: str, tensor: torch.Tensor, sent: list[int] | None = None, received: list[int] | None = None) -> torch.Tensor:
        """Sends parts of a tensor to all ranks, and returns what all ranks sent here, in their order.

        Parameters
        ----------
        what : str
            How an error calls it.
        tensor : Tensor
            Contiguous; along its first dimension the parts follow each other, in the order of ranks.
        sent, received : list of int, optional
            The size of each part. Without, all are of one size.
        """
        return self.begin(what, tensor, sent, received).get()

    def begin(
        self,
        what: str,
        tensor: torch.Tensor,
        sent: list[int] | None = None,
        received: list[int] | None = None,
        into: torch.Tensor | None = None,
    ) -> Coming:
        """As `swap`, without waiting for it: what this rank does until `Coming.get` goes on beside the exchange, on a GPU too.

        `into` is filled instead of a new tensor.
        """
        rows = tensor.shape[0] if received is None else sum(received)
        found = tensor.new_empty((rows, *tensor.shape[1:])) if into is None else into

        def call() -> Any:
            return dist.all_to_all_single(found, tensor, received, sent, group=self._group, async_op=True)

        return Coming(self, what, tensor, found, self._guarded(what, call))


class Coming:
    """What ranks are sending. `get` is called once."""

    def __init__(self, exchange: Exchange, what: str, sent: torch.Tensor | None, found: torch.Tensor, work: Any) -> None:
        # What is sent stays where it is until all of it has left.
        self._exchange, self._what, self._sent, self._found, self._work = exchange, what, sent, found, work

    def get(self) -> torch.Tensor:
        """All that came; on a GPU what the current stream is given from now on finds it there."""
        self._exchange._guarded(self._what, self._work.wait)
        self._work = self._sent = None
        return self._found
