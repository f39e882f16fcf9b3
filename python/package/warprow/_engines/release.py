"""Whether an engine is of a release that a plug-in knows: by its version, and by the signatures of all that is called or replaced."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import WarprowError


class UnknownRelease(WarprowError):
    """An engine of a release that the plug-in does not know."""

    remedy = "Install one of the releases that the message names, or a Warprow that knows this one."
    #: The engine's version.
    version: str = ""


@dataclass(frozen=True)
class Engine:
    """A serving engine, and its releases that were looked at."""

    name: str
    versions: Sequence[str]

    def refusal(self, version: str, what: str) -> UnknownRelease:
        """That a release is not known."""
        known = " and ".join([", ".join(self.versions[:-1]), self.versions[-1]] if len(self.versions) > 1 else self.versions)
        error = UnknownRelease(f"warprow knows {self.name} {known}, and this is {version}: {what}")
        error.version = version
        return error

    def check_version(self, version: str, *, allow_unknown: bool) -> None:
        """Refuses a version that nobody has looked at."""
        # What follows "+" says how it was built.
        if version.partition("+")[0] not in self.versions and not allow_unknown:
            raise self.refusal(version, "its tables may have changed")

    def check_signatures(self, version: str, module: Any, wanted: Mapping[str, Sequence[str]]) -> None:
        """Refuses a module in which something that the plug-in calls or replaces is missing, or takes other arguments."""
        for path, parameters in wanted.items():
            found: Any = module
            for part in path.split("."):
                found = getattr(found, part, None)
            if found is None:
                raise self.refusal(version, f"{module.__name__} has no {path}")
            names = list(inspect.signature(found).parameters)
            if names[: len(parameters)] != list(parameters):
                raise self.refusal(version, f"{module.__name__}.{path} takes {', '.join(names)}")
