"""Rows of n-gram tables, side by side for each token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from .. import _options as arguments
from ..errors import invalid
from ..executor import Executor
from ..store import Store
from . import _block_scales
from ._embedding import Embedding
from ._lookup import Lookup
from ._module import is_eager
from ._prefetched import Prefetched, check_prefetched
from ._spec import Scales
from ._tensors import as_tensor, check_output, check_tensor


class NgramTable(Embedding):
    """Rows of a table by ids `[T, heads]`, those of a token side by side: `[T, heads * dim]`, as language models use n-gram tables.

    Ids that the table lacks, such as -1 and those of other ranks, give zeros and cost no read.

    Parameters
    ----------
    executor : Executor or Store
        What looks rows up; of a store, an executor on the CPU without memory for rows.
    table : str
        The table.
    heads : int
        Ids of a token.
    rows : int, optional
        How many rows the model says that the table has. Another number is refused: rows that are not there would be zeros.
    missing : str
        As of `Embedding`; "zero" by default.
    on_failure, mask : str
        As of `Embedding`. The second output of `on_failure="mask"` has the shape of the ids.
    dtype : torch.dtype
        Type of the output.
    max_tokens : int, optional
        The most tokens of one call; without, the module makes a larger plan when it meets a larger batch.
    prefetch : int
        How many batches can be held by `prefetch`.
    scales : Tensor of uint8 or float8_e8m0fnu, optional
        Of shape (rows, dim / 32), on the executor's device: E8M0 scales of blocks of 32 elements, by which rows are multiplied. The table
        has codes alone then (`scales=` in its address), so that no scale is read with a row, or kept in DRAM. The tensor is used where it
        is, and may be filled later. On a GPU the kernels that read the rows of an attached file take their scales along; where rows of it
        lie in GPU memory or DRAM, in graphs that torch.compile makes, and on the CPU, PyTorch multiplies behind the look-up.

    Raises
    ------
    InvalidArgument
        `rows` is another number than the table has; `scales` have another shape or device, are not contiguous, or the table's elements are
        no codes alone; an option has a value that is not named above; `executor` is neither an executor nor a store.
    NoSuchTable
        The store has no table of that name.
    Closed
        The store or the executor is closed.
    Forked
        This process was forked from the one that opened the store.
    """

    def __init__(
        self,
        executor: Executor | Store,
        table: str,
        *,
        heads: int,
        rows: int | None = None,
        missing: str = "zero",
        on_failure: str = "raise",
        mask: str = "found",
        dtype: torch.dtype = torch.bfloat16,
        max_tokens: int | None = None,
        prefetch: int = 0,
        scales: torch.Tensor | None = None,
    ) -> None:
        heads = arguments.number("heads", heads, 1)
        rows = arguments.maybe_number("rows", rows)
        max_tokens = arguments.maybe_number("max_tokens", max_tokens, 1)
        if scales is not None:
            check_tensor("scales", scales)
        super().__init__(
            executor,
            table,
            missing=missing,
            on_failure=on_failure,
            mask=mask,
            dtype=dtype,
            max_ids=None if max_tokens is None else max_tokens * heads,
            prefetch=prefetch,
        )
        if rows is not None and rows != self.num_embeddings:
            text = f"{rows}, and table {table!r} has {self.num_embeddings}: attach all its shards, or another table"
            raise invalid("rows", text)
        #: Ids of a token.
        self.heads = heads
        #: Scales that are not read with the rows.
        self.scales: _block_scales.BlockScales | None = None
        if scales is not None:
            if scales.device != self.device:
                raise invalid("scales", f"a tensor on {scales.device}, where the module is on {self.device}: move it with .to()")
            if not dtype.is_floating_point:
                raise invalid("dtype", f"{dtype}, and rows are multiplied by scales: give torch.bfloat16, torch.float16 or torch.float32")
            stored = next(it for it in self.executor.store.tables() if it.name == table)
            if stored.dtype not in _block_scales.CODES or stored.keyed:
                kind = f"{stored.dtype} with keys" if stored.keyed else stored.dtype
                known = " or ".join(_block_scales.CODES)
                text = f"given for table {table!r}, whose elements are {kind}: scales beside the rows are for codes alone, {known} without keys"
                raise invalid("scales", f"{text}; leave scales= out, or attach the file without its scales, by an empty scales= in the address")
            self.scales = _block_scales.BlockScales(scales, self.num_embeddings, self.embedding_dim)
        self._scaled: Lookup | None = None

    def _scaling(self, ids: torch.Tensor) -> Lookup | None:
        """The look-up whose kernels multiply by the scales; None: PyTorch has to, or there are none."""
        if self.scales is None or self.device.type != "cuda" or not is_eager(ids):
            return None
        plain, held = self._lookup.spec, self.scales.bytes
        options = plain.options
        if options.hbm_bytes or options.dram_bytes or options.adopting or options.overlay_bytes or plain.missing == "default":
            return None
        if not all(address.startswith("attached:") for address in plain.drives):
            return None
        spec = replace(plain, scales=Scales(held.data_ptr(), held.numel()))
        if self._scaled is None or self._scaled.spec != spec:
            self._scaled = Lookup(spec, self.executor, held)
        return self._scaled

    def _lookups(self) -> list[Lookup]:
        return super()._lookups() + ([] if self._scaled is None else [self._scaled])

    def report(self) -> dict[str, Any] | None:
        """As of `Embedding`.

        Raises
        ------
        Forked
            This process was forked from the one that opened the store.
        """
        return super().report() if self._scaled is None else self._scaled.report()

    def _own_options(self) -> dict[str, Any]:
        return {"heads": self.heads}

    def _checked(self, ids: Any) -> torch.Tensor:
        ids = as_tensor("input", ids)
        if ids.dim() != 2 or ids.shape[1] != self.heads:
            raise invalid("input", f"shape {tuple(ids.shape)}: give one of (tokens, {self.heads})")
        return ids

    def _side_by_side(self, found: Any, out: torch.Tensor | None, scales: torch.Tensor | None) -> Any:
        rows, masked = (found[0], found[1:]) if isinstance(found, tuple) else (found, ())
        if scales is not None:
            _block_scales.multiply(rows, scales)
        rows = rows.flatten(1) if out is None else out
        return (rows, *masked) if masked else rows

    def _apart(self, out: torch.Tensor | None, tokens: int) -> torch.Tensor | None:
        """The same memory with the rows of a token apart."""
        if out is None:
            return None
        shape = (tokens, self.heads * self.embedding_dim)
        check_tensor("out", out)
        if tuple(out.shape) != shape or not out.is_contiguous():
            raise invalid("out", f"shape {tuple(out.shape)}: give a contiguous tensor of {shape}")
        check_output(out)
        return out.view(tokens, self.heads, self.embedding_dim)

    def forward(self, input: torch.Tensor, *, out: torch.Tensor | None = None) -> Any:  # noqa: A002
        """The rows of each token, side by side.

        Parameters
        ----------
        input : Tensor of int64 or int32
            Ids, of shape (tokens, heads).
        out : Tensor, optional
            Filled instead of a new tensor.

        Returns
        -------
        Tensor of shape (tokens, heads * embedding_dim); with `on_failure="mask"` a second one of bools, of input's shape.

        Raises
        ------
        InvalidArgument
            `input` has another shape, or is on another device than the module; `out` has another shape or device; there are more tokens than
            `max_tokens`; a graph is being captured, and the module was not called before with so many ids.
        WrongType
            `input` has elements of another type; `out` is no tensor of the module's dtype.
        MissingIds
            The table lacks ids, and `missing` is "error": on the CPU of this call, on CUDA of a call before.
        RowsFailed
            Rows could not be read, and `on_failure` is "raise": on the CPU of this call, on CUDA of a call before. All other rows are right.
        Busy
            Other streams or threads have all slots, or eight look-ups of this stream are under way, for longer than a minute.
        GpuError
            On CUDA: too little memory for the module's plan, or another stream's capture does not allow what the call needs.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        ids = self._checked(input)
        scaling = self._scaling(ids)
        if scaling is not None:
            return self._side_by_side(self._run(scaling, ids, None, None, self._apart(out, ids.shape[0])), out, None)
        found = super().forward(ids, out=self._apart(out, ids.shape[0]))
        return self._side_by_side(found, out, None if self.scales is None else self.scales.of(ids))

    def prefetch(self, input: torch.Tensor, *, behind: Prefetched | None = None) -> Prefetched:  # noqa: A002
        """Begins to fetch the rows of ids of shape (tokens, heads), for `lookup`.

        Parameters
        ----------
        input : Tensor of int64 or int32
            Ids, of shape (tokens, heads).
        behind : Prefetched, optional
            The batch of a layer that comes first, which shares the drives: on a GPU no row of this one is read before the rows of that
            one are there.

        Returns
        -------
        Prefetched
            Looked up once, by this module. Dropped, it is forgotten.

        Raises
        ------
        InvalidArgument
            What `forward` refuses of the batch; the module was made without `prefetch=`; `behind` is of another executor.
        WrongType
            As `forward`; `behind` is nothing that a `prefetch` returned.
        MissingIds
            On the CPU of this call, on CUDA of a call before: a table lacks ids, and `missing` is "error".
        RowsFailed
            On CUDA: rows of a call before could not be read, and `on_failure` is "raise". On the CPU `lookup` raises it.
        Busy
            As many batches are held as the module was made for.
        GpuError
            As `forward`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        ids = self._checked(input)
        scaling = self._scaling(ids)
        if scaling is not None:
            return self._begin(scaling, ids, None, None, behind)
        prefetched = super().prefetch(ids, behind=behind)
        if self.scales is not None:
            # The ids are the caller's again once the rows are there.
            prefetched._scales = _block_scales.Made(self.scales.of(ids))
        return prefetched

    def lookup(self, prefetched: Prefetched, *, out: torch.Tensor | None = None) -> Any:
        """What `forward` would have given for a batch when it was prefetched.

        Parameters
        ----------
        prefetched : Prefetched
            What `prefetch` of this module returned.
        out : Tensor, optional
            Filled instead of a new tensor, as by `forward`.

        Returns
        -------
        Tensor
            As `forward` returns it.

        Raises
        ------
        InvalidArgument
            Another module made `prefetched`, or it was looked up already; one half is in a capture and the other is not; `out` has another shape
            or device.
        WrongType
            `prefetched` is nothing that a `prefetch` returned; `out` is no tensor of the module's dtype.
        RowsFailed
            Rows could not be read, and `on_failure` is "raise": on the CPU of this batch, on CUDA of a call before.
        GpuError
            As `forward`.
        Closed
            The store or the executor is closed.
        Forked
            This process was forked from the one that opened the store.
        """
        check_prefetched(prefetched)
        held = prefetched._held
        tokens = 0 if held is None else held[0].shape[0]
        made = prefetched._scales
        found = super().lookup(prefetched, out=None if held is None else self._apart(out, tokens))
        return self._side_by_side(found, out, None if made is None else made.take())

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, heads={self.heads}"
