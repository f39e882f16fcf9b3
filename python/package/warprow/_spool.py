"""Tables that come in blocks, spooled to temporary files: one block at a time is in memory."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import tempfile
from types import TracebackType
from typing import Any, BinaryIO

from . import _arrays
from .errors import WarprowError, invalid, wrong_type

#: Types of elements by the names that safetensors gives them.
_SAFETENSORS = {
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "i8": "I8",
    "u8": "U8",
    "f8e4m3": "F8_E4M3",
    "f8e5m2": "F8_E5M2",
}
#: Bytes before the elements. The header is written last, when the number of rows is known, and is filled up with blanks.
_HEADER = 512
#: What a table is called in a file of its own.
_TENSOR = "table"


class Spool:
    """A temporary folder with a safetensors file for each table. Leaving the `with` block removes the folder."""

    def __init__(self) -> None:
        self._folder: str | None = None
        self._spooled: list[SpooledTable] = []

    def table(self, argument: str) -> SpooledTable:
        """A new table without rows. `argument` is what messages call its source."""
        try:
            if self._folder is None:
                self._folder = tempfile.mkdtemp(prefix="warprow-load-")
            path = os.path.join(self._folder, f"{len(self._spooled)}.safetensors")
            spooled = SpooledTable(argument, path, open(path, "xb"))  # noqa: SIM115
        except OSError as error:
            raise _not_written(self._folder or tempfile.gettempdir(), error) from error
        self._spooled.append(spooled)
        return spooled

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for spooled in self._spooled:
            spooled._close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class SpooledTable:
    """A table that is being written to a temporary file."""

    def __init__(self, argument: str, path: str, file: BinaryIO) -> None:
        self._argument, self._path, self._file = argument, path, file
        self._blocks = self._rows = 0
        # Elements of a row, and their type, as the first block has them.
        self._dim, self._dtype = 0, ""

    def add(self, block: Any) -> None:
        """Appends the rows of an array of shape (rows, dim). A block without rows adds nothing."""
        argument = f"{self._argument}, block {self._blocks}"
        given = _arrays.rows(argument, block, may_be_empty=True)
        if self._blocks == 0:
            self._dim, self._dtype = given.dim, given.dtype
        if given.dim != self._dim:
            text = f"rows of {given.dim} elements, where block 0 has rows of {self._dim}: all blocks of a table have the same"
            raise invalid(argument, text)
        if given.dtype != self._dtype:
            text = f"elements of type {given.dtype}, where block 0 has {self._dtype}: all blocks of a table have the same"
            raise wrong_type(argument, text)
        self._blocks += 1
        self._rows += given.rows
        if given.nbytes:
            self._write((ctypes.c_char * given.nbytes).from_address(given.address), None)

    def finish(self) -> dict[str, Any]:
        """Ends the table, and says where the native layer finds it."""
        if self._rows == 0:
            found = f"{self._blocks} blocks, none of which has a row" if self._blocks else "no block"
            again = "; an iterator gives its blocks once: make a new one for each load"
            raise invalid(self._argument, f"it gave {found}: a table has at least one row{again}")
        size = self._file.tell()
        tensor = {"dtype": _SAFETENSORS[self._dtype], "shape": [self._rows, self._dim], "data_offsets": [0, size - _HEADER]}
        text = json.dumps({_TENSOR: tensor}).encode()
        self._write((_HEADER - 8).to_bytes(8, "little") + text.ljust(_HEADER - 8), 0)
        self._close()
        return {
            "file": (self._path, _TENSOR), "memory": (0, 0), "shape": (self._rows, self._dim), "dtype": self._dtype,
        }

    def _write(self, data: Any, at: int | None) -> None:
        try:
            if at is not None:
                self._file.seek(at)
            elif self._file.tell() == 0:
                self._file.seek(_HEADER)
            self._file.write(data)
            # What is written later cannot fail for want of room.
            self._file.flush()
        except OSError as error:
            raise _not_written(self._path, error) from error

    def _close(self) -> None:
        try:
            self._file.close()
        except OSError:
            # Only after a write that failed, and was told.
            pass


def _not_written(path: str, error: OSError) -> WarprowError:
    text = f"blocks cannot be spooled to {path}: {error.strerror or error}; set TMPDIR to a folder with room for the table"
    return WarprowError(text)
