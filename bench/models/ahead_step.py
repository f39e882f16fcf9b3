"""Batches whose rows are fetched while those before them are in the dense layers."""

from __future__ import annotations

import collections
from abc import ABC, abstractmethod
from typing import Any

import torch

from .layout import IdLayout
from .pipeline import DenseLayers, Lot
from .schedule import Schedule
from .shapes import Shape
from .uploads import IdUploads
from .ways import WarprowModules


class AheadStep(ABC):
    """Batches of one size: `start` begins to fetch one's rows, `finish` puts the oldest that was started through the dense layers, and `wait`
    has its predictions in memory of the host.

    On a GPU none of the first two waits for it. Ids are copied by a stream of their own, rows are fetched by others, and dense layers have
    one: so no batch waits for what another one does elsewhere. Tensors and events are made once.

    Parameters
    ----------
    way : WarprowModules
        Where rows come from.
    layers : DenseLayers, optional
        Without them a step ends when the embeddings are on the device.
    ahead : int
        How many batches are fetched beside the one that is in the dense layers, from 1 on.
    embeddings : int
        Of how many batches embeddings are held at a time.
    """

    def __init__(
        self, way: WarprowModules, layers: DenseLayers | None, shape: Shape, batch: int, device: torch.device, ahead: int, embeddings: int
    ) -> None:
        self.way, self.layers, self.batch, self.ahead, self.device = way, layers, batch, ahead, device
        self._on_gpu = device.type == "cuda"
        self._uploads = IdUploads(way.layout, shape, batch, device, ahead + 2)
        self._embeddings = [torch.zeros(batch, shape.width, device=device) for _ in range(embeddings)]
        self._dense = torch.zeros(batch, shape.dense, device=device)
        self._found = torch.zeros(batch, device=device)
        #: Predictions of the latest batches. One more than are under way: the caller looks at that one.
        self._answers = [torch.zeros(batch, pin_memory=self._on_gpu) for _ in range(ahead + 3)]
        self._ended = [self._event() for _ in self._answers]
        #: Of each tensor of embeddings, when the dense layers have read it.
        self._read = [self._event() for _ in self._embeddings]
        self._started: collections.deque[tuple[Any, torch.Tensor, torch.Tensor]] = collections.deque()
        self._begun = self._finished = 0
        self._stream = torch.cuda.Stream() if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._graphs: list[torch.cuda.CUDAGraph] = []
        if self._on_gpu and layers is not None:
            for rows in self._embeddings:
                self._graphs.append(self._captured(layers, rows))

    def _event(self) -> torch.cuda.Event | None:
        return torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]

    def _captured(self, layers: DenseLayers, embeddings: torch.Tensor) -> torch.cuda.CUDAGraph:
        with torch.cuda.stream(self._stream):
            for _ in range(2):
                self._found.copy_(layers(embeddings, self._dense))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # All run on one stream, one after the other, so they can have one memory.
        pool = self._graphs[0].pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool, stream=self._stream):
            self._found.copy_(layers(embeddings, self._dense))
        torch.cuda.synchronize()
        return graph

    @abstractmethod
    def _begin(self, place: int, rows: torch.Tensor, held: int) -> Any:
        """Begins to fetch rows of the ids at a place; `rows` is for embeddings, and the number of that tensor `held`. Returns what `_end` takes."""

    @abstractmethod
    def _end(self, begun: Any, rows: torch.Tensor) -> None:
        """Has embeddings of what was begun be in `rows` before what torch's current stream is given next."""

    def start(self, lot: Lot, first: int, out: torch.Tensor | None = None) -> None:
        """Begins to fetch the rows of the samples from `first` on; their embeddings come into `out` if that is given."""
        ids, dense = lot.ids[first : first + self.batch], lot.dense[first : first + self.batch]
        held = self._begun % len(self._embeddings)
        self._begun += 1
        rows = self._embeddings[held] if out is None else out
        self._started.append((self._begin(self._uploads.upload(ids), rows, held), dense, rows))

    def finish(self) -> int:
        """Puts the oldest batch that was started through the dense layers. Returns its number, for `wait`."""
        if self._stream is None:
            self._answer()
        else:
            with torch.cuda.stream(self._stream):
                self._answer()
        self._finished += 1
        return self._finished - 1

    def _answer(self) -> None:
        begun, dense, rows = self._started.popleft()
        place, held = self._finished % len(self._answers), self._finished % len(self._embeddings)
        self._end(begun, rows)
        if self.layers is not None:
            self._dense.copy_(dense, non_blocking=True)
            if self._graphs:
                self._graphs[held].replay()
            else:
                self._found.copy_(self.layers(rows, self._dense))
            self._answers[place].copy_(self._found, non_blocking=True)
        for event in (self._read[held], self._ended[place]):
            if event is not None:
                event.record()

    def wait(self, number: int) -> torch.Tensor:
        """Predictions of a batch that was finished. The memory is used again by the batch `ahead + 3` later."""
        place = number % len(self._answers)
        ended = self._ended[place]
        if ended is not None:
            ended.synchronize()
        return self._answers[place]

    def close(self) -> None:
        """Forgets what was started, frees graphs, and gives the module back."""
        self._started.clear()
        if self._on_gpu:
            torch.cuda.synchronize()
        for graph in self._graphs:
            graph.reset()
        self.way.check()
        self.way.release()


