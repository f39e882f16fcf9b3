"""Qwen3.8's per-layer embedding by n-grams: rows of bf16, or E4M3 with one scale, or NVFP4."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from .._engines.options import EngineOptions, pattern_of
from .._engines.table import EngineTable
from ..errors import invalid
from . import _steps
from ._asked import ARGUMENT, VLLM, asked, version

PATTERN = "*layers.{layer}.{rest}.shard_{}.weight"
_TABLE = "Qwen4ExpPLEPinnedHostEmbedding"
#: What is called or replaced here, with the arguments that it has to take.
SIGNATURES = {
    "get_current_vllm_config": (),
    "Qwen4ExpNGramEmbedding.__init__": ("self", "config", "embedding_dim", "ple_dense_layer_id", "max_total_tokens", "data_parallel_rank", "prefix"),
    "Qwen4ExpPLEFp8EmbeddingMethod.dequantize": ("self", "layer", "embeddings", "output_dtype"),
    f"{_TABLE}.__init__": (
        "self", "num_embeddings", "embedding_dim", "params_dtype", "padding_size", "prefix", "embedding_method", "num_ngram_heads",
        "max_total_tokens", "data_parallel_rank", "reduce_results",
    ),
    f"{_TABLE}.allocate_embedding_weight": ("self", "num_embeddings", "embedding_dim", "dtype"),
    f"{_TABLE}.weight_loader": ("self", "param", "loaded_weight", "checkpoint_start"),
    f"{_TABLE}._lookup": ("self", "input_ids", "output"),
}  # fmt: skip


def install(module: ModuleType) -> None:
    """Has `Qwen4ExpNGramEmbedding` make its table from a checkpoint's where the configuration asks for it."""
    ngram = getattr(module, "Qwen4ExpNGramEmbedding", None)
    original = getattr(ngram, "__init__", None)
    if ngram is None or original is None:
        return

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        config = module.get_current_vllm_config()
        options = asked(config)
        if options is None:
            original(self, *args, **kwargs)
            return
        # `__init__` has the signature of the original, which it wraps.
        VLLM.check_signatures(version(), module, SIGNATURES)
        _steps.check("vllm.models.qwen4_exp.nvidia.model_state", "Qwen4ExpModelState")
        if options.scales_on_gpu:
            raise invalid(ARGUMENT, "scales_on_gpu is of Engram alone, and this model has no scales for blocks: leave it out")
        if config.engram_config is None or not config.engram_config.cpu_offload:
            raise invalid(ARGUMENT, 'the table of this model is to lie in GPU memory: leave "cpu_offload": false out of --engram-config')
        pinned = getattr(module, _TABLE)
        setattr(module, _TABLE, functools.partial(stored_class(module, pinned), options))
        try:
            original(self, *args, **kwargs)
        finally:
            setattr(module, _TABLE, pinned)

    ngram.__init__ = __init__


@functools.cache
def stored_class(module: ModuleType, pinned: Any) -> Any:
    """vLLM's table in pinned memory, with rows where a checkpoint has them."""

    class StoredPLEEmbedding(pinned):  # type: ignore[misc]
        """Ids, ranks, buffers, streams, collectives and scales of E4M3 are vLLM's own."""

        def __init__(self, options: EngineOptions, num_embeddings: int, embedding_dim: int, **kwargs: Any) -> None:
            method = kwargs["embedding_method"]
            # Rows of E4M3 come as the codes' own values in the type that they are multiplied in; vLLM multiplies by the scale.
            self._codes = isinstance(method, module.Qwen4ExpPLEFp8EmbeddingMethod)
            self._of_model = kwargs["params_dtype"]
            super().__init__(num_embeddings, embedding_dim, **kwargs)
            shard = self.shard_indices
            layer, pattern = pattern_of(kwargs["prefix"], PATTERN, options, ARGUMENT)
            self.stored = EngineTable(
                options,
                name=f"ple{layer}",
                pattern=pattern,
                codes=self._codes,
                rows=num_embeddings,
                owned=(shard.org_vocab_start_index, shard.org_vocab_end_index),
                dim=embedding_dim,
                heads=self._num_ngram_heads,
                dtype=self._of_model,
                max_tokens=max(1, self._prefetch_rows),
            )

        def allocate_embedding_weight(self, num_embeddings: int, embedding_dim: int, dtype: torch.dtype) -> torch.Tensor:
            """One row, since the rest of vLLM asks what type the table has, and where it is."""
            return super().allocate_embedding_weight(1, embedding_dim, self._of_model if self._codes else dtype)  # type: ignore[no-any-return]

        def weight_loader(self, param: Any, loaded_weight: torch.Tensor, checkpoint_start: int | None = None) -> None:
            """Copies no rows, but for one scale of the whole table, which is vLLM's."""
            # `create_weights` registers parameters of rows with a row each.
            if loaded_weight.dim() == 2 and param.dim() == 2 and param.shape[0] == 1:
                if loaded_weight.shape[1] != param.shape[1]:
                    raise invalid("loaded_weight", f"shape {tuple(loaded_weight.shape)}, where rows have {param.shape[1]} elements")
                return
            super().weight_loader(param, loaded_weight, checkpoint_start)

        def _lookup(self, input_ids: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
            shape = (*input_ids.shape, self.embedding_dim)
            if output is None:
                output = torch.empty(shape, dtype=self.stored.dtype, device=input_ids.device)
            elif tuple(output.shape) != shape or output.dtype != self.stored.dtype or output.device != input_ids.device:
                raise invalid("output", f"shape {tuple(output.shape)} of {output.dtype}: give {shape} of {self.stored.dtype}")
            if input_ids.numel():
                self.stored.read(input_ids, output)
            return output

    return StoredPLEEmbedding
