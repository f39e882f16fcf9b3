"""vLLM's own PLE classes in captured graphs on a GPU, with their table in pinned memory and with rows by the plug-in: the same bits."""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

from checkpoints import codes, write_folder  # noqa: E402
from test_vllm import PLE, World, world  # noqa: E402, F401

import warprow.vllm as plug_in  # noqa: E402
from warprow._engines import table as tables  # noqa: E402

#: As Qwen's table, but for its number of rows: 16 heads of 160 elements in 128 shards.
HEADS, WIDTH, SHARDS, FILES, BASE = 16, 160, 128, 33, 20_000
EOS, VOCABULARY, MOST, HIDDEN = 1, 5_000, 2_048, 512
PREFIX = "language_model.model.layers.1.ple.ple_embedding"
SEED = 20261126


def config(kind: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        ngram_size=3, heads_per_ngram=HEADS // 2, eos_token_id=EOS, vocab_size=VOCABULARY, split_ngram_parts=SHARDS, seed=1234,
        ngram_vocab_size_base=BASE, make_ngram_vocab_size_divisible_by=SHARDS, ple_embedding_dtype={"bf16": None, "fp8": "float8_e4m3fn", "nvfp4": "nvfp4"}[kind],
    )  # fmt: skip


def made(world: World, kind: str) -> Any:  # noqa: F811
    with world.device:
        return importlib.import_module(PLE).Qwen4ExpNGramEmbedding(
            config(kind), WIDTH * HEADS, 0, MOST, data_parallel_rank=0, prefix=PREFIX, params_dtype=torch.bfloat16
        )


