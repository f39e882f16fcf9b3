"""Stands for vLLM's module of this name: its classes' names and signatures of release 0.33.0, over a table in memory."""

import torch
from torch import nn

from vllm.config import get_current_vllm_config
from vllm.distributed import get_engram_dp_size, get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size


class EngramLayout:
    def __init__(self, config):
        self.layer_ids = tuple(config.engram_layer_ids)
        self.num_embeddings = tuple(config.engram_num_embeddings)
        self.head_dim = config.engram_head_dim
        self.max_ngram_size, self.n_heads = config.engram_max_ngram_size, config.engram_n_heads
        self.primes = config.stand_in_primes


def _load(param, loaded_weight):
    param.data.copy_(loaded_weight[param.engram_vocab_start :][: len(param)].view(param.dtype))


class ParallelEngramEmbedding(nn.Module):
    def _weight_loader(param, loaded_weight):
        _load(param, loaded_weight)

    _weight_loader = staticmethod(_weight_loader)

    def __init__(self, num_embeddings, dim, head_sizes, block_size=32, cpu_offload=False, dp_shared_memory=False, use_thp=False):
        super().__init__()
        self.num_embeddings, self.dim, self.block_size, self.cpu_offload = num_embeddings, dim, block_size, cpu_offload
        self.n_hash_cols, self.dp_size = len(head_sizes), 1 if dp_shared_memory else get_engram_dp_size()
        self.tp_size, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
        self.part_n_hash_cols = -(-self.n_hash_cols // self.tp_size)
        self.head_start = rank * self.part_n_hash_cols
        self.vocab_start_idx = sum(head_sizes[: self.head_start])
        self.vocab_end_idx = sum(head_sizes[: self.head_start + self.part_n_hash_cols])
        weight, scales = self._allocate_weights()
        self.weight, self.weight_scale_inv = nn.Parameter(weight, requires_grad=False), nn.Parameter(scales, requires_grad=False)
        for param in (self.weight, self.weight_scale_inv):
            param.weight_loader, param.engram_vocab_start = self._weight_loader, self.vocab_start_idx

    def _allocate_weights(self):
        rows = self.vocab_end_idx - self.vocab_start_idx
        return torch.empty(rows, self.dim, dtype=torch.float8_e4m3fn), torch.empty(rows, self.dim // self.block_size, dtype=torch.uint8)

    def _storage(self):
        return self.weight.data, self.weight_scale_inv.data

    def lookup(self, indices, out, background=False):
        weight, scales = self._storage()
        for head in range(self.part_n_hash_cols):
            column = self.head_start + head
            if column >= self.n_hash_cols:
                out[:, head] = 0
                continue
            local = indices[:, column].long() - self.vocab_start_idx
            owned = (local >= 0) & (local < len(weight))
            local = local.where(owned, torch.zeros_like(local))
            factors = torch.exp2(scales[local].float() - 127).repeat_interleave(self.block_size, 1)
            out[:, head] = (weight[local].float() * factors).to(torch.bfloat16) * owned[:, None]


class Engram(nn.Module):
    def __init__(self, config, quant_config, layout, layer_hash_index, use_sequence_parallel, prefix, prefetch_stream=None):
        super().__init__()
        self.embed_tokens = self._create_embedding(layout, layer_hash_index)
        tokens = get_current_vllm_config().scheduler_config.max_num_batched_tokens
        self.staged_rows = torch.empty(tokens, self.embed_tokens.part_n_hash_cols, layout.head_dim, dtype=torch.bfloat16)

    def _create_embedding(self, layout, layer_hash_index):
        heads = tuple(size for order in layout.primes[layer_hash_index] for size in order)
        return ParallelEngramEmbedding(layout.num_embeddings[layer_hash_index], layout.head_dim, heads, cpu_offload=True)

    def prepare_embeddings(self, hash_ids):
        self.embed_tokens.lookup(hash_ids, self.staged_rows[: len(hash_ids)], background=True)

    def embed(self, hash_ids):
        return self.staged_rows[: len(hash_ids), : self.embed_tokens.n_hash_cols]
