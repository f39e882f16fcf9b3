"""Batches whose rows are fetched ahead."""

from __future__ import annotations

from typing import Any

from ..errors import invalid, wrong_type
from ._lookup import Lookup


class Prefetched:
    """A batch whose rows are fetched ahead of its look-up. `prefetch` of a module makes one, and `lookup` takes it, once.

    It holds the batch's tensors until then. Dropped, it is forgotten.
    """

    def __init__(self, lookup: Lookup, native: Any, held: tuple[Any, ...]) -> None:
        self._lookup = lookup
        self._native = native
        self._held: tuple[Any, ...] | None = held
        #: By what its rows are multiplied, if anything.
        self._scales: Any = None
        #: Ids of each feature of a collection that has masks.
        self._counts: list[int] = []

    def _shape(self) -> tuple[int, ...]:
        """The shape of its output.

        Raises
        ------
        InvalidArgument
            It was looked up already.
        """
        if self._held is None:
            raise invalid("prefetched", "it was looked up already: prefetch again")
        shape: tuple[int, ...] = self._held[3]
        return shape

    def _take(self) -> tuple[Any, tuple[Any, ...]]:
        assert self._held is not None, "its shape was asked for"
        taken = (self._native, self._held)
        self._native = self._held = None
        return taken

    def __repr__(self) -> str:
        if self._held is None:
            return "<warprow.torch.Prefetched, looked up>"
        return f"<warprow.torch.Prefetched of {self._held[0].numel()} ids>"


def check_prefetched(prefetched: Any) -> None:
    """Whether it is what `prefetch` returned.

    Raises
    ------
    WrongType
        It is something else.
    """
    if not isinstance(prefetched, Prefetched):
        raise wrong_type("prefetched", f"a {type(prefetched).__name__}: give what prefetch() of this module returned")
