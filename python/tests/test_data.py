"""Data sets as batches: every value is compared with what NumPy, pyarrow, or the format's bytes by hand, have written."""

from __future__ import annotations

import csv
import gc
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

np: Any = pytest.importorskip("numpy")

import warprow
import warprow.data

SEED = 7
LABELS, DENSE = ["click"], ["age", "price", "depth"]
FEATURES = ["user", "item", "ad"]


class Samples:
    """Samples of one label, three dense features and three sparse ones, of which the last two have lists."""

    def __init__(self, count: int, *, fixed: bool) -> None:
        print(f"seed {SEED}")
        random = np.random.default_rng(SEED)
        self.count = count
        self.labels = random.integers(0, 2, (count, 1)).astype(np.float32)
        self.dense = random.standard_normal((count, 3)).astype(np.float32)
        lengths = [[1, 2, 3] if fixed else [1, int(random.integers(0, 5)), int(random.integers(0, 3))] for _ in range(count)]
        self.ids = [[random.integers(0, 1000, length) for length in sample] for sample in lengths]

    def raw(self, path: Path, of_key: str = "<u4") -> None:
        """Each sample as a row of a structured array."""
        row = np.dtype([("floats", "<f4", 4), ("ids", of_key, 6)])
        table = np.zeros(self.count, row)
        table["floats"] = np.hstack([self.labels, self.dense])
        table["ids"] = [np.concatenate(sample) for sample in self.ids]
        table.tofile(path)

    def norm(self, path: Path, *, checked: bool = True, part: slice = slice(None)) -> None:
        def unit(content: bytes) -> bytes:
            return struct.pack("<i", len(content)) + content + bytes([sum(content) % 256]) if checked else content

        chosen = range(self.count)[part]
        with path.open("wb") as file:
            file.write(unit(struct.pack("<8q", int(checked), len(chosen), 1, 3, 3, 0, 0, 0)))
            for at in chosen:
                lists = b"".join(struct.pack("<i", len(it)) + it.astype("<u4").tobytes() for it in self.ids[at])
                file.write(unit(self.labels[at].tobytes() + self.dense[at].tobytes() + lists))

    def npz(self, path: Path, save: Any) -> None:
        arrays: dict[str, Any] = {"labels": self.labels, "dense": self.dense}
        for nth, name in enumerate(FEATURES):
            lists = [sample[nth] for sample in self.ids]
            ends = np.cumsum([0, *map(len, lists)])
            if ends[-1] == self.count * len(lists[0]) and len({len(it) for it in lists}) == 1:
                arrays[name] = np.array(lists, np.int64).squeeze(1) if len(lists[0]) == 1 else np.array(lists, np.int64)
            else:
                arrays[name], arrays[f"{name}.offsets"] = np.concatenate(lists).astype(np.int64), ends
        save(path, **arrays)

    def csv(self, path: Path) -> None:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["label", *(f"dense_{name}" for name in DENSE), *FEATURES])
            for at in range(self.count):
                lists = ["|".join(map(str, it)) for it in self.ids[at]]
                writer.writerow([*self.labels[at].tolist(), *(repr(it) for it in self.dense[at].tolist()), *lists])

    def compare(self, reader: warprow.data.DataReader, *, torch: bool = False) -> None:
        """Every value of every batch, found in each of the ways in which a batch gives it."""
        array = (lambda it: it.numpy()) if torch else (lambda it: it)
        first = 0
        for batch in reader:
            end = first + batch.samples
            assert batch.first == first and end <= self.count
            assert np.array_equal(array(batch.labels), self.labels[first:end])
            assert np.array_equal(array(batch.dense), self.dense[first:end])
            assert array(batch.labels).dtype == np.float32 and array(batch.ids).dtype == np.int64
            names = [it.name for it in reader.features]
            assert batch.jagged.keys() == names == list(batch.sparse)
            wanted = [[sample[nth] for sample in self.ids[first:end]] for nth in range(3)]
            flat = np.concatenate([ids for lists in wanted for ids in lists])
            assert np.array_equal(array(batch.jagged.values()), flat)
            lengths = [len(ids) for lists in wanted for ids in lists]
            assert array(batch.jagged.lengths()).tolist() == lengths
            assert array(batch.jagged.offsets()).tolist() == np.cumsum([0, *lengths]).tolist()
            assert batch.jagged.length_per_key() == [sum(map(len, lists)) for lists in wanted]
            for name, lists in zip(names, wanted, strict=True):
                ids, offsets = (array(it) for it in batch.sparse[name])
                assert np.array_equal(ids, np.concatenate(lists))
                assert offsets.tolist() == np.cumsum([0, *map(len, lists)]).tolist()
            first = end
        assert first == self.count


