"""Stands for SGLang's module of this name: its classes' names and signatures of release 0.5.23, over a table in memory."""

import torch
from torch import nn

from sglang.srt.layers.vocab_parallel_embedding import VocabParallelEmbedding

from .qwen4_exp_ple_table import allocate_ple_host_table


class Qwen4ExpNGramEmbedding(nn.Module):
    def __init__(self, config, embedding_dim, ple_layer_index=0, quant_config=None, prefix=""):
        super().__init__()
        dtype = torch.float8_e4m3fn if config.ple_embedding_dtype == "float8_e4m3fn" else torch.bfloat16
        width = embedding_dim // ((config.ngram_size - 1) * config.heads_per_ngram)
        table = VocabParallelEmbedding(config.stand_in_rows, width, params_dtype=dtype)
        table.register_buffer("weight_scale", torch.ones(1, dtype=torch.bfloat16))
        self.ngram_embedding = Qwen4ExpPinnedHostEmbedding(table, backend="pinned", table_dir=None) if config.ple_offload_embedding else table


class Qwen4ExpPinnedHostEmbedding(VocabParallelEmbedding):
    def __init__(self, embedding, *, backend="pinned", table_dir=None):
        nn.Module.__init__(self)
        for name in ("tp_size", "org_vocab_size", "embedding_dim", "shard_indices"):
            setattr(self, name, getattr(embedding, name))
        data = allocate_ple_host_table(shape=embedding.weight.shape, dtype=embedding.weight.dtype, backend=backend, table_dir=table_dir)
        self.weight = nn.Parameter(data, requires_grad=False)
        self.register_buffer("weight_scale", embedding.weight_scale)

    def allocate_output(self, shape, device):
        return torch.empty(shape, dtype=torch.bfloat16, device=device)

    def gather(self, input_ids, out=None):
        local = input_ids - self.shard_indices.org_vocab_start_index
        owned = (local >= 0) & (local < len(self.weight))
        rows = self.weight.float()[local.where(owned, torch.zeros_like(local))].to(torch.bfloat16) * owned[..., None]
        return rows if out is None else out.copy_(rows)

    def reduce(self, output):
        return output

    def forward(self, input_ids):
        return self.reduce(self.gather(input_ids))
