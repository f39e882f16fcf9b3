"""What the environment says of the plug-in, and whether this SGLang is known."""

from __future__ import annotations

import json
import os
import sys

from .._engines.options import EngineOptions
from .._engines.release import Engine
from ..errors import invalid

#: The releases whose sources were read.
SGLANG = Engine("SGLang", ("0.5.23",))
VARIABLE = "WARPROW_SGLANG"


def version() -> str:
    """The version of the SGLang that runs."""
    return str(getattr(sys.modules.get("sglang"), "__version__", "without a version"))


def asked() -> EngineOptions | None:
    """The options that the environment gives; None: it does not ask for the plug-in."""
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        given = json.loads(text)
    except ValueError as error:
        raise invalid(VARIABLE, f'{text!r} is no JSON ({error}): give {{"path": "/models/NAME"}}') from error
    options = EngineOptions.read(VARIABLE, given)
    SGLANG.check_version(version(), allow_unknown=options.allow_unknown_version)
    return options


def options() -> EngineOptions:
    """The options, where they are asked for."""
    found = asked()
    if found is None:
        raise invalid(VARIABLE, "it was there when the plug-in was loaded, and is gone: leave it as it is")
    return found