def open_raw(path: Any, **args: Any) -> warprow.data.DataReader:
    return warprow.data.open(path, format="raw", labels=LABELS, dense=DENSE, features=FEATURES, hotness=[1, 2, 3], **args)


@pytest.mark.parametrize("of_key", ["<u4", "<i8"])
@pytest.mark.parametrize("batch", [1, 7, 256, 4096])
def test_raw_that_numpy_wrote(tmp_path: Path, of_key: str, batch: int) -> None:
    samples = Samples(1000, fixed=True)
    samples.raw(tmp_path / "t.bin", of_key)
    with open_raw(tmp_path / "t.bin", batch=batch, keys="i64" if of_key == "<i8" else "u32") as reader:
        assert (reader.format, reader.samples, len(reader)) == ("raw", 1000, -(-1000 // batch))
        assert (reader.labels, reader.dense) == (LABELS, DENSE)
        assert [(it.name, it.hotness) for it in reader.features] == [("user", 1), ("item", 2), ("ad", 3)]
        samples.compare(reader)


@pytest.mark.parametrize("checked", [True, False])
def test_norm_by_hand(tmp_path: Path, checked: bool) -> None:
    samples = Samples(1000, fixed=False)
    parts = [slice(0, 300), slice(300, 301), slice(301, 1000)]
    for nth, part in enumerate(parts):
        samples.norm(tmp_path / f"{nth}.data", checked=checked, part=part)
    (tmp_path / "list.txt").write_text("3\n" + "".join(f"{nth}.data\n" for nth in range(3)))
    files = [tmp_path / f"{nth}.data" for nth in range(3)]
    for paths in (tmp_path / "list.txt", str(tmp_path / "list.txt"), files):
        with warprow.data.open(paths, batch=128, features=FEATURES) as reader:
            assert (reader.format, reader.samples, reader.features[1].hotness) == ("norm", 1000, None)
            samples.compare(reader)


@pytest.mark.parametrize("save", ["savez", "savez_compressed"])
@pytest.mark.parametrize("fixed", [True, False])
def test_npz_that_numpy_wrote(tmp_path: Path, save: str, fixed: bool) -> None:
    samples = Samples(3000, fixed=fixed)
    samples.npz(tmp_path / "t.npz", getattr(np, save))
    with warprow.data.open(tmp_path / "t.npz", batch=700, features=FEATURES) as reader:
        assert (reader.samples, reader.dense) == (3000, ["dense0", "dense1", "dense2"])
        assert [it.hotness for it in reader.features] == ([1, 2, 3] if fixed else [1, None, None])
        samples.compare(reader)


def test_csv_that_python_wrote(tmp_path: Path) -> None:
    samples = Samples(500, fixed=False)
    samples.csv(tmp_path / "t.csv")
    with warprow.data.open(tmp_path / "t.csv", batch=64) as reader:
        assert (reader.samples, reader.labels) == (None, ["label"])
        with pytest.raises(TypeError, match="only reading tells"):
            len(reader)
        samples.compare(reader)


@pytest.mark.parametrize("compression", ["NONE", "SNAPPY"])
@pytest.mark.parametrize("fixed", [True, False])
def test_parquet_that_pyarrow_wrote(tmp_path: Path, compression: str, fixed: bool) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    samples = Samples(3000, fixed=fixed)
    for nth, part in enumerate([slice(0, 1100), slice(1100, 3000)]):
        columns: dict[str, Any] = {"label": samples.labels[part, 0]}
        columns |= {name: samples.dense[part, at].astype(np.float64) for at, name in enumerate(DENSE)}
        columns["user"] = [int(sample[0][0]) for sample in samples.ids[part]]
        columns |= {name: [sample[at].tolist() for sample in samples.ids[part]] for at, name in ((1, "item"), (2, "ad"))}
        parquet.write_table(arrow.table(columns), tmp_path / f"{nth}.parquet", compression=compression, row_group_size=500)
    with warprow.data.open(tmp_path, batch=450) as reader:
        assert (reader.format, reader.samples, reader.labels, reader.dense) == ("parquet", 3000, ["label"], DENSE)
        assert [(it.name, it.hotness) for it in reader.features] == [("user", 1), ("item", None), ("ad", None)]
        samples.compare(reader)


def test_memory_is_not_used_again_while_an_array_lives(tmp_path: Path) -> None:
    samples = Samples(2000, fixed=True)
    samples.raw(tmp_path / "t.bin")
    kept, offsets = [], []
    with open_raw(tmp_path / "t.bin", batch=100, ahead=1) as reader:
        for batch in reader:
            kept.append(batch.sparse["item"][0])
            # The program's to write to: later batches do not see it.
            batch.offsets[:] = -1
            offsets.append(batch.offsets)
            del batch
            gc.collect()
    wanted = [np.concatenate([sample[1] for sample in samples.ids[at : at + 100]]) for at in range(0, 2000, 100)]
    assert all(np.array_equal(ids, right) for ids, right in zip(kept, wanted, strict=True))
    assert all((it == -1).all() for it in offsets)
    with open_raw(tmp_path / "t.bin", batch=100, ahead=1) as reader:
        for batch in reader:
            assert batch.offsets[-1] == 600
            batch.offsets[:] = -1


@pytest.mark.parametrize("form", ["norm", "raw", "parquet", "csv", "npz"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_of_every_format_go_into_look_ups(tmp_path: Path, store: warprow.Store, form: str, device: str) -> None:
    """Every row of every batch is compared with that of torch's own bags on the same device, bit for bit."""
    torch = pytest.importorskip("torch")
    import warprow.torch

    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no GPU")
    samples = Samples(600, fixed=form == "raw")
    samples.norm(tmp_path / "t.norm")
    path = tmp_path / f"t.{form}"
    if form != "norm":
        warprow.data.convert(tmp_path / "t.norm", path, to=form, labels=LABELS, dense=DENSE, features=FEATURES)
    shape: dict[str, Any] = {"labels": 1, "dense": 3, "hotness": [1, 2, 3]} if form == "raw" else {}
    shape |= {"features": FEATURES} if form in ("norm", "raw") else {}
    # Text does not say which numbers are dense features.
    shape |= {"labels": LABELS, "dense": DENSE} if form == "csv" else {}
    # Sums of such rows are exact in whatever order they are made.
    made = {name: torch.randint(-128, 128, (1000, 8), generator=torch.Generator().manual_seed(SEED + at)) / 128 for at, name in enumerate(FEATURES)}
    store.load(made)
    # A GPU has some of the rows, DRAM others, and the drive the rest.
    tiers = {"dram_bytes": 20_000} if device == "cpu" else {"dram_bytes": 20_000, "hbm_bytes": 20_000}
    executor = store.attach(device, **tiers)
    features = [warprow.Feature(name, name, pooling="sum") for name in FEATURES]
    collection = warprow.torch.EmbeddingBagCollection(executor, features)
    seen = 0
    with warprow.data.open(path, format=form, batch=250, torch=True, **shape) as reader:
        assert reader.format == form
        for batch in reader:
            there = batch.to(device)
            assert there.ids.device.type == device and (there.samples, there.first) == (batch.samples, seen)
            assert there.jagged.length_per_key() == batch.jagged.length_per_key()
            assert torch.equal(there.labels.cpu(), batch.labels) and torch.equal(there.dense.cpu(), batch.dense)
            joined, mapped = collection(there.jagged), collection(there.sparse)
            for nth, name in enumerate(FEATURES):
                lists = [samples.ids[at][nth] for at in range(seen, seen + batch.samples)]
                wanted = torch.stack([made[name][torch.from_numpy(it)].sum(0) for it in lists])
                assert torch.equal(joined[name].cpu(), wanted), (form, name)
                assert torch.equal(mapped[name], joined[name])
            seen += batch.samples
    collection.check()
    assert seen == 600


def test_a_batch_of_arrays_stays_on_the_host(tmp_path: Path) -> None:
    Samples(10, fixed=True).norm(tmp_path / "t.data")
    with warprow.data.open(tmp_path / "t.data", features=FEATURES) as reader:
        with pytest.raises(warprow.InvalidArgument, match="torch=True"):
            next(reader).to("cpu")


def test_tensors_of_torch_go_into_a_collection(tmp_path: Path, store: warprow.Store) -> None:
    torch = pytest.importorskip("torch")
    import warprow.torch

    samples = Samples(600, fixed=False)
    samples.norm(tmp_path / "t.data")
    with warprow.data.open(tmp_path / "t.data", features=FEATURES, batch=250, torch=True) as reader:
        samples.compare(reader, torch=True)
    tables = {name: torch.randn(1000, 8, generator=torch.Generator().manual_seed(SEED)) + at for at, name in enumerate(FEATURES)}
    store.load(tables)
    features = [warprow.Feature(name, name, pooling="sum") for name in FEATURES]
    collection = warprow.torch.EmbeddingBagCollection(store, features)
    bags = {
        name: torch.nn.EmbeddingBag.from_pretrained(rows, mode="sum", include_last_offset=True) for name, rows in tables.items()
    }
    seen = 0
    with warprow.data.open(tmp_path / "t.data", features=FEATURES, batch=250, torch=True) as reader:
        for batch in reader:
            joined, mapped = collection(batch.jagged), collection(batch.sparse)
            for name, (ids, offsets) in batch.sparse.items():
                wanted = bags[name](ids, offsets)
                assert joined[name].shape == (batch.samples, 8)
                assert torch.allclose(joined[name], wanted, rtol=1e-6, atol=1e-6)
                assert torch.equal(joined[name], mapped[name])
            seen += batch.samples
    assert seen == 600


def test_the_interpreter_runs_while_a_batch_is_waited_for(tmp_path: Path) -> None:
    samples = Samples(2000, fixed=True)
    samples.npz(tmp_path / "t.npz", np.savez_compressed)
    readers = [warprow.data.open(tmp_path / "t.npz", features=FEATURES, batch=64) for _ in range(4)]
    threads = [threading.Thread(target=samples.compare, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    samples = Samples(20, fixed=True)
    samples.raw(tmp_path / "t.bin")
    samples.norm(tmp_path / "t.data")
    content = bytearray((tmp_path / "t.data").read_bytes())
    content[-9] ^= 1
    (tmp_path / "flipped.data").write_bytes(content)
    (tmp_path / "cut.bin").write_bytes((tmp_path / "t.bin").read_bytes()[:-1])
    for paths, args, text in [
        ("cut.bin", {"format": "raw", "labels": 1, "dense": 3, "hotness": [1, 2, 3]}, "not a whole number of samples of 40 bytes"),
        ("t.bin", {}, "neither its name nor its content tells"),
        ("absent.bin", {"format": "raw", "hotness": [1]}, "No such file"),
        ("t.bin", {"format": "raw", "labels": 1, "dense": 3, "hotness": [6], "rows": [10]}, r"sample 0 has the id \d+ in feature \"0\""),
        ("flipped.data", {}, "in sample 19: the sum of a unit's bytes"),
        ("t.data", {"labels": 2}, "have 1 of label, and 2 are said"),
    ]:
        with pytest.raises(warprow.FileError, match=text) as raised:
            list(warprow.data.open(tmp_path / paths, **args))  # type: ignore[arg-type]
        assert str(raised.value.path).startswith(str(tmp_path)) and raised.value.remedy
    for name, wrong in [("batch", 0), ("ahead", 1025), ("format", "tar"), ("keys", "u8"), ("rows", [-1]), ("hotness", [1 << 32])]:
        args = {"format": "raw", "labels": 1, "dense": 3, "hotness": [6]} | {name: wrong}
        with pytest.raises(warprow.InvalidArgument) as refused:
            warprow.data.open(tmp_path / "t.bin", **args)  # type: ignore[arg-type]
        assert refused.value.argument == name
    with pytest.raises(warprow.InvalidArgument):
        warprow.data.open([])


def test_a_reader_that_is_closed_says_so(tmp_path: Path) -> None:
    Samples(20, fixed=True).raw(tmp_path / "t.bin")
    reader = open_raw(tmp_path / "t.bin", batch=8)
    assert "20 samples of 1 labels, 3 dense features, 3 sparse features" in repr(reader)
    batch = next(reader)
    reader.close()
    reader.close()
    with pytest.raises(warprow.Closed, match="open it again"):
        next(reader)
    assert batch.samples == 8 and "samples 0 to 7, 48 ids" in repr(batch)


@pytest.mark.parametrize("fixed", [True, False])
def test_what_is_converted_is_read_as_it_was(tmp_path: Path, fixed: bool) -> None:
    samples = Samples(400, fixed=fixed)
    samples.norm(tmp_path / "t.norm")
    for to in ("norm", "raw", "parquet", "csv", "npz"):
        if to == "raw" and not fixed:
            with pytest.raises(warprow.FileError, match="nothing says how many ids each sample has"):
                warprow.data.convert(tmp_path / "t.norm", tmp_path / "no", to=to)
            assert not (tmp_path / "no").exists()
            continue
        out = tmp_path / f"t.{to}"
        seen: list[tuple[int, int]] = []
        args: dict[str, Any] = {"replace": to == "norm", "features": FEATURES}
        written = warprow.data.convert(tmp_path / "t.norm", out, to=to, progress=lambda *it: seen.append(it), **args)
        assert written == 400 and seen[-1] == (400, 400)
        shape = {"labels": 1, "dense": 3, "hotness": [1, 2, 3], "features": FEATURES} if to == "raw" else {}
        with warprow.data.open(out, format=to, **shape) as reader:
            samples.compare(reader)
    # NumPy and Python read what was written.
    with np.load(tmp_path / "t.npz") as arrays:
        assert np.array_equal(arrays["labels"], samples.labels) and np.array_equal(arrays["dense"], samples.dense)
        assert np.array_equal(arrays["user"], [sample[0][0] for sample in samples.ids])
        ends = np.cumsum([0, *(len(sample[2]) for sample in samples.ids)])
        assert np.array_equal(arrays["ad.offsets"], ends)
        assert np.array_equal(arrays["ad"], np.concatenate([sample[2] for sample in samples.ids]))
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [[*map(int, filter(None, row["item"].split("|")))] for row in rows] == [it[1].tolist() for it in samples.ids]
    with pytest.raises(warprow.FileError, match="exists already"):
        warprow.data.convert(tmp_path / "t.norm", tmp_path / "t.csv")


def test_pyarrow_reads_what_was_converted(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    samples = Samples(1000, fixed=False)
    samples.norm(tmp_path / "t.norm")
    warprow.data.convert(tmp_path / "t.norm", tmp_path / "t.parquet", labels=LABELS, dense=DENSE, features=FEATURES)
    table = parquet.read_table(tmp_path / "t.parquet")
    assert table.column_names == [*LABELS, *DENSE, *FEATURES]
    assert np.array_equal(table["price"].to_numpy(), samples.dense[:, 1])
    assert table["user"].to_pylist() == [int(sample[0][0]) for sample in samples.ids]
    assert table["item"].to_pylist() == [sample[1].tolist() for sample in samples.ids]


def test_a_callback_that_raises_ends_a_conversion(tmp_path: Path) -> None:
    Samples(400, fixed=True).norm(tmp_path / "t.norm")

    def stop(done: int, total: int) -> None:
        raise ZeroDivisionError(f"{done} of {total}")

    with pytest.raises(ZeroDivisionError):
        warprow.data.convert(tmp_path / "t.norm", tmp_path / "t.csv", progress=stop)
    assert [it.name for it in tmp_path.iterdir()] == ["t.norm"]


@pytest.mark.parametrize(("name", "dense", "features"), [("criteo-kaggle", 13, 26), ("criteo-terabyte", 13, 26), ("avazu", 0, 21)])
def test_generated_samples_have_the_published_shape(tmp_path: Path, name: str, dense: int, features: int) -> None:
    rows = warprow.data.generate(name, tmp_path / "t.parquet", 5000, scale=100, seed=SEED)
    assert len(rows) == features and all(count >= 1 for count in rows.values())
    assert warprow.data.generate(name, tmp_path / "t.npz", 5000, scale=100, seed=SEED) == rows
    with warprow.data.open(tmp_path / "t.parquet", rows=list(rows.values()), labels=["click" if name == "avazu" else "label"]) as first:
        assert (first.samples, len(first.dense), [it.name for it in first.features]) == (5000, dense, list(rows))
        with warprow.data.open(tmp_path / "t.npz") as second:
            for one, other in zip(first, second, strict=True):
                assert np.array_equal(one.ids, other.ids) and np.array_equal(one.labels, other.labels)
                assert np.array_equal(one.dense, other.dense)
    with pytest.raises(warprow.InvalidArgument, match="no published data set"):
        warprow.data.generate("movielens", tmp_path / "m.npz", 1)
    with pytest.raises(warprow.InvalidArgument):
        warprow.data.generate("avazu", tmp_path / "m.bin", 1)
