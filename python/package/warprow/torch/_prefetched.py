"""Batches whose rows are fetched ahead."""

from __future__ import annotations

import threading
from typing import Any

from ..errors import InvalidArgument, invalid, wrong_type
from ._lookup import Lookup


#: Held while a batch is taken: threads may look one up at once, and one of them gets it.
_TAKING = threading.Lock()


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
        held = self._held
        if held is None:
            raise _looked_up()
        shape: tuple[int, ...] = held[3]
        return shape

    def _take(self) -> tuple[Any, tuple[Any, ...]]:
        """What looks it up, and its tensors.

        Raises
        ------
        InvalidArgument
            It was looked up already, by another thread perhaps.
        """
        with _TAKING:
            native, held = self._native, self._held
            self._native = self._held = None
        if held is None:
            raise _looked_up()
        return native, held

    def __repr__(self) -> str:
        held = self._held
        return f"<warprow.torch.Prefetched{', looked up' if held is None else f' of {held[0].numel()} ids'}>"


def _looked_up() -> InvalidArgument:
    return invalid("prefetched", "it was looked up already: prefetch again")


def check_prefetched(prefetched: Any) -> None:
    """Whether it is what `prefetch` returned.

    Raises
    ------
    WrongType
        It is something else.
    """
    if not isinstance(prefetched, Prefetched):
        raise wrong_type("prefetched", f"a {type(prefetched).__name__}: give what prefetch() of this module returned")
