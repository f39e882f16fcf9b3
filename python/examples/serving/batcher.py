"""Dynamic batching: requests that wait at the same time are answered by one call."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import warprow

from .requests import Refused

_Sample = TypeVar("_Sample")
_Answer = TypeVar("_Answer")


@dataclass(eq=False)
class _Waiting(Generic[_Sample, _Answer]):
    """A request in the queue."""

    sample: _Sample
    arrived: float
    future: asyncio.Future[_Answer]


class Batcher(Generic[_Sample, _Answer]):
    """Gathers requests and has a thread answer them, a batch at a time.

    A batch begins when `max_batch` requests wait, or when the first of them has waited for `max_delay`. While a batch is under way the
    next one gathers. The queue has at most `queue_limit` requests: one more is refused at once, so that no request waits behind more
    than `ceil(queue_limit / max_batch)` batches and the one that is under way.

    Parameters
    ----------
    answer : callable
        Takes a list of samples, and returns an answer or a `Refused` for each. It runs in a thread of the batcher's own.
    max_batch : int
        The most samples of a call, from 1 on.
    max_delay : float
        The longest time that a request waits for others, seconds.
    queue_limit : int
        The most requests that wait, from 1 on.
    observe : callable, optional
        Called for each batch with how many samples it had and the seconds that it took.
    """

    def __init__(
        self,
        answer: Callable[[list[_Sample]], Sequence[_Answer | Refused]],
        *,
        max_batch: int,
        max_delay: float,
        queue_limit: int,
        observe: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        if max_batch < 1 or queue_limit < 1 or not 0 <= max_delay < math.inf:
            raise ValueError("give max_batch and queue_limit from 1 on, and a max_delay from 0 on")
        self._answer, self._observe = answer, observe
        self.max_batch, self.max_delay, self.queue_limit = max_batch, max_delay, queue_limit
        self._queue: deque[_Waiting[_Sample, _Answer]] = deque()
        self._closing = False
        #: What the task of batches waits for, and how many requests in the queue end the wait.
        self._wake: asyncio.Future[None] | None = None
        self._wake_at = 1
        self._batch_seconds = 0.0
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")

    def __len__(self) -> int:
        return len(self._queue)

    def start(self) -> None:
        """Begins to answer, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._serve())

    async def close(self) -> None:
        """Refuses what comes from now on, answers what waits, and ends."""
        self._closing = True
        self._rouse()
        if self._task is not None:
            await self._task
        self._thread.shutdown()

    async def submit(self, sample: _Sample, patience: float) -> _Answer:
        """The answer to a sample.

        Raises `Refused`: of kind "busy" if the queue is full, "deadline" if there is no answer within `patience` seconds, "closing", or
        what `answer` refuses with.
        """
        if self._closing:
            raise Refused("closing", "the server ends: ask another", retry_after=1)
        if len(self._queue) >= self.queue_limit:
            raise Refused("busy", f"{self.queue_limit} requests wait already", retry_after=self._seconds_of_queue())
        loop = asyncio.get_running_loop()
        waiting: _Waiting[_Sample, _Answer] = _Waiting(sample, loop.time(), loop.create_future())
        self._queue.append(waiting)
        if len(self._queue) >= self._wake_at:
            self._rouse()
        late = loop.call_later(patience, _expire, waiting.future, patience)
        try:
            return await waiting.future
        finally:
            late.cancel()

    def _seconds_of_queue(self) -> int:
        """About how long a full queue takes, as Retry-After says it: whole seconds, from 1 on."""
        batches = -(-self.queue_limit // self.max_batch)
        return max(1, math.ceil(batches * self._batch_seconds))

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _wait_for(self, count: int, seconds: float | None) -> None:
        """Waits until so many requests are in the queue, the time has passed, or the batcher closes."""
        loop = asyncio.get_running_loop()
        self._wake, self._wake_at = loop.create_future(), count
        late = None if seconds is None else loop.call_later(seconds, self._rouse)
        await self._wake
        if late is not None:
            late.cancel()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if not self._queue:
                if self._closing:
                    return
                await self._wait_for(1, None)
                continue
            left = self._queue[0].arrived + self.max_delay - loop.time()
            if len(self._queue) < self.max_batch and left > 0 and not self._closing:
                await self._wait_for(self.max_batch, left)
            batch = [self._queue.popleft() for _ in range(min(self.max_batch, len(self._queue)))]
            # Nobody waits any more for a request that has met its deadline.
            batch = [waiting for waiting in batch if not waiting.future.done()]
            if batch:
                await self._run(batch)

    async def _run(self, batch: list[_Waiting[_Sample, _Answer]]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        samples = [waiting.sample for waiting in batch]
        try:
            answers = await loop.run_in_executor(self._thread, self._answer, samples)
        except Exception as error:  # A batch that fails leaves the server alive, and its requests refused.
            again = 1 if isinstance(error, warprow.WarprowError) else None
            text = f"the look-up failed: {type(error).__name__}: {error}"
            answers = [Refused("store_failed", text, retry_after=again) for _ in batch]
        seconds = loop.time() - began
        self._batch_seconds += (seconds - self._batch_seconds) / 8
        self._observe(len(batch), seconds)
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.future.done():
                continue
            if isinstance(answer, Refused):
                waiting.future.set_exception(answer)
            else:
                waiting.future.set_result(answer)


def _expire(future: asyncio.Future[Any], patience: float) -> None:
    if not future.done():
        future.set_exception(Refused("deadline", f"no answer within {1000 * patience:.0f} ms"))
