"""`warprow.torch.NgramTable` against torch's own embedding of the same rows, bit by bit."""

from __future__ import annotations

import json
import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import torch.nn.functional as F  # noqa: E402

import warprow  # noqa: E402
import warprow.torch as wt  # noqa: E402

from checkpoints import write  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
SHARDS, EACH, DIM, HEADS = 4, 300, 160, 6


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def codes() -> torch.Tensor:
    random = torch.Generator().manual_seed(3)
    # Without the two codes that are no numbers, whose bits are the processor's.
    return (torch.randint(0, 126, (SHARDS * EACH, DIM), generator=random) + 128 * torch.randint(0, 2, (SHARDS * EACH, DIM), generator=random)).to(torch.uint8)


@pytest.fixture
def folder(tmp_path, codes: torch.Tensor):
    """Shards of E4M3 in two files, and their scale."""
    scale = torch.tensor([0.00019931793], dtype=torch.bfloat16)
    weight_map = {}
    for number in range(2):
        tensors = {f"ple.shard_{shard}.weight": codes[shard * EACH : (shard + 1) * EACH] for shard in range(SHARDS) if shard % 2 == number}
        header, body = {}, b""
        for name, tensor in tensors.items():
            data = tensor.numpy().tobytes()
            header[name] = {"dtype": "F8_E4M3", "shape": [EACH, DIM], "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        if number == 0:
            data = scale.view(torch.uint16).numpy().tobytes()
            header["ple.weight_scale"] = {"dtype": "BF16", "shape": [1], "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        text = json.dumps(header).encode()
        (tmp_path / f"m{number}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
        weight_map |= dict.fromkeys(header, f"m{number}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def oracle(codes: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """As engines compute it: rows as bf16, times the scale as bf16; zeros for ids of no row."""
    table = codes.view(torch.float8_e4m3fn).to(torch.bfloat16)
    known = (ids >= 0) & (ids < len(codes))
    rows = F.embedding(ids.long().where(known, torch.zeros((), dtype=torch.int64)), table)
    rows = rows * torch.tensor(0.00019931793, dtype=torch.bfloat16)
    return torch.where(known[..., None], rows, torch.zeros((), dtype=torch.bfloat16)).flatten(1)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_rows_of_a_token_lie_side_by_side(folder, codes: torch.Tensor, device: str, dtype: torch.dtype) -> None:
    with warprow.open(f"attached:{folder},tensor=ple=ple.shard_{{{SHARDS}}}.weight") as store, store.attach(device) as executor:
        table = wt.NgramTable(executor, "ple", heads=HEADS, rows=SHARDS * EACH, max_tokens=64, prefetch=2)
        assert "heads=6" in repr(table)
        random = torch.Generator().manual_seed(4)
        for tokens in (1, 4, 16, 64):
            ids = torch.randint(-2, SHARDS * EACH + 2, (tokens, HEADS), generator=random).to(dtype)
            wanted = oracle(codes, ids)
            at = ids.to(device)
            found = table(at)
            assert found.shape == (tokens, HEADS * DIM) and found.dtype == torch.bfloat16
            assert torch.equal(found.cpu().view(torch.int16), wanted.view(torch.int16))
            # In two halves, several ahead, into the caller's memory.
            one = table.prefetch(at)
            other = table.prefetch(at.flip(0), behind=one)
            out = torch.full((tokens, HEADS * DIM), 7.0, dtype=torch.bfloat16, device=device)
            assert table.lookup(one, out=out) is out
            assert torch.equal(out.cpu().view(torch.int16), wanted.view(torch.int16))
            assert torch.equal(table.lookup(other).cpu().view(torch.int16), wanted.flip(0).view(torch.int16))
            assert table(at, out=out.zero_()) is out and torch.equal(out.cpu().view(torch.int16), wanted.view(torch.int16))
        # A slice of heads, as a rank of tensor parallelism has it; and padding alone.
        part = wt.NgramTable(executor, "ple", heads=2)
        assert torch.equal(part(at[:, 2:4]).cpu(), wanted.view(-1, HEADS, DIM)[:, 2:4].flatten(1))
        assert not part(torch.full((5, 2), -1, device=device)).any()
        assert part(torch.empty((0, 2), dtype=dtype, device=device)).shape == (0, 2 * DIM)
        table.check()


@pytest.fixture
def blocks(tmp_path) -> tuple[str, torch.Tensor]:
    """A file with a table of E4M3, and its E8M0 scales: every byte there is, the first and the last row's among them NaN."""
    rows, dim = 264, 96
    random = torch.Generator().manual_seed(6)
    codes = torch.randint(0, 126, (rows, dim), generator=random) + 128 * torch.randint(0, 2, (rows, dim), generator=random)
    scales = torch.randint(110, 140, (rows, dim // 32), generator=random)
    scales[:256, 1] = torch.arange(256)
    scales[0, 0] = scales[-1, 2] = 255
    tensors = {"t.weight": ("F8_E4M3", codes.to(torch.uint8)), "t.scale": ("F8_E8M0", scales.to(torch.uint8))}
    write(tmp_path / "m.safetensors", tensors)
    return f"attached:{tmp_path}/m.safetensors", tensors["t.scale"][1]


def same_numbers(one: torch.Tensor, other: torch.Tensor) -> None:
    """Bit for bit; a NaN is any NaN."""
    torch.testing.assert_close(one.cpu(), other.cpu(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(one).cpu() | one.cpu().isnan(), torch.signbit(other).cpu() | other.cpu().isnan())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_scales_in_memory_of_their_own_give_the_same_rows(blocks, device: str, dtype: torch.dtype) -> None:
    address, scales = blocks
    count = len(scales)
    ids = torch.cat((torch.arange(count), torch.tensor([-1, count, -7, 0, count - 1, 1 << 20]))).view(-1, 6)
    with warprow.open(address) as store, warprow.open(f"{address},tensor=t=t.weight,scales=") as codes:
        assert (store.table("t.weight").dtype, codes.table("t").dtype) == ("mxfp8", "f8e4m3")
        wanted = wt.NgramTable(store.attach(device), "t.weight", heads=6, dtype=dtype)(ids.to(device))
        assert wanted.isnan().any() and not wanted.view(-1, 6, 96)[-1, [0, 1, 2, 5]].any()
        own = torch.zeros_like(scales).view(torch.float8_e8m0fnu if dtype == torch.float16 else torch.uint8).to(device)
        executor = codes.attach(device)
        table = wt.NgramTable(executor, "t", heads=6, dtype=dtype, prefetch=1, scales=own)
        # As an engine fills it.
        own.view(torch.uint8).copy_(scales)
        for kind in (torch.int64, torch.int32):
            at = ids.to(kind).to(device)
            same_numbers(table(at), wanted)
            ahead, out = table.prefetch(at), torch.full_like(wanted, 7)
            assert table.lookup(ahead, out=out) is out
            same_numbers(out, wanted)
            rows, found = wt.NgramTable(executor, "t", heads=6, dtype=dtype, scales=own, on_failure="mask")(at)
            same_numbers(rows, wanted)
            assert found.sum() == count + 2
        table.check()
        state = table.state_dict()
        assert list(state) == ["_extra_state"] and state["_extra_state"]["options"]["heads"] == 6
        table.load_state_dict(state)
        with pytest.raises(warprow.InvalidArgument, match="the checkpoint has heads 6, the module 3"):
            wt.NgramTable(executor, "t", heads=3, scales=own).load_state_dict(state)
        across = own.view(torch.uint8).t().contiguous().t()
        for wrong, error in ((own[:-1], "shape"), (own.view(torch.uint8).float(), "elements of type"), (across, "contiguous")):
            with pytest.raises(warprow.WarprowError, match=error):
                wt.NgramTable(executor, "t", heads=6, scales=wrong)
        with pytest.raises(warprow.InvalidArgument, match="dtype"):
            wt.NgramTable(executor, "t", heads=6, scales=own, dtype=torch.uint8)
        with pytest.raises(warprow.InvalidArgument, match="whose elements are mxfp8"):
            # The rows of this table have been multiplied already.
            wt.NgramTable(store.attach(device), "t.weight", heads=6, scales=own)
        if device == "cuda":
            with pytest.raises(warprow.InvalidArgument, match="cpu"):
                wt.NgramTable(executor, "t", heads=6, scales=scales)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_scales_in_gpu_memory_inside_a_graph(blocks) -> None:
    address, scales = blocks
    with warprow.open(address) as store, warprow.open(f"{address},tensor=t=t.weight,scales=") as codes:
        plain = wt.NgramTable(store.attach("cuda"), "t.weight", heads=6)
        table = wt.NgramTable(codes.attach("cuda"), "t", heads=6, max_tokens=16, prefetch=1, scales=scales.cuda())
        ids = torch.full((16, 6), -1, dtype=torch.int32, device="cuda")
        out = torch.empty((16, 6 * 96), dtype=torch.bfloat16, device="cuda")
        table.lookup(table.prefetch(ids))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            table.lookup(table.prefetch(ids), out=out)
        for seed in range(4):
            ids.copy_(torch.randint(-2, len(scales) + 2, (16, 6), generator=torch.Generator().manual_seed(seed)))
            graph.replay()
            same_numbers(out, plain(ids))
        table.check()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_layers_are_fetched_inside_one_graph(folder, codes: torch.Tensor) -> None:
    with warprow.open(f"attached:{folder}") as store, store.attach("cuda") as executor:
        layers = [wt.NgramTable(executor, "ple.weight", heads=HEADS, max_tokens=16, prefetch=1) for _ in range(2)]
        random = torch.Generator().manual_seed(5)
        ids = [torch.full((16, HEADS), -1, dtype=torch.int32, device="cuda") for _ in layers]
        outs = [torch.empty((16, HEADS * DIM), dtype=torch.bfloat16, device="cuda") for _ in layers]
        for layer, at in zip(layers, ids):
            layer.lookup(layer.prefetch(at))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            # The layers share the drive, and the first one's rows are needed first.
            first = layers[0].prefetch(ids[0])
            ahead = [first, layers[1].prefetch(ids[1], behind=first)]
            for layer, held, out in zip(layers, ahead, outs):
                layer.lookup(held, out=out)
        for tokens in (16, 1, 7, 0):
            # A step of fewer tokens is padded by -1, as engines pad.
            for at in ids:
                step = torch.randint(-1, SHARDS * EACH + 1, (16, HEADS), generator=random).to(torch.int32)
                step[tokens:] = -1
                at.copy_(step)
            graph.replay()
            torch.cuda.synchronize()
            for layer, at, out in zip(layers, ids, outs):
                assert torch.equal(out.cpu().view(torch.int16), oracle(codes, at.cpu()).view(torch.int16))
                layer.check()
                assert layer.recover() is False


def test_masks_have_the_shape_of_ids(folder, device: str) -> None:
    with warprow.open(f"attached:{folder}") as store, store.attach(device) as executor:
        table = wt.NgramTable(executor, "ple.weight", heads=3, on_failure="mask")
        rows, found = table(torch.tensor([[0, -1, 5]], device=device))
        assert rows.shape == (1, 3 * DIM) and found.tolist() == [[True, False, True]]


def test_what_does_not_fit_is_refused(folder) -> None:
    with warprow.open(f"attached:{folder}") as store:
        for wrong, hint in (({"heads": 0}, "heads"), ({"heads": 2, "rows": 7}, "has 1200"), ({"heads": 2, "max_tokens": 0}, "max_tokens")):
            with pytest.raises(warprow.WarprowError, match=hint):
                wt.NgramTable(store, "ple.weight", **wrong)
        table = wt.NgramTable(store, "ple.weight", heads=2)
        for shape in ((4,), (4, 3), (1, 4, 2)):
            with pytest.raises(warprow.WarprowError, match=r"\(tokens, 2\)"):
                table(torch.zeros(shape, dtype=torch.int64))
        ahead = wt.NgramTable(store, "ple.weight", heads=2, prefetch=1)
        with pytest.raises(warprow.WrongType, match="behind"):
            ahead.prefetch(torch.zeros((4, 2), dtype=torch.int64), behind=table)
        with pytest.raises(warprow.WarprowError, match="contiguous"):
            table(torch.zeros((4, 2), dtype=torch.int64), out=torch.zeros((4, 7), dtype=torch.bfloat16))
