"""Features of look-ups: one for each bag of a sample."""

from __future__ import annotations

import warprow

from ..shapes import Shape


def features_of(shape: Shape) -> list[warprow.Feature]:
    """Features in the order in which a sample has them, all added up; those over one table have its name and a number."""
    names = shape.names
    return [warprow.Feature(f"{names[table]}.{number}", names[table], pooling="sum") for number, (table, _) in enumerate(shape.features)]
