"""RocksDB on files, as HugeCTR's inference servers use it: the GPU finds the different ids, the processor gets their rows by their keys."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import Unavailable
from ..tables import Tables
from .distinct import DistinctRows

#: Python writes some 100,000 rows a second into RocksDB's files.
_MOST_ROWS = 4_000_000
_KEY = 8


class RocksDb(DistinctRows):
    """One multi-get a batch, by the package `rocksdict`. Bloom filters of 10 bits and a block cache of 8 MB, as GDRec set HugeCTR's.

    Its files lie in a temporary folder and are read through the page cache, which holds them: no drive's time is added, and no rows are kept
    in DRAM besides. Python makes a bytes object of each key and each row, which costs about a microsecond of the ten that a row takes.

    Parameters
    ----------
    tables : Tables
        All rows.
    note : callable
        Told what is done.
    """

    name = "RocksDB in the page cache, copy"

    def __init__(self, tables: Tables, note: Callable[[str], None]) -> None:
        super().__init__(tables.shape, tables.device)
        try:
            import rocksdict
        except ImportError as error:
            raise Unavailable("RocksDB needs the package rocksdict: pip install rocksdict") from error
        rows = tables.on_host
        if len(rows) > _MOST_ROWS:
            raise Unavailable(f"{len(rows):,} rows take RocksDB minutes to load from Python: at most {_MOST_ROWS:,} are (--bytes 1G)")
        note(f"RocksDB is given {len(rows):,} rows")
        self._folder = tempfile.TemporaryDirectory(prefix="models-rocksdb-")
        table = rocksdict.BlockBasedOptions()
        table.set_bloom_filter(10, False)
        table.set_block_cache(rocksdict.Cache(8 << 20))
        options = rocksdict.Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.create_if_missing(True)
        file = str(Path(self._folder.name) / "rows.sst")
        writer = rocksdict.SstFileWriter(options=options)
        writer.open(file)
        length = tables.shape.row_bytes
        keys, values = _keys(np.arange(len(rows))), rows.numpy().data.cast("B")
        for row in range(len(rows)):
            writer[keys[_KEY * row : _KEY * (row + 1)]] = bytes(values[length * row : length * (row + 1)])
        writer.finish()
        self._db: Any = rocksdict.Rdict(str(Path(self._folder.name) / "db"), options=options)
        self._db.ingest_external_file([file])

    def read(self, rows: torch.Tensor, into: torch.Tensor) -> None:
        keys = _keys(rows.numpy())
        values = self._db[[keys[at : at + _KEY] for at in range(0, len(keys), _KEY)]]
        into.copy_(torch.frombuffer(bytearray(b"".join(values)), dtype=into.dtype).view(into.shape))

    def close(self) -> None:
        self._db.close()
        self._folder.cleanup()


def _keys(rows: np.ndarray[Any, np.dtype[np.int64]]) -> bytes:
    """Keys of rows, whose order is that of the numbers, one behind the other."""
    return rows.astype(">u8").tobytes()
