"""A batch's way: samples in memory of the host, embeddings, dense layers, predictions in memory of the host."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .layout import IdLayout
from .shapes import Shape
from .ways import DeviceWay, HostWay, Way


class Lot:
    """Samples in memory of the host, pinned where there is a GPU."""

    def __init__(self, ids: torch.Tensor, dense: torch.Tensor, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.ids, self.dense = (it.pin_memory() if on_gpu else it for it in (ids, dense))

    def __len__(self) -> int:
        return len(self.ids)


class DenseLayers:
    """The dense layers of a model, compiled where that is asked for and possible.

    Parameters
    ----------
    model : Module
        As `dense.make` gives it.
    is_compiled : bool
        Whether `torch.compile` is to compile it.
    note : callable
        Told if compiling fails; the layers then run as they are, for every way.
    """

    def __init__(self, model: nn.Module, device: torch.device, is_compiled: bool, note: Callable[[str], None]) -> None:
        self.model = model.to(device)
        if is_compiled:
            # Of models before this one, which figures in one process have: torch compiles one function so many times, and then no more.
            torch.compiler.reset()
            # One for each size of batches, of which open-loop requests have more than torch compiles by default.
            torch._dynamo.config.recompile_limit = 64
        self._call: Callable[..., torch.Tensor] = torch.compile(self.model, dynamic=False) if is_compiled else self.model
        self.is_compiled, self._note = is_compiled, note

    def __call__(self, embeddings: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        if self.is_compiled:
            try:
                return self._call(embeddings, dense)
            except Exception as error:  # noqa: BLE001 (of whatever class: compilers of torch's raise many)
                self._note(f"torch.compile failed, so the dense layers run uncompiled ({type(error).__name__}: {str(error).splitlines()[0]})")
                self.is_compiled, self._call = False, self.model
        return self._call(embeddings, dense)


class Step:
    """Batches of one size by one way: `run` takes samples, and has their predictions in memory of the host when it returns.

    On a GPU the dense layers are captured in a CUDA graph, together with the look-up where a graph can have that.

    Parameters
    ----------
    way : Way
        Where embeddings come from.
    layers : DenseLayers, optional
        Without them a step ends when the embeddings are on the device.
    batch : int
        The most samples of a call; a call of fewer costs as much.
    beside : Step, optional
        One of the same way that is never run while this one is.
    """

    def __init__(
        self, way: Way, layers: DenseLayers | None, shape: Shape, batch: int, device: torch.device, beside: Step | None = None
    ) -> None:
        self.layers, self.batch, self.device = layers, batch, device
        on_gpu = device.type == "cuda"
        self._ids = torch.zeros(batch, shape.ids, dtype=torch.int64, device=device)
        self._dense = torch.zeros(batch, shape.dense, device=device)
        self._answers = torch.zeros(batch, pin_memory=on_gpu)
        self._embeddings = torch.zeros(batch, shape.width, device=device)
        #: The way, as this step's own client has it.
        self.way: Way = way.client(IdLayout(shape, batch, device), batch, None if beside is None else beside.way)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream() if on_gpu else None  # type: ignore[no-untyped-call]
        self._ended = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if on_gpu and (layers is not None or isinstance(self.way, DeviceWay)):
            self._capture()
        if on_gpu:
            torch.cuda.synchronize()

    def _on_device(self) -> None:
        """What a graph can have."""
        if isinstance(self.way, DeviceWay):
            self._embeddings = self.way.embed(self._ids)
        if self.layers is not None:
            self._answers.copy_(self.layers(self._embeddings, self._dense), non_blocking=True)

    def _capture(self) -> None:
        # On the stream that all steps share: a module of Warprow's has queues for each stream that calls it.
        for _ in range(2):
            self._on_device()
            torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=self._stream):
            self._on_device()
        torch.cuda.synchronize()

    def run(self, lot: Lot, first: int = 0, count: int | None = None) -> torch.Tensor:
        """Predictions of samples `first` and following of a lot; the memory is used again by the next call."""
        count = self.batch if count is None else count
        ids, dense = lot.ids[first : first + count], lot.dense[first : first + count]
        if self._stream is None:
            self._begin(ids, dense)
            self._on_device()
        else:
            with torch.cuda.stream(self._stream):
                self._begin(ids, dense)
                if self._graph is not None:
                    self._graph.replay()
                assert self._ended is not None
                self._ended.record()
            self._ended.synchronize()
        return self._answers[:count]

    def close(self) -> None:
        """Frees the graph, and gives back what later steps can use."""
        if self._graph is not None:
            self._graph.reset()
        self.way.release()

    def _begin(self, ids: torch.Tensor, dense: torch.Tensor) -> None:
        """What a graph does not have: inputs, and the work of ways in which the processor takes part."""
        count = len(ids)
        if isinstance(self.way, HostWay):
            # Behind the samples of a call with fewer come copies of the first.
            if count < self.batch:
                ids = torch.cat([ids, ids[:1].expand(self.batch - count, -1)])
            self.way.embed_into(ids, self._embeddings)
        else:
            # Behind them are the ids of an earlier batch.
            self._ids[:count].copy_(ids, non_blocking=True)
        if self.layers is not None:
            self._dense[:count].copy_(dense, non_blocking=True)

    @property
    def embeddings(self) -> torch.Tensor:
        """Of the latest batch, on the device."""
        return self._embeddings
