"""Stands for SGLang's module of this name: its classes' names and signatures of release 0.5.23, over a table in memory."""

import torch
from torch import nn

from sglang.kernels.ops.quantization.fp4_fake_quant import FP8_BLOCK_SIZE
from sglang.srt.distributed import tensor_model_parallel_all_reduce
from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_parallel


class EngramEmbedding(nn.Module):
    def __init__(self, num_embeddings, dim, layer_id, column_bounds):
        super().__init__()
        self.dim, self.tp_size = dim, get_parallel().tp_size
        each = (len(column_bounds) - 1) // self.tp_size
        self.row_start, end = (column_bounds[each * (get_parallel().tp_rank + part)] for part in (0, 1))
        self.rows = end - self.row_start
        assert not envs.SGLANG_OPT_DSV41_ENGRAM_PEER_SHARDS.get()
        if envs.SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE.get():
            self._init_host_table(num_embeddings, dim, layer_id)
        else:
            self.weight = nn.Parameter(torch.zeros(self.rows, dim).to(torch.float8_e4m3fn), requires_grad=False)
            scales = torch.zeros(self.rows, dim // FP8_BLOCK_SIZE, dtype=torch.uint8).view(torch.float8_e8m0fnu)
            self.scale = nn.Parameter(scales, requires_grad=False)
        self.weight.weight_loader = self.scale.weight_loader = self._load_rows

    def _init_host_table(self, num_embeddings, dim, layer_id):
        raise NotImplementedError

    def _load_rows(self, param, loaded_weight):
        param.data.copy_(loaded_weight[self.row_start : self.row_start + self.rows])

    def finish_load(self, label):
        pass

    def new_rows(self, indices):
        return torch.empty(*indices.shape, self.dim, dtype=torch.bfloat16, device=indices.device)

    def _owned_rows(self, indices):
        local = indices - self.row_start
        owned = (local >= 0) & (local < self.rows)
        local = local.where(owned, torch.zeros_like(local))
        factors = self.scale.float()[local].repeat_interleave(FP8_BLOCK_SIZE, -1)
        return (self.weight.float()[local] * factors).to(torch.bfloat16) * owned[..., None]

    def forward(self, indices, forward_batch=None, *, cp_all_tokens=False):
        rows = self._owned_rows(indices)
        return tensor_model_parallel_all_reduce(rows) if self.tp_size > 1 else rows


class Engram(nn.Module):
    def __init__(self, config, layer_id, layout, quant_config=None, prefix="", *, image_token_id=None):
        super().__init__()
        index = layout.layer_ids.index(layer_id)
        self.embed = EngramEmbedding(layout.num_embeddings[index], layout.head_dim, layer_id, column_bounds=layout.column_bounds(index))

    def embed_rows(self, hash_ids, forward_batch, cp_all_tokens):
        return self.embed(hash_ids, forward_batch, cp_all_tokens=cp_all_tokens)
