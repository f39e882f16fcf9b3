"""That docstrings of the public API say what a caller has to know: each parameter, and what is raised.

What can raise is found in the sources: a function that has a `raise`, makes an error, or calls the native module, itself or through functions
and methods of the package that it calls.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

import warprow

#: Where users find names.
MODULES = ["warprow", "warprow.data", "warprow.errors", "warprow.vllm", "warprow.sglang"]
TORCH = ["warprow.torch", "warprow.torch.native"]
#: What calls the native module for something that cannot fail, or catches what is raised.
NEVER = {"NgramHash.heads", "NgramHash.rows", "DataReader.close", "load"}
#: Sections of NumPy's form.
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)


def modules() -> list[Any]:
    names = list(MODULES)
    try:
        import torch  # noqa: F401

        names += TORCH
    except ImportError:
        pass
    return [importlib.import_module(name) for name in names]


def is_ours(thing: Any) -> bool:
    return str(getattr(thing, "__module__", "")).split(".")[0] == "warprow"


def plain(member: Any) -> Any:
    """The function behind a method, a property or a class method."""
    if isinstance(member, property):
        return member.fget
    return getattr(member, "__func__", member)


def public() -> Iterator[tuple[str, Any, type | None, str]]:
    """Each function and method: its name, itself, its class, and its docstring. A class's own says what its constructor raises."""
    seen = set()
    for module in modules():
        for name in getattr(module, "__all__", None) or [it for it in vars(module) if not it.startswith("_")]:
            thing = getattr(module, name)
            if not is_ours(thing) or id(thing) in seen:
                continue
            seen.add(id(thing))
            if inspect.isfunction(thing):
                yield f"{module.__name__}.{name}", thing, None, thing.__doc__ or ""
            elif inspect.isclass(thing):
                yield from of_class(f"{module.__name__}.{name}", thing)


def of_class(name: str, kind: type) -> Iterator[tuple[str, Any, type | None, str]]:
    for at in dir(kind):
        if at.startswith("_") and at != "__init__":
            continue
        owner = next(it for it in kind.__mro__ if at in vars(it))
        member = plain(vars(owner)[at])
        # What a dataclass makes has no source, and checks nothing.
        if not inspect.isfunction(member) or not is_ours(owner) or member.__code__.co_filename.startswith("<"):
            continue
        if at == "__init__":
            if not issubclass(kind, BaseException):
                yield name, member, kind, kind.__doc__ or ""
        else:
            yield f"{name}.{at}", member, kind, inspect.getdoc(getattr(kind, at)) or ""


@functools.cache
def tree_of(function: Any) -> ast.AST:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))


def can_raise(function: Any, kind: type | None, above: type | None = None, met: set[Any] | None = None) -> str | None:
    """Why a function may raise: what in its source does; None: nothing does."""
    met = set() if met is None else met
    if not inspect.isfunction(function) or not is_ours(function) or (function, kind, above) in met:
        return None
    if function.__code__.co_filename.startswith("<") or function.__qualname__ in NEVER:
        return None
    met.add((function, kind, above))
    names = function.__globals__
    for node in ast.walk(tree_of(function)):
        if isinstance(node, ast.Raise) and not is_attribute_error(node):
            return f"{function.__qualname__} raises"
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "_native" and isinstance(node.ctx, ast.Load) and node.attr[0].islower():
                return f"{function.__qualname__} calls _native.{node.attr}"
            if node.value.id in ("self", "cls") and kind is not None:
                if node.attr == "_native" and function.__name__ != "__init__" and used(function, "_native"):
                    return f"{function.__qualname__} calls the native half"
                found = method(kind, node.attr, None)
                why = found and can_raise(found[0], kind, found[1], met)
                if why:
                    return f"{function.__qualname__}: {why}"
            elif inspect.ismodule(names.get(node.value.id)):
                why = can_raise(getattr(names[node.value.id], node.attr, None), None, None, met)
                if why:
                    return f"{function.__qualname__}: {why}"
        if isinstance(node, ast.Attribute) and is_super(node.value) and kind is not None:
            found = method(kind, node.attr, above)
            why = found and can_raise(found[0], kind, found[1], met)
            if why:
                return f"{function.__qualname__}: {why}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = names.get(node.func.id)
            made = vars(called).get("__init__") if inspect.isclass(called) else None
            why = can_raise(made or called, called if made else None, called if made else None, met)
            if why:
                return f"{function.__qualname__}: {why}"
    return None


def used(function: Any, name: str) -> bool:
    """Whether a function calls a method of `self.<name>`."""
    for node in ast.walk(tree_of(function)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == name:
            return True
    return False


def is_attribute_error(node: ast.Raise) -> bool:
    raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
    return isinstance(raised, ast.Name) and raised.id in ("AttributeError", "StopIteration")


def is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def method(kind: type, name: str, above: type | None) -> tuple[Any, type] | None:
    """A method of a class by its name, and the class that has it; of those above another class, as `super()` finds it."""
    line = list(kind.__mro__)
    for owner in line[line.index(above) + 1 :] if above in line else line:
        if name in vars(owner):
            return plain(vars(owner)[name]), owner
    return None


def sections(docstring: str) -> dict[str, str]:
    """The sections of a docstring by their names."""
    text = inspect.cleandoc(docstring)
    marks = list(SECTION.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)] * bool(marks)
    return {mark[1]: text[mark.end() : end].strip("\n") for mark, end in zip(marks, ends, strict=True)}


CASES = list(public())


def test_the_api_is_found() -> None:
    names = [name for name, *_ in CASES]
    assert len(names) > 50 and len(set(names)) == len(names)
    assert {"warprow.open", "warprow.Store.load", "warprow.Plan.lookup", "warprow.data.convert"} <= set(names)
    assert can_raise(warprow.open, None) and can_raise(warprow.Store.load, warprow.Store)
    assert can_raise(warprow.Plan.columns, warprow.Plan) and not can_raise(warprow.data.Jagged.keys, warprow.data.Jagged)


@pytest.mark.parametrize(("name", "function", "kind", "docstring"), CASES, ids=[case[0] for case in CASES])
def test_docstrings_say_what_a_caller_has_to_know(name: str, function: Any, kind: type | None, docstring: str) -> None:
    assert docstring.strip(), "it has no docstring"
    found = sections(docstring)
    given = [it for it in inspect.signature(function).parameters.values() if it.name not in ("self", "cls")]
    # What the package makes itself has constructors that nobody else calls.
    if function.__name__ != "__init__" or "Parameters" in found:
        told = [it.strip().lstrip("*") for line in re.findall(r"^(\S.*)$", found.get("Parameters", ""), re.MULTILINE) for it in line.split(":")[0].split(",")]
        assert sorted(told) == sorted(it.name for it in given), "Parameters"
    why = can_raise(function, kind, kind and next((it for it in kind.__mro__ if function.__name__ in vars(it)), None))
    if why and (function.__name__ != "__init__" or "Parameters" in found):
        assert "Raises" in found, f"Raises is missing: {why}"
    if "Raises" in found:
        heads = re.findall(r"^(\S.*)\n +\S", found["Raises"], re.MULTILINE)
        assert heads and len(heads) == len(re.findall(r"^\S", found["Raises"], re.MULTILINE)), "each class is followed by when it is raised"
        for head in heads:
            for named in head.split(", "):
                there = named in warprow.errors.__all__ or isinstance(getattr(builtins, named, None), type)
                assert there, f"Raises: {named!r} is no exception"
