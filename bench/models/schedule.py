"""How the look-ups of batches that are handed in ahead share a drive."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import DatasetMismatch


@dataclass(frozen=True)
class Schedule:
    """By which calls rows are fetched ahead, and how many batches fetch at a time.

    Parameters
    ----------
    by : str
        "prefetch": by `prefetch` and `lookup`; "streams": by whole look-ups on several streams.
    at_once : int, optional
        The most batches that fetch at a time; without, of `prefetch`, all that are under way.
    """

    by: str
    at_once: int | None = None

    @staticmethod
    def parse(text: str) -> Schedule:
        """`prefetch`, `prefetch:N` or `streams:N`."""
        by, _, number = text.partition(":")
        is_right = (by == "prefetch" and not number) or (by in ("prefetch", "streams") and number.isdigit() and int(number) > 0)
        if not is_right or text.endswith(":"):
            raise DatasetMismatch(f"{text}: give prefetch, or prefetch:N or streams:N with a number from 1 on")
        if by == "streams" and int(number) > 4:
            raise DatasetMismatch(f"{text}: a module has slots for four streams")
        return Schedule(by, int(number) if number else None)

    def __str__(self) -> str:
        return self.by if self.at_once is None else f"{self.by}:{self.at_once}"
