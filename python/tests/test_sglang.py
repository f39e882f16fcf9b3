"""`warprow.sglang` in the place of SGLang's own tables, bit by bit: over stand-ins, and over a real release where there is one."""

from __future__ import annotations

import importlib
import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import engine_sources as es  # noqa: E402
from checkpoints import codes, write_folder  # noqa: E402
from engine_world import origins, without_gpu  # noqa: E402

import warprow  # noqa: E402
import warprow.sglang as plug_in  # noqa: E402
from warprow._engines import imports, table as tables  # noqa: E402

DIM, HEADS, LAYER = 64, 6, 14
SIZES = [53, 59, 61, 67, 71, 73]
ENGRAM, QWEN, RUNNER = "sglang.srt.layers.engram", "sglang.srt.models.qwen4_exp", "sglang.srt.model_executor.model_runner"


class World:
    """An SGLang of some origin, as one rank of several."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, device: torch.device) -> None:
        self.folder, self.patch, self.device = folder, patch, device
        self.version = es.version_of(folder, "sglang")
        if folder.name != "stand_ins":
            pytest.importorskip("msgspec", reason="SGLang's sources need msgspec")
            pytest.importorskip("triton", reason="SGLang's sources need Triton")

    def at(self, rank: int, ranks: int, **options: Any) -> Any:
        """Its modules as a rank sees them, with the plug-in asked for."""
        self.patch.setenv("WARPROW_SGLANG", json.dumps(options))
        return _Rank(self, rank, ranks)


class _Rank:
    def __init__(self, world: World, rank: int, ranks: int) -> None:
        self.sources = es.sources(world.folder, "sglang", es.SGLANG_REAL, es.sglang_given(world.version, rank, ranks))

    def __enter__(self) -> None:
        self.sources.__enter__()
        importlib.import_module("sglang")
        try:
            plug_in.register()
        except BaseException:
            self.sources.__exit__(None, None, None)
            raise

    def __exit__(self, *error: Any) -> None:
        self.sources.__exit__(*error)
        imports.forget()
        for table in tables.tables():
            table.close()


@pytest.fixture(params=origins("sglang"))
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with without_gpu(monkeypatch) as device:
        yield World(request.param, monkeypatch, device)


@pytest.fixture
def engram(tmp_path: Path) -> tuple[Path, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A folder, codes, scales, and rows by the definition."""
    rows = sum(SIZES)
    weight = codes(rows, DIM, 5)
    scales = torch.randint(120, 134, (rows, DIM // 32), generator=torch.Generator().manual_seed(6)).to(torch.uint8)
    names = {f"model.layers.{LAYER}.engram.embed.weight": ("F8_E4M3", weight), f"model.layers.{LAYER}.engram.embed.scale": ("F8_E8M0", scales)}
    factors = torch.exp2(scales.float() - 127).repeat_interleave(32, 1)
    wanted = (weight.view(torch.float8_e4m3fn).float() * factors).to(torch.bfloat16)
    return write_folder(tmp_path / "engram", {"m.safetensors": names}), weight, scales, wanted


def layer(world: World) -> Any:
    bounds = [sum(SIZES[:head]) for head in range(HEADS + 1)]
    layout = types.SimpleNamespace(
        layer_ids=(1, LAYER), num_embeddings=(7, sum(SIZES)), head_dim=DIM, max_ngram_size=4, n_heads=2, column_bounds=lambda index: tuple(bounds)
    )
    config = types.SimpleNamespace(rms_norm_eps=1e-6, hidden_size=64, hc_mult=2)
    with world.device:
        return importlib.import_module(ENGRAM).Engram(config, LAYER, layout)


def ids_of(tokens: int) -> torch.Tensor:
    random, first, columns = torch.Generator().manual_seed(tokens), 0, []
    for size in SIZES:
        columns.append(first + torch.randint(0, size, (tokens,), generator=random))
        first += size
    ids = torch.stack(columns, 1)
    ids[tokens // 2, 1] = -1
    return ids


@pytest.mark.parametrize("scales_on_gpu", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_engram_rows_of_all_ranks_are_the_checkpoints(world: World, engram: Any, ranks: int, scales_on_gpu: bool) -> None:
    folder, weight, scales, wanted = engram
    for tokens in (1, 5, 40):
        ids = ids_of(tokens)
        found = torch.zeros((tokens, HEADS, DIM), dtype=torch.bfloat16)
        for rank in range(ranks):
            with world.at(rank, ranks, path=str(folder), scales_on_gpu=scales_on_gpu):
                made = layer(world)
                table = made.embed
                assert table.weight.numel() == 0 and table.scale.shape == (table.rows if scales_on_gpu else 0, DIM // 32)
                assert table.scale.device == world.device or not scales_on_gpu
                table.weight.weight_loader(table.weight, weight.view(torch.float8_e4m3fn))
                table.scale.weight_loader(table.scale, scales.view(torch.float8_e8m0fnu))
                with pytest.raises(warprow.InvalidArgument, match="shape"):
                    table.weight.weight_loader(table.weight, weight[:-1])
                table.finish_load("layer")
                # As the ids of one layer of two.
                both = torch.stack([ids, ids], 1).to(world.device)
                rows = made.embed_rows(both[:, 1], types.SimpleNamespace(engram_staged_rows=None), False)
                assert rows.shape == (tokens, HEADS, DIM) and rows.dtype == torch.bfloat16
                # The sum is what all ranks get from an all-reduce.
                found += rows.cpu()
        at = ids.where(ids >= 0, torch.zeros((), dtype=torch.int64))
        assert torch.equal(found, torch.where(ids[..., None] >= 0, wanted[at], torch.zeros((), dtype=torch.bfloat16)))


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_ple_rows_of_all_ranks_are_the_checkpoints(world: World, tmp_path: Path, kind: str, ranks: int) -> None:
    rows, width, parts, heads, scale = 152, 16, 4, 4, torch.tensor([0.00019931793], dtype=torch.bfloat16)
    weight = codes(rows, width, 3) if kind == "fp8" else torch.randn((rows, width), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    prefix, each = "model.language_model.layers.1.ple.ple_embedding", rows // parts
    dtype = "F8_E4M3" if kind == "fp8" else "BF16"
    shards = {f"{prefix}.ngram_embedding.shard_{part}.weight": (dtype, weight[part * each : (part + 1) * each].contiguous()) for part in range(parts)}
    if kind == "fp8":
        shards[f"{prefix}.ngram_embedding.weight_scale"] = ("BF16", scale)
    folder = write_folder(tmp_path / "ple", {"m.safetensors": shards})
    wanted = weight.view(torch.float8_e4m3fn).to(torch.bfloat16) if kind == "fp8" else weight
    config = types.SimpleNamespace(
        ngram_size=3, heads_per_ngram=2, eos_token_id=1, vocab_size=100, ngram_vocab_size_base=31, make_ngram_vocab_size_divisible_by=8,
        ple_offload_embedding=True, ple_embedding_dtype="float8_e4m3fn" if kind == "fp8" else None, stand_in_rows=rows,
    )  # fmt: skip
    ids = torch.randint(0, rows, (9, heads), generator=torch.Generator().manual_seed(2))
    ids[3, 2] = -1
    found = torch.zeros((9, heads, width), dtype=torch.bfloat16)
    for rank in range(ranks):
        with world.at(rank, ranks, path=str(folder)):
            module = importlib.import_module(QWEN)
            with world.device:
                made = module.Qwen4ExpNGramEmbedding(config, width * heads, prefix=prefix)
            table = made.ngram_embedding
            assert isinstance(table, module.Qwen4ExpPinnedHostEmbedding) and table.weight.device.type == "meta"
            assert table.weight.shape == (rows // ranks, width) and table.weight.dtype == (torch.float8_e4m3fn if kind == "fp8" else torch.bfloat16)
            # As the model's loader copies a shard.
            table.weight.data[:4].copy_(torch.zeros((4, width)).to(device="meta", dtype=table.weight.dtype))
            out = table.allocate_output((9, heads * width), world.device).view(9, heads, -1).fill_(7)
            assert table.gather(ids.to(world.device), out=out) is out
            assert torch.equal(table.gather(ids.to(world.device)), out)
            found += out.cpu()
            with pytest.raises(warprow.InvalidArgument, match="shape"):
                table.gather(ids.to(world.device), out=out[:2])
            world.patch.setenv("WARPROW_SGLANG", json.dumps({"path": str(folder), "scales_on_gpu": True}))
            with pytest.raises(warprow.InvalidArgument, match="scales_on_gpu is of Engram alone"):
                module.Qwen4ExpNGramEmbedding(config, width * heads, prefix=prefix)
            world.patch.setenv("WARPROW_SGLANG", json.dumps({"path": str(folder)}))
            config.ple_offload_embedding = False
            with pytest.raises(warprow.InvalidArgument, match="--ple-offload-embedding"):
                module.Qwen4ExpNGramEmbedding(config, width * heads, prefix=prefix)
            config.ple_offload_embedding = True
    at = ids.where(ids >= 0, torch.zeros((), dtype=torch.int64))
    # SGLang multiplies by the scale behind its all-reduce.
    assert torch.equal(found, torch.where(ids[..., None] >= 0, wanted[at], torch.zeros((), dtype=torch.bfloat16)))


def test_nothing_is_done_where_nobody_asks(world: World) -> None:
    world.patch.delenv("WARPROW_SGLANG", raising=False)
    with es.sources(world.folder, "sglang", es.SGLANG_REAL, es.sglang_given(world.version)):
        plug_in.register()
        assert imports._FINDER.waiting == {}
        assert "warprow" not in importlib.import_module(ENGRAM).EngramEmbedding.__module__


def test_steps_begin_with_what_befell_the_last(world: World, engram: Any) -> None:
    with world.at(0, 1, path=str(engram[0])):
        layer(world)
        (table,) = plug_in.tables()
        seen = []
        world.patch.setattr(table, "between_steps", lambda: seen.append(1))
        assert importlib.import_module(RUNNER).ModelRunner().forward("batch") == "batch" and seen == [1]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('{"path": "/nowhere"}', "no folder '/nowhere'"),
        ("nonsense", "no JSON"),
        ('{"pth": 1}', "no option 'pth'"),
        ("{}", "path is missing"),
    ],
)
def test_what_cannot_be_ends_the_process(world: World, text: str, hint: str) -> None:
    world.patch.setenv("WARPROW_SGLANG", text)
    with es.sources(world.folder, "sglang", es.SGLANG_REAL, es.sglang_given(world.version)):
        importlib.import_module("sglang")
        # SGLang catches every `Exception` of a plug-in, and would serve without it.
        with pytest.raises(SystemExit, match=hint):
            plug_in.register()


def test_releases_that_nobody_looked_at_are_refused(world: World, engram: Any) -> None:
    world.version = "0.4.0"
    with pytest.raises(SystemExit, match=r"knows SGLang 0\.5\.23, and this is 0\.4\.0"), world.at(0, 1, path=str(engram[0])):
        pass
    with world.at(0, 1, path=str(engram[0]), allow_unknown_version=True):
        assert layer(world).embed.stored is not None
