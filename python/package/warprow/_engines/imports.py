"""Functions that are called with a module once somebody else has imported it.

A plug-in of a serving engine is loaded in every process, long before it is known which model is served. It imports nothing of the engine
by itself: that would take seconds in processes that serve no model.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

logger = logging.getLogger("warprow")

Change = Callable[[ModuleType], None]


class _Finder(MetaPathFinder):
    """Finds the modules that somebody waits for as the other finders do, and has them call back."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Change]] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader(Loader):
    """Loads a module as another loader does, and calls back."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # The module keeps the loader that it would have had: tools ask it for the source.
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        for change in _FINDER.waiting.pop(module.__name__, ()):
            change(module)


_FINDER = _Finder()
_LOCK = threading.Lock()


def when_imported(name: str, change: Change) -> None:
    """Calls `change` with the module `name`: now, if it is there, and else when it has been imported."""
    with _LOCK:
        module = sys.modules.get(name)
        if module is None:
            if _FINDER not in sys.meta_path:
                sys.meta_path.insert(0, _FINDER)
            _FINDER.waiting.setdefault(name, []).append(change)
            return
    if getattr(module.__spec__, "_initializing", False):
        logger.warning("warprow: %s is being imported at this moment, and may not have all its names yet", name)
    change(module)


def when_any_imported(hooks: Mapping[str, Sequence[str]], package: str) -> None:
    """Has modules of an engine changed once they are imported.

    Parameters
    ----------
    hooks : mapping
        Of each module of `package`, by its name there, the engine's modules that its function `install` changes. It is imported with the
        first of them: what it needs, torch above all, is there by then.
    package : str
        The plug-in's package.
    """
    for name, modules in hooks.items():
        for module in modules:
            when_imported(module, functools.partial(_install, f"{package}.{name}"))


def _install(name: str, module: ModuleType) -> None:
    importlib.import_module(name).install(module)


def forget() -> None:
    """Forgets all modules that are waited for."""
    _FINDER.waiting.clear()
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
