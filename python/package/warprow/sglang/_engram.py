"""DeepSeek-V4.1's Engram: rows of E4M3 with E8M0 scales, which SGLang takes in bf16."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from .._engines.table import EngineTable, model_device
from ..errors import invalid
from ._asked import SGLANG, options, version

PATTERN = "*layers.{layer}.engram.embed.weight"
#: What is called or replaced here, with the arguments that it has to take.
SIGNATURES = {
    "EngramEmbedding.__init__": ("self", "num_embeddings", "dim", "layer_id", "column_bounds"),
    "EngramEmbedding._init_host_table": ("self", "num_embeddings", "dim", "layer_id"),
    "EngramEmbedding._load_rows": ("self", "param", "loaded_weight"),
    "EngramEmbedding._owned_rows": ("self", "indices"),
    "EngramEmbedding.new_rows": ("self", "indices"),
    "Engram.embed_rows": ("self", "hash_ids", "forward_batch", "cp_all_tokens"),
    "envs.SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE.override": ("value",),
    "envs.SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS.override": ("value",),
}


def install(module: ModuleType) -> None:
    """Puts a table of a checkpoint's in the place of SGLang's own."""
    SGLANG.check_signatures(version(), module, SIGNATURES)
    module.EngramEmbedding = stored_class(module)  # type: ignore[attr-defined]


def stored_class(module: ModuleType) -> Any:
    """SGLang's table of hash heads, with rows where a checkpoint has them."""

    class StoredEngramEmbedding(module.EngramEmbedding):  # type: ignore[name-defined]
        """Ranks and collectives are SGLang's own, as of a table whose rows each rank has a range of."""

        def __init__(self, num_embeddings: int, dim: int, layer_id: int, column_bounds: tuple[int, ...]) -> None:
            # Of three ways to allocate, the one of tables in host memory is a method of its own.
            in_host_memory = module.envs.SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE.override(True)
            with in_host_memory, module.envs.SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS.override(False):
                super().__init__(num_embeddings, dim, layer_id, column_bounds)
            self.row_count = num_embeddings
            self.stored = None
            if self.rows:
                given = options()
                scales = self.scale.data.view(torch.uint8) if given.scales_on_gpu else None
                self.stored = EngineTable(
                    given,
                    name=f"engram{layer_id}",
                    pattern=(given.tensor or PATTERN).replace("{layer}", str(layer_id)),
                    codes=scales is not None,
                    rows=num_embeddings,
                    owned=(self.row_start, self.row_start + self.rows),
                    dim=dim,
                    heads=len(column_bounds) - 1,
                    scales=scales,
                )

        def _init_host_table(self, num_embeddings: int, dim: int, layer_id: int) -> None:
            shape = (self.rows if options().scales_on_gpu else 0, dim // module.FP8_BLOCK_SIZE)
            scales = torch.empty(shape, dtype=torch.float8_e8m0fnu, device=model_device())
            self.weight = torch.nn.Parameter(torch.empty(0, dim, dtype=torch.float8_e4m3fn), requires_grad=False)
            self.scale = torch.nn.Parameter(scales, requires_grad=False)

        def _load_rows(self, param: torch.nn.Parameter, loaded_weight: torch.Tensor) -> None:
            """Copies scales that are to lie in GPU memory, and nothing else."""
            shape = (self.row_count, param.shape[1])
            if tuple(loaded_weight.shape) != shape:
                raise invalid("loaded_weight", f"shape {tuple(loaded_weight.shape)}, where the model has {shape}")
            if param.numel():
                rows = loaded_weight[self.row_start : self.row_start + self.rows]
                param.data.view(torch.uint8).copy_(rows.view(torch.uint8))

        def _owned_rows(self, indices: torch.Tensor) -> torch.Tensor:
            rows: torch.Tensor = self.new_rows(indices)
            if self.stored is None:
                return rows.zero_()
            if indices.numel():
                self.stored.read(indices.reshape(-1, indices.shape[-1]), rows)
            return rows

    return StoredEngramEmbedding