def checkpoint(folder: Path, kind: str, rows: int) -> dict[str, torch.Tensor]:
    """Writes the table's shards into files. Returns the tensors by vLLM's names."""
    random = torch.Generator().manual_seed(SEED)
    parts: dict[str, tuple[str, torch.Tensor]] = {}
    whole: dict[str, tuple[str, torch.Tensor]] = {}
    if kind == "fp8":
        parts["weight"] = ("F8_E4M3", codes(rows, WIDTH, SEED))
        whole["weight_scale"] = ("BF16", torch.tensor([0.00019931793], dtype=torch.bfloat16))
    elif kind == "nvfp4":
        parts["weight"] = ("U8", torch.randint(0, 256, (rows, WIDTH // 2), generator=random).to(torch.uint8))
        parts["weight_scale"] = ("F8_E4M3", torch.randint(40, 90, (rows, WIDTH // 16), generator=random).to(torch.uint8))
        whole["weight_scale_2"] = ("F32", torch.tensor([0.0137]))
    else:
        parts["weight"] = ("BF16", torch.randn((rows, WIDTH), generator=random).to(torch.bfloat16))
    files: dict[str, Any] = {f"m{number}.safetensors": {} for number in range(FILES)}
    found = {}

    def add(number: int, name: str, dtype: str, tensor: torch.Tensor) -> None:
        files[f"m{number % FILES}.safetensors"][f"model.language_model.layers.1.ple.ple_embedding.ngram_embedding.{name}"] = (dtype, tensor)
        found[f"ngram_embedding.{name}"] = tensor.view(torch.float8_e4m3fn) if dtype == "F8_E4M3" else tensor

    each = rows // SHARDS
    for part in range(SHARDS):
        for name, (dtype, tensor) in parts.items():
            add(part, f"shard_{part}.{name}", dtype, tensor[part * each : (part + 1) * each])
    for name, (dtype, tensor) in whole.items():
        add(0, name, dtype, tensor)
    write_folder(folder, files)
    return found


class Step:
    """What a step of a decoder reads and writes. A graph holds none of its inputs, so all of them live as long as the step."""

    def __init__(self, layer: Any, tokens: int, weights: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.layer, self.weights = layer, weights
        self.tokens = torch.zeros(tokens, dtype=torch.int32, device="cuda")
        # Each sequence has one token.
        self.starts = torch.arange(tokens + 1, dtype=torch.int32, device="cuda")
        self.context = torch.zeros((tokens, 2), dtype=torch.int32, device="cuda")
        self.hidden = torch.zeros((tokens, HIDDEN), dtype=torch.bfloat16, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        self.run()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            self.rows, self.out = self.run()

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        before, into = self.weights
        given = self.tokens, self.starts, self.context
        # Rows are fetched beside the layer before.
        self.layer.start_prefetch(*given)
        hidden = self.hidden
        for _ in range(3):
            hidden = torch.nn.functional.silu(hidden @ before)
        rows = self.layer.ngram_embedding.dequantize(self.layer(hidden, *given), torch.bfloat16)
        return rows, hidden + rows @ into


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def both(world: World, folder: Path, kind: str) -> tuple[Any, Any]:  # noqa: F811
    """vLLM's layer with its table in pinned memory, and with rows by the plug-in."""
    pinned = made(world, kind)
    module = importlib.import_module(PLE)
    assert type(pinned.ngram_embedding) is module.Qwen4ExpPLEPinnedHostEmbedding and pinned.ngram_embedding.weight.is_pinned()
    tensors = list(checkpoint(folder, kind, pinned.ngram_embedding.org_vocab_size).items())
    pinned.load_weights(tensors)
    world.ask(folder)
    ours = made(world, kind)
    ours.load_weights(tensors)
    assert ours.ngram_embedding.stored in plug_in.tables()
    print(f"seed {SEED}")
    return pinned, ours


@pytest.mark.parametrize("kind", ["fp8", "bf16"])
def test_ple_in_captured_graphs_gives_the_bits_of_the_pinned_table(world: World, tmp_path: Path, kind: str, record_property: Callable) -> None:  # noqa: F811
    if world.is_stand_in:
        pytest.skip("stand-ins make no ids")
    pinned, ours = both(world, tmp_path / "ple", kind)
    random = torch.Generator(device="cuda").manual_seed(SEED)

    def text(count: int) -> torch.Tensor:
        return torch.randint(0, VOCABULARY, (count,), generator=random, device="cuda", dtype=torch.int32)

    weights = tuple(
        torch.randn(shape, generator=random, device="cuda", dtype=torch.bfloat16) / 16 for shape in ((HIDDEN, HIDDEN), (WIDTH * HEADS, HIDDEN))
    )
    steps = {tokens: (Step(pinned, tokens, weights), Step(ours, tokens, weights)) for tokens in (1, 4, 16, 64)}
    compared = 0
    for number in range(40):
        for tokens, (one, other) in steps.items():
            given, context = text(tokens), text(2 * tokens).view(tokens, 2)
            if number % 3 == 0:
                # An n-gram does not reach beyond an end of text.
                context[0, 1] = EOS
            hidden = torch.randn((tokens, HIDDEN), generator=random, device="cuda", dtype=torch.bfloat16)
            for step in (one, other):
                step.tokens.copy_(given), step.context.copy_(context), step.hidden.copy_(hidden)
                step.graph.replay()
            torch.cuda.synchronize()
            assert one.rows.any() and same(one.rows, other.rows) and same(one.out, other.out), (kind, number, tokens)
            compared += tokens * HEADS
            tables.between_steps()
    # Prefills of several sequences, outside of graphs.
    for lengths in ((MOST,), (341,), (5, 1, 700, 2, 300)):
        given = (
            text(sum(lengths)),
            torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32),
            text(2 * len(lengths)).view(-1, 2),
        )
        found = []
        for layer in (pinned, ours):
            layer.start_prefetch(*given)
            found.append(layer.ngram_embedding.dequantize(layer(None, *given), torch.bfloat16))
        torch.cuda.synchronize()
        assert found[0].any() and same(*found), (kind, lengths)
        compared += sum(lengths) * HEADS
    tables.between_steps()
    assert not ours.ngram_embedding.stored.failures
    record_property("rows", compared)
    print(f"{kind}: {compared} rows have the same bits")


def test_ple_of_nvfp4_is_vllms_but_for_the_last_place(world: World, tmp_path: Path) -> None:  # noqa: F811
    """vLLM's kernel multiplies a code by its block's scale first, and this package the two scales."""
    if not hasattr(importlib.import_module(PLE), "Qwen4ExpPLENvFp4EmbeddingMethod"):
        pytest.skip(f"{world.folder.name} has no tables of NVFP4")
    if world.is_stand_in:
        pytest.skip("stand-ins make no ids")
    layers = both(world, tmp_path / "ple", "nvfp4")
    random = torch.Generator(device="cuda").manual_seed(SEED)
    ids = torch.randint(0, layers[0].ngram_embedding.org_vocab_size, (MOST, HEADS), generator=random, device="cuda")
    one, other = (layer.ngram_embedding.dequantize(layer.ngram_embedding._lookup(ids), torch.bfloat16) for layer in layers)
    torch.cuda.synchronize()
    # Of a code for −0 vLLM's kernel makes +0.
    one, other = one + 0.0, other + 0.0
    assert one.any() and torch.equal(torch.signbit(one), torch.signbit(other))
    places = (one.view(torch.int16).int() - other.view(torch.int16).int()).abs()
    share = (places > 0).float().mean().item()
    print(f"nvfp4: of {places.numel()} numbers {share:.3%} differ, by {places.max().item()} in the last place of bf16")
    assert places.max() <= 1 and share < 0.01
