"""DeepSeek-V4.1's Engram: rows of E4M3 with E8M0 scales, which vLLM takes in bf16."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from .._engines.options import EngineOptions
from .._engines.table import EngineTable, model_device
from ..errors import WarprowError, invalid
from . import _steps
from ._asked import VLLM, asked, version

PATTERN = "*layers.{layer}.engram.embed.weight"
#: What is called or replaced here, with the arguments that it has to take.
SIGNATURES = {
    "get_current_vllm_config": (),
    "get_engram_dp_size": (),
    "Engram._create_embedding": ("self", "layout", "layer_hash_index"),
    "Engram.prepare_embeddings": ("self", "hash_ids"),
    "ParallelEngramEmbedding.__init__": (
        "self", "num_embeddings", "dim", "head_sizes", "block_size", "cpu_offload", "dp_shared_memory", "use_thp",
    ),
    "ParallelEngramEmbedding._allocate_weights": ("self",),
    "ParallelEngramEmbedding._weight_loader": ("param", "loaded_weight"),
    "ParallelEngramEmbedding._storage": ("self",),
    "ParallelEngramEmbedding.lookup": ("self", "indices", "out", "background"),
}  # fmt: skip


def install(module: ModuleType) -> None:
    """Has `Engram` make its table from a checkpoint's where the configuration asks for it."""
    engram = getattr(module, "Engram", None)
    original = getattr(engram, "_create_embedding", None)
    if engram is None or original is None:
        return

    @functools.wraps(original)
    def _create_embedding(self: Any, layout: Any, layer_hash_index: int) -> Any:
        config = module.get_current_vllm_config()
        options = asked(config)
        if options is None:
            return original(self, layout, layer_hash_index)
        VLLM.check_signatures(version(), module, SIGNATURES)
        _steps.check("vllm.models.deepseek_v41.nvidia.model_state", "DeepseekV41ModelState")
        return stored_class(module)(options, layout, layer_hash_index, config.scheduler_config.max_num_batched_tokens)

    engram._create_embedding = _create_embedding


@functools.cache
def stored_class(module: ModuleType) -> Any:
    """vLLM's table of hash heads, with rows where a checkpoint has them."""

    class StoredEngramEmbedding(module.ParallelEngramEmbedding):  # type: ignore[name-defined]
        """Heads, ranks, staging, streams and collectives are vLLM's own."""

        def __init__(self, options: EngineOptions, layout: Any, layer_hash_index: int, max_tokens: int) -> None:
            rows = layout.num_embeddings[layer_hash_index]
            self._has_scales = options.scales_on_gpu
            # As a table in host memory it is looked up on a stream of its own, beside the layers before. As one that the replicas of a
            # machine share it has every head of its replica's tensor-parallel rank: each rank looks up what its own tokens need.
            super().__init__(
                rows,
                layout.head_dim,
                tuple(size for order in layout.primes[layer_hash_index] for size in order),
                cpu_offload=True,
                dp_shared_memory=module.get_engram_dp_size() > 1,
            )
            layer = layout.layer_ids[layer_hash_index]
            self.stored = EngineTable(
                options,
                name=f"engram{layer}",
                pattern=(options.tensor or PATTERN).replace("{layer}", str(layer)),
                codes=self._has_scales,
                rows=rows,
                owned=(self.vocab_start_idx, self.vocab_end_idx),
                dim=layout.head_dim,
                heads=self.part_n_hash_cols,
                max_tokens=max_tokens,
                scales=self.weight_scale_inv.data if self._has_scales else None,
            )

        def _allocate_weights(self) -> tuple[torch.Tensor, torch.Tensor]:
            codes = torch.empty(0, self.dim, dtype=torch.float8_e4m3fn)
            rows = self.vocab_end_idx - self.vocab_start_idx if self._has_scales else 0
            return codes, torch.empty(rows, self.dim // self.block_size, dtype=torch.uint8, device=model_device())

        def _weight_loader(self, param: torch.nn.Parameter, loaded_weight: torch.Tensor) -> None:
            """Copies scales that are to lie in GPU memory, and nothing else."""
            if loaded_weight.dim() != 2 or loaded_weight.shape[0] < self.vocab_end_idx or loaded_weight.shape[1] != param.shape[1]:
                shape = (self.num_embeddings, param.shape[1])
                raise invalid("loaded_weight", f"shape {tuple(loaded_weight.shape)}, where the model has {shape}")
            if param.numel():
                param.data.copy_(loaded_weight[self.vocab_start_idx : self.vocab_end_idx].view(torch.uint8))

        def _storage(self) -> tuple[torch.Tensor, torch.Tensor]:
            raise WarprowError(
                f"the rows of {self.stored.name} lie where the checkpoint has them, and something in vLLM wants them in memory: "
                "serve this model without warprow, and report it"
            )

        def lookup(self, indices: torch.Tensor, out: torch.Tensor, background: bool = False) -> None:
            """Fills `out` with the rows of this rank's heads. Fetching takes few multiprocessors anyway, whatever `background` says."""
            if out.dtype != torch.bfloat16:
                raise invalid("out", f"elements of type {out.dtype}: warprow gives rows of torch.bfloat16 alone")
            if indices.shape[0]:
                self.stored.read(indices[:, self.head_start : self.head_start + self.part_n_hash_cols], out)

    return StoredEngramEmbedding
