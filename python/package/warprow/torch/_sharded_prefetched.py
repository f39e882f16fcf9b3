"""Batches of sharded collections whose rows are fetched ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import invalid
from ._prefetched import _TAKING, Prefetched, _looked_up


class ShardedPrefetched(Prefetched):
    """A batch whose ids ranks have exchanged, and whose rows each rank fetches ahead. All ranks look it up, or none."""

    def __init__(self, owner: object, finish: Callable[[], Any], ids: int, number: int = 0) -> None:
        # No module of one process has it.
        self._lookup = None  # type: ignore[assignment]
        self._native = self._held = self._scales = None
        self._counts = []
        self._owner, self._ids = owner, ids
        #: Which of the collection's it is, as ranks count them.
        self._number = number
        self._finish: Callable[[], Any] | None = finish

    def _take_from(self, owner: object) -> Callable[[], Any]:
        """What looks it up, once.

        Raises
        ------
        InvalidArgument
            Another module prefetched it, or it was looked up already.
        """
        if owner is not self._owner:
            raise invalid("prefetched", "another module prefetched it: look it up there")
        with _TAKING:
            finish, self._finish = self._finish, None
        if finish is None:
            raise _looked_up()
        return finish

    def __repr__(self) -> str:
        state = "looked up" if self._finish is None else f"{self._ids} ids of this rank"
        return f"<warprow.torch.Prefetched of a sharded collection, {state}>"
