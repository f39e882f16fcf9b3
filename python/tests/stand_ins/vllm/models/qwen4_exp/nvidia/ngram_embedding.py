"""Stands for vLLM's module of this name: its classes' names and signatures of release 0.33.0."""

from torch import nn

from vllm.config import get_current_vllm_config

from ..common.ngram_embedding import (
    Qwen4ExpPLEFp8EmbeddingMethod,
    Qwen4ExpPLEPinnedHostEmbedding,
    Qwen4ExpPLEUnquantizedEmbeddingMethod,
)


class Qwen4ExpNGramEmbedding(nn.Module):
    def __init__(self, config, embedding_dim, ple_dense_layer_id, max_total_tokens, *, data_parallel_rank, prefix, quant_config=None,
                 params_dtype=None, use_sequence_parallel=False):  # fmt: skip
        super().__init__()
        assert get_current_vllm_config().engram_config.cpu_offload
        heads = (config.ngram_size - 1) * config.heads_per_ngram
        is_fp8 = config.ple_embedding_dtype == "float8_e4m3fn"
        self.parts = config.split_ngram_parts
        self.ngram_embedding = Qwen4ExpPLEPinnedHostEmbedding(
            config.stand_in_rows,
            embedding_dim // heads,
            params_dtype=params_dtype,
            padding_size=config.make_ngram_vocab_size_divisible_by,
            prefix=f"{prefix}.ngram_embedding",
            embedding_method=Qwen4ExpPLEFp8EmbeddingMethod() if is_fp8 else Qwen4ExpPLEUnquantizedEmbeddingMethod(),
            num_ngram_heads=heads,
            max_total_tokens=max_total_tokens,
            data_parallel_rank=data_parallel_rank,
        )

    def load_weights(self, weights):
        each = -(-self.ngram_embedding.org_vocab_size // self.parts)
        for name, weight in weights:
            _, _, number = name.partition("shard_")
            parameter = self.ngram_embedding.weight if number else self.ngram_embedding.weight_scale
            start = {"checkpoint_start": int(number.partition(".")[0]) * each} if number else {}
            parameter.weight_loader(parameter, weight, **start)
        return set()
