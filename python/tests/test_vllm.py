"""`warprow.vllm` in the place of vLLM's own tables, bit by bit: over stand-ins, and over real releases where there are some."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import engine_sources as es  # noqa: E402
from checkpoints import codes, write_folder  # noqa: E402
from engine_world import HAS_GPU, origins, without_gpu  # noqa: E402

import warprow  # noqa: E402
import warprow.vllm as plug_in  # noqa: E402
from warprow._engines import imports, table as tables  # noqa: E402
from warprow._engines.options import EngineOptions, pattern_of  # noqa: E402

DIM, HEADS, TOKENS = 64, 9, 48
#: Of two layers, three orders, three heads.
PRIMES = [[[67, 71, 73], [79, 83, 89], [97, 101, 103]], [[107, 109, 113], [127, 131, 137], [139, 149, 151]]]
SIZES = [[size for order in layer for size in order] for layer in PRIMES]
ENGRAM, PLE = "vllm.models.deepseek_v41.common.engram", "vllm.models.qwen4_exp.nvidia.ngram_embedding"
STATES = {"vllm.models.deepseek_v41.nvidia.model_state": "DeepseekV41ModelState", "vllm.models.qwen4_exp.nvidia.model_state": "Qwen4ExpModelState"}


class World:
    """A vLLM of some origin, one rank of several at a time."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, device: torch.device) -> None:
        self.folder, self.patch, self.device = folder, patch, device
        self.version = es.version_of(folder, "vllm")
        self.is_stand_in = folder.name == "stand_ins"
        self.config = types.SimpleNamespace(
            additional_config={},
            model_config=types.SimpleNamespace(model="nobody/nothing"),
            scheduler_config=types.SimpleNamespace(max_num_batched_tokens=TOKENS),
            engram_config=types.SimpleNamespace(cpu_offload=True, dp_shared_memory=False, use_thp=False),
            lora_config=None,
        )
        self.given = es.vllm_given(self.version, lambda: self.config)

    def ask(self, folder: Path, **options: Any) -> None:
        self.config.additional_config = {"warprow": {"path": str(folder), **options}}

    def rank(self, rank: int, ranks: int) -> None:
        """Is one rank from now on."""
        given = es.vllm_given(self.version, lambda: self.config, rank, ranks)["vllm.distributed"]
        for name, module in (("common", ENGRAM), ("common", PLE.replace("nvidia", "common"))):
            loaded = importlib.import_module(module)
            for function, value in given.items():
                if hasattr(loaded, function):
                    self.patch.setattr(loaded, function, value)
        nvidia = importlib.import_module(PLE)
        for function, value in given.items():
            if hasattr(nvidia, function):
                self.patch.setattr(nvidia, function, value)


@pytest.fixture(params=origins("vllm"))
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with without_gpu(monkeypatch) as device:
        made = World(request.param, monkeypatch, device)
        with es.sources(made.folder, "vllm", es.VLLM_REAL, made.given):
            importlib.import_module("vllm")
            plug_in.register()
            yield made
        imports.forget()
        for table in tables.tables():
            table.close()


