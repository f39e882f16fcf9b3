"""Models whose tables the plug-ins do not put in the place of an engine's own, by what their checkpoint says of itself."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import invalid

#: How the names of their classes begin, and what their tables are.
_OTHERS = {
    "Gemma3n": "embeddings of each layer (embed_tokens_per_layer)",
    "Gemma4": "embeddings of each layer (embed_tokens_per_layer)",
    "LongcatFlash": "n-gram tables of the input (ngram_embeddings)",
}


def check_model(argument: str, path: str) -> None:
    """Refuses a checkpoint whose model has tables that an engine would go on to load by itself.

    Parameters
    ----------
    argument : str
        Where the user gave the path, for the message.
    path : str
        The checkpoint. One without a `config.json` that can be read is not refused.

    Raises
    ------
    InvalidArgument
        Its model is of a class that the plug-ins do not serve.
    """
    try:
        told = json.loads((Path(path) / "config.json").read_text())
        classes = [str(name) for name in told["architectures"]]
    except (OSError, ValueError, KeyError, TypeError):
        return
    for name in classes:
        for begin, tables in _OTHERS.items():
            if name.startswith(begin):
                text = f"{path} is a {name}, and its {tables} are none that the plug-in reads: leave it out, and read rows by NgramTable"
                raise invalid(argument, text)
