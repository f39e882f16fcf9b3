"""Data sets of models, read as batches: labels, dense features, and the ids of sparse features.

>>> import warprow.data
>>> with warprow.data.open("day_0.bin", format="raw", labels=1, dense=13, hotness=[1] * 26, batch=8192) as reader:
...     for batch in reader:
...         rows = collection(batch.jagged)          # a warprow.torch.EmbeddingBagCollection
...         loss = criterion(model(batch.dense, rows), batch.labels)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Union

from . import _arrays, _native, _options
from .errors import WarprowError, invalid

__all__ = ["Batch", "DataReader", "Jagged", "SparseFeature", "convert", "generate", "open"]

_Path = Union[str, "PathLike[str]"]
#: Types of the four arrays of a batch.
_TYPES = ("<f4", "<f4", "<i8", "<i8")


def open(
    paths: _Path | Sequence[_Path],
    *,
    format: str | None = None,
    batch: int = 4096,
    labels: int | Sequence[str] | None = None,
    dense: int | Sequence[str] | None = None,
    features: Sequence[str] = (),
    hotness: Sequence[int] = (),
    keys: str | None = None,
    integers: bool = False,
    log: bool = False,
    hex: bool = False,
    rows: Sequence[int] = (),
    sizes: Sequence[int] = (),
    ahead: int = 2,
    drop_last: bool = False,
    torch: bool = False,
) -> DataReader:
    """Opens a data set. A thread reads batches ahead, without the GIL.

    Parameters
    ----------
    paths : path, or sequence of paths
        Files, file lists or folders, whose samples follow each other.
    format : str, optional
        "norm", "raw", "parquet", "csv" or "npz". Without it the first path tells, if it can.
    batch : int
        Samples of a batch, from 1 to 2²⁴. The last batch has what is left.
    labels, dense : int or sequence of str, optional
        How many labels and dense features a sample has, or their names. Norm's files say how many; Raw's do not. Of Parquet, text and
        archives they are columns: without names, columns whose names begin with "label", and "click", are labels; other columns of floating-point numbers,
        and those whose names begin with "dense", are dense features; other columns of integers are sparse features.
    features : sequence of str
        The sparse features by name. Without it all; those of Norm and Raw, which have no names, are "0", "1" and so on.
    hotness : sequence of int
        Of Raw: how many ids each sample has of each feature.
    keys : str, optional
        Of Norm and Raw: "u32", which they have if nothing is said, or "i64".
    integers : bool
        Of Raw: labels and dense features are integers, and dense ones become log(x + 1).
    log : bool
        Whether dense features become log(x + 1), of any format.
    hex : bool
        Of text: ids are hexadecimal.
    rows : sequence of int
        How many rows each feature's table has: an id from there on, or below zero, is an error that names the sample.
    sizes : sequence of int
        HugeCTR's slot_size_array: as `rows`, and the sizes of the features before are added to the ids of each.
    ahead : int
        Batches that are made ahead, from 1 to 1024. So many, one that is being made, and those that the program holds are in memory.
    drop_last : bool
        Whether the last samples, if they are fewer than a batch has, are left out.
    torch : bool
        Whether batches have tensors of torch's, on the CPU, rather than NumPy arrays.

    Raises
    ------
    FileError
        What a file contradicts itself, another file or these arguments in; the message names file, place and remedy. What shows in a sample
        is raised by the batch that would have it.
    InvalidArgument
        An argument that cannot be.
    """
    given, args = _spec(paths, format, labels, dense, features, hotness, keys, integers, log, hex, rows, sizes)
    batch, ahead = _options.number("batch", batch, 1, (1 << 24) + 1), _options.number("ahead", ahead, 1, (1 << 10) + 1)
    drop_last, torch = _options.flag("drop_last", drop_last), _options.flag("torch", torch)
    return DataReader(_native.DataReader(given, args, batch, ahead, drop_last), batch, drop_last, torch)


def convert(
    paths: _Path | Sequence[_Path],
    out: _Path,
    *,
    to: str | None = None,
    format: str | None = None,
    labels: int | Sequence[str] | None = None,
    dense: int | Sequence[str] | None = None,
    features: Sequence[str] = (),
    hotness: Sequence[int] = (),
    keys: str | None = None,
    integers: bool = False,
    log: bool = False,
    hex: bool = False,
    rows: Sequence[int] = (),
    sizes: Sequence[int] = (),
    out_keys: str = "u32",
    sums: bool = True,
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> int:
    """Writes a data set to one file, in the same or another format. The file appears when it is whole, or not at all.

    Parameters
    ----------
    paths, format, labels, dense, features, hotness, keys, integers, log, hex, rows, sizes
        The data set, as of `open`.
    out : path
        The file to write.
    to : str, optional
        "norm", "raw", "parquet", "csv" or "npz". Without it, the ending of `out` tells the last three.
    out_keys : str
        The type of the keys in Norm and Raw: "u32" or "i64".
    sums : bool
        Whether each sample of Norm has the sum of its bytes.
    replace : bool
        Whether a file that exists is replaced.
    progress : callable, optional
        Called with samples done and samples in all. What it raises ends the conversion.

    Returns
    -------
    int
        The number of samples.

    Raises
    ------
    FileError
        As `open`; a sample that the format cannot have, by its number; a file that exists.
    """
    given, args = _spec(paths, format, labels, dense, features, hotness, keys, integers, log, hex, rows, sizes)
    return _native.convert_data(given, args, _out(out, to, out_keys, sums, replace), progress)


def generate(
    name: str,
    out: _Path,
    samples: int,
    *,
    to: str | None = None,
    scale: int = 1,
    alpha: float = 1.05,
    seed: int = 1,
    keys: str = "u32",
    sums: bool = True,
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, int]:
    """Writes samples of random numbers that have the shape of a published data set.

    Parameters
    ----------
    name : str
        "criteo-kaggle" (13 dense features, 26 sparse ones), "criteo-terabyte" (the same, at most 40 million rows a table) or "avazu"
        (21 sparse ones).
    out, to, sums, replace, progress
        As of `convert`.
    samples : int
        How many samples.
    scale : int
        Divides the rows of all tables.
    alpha : float
        The exponent of the power law that ids follow. 0: all ids are equally frequent.
    seed : int
        What all numbers come from: equal seeds give equal samples.
    keys : str
        The type of the keys in Norm and Raw.

    Returns
    -------
    dict of str to int
        By sparse feature, how many rows its table has.

    Raises
    ------
    InvalidArgument
        There is no data set or format of that name, or a number is out of its range.
    FileError
        The file cannot be written, or exists, and `replace` is not set.
    KeyboardInterrupt
        Ctrl-C ended it, and no file is left.
    """
    _options.text("name", name)
    samples, scale, seed = _options.number("samples", samples), _options.number("scale", scale, 1), _options.number("seed", seed)
    alpha = _options.real("alpha", alpha)
    return dict(_native.generate_data(name, samples, scale, alpha, seed, _out(out, to, keys, sums, replace), progress))


def _out(out: _Path, to: str | None, keys: str, sums: bool, replace: bool) -> dict[str, Any]:
    _options.instance("out", out, (str, PathLike), "a path")
    _options.maybe_text("to", to), _options.maybe_text("keys", keys)
    sums, replace = _options.flag("sums", sums), _options.flag("replace", replace)
    ending = Path(out).suffix.lower().removeprefix(".")
    known = {"parquet": "parquet", "csv": "csv", "tsv": "csv", "npz": "npz"}
    chosen = known.get(ending) if to is None else to
    if chosen is None:
        raise invalid("to", f"{str(out)!r} does not tell the format: give norm, raw, parquet, csv or npz")
    return {"path": out, "to": chosen, "keys": keys, "sums": sums, "replace": replace}


def _spec(
    paths: _Path | Sequence[_Path],
    format: str | None,
    labels: int | Sequence[str] | None,
    dense: int | Sequence[str] | None,
    features: Sequence[str],
    hotness: Sequence[int],
    keys: str | None,
    integers: bool,
    log: bool,
    hex: bool,
    rows: Sequence[int],
    sizes: Sequence[int],
) -> tuple[list[_Path], dict[str, Any]]:
    is_one = isinstance(paths, (str, PathLike))
    given: list[_Path] = [paths] if is_one else _options.several("paths", paths, (str, PathLike), "a path, or several")  # type: ignore[list-item]
    _options.maybe_text("format", format), _options.maybe_text("keys", keys)
    integers, log, hex = _options.flag("integers", integers), _options.flag("log", log), _options.flag("hex", hex)
    if not given:
        raise invalid("paths", "there are none")
    return given, {
        "format": format,
        "keys": keys,
        "labels": _columns("labels", labels),
        "dense": _columns("dense", dense),
        "features": _options.several("features", features, str, "names of features"),
        "hotness": _counts("hotness", hotness, 1 << 32),
        "integers": integers,
        "log": log,
        "hex": hex,
        "rows": _counts("rows", rows, 1 << 63),
        "sizes": _counts("sizes", sizes, 1 << 63),
    }


def _columns(argument: str, given: int | Sequence[str] | None) -> int | list[str] | None:
    if given is None or isinstance(given, str):
        return given if given is None else [given]
    if hasattr(type(given), "__index__"):
        return _options.number(argument, given, 0, 1 << 32)
    return _options.several(argument, given, str, "a number of columns, or their names")


def _counts(argument: str, given: Sequence[int], limit: int) -> list[int]:
    return [_options.number(argument, it, 0, limit) for it in _options.several(argument, given, object, "whole numbers")]


@dataclass(frozen=True)
class SparseFeature:
    """A sparse feature of a data set."""

    name: str
    #: How many ids each sample has of it, where the format says; None: any number.
    hotness: int | None


class DataReader:
    """The batches of a data set, from the first to the last: an iterator, and a context manager that closes it. `open` makes it.

    Raises
    ------
    FileError
        By the step in which the error shows: a file contradicts itself or the arguments of `open`; the message names file, place and remedy.
    Closed
        By a step of a reader that is closed.
    WarprowError
        Tensors are wanted, and torch is not installed.
    TypeError
        By `len`, where only reading tells how many samples there are.
    """

    def __init__(self, native: _native.DataReader, batch: int, drop_last: bool, torch: bool) -> None:
        self._native = native
        shape = native.shape()
        #: Samples of a batch.
        self.batch: int = batch
        #: "norm", "raw", "parquet", "csv" or "npz".
        self.format: str = shape["format"]
        #: The names of the labels.
        self.labels: list[str] = shape["labels"]
        #: The names of the dense features.
        self.dense: list[str] = shape["dense"]
        #: The sparse features.
        self.features: list[SparseFeature] = [SparseFeature(*it) for it in shape["features"]]
        #: The samples of all batches together, where the files' headers tell.
        self.samples: int | None = shape["samples"]
        #: The names of columns that are left out because nothing takes their type: strings, dates, numbers of 16 bits.
        self.left_out: list[str] = shape["left_out"]
        self._names = [it.name for it in self.features]
        self._torch: Any = None
        if torch:
            try:
                import torch as module
            except ImportError as error:
                raise WarprowError("torch is not installed: pip install 'warprow[torch]'") from error
            self._torch = module

    def __len__(self) -> int:
        """The number of batches, where the files' headers tell how many samples there are."""
        if self.samples is None:
            raise TypeError(f"only reading tells how many samples a data set of the format {self.format} has")
        return -(-self.samples // self.batch)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        native = self._native.next()
        if native is None:
            raise StopIteration
        return Batch(native, self)

    def close(self) -> None:
        """Ends the thread that reads ahead. Batches that were given stay as they are."""
        self._native.close()

    def __enter__(self) -> DataReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        many = "some" if self.samples is None else f"{self.samples:,}"
        parts = f"{len(self.labels)} labels, {len(self.dense)} dense features, {len(self.features)} sparse features"
        return f"<warprow.data.DataReader {self.format}: {many} samples of {parts}>"


class _Memory:
    """An array of a batch, for NumPy, which keeps this object, and so the batch, while it uses the memory."""

    def __init__(self, native: _native.DataBatch, at: tuple[int, int], typestr: str, shape: tuple[int, ...]) -> None:
        self._native = native
        # Of no elements NumPy wants an address too.
        self.__array_interface__ = {"data": (at[0], False), "shape": shape, "typestr": typestr, "version": 3}


class Batch:
    """Some samples: NumPy arrays, or tensors, in memory that no other batch uses while one of them lives.

    With B samples, of which each has L labels and D dense features:
    """

    #: The number of samples, B.
    samples: int
    #: The number of the first sample in the data set, from 0.
    first: int
    #: Shape (B, L), float32.
    labels: Any
    #: Shape (B, D), float32.
    dense: Any
    #: All ids, int64: those of the first feature, sample by sample, then those of the second, and so on.
    ids: Any
    #: Shape (F · B + 1,) for F sparse features, int64: where the ids of sample b of feature f begin, entry f · B + b.
    offsets: Any

    def __init__(self, native: _native.DataBatch, reader: DataReader) -> None:
        self.samples, self.first = native.samples, native.first
        self._names, self._torch = reader._names, reader._torch
        found: list[Any] = []
        for at, typestr in zip(native.arrays(), _TYPES, strict=True):
            shape: tuple[int, ...] = (at[1],)
            if len(found) < 2:
                shape = (self.samples, at[1] // self.samples)
            array = _arrays.numpy().asarray(_Memory(native, at, typestr, shape)) if at[1] else self._empty(shape, typestr)
            found.append(array if self._torch is None else self._torch.from_numpy(array))
        self.labels, self.dense, self.ids, self.offsets = found
        self._starts: list[int] | None = None
        self._sparse: dict[str, tuple[Any, Any]] | None = None

    @staticmethod
    def _empty(shape: tuple[int, ...], typestr: str) -> Any:
        return _arrays.numpy().empty(shape, typestr)

    def to(self, device: Any, *, non_blocking: bool = False) -> Batch:
        """This batch with its tensors on a device of torch's, such as "cuda:0", where a look-up on a GPU takes them.

        The processor keeps what it knows of the batch: `jagged` and `sparse` of the one on a GPU do not wait for the GPU.

        Parameters
        ----------
        device : torch.device or str
            The device.
        non_blocking : bool
            As of `torch.Tensor.to`.

        Returns
        -------
        Batch
            Another one; this one stays as it is.

        Raises
        ------
        InvalidArgument
            The reader was made without `torch=True`.
        """
        if self._torch is None:
            raise invalid("device", f"{device}: batches of NumPy arrays are on the host: open the data set with torch=True")
        # Before the tensors leave the host.
        self._ends()
        there = copy.copy(self)
        tensors = (it.to(device, non_blocking=non_blocking) for it in (self.labels, self.dense, self.ids, self.offsets))
        there.labels, there.dense, there.ids, there.offsets = tensors
        there._sparse = None
        return there

    def _ends(self) -> list[int]:
        """Where the ids of each feature begin, and where those of the last end."""
        if self._starts is None:
            self._starts = self.offsets[:: self.samples].tolist()
        return self._starts

    @property
    def sparse(self) -> Mapping[str, tuple[Any, Any]]:
        """By feature `(ids, offsets)`, with B + 1 offsets from 0 on: as `warprow.torch.EmbeddingBagCollection` and
        `torch.nn.EmbeddingBag(include_last_offset=True)` take them. The ids are views, the offsets copies."""
        if self._sparse is None:
            starts, self._sparse = self._ends(), {}
            for nth, name in enumerate(self._names):
                offsets = self.offsets[nth * self.samples : (nth + 1) * self.samples + 1] - starts[nth]
                self._sparse[name] = (self.ids[starts[nth] : starts[nth + 1]], offsets)
        return self._sparse

    @property
    def jagged(self) -> Jagged:
        """All sparse features at once, as TorchRec's `KeyedJaggedTensor` has them: `warprow.torch.EmbeddingBagCollection` takes it, and
        copies nothing."""
        return Jagged(self)

    def __repr__(self) -> str:
        return f"<warprow.data.Batch: samples {self.first:,} to {self.first + self.samples - 1:,}, {len(self.ids):,} ids>"


class Jagged:
    """The sparse features of a batch, by the names that a `KeyedJaggedTensor` has for them."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def keys(self) -> list[str]:
        """The features."""
        return list(self._batch._names)

    def values(self) -> Any:
        """All ids, feature by feature."""
        return self._batch.ids

    def offsets(self) -> Any:
        """Where the ids of each sample of each feature begin, and the number of ids."""
        return self._batch.offsets

    def lengths(self) -> Any:
        """How many ids each sample of each feature has."""
        return self._batch.offsets[1:] - self._batch.offsets[:-1]

    def length_per_key(self) -> list[int]:
        """How many ids each feature has."""
        ends = self._batch._ends()
        return [end - begin for begin, end in zip(ends, ends[1:])]

    def stride(self) -> int:
        """The number of samples."""
        return self._batch.samples

    def weights_or_none(self) -> None:
        """None: ids of data sets have no weights."""
        return None
