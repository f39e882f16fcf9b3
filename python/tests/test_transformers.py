"""Rows of a checkpoint that Transformers writes, against the model with random weights that it was made of, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
qwen = pytest.importorskip("transformers.models.qwen4_exp", reason="no Transformers with Qwen4-Exp (5.16 or later) is installed")
import transformers.models.gemma3n as gemma  # noqa: E402

import warprow  # noqa: E402
from warprow.torch import NgramTable  # noqa: E402
from warprow._engines.options import EngineOptions  # noqa: E402
from warprow._engines.table import EngineTable  # noqa: E402

PARTS = 4


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(17)
    config = qwen.Qwen4ExpTextConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=4, moe_intermediate_size=16,
        shared_expert_intermediate_size=16, num_experts_per_tok=2, num_experts=4, hc_count=2, hc_lowrank=8, ple_layer_ids=[1],
        ple_embed_dim=64, heads_per_ngram=2, ngram_vocab_size_base=31, make_ngram_vocab_size_divisible_by=8, split_ngram_parts=PARTS,
        eos_token_id=2, pad_token_id=0, bos_token_id=1, layer_types=["linear_attention", "linear_attention"],
    )  # fmt: skip
    return qwen.Qwen4ExpForCausalLM(config).to(torch.bfloat16).eval()


class Rows(torch.nn.Module):
    """Stands in the place of `nn.Embedding`, over a table in the checkpoint."""

    def __init__(self, table: EngineTable, like: torch.nn.Embedding) -> None:
        super().__init__()
        self.table, self.width = table, like.embedding_dim
        self.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out = torch.empty((*ids.shape, self.width), dtype=torch.bfloat16)
        self.table.read(ids.reshape(-1, ids.shape[-1]), out)
        return out


def test_a_model_with_its_table_in_the_checkpoint_says_the_same(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    (layer,) = [it for it in model.model.layers if getattr(it, "ple", None) is not None]
    ngram = layer.ple.ple_embedding
    own = ngram.ngram_embedding
    options = EngineOptions.read("test", {"path": str(tmp_path)})
    rows = own.num_embeddings
    table = EngineTable(
        options, name="ple", pattern=f"*.ngram_embedding.shard_{{{PARTS}}}.weight", codes=True, rows=rows, owned=(0, rows),
        dim=own.embedding_dim, heads=ngram.ngram_heads,
    )  # fmt: skip
    try:
        every = torch.arange(rows - rows % ngram.ngram_heads).view(-1, ngram.ngram_heads)
        found = torch.empty((*every.shape, own.embedding_dim), dtype=torch.bfloat16)
        table.read(every, found)
        assert torch.equal(found.view(torch.int16), own(every).view(torch.int16)) and found.any()
        tokens = torch.randint(3, 99, (2, 21), generator=torch.Generator().manual_seed(3))
        tokens[0, 9] = 2
        with torch.no_grad():
            wanted = model(tokens, use_cache=False).logits
            ngram.ngram_embedding = Rows(table, own)
            said = model(tokens, use_cache=False).logits
        assert wanted.std() > 0 and torch.equal(said, wanted)
    finally:
        ngram.ngram_embedding = own
        table.close()


def test_embeddings_of_each_layer_are_a_view(tmp_path: Path) -> None:
    """Gemma's rows of all layers, in parts of a layer each: part l of token t is row t * layers + l."""
    torch.manual_seed(18)
    layers, dim, words = 3, 32, 50
    config = gemma.Gemma3nTextConfig(
        vocab_size=words, vocab_size_per_layer_input=words, hidden_size=32, hidden_size_per_layer_input=dim, num_hidden_layers=layers,
        intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_kv_shared_layers=1, laurel_rank=8,
        layer_types=["full_attention"] * layers, activation_sparsity_pattern=[0.0] * layers, altup_num_inputs=2,
    )  # fmt: skip
    model = gemma.Gemma3nTextModel(config).to(torch.bfloat16).eval()
    model.save_pretrained(tmp_path)
    own = model.embed_tokens_per_layer
    tokens = torch.tensor([7, 0, 49, 7, 23])
    with warprow.open(f"attached:{tmp_path},tensor=layers=*embed_tokens_per_layer.weight,dim={dim}") as store:
        table = NgramTable(store, "layers", heads=layers, rows=words * layers)
        rows = table(tokens[:, None] * layers + torch.arange(layers))
        assert torch.equal(rows.view(torch.int16), own.weight[tokens].view(torch.int16)) and rows.any()
        # The model multiplies by the root of the width.
        assert torch.equal(rows * own.embed_scale.to(rows.dtype), own(tokens))
