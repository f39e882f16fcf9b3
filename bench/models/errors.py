"""What goes wrong here, by name. Each error says what it is about and what to do."""

from __future__ import annotations


class ModelsError(Exception):
    """Any of the errors of this package."""


class Unavailable(ModelsError):
    """A way to get embeddings that this machine cannot run. The text says what is missing."""


class DatasetMismatch(ModelsError):
    """Ids or features that do not fit the model."""


class WrongPrediction(ModelsError):
    """A prediction, or a row, that is not what the model with all rows in memory gives."""


class Overloaded(ModelsError):
    """A request that was refused because as many are waiting as may wait."""
