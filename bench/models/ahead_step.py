"""Batches whose rows are fetched while those before them are in the dense layers, by `prefetch` and `lookup` of Warprow's modules."""

from __future__ import annotations

import collections

import torch

from .layout import IdLayout
from .pipeline import DenseLayers, Lot
from .shapes import Shape
from .ways import WarprowModules


class AheadStep:
    """Batches of one size: `start` begins to fetch one's rows, `finish` puts the oldest that was started through the dense layers, and `wait`
    has its predictions in memory of the host.

    On a GPU none of the first two waits for it. Ids are copied and fetched by a stream of their own, so that a batch does not wait for the
    dense layers of the one before.

    Parameters
    ----------
    way : WarprowModules
        Where rows come from.
    layers : DenseLayers, optional
        Without them a step ends when the embeddings are on the device, and each batch has a tensor of its own for them.
    ahead : int
        How many batches are fetched beside the one that is in the dense layers, from 1 on.
    """

    def __init__(
        self, way: WarprowModules, layers: DenseLayers | None, shape: Shape, batch: int, device: torch.device, ahead: int
    ) -> None:
        self.layers, self.batch, self.ahead, self.device = layers, batch, ahead, device
        self.way = way.fetching_ahead(IdLayout(shape, batch, device), batch, ahead)
        self._on_gpu = device.type == "cuda"
        self._shape, self._width = (batch, shape.ids), (batch, shape.width)
        self._embeddings = torch.zeros(self._width, device=device)
        self._dense = torch.zeros(batch, shape.dense, device=device)
        self._found = torch.zeros(batch, device=device)
        #: Predictions of the latest batches. One more than are under way: the caller looks at that one.
        self._answers = [torch.zeros(batch, pin_memory=self._on_gpu) for _ in range(ahead + 3)]
        self._ended = [torch.cuda.Event() if self._on_gpu else None for _ in self._answers]  # type: ignore[no-untyped-call]
        self._started: collections.deque[tuple[object, torch.Tensor]] = collections.deque()
        self._finished = 0
        self._streams = [torch.cuda.Stream() for _ in range(2)] if self._on_gpu else []  # type: ignore[no-untyped-call]
        self._graph: torch.cuda.CUDAGraph | None = None
        if self._on_gpu and layers is not None:
            with torch.cuda.stream(self._streams[1]):
                for _ in range(2):
                    self._found.copy_(layers(self._embeddings, self._dense))
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._streams[1]):
                self._found.copy_(layers(self._embeddings, self._dense))
            torch.cuda.synchronize()

    def start(self, lot: Lot, first: int) -> None:
        """Begins to fetch the rows of the samples from `first` on."""
        ids, dense = lot.ids[first : first + self.batch], lot.dense[first : first + self.batch]
        if self._on_gpu:
            with torch.cuda.stream(self._streams[0]):
                self._started.append((self.way.fetch(ids.to(self.device, non_blocking=True)), dense))
        else:
            self._started.append((self.way.fetch(ids), dense))

    def finish(self, out: torch.Tensor | None = None) -> int:
        """Looks the oldest batch up that was started, into `out` if that is given. Returns its number, for `wait`."""
        fetched, dense = self._started.popleft()
        if self._on_gpu:
            with torch.cuda.stream(self._streams[1]):
                self._answer(fetched, dense, out)
        else:
            self._answer(fetched, dense, out)
        self._finished += 1
        return self._finished - 1

    def _answer(self, fetched: object, dense: torch.Tensor, out: torch.Tensor | None) -> None:
        place = self._finished % len(self._answers)
        self.way.look_up(fetched, self._embeddings if out is None else out)
        if self.layers is not None:
            self._dense.copy_(dense, non_blocking=True)
            if self._graph is None:
                self._found.copy_(self.layers(self._embeddings, self._dense))
            else:
                self._graph.replay()
            self._answers[place].copy_(self._found, non_blocking=True)
        ended = self._ended[place]
        if ended is not None:
            ended.record()

    def wait(self, number: int) -> torch.Tensor:
        """Predictions of a batch that was finished. The memory is used again by the batch `ahead + 3` later."""
        place = number % len(self._answers)
        ended = self._ended[place]
        if ended is not None:
            ended.synchronize()
        return self._answers[place]

    def close(self) -> None:
        """Forgets what was started, frees the graph, and gives the module back."""
        self._started.clear()
        if self._on_gpu:
            torch.cuda.synchronize()
        if self._graph is not None:
            self._graph.reset()
        self.way.check()
        self.way.release()
