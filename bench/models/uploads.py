"""Ids of the batches that are under way, on the device and feature by feature, in memory that is used again and again."""

from __future__ import annotations

import torch

from .layout import IdLayout
from .shapes import Shape


class IdUploads:
    """Copies ids of batches to the device, on a stream of its own, so that no copy is behind a look-up.

    Parameters
    ----------
    layout : IdLayout
        The order of ids.
    places : int
        The most batches whose ids are held at a time.
    """

    def __init__(self, layout: IdLayout, shape: Shape, batch: int, device: torch.device, places: int) -> None:
        self._layout, self._places, self._begun = layout, places, 0
        self._on_gpu = device.type == "cuda"
        self._by_sample = [torch.zeros(batch * shape.ids, dtype=torch.int64, device=device) for _ in range(places)]
        self._by_feature = [torch.zeros(batch * shape.ids, dtype=torch.int64, device=device) for _ in range(places)]
        self._stream = torch.cuda.Stream() if self._on_gpu else None  # type: ignore[no-untyped-call]
        self._there = [self._event() for _ in range(places)]
        self._used = [self._event() for _ in range(places)]

    def _event(self) -> torch.cuda.Event | None:
        return torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]

    def upload(self, ids: torch.Tensor) -> int:
        """Begins to copy ids (batch, ids of a sample), which lie in pinned memory where there is a GPU. Returns their place."""
        place = self._begun % self._places
        self._begun += 1
        if self._stream is None:
            self._copy(ids, place)
            return place
        there, used = self._there[place], self._used[place]
        assert there is not None and used is not None
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(used)
            self._copy(ids, place)
            there.record()
        return place

    def _copy(self, ids: torch.Tensor, place: int) -> None:
        self._by_sample[place].copy_(ids.reshape(-1), non_blocking=True)
        torch.index_select(self._by_sample[place], 0, self._layout.by_feature, out=self._by_feature[place])

    def ids(self, place: int) -> torch.Tensor:
        """Ids feature by feature, (batch * ids of a sample,); on a GPU, torch's current stream waits for them."""
        there = self._there[place]
        if there is not None:
            torch.cuda.current_stream().wait_event(there)
        return self._by_feature[place]

    def used(self, place: int) -> None:
        """Nobody reads the ids of a place behind what torch's current stream was given: later ones can have it."""
        used = self._used[place]
        if used is not None:
            used.record()
