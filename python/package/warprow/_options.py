"""Types and ranges of arguments, looked at before anything is done with them: an exception names the argument, what came, and what is asked for."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from .errors import WarprowError, invalid, wrong_type

_T = TypeVar("_T")
#: What a number of bytes, rows or ids is below, if nothing else is said.
_END = 1 << 64


def told(value: object) -> str:
    """What came, in a few words: its type, and the value where that is short."""
    shown = repr(value) if isinstance(value, str | int | float | bytes) else ""
    return f"a {type(value).__name__}" + (f", {shown}" if 0 < len(shown) <= 60 else "")


def _refused(argument: str, value: object, wanted: str) -> WarprowError:
    return wrong_type(argument, f"{told(value)}: give {wanted}")


def _is_flag(value: object) -> bool:
    # A bool of NumPy, which need not be there.
    return isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") and hasattr(value, "dtype")


def flag(argument: str, value: object) -> bool:
    """True or False. A text such as "no" would count as true.

    Raises
    ------
    WrongType
        It is anything else.
    """
    if not _is_flag(value):
        raise _refused(argument, value, "True or False")
    return bool(value)


def number(argument: str, value: Any, least: int = 0, end: int = _END) -> int:
    """A whole number, from `least` on and below `end`.

    Raises
    ------
    WrongType
        It is no whole number.
    InvalidArgument
        It is out of this range.
    """
    wanted = f"a whole number from {least} on" if end == _END else f"a whole number from {least} to {end - 1}"
    if type(value) is not int:
        if _is_flag(value) or not hasattr(type(value), "__index__"):
            raise _refused(argument, value, wanted)
        value = _index(argument, value, wanted)
    if not least <= value < end:
        raise invalid(argument, f"{value}: give {wanted}")
    return int(value)


def _index(argument: str, value: Any, wanted: str) -> int:
    # Tensors and arrays of more than one element have `__index__`, and no number.
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _refused(argument, value, wanted) from error


def maybe_number(argument: str, value: Any, least: int = 0, end: int = _END) -> int | None:
    """As `number`, or None."""
    return None if value is None else number(argument, value, least, end)


def real(argument: str, value: Any, wanted: str = "a number") -> float:
    """A number that need not be whole, and is not NaN.

    Raises
    ------
    WrongType
        It is no number.
    InvalidArgument
        It is NaN.
    """
    if isinstance(value, str | bytes) or _is_flag(value) or not (hasattr(type(value), "__float__") or hasattr(type(value), "__index__")):
        raise _refused(argument, value, wanted)
    try:
        found = float(value)
    except OverflowError:
        found = math.inf if value > 0 else -math.inf
    except (TypeError, ValueError, RuntimeError) as error:
        raise _refused(argument, value, wanted) from error
    if math.isnan(found):
        raise invalid(argument, f"{value}: give {wanted}")
    return found


def seconds(argument: str, value: Any) -> float:
    """Seconds, from 0 on and below 2³²: a clock can count no more.

    Raises
    ------
    WrongType
        It is no number.
    InvalidArgument
        It is out of this range.
    """
    wanted = "a number of seconds from 0 on, below 2³²"
    found = real(argument, value, wanted)
    if not 0 <= found < 1 << 32:
        raise invalid(argument, f"{value}: give {wanted}")
    return found


def text(argument: str, value: Any) -> str:
    """A text.

    Raises
    ------
    WrongType
        It is none.
    """
    if not isinstance(value, str):
        raise _refused(argument, value, "a text (str)")
    return value


def maybe_text(argument: str, value: Any) -> str | None:
    """A text, or None."""
    return None if value is None else text(argument, value)


def choice(argument: str, value: Any, choices: Sequence[str]) -> str:
    """One of several words.

    Raises
    ------
    WrongType
        It is no text.
    InvalidArgument
        It is another text.
    """
    *before, last = (f'"{word}"' for word in choices)
    wanted = f"{', '.join(before)} or {last}" if before else last
    if not isinstance(value, str):
        raise _refused(argument, value, wanted)
    if value not in choices:
        raise invalid(argument, f"{value!r}: give {wanted}")
    return value


def texts(argument: str, value: Any) -> list[str] | None:
    """A text or several, as a list; None: there are none.

    Raises
    ------
    WrongType
        It is anything else.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    if not isinstance(value, Sequence) or isinstance(value, bytes) or not all(isinstance(it, str) for it in value):
        raise _refused(argument, value, "a text, or a list of texts")
    return list(value)


def mapping(argument: str, value: Any, wanted: str) -> Mapping[str, Any] | None:
    """A mapping whose names are texts, or None.

    Raises
    ------
    WrongType
        It is anything else.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise _refused(argument, value, f"a mapping of {wanted}")
    return value


@overload
def instance(argument: str, value: Any, kind: type[_T], wanted: str) -> _T: ...
@overload
def instance(argument: str, value: Any, kind: tuple[type, ...], wanted: str) -> Any: ...
def instance(argument: str, value: Any, kind: Any, wanted: str) -> Any:
    """A value of a class.

    Raises
    ------
    WrongType
        It is of another.
    """
    if not isinstance(value, kind):
        raise _refused(argument, value, wanted)
    return value


@overload
def several(argument: str, value: Any, kind: type[_T], wanted: str) -> list[_T]: ...
@overload
def several(argument: str, value: Any, kind: tuple[type, ...], wanted: str) -> list[Any]: ...
def several(argument: str, value: Any, kind: Any, wanted: str) -> list[Any]:
    """Values of a class, as a list.

    Raises
    ------
    WrongType
        It is nothing that has several values, or one is of another class.
    """
    if isinstance(value, str | bytes):
        # It would fall into its letters.
        raise _refused(argument, value, wanted)
    try:
        found = list(value)
    except TypeError as error:
        raise _refused(argument, value, wanted) from error
    for it in found:
        if not isinstance(it, kind):
            raise wrong_type(argument, f"{told(it)} among them: give {wanted}")
    return found

