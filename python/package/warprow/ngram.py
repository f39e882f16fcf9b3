"""Which rows of an n-gram table a token looks up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _arrays, _native, _options
from .errors import invalid

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]


class NgramHash:
    """Row ids of tokens, by the hash of a model's n-gram table. It runs on the host.

    Parameters
    ----------
    model : str
        "engram-1" and "engram-14": DeepSeek-V4.1-Flash, of layers 1 and 14. "ple": Qwen3.8-Flash-Next.
    words : array of int, optional
        For each token of the tokenizer the number that is hashed in its place, its *word*: DeepSeek's models have a smaller vocabulary of
        them. Without, tokens are their own words.
    end : int, optional
        The token that ends a text: no n-gram reaches across it. Of "ple" the tokenizer's own, if it is not given.

    Raises
    ------
    InvalidArgument
        There is no model of that name, it needs `words` and has none, `words` have more dimensions than one, or a number is not from 0 to
        2³² − 1.
    WrongType
        `words` are no integers, `model` is no text, or `end` no number.
    """

    def __init__(self, model: str, *, words: Any = None, end: int | None = None) -> None:
        np = _arrays.numpy()
        numbers = None if words is None else np.ascontiguousarray(_tokens("words", words), dtype=np.uint32)
        _options.text("model", model)
        end = _options.maybe_number("end", end, 0, 1 << 32)
        at = None if numbers is None else (_arrays.address_of(numbers), numbers.size)
        self._native = _native.NgramHash(model, at, end)
        self.model = model

    @property
    def heads(self) -> int:
        """Ids of a token."""
        return self._native.heads

    @property
    def rows(self) -> int:
        """Rows that its heads have: the model's table has these, and may have more that no token asks for."""
        return self._native.rows

    def ids(self, tokens: Any, *, history: Any = ()) -> Array:
        """The ids of the tokens of a text, in its order.

        Parameters
        ----------
        tokens : array of int
            Shape (n,).
        history : array of int
            The tokens before them, the oldest first; of more than three the last ones count.

        Returns
        -------
        ndarray of int64
            Shape (n, heads): as `warprow.torch.NgramTable` takes them.

        Raises
        ------
        InvalidArgument
            An array has more dimensions than one, or a token that the tokenizer does not have.
        WrongType
            Tokens are no integers.
        """
        np = _arrays.numpy()
        given, before = _tokens("tokens", tokens), _tokens("history", history)
        found = np.empty((given.size, self.heads), np.int64)
        parts = [(_arrays.address_of(it), it.size) for it in (before, given, found)]
        self._native.ids(*parts)
        return found  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<warprow.NgramHash {self.model}: {self.heads} ids a token, of {self.rows:,} rows>"


def _tokens(argument: str, value: Any) -> Array:
    np = _arrays.numpy()
    array, _ = _arrays.integers(argument, value, dims=1)
    if array.size and (array.min() < 0 or array.max() >= 1 << 32):
        raise invalid(argument, f"{int(array.min())} to {int(array.max())}: give numbers from 0 to 2³² − 1")
    return np.ascontiguousarray(array, dtype=np.int64)  # type: ignore[no-any-return]
