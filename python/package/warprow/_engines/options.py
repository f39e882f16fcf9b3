"""What a user says of the tables: options of both plug-ins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ..errors import invalid, wrong_type
from .models import check_model


@dataclass(frozen=True)
class EngineOptions:
    """Where the rows are, and how they are read.

    Parameters
    ----------
    path : str
        The folder of the checkpoint, or its `*.safetensors.index.json`, or one file.
    tensor : str
        The pattern of a layer's tensor or shards, in place of the usual one; `{layer}` stands for the number of the layer.
    drive : str
        More options of the address, such as "resident=1,workers=4" (docs/formats.md#attached).
    attach : mapping
        Options of `Store.attach`, such as `dram_bytes`.
    timeout : float
        The longest wait for a read, seconds.
    scales_on_gpu : bool
        Whether scales of blocks lie in GPU memory, where the engine loads them, and are not read with the rows: of Engram alone.
    mask : bool
        Whether each table has a mask of the rows that could not be read. Failures are then told by their number alone.
    max_tokens : int
        The most tokens of a step, where the engine does not say.
    allow_unknown_version : bool
        Whether a version that nobody has looked at is tried all the same. Signatures are compared in any case.
    """

    path: str = ""
    tensor: str = ""
    drive: str = ""
    attach: Mapping[str, Any] = field(default_factory=dict)
    timeout: float = 5.0
    scales_on_gpu: bool = False
    mask: bool = False
    max_tokens: int | None = None
    allow_unknown_version: bool = False

    @classmethod
    def read(cls, argument: str, given: Any, default_path: str = "") -> EngineOptions:
        """The options of a mapping; `argument` is where the user gave it."""
        if given is True:
            given = {}
        if not isinstance(given, Mapping):
            raise wrong_type(argument, f'a {type(given).__name__}: give an object, such as {{"path": "/models/NAME"}}')
        kinds = {it.name: type(getattr(cls(), it.name)) for it in fields(cls)} | {"max_tokens": int, "attach": Mapping}
        for name, value in given.items():
            if name not in kinds:
                raise invalid(argument, f"there is no option {name!r}: give some of {', '.join(kinds)}")
            kind = (int, float) if kinds[name] is float else kinds[name]
            if not isinstance(value, kind) or (isinstance(value, bool) and kinds[name] is not bool):
                raise wrong_type(argument, f"{name} is a {type(value).__name__}: give a {kinds[name].__name__.lower()}")
        options = cls(**given) if given.get("path") else cls(**{**given, "path": default_path})
        if options.max_tokens is not None and options.max_tokens < 1:
            raise invalid(argument, f"max_tokens is {options.max_tokens}: give a number from 1 on")
        if not options.path or not os.path.exists(options.path):
            said = f"there is no folder {options.path!r}" if options.path else "path is missing"
            raise invalid(argument, f"{said}: give the folder of the checkpoint on this machine as path")
        if "," in options.path:
            raise invalid(argument, f"{options.path!r} has a comma, which ends a path in an address: give a link without one")
        check_model(argument, options.path)
        return options

    def address(self, name: str, pattern: str, *, codes: bool, rows: tuple[int, int] | None) -> str:
        """The address of a table: of codes without their scales, or of a range of rows."""
        parts = [f"attached:{Path(self.path)}", f"tensor={name}={pattern}"]
        parts += ["scales="] if codes else []
        parts += [f"rows={rows[0]}..{rows[1]}"] if rows is not None else []
        return ",".join(parts + ([self.drive] if self.drive else []))


def pattern_of(prefix: str, pattern: str, options: EngineOptions, argument: str) -> tuple[str, str]:
    """The number of the layer that a module's name begins with, and the pattern of its shards.

    Parameters
    ----------
    prefix : str
        The module's name in the model, such as "model.layers.1.ple".
    pattern : str
        The usual pattern: `{layer}` stands for the number of the layer, `{rest}` for what follows it in `prefix`.
    options : EngineOptions
        Whose `tensor` takes the place of `pattern`, if it is given.
    argument : str
        Where the user gave the options, for messages.
    """
    _, found, rest = prefix.rpartition("layers.")
    layer, _, rest = rest.partition(".")
    if not found or not layer.isdigit() or not rest:
        raise invalid("prefix", f"{prefix!r} names no layer: give {argument} a tensor")
    return layer, (options.tensor or pattern.replace("{rest}", rest)).replace("{layer}", layer)
