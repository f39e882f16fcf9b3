"""Stands for vLLM's module of this name: its classes' names and signatures of release 0.33.0, over a table in memory."""

import torch
from torch import nn

from vllm.distributed import get_etp_group
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.parameter import ModelWeightParameter, PerTensorScaleParameter


class Qwen4ExpPLEEmbeddingMethod:
    def lookup_dtype(self, layer):
        return layer.weight.dtype

    def dequantize(self, layer, embeddings, output_dtype):
        return embeddings


class Qwen4ExpPLEUnquantizedEmbeddingMethod(Qwen4ExpPLEEmbeddingMethod):
    def create_weights(self, layer, width, parts, input_size, output_size, params_dtype, weight_loader):
        layer.weight = nn.Parameter(layer.allocate_embedding_weight(sum(parts), width, params_dtype), requires_grad=False)
        layer.weight.weight_loader = weight_loader


class Qwen4ExpPLEFp8EmbeddingMethod(Qwen4ExpPLEEmbeddingMethod):
    def create_weights(self, layer, width, parts, input_size, output_size, params_dtype, weight_loader):
        data = layer.allocate_embedding_weight(sum(parts), width, torch.float8_e4m3fn)
        layer.weight = ModelWeightParameter(data=data, weight_loader=weight_loader)
        layer.weight_scale = PerTensorScaleParameter(data=torch.zeros(1), weight_loader=weight_loader)

    def dequantize(self, layer, embeddings, output_dtype):
        return embeddings.to(output_dtype) * layer.weight_scale.to(output_dtype)


class Qwen4ExpPLEPinnedHostEmbedding(VocabParallelEmbedding):
    def __init__(self, num_embeddings, embedding_dim, *, params_dtype, padding_size, prefix, embedding_method, num_ngram_heads=1,
                 max_total_tokens=0, data_parallel_rank=0, reduce_results=True):  # fmt: skip
        super().__init__(num_embeddings, embedding_dim, params_dtype=params_dtype, padding_size=padding_size, prefix=prefix,
                         quant_method=embedding_method, parallel_group=get_etp_group(), reduce_results=reduce_results)  # fmt: skip
        self.embedding_method, self._prefetch_rows, self._num_ngram_heads = embedding_method, max_total_tokens, num_ngram_heads

    def allocate_embedding_weight(self, num_embeddings, embedding_dim, dtype):
        return torch.zeros(num_embeddings, embedding_dim).to(dtype)

    def weight_loader(self, param, loaded_weight, checkpoint_start=None):
        if checkpoint_start is None:
            super().weight_loader(param, loaded_weight)
        else:
            first = self.shard_indices.org_vocab_start_index
            for row in range(len(loaded_weight)):
                if first <= checkpoint_start + row < self.shard_indices.org_vocab_end_index:
                    param.data[checkpoint_start + row - first] = loaded_weight[row]

    def _lookup(self, input_ids, output=None):
        local = input_ids - self.shard_indices.org_vocab_start_index
        owned = (local >= 0) & (local < len(self.weight))
        rows = self.weight.float()[local.where(owned, torch.zeros_like(local))] * owned[..., None]
        rows = rows.to(self.embedding_method.lookup_dtype(self))
        return rows if output is None else output.copy_(rows)

    def sync_lookup(self, ngram_ids):
        return self._lookup(ngram_ids)

    def dequantize(self, embeddings, output_dtype):
        return self.embedding_method.dequantize(self, embeddings, output_dtype)
