"""What a way to get embeddings has to do."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from types import TracebackType

import torch
from typing_extensions import Self

from ..layout import IdLayout


class Way(ABC):
    """Gets the embeddings of batches: a context manager, which gives drives and memory back at its end."""

    #: What tables call it.
    name: str

    def client(self, layout: IdLayout, batch: int, beside: Self | None = None) -> Self:
        """This way for one who asks for batches of one size, one after the other, with buffers of its own.

        Beside another client, of which none is asked while this one is, it may share what one batch at a time needs.
        """
        made = copy.copy(self if beside is None else beside)
        made.prepare(layout, batch)
        return made

    def prepare(self, layout: IdLayout, batch: int) -> None:
        """Makes buffers. It is called once for each client, of a copy of the way."""
        self.layout, self.batch = layout, batch

    def release(self) -> None:
        """Gives back what a client holds that later clients can have. It is called once for each client, which asks no more then."""

    def check(self) -> None:
        """Raises what befell look-ups that could not say so themselves."""

    def close(self) -> None:
        """Gives back what the way holds. It is called of the way itself, when no client uses it any more."""

    def counts(self) -> dict[str, int]:
        """What the latest batch did, where that is known."""
        return {}

    def __enter__(self) -> Way:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class DeviceWay(Way):
    """A way whose ids are taken from the device's memory, and that a CUDA graph can have, together with the dense layers."""

    @abstractmethod
    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Embeddings (batch, tables * dim) of ids (batch, ids of a sample), both on the device, on torch's current stream."""


class HostWay(Way):
    """A way in which the processor takes part in each batch."""

    @abstractmethod
    def embed_into(self, ids: torch.Tensor, out: torch.Tensor) -> None:
        """Has embeddings of ids (batch, ids of a sample), in memory of the host, lie in `out` (batch, tables * dim), on the device, before
        what torch's current stream is given next."""