@pytest.fixture
def engrams(tmp_path: Path) -> tuple[Path, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Two layers' codes and scales, each in a file of its own."""
    made, files = [], {}
    for index, layer in enumerate((1, 14)):
        rows = sum(SIZES[index])
        random = torch.Generator().manual_seed(layer)
        weight, scales = codes(rows, DIM, layer), torch.randint(120, 134, (rows, DIM // 32), generator=random).to(torch.uint8)
        scales[5, 0] = 0
        files[f"m{index}.safetensors"] = {
            f"layers.{layer}.engram.embed.weight": ("F8_E4M3", weight),
            f"layers.{layer}.engram.embed.scale": ("F8_E8M0", scales),
            f"layers.{layer}.engram.wkv.weight": ("F8_E4M3", codes(4, 8, 1)),
        }
        made.append((weight, scales))
    return write_folder(tmp_path / "engram", files), made


def engram_rows(table: tuple[torch.Tensor, torch.Tensor], ids: torch.Tensor, heads: int = HEADS, sizes: list[int] = SIZES[0]) -> torch.Tensor:
    """By the definition: codes times two to the power of the byte less 127, or zeros for byte 0, to bf16; zeros for ids of no row."""
    weight, scales = table
    known = (ids >= 0) & (ids < len(weight))
    at = ids.long().where(known, torch.zeros((), dtype=torch.int64))
    factors = torch.where(scales == 0, torch.zeros(()), torch.exp2(scales.float() - 127)).repeat_interleave(32, 1)
    rows = (weight.view(torch.float8_e4m3fn).float() * factors).to(torch.bfloat16)[at]
    return torch.where(known[..., None], rows, torch.zeros((), dtype=torch.bfloat16))


def engram_config() -> types.SimpleNamespace:
    return types.SimpleNamespace(
        engram_layer_ids=[1, 14],
        engram_num_embeddings=[sum(sizes) for sizes in SIZES],
        engram_max_ngram_size=4,
        engram_n_heads=3,
        engram_head_dim=DIM,
        engram_compressed_vocab_size=100,
        engram_pad_token_id=2,
        engram_vocab_size=64,
        hidden_size=64,
        hc_mult=2,
        rms_norm_eps=1e-6,
        stand_in_primes=PRIMES,
    )


def engram(world: World, index: int) -> Any:
    module = importlib.import_module(ENGRAM)
    layout = module.EngramLayout(engram_config())
    assert [[list(order) for order in layer] for layer in layout.primes] == PRIMES
    with world.device:
        made = module.Engram(engram_config(), None, layout, index, False, f"model.layers.{layout.layer_ids[index]}.engram")
    # Memory that nobody writes to is seen.
    made.staged_rows.fill_(7)
    return made


def prepared(layer: Any, ids: torch.Tensor) -> torch.Tensor:
    """The rows that a layer has staged for ids; vLLM stages them on a stream of its own."""
    layer.prepare_embeddings(ids)
    if HAS_GPU:
        torch.cuda.synchronize()
    return layer.staged_rows[: len(ids)]


def hash_ids(index: int, tokens: int, seed: int) -> torch.Tensor:
    """Ids of both layers as the hash makes them, each column in its own range, with some that are none."""
    random = torch.Generator().manual_seed(seed)
    columns, first = [], 0
    for size in SIZES[index]:
        columns.append(first + torch.randint(0, size, (tokens,), generator=random))
        first += size
    ids = torch.stack(columns, 1).to(torch.int32)
    ids[tokens // 2] = -1
    if tokens > 3:
        ids[1, 2], ids[2, 0] = sum(SIZES[index]) + 3, -7
    both = torch.full((tokens, 2, HEADS), -1, dtype=torch.int32)
    both[:, index] = ids
    return both


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.cpu().view(torch.int16), other.cpu().view(torch.int16))


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_engram_rows_of_all_ranks_are_the_checkpoints(world: World, engrams: Any, ranks: int) -> None:
    folder, layers = engrams
    world.ask(folder)
    for index in range(2):
        for tokens in (1, 4, TOKENS):
            ids = hash_ids(index, tokens, tokens)
            parts = []
            for rank in range(ranks):
                world.rank(rank, ranks)
                layer = engram(world, index)
                parts.append(prepared(layer, ids.to(world.device)[:, index]))
            found = torch.cat(parts, 1)
            assert same(found[:, :HEADS], engram_rows(layers[index], ids[:, index])), (index, tokens)
            assert not found[:, HEADS:].any()
    world.rank(0, 1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_engram_scales_in_gpu_memory_give_the_same_rows(world: World, engrams: Any, ranks: int) -> None:
    folder, layers = engrams
    world.ask(folder, scales_on_gpu=True)
    weight, scales = layers[0]
    ids = hash_ids(0, TOKENS, 2)
    parts = []
    for rank in range(ranks):
        world.rank(rank, ranks)
        layer = engram(world, 0)
        table = layer.embed_tokens
        own = table.vocab_end_idx - table.vocab_start_idx
        assert table.weight.numel() == 0 and table.weight_scale_inv.shape == (own, DIM // 32)
        assert table.weight_scale_inv.device == world.device and "scales=" in table.stored.address
        table.weight.weight_loader(table.weight, weight.view(torch.float8_e4m3fn))
        table.weight_scale_inv.weight_loader(table.weight_scale_inv, scales.view(torch.float8_e8m0fnu))
        with pytest.raises(warprow.InvalidArgument, match="shape"):
            table.weight_scale_inv.weight_loader(table.weight_scale_inv, scales[:, :1])
        parts.append(prepared(layer, ids.to(world.device)[:, 0]))
    assert same(torch.cat(parts, 1)[:, :HEADS], engram_rows(layers[0], ids[:, 0]))
    world.rank(0, 1)


def test_ids_of_another_ranks_rows_give_zeros(world: World, engrams: Any) -> None:
    folder, layers = engrams
    world.ask(folder)
    world.rank(1, 3)
    layer = engram(world, 0)
    table = layer.embed_tokens
    assert (table.vocab_start_idx, table.vocab_end_idx) == (211, 462)
    ids = torch.full((4, HEADS), 0, dtype=torch.int32)
    ids[:, 3:6] = torch.tensor([210, 211, 462]).to(torch.int32)
    found = prepared(layer, ids.to(world.device))
    wanted = engram_rows(layers[0], ids[:, 3:6])
    wanted[:, [0, 2]] = 0
    assert wanted.any() and same(found, wanted)


def test_loading_copies_nothing_and_compares_shapes(world: World, engrams: Any) -> None:
    folder, layers = engrams
    world.ask(folder)
    table = engram(world, 0).embed_tokens
    assert {name for name, _ in table.named_parameters()} == {"weight", "weight_scale_inv"}
    assert table.weight.numel() == table.weight_scale_inv.numel() == 0
    weight, scales = layers[0]
    table.weight.weight_loader(table.weight, weight.view(torch.float8_e4m3fn))
    table.weight_scale_inv.weight_loader(table.weight_scale_inv, scales.view(torch.float8_e8m0fnu))
    for wrong in (weight[:-1], weight[:, :-1], scales):
        with pytest.raises(warprow.InvalidArgument, match="shape"):
            table.weight.weight_loader(table.weight, wrong)
    with pytest.raises(warprow.WarprowError, match="wants them in memory"):
        table._storage()
    with pytest.raises(warprow.InvalidArgument, match="uint8"):
        table.lookup(torch.zeros((1, HEADS), dtype=torch.int32), torch.zeros((1, HEADS, 66), dtype=torch.uint8))


@pytest.mark.parametrize("additional", [{}, {"warprow": False}, {"another": 1}, None])
def test_nothing_is_done_where_nobody_asks(world: World, additional: Any) -> None:
    world.config.additional_config = additional
    module, ple = importlib.import_module(ENGRAM), importlib.import_module(PLE)
    config = importlib.import_module("vllm.config.vllm").VllmConfig
    config.additional_config = additional
    config().__post_init__()
    made = engram(world, 0)
    assert type(made.embed_tokens) is module.ParallelEngramEmbedding and made.embed_tokens.weight.numel() == sum(SIZES[0]) * DIM
    assert type(ngram(world, "bf16").ngram_embedding) is ple.Qwen4ExpPLEPinnedHostEmbedding
    assert plug_in.tables() == []


def test_releases_that_nobody_looked_at_are_refused(world: World, engrams: Any) -> None:
    folder, _ = engrams
    world.ask(folder)
    vllm, module = importlib.import_module("vllm"), importlib.import_module(ENGRAM)
    world.patch.setattr(vllm, "__version__", "0.99.1")
    with pytest.raises(plug_in.UnknownRelease, match=r"knows vLLM 0\.32\.0 and 0\.33\.0, and this is 0\.99\.1"):
        engram(world, 0)
    world.ask(folder, allow_unknown_version=True)
    assert engram(world, 0).embed_tokens.stored.name == "engram1"
    # What it takes is looked at in any case.
    world.patch.setattr(module.ParallelEngramEmbedding, "lookup", lambda self, ids, rows: None)
    with pytest.raises(plug_in.UnknownRelease, match=r"ParallelEngramEmbedding\.lookup takes self, ids, rows") as caught:
        engram(world, 0)
    assert caught.value.version == "0.99.1"
    world.patch.undo()


def test_a_configuration_is_refused_when_it_is_made(world: World, engrams: Any) -> None:
    config = importlib.import_module("vllm.config.vllm").VllmConfig
    for given, hint in (
        ({"path": "/nowhere/at/all"}, "there is no folder '/nowhere/at/all'"),
        ({}, "path is missing"),
        ({"pth": "x"}, "no option 'pth'"),
        ({"mask": 1}, "mask is a int"),
        ({"max_tokens": 0, "path": "/"}, "max_tokens is 0"),
        ("yes", "a str"),
    ):
        config.additional_config = {"warprow": given}
        with pytest.raises(warprow.WarprowError, match=hint):
            config().__post_init__()
    # The model's own folder is the path, if it is one.
    config.additional_config = {"warprow": True}
    config.model_config = types.SimpleNamespace(model=str(engrams[0]))
    config().__post_init__()


@pytest.mark.parametrize("model", ["Gemma3nForConditionalGeneration", "Gemma4ForCausalLM", "LongcatFlashNgramForCausalLM"])
def test_models_with_other_tables_are_refused_by_name(world: World, tmp_path: Path, model: str) -> None:
    config = importlib.import_module("vllm.config.vllm").VllmConfig
    config.additional_config = {"warprow": {"path": str(tmp_path)}}
    told = tmp_path / "config.json"
    for text in ("{", "[]", '{"architectures": 7}', json.dumps({"architectures": ["DeepseekV41ForCausalLM"]})):
        told.write_text(text)
        config().__post_init__()
    told.write_text(json.dumps({"architectures": [model]}))
    with pytest.raises(warprow.InvalidArgument, match=f"is a {model}, and its .* are none that the plug-in reads"):
        config().__post_init__()


def test_tables_that_do_not_fit_the_model_are_refused(world: World, engrams: Any, tmp_path: Path) -> None:
    weight, scales = engrams[1][0]
    for name, (rows, dim, hint) in {"short": (600, DIM, "600"), "narrow": (763, 32, "dim"), "none": (0, 0, "engram.embed.weight")}.items():
        files = {} if rows == 0 else {
            "layers.1.engram.embed.weight": ("F8_E4M3", weight[:rows, :dim].contiguous()),
            "layers.1.engram.embed.scale": ("F8_E8M0", scales[:rows, : dim // 32].contiguous()),
        }  # fmt: skip
        other = {"layers.9.engram.embed.weight": ("F8_E4M3", weight)}
        world.ask(write_folder(tmp_path / name, {"m.safetensors": files or other}))
        with pytest.raises(warprow.WarprowError, match=hint):
            engram(world, 0)
        assert plug_in.tables() == []


# Qwen's table: 4 heads of 16 elements, 152 rows in 4 shards.
ROWS, WIDTH, PARTS, PLE_HEADS = 152, 16, 4, 4
SCALE = 0.00019931793


@pytest.fixture(params=["bf16", "fp8"])
def ple(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, dict[str, torch.Tensor], torch.Tensor]:
    """A folder, the type of its rows, its tensors by what vLLM calls them, and the rows by the definition."""
    random = torch.Generator().manual_seed(11)
    weight = torch.randn((ROWS, WIDTH), generator=random).to(torch.bfloat16) if request.param == "bf16" else codes(ROWS, WIDTH, 3)
    prefix, each = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding", ROWS // PARTS
    dtype = "BF16" if request.param == "bf16" else "F8_E4M3"
    files: dict[str, Any] = {"a.safetensors": {}, "b.safetensors": {}}
    tensors = {}
    for part in range(PARTS):
        rows = weight[part * each : (part + 1) * each].contiguous()
        files["ab"[part % 2] + ".safetensors"][f"{prefix}.shard_{part}.weight"] = (dtype, rows)
        tensors[f"ngram_embedding.shard_{part}.weight"] = rows if dtype == "BF16" else rows.view(torch.float8_e4m3fn)
    wanted = weight
    if dtype == "F8_E4M3":
        scale = torch.tensor([SCALE], dtype=torch.bfloat16)
        files["a.safetensors"][f"{prefix}.weight_scale"] = ("BF16", scale)
        tensors["ngram_embedding.weight_scale"] = scale
        wanted = weight.view(torch.float8_e4m3fn).to(torch.bfloat16) * scale
    return write_folder(tmp_path / "ple", files), request.param, tensors, wanted


def ngram(world: World, kind: str) -> Any:
    config = types.SimpleNamespace(
        ngram_size=3,
        heads_per_ngram=2,
        eos_token_id=1,
        vocab_size=100,
        split_ngram_parts=PARTS,
        seed=1234,
        ngram_vocab_size_base=31,
        make_ngram_vocab_size_divisible_by=8,
        ple_embedding_dtype={"bf16": None, "fp8": "float8_e4m3fn", "nvfp4": "nvfp4"}[kind],
        stand_in_rows=ROWS,
    )
    with world.device:
        return importlib.import_module(PLE).Qwen4ExpNGramEmbedding(
            config,
            WIDTH * PLE_HEADS,
            0,
            TOKENS,
            data_parallel_rank=0,
            prefix="language_model.model.layers.1.ple.ple_embedding",
            params_dtype=torch.bfloat16,
        )


@pytest.mark.parametrize("ranks", [1, 2])
def test_ple_rows_of_all_ranks_are_the_checkpoints(world: World, ple: Any, ranks: int) -> None:
    folder, kind, tensors, wanted = ple
    world.ask(folder)
    random = torch.Generator().manual_seed(5)
    for tokens in (1, 7, TOKENS):
        ids = torch.randint(0, ROWS, (tokens, PLE_HEADS), generator=random)
        ids[tokens // 2, 1] = -1
        found = torch.zeros((tokens, PLE_HEADS, WIDTH), dtype=torch.bfloat16)
        for rank in range(ranks):
            world.rank(rank, ranks)
            made = ngram(world, kind)
            made.load_weights(list(tensors.items()))
            table = made.ngram_embedding
            assert table.weight.shape == (1, WIDTH) and table.weight.dtype == torch.bfloat16
            rows = table._lookup(ids.to(world.device))
            assert rows.dtype == torch.bfloat16
            # No two ranks have the same row.
            found += table.dequantize(rows, torch.bfloat16).cpu()
        at = ids.where(ids >= 0, torch.zeros((), dtype=torch.int64))
        assert torch.equal(found, torch.where(ids[..., None] >= 0, wanted[at], torch.zeros((), dtype=torch.bfloat16)))
    with pytest.raises(warprow.InvalidArgument, match="shape"):
        table._lookup(ids, torch.empty((1, 1, WIDTH), dtype=torch.bfloat16))
    world.rank(0, 1)


def test_ple_scales_are_loaded_and_rows_are_compared(world: World, ple: Any) -> None:
    folder, kind, tensors, _ = ple
    world.ask(folder)
    made = ngram(world, kind)
    made.load_weights(list(tensors.items()))
    table = made.ngram_embedding
    if kind == "fp8":
        assert table.weight_scale.item() == torch.tensor(SCALE, dtype=torch.bfloat16).item()
    with pytest.raises(warprow.InvalidArgument, match="shape"):
        table.weight_loader(table.weight, torch.zeros((8, WIDTH + 1)), checkpoint_start=0)
    world.ask(folder, scales_on_gpu=True)
    with pytest.raises(warprow.InvalidArgument, match="scales_on_gpu is of Engram alone"):
        ngram(world, kind)
    world.ask(folder)
    world.config.engram_config.cpu_offload = False
    with pytest.raises(warprow.InvalidArgument, match="cpu_offload"):
        ngram(world, kind)


def test_ple_rows_of_nvfp4(world: World, tmp_path: Path) -> None:
    if not hasattr(importlib.import_module(PLE), "Qwen4ExpPLENvFp4EmbeddingMethod"):
        pytest.skip(f"{world.folder.name} has no tables of NVFP4")
    random, each = torch.Generator().manual_seed(8), ROWS // PARTS
    packed = torch.randint(0, 256, (ROWS, WIDTH // 2), generator=random).to(torch.uint8)
    blocks, scale = torch.randint(40, 90, (ROWS, 1), generator=random).to(torch.uint8), torch.tensor([0.0137])
    prefix, names, given = "model.language_model.layers.1.ple.ple_embedding.", {}, [("ngram_embedding.weight_scale_2", scale)]
    for part in range(PARTS):
        rows = slice(part * each, (part + 1) * each)
        names[f"{prefix}ngram_embedding.shard_{part}.weight"] = ("U8", packed[rows].contiguous())
        names[f"{prefix}ngram_embedding.shard_{part}.weight_scale"] = ("F8_E4M3", blocks[rows].contiguous())
        given.append((f"ngram_embedding.shard_{part}.weight", packed[rows]))
        given.append((f"ngram_embedding.shard_{part}.weight_scale", blocks[rows].view(torch.float8_e4m3fn)))
    names[f"{prefix}ngram_embedding.weight_scale_2"] = ("F32", scale)
    world.ask(write_folder(tmp_path / "nvfp4", {"m.safetensors": names}))
    made = ngram(world, "nvfp4")
    made.load_weights(given)
    table = made.ngram_embedding
    assert table.weight_scale_2.item() == scale.item() and table.weight.shape == (1, WIDTH // 2)
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    halves = torch.stack([packed & 15, packed >> 4], 2).flatten(1).long()
    values = magnitudes[halves & 7] * torch.where(halves > 7, -1.0, 1.0)
    wanted = (values * (blocks.view(torch.float8_e4m3fn).float() * scale)).to(torch.bfloat16)
    ids = torch.arange(ROWS).view(-1, PLE_HEADS)
    rows = table.dequantize(table._lookup(ids.to(world.device)), torch.bfloat16)
    assert torch.equal(rows.cpu(), wanted[ids]) and wanted.any()


def test_ple_rows_from_tokens(world: World, ple: Any) -> None:
    """The engine's own ids and both halves of its own prefetch."""
    if world.is_stand_in:
        pytest.skip("stand-ins make no ids")
    folder, kind, tensors, wanted = ple
    world.ask(folder)
    made = ngram(world, kind)
    made.load_weights(list(tensors.items()))
    tokens = torch.tensor([5, 9, 1, 44, 5, 9, 71], dtype=torch.int32, device=world.device)
    starts = torch.tensor([0, 4, 7], dtype=torch.int32, device=world.device)
    context = torch.ones((2, 2), dtype=torch.int32, device=world.device)
    ids = made.compute_ngram_ids(tokens, starts, context).cpu()
    assert ids.shape == (7, PLE_HEADS) and ids.min() >= 0 and ids.max() < ROWS
    made.start_prefetch(tokens, starts, context)
    found = made(None, tokens, starts, context)
    assert torch.equal(made.ngram_embedding.dequantize(found, torch.bfloat16).cpu(), wanted[ids].flatten(-2))


def test_steps_begin_with_what_befell_the_last(world: World, engrams: Any) -> None:
    world.ask(engrams[0])
    engram(world, 0)
    (table,) = plug_in.tables()
    seen = []
    world.patch.setattr(table, "between_steps", lambda: seen.append(1))
    for number, (name, state) in enumerate(STATES.items(), 1):
        made = object.__new__(getattr(importlib.import_module(name), state))
        made.lookback_token_ids, made.uses_ngram_embedding = None, False
        assert made.prepare_inputs(None, None) == {} and len(seen) == number


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[tables.EngineTable, torch.Tensor]]:
    """A table on an emulated drive, which can be told to fail."""
    address = f"emulated:{tmp_path}/0.drive?size=64M"
    rows = torch.randn((400, DIM), generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    with warprow.format(address) as store:
        store.load({"t": rows})
    monkeypatch.setattr(EngineOptions, "address", lambda *_, **__: address)
    options = EngineOptions(path=str(tmp_path), timeout=0.5, mask=True)
    with torch.device("cuda" if HAS_GPU else "cpu"):
        table = tables.EngineTable(options, name="t", pattern="t", codes=False, rows=400, owned=(0, 400), dim=DIM, heads=4, max_tokens=64)
    yield table, rows
    table.close()


@pytest.mark.parametrize("fault", ["unreadable", "unanswered", "fatal"])
def test_a_drive_that_fails_gives_zeros_and_a_report_and_comes_back(failing: Any, fault: str) -> None:
    table, rows = failing
    device = table._table.device
    ids = torch.arange(64 * 4, dtype=torch.int32, device=device).view(64, 4)
    wanted = rows[ids.cpu().long()]

    def look_up() -> torch.Tensor:
        out = torch.full((64, 4, DIM), 7.0, dtype=torch.bfloat16, device=device)
        table.read(ids, out)
        if HAS_GPU:
            torch.cuda.synchronize()
        return out.cpu()

    assert same(look_up(), wanted) and not table.failed.any()
    tables.between_steps()
    assert not table.failures
    # What several rows share is read again row by row, so that one bad read alone would be made good.
    table._store.inject_fault(fault, times=None if fault == "unreadable" else 1)
    found = look_up()
    table._store.clear_faults()
    failed = table.failed.cpu()
    assert failed.any() and same(found, torch.where(failed[..., None], torch.zeros((), dtype=torch.bfloat16), wanted))
    tables.between_steps()
    (error,) = table.failures
    assert isinstance(error, warprow.RowsFailed) and error.count == failed.sum() == table.failed_rows and table.failed_steps == 1
    # It is told once, and the server goes on.
    tables.between_steps()
    assert len(table.failures) == 1
    assert same(look_up(), wanted) and not table.failed.any()
    tables.between_steps()
    assert len(table.failures) == 1


def test_a_file_that_changes_stops_the_engine(world: World, engrams: Any) -> None:
    folder, _ = engrams
    world.ask(folder)
    layer = engram(world, 0)
    ids = hash_ids(0, 4, 1).to(world.device)[:, 0]
    assert prepared(layer, ids).any()
    plug_in.tables()[0].between_steps()
    with (folder / "m0.safetensors").open("ab") as file:
        file.write(b"x")
    assert not prepared(layer, ids).any()
    with pytest.raises(warprow.RowsFailed, match="m0.safetensors"):
        plug_in.tables()[0].between_steps()


@pytest.mark.parametrize("argument", ["WARPROW_SGLANG", 'additional_config["warprow"]'])
def test_a_layers_number_and_pattern_come_from_its_name(argument: str, tmp_path: Path) -> None:
    usual, own = EngineOptions(path=str(tmp_path)), EngineOptions(path=str(tmp_path), tensor="t.{layer}.{}")
    pattern = "*layers.{layer}.{rest}.shard_{}.weight"
    assert pattern_of("model.layers.7.ple.table", pattern, usual, argument) == ("7", "*layers.7.ple.table.shard_{}.weight")
    assert pattern_of("layers.12.ple", pattern, own, argument) == ("12", "t.12.{}")
    for prefix in ("model.ple.table", "layers.x.ple", "layers.7"):
        with pytest.raises(warprow.InvalidArgument, match=f"names no layer: give {re.escape(argument)} a tensor"):
            pattern_of(prefix, pattern, usual, argument)


def test_the_entry_point_imports_no_torch() -> None:
    source = Path(plug_in.__file__).read_text()
    module = inspect.getsource(imports)
    for text in (source, module):
        assert "\nimport torch" not in text