class PrefetchSteps(AheadStep):
    """By `prefetch` and `lookup` of a module: rows wait in GPU memory until the dense layers want them.

    Parameters
    ----------
    at_once : int, optional
        The most batches that fetch at a time: each is prefetched `behind=` the one so many before it.
    """

    def __init__(
        self,
        way: WarprowModules,
        layers: DenseLayers | None,
        shape: Shape,
        batch: int,
        device: torch.device,
        ahead: int,
        at_once: int | None = None,
    ) -> None:
        own = way.fetching_ahead(IdLayout(shape, batch, device), batch, ahead)
        super().__init__(own, layers, shape, batch, device, ahead, 1)
        self._at_once = at_once
        self._fetching = torch.cuda.Stream() if self._on_gpu else None  # type: ignore[no-untyped-call]

    def _begin(self, place: int, rows: torch.Tensor, held: int) -> Any:
        before = None
        if self._at_once is not None and len(self._started) >= self._at_once:
            before = self._started[-self._at_once][0][0]
        if self._fetching is None:
            return self.way.fetch(self._uploads.ids(place), before), place
        with torch.cuda.stream(self._fetching):
            return self.way.fetch(self._uploads.ids(place), before), place

    def _end(self, begun: Any, rows: torch.Tensor) -> None:
        fetched, place = begun
        self.way.look_up(fetched, rows)
        self._uploads.used(place)


class StreamSteps(AheadStep):
    """By whole look-ups, each on one of several streams in turns: those of one stream follow each other, and while one finds its rows or writes
    its embeddings, another reads."""

    def __init__(
        self, way: WarprowModules, layers: DenseLayers | None, shape: Shape, batch: int, device: torch.device, ahead: int, streams: int
    ) -> None:
        own = way.looking_up_ahead(IdLayout(shape, batch, device), batch)
        super().__init__(own, layers, shape, batch, device, ahead, ahead + 1)
        self._streams = [torch.cuda.Stream() for _ in range(streams)] if self._on_gpu else []  # type: ignore[no-untyped-call]
        self._there = [self._event() for _ in self._embeddings]

    def _begin(self, place: int, rows: torch.Tensor, held: int) -> Any:
        if not self._streams:
            self.way.look_up_all(self._uploads.ids(place), rows)
            return held
        with torch.cuda.stream(self._streams[self._begun % len(self._streams)]):
            read, there = self._read[held], self._there[held]
            assert read is not None and there is not None
            torch.cuda.current_stream().wait_event(read)
            self.way.look_up_all(self._uploads.ids(place), rows)
            self._uploads.used(place)
            there.record()
        return held

    def _end(self, begun: Any, rows: torch.Tensor) -> None:
        there = self._there[begun]
        if there is not None:
            torch.cuda.current_stream().wait_event(there)


def ahead_step(
    way: WarprowModules, layers: DenseLayers | None, shape: Shape, batch: int, device: torch.device, ahead: int, schedule: Schedule
) -> AheadStep:
    """Steps by a schedule."""
    if schedule.by == "streams":
        assert schedule.at_once is not None
        return StreamSteps(way, layers, shape, batch, device, ahead, schedule.at_once)
    return PrefetchSteps(way, layers, shape, batch, device, ahead, schedule.at_once)
