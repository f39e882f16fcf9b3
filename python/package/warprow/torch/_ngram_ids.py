"""Row ids of n-gram tables, made from tokens where the tokens are."""

from __future__ import annotations

from typing import Any

import torch

from .. import _native
from .. import _options as arguments
from ..errors import invalid, wrong_type
from ..executor import Executor
from ..ngram import NgramHash
from ..store import Store
from ._module import executor_of
from ._tensors import as_tensor, check_output, plain, refuse_trace, written

_NAMES = {torch.int64: "i64", torch.int32: "i32"}


class NgramIds:
    """Makes the row ids of tokens as engines have them in a step: of several sequences, each with the tokens before it.

    On a GPU one kernel of Warprow's writes them, on the current stream; a graph may capture it, before a prefetch or a look-up of the ids.
    Nothing is copied to the host, and nothing is waited for. Graphs do not keep this object: keep it as long as they run.

    Parameters
    ----------
    executor : Executor or Store
        Says by its device where tokens and ids are.
    hash : NgramHash
        The model's hash. Texts are told apart by `starts`: a hash of a model without a token of its own that ends texts ("engram-1",
        "engram-14") is made without `end=`.
    heads : tuple of int, optional
        The first of the heads whose ids are wanted, and the one behind the last: those of a rank of tensor parallelism. Columns past the
        last head have the id -1.
    first_row : int
        The row of the model's table that has the id 0, for a table that has some rows alone (`rows=LO..HI` in its address).

    Raises
    ------
    InvalidArgument
        `heads` or `first_row` are not of the hash; `hash` has an `end` that is not in the model's rules; `executor` is neither an executor
        nor a store.
    WrongType
        `hash` is no NgramHash.
    Closed
        The store or the executor is closed.
    Forked
        A parent process has opened the store.
    StoreFailed
        The GPU has no room for the words of tokens.
    """

    def __init__(
        self, executor: Executor | Store, hash: NgramHash, *, heads: tuple[int, int] | None = None, first_row: int = 0  # noqa: A002
    ) -> None:
        executor = executor_of(executor)
        if not isinstance(hash, NgramHash):
            raise wrong_type("hash", f"a {type(hash).__name__}: give a warprow.NgramHash")
        if heads is not None:
            ends = arguments.several("heads", heads, object, "the first head, and the one behind the last")
            if len(ends) != 2:
                raise invalid("heads", f"{heads}: give the first head, and the one behind the last")
            heads = (arguments.number("heads", ends[0]), arguments.number("heads", ends[1]))
        first_row = arguments.number("first_row", first_row)
        if heads is not None and not 0 <= heads[0] < heads[1] < 1 << 32:
            raise invalid("heads", f"{heads}: give the first head, and the one behind the last")
        if not 0 <= first_row < 1 << 63:
            raise invalid("first_row", f"{first_row}: give a row")
        self.executor = executor
        self.device = torch.device(executor.device)
        gpu = executor._native if isinstance(executor._native, _native.Gpu) else None
        self._native = _native.NgramIds(hash._native, gpu, heads, first_row)

    @property
    def heads(self) -> int:
        """Ids of a token.

        Raises
        ------
        Forked
            This process was forked from the one that made the hash.
        """
        return self._native.heads

    @property
    def history(self) -> int:
        """How many tokens before each sequence have a part in its ids.

        Raises
        ------
        Forked
            This process was forked from the one that made the hash.
        """
        return self._native.reach

    @property
    def rows(self) -> tuple[int, int]:
        """The first of the model's rows that the heads have, and the one behind the last: what `rows=LO..HI` of an address takes.

        Raises
        ------
        Forked
            This process was forked from the one that made the hash.
        """
        return self._native.rows

    def __call__(
        self,
        tokens: torch.Tensor,
        *,
        starts: torch.Tensor | None = None,
        history: torch.Tensor | None = None,
        newest_first: bool = False,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The ids of each token; -1 for padding: tokens outside of all sequences, negative ones, and those without a word.

        Parameters
        ----------
        tokens : Tensor of int64 or int32
            Shape (n,): the tokens of all sequences, one after the other.
        starts : Tensor of int32, optional
            Shape (sequences + 1,), from 0 on and ascending: where each sequence begins, and where the last one ends. On a GPU it is read
            when the kernel runs, so that a graph takes any number of tokens up to the captured one. Without, all tokens are one sequence.
        history : Tensor of the tokens' type, optional
            Shape (sequences, `history`): the tokens before each sequence, the latest last. A negative one is missing, and so are all
            before it. Without, each sequence begins a text.
        newest_first : bool
            A sequence's history begins with the latest token.
        out : Tensor of int64, or of int32 on a GPU, optional
            Filled instead of a new tensor of int64.

        Returns
        -------
        Tensor of shape (n, heads).

        Raises
        ------
        InvalidArgument
            A tensor has another shape, or is on another device; on the CPU, sequences do not ascend, or end behind the last token.
        WrongType
            A tensor has elements of another type, or an argument is nothing that torch can take.
        """
        tokens = self._taken("tokens", tokens, tuple(_NAMES), 1)
        refuse_trace()
        sequences = 1
        if starts is not None:
            starts = self._taken("starts", starts, (torch.int32,), 1)
            sequences = starts.numel() - 1
            if sequences < 0:
                raise invalid("starts", "no entry: give one for each sequence, and one behind these")
        if history is not None:
            history = self._taken("history", history, (tokens.dtype,), 2)
            if tuple(history.shape) != (sequences, self.history):
                text = f"shape {tuple(history.shape)}: give ({sequences}, {self.history}), as there are {sequences} sequences"
                raise invalid("history", text)
        shape, on_gpu = (tokens.numel(), self.heads), self.device.type == "cuda"
        if out is None:
            out = torch.empty(shape, dtype=torch.int64, device=self.device)
        elif out.dtype not in (_NAMES if on_gpu else (torch.int64,)):
            raise wrong_type("out", f"elements of type {out.dtype}: give torch.int64")
        elif tuple(out.shape) != shape or out.device != self.device or not out.is_contiguous():
            text = f"shape {tuple(out.shape)} on {out.device}: give a contiguous tensor of {shape} on {self.device}"
            raise invalid("out", text)
        else:
            check_output(out)
            written(out)
        if not on_gpu:
            tokens, history = tokens.long(), None if history is None else history.long()
        batch = (
            _place(tokens),
            None if starts is None else (starts.data_ptr(), starts.numel()),
            None if history is None else _place(history),
            newest_first,
        )
        stream = torch.cuda.current_stream(self.device).cuda_stream if on_gpu else 0
        self._native.ids(stream, batch, _place(out))
        return out

    def _taken(self, argument: str, value: Any, types: tuple[torch.dtype, ...], dims: int) -> torch.Tensor:
        tensor = as_tensor(argument, value)
        if tensor.dtype not in types:
            raise wrong_type(argument, f"elements of type {tensor.dtype}: give {' or '.join(map(str, types))}")
        if tensor.dim() != dims:
            raise invalid(argument, f"shape {tuple(tensor.shape)}: give {dims} dimension{'s' * (dims > 1)}")
        if tensor.device != self.device:
            raise invalid(argument, f"a tensor on {tensor.device}, where the ids are made on {self.device}: move it with .to()")
        return plain(argument, tensor)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<warprow.torch.NgramIds: {self.heads} ids a token, on {self.device}>"


def _place(tensor: torch.Tensor) -> tuple[int, int, str]:
    return tensor.data_ptr(), tensor.numel(), _NAMES[tensor.dtype]
