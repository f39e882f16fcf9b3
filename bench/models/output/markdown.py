"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """A table; numbers get three significant digits."""
    shown = [[_shown(cell) for cell in line] for line in lines]
    rows = [list(head), ["---"] * len(head), *shown]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _shown(cell: object) -> str:
    if cell is None:
        return "–"
    if not isinstance(cell, float):
        return str(cell)
    if abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.3g}"
