"""Qwen3.8's per-layer embedding by n-grams: rows of bf16, or of E4M3 with one scale by which SGLang multiplies."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

import torch

from .._engines.options import EngineOptions, pattern_of
from .._engines.table import EngineTable
from ..errors import invalid
from ._asked import SGLANG, VARIABLE, options, version

PATTERN = "*layers.{layer}.{rest}.ngram_embedding.shard_{}.weight"
_TABLE = "Qwen4ExpPinnedHostEmbedding"
#: What is called or replaced here, with the arguments that it has to take.
SIGNATURES = {
    "allocate_ple_host_table": ("shape", "dtype", "backend", "table_dir", "tag"),
    "Qwen4ExpNGramEmbedding.__init__": ("self", "config", "embedding_dim", "ple_layer_index", "quant_config", "prefix"),
    f"{_TABLE}.__init__": ("self", "embedding", "backend", "table_dir"),
    f"{_TABLE}.allocate_output": ("self", "shape", "device"),
    f"{_TABLE}.gather": ("self", "input_ids", "out"),
}


def install(module: ModuleType) -> None:
    """Puts a table of a checkpoint's in the place of SGLang's in pinned memory."""
    SGLANG.check_signatures(version(), module, SIGNATURES)
    ngram, pinned = module.Qwen4ExpNGramEmbedding, getattr(module, _TABLE)
    original = ngram.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        if not given.arguments["config"].ple_offload_embedding:
            raise invalid(VARIABLE, "the table of this model is to lie in GPU memory: start the server with --ple-offload-embedding")
        if options().scales_on_gpu:
            raise invalid(VARIABLE, "scales_on_gpu is of Engram alone, and this model has no scales for blocks: leave it out")
        config = given.arguments["config"]
        heads = (int(config.ngram_size) - 1) * int(config.heads_per_ngram)
        setattr(module, _TABLE, functools.partial(stored_class(module, pinned), options(), given.arguments["prefix"], heads))
        try:
            original(self, *args, **kwargs)
        finally:
            setattr(module, _TABLE, pinned)

    ngram.__init__ = __init__


@functools.cache
def stored_class(module: ModuleType, pinned: Any) -> Any:
    """SGLang's table in pinned memory, with rows where a checkpoint has them."""

    class StoredPLEEmbedding(pinned):  # type: ignore[misc]
        """Ids, ranks, buffers, streams, collectives and the scale are SGLang's own."""

        def __init__(
            self, given: EngineOptions, prefix: str, heads: int, embedding: Any, *, backend: str = "pinned", table_dir: str | None = None
        ) -> None:
            allocate = module.allocate_ple_host_table
            # A tensor of the table's shape without memory: what a loader copies into it is nowhere.
            module.allocate_ple_host_table = lambda shape, dtype, **_: torch.empty(tuple(shape), dtype=dtype, device="meta")  # type: ignore[attr-defined]
            try:
                super().__init__(embedding)
            finally:
                module.allocate_ple_host_table = allocate  # type: ignore[attr-defined]
            layer, pattern = pattern_of(prefix, PATTERN, given, VARIABLE)
            self.stored = EngineTable(
                given,
                name=f"ple{layer}",
                pattern=pattern,
                codes=True,
                rows=self.org_vocab_size,
                owned=(self.shard_indices.org_vocab_start_index, self.shard_indices.org_vocab_end_index),
                dim=self.embedding_dim,
                heads=heads,
            )

        def gather(self, input_ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
            shape = (*input_ids.shape, self.embedding_dim)
            if out is None:
                out = self.allocate_output(shape, input_ids.device)
            elif tuple(out.shape) != shape or out.dtype != torch.bfloat16 or out.device != input_ids.device:
                raise invalid("out", f"shape {tuple(out.shape)} of {out.dtype}: give {shape} of torch.bfloat16")
            if input_ids.numel():
                self.stored.read(input_ids.reshape(-1, input_ids.shape[-1]), out)
            return out  # type: ignore[return-value]

    return StoredPLEEmbedding
